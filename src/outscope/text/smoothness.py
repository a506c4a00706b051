"""How rough a network is around an input: squared Jacobian norms between layers. Needs torch."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from outscope.text.classifier import Classifier
from outscope.text.network import Tokens
from outscope.text.training import blocks_of


def squared_norms(
    out: torch.Tensor,  # (b, …) computed from `inner`
    inner: torch.Tensor,  # (b, …)
    draw: Callable[[torch.Size], torch.Tensor],
    pairs: int,
) -> torch.Tensor:
    """Unbiased estimate of ‖∂out/∂inner‖² for each row: the mean of (wᵀ·J·v)² over Gaussian pairs.

    Rows must be independent of each other. wᵀJ comes from one backward pass, without building J.
    """
    total = torch.zeros(len(out), dtype=torch.float64)
    for turn in range(pairs):
        weights = draw(out.shape)
        (slope,) = torch.autograd.grad(
            out, inner, grad_outputs=weights, retain_graph=turn + 1 < pairs
        )
        product = (slope * draw(inner.shape)).flatten(1).sum(dim=1)
        total += product.double().square().cpu()
    return total / pairs


def smoothness(
    classifier: Classifier, tokens: Tokens, *, pairs: int, seed: int, last_only: bool
) -> torch.Tensor:
    """BLOOD's φ for each transition between blocks, the last one into the logits; (b, L − 1).

    With `last_only`, only the one into the logits, (b, 1). A text's random vectors depend on the
    text and the seed, not on the rest of the batch.
    """
    blocks = blocks_of(classifier.network.core)
    lengths = tokens["attention_mask"].sum(dim=1)
    generators = [
        np.random.default_rng([seed, zlib.crc32(ids[:n].cpu().numpy().tobytes())])
        for ids, n in zip(tokens["input_ids"], lengths.tolist(), strict=True)
    ]

    def draw(shape: torch.Size) -> torch.Tensor:
        """Gaussian rows, zero on padding."""
        out = np.zeros(shape, np.float32)
        for i, generator in enumerate(generators):
            kept = int(lengths[i]) if len(shape) == 3 else shape[1]
            out[i, :kept] = generator.standard_normal((kept, *shape[2:]), dtype=np.float32)
        return torch.from_numpy(out).to(classifier.network.device)

    watched = blocks[-2:-1] if last_only else blocks[:-1]
    with torch.enable_grad(), _cut_after(watched) as cuts:
        logits = classifier.head(classifier.vectors(tokens))
        ends = [cut.before for cut in cuts[1:]] + [logits]
        norms = [
            squared_norms(end, cut.after, draw, pairs) for cut, end in zip(cuts, ends, strict=True)
        ]
    return torch.stack(norms, dim=1)


class _Cut:
    """A point where the graph is cut and restarted."""

    def __init__(self, before: torch.Tensor) -> None:
        self.before = before
        self.after = before.detach().requires_grad_()


@contextmanager
def _cut_after(blocks: list[torch.nn.Module]) -> Iterator[list[_Cut]]:
    """Cut the graph after each block, so that each transition has its own Jacobian."""
    cuts: list[_Cut] = []

    def hook(_module: torch.nn.Module, _inputs: Any, output: Any) -> Any:
        whole = isinstance(output, torch.Tensor)
        cut = _Cut(output if whole else output[0])
        cuts.append(cut)
        return cut.after if whole else (cut.after, *output[1:])

    handles = [block.register_forward_hook(hook) for block in blocks]
    try:
        yield cuts
    finally:
        for handle in handles:
            handle.remove()

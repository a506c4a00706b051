"""Rows of a task under a representation; encoders are trained and vectors computed only once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from outscope._types import Matrix
from outscope.errors import InputError
from outscope.paper.tasks import Part, Task, TaskData, load_task
from outscope.text.cache import VectorCache
from outscope.text.encoders import TransformerEncoder
from outscope.text.weights import find_encoder

LOSSES = {"finetuned": "cross-entropy", "contrastive": "margin-contrastive"}
REPRESENTATIONS = ("pretrained", *LOSSES)
# How encoders are fine-tuned here. A small encoder needs a larger rate and batch than the paper's
# (1e-5 and 4, for one of 82 M parameters); short texts need no more tokens. One thread, so that
# several can be trained at once and results do not depend on how many.
TRAINING: dict[str, Any] = {
    "epochs": 5, "batch_size": 32, "learning_rate": 2e-4, "weight_decay": 0.01, "frozen": 1,
    "max_length": 64, "most_rows": None, "threads": 1,
}  # fmt: skip
# Reductions where a small machine has no time for the full training.
LESS_TRAINING: dict[str, dict[str, Any]] = {
    "20newsgroups": {"epochs": 3, "most_rows": 1000},
    "ag_news": {"epochs": 3, "most_rows": 1000},
    "contrastive": {"epochs": 3},
}

# Random pairs per BLOOD smoothness estimate; with fewer, noise hides the signal.
PAIRS = 20

Tell = Callable[[str], None]


class Features(NamedTuple):
    """A task's rows of each kind; None where a representation has none."""

    data: TaskData
    train: Matrix
    validation: Matrix
    test: Matrix
    logits: tuple[Matrix, Matrix] | None  # train, test
    encoder: str


class Store:
    """A folder of fine-tuned encoders and vectors, and the data they are made from."""

    def __init__(self, folder: Path, data: Path | None, encoder: str, tell: Tell) -> None:
        self.folder, self.data, self.encoder, self.tell = folder, data, encoder, tell
        self.cache = VectorCache(folder)
        self._held: tuple[tuple[Task, str], Features] | None = None

    def features(self, task: Task, representation: str) -> Features:
        """Rows of a task; the last ones requested are kept in memory."""
        if self._held is None or self._held[0] != (task, representation):
            self._held = (task, representation), self._compute(task, representation)
        return self._held[1]

    def _compute(self, task: Task, representation: str) -> Features:
        data = load_task(task, self.data)
        encoder = self.encoder_for(task, representation, data)

        def rows(part: Part) -> Matrix:
            self.tell(f"embedding {len(part.texts):,} texts")
            return encoder.features(part.texts, cache=self.cache)

        train, validation, test = rows(data.train), rows(data.validation), rows(data.test)
        logits = None
        if representation != "pretrained":
            logits = encoder.logits_of(train), encoder.logits_of(test)
        return Features(data, train, validation, test, logits, encoder.name)

    def smoothness(self, task: Task, representation: str) -> Matrix:
        """BLOOD's rows for the test texts, of the transition into the logits."""
        features = self.features(task, representation)
        encoder = self.encoder_for(task, representation, features.data)
        self.tell(f"smoothness of {len(features.data.test.texts):,} texts")
        return encoder.features(features.data.test.texts, "last-smoothness", cache=self.cache)

    def encoder_for(self, task: Task, representation: str, data: TaskData) -> TransformerEncoder:
        """The encoder of a representation, trained if it does not exist yet."""
        if representation == "pretrained":
            return TransformerEncoder(self.encoder)
        if representation not in LOSSES:
            known = ", ".join(REPRESENTATIONS)
            raise InputError(f"representation {representation!r} is unknown; choose one of {known}")
        name = f"{task.name}-{representation}-{Path(self.encoder).name}"
        folder = self.folder / "encoders" / name
        if not folder.is_dir():
            self._train(folder, task, representation, data)
        return TransformerEncoder(str(folder), pairs=PAIRS)

    def _train(self, folder: Path, task: Task, representation: str, data: TaskData) -> None:
        from outscope.text.training import Plan, Step, train

        def watch(step: Step) -> None:
            if step.step % 20 == 0:
                self.tell(
                    f"fine-tuning, step {step.step} of {step.steps}, loss {step.loss:.3f}, "
                    f"{step.seconds_left / 60:.0f} min left"
                )

        import torch

        told = training_told(task, representation)
        assert told is not None
        fitted, held = _some(data.train, told["most_rows"], task.seed), data.validation
        inside = np.flatnonzero(~held.is_ood)
        names = {field.name for field in dataclasses.fields(Plan)}
        threads = torch.get_num_threads()
        torch.set_num_threads(told["threads"])
        try:
            train(
                find_encoder(self.encoder),
                fitted.texts,
                fitted.labels.tolist(),
                folder,
                holdout=0,
                plan=Plan(**{k: v for k, v in told.items() if k in names}, seed=task.seed),
                validation=([held.texts[i] for i in inside], held.labels[inside].tolist()),
                watch=watch,
            )
        finally:
            torch.set_num_threads(threads)


def _some(part: Part, most: int | None, seed: int) -> Part:
    """The rows to fine-tune on: those with words, or a random part of them if so set."""
    kept = np.flatnonzero([bool(text.strip()) for text in part.texts])
    if most is not None and len(kept) > most:
        kept = np.sort(np.random.default_rng(seed).choice(kept, most, replace=False))
    return Part([part.texts[i] for i in kept], part.labels[kept], part.is_ood[kept])


def training_told(task: Task, representation: str) -> dict[str, Any] | None:
    """How the encoder of a representation is trained; None if it is not."""
    if representation == "pretrained":
        return None
    less = LESS_TRAINING.get(representation, {}) | LESS_TRAINING.get(task.dataset, {})
    return {"loss": LOSSES[representation], **TRAINING, **less}

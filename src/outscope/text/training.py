"""Fine-tune an encoder on labelled texts: cross-entropy or margin-contrastive. Needs torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch

from outscope.errors import InputError
from outscope.io.atomic import check_folder_writable, whole_folder
from outscope.text.classifier import Classifier
from outscope.text.losses import margin_contrastive
from outscope.text.network import Network
from outscope.text.seen import hashes, read_seen, set_aside

logger = logging.getLogger("outscope")

CHECKPOINT, STATE = "checkpoint.safetensors", "checkpoint.json"
# Texts are sorted by length only within groups of this many batches, so that order stays random.
BATCHES_A_GROUP = 50
# Rows of a class that a contrastive batch keeps together; a single row would have no positive pair.
ROWS_A_CLASS = 4
# Leftovers of a killed run are removed by a later one once they are this old.
ABANDONED_SECONDS = 3600


@dataclass(frozen=True)
class Plan:
    """How to train. Defaults are the paper's; small encoders need a larger rate and batch."""

    loss: str = "cross-entropy"
    epochs: int = 5
    batch_size: int = 4
    learning_rate: float = 1e-5
    weight_decay: float = 0.01
    contrastive_weight: float = 2.0
    max_length: int = 128
    frozen: int = 0  # first layers to freeze; 1 = token embeddings, 2 = also block 1 …
    seed: int = 0

    def check(self) -> None:
        """Raise for the first invalid value."""
        if self.loss not in ("cross-entropy", "margin-contrastive"):
            raise InputError(
                f"loss={self.loss!r} is unknown: expected 'cross-entropy' or 'margin-contrastive'"
            )
        for name in ("epochs", "batch_size", "max_length"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)!r}: expected at least 1")
        for name in ("learning_rate", "weight_decay", "contrastive_weight", "frozen"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise InputError(f"{name}={value!r}: expected a finite number of at least 0")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"seed={self.seed!r}: expected a number from 0 to 2**32 − 1")
        if self.loss == "margin-contrastive" and self.batch_size < 2:
            raise InputError("batch_size=1 has no pairs: margin-contrastive needs at least 2")


@dataclass(frozen=True)
class Step:
    """Progress of the training."""

    step: int
    steps: int
    loss: float
    seconds_left: float
    accuracy: float | None = None  # on the validation texts, after each epoch


def train(
    source: str | Path,
    texts: Sequence[str],
    labels: Sequence[Any],
    out: str | Path,
    *,
    plan: Plan,
    holdout: int | float | str = "auto",
    validation: tuple[Sequence[str], Sequence[Any]] | None = None,
    device: str | None = None,
    watch: Callable[[Step], None] = lambda step: None,
) -> Classifier:
    """Fine-tune and write the result to the folder `out`.

    `holdout` texts (a number, a share, "auto": enough to promise 5 %, none of few) are kept out of
    training, so that a threshold can be calibrated on them; the folder records the others. If
    interrupted and called again with the same arguments, it continues after the last complete
    epoch, to the same result.
    """
    plan.check()
    names = [str(label) for label in labels]
    classes = sorted(set(names))
    if len(names) != len(texts):
        raise InputError(f"labels has {len(names)} values but there are {len(texts)} texts")
    if len(classes) < 2:
        raise InputError(f"labels name {len(classes)} class: expected at least 2")
    _check_texts(texts, validation, classes)
    out = Path(out).expanduser().resolve()
    check_folder_writable(out)
    if out.is_mount():
        raise InputError(f"{out} is a mount point, which cannot be replaced; give a folder in it")
    out.parent.mkdir(parents=True, exist_ok=True)
    seen = read_seen(Path(source))
    aside = set_aside(texts, holdout, plan.seed, seen)
    rows = np.flatnonzero(~aside).tolist()
    texts = [texts[i] for i in rows]
    torch.manual_seed(plan.seed)
    network = Network(source, device=device, max_length=plan.max_length)
    card = {
        **asdict(plan),
        "encoder": Path(source).name,
        "max_length": network.max_length,
        "trained_on": len(rows),
        "set_aside": int(aside.sum()),
    }
    # If an earlier training left no record, a record of this one alone would mislead.
    record = None if seen is None else np.union1d(seen, hashes(texts))
    classifier = Classifier(network, classes, card, record)
    target = np.searchsorted(classes, names)[rows]
    run = _Run(classifier, plan, texts, target, out, str(source))
    for epoch in range(run.resume(), plan.epochs):
        run.epoch(epoch, watch)
        if validation is not None:
            right = classifier.accuracy(
                validation[0], [str(v) for v in validation[1]], batch_size=64
            )
            card["validation_accuracy"] = right
            logger.info(
                "epoch %d of %d: validation accuracy %.2f %%", epoch + 1, plan.epochs, 100 * right
            )
            watch(run.standing(accuracy=right))
        if epoch + 1 < plan.epochs:
            run.checkpoint(epoch + 1)
    classifier.eval()
    with _whole_folder(out) as folder:
        classifier.save(folder)
    run.forget()
    return classifier


def _check_texts(texts: Sequence[str], validation: Any, classes: list[str]) -> None:
    empty = [i for i, text in enumerate(texts) if not text.strip()]
    if empty:
        raise InputError(
            f"{len(empty):,} of {len(texts):,} texts are empty (the first is texts[{empty[0]}]); "
            "drop them"
        )
    if validation is not None:
        unknown = sorted({str(label) for label in validation[1]} - set(classes))
        if unknown:
            raise InputError(
                f"validation has labels that no training text has: {', '.join(unknown[:5])}"
            )


@contextlib.contextmanager
def _whole_folder(path: Path) -> Iterator[Path]:
    """`whole_folder`, which also reports errors from writing weights and says what to do."""
    try:
        with whole_folder(path) as aside:
            yield aside
    except (InputError, safetensors.SafetensorError) as error:
        raise InputError(
            f"cannot write to {path} ({error.__cause__ or error}); make room and start again with "
            "the same arguments: training continues after its last complete epoch"
        ) from error


class _Run:
    """A training in progress: order of rows, optimiser, position."""

    def __init__(
        self,
        classifier: Classifier,
        plan: Plan,
        texts: Sequence[str],
        target: np.ndarray[Any, Any],
        out: Path,
        source: str,
    ) -> None:
        self.classifier, self.plan = classifier, plan
        self.tokens = classifier.network.tokenize(list(texts))
        self.target = torch.as_tensor(target, dtype=torch.long)
        _freeze(classifier.network.core, plan.frozen)
        self.trained = {n: p for n, p in classifier.parameters().items() if p.requires_grad}
        # Norms and biases are not decayed towards zero, as is usual for transformers.
        groups = [
            {
                "params": [p for p in self.trained.values() if p.ndim > 1],
                "weight_decay": plan.weight_decay,
            },
            {"params": [p for p in self.trained.values() if p.ndim <= 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=plan.learning_rate, fused=True)
        self.steps = plan.epochs * len(self.batches(0))
        self.step, self.loss = 0, 0.0
        self.seconds, self.timed = 0.0, 0
        # If texts, plan or encoder change, training starts afresh instead of resuming.
        told = json.dumps([asdict(plan), source, classifier.classes, list(texts), target.tolist()])
        self.identity = hashlib.sha256(told.encode()).hexdigest()
        self.folder, self.prefix = out.parent, f".{out.name}.checkpoint-"

    def batches(self, epoch: int) -> list[np.ndarray[Any, Any]]:
        """Rows of each batch of an epoch; depends only on the seed and the epoch."""
        rng = np.random.default_rng([self.plan.seed, epoch])
        if self.plan.loss == "margin-contrastive":
            return _paired(self.target.numpy(), self.plan.batch_size, rng)
        lengths = np.array([len(one["input_ids"]) for one in self.tokens])
        return _alike(lengths, self.plan.batch_size, rng)

    def epoch(self, epoch: int, watch: Callable[[Step], None]) -> None:
        """One pass over all rows."""
        self.classifier.train()
        for rows in self.batches(epoch):
            start = time.perf_counter()
            self._descend(rows)
            self.seconds += time.perf_counter() - start
            self.timed += 1
            watch(self.standing())
        self.classifier.eval()

    def _descend(self, rows: np.ndarray[Any, Any]) -> None:
        classifier, plan = self.classifier, self.plan
        for group in self.optimizer.param_groups:
            group["lr"] = plan.learning_rate * (1.0 - self.step / self.steps)
        tokens = classifier.network.pad([self.tokens[i] for i in rows])
        target = self.target[rows].to(classifier.network.device)
        vectors = classifier.vectors(tokens)
        logits = classifier.head(classifier.dropout(vectors))
        loss = torch.nn.functional.cross_entropy(logits, target)
        if plan.loss == "margin-contrastive":
            loss = loss + plan.contrastive_weight * margin_contrastive(vectors, target)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.trained.values(), 1.0)
        self.optimizer.step()
        self.step += 1
        value = float(loss.detach())
        if not np.isfinite(value):
            raise InputError(
                f"the loss became {value} at step {self.step}; lower learning_rate "
                f"(it is {plan.learning_rate:g})"
            )
        # A running mean is readable; single batches are noisy.
        self.loss = value if self.step == 1 else 0.98 * self.loss + 0.02 * value

    def standing(self, accuracy: float | None = None) -> Step:
        """What a progress display needs."""
        left = (self.steps - self.step) * self.seconds / max(1, self.timed)
        return Step(self.step, self.steps, self.loss, left, accuracy)

    def checkpoint(self, epoch: int) -> None:
        """Save everything that the rest of the run depends on."""
        tensors = {
            f"weight.{n}": p.detach().contiguous() for n, p in self.classifier.parameters().items()
        }
        for name, parameter in self.trained.items():
            for kind, value in self.optimizer.state[parameter].items():
                tensors[f"adam.{kind}.{name}"] = value
        tensors["random"] = torch.get_rng_state()
        state = {"identity": self.identity, "epoch": epoch, "step": self.step, "loss": self.loss}
        older = self._checkpoints()
        with _whole_folder(self.folder / f"{self.prefix}{uuid.uuid4().hex}") as folder:
            safetensors.torch.save_file(tensors, folder / CHECKPOINT)
            state["sha256"] = _digest(folder / CHECKPOINT)
            (folder / STATE).write_text(json.dumps(state), "utf-8")
        # Only now, so that a complete one exists whenever the run is killed.
        self.forget(older)

    def resume(self) -> int:
        """Load the last checkpoint of this run, if there is one; return the next epoch."""
        whole: list[tuple[int, Path, dict[str, Any]]] = []
        for folder in self._checkpoints():
            try:
                state = json.loads((folder / STATE).read_text("utf-8"))
                if state["identity"] == self.identity:
                    if state["sha256"] != _digest(folder / CHECKPOINT):
                        raise ValueError("not what was written")
                    whole.append((state["epoch"], folder, state))
            except (OSError, ValueError, KeyError, TypeError) as error:
                logger.warning(
                    "the checkpoint %s is damaged (%s); doing without it", folder.name, error
                )
        if not whole:
            return 0
        _, folder, state = max(whole, key=lambda one: one[0])
        tensors = safetensors.torch.load_file(folder / CHECKPOINT)
        with torch.no_grad():
            for name, parameter in self.classifier.parameters().items():
                parameter.copy_(tensors[f"weight.{name}"])
        for name, parameter in self.trained.items():
            if f"adam.step.{name}" not in tensors:
                continue  # a part that gets no gradient
            kinds = ("step", "exp_avg", "exp_avg_sq")
            self.optimizer.state[parameter] = {
                k: tensors[f"adam.{k}.{name}"].clone() for k in kinds
            }
        torch.set_rng_state(tensors["random"])
        self.step, self.loss = int(state["step"]), float(state["loss"])
        logger.info("continuing after epoch %d", state["epoch"])
        return int(state["epoch"])

    def forget(self, folders: list[Path] | None = None) -> None:
        """Remove all checkpoints, or only these."""
        for folder in self._checkpoints() if folders is None else folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _checkpoints(self) -> list[Path]:
        return [path for path in self.folder.iterdir() if path.name.startswith(self.prefix)]


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _freeze(core: Any, depth: int) -> None:
    """Freeze the token embeddings and the first blocks."""
    if depth < 1:
        return
    parts = [core.embeddings, *blocks_of(core)]
    for part in parts[:depth]:
        part.requires_grad_(False)


def blocks_of(core: Any) -> list[torch.nn.Module]:
    """The transformer blocks, whatever the architecture calls them."""
    wanted = int(core.config.num_hidden_layers)
    for module in core.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == wanted:
            return list(module)
    raise InputError(f"no list of {wanted} blocks found in a {type(core).__name__}")


def _alike(
    lengths: np.ndarray[Any, Any], batch_size: int, rng: np.random.Generator
) -> list[np.ndarray[Any, Any]]:
    """Random batches of rows of similar length: less padding, half the time on short texts."""
    order = rng.permutation(len(lengths))
    group = batch_size * BATCHES_A_GROUP
    batches = []
    for start in range(0, len(order), group):
        part = order[start : start + group]
        part = part[np.argsort(lengths[part], kind="stable")]
        batches += [part[i : i + batch_size] for i in range(0, len(part), batch_size)]
    return [batches[i] for i in rng.permutation(len(batches))]


def _paired(
    target: np.ndarray[Any, Any], batch_size: int, rng: np.random.Generator
) -> list[np.ndarray[Any, Any]]:
    """Random batches in which rows come in small groups of one class."""
    size = min(ROWS_A_CLASS, max(2, batch_size // 2))
    groups = []
    for label in np.unique(target):
        rows = rng.permutation(np.flatnonzero(target == label))
        groups += [rows[i : i + size] for i in range(0, len(rows), size)]
    order = np.concatenate([groups[i] for i in rng.permutation(len(groups))])
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]

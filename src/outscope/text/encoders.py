"""Encoders: texts → rows of numbers for a detector. torch is imported only when needed."""

from __future__ import annotations

import hashlib
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outscope._types import BoolArray, Matrix
from outscope.errors import InputError, require
from outscope.text.cache import VectorCache
from outscope.text.seen import hashes, read_seen
from outscope.text.weights import DEFAULT, find_encoder, folder_fingerprint

logger = logging.getLogger("outscope")

# Texts looked up, computed and cached together: the most that is lost when work is interrupted.
TEXTS_AT_A_TIME = 2048
CANARY = ("a usual sentence", "Zwölf Boxkämpfer jagen Viktor", "0123 ?! {}")

Advance = Callable[[int], None]


def _silent(done: int) -> None:
    pass


class Encoder(ABC):
    """Texts → rows. The model is loaded when first needed."""

    name: str
    folder: Path | None = None  # where its files are, if it has any
    local = False  # whether that folder is the user's own
    address: str | None = None  # where it is served, if not on this machine
    cacheable = True
    at_a_time = TEXTS_AT_A_TIME

    @abstractmethod
    def fingerprint(self) -> str:
        """Hash of everything that affects a row; detectors refuse encoders with another one."""

    @abstractmethod
    def _compute(self, texts: Sequence[str], kind: str, advance: Advance) -> Matrix:
        """Compute the rows of texts."""

    def settings(self) -> dict[str, Any]:
        """Settings that recreate this encoder from its name or folder."""
        return {}

    def adopt(self, settings: Mapping[str, Any]) -> None:
        """Take over what a saved detector recorded of its encoder, if this one was given for it."""
        return

    def check(self) -> None:
        """Raise if the model changed since it was made; files cannot, without their hash."""
        return

    def has_seen(self, texts: Sequence[str]) -> BoolArray | None:
        """Whether `outscope finetune` trained on each text; None if unknown.

        A threshold from texts that the encoder has seen promises nothing about new texts.
        """
        seen = read_seen(self._origin())
        return None if seen is None else np.isin(hashes(texts), seen)

    def _origin(self) -> Path | None:
        return self.folder

    def space(self, kind: str) -> str:
        """Name of the space of rows of this kind."""
        return hashlib.sha256(f"{self.fingerprint()}:{kind}".encode()).hexdigest()[:32]

    def features(
        self,
        texts: Sequence[str],
        kind: str = "embedding",
        *,
        cache: VectorCache | None = None,
        advance: Advance = _silent,
    ) -> Matrix:
        """Rows of one kind for all texts, float32.

        "embedding"; from a fine-tuned encoder also "logits", "smoothness" (of every transition
        between blocks) and "last-smoothness" (of the one into the logits).
        """
        if cache is None or not self.cacheable:
            return self._compute(texts, kind, advance)
        space = self.space(kind)
        parts = []
        for start in range(0, len(texts), self.at_a_time):
            part = list(texts[start : start + self.at_a_time])
            known = cache.get(space, part)
            missing = list({part[i]: None for i in range(len(part)) if i not in known})
            advance(len(part) - len(missing))
            if missing:
                fresh = self._compute(missing, kind, advance)
                cache.put(space, missing, fresh)
                row = dict(zip(missing, fresh, strict=True))
                known.update({i: row[part[i]] for i in range(len(part)) if i not in known})
            parts.append(np.stack([known[i] for i in range(len(part))]))
        return np.concatenate(parts) if parts else self._compute(texts, kind, advance)

    def encode(self, texts: Sequence[str]) -> Matrix:
        """Embeddings, without the cache."""
        return self.features(check_texts(texts))


class TransformerEncoder(Encoder):
    """A sentence-transformers or Hugging Face model, given by name, by folder or loaded.

    `layer` None is the model's own pooling (for a fine-tuned folder: the mean over the last layer);
    a number is the masked mean of that layer: −1 the last, −2 the penultimate of the paper.
    A folder written by `outscope finetune` also gives "logits" and "smoothness" (for BLOOD, with
    `pairs` random pairs). `device` is cpu, cuda or mps; None is $OUTSCOPE_DEVICE, or the best
    available.
    """

    def __init__(
        self,
        model: Any = DEFAULT,
        *,
        layer: int | None = None,
        max_length: int | None = None,
        batch_size: int = 32,
        device: str | None = None,
        pairs: int = 10,
        seed: int = 0,
    ) -> None:
        if batch_size < 1 or (max_length is not None and max_length < 1) or pairs < 1:
            raise InputError(
                f"batch_size={batch_size}, max_length={max_length}, pairs={pairs}: "
                "expected at least 1 each"
            )
        self.layer, self.max_length, self.batch_size = layer, max_length, batch_size
        self.device = device or os.environ.get("OUTSCOPE_DEVICE") or None
        self.pairs, self.seed = pairs, seed
        self._given = None if isinstance(model, (str, Path)) else model
        self.folder = find_encoder(str(model)) if self._given is None else None
        self.local = self._given is None and Path(model).expanduser().is_dir()
        self.name = str(model) if self._given is None else type(model).__name__
        if self.local:
            self.name = Path(model).expanduser().resolve().name
        self._loaded: Any = None

    @property
    def is_classifier(self) -> bool:
        """Whether it was fine-tuned here and has a head."""
        return self.folder is not None and (self.folder / "classifier.json").is_file()

    @property
    def classes(self) -> list[str]:
        """The classes it was fine-tuned on."""
        self._demand_head("classes")
        found: list[str] = self._network().classes
        return found

    def fingerprint(self) -> str:
        """Hash of the model's files and of the settings that affect a row."""
        base = folder_fingerprint(self.folder) if self.folder else self._network().fingerprint()
        told = f"{base}:{self.layer}:{self.max_length}:{self.pairs}:{self.seed}"
        return hashlib.sha256(told.encode()).hexdigest()

    def settings(self) -> dict[str, Any]:
        """Settings that recreate this encoder from its name or folder."""
        names = ("layer", "max_length", "batch_size", "pairs", "seed")
        return {name: getattr(self, name) for name in names}

    def _origin(self) -> Path | None:
        """A loaded model remembers the folder it came from."""
        core = None if self._given is None else self._given[0].auto_model
        name = getattr(core, "name_or_path", "")
        return Path(name) if name else self.folder

    def _network(self) -> Any:
        """The network, or the classifier around it; the only place that imports torch."""
        if self._loaded is None:
            require("torch", extra="text")
            require("sentence_transformers", extra="text")
            from outscope.text.classifier import Classifier
            from outscope.text.network import Network

            if self.is_classifier:
                self._loaded = Classifier.load(self.folder or "", device=self.device)
            else:
                source: Any = self._given if self.folder is None else self.folder
                self._loaded = Network(source, device=self.device, max_length=self.max_length)
        return self._loaded

    def _demand_head(self, what: str) -> None:
        if not self.is_classifier:
            raise InputError(
                f"{what} need a classifier, and {self.name} is a plain encoder; fine-tune it "
                "first: outscope finetune TEXTS.csv --out FOLDER, then use --encoder FOLDER"
            )

    def logits_of(self, embeddings: Matrix) -> Matrix:
        """Logits of texts from known embeddings, which are the head's input."""
        self._demand_head("logits")
        if self.layer not in (None, -1):
            raise InputError(
                f"layer={self.layer}: the head sees the last layer; ask features(texts, 'logits')"
            )
        found: Matrix = self._network().logits_of(embeddings)
        return found

    def _compute(self, texts: Sequence[str], kind: str, advance: Advance) -> Matrix:
        if kind != "embedding":
            self._demand_head(kind)
        loaded = self._network()
        network = loaded.network if self.is_classifier else loaded
        size = self.batch_size
        if kind == "logits":
            return loaded.logits(texts, batch_size=size, advance=advance)
        if kind in ("smoothness", "last-smoothness"):
            from outscope.text.smoothness import smoothness

            return network.run(
                texts,
                lambda tokens: smoothness(
                    loaded, tokens, pairs=self.pairs, seed=self.seed, last_only=kind[0] == "l"
                ),
                batch_size=size,
                advance=advance,
                gradients=True,
            )
        layer = -1 if self.layer is None and self.is_classifier else self.layer
        pool = network.own_pooling
        if layer is not None:
            pool = lambda tokens: network.layer_mean(tokens, layer)  # noqa: E731
        return network.run(texts, pool, batch_size=size, advance=advance)


class StaticEncoder(Encoder):
    """A model2vec model: one vector per token, averaged; tens of thousands of texts per second."""

    def __init__(self, model: str | Path) -> None:
        self.local = Path(model).expanduser().is_dir()
        self.name = Path(model).expanduser().resolve().name if self.local else str(model)
        self.folder = find_encoder(str(model))
        self._loaded: Any = None

    def fingerprint(self) -> str:
        """Hash of the model's files."""
        return folder_fingerprint(self.folder or Path())

    def _compute(self, texts: Sequence[str], kind: str, advance: Advance) -> Matrix:
        if kind != "embedding":
            raise InputError(f"{self.name} is a static encoder and has no {kind}; see: finetune")
        if self._loaded is None:
            self._loaded = require("model2vec", extra="static").StaticModel.from_pretrained(
                str(self.folder)
            )
        found = np.asarray(self._loaded.encode(list(texts)), dtype=np.float32)
        advance(len(texts))
        return found


class FunctionEncoder(Encoder):
    """Any function from a list of texts to an array, one row per text. Not cached."""

    cacheable = False

    def __init__(self, function: Callable[[list[str]], Any], name: str | None = None) -> None:
        self.function = function
        self.name = name or str(getattr(function, "__name__", type(function).__name__))

    def fingerprint(self) -> str:
        """A function cannot be hashed; its rounded rows for a few sentences stand in for it."""
        rows = self._compute(CANARY, "embedding", _silent)
        coarse = np.round(rows / max(float(np.abs(rows).max()), 1e-30), 2) + 0.0
        return hashlib.sha256(coarse.astype(np.float32).tobytes()).hexdigest()

    def _compute(self, texts: Sequence[str], kind: str, advance: Advance) -> Matrix:
        if kind != "embedding":
            raise InputError(f"the function {self.name} gives embeddings, not {kind}")
        found = np.asarray(self.function(list(texts)), dtype=np.float32)
        if found.ndim != 2 or len(found) != len(texts):
            raise InputError(
                f"the encoder function {self.name} returned shape {found.shape} for {len(texts)} "
                "texts; expected one row for each"
            )
        advance(len(texts))
        return found


def check_texts(texts: Any, name: str = "texts") -> list[str]:
    """A list of texts; a single text, other types and missing values are refused, with position."""
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):
        raise InputError(f"{name} is a table ({type(texts).__name__}); give one column of it")
    if isinstance(texts, (str, bytes)):
        raise InputError(f"{name} is a single text; give a list, even for one text: [{name}]")
    try:
        found = list(texts)
    except TypeError as error:
        raise InputError(f"{name} is a {type(texts).__name__}; expected a list of texts") from error
    for i, text in enumerate(found):
        if not isinstance(text, str):
            raise InputError(
                f"{name}[{i}] is a {type(text).__name__}; expected a text (convert it, or drop "
                "rows without one)"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"{name}[{i}] holds half of a surrogate pair at position {error.start}, which is "
                "not a character; decode its source again as UTF-8 or UTF-16"
            ) from error
    return [str(text) for text in found]


def refuse_empty(texts: list[str]) -> None:
    """Refuse texts to learn from that say nothing."""
    empty = [i for i, text in enumerate(texts) if not text.strip()]
    if not texts:
        raise InputError("texts has 0 texts; give in-scope texts")
    if empty:
        raise InputError(
            f"{len(empty):,} of {len(texts):,} texts are empty (the first is texts[{empty[0]}]); "
            "they say nothing about what is in scope, so drop them"
        )

"""The models that are served: scored, changed, saved, and swapped when their folder changes."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from outscope._types import Matrix
from outscope.decisions.threshold import least_rate
from outscope.detectors.thresholded import ESTIMATE
from outscope.errors import InputError, InScopeExampleWarning, NoPromiseWarning
from outscope.io.models import MANIFEST
from outscope.loading import load
from outscope.serve.batching import Batcher, Job
from outscope.serve.judging import (
    Model,
    Question,
    answer,
    detector_of,
    explains,
    learns,
    own_copy,
    results_of,
)
from outscope.serve.metrics import Metrics
from outscope.serve.problems import Problem
from outscope.serve.projection import (
    Projection,
    can_project,
    in_the_space_of_atoms,
    project,
    remembered_rows,
    remembered_texts,
)
from outscope.serve.settings import Settings
from outscope.text.pipeline import TextDetector

log = logging.getLogger("outscope.serve")

# Texts encoded at a time for the map, so that requests get their turn between.
AT_A_TIME = 64
OUR_WARNINGS = (InScopeExampleWarning, NoPromiseWarning)
# A request whose parts were scored before and after a change is scored again, this often.
ASK_AGAIN = 3
# At most this many in-scope scores are told: enough to draw how they are spread.
SHOWN_SCORES = 401


class Served:
    """One model: what answers now, and how it comes to be replaced."""

    def __init__(
        self,
        name: str,
        model: Model,
        folder: Path | None,
        settings: Settings,
        metrics: Metrics,
        at_work: set[Future[Any]],
    ) -> None:
        self.name, self.folder, self.metrics = name, folder, metrics
        self._changes, self._making = asyncio.Lock(), asyncio.Lock()
        self.batcher = Batcher(name, self._work, settings, metrics, at_work)
        self._mark = _mark(folder)
        self._use(model)

    def _use(self, model: Model) -> None:
        """Swap the model; batches that are being scored end with the old one."""
        self._edition = getattr(self, "_edition", 0) + 1
        version = _version(self.folder) or f"memory-{self._edition}"
        self._map: tuple[Model, Projection] | None = None
        self.current = (model, version)
        self.loaded_at = datetime.now(UTC).isoformat(timespec="seconds")

    @property
    def model(self) -> Model:
        """The model that answers now."""
        return self.current[0]

    @property
    def version(self) -> str:
        """Changes whenever the model does."""
        return self.current[1]

    @property
    def kind(self) -> str:
        """What it takes besides vectors."""
        return "texts" if isinstance(self.model, TextDetector) else "vectors"

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        return int(detector_of(self.model).n_features_in_)

    # ---- scoring

    def _work(self, jobs: Sequence[Job]) -> list[Any]:
        (model, version), made = self.current, self._map
        seen = made[1] if made is not None and made[0] is model else None

        def place(rows: Matrix) -> list[list[float]] | None:
            return None if seen is None else seen.place(in_the_space_of_atoms(model, rows))

        return [
            one if isinstance(one, Exception) else (self._about(one[0], version), one[1])
            for one in answer(model, jobs, place)
        ]

    async def ask(self, question: Question, items: Any) -> tuple[dict[str, Any], Any]:
        """The threshold that decided, and a result or score for each item; by the same model."""
        for _ in range(ASK_AGAIN):
            quick = question.kind == "vectors" and not question.n_atoms
            parts = await self.batcher.submit(question, items, quick=quick)
            abouts = [about for about, _ in parts]
            if all(about["version"] == abouts[0]["version"] for about in abouts):
                break
        if question.scores_only:
            return abouts[0], np.concatenate([scores for _, scores in parts])
        return abouts[0], [one for _, results in parts for one in results]

    async def the_map(self) -> Projection | None:
        """The map, made at first use; its texts are encoded between batches."""
        async with self._making:
            model, made = self.model, self._map
            if (made is None or made[0] is not model) and can_project(model):
                texts, rows = remembered_texts(model), []
                for start in range(0, len(texts), AT_A_TIME):
                    some = texts[start : start + AT_A_TIME]
                    rows.append(await self.batcher.alone(lambda: remembered_rows(model, some)))  # noqa: B023
                width = detector_of(model).n_features_in_
                found = np.concatenate(rows) if rows else np.empty((0, width), np.float32)
                made = model, await asyncio.to_thread(project, model, texts, found)
                if model is self.model:
                    self._map = made
            return None if made is None else made[1]

    # ---- describing

    def about(self, model: Model | None = None) -> dict[str, Any]:
        """The model's name, version and threshold, or those of one with another threshold."""
        return self._about(model or self.model, self.version)

    def _about(self, model: Model, version: str) -> dict[str, Any]:
        detector = detector_of(model)
        promise = detector.promise_
        return {
            "model": self.name,
            "version": version,
            "threshold": detector.threshold_,
            "fpr": promise.fpr if promise else getattr(detector, "rate_", None),
            "promise": str(promise or ESTIMATE),
        }

    def describe(self) -> dict[str, Any]:
        """Everything about the model that callers may know."""
        model, detector = self.model, detector_of(self.model)
        vectors = getattr(detector, "atoms_", None)
        labels: Any = getattr(model, "labels_", getattr(detector, "classes_", None))
        return {
            **self.about(),
            "kind": self.kind,
            "detector": type(detector).__name__,
            "n_features": int(detector.n_features_in_),
            "atoms": None if vectors is None else len(vectors),
            "labels": None if labels is None else np.asarray(labels).tolist(),
            "promised": detector.promise_ is not None,
            "explains": explains(model),
            "learns": learns(model),
            "saved": self.folder is not None,
            "loaded_at": self.loaded_at,
        }

    def threshold_about(self, model: Model) -> dict[str, Any]:
        """What can be said about a threshold."""
        detector = detector_of(model)
        scores = getattr(detector, "calibration_scores_", None)
        return {
            **self.about(model),
            "promised": detector.promise_ is not None,
            "least_fpr": None if scores is None else least_rate(len(scores)),
            "in_scope_scores": _spread(
                getattr(detector, "held_out_scores_", None) if scores is None else scores
            ),
        }

    # ---- changing

    async def change(self, function: Callable[[Model], Any]) -> list[str]:
        """Apply a change between two batches, on the newest model, and save it; its warnings."""
        async with self._changes:
            return await self.batcher.alone(lambda: self._changed(function))

    def _changed(self, function: Callable[[Model], Any]) -> list[str]:
        with _locked(self.folder):
            if self.folder is not None and _mark(self.folder) != self._mark:
                fresh, self._mark = self._read(), _mark(self.folder)
                self._use(fresh)  # another process has changed it
            model = own_copy(self.model)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                function(model)
            if self.folder is not None:
                model.save(self.folder)
                self._mark = _mark(self.folder)
            self._use(model)
        return [str(one.message) for one in said if issubclass(one.category, OUR_WARNINGS)]

    async def follow(self) -> None:
        """Load the folder again if it was written to since; keep the old model if that fails."""
        if self.folder is None or _mark(self.folder) == self._mark:
            return
        async with self._changes:
            mark = _mark(self.folder)
            if mark == self._mark:
                return
            try:
                fresh = await asyncio.to_thread(self._read)
                await self.batcher.alone(lambda: _warm(fresh))
            except Exception as error:
                outcome = "failed"
                log.warning("%s: kept the old model: %s", self.name, error)
            else:
                outcome = "done"
                self._use(fresh)
                log.info("%s: loaded %s", self.name, self.version)
            self._mark = mark
            self.metrics.reloads.labels(self.name, outcome).inc()

    def _read(self) -> Model:
        """The model in the folder. An encoder that is the same is not loaded a second time."""
        assert self.folder is not None
        fresh = load(self.folder)
        old = self.model
        if (
            isinstance(fresh, TextDetector)
            and isinstance(old, TextDetector)
            and fresh.encoder_fingerprint_ == old.encoder_fingerprint_
        ):
            fresh._encoder = old._checked_encoder()
        return fresh


def _spread(scores: Any) -> list[float]:
    """Scores in order; of many, an even choice of them."""
    if scores is None or not len(scores):
        return []
    chosen = np.linspace(0, len(scores) - 1, min(len(scores), SHOWN_SCORES)).round().astype(int)
    return np.sort(scores)[chosen].tolist()


def _warm(model: Model) -> None:
    """Score once, so that no request pays for what happens at first use."""
    if isinstance(model, TextDetector):
        model.judge(model._checked_encoder().features(["warm"], model.detector_.needs))
    else:
        row = np.zeros((1, model.n_features_in_), np.float32)
        results_of(model, row, 0, lambda rows: None)


def _mark(folder: Path | None) -> tuple[int, int, int] | None:
    """What changes when a model is saved."""
    try:
        found = (folder / MANIFEST).stat() if folder else None
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size) if found else None


def _version(folder: Path | None) -> str | None:
    if folder is None:
        return None
    try:
        return str(json.loads((folder / MANIFEST).read_bytes())["checksum"])[:12]
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextlib.contextmanager
def _locked(folder: Path | None) -> Iterator[None]:
    """One change at a time, whatever the number of workers."""
    if folder is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


class Registry:
    """All models by name; the first is the default."""

    def __init__(
        self,
        models: dict[str, tuple[Model, Path | None]],
        settings: Settings,
        metrics: Metrics,
    ) -> None:
        if not models:
            raise InputError("there is no model to serve; give at least one")
        at_work: set[Future[Any]] = set()
        self.served = {
            name: Served(name, model, folder, settings, metrics, at_work)
            for name, (model, folder) in models.items()
        }
        self._seconds = settings.reload
        self.ready = True

    @property
    def default(self) -> Served:
        """The model that is meant if none is named."""
        return next(iter(self.served.values()))

    def get(self, name: str | None) -> Served:
        """A model by name."""
        if name is None:
            return self.default
        if name not in self.served:
            known = ", ".join(self.served)
            raise Problem(404, "unknown-model", f"no model of that name is served; known: {known}")
        return self.served[name]

    def admit(self) -> None:
        """Refuse a scoring request before it is read, if no model could take it."""
        if all(one.batcher.full() for one in self.served.values()):
            self.default.batcher.admit(1)

    async def watch(self) -> None:
        """Follow the folders for as long as the service runs."""
        while True:
            await asyncio.sleep(self._seconds)
            for one in self.served.values():
                await one.follow()

    async def warm(self) -> None:
        """Score once with each model."""
        for one in self.served.values():
            await one.batcher.alone(lambda one=one: _warm(one.model))  # type: ignore[misc]

    async def close(self) -> None:
        """Finish what was accepted."""
        self.ready = False
        for one in self.served.values():
            await one.batcher.close()

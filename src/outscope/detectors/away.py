"""Detectors on the workers of a cluster."""

from __future__ import annotations

from copy import copy
from typing import Any

from outscope._types import FloatArray
from outscope.io.sources import Source


def for_workers(detector: Any) -> Any:
    """The same detector on one thread: each core of a worker has a task of its own."""
    away = copy(detector)
    if hasattr(away, "n_jobs"):
        away.n_jobs = 1
    return away


class Scores:
    """Scores of one part, where it is read."""

    def __init__(self, detector: Any) -> None:
        self._detector = detector

    def __call__(self, source: Source, number: int, told: Any) -> FloatArray:
        """What a worker does."""
        scores: FloatArray = next(self._detector.score_parts(source, [number]))
        return scores

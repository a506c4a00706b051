"""Fit on some rows and set the threshold on others: how a detector gets its promise."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from outscope._types import BoolArray, IntArray, Matrix
from outscope.decisions.threshold import HELD_MOST, holdout_size, rows_needed
from outscope.detectors.base import Detector
from outscope.detectors.sampling import sample_size
from outscope.detectors.suspects import JUDGED
from outscope.errors import InputError, NoPromiseWarning
from outscope.io.sources import Source, taken


def fit_and_calibrate(
    detector: Detector,
    X: Matrix | Source,
    y: Any,
    *,
    fpr: float,
    holdout: float | int | str = "auto",
    seen: BoolArray | None = None,
    random_state: int | None = 0,
    noun: str = "rows",
    rows: int | str = "auto",
    memory: int | str = "1GB",
    **how: Any,
) -> IntArray:
    """Fit, and promise a false-alarm rate if possible; return the indices of the rows fitted on.

    `holdout` rows (a share, a number, "auto", or 0 for none) set the threshold. Rows that the
    encoder has `seen` in training look nearer than new ones will, so they are only learned from.
    With too few rows to hold some out, each is scored without itself if the detector can do that.
    `rows`, `memory` and what follows are for `fit`. If it learns from a sample, the rows that it
    sets aside keep the promise.
    """
    if isinstance(X, Source):
        if sample_size(len(X), X.width, rows, memory) < len(X):
            detector.fit(X, y, rows=rows, memory=memory, **how).calibrate(fpr=fpr)
            return np.arange(len(X))
        X = taken(X, np.arange(len(X)))
    n, needed = len(X), rows_needed(fpr)
    unseen = np.arange(n) if seen is None else np.flatnonzero(~seen)
    size = _size(detector, holdout, n, len(unseen), fpr)
    chosen = np.random.RandomState(random_state).permutation(len(unseen))[:size]
    held = np.sort(unseen[chosen])  # regardless of class, to be exchangeable with new rows
    fit = np.setdiff1d(np.arange(n), held) if detector.learns else np.arange(n)
    if not len(fit):
        raise InputError(f"holdout={holdout!r} of {n} {noun} leaves none to fit on")
    detector.fit(X[fit], None if y is None else y[fit])
    if detector.needs == "embedding" and n <= JUDGED:
        detector.remember_suspects(X, y)  # among all rows: dirt held out raises the threshold
    if len(held) >= needed:
        detector.calibrate(X[held], fpr=fpr)
    elif len(unseen) == n >= needed and not len(held) and holdout != 0 and detector.left_one_out_:
        detector.calibrate(fpr=fpr)
    elif len(held):
        detector.estimate(X[held], fpr=fpr)
    else:
        detector.set_threshold(fpr=fpr)
    if detector.promise_ is None and (holdout != 0 or isinstance(holdout, str)):
        warnings.warn(_why(n, len(unseen), fpr, noun), NoPromiseWarning, stacklevel=3)
    return fit


def _size(detector: Detector, holdout: float | int | str, n: int, n_unseen: int, fpr: float) -> int:
    """Number of rows to hold out, from a number, a share or "auto"."""
    if holdout == "auto":
        usual = holdout_size(n, fpr)
        if not detector.learns:
            usual = HELD_MOST  # a formula needs no rows to learn from
        elif n_unseen < n:
            usual = max(usual, rows_needed(fpr))  # the rows seen in training are left to learn from
        return min(usual, n_unseen)
    if isinstance(holdout, (bool, str)) or not 0 <= holdout < n:
        raise InputError(
            f"holdout={holdout!r} of {n}: expected 'auto', a share below 1, or a number smaller "
            "than the total"
        )
    return int(holdout if holdout >= 1 else round(holdout * n))


def _why(n: int, n_unseen: int, fpr: float, noun: str) -> str:
    told = f"{n:,} {noun} are too few"
    if n_unseen < n:
        told = f"the encoder was trained on {n - n_unseen:,} of the {n:,} {noun}; too few are left"
    return (
        f"{told} to promise a false-alarm rate of {100 * fpr:g} %, so the threshold is an "
        f"estimate; calibrate on at least {rows_needed(fpr)} in-scope {noun} that are not among "
        "these"
    )

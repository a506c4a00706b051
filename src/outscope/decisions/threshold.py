"""From scores to decisions: cuts and p-values, independent of any detector."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr

from outscope._types import FloatArray
from outscope.errors import InputError

# Most rows held out when there are few, and in any case.
HELD_OF_FEW, HELD_MOST = 99, 2000
# Scores closer than this relative difference count as equal: encoders round differently from batch
# to batch, by about 1e-7.
SAME_SCORE = 1e-5
# In a stream with strange rows, scores between these quantiles tell how in-scope rows are scored.
BODY = (0.5, 0.75)
# What a promise is based on.
HELD_OUT, LEFT_ONE_OUT = "rows held out", "training rows, each judged without itself"


def check_confidence(confidence: float) -> float:
    """A probability strictly between 0 and 1."""
    if not isinstance(confidence, (int, float, np.floating)) or not 0.0 < confidence < 1.0:
        raise InputError(
            f"confidence={confidence!r} is not a probability: expected a number between 0 and 1"
        )
    return float(confidence)


def check_rate(fpr: float) -> float:
    """A false-alarm rate strictly between 0 and 1."""
    if not isinstance(fpr, (int, float, np.floating)) or not 0.0 < fpr < 1.0:
        raise InputError(f"fpr={fpr!r} is not a rate: expected a number between 0 and 1")
    return float(fpr)


def quantile_threshold(scores: npt.ArrayLike, fpr: float) -> float:
    """Cut that a share `fpr` of these scores exceeds. Says nothing about new rows.

    >>> quantile_threshold([1.0, 2.0, 3.0, 4.0, 5.0], fpr=0.2)
    4.2
    """
    return float(np.quantile(np.asarray(scores, dtype=np.float64), 1.0 - check_rate(fpr)))


def estimated_cut(scores: npt.ArrayLike, fpr: float) -> float:
    """Cut that about `fpr` of new in-scope scores exceed, estimated from held-out scores.

    An estimate, no promise. If there are too few scores to place the cut among them, the tail is
    assumed to be exponential.

    >>> estimated_cut([1.0, 2.0, 3.0, 4.0], 0.2), round(estimated_cut([1.0, 2.0, 3.0, 4.0], 0.1), 2)
    (4.0, 4.69)
    """
    values = np.sort(np.asarray(scores, dtype=np.float64))
    allowed = _allowed(len(values), fpr)
    if allowed >= 1:
        return float(values[len(values) - allowed])
    upper = values[len(values) // 2 :]
    excess = float(upper.mean() - np.median(values))
    return float(values[-1]) - excess * math.log(fpr * (len(values) + 1))


def without_strange(scores: npt.ArrayLike, reference: npt.ArrayLike) -> FloatArray:
    """Sorted scores as they would be without the strange rows that may be among them.

    The upper quarter is where those are, so it is replaced: it gets the shape that it has in
    `reference`, scores of rows that are in scope, at the scale of what lies below. So the scores
    follow in-scope rows wherever they move, and some percent of strange rows hardly matter.

    >>> clean = np.arange(100.0)
    >>> without_strange(np.r_[2.0 * clean, [900.0] * 5], clean)[-1].round()
    np.float64(207.0)
    """
    values = np.sort(np.asarray(scores, dtype=np.float64))
    known = np.asarray(reference, dtype=np.float64)
    middle, upper = np.quantile(values, BODY)
    middle_known, upper_known = np.quantile(known, BODY)
    if upper_known <= middle_known:
        return values
    body = values[values <= upper]
    n = len(values) - len(body)
    levels = BODY[1] + (1.0 - BODY[1]) * (np.arange(n) + 0.5) / max(1, n)
    excess = np.quantile(known, levels) - upper_known
    return np.concatenate([body, upper + excess * (upper - middle) / (upper_known - middle_known)])


def rows_needed(fpr: float, confidence: float | None = None) -> int:
    """Fewest calibration rows with which a cut can promise this false-alarm rate.

    With `confidence` the promise is the stronger one, about this particular calibration.

    >>> rows_needed(0.01), rows_needed(0.05), rows_needed(0.05, confidence=0.95)
    (99, 19, 59)
    """
    if confidence is None:
        return math.ceil(1.0 / check_rate(fpr) - 1e-9) - 1
    return math.ceil(math.log1p(-check_confidence(confidence)) / math.log1p(-check_rate(fpr)))


def holdout_size(n_rows: int, fpr: float) -> int:
    """Rows to hold out of the fit for the threshold: a quarter of few rows, a tenth of many.

    0 if fewer than half would be left to learn from. Calibration rows count in steps of 1 / fpr;
    the size is mid-step, so that the promise is kept with some margin.

    >>> [holdout_size(n, 0.05) for n in (20, 38, 50, 200, 390, 2000, 50_000)]
    [0, 19, 25, 49, 89, 209, 2009]
    """
    wanted = min(max(min(n_rows // 4, HELD_OF_FEW), n_rows // 10, rows_needed(fpr)), HELD_MOST)
    size = min(round((_allowed(wanted, fpr) + 0.5) / fpr) - 1, n_rows // 2)
    return size if size >= rows_needed(fpr) else 0


def _allowed(n_rows: int, fpr: float) -> int:
    """How many calibration rows, counting the new one, may lie above the cut."""
    return math.floor(check_rate(fpr) * (n_rows + 1) + 1e-9)


class Promise(NamedTuple):
    """A false-alarm rate with a single assumption: new in-scope rows are like the calibration rows.

    It holds on average over calibrations or, with `confidence`, for that share of calibrations.
    """

    fpr: float
    rows: int  # calibration rows
    kind: str = HELD_OUT
    confidence: float | None = None

    def __str__(self) -> str:
        """The promise with its conditions, in a sentence."""
        rate = f"P(false alarm) ≤ {100 * self.fpr:.4g} %"
        held = f"the {self.rows:,} {self.kind}"
        if self.confidence is None:
            return f"{rate} on average over calibrations, for inputs exchangeable with {held}"
        return (
            f"{rate} with {100 * self.confidence:.4g} % confidence, for inputs exchangeable "
            f"with {held}"
        )


class ConformalThreshold:
    """Conformal decisions: P(false alarm) ≤ α on rows exchangeable with the calibration rows.

    `scores` are the ood_scores of calibration rows that the detector was not fitted on. Scores
    that differ only by rounding count as equal, so that decisions do not depend on the last bits.

    >>> threshold = ConformalThreshold([0.1, 0.2, 0.3, 0.4])
    >>> threshold.p_value([0.05, 0.35, 9.0]).round(2).tolist()
    [1.0, 0.4, 0.2]
    """

    def __init__(self, scores: npt.ArrayLike) -> None:
        values = np.sort(np.asarray(scores, dtype=np.float64).ravel())
        if not len(values) or not np.isfinite(values).all():
            raise InputError(
                f"scores has {len(values)} values; there must be at least one and all must be "
                "finite; calibrate on scored in-scope rows"
            )
        self.scores: FloatArray = values
        size = np.abs(values)
        self._ties: FloatArray = values + SAME_SCORE * np.maximum(size, np.median(size))

    def p_value(self, ood_score: npt.ArrayLike) -> FloatArray:
        """Chance of an in-scope row at least this strange; small means out of scope."""
        n = len(self.scores)
        at_least = n - np.searchsorted(self._ties, np.asarray(ood_score), side="left")
        return np.asarray((1.0 + at_least) / (n + 1.0), dtype=np.float64)

    def cut(self, fpr: float, confidence: float | None = None) -> float:
        """Score above which a row is out of scope.

        The p-value is ≤ `fpr` exactly above the cut. With `confidence` the cut is higher: the true
        rate is ≤ `fpr` for that share of all calibrations, not just on average.
        """
        n = len(self.scores)
        allowed = _allowed(n, fpr)
        if confidence is not None:
            # The rate above the a-th largest of n scores is Beta(a, n + 1 − a).
            tail = bdtr(np.arange(n), n, fpr)
            allowed = int(np.count_nonzero(tail <= 1.0 - check_confidence(confidence)))
        if allowed < 1:
            sure = "" if confidence is None else f" with confidence {confidence:g}"
            raise InputError(
                f"fpr={fpr:g} cannot be promised{sure} with {n} calibration rows; calibrate on "
                f"at least {rows_needed(fpr, confidence)} or ask for "
                f"fpr ≥ {least_rate(n, confidence):.3g}"
            )
        return float(self._ties[n - allowed])


def least_rate(n_rows: int, confidence: float | None = None) -> float:
    """The smallest rate that this many rows can promise, rounded up."""
    rate = 1 / (n_rows + 1) if confidence is None else 1 - (1 - confidence) ** (1 / n_rows)
    return math.ceil(1e3 * rate) / 1e3

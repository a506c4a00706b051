"""From "how strange" to yes or no: cuts and p-values, apart from any detector."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from outscope._types import FloatArray
from outscope.errors import InputError


# Rows held out at most where there are few, and at most at all.
HELD_OF_FEW, HELD_MOST = 99, 2000


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
    """Cut that about `fpr` of the given in-scope scores exceed. No guarantee for new rows.

    >>> quantile_threshold([1.0, 2.0, 3.0, 4.0, 5.0], fpr=0.2)
    4.2
    """
    return float(np.quantile(np.asarray(scores, dtype=np.float64), 1.0 - check_rate(fpr)))


def rows_needed(fpr: float, confidence: float | None = None) -> int:
    """Calibration rows without which no cut can promise this false-alarm rate.

    With `confidence` the promise is the stronger one, about the rate of this very calibration.

    >>> rows_needed(0.01), rows_needed(0.05), rows_needed(0.05, confidence=0.95)
    (99, 19, 59)
    """
    if confidence is None:
        return math.ceil(1.0 / check_rate(fpr) - 1e-9) - 1
    return math.ceil(math.log1p(-check_confidence(confidence)) / math.log1p(-check_rate(fpr)))


def holdout_size(n_rows: int, fpr: float) -> int:
    """Rows to keep out of the fit for the threshold: 0 where fewer than half would be left to learn.

    A quarter of few rows, a tenth of many; no more than the promise makes use of.

    >>> [holdout_size(n, 0.05) for n in (20, 38, 200, 390, 2000, 50_000)]
    [0, 19, 39, 79, 199, 1999]
    """
    wanted = min(max(min(n_rows // 4, HELD_OF_FEW), n_rows // 10, rows_needed(fpr)), HELD_MOST)
    # Calibration rows count in steps of 1 / fpr; a part of a step buys nothing.
    wanted = math.ceil(_allowed(wanted, fpr) / fpr - 1e-9) - 1
    return wanted if 2 * wanted <= n_rows else 0


def _allowed(n_rows: int, fpr: float) -> int:
    """How many of the calibration rows may lie above the cut, counting the new one."""
    return math.floor(check_rate(fpr) * (n_rows + 1) + 1e-9)


class ConformalThreshold:
    """Split-conformal decisions: P(false alarm) ≤ α on exchangeable in-scope rows.

    `scores` are the ood_scores of calibration rows that the detector was not fitted on.

    >>> threshold = ConformalThreshold([0.1, 0.2, 0.3, 0.4])
    >>> threshold.p_value([0.05, 0.35, 9.0]).round(2).tolist()
    [1.0, 0.4, 0.2]
    """

    def __init__(self, scores: npt.ArrayLike) -> None:
        values = np.sort(np.asarray(scores, dtype=np.float64).ravel())
        if not len(values) or not np.isfinite(values).all():
            raise InputError(
                f"scores has {len(values)} values, all of which must be finite and at least one "
                "there; calibrate on scored in-scope rows"
            )
        self.scores: FloatArray = values

    def p_value(self, ood_score: npt.ArrayLike) -> FloatArray:
        """Chance of an in-scope row at least this strange; small = out of scope."""
        n = len(self.scores)
        at_least = n - np.searchsorted(self.scores, np.asarray(ood_score), side="left")
        return np.asarray((1.0 + at_least) / (n + 1.0), dtype=np.float64)

    def cut(self, fpr: float) -> float:
        """Score above which a row is out of scope, so that p-value ≤ `fpr` there and only there."""
        n = len(self.scores)
        allowed = math.floor(check_rate(fpr) * (n + 1) + 1e-9)
        if allowed < 1:
            raise InputError(
                f"fpr={fpr:g} cannot be promised with {n} calibration rows; "
                f"calibrate on at least {rows_needed(fpr)} or ask for fpr ≥ {1 / (n + 1):.3g}"
            )
        return float(self.scores[n - allowed])

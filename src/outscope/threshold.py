"""From "how strange" to yes or no: cuts and p-values, apart from any detector."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from outscope._types import FloatArray
from outscope.errors import InputError


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


def rows_needed(fpr: float) -> int:
    """Calibration rows without which no cut can promise this false-alarm rate.

    >>> rows_needed(0.01)
    99
    """
    return math.ceil(1.0 / check_rate(fpr) - 1e-9) - 1


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

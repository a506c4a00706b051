"""What more rows would gain: the error on rows held out, against the number of rows learned from.

An atom that averages r rows is off by 1/r of their variance, so the error falls as a + b/rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone

from outscope._types import FloatArray
from outscope.detectors.sampling import Training

# Shares of the sample that are learned from as well; they add less than half to the time of a fit.
SHARES = (1 / 8, 1 / 4)


def error_curve(detector: Any, training: Training, settled: dict[str, Any]) -> FloatArray:
    """(3, 2) numbers of rows, and the mean score of held-out rows after learning from so many.

    `settled` are the settings that the fitted detector found, so that scores have one scale.
    """
    n, held = len(training.X), training.held
    assert held is not None  # a sample has some
    order = np.random.RandomState(0).permutation(n)
    points = []
    for share in SHARES:
        some = np.sort(order[: int(share * n)])
        other = clone(detector).set_params(**settled)
        other.n_features_in_ = training.X.shape[1]
        y = None if training.y is None else training.y[some]
        other._learn_from(Training(training.X[some], y))
        points.append((len(some), float(np.mean(other._ood_score(held)))))
        other._forget()
    return np.array([*points, (n, float(np.mean(detector._ood_score(held))))])


def expected_error(curve: FloatArray, rows: int) -> float:
    """The error to expect after learning from so many rows, never above the last one measured."""
    slope = float(np.polyfit(1.0 / curve[:, 0], curve[:, 1], 1)[0])
    fall = max(0.0, slope) * (1.0 / curve[-1, 0] - 1.0 / rows)
    return float(curve[-1, 1]) - max(0.0, fall)

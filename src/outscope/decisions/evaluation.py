"""How far measured quality can be trusted: intervals, matched lengths, the whole trade-off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from outscope._types import FloatArray
from outscope.decisions.metrics import Metrics, checked
from outscope.errors import InputError

DRAWS, CONFIDENCE = 1000, 0.95
# Lengths are alike if they differ by at most this share: one character in twenty.
ALIKE = 0.05
# False-alarm rates at which the trade-off is told.
RATES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)


class Interval(NamedTuple):
    """Where a measure would lie if other rows of the same kinds had been drawn."""

    low: float
    high: float


class Point(NamedTuple):
    """What a cut catches, and what it costs."""

    false_alarms: float  # share of in-scope rows above the cut
    caught: float  # share of out-of-scope rows above the cut
    threshold: float


class Matched(NamedTuple):
    """AUROC among rows of like length."""

    auroc: float
    share: float  # of the out-of-scope rows: those with an in-scope row of like length
    length_auroc: float  # of length itself, on all rows


def intervals(
    is_ood: npt.ArrayLike,
    ood_score: npt.ArrayLike,
    *,
    draws: int = DRAWS,
    confidence: float = CONFIDENCE,
    random_state: int = 0,
) -> dict[str, Interval]:
    """A bootstrap interval for each of `Metrics`: rows of both kinds are drawn again.

    >>> intervals([0, 0, 1, 1], [0.1, 0.2, 0.8, 0.9], draws=50)["auroc"]
    Interval(low=1.0, high=1.0)
    """
    if draws < 1 or not 0.0 < confidence < 1.0:
        raise InputError(
            f"draws={draws!r}, confidence={confidence!r}: expected at least one draw and a "
            "confidence between 0 and 1"
        )
    truth, scores = checked(is_ood, ood_score)
    values, place = np.unique(scores, return_inverse=True)
    kinds = [place[truth == kind] for kind in (0, 1)]
    rng = np.random.default_rng(random_state)
    found = np.empty((draws, len(Metrics._fields)))
    for draw in range(draws):
        drawn = (own[rng.integers(0, len(own), len(own))] for own in kinds)
        found[draw] = _measures(*(np.bincount(own, minlength=len(values)) for own in drawn))
    tail = 0.5 * (1.0 - confidence)
    low, high = np.quantile(found, [tail, 1.0 - tail], axis=0)
    return {name: Interval(float(low[i]), float(high[i])) for i, name in enumerate(Metrics._fields)}


def _measures(inside: npt.NDArray[np.intp], outside: npt.NDArray[np.intp]) -> Metrics:
    """All measures, from how many rows of each kind have each distinct score, rising."""
    n_in, n_out = inside.sum(), outside.sum()
    accepted, missed = np.cumsum(inside), np.cumsum(outside)  # at a cut just above each score
    below = accepted - 0.5 * inside
    chosen = np.searchsorted(accepted, 0.95 * n_in - 1e-9)
    alarms, caught = n_in - accepted + inside, n_out - missed + outside  # from each score upwards
    return Metrics(
        float(outside @ below / (n_in * n_out)),
        float(inside @ (accepted / np.maximum(accepted + missed, 1)) / n_in),
        float(outside @ (caught / np.maximum(caught + alarms, 1)) / n_out),
        float(missed[chosen] / n_out),
    )


def trade_off(
    is_ood: npt.ArrayLike, ood_score: npt.ArrayLike, rates: Sequence[float] = RATES
) -> list[Point]:
    """For each false-alarm rate, the most that a cut within it catches.

    >>> trade_off([0, 0, 0, 0, 1, 1], [1, 2, 3, 4, 3.5, 9], rates=[0.1, 0.25])[1]
    Point(false_alarms=0.25, caught=1.0, threshold=3.0)
    """
    truth, scores = checked(is_ood, ood_score)
    inside, outside = np.sort(scores[truth == 0]), np.sort(scores[truth == 1])
    found = []
    for rate in rates:
        if not 0.0 <= rate < 1.0:
            raise InputError(f"rates holds {rate!r}; expected rates from 0 to below 1")
        allowed = int(rate * len(inside) + 1e-9)
        cut = inside[len(inside) - allowed - 1]
        above = (
            1.0 - np.searchsorted(part, cut, "right") / len(part) for part in (inside, outside)
        )
        alarms, caught = map(float, above)
        found.append(Point(alarms, caught, float(cut)))
    return found


def matched_lengths(
    is_ood: npt.ArrayLike, ood_score: npt.ArrayLike, lengths: npt.ArrayLike
) -> Matched | None:
    """AUROC where every out-of-scope row is compared with in-scope rows of like length only.

    A score that measures nothing but length gets about ½ here, however good its AUROC is. None if
    no out-of-scope row has an in-scope row of like length.

    >>> matched_lengths([0, 0, 1, 1], [1.0, 4.0, 2.0, 9.0], [10, 40, 10, 90])
    Matched(auroc=1.0, share=0.5, length_auroc=0.625)
    """
    truth, scores = checked(is_ood, ood_score)
    size = checked(is_ood, lengths)[1]
    order = np.argsort(size[truth == 0], kind="stable")
    inside, scored = size[truth == 0][order], scores[truth == 0][order]
    outside, wins, matched = size[truth == 1], 0.0, 0
    for length in np.unique(outside):
        slack = ALIKE * abs(length)
        first = np.searchsorted(inside, length - slack, "left")
        last = np.searchsorted(inside, length + slack, "right")
        if first < last:
            mine = scores[truth == 1][outside == length]
            wins += _wins(np.sort(scored[first:last]), mine).sum()
            matched += len(mine)
    if not matched:
        return None
    alone = _wins(inside, outside).mean()
    return Matched(float(wins / matched), matched / len(outside), float(alone))


def _wins(ordered: FloatArray, values: FloatArray) -> FloatArray:
    """For each value, the share of the ordered ones below it; equal ones count half."""
    left, right = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
    share: FloatArray = 0.5 * (left + right) / len(ordered)
    return share

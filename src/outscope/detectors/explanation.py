"""Why a row got its score: the atoms in its code and the training rows behind them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from outscope._types import FloatArray, IntArray


class Told(NamedTuple):
    """What lessons make of the scores of rows."""

    ood_score: FloatArray
    base: FloatArray  # (n,) scores without any lesson
    distance: FloatArray  # (n,) score against the nearest refused example alone
    refused: IntArray  # (n,) the refused example that raised the score; −1 for none


@dataclass(frozen=True)
class Evidence:
    """One atom's part in explaining a row."""

    atom: int
    weight: float  # in the non-negative code
    share: float  # of the row's whole code
    rows: tuple[int, ...]  # training rows that use this atom most
    labels: tuple[Any, ...]  # their classes, if labels were given at fit


@dataclass(frozen=True)
class Explanation:
    """What the dictionary can and cannot explain about one row."""

    ood_score: float
    is_ood: bool
    unexplained: float  # share of the row's squared length that the weighted atoms leave, 0 … 1
    label: Any  # class of the dictionary that explains it best, or of the first training row
    evidence: tuple[Evidence, ...]
    refused_like: str | None = None  # the refused example for which it is out of scope

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Lesson:
    """One call of `refuse` or `accept`, or the outside examples given to `fit`."""

    verb: str  # "refuse" or "accept"
    examples: tuple[str, ...]  # their texts, or "example 1", …

"""Why a row got its score: the atoms in its code and the training rows behind them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


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

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

"""What a detector says about one text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

OUT_OF_SCOPE = "out of scope"


@dataclass(frozen=True)
class Verdict:
    """The result for one text."""

    ood_score: float  # higher = stranger
    p_value: float | None  # chance of an in-scope text at least this strange, if calibrated
    is_ood: bool
    label: Any  # class, or "out of scope"; None if no labels were given
    nearest: tuple[str, ...]  # in-scope texts most like it
    refused_like: str | None = None  # the text told to refuse for which it is out of scope

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

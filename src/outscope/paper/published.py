"""The numbers printed in the paper, from one file, each with its table, row and column."""

from __future__ import annotations

import csv
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple


class Published(NamedTuple):
    """One printed value."""

    table: str
    method: str
    dataset: str
    ratio: int  # 0 if a table has one value for all ratios
    representation: str
    measure: str
    value: str


@lru_cache
def published() -> tuple[Published, ...]:
    """Every printed value."""
    text = files("outscope.paper").joinpath("published.csv").read_text("utf-8")
    return tuple(
        Published(**{**row, "ratio": int(row["ratio"])})  # type: ignore[arg-type]
        for row in csv.DictReader(text.splitlines())
    )


def printed(
    method: str, dataset: str, ratio: int, representation: str, measure: str
) -> float | None:
    """One printed number, or None if the paper has none."""
    for one in published():
        if one[1:6] == (method, dataset, ratio, representation, measure):
            return float(one.value)
    return None


def chosen(method: str, dataset: str, ratio: int, representation: str) -> tuple[float, ...]:
    """Hyper-parameters that the paper chose: (atoms,) or (atoms, λ).

    For pre-trained and contrastive encoders it only prints those for 20 Newsgroups; elsewhere the
    choice for fine-tuned ones is used.
    """
    found = {
        one.representation: tuple(float(value) for value in one.value.split())
        for one in published()
        if one.measure == "hyper_parameters"
        and (one.method, one.dataset, one.ratio) == (method, dataset, ratio)
    }
    return found.get(representation, found["finetuned"])

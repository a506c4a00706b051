"""What a detector learns from: all rows, a sample of them, or every row part by part."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.random import sample_without_replacement

from outscope._sklearn import check_labels
from outscope._types import IntArray, Matrix
from outscope.errors import InputError
from outscope.io.sources import ArraySource, Source, taken
from outscope.learning.checkpoint import Checkpoint

# More rows than this are sampled. An atom that averages r rows is off by about 1/r of their spread:
# with 2,000 atoms, the largest usual number, r is 131, and more rows gain less than a hundredth.
SAMPLE_ROWS = 262_144
# Rows of a sample that are not learned from, but set the first threshold and measure the error.
HELD_ROWS = 4096
# Rows of each class in a sample, at least, if it has that many.
ROWS_PER_CLASS = 200
# A sample takes four times its bytes while it is learned from.
COPIES = 4
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


@dataclass(frozen=True)
class Training:
    """Rows in memory and, if every row counts, the source of all of them."""

    X: Matrix
    y: Any = None
    numbers: IntArray | None = None  # of these rows among all; None if these are all
    held: Matrix | None = None  # rows not learned from
    source: Source | None = None  # of every row, where more than X is learned from
    labels: np.ndarray[Any, Any] | None = None  # of every row
    left_out: IntArray | None = None  # numbers of the rows in `held`
    rng: np.random.RandomState | None = None
    checkpoint: Checkpoint | None = None
    advance: Callable[[int], None] | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows that are learned from."""
        return len(self.X) if self.source is None else len(self.source)

    def number(self, found: IntArray) -> IntArray:
        """Row numbers among all rows, for those in memory; −1 stays −1."""
        return found if self.numbers is None else np.where(found >= 0, self.numbers[found], -1)


def bytes_of(memory: int | str) -> int:
    """Bytes of an amount such as "1GB", "500 MB" or a plain number."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*", str(memory), re.IGNORECASE)
    if found is None or isinstance(memory, bool):
        raise InputError(f"memory={memory!r} is not an amount of memory; give one like '1GB'")
    return int(float(found[1]) * UNITS[found[2].upper()])


def sample_size(n: int, width: int, rows: int | str, memory: int | str) -> int:
    """How many of n rows to hold in memory; n if all of them."""
    fits = bytes_of(memory) // (COPIES * 4 * width)
    size = min(SAMPLE_ROWS, fits)
    if rows not in ("auto", "all"):
        if isinstance(rows, (bool, str)) or not isinstance(rows, Integral) or rows < 1:
            raise InputError(
                f"rows={rows!r}: expected 'auto', 'all' or a number of rows to learn from"
            )
        size = int(rows)
    if min(n, size) > fits or (size < min(n, HELD_ROWS) and size == fits):
        needed = -(-COPIES * 4 * width * min(n, max(size, HELD_ROWS)) // 10**6)
        raise InputError(
            f"memory={memory!r} holds {fits:,} rows of {width} numbers; give "
            f"memory='{needed}MB' or more, or fewer rows"
        )
    return min(n, size)


def rows_to_learn(
    table: Matrix | Source,
    y: Any,
    *,
    rows: int | str,
    memory: int | str,
    random_state: Any,
    by_class: bool,
    samples: bool,
    checkpoint: Checkpoint | None = None,
    advance: Callable[[int], None] | None = None,
) -> Training:
    """All rows if they fit; otherwise a sample and, with rows="all", the source it stands for."""
    usual = rows == "auto" and (len(table) <= SAMPLE_ROWS or not samples)
    if usual and isinstance(table, np.ndarray):
        return Training(table, y)
    source = table if isinstance(table, Source) else ArraySource(table)
    n = len(source)
    if not n:
        raise InputError("X has 0 rows; nothing to learn from")
    labels = None if y is None else check_labels(y, n)
    size = sample_size(n, source.width, rows, memory)
    if size == n:
        return Training(table if isinstance(table, np.ndarray) else taken(source, np.arange(n)), y)
    seed = random_state
    if not isinstance(seed, Integral):
        seed = check_random_state(seed).randint(2**31)
    rng = np.random.RandomState(seed if checkpoint is None else checkpoint.seeded(int(seed)))
    numbers, held = _drawn(n, size, labels if by_class else None, rng)
    every = rows == "all"
    return Training(
        taken(source, numbers),
        None if labels is None else labels[numbers],
        numbers,
        taken(source, held),
        source if every else None,
        labels if every else None,
        held if every else None,
        rng,
        checkpoint,
        advance,
    )


def _drawn(
    n: int, size: int, labels: np.ndarray[Any, Any] | None, rng: np.random.RandomState
) -> tuple[IntArray, IntArray]:
    """Numbers of rows to learn from, some of every class, and of rows to hold out; rising.

    Rows are held out whatever their class, so that they are exchangeable with new ones.
    """
    drawn = sample_without_replacement(n, size, random_state=rng)
    few = min(HELD_ROWS, max(1, size // 10))
    held, chosen = np.sort(drawn[:few]), np.sort(drawn[few:])
    if labels is None:
        return chosen, held
    _, member = np.unique(labels, return_inverse=True)
    free = np.delete(np.arange(n), held)
    order = free[np.argsort(member[free], kind="stable")]
    edges = np.searchsorted(member[order], np.arange(member.max() + 2))
    more = [
        rng.choice(order[a:b], min(b - a, ROWS_PER_CLASS), replace=False)
        for a, b in pairwise(edges)
    ]
    # A class that is held out whole is learned from after all.
    alone = held[np.diff(edges)[member[held]] == 0]
    return np.unique(np.concatenate([chosen, *more, alone])), np.setdiff1d(held, alone)

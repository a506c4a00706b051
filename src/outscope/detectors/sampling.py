"""What a detector learns from: all rows, a sample of them, or every row part by part."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
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
    advance: Any = None

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


def rows_to_learn(
    table: Matrix | Source,
    y: Any,
    *,
    rows: int | str,
    memory: int | str,
    random_state: Any,
    by_class: bool,
    checkpoint: Checkpoint | None,
    advance: Any,
    samples: bool,
) -> Training:
    """A sample that fits into memory and, with rows="all", the source that it stands for."""
    source = table if isinstance(table, Source) else ArraySource(table)
    n, budget = len(source), bytes_of(memory)
    if not n:
        raise InputError("X has 0 rows; nothing to learn from")
    if isinstance(table, np.ndarray) and (n <= SAMPLE_ROWS or not samples) and rows == "auto":
        return Training(table, y)
    labels = None if y is None else check_labels(y, n)
    fits = budget // (COPIES * 4 * source.width)
    size = min(SAMPLE_ROWS, fits) if rows in ("auto", "all") else _number(rows, fits, memory)
    if size < min(n, HELD_ROWS):
        raise InputError(
            f"memory={memory!r} holds {size:,} rows of {source.width} numbers; give at least "
            f"memory='{-(-COPIES * 4 * source.width * HELD_ROWS // 10**6)}MB'"
        )
    if n <= size:
        return Training(table if isinstance(table, np.ndarray) else taken(source, np.arange(n)), y)
    seed = None if checkpoint is None else checkpoint.seed
    rng = check_random_state(random_state)
    if checkpoint is not None:
        rng = np.random.RandomState(checkpoint.begin(seed or rng.randint(2**31)))
    numbers = _drawn(n, size, labels if by_class else None, rng)
    sample = taken(source, numbers)
    held = np.zeros(len(numbers), dtype=bool)
    held[rng.choice(len(numbers), min(HELD_ROWS, len(numbers) // 10), replace=False)] = True
    every = rows == "all"
    return Training(
        sample[~held],
        None if labels is None else labels[numbers[~held]],
        numbers[~held],
        sample[held],
        source if every else None,
        labels if every else None,
        numbers[held] if every else None,
        rng,
        checkpoint,
        advance,
    )


def _number(rows: Any, fits: int, memory: int | str) -> int:
    if isinstance(rows, (bool, str)) or not isinstance(rows, (int, np.integer)) or rows < 1:
        raise InputError(f"rows={rows!r}: expected 'auto', 'all' or a number of rows to learn from")
    if rows > fits:
        raise InputError(
            f"a sample of {rows:,} rows does not fit into memory={memory!r} ({fits:,} would); "
            "give more memory, or rows='all' to read all rows part by part"
        )
    return int(rows)


def _drawn(n: int, size: int, labels: Any, rng: np.random.RandomState) -> IntArray:
    """Numbers of rows, rising; with labels, some of every class."""
    chosen = sample_without_replacement(n, size, random_state=rng)
    if labels is None:
        return np.sort(chosen)
    _, member = np.unique(labels, return_inverse=True)
    order = np.argsort(member, kind="stable")
    edges = np.searchsorted(member[order], np.arange(member.max() + 2))
    few = [
        rng.choice(order[a:b], min(b - a, ROWS_PER_CLASS), replace=False)
        for a, b in pairwise(edges)
    ]
    return np.unique(np.concatenate([chosen, *few]))

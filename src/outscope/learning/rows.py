"""Rows as learning sees them, and the initial atoms drawn from them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from outscope._types import BoolArray, FloatArray, IntArray, Matrix
from outscope.engine.blocks import product

# "auto" is a quarter of the rows, at most 2,000; all rows if few, with too little to average.
AUTO_SHARE, AUTO_LIMIT, FEW_ROWS = 0.25, 2000, 100
# Rows coded at a time; bounds the memory of an epoch.
EPOCH_ROWS = 8192
# Scaled rows are kept across epochs if they take at most 512 MB.
KEPT_ROWS_ENTRIES = 128_000_000
# Seeds drawn per pass over the data, as a share of those already drawn: 0.25 takes about 35 passes
# for 2,000 atoms where k-means++ takes 2,000, at about the same error.
SEED_GROWTH = 0.25
# Rows that seeds are drawn from, per requested atom.
SEED_ROWS_PER_ATOM = 16
# Rows closer than this share of their squared length are the same point in float32.
SAME_POINT = 1e-6


class Rows:
    """Rows as learning sees them: float32, scaled to unit length if asked; kept if they fit."""

    def __init__(self, X: Matrix, *, normalize: bool) -> None:
        self._X, self._normalize = X, normalize
        self._kept: Matrix | None = None
        if X.size <= KEPT_ROWS_ENTRIES:
            self._kept = np.concatenate(list(self.blocks()))

    def __len__(self) -> int:
        return len(self._X)

    @property
    def width(self) -> int:
        """Number of columns."""
        return int(self._X.shape[1])

    def blocks(self) -> Iterator[Matrix]:
        """All rows in order, block by block."""
        for start in range(0, len(self), EPOCH_ROWS):
            yield self.take(slice(start, start + EPOCH_ROWS))

    def take(self, chosen: IntArray | slice) -> Matrix:
        """Some rows."""
        if self._kept is not None:
            return self._kept[chosen]
        rows = np.asarray(self._X[chosen], dtype=np.float64)
        return (unit(rows) if self._normalize else rows).astype(np.float32)

    def all(self) -> Matrix:
        """Every row, in one matrix."""
        return self.take(slice(None))


def unit(rows: FloatArray) -> FloatArray:
    """Rows scaled to length 1; zero rows stay zero."""
    length = np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
    return np.divide(rows, length, out=np.zeros_like(rows), where=length > 0)


def size_for(wanted: int | float | str, n_rows: int, n_all: int | None = None) -> int:
    """Number of atoms from a number, a share of the rows, or "auto"; at most the number of rows.

    `n_all` counts the rows of all classes if `n_rows` counts those of one.
    """
    if isinstance(wanted, str):
        share = min(1.0, max(AUTO_SHARE, FEW_ROWS / (n_all or n_rows)))
        return min(AUTO_LIMIT, math.ceil(share * n_rows - 1e-9))
    return min(n_rows, math.ceil(wanted * n_rows) if wanted < 1 else int(wanted))


def quarter(n_rows: int) -> int:
    """The usual size, even for few rows."""
    return min(AUTO_LIMIT, math.ceil(AUTO_SHARE * n_rows))


def seed_atoms(
    source: Rows, n_atoms: int, rng: np.random.RandomState, n_jobs: int | None = None
) -> tuple[Matrix, IntArray]:
    """Rows far apart, drawn in growing blocks by squared distance (as in k-means++).

    Returns fewer than `n_atoms` if the data has fewer distinct rows.
    """
    pool = np.arange(len(source))
    if len(source) > SEED_ROWS_PER_ATOM * n_atoms:
        pool = np.sort(rng.choice(len(source), SEED_ROWS_PER_ATOM * n_atoms, replace=False))
    rows = source.take(pool)
    squares = np.einsum("ij,ij->i", rows, rows)
    same = SAME_POINT * squares
    # With a column of ones against −½‖c‖², one product ranks rows by distance.
    rows = np.hstack([rows, np.ones((len(rows), 1), np.float32)])
    chosen = [int(rng.randint(len(rows)))]
    newest = np.array(chosen)
    distance = np.full(len(rows), np.inf, np.float32)
    while True:
        targets = rows[newest]
        targets[:, -1] = -0.5 * squares[newest]
        nearest = product(rows, targets.T, n_jobs).max(axis=1)
        np.minimum(distance, squares - 2.0 * nearest, out=distance)
        distance[newest] = 0.0
        distance[distance <= same] = 0.0
        free = np.flatnonzero(distance)
        size = min(max(1, int(SEED_GROWTH * len(chosen))), n_atoms - len(chosen), len(free))
        if size <= 0:
            break
        share = distance[free].astype(np.float64)
        newest = rng.choice(free, size, replace=False, p=share / share.sum())
        newest = newest[first_of_copies(rows[newest, :-1], squares[newest])]
        chosen.extend(newest.tolist())
    index = np.array(chosen)
    return np.ascontiguousarray(rows[index, :-1]), pool[index]


def first_of_copies(rows: Matrix, squares: FloatArray) -> BoolArray:
    """Mark rows that equal no earlier one; copies may be drawn together, and one is enough."""
    gap = squares[:, None] + squares - 2.0 * (rows @ rows.T)
    return ~np.any(np.tril(gap <= SAME_POINT * squares, -1), axis=1)

"""Rows as learning sees them, and the initial atoms drawn from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from outscope._types import BoolArray, FloatArray, IntArray, Matrix
from outscope.engine.blocks import NonFiniteRowsError, largest_product
from outscope.engine.convert import to_float32, unit_rows
from outscope.engine.kernels.parallel import ahead
from outscope.io.sources import ArraySource, Source, refuse_bad_rows, taken

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
    """Rows as learning sees them: float32, through a view, scaled to unit length if asked.

    They are kept if they fit; otherwise each part is read and prepared again when it is needed,
    one ahead of the one in use.
    """

    def __init__(
        self,
        source: Matrix | Source,
        *,
        normalize: bool,
        view: Callable[[Matrix], Matrix] | None = None,
        kept: bool | None = None,
        n_jobs: int | None = 1,
    ) -> None:
        self.source = source if isinstance(source, Source) else ArraySource(source)
        self.normalize, self.view, self._n_jobs = normalize, view, n_jobs
        self._kept: Matrix | None = None
        if len(self) * self.width <= KEPT_ROWS_ENTRIES if kept is None else kept:
            self._kept = self.all()

    def __len__(self) -> int:
        return len(self.source)

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.source.width

    def part(self, i: int, room: Matrix | None = None) -> Matrix:
        """The rows of one part, in `room` if it is given."""
        first, rows = 0, self.source.parts[i].rows
        room = np.empty((rows, self.width), np.float32) if room is None else room[:rows]
        try:
            for block in self.source.blocks(i):
                self.prepared(block, room[first : first + len(block)])
                first += len(block)
        except NonFiniteRowsError:
            refuse_bad_rows(self.source, i, self.source.read(i))
            raise
        return room

    def parts(self) -> Iterator[tuple[IntArray, Matrix]]:
        """The numbers and rows of every part, in order; rows are good until the next but one."""
        first = 0
        for part in self._coming() if self._kept is None else self._cut(self._kept):
            yield np.arange(first, first + len(part)), part
            first += len(part)

    def _coming(self) -> Iterator[Matrix]:
        """Each part while it is in use; the next one is read in another thread."""
        sizes = [part.rows for part in self.source.parts]
        if len(sizes) < 2:
            yield from map(self.part, range(len(sizes)))
            return
        # In turns, since new memory for each part would cost more than reading it: all of it is
        # cleared, page by page.
        rooms = [np.empty((max(sizes), self.width), np.float32) for _ in range(2)]
        yield from ahead(lambda i: self.part(i, rooms[i % 2]), range(len(sizes)))

    def _cut(self, kept: Matrix) -> Iterator[Matrix]:
        edges = np.cumsum([0, *(part.rows for part in self.source.parts)])
        return (kept[a:b] for a, b in pairwise(edges))

    def blocks(self) -> Iterator[Matrix]:
        """All rows in order, block by block."""
        for _, part in self.parts():
            for start in range(0, len(part), EPOCH_ROWS):
                yield part[start : start + EPOCH_ROWS]

    def take(self, chosen: IntArray) -> Matrix:
        """Some rows, by rising number."""
        if self._kept is not None:
            return self._kept[chosen]
        return self.prepared(taken(self.source, chosen))

    def all(self) -> Matrix:
        """Every row, in one matrix."""
        if self._kept is not None:
            return self._kept
        room = np.empty((len(self), self.width), np.float32)
        for numbers, part in self.parts():
            room[numbers[0] : numbers[-1] + 1] = part
        return room

    def prepared(self, rows: Matrix, out: Matrix | None = None) -> Matrix:
        """Rows of the source as learning sees them, never in the caller's memory."""
        out = np.empty(rows.shape, np.float32) if out is None else out
        seen = rows if self.view is None else self.view(rows)
        if self.normalize:
            return unit_rows(seen, self._n_jobs, out)
        to_float32(seen, self._n_jobs, out)
        if not np.isfinite(out.sum(dtype=np.float64)) and not np.isfinite(out).all():
            raise NonFiniteRowsError
        return out


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
        nearest = largest_product(rows, targets.T, n_jobs)
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

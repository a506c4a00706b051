"""Facts about the in-scope rows and their labels, measured on a bounded sample. No decisions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outscope._types import FloatArray, IntArray, Matrix
from outscope.engine.blocks import product, threads_of
from outscope.engine.kernels.blas import one_thread_each
from outscope.engine.kernels.parallel import for_ranges
from outscope.learning.rows import SAME_POINT, Rows

# Rows whose neighbours are searched for, and rows that are searched.
PROBES = 512
REFERENCES = 50_000
# Probes are compared in this many parts, which threads share.
PARTS = 8


@dataclass(frozen=True)
class Geometry:
    """How rows are spread, as a dictionary sees them. Distances are medians of squared ones."""

    rows: int
    width: int
    gap: float  # from a row to its nearest other row; 0 if all rows are equal
    spread: float  # between any two rows
    common: float  # share of the rows' energy in their mean


@dataclass(frozen=True)
class Grouping:
    """How rows fall into classes."""

    classes: int
    within: float  # share of the variance within classes; 1 if labels say nothing


ONE_CLASS = Grouping(1, 1.0)


def measure_geometry(rows: Rows, rng: np.random.RandomState, n_jobs: int | None) -> Geometry:
    """How rows are spread, from a sample if there are many."""
    # Rows with huge lengths overflow float32; those entries are ignored.
    with np.errstate(over="ignore", invalid="ignore"):
        return _measured(rows, rng, n_jobs)


def _measured(rows: Rows, rng: np.random.RandomState, n_jobs: int | None) -> Geometry:
    reference = _sample(rows, rng)
    shuffled = rng.permutation(len(reference))
    probe, some = reference[shuffled[:PROBES]], reference[shuffled[-2 * PROBES :]]
    squares = np.einsum("ij,ij->i", reference, reference)
    own = np.einsum("ij,ij->i", probe, probe)[:, None]
    others = np.einsum("ij,ij->i", some, some)
    spread = float(np.median(own + others - 2.0 * product(probe, some.T, n_jobs)))
    gap = np.empty(len(probe), np.float32)

    def search(first: int, last: int) -> None:
        # Always the same parts, so that the bits do not depend on the threads.
        for part in range(first, last):
            mine = slice(len(probe) * part // PARTS, len(probe) * (part + 1) // PARTS)
            gap[mine] = _gaps(probe[mine], reference, squares)

    with one_thread_each():
        for_ranges(PARTS, threads_of(n_jobs), 1, search)
    gap = gap[np.isfinite(gap)]
    mean = reference.mean(axis=0, dtype=np.float64)
    energy = float(squares.mean(dtype=np.float64))
    return Geometry(
        rows=len(rows),
        width=rows.width,
        gap=float(np.median(gap)) if len(gap) else 0.0,
        spread=max(spread, 0.0) if np.isfinite(spread) else 0.0,
        common=float(mean @ mean) / energy if energy > 0.0 else 0.0,
    )


def _gaps(probe: Matrix, reference: Matrix, squares: Matrix) -> Matrix:
    """Squared distance from each row to the nearest row that is not a copy of it."""
    # numpy's settings for warnings are a thread's own.
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.einsum("ij,ij->i", probe, probe)[:, None]
        distance = probe @ reference.T
        distance *= -2.0
        distance += squares
        distance += size
        # The smallest distance is a row's to itself; its copies do not count as neighbours either.
        distance[distance <= SAME_POINT * size] = np.inf
        nearest: Matrix = distance.min(axis=1, initial=np.inf)
        return nearest


def measure_grouping(rows: Rows, membership: IntArray) -> Grouping:
    """How rows fall into classes, corrected for each class having its own mean."""
    counts = np.bincount(membership)
    n, classes = len(membership), len(counts)
    if classes < 2 or n <= classes:
        return Grouping(classes, 1.0)
    squares, start = 0.0, 0
    sums = np.zeros((classes, rows.width))
    for block in rows.blocks():
        np.add.at(sums, membership[start : start + len(block)], block)
        squares += float(np.einsum("ij,ij->", block, block, dtype=np.float64))
        start += len(block)
    total: FloatArray = sums.sum(axis=0)
    within = squares - float(np.einsum("ij,ij->", sums, sums / counts[:, None]))
    whole = squares - float(total @ total) / n
    if whole <= 1e-9 * squares:
        return Grouping(classes, 1.0)
    return Grouping(classes, min(1.0, max(0.0, within / whole * (n - 1) / (n - classes))))


def mean_of(rows: Rows) -> Matrix:
    """The mean of all rows."""
    total = np.zeros(rows.width)
    for block in rows.blocks():
        total += block.sum(axis=0, dtype=np.float64)
    return total / len(rows)


def _sample(rows: Rows, rng: np.random.RandomState) -> Matrix:
    if len(rows) <= REFERENCES:
        return rows.all()
    return rows.take(np.sort(rng.choice(len(rows), REFERENCES, replace=False)))

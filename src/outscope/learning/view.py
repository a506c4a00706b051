"""Rows as dictionaries see them: whitened within classes, then rescaled."""

from __future__ import annotations

import numpy as np

from outscope._types import FloatArray, IntArray, Matrix
from outscope.engine.blocks import ROWS_WORTH_A_THREAD, NonFiniteRowsError, product, threads_of
from outscope.engine.kernels.parallel import for_ranges
from outscope.engine.kernels.product import turn_rows
from outscope.learning.rows import Rows

# Rows transformed at a time.
TURNED_ROWS = 512


class View:
    """Whitening, then rescaling of each row's length; with neither, rows pass unchanged.

    A whitened row t is scaled to length ‖t‖^lengths: 0 gives unit length, 1 keeps its own.
    """

    def __init__(self, metric: Matrix | None, lengths: float) -> None:
        self.metric = None if metric is None else metric.astype(np.float64)
        self.lengths = lengths

    @property
    def plain(self) -> bool:
        """Whether rows pass unchanged; scaling to unit length is then left to the coder."""
        return self.metric is None and self.lengths == 0.0

    def __call__(self, X: Matrix, n_jobs: int | None) -> Matrix:
        """The transformed rows; each is bitwise independent of the others."""
        if self.plain:
            return X
        if self.metric is None:
            seen = np.array(X, dtype=np.float64, order="C")
        else:
            seen = turn(X, self.metric, normalize=False, n_jobs=n_jobs)
        length = np.sqrt(np.einsum("ij,ij->i", seen, seen))[:, None]
        if not np.isfinite(length).all():
            raise NonFiniteRowsError
        factor = np.power(length, self.lengths - 1.0, out=np.zeros_like(length), where=length > 0)
        seen *= factor
        return seen


def turn(X: Matrix, metric: FloatArray, *, normalize: bool, n_jobs: int | None) -> FloatArray:
    """Rows times a matrix; each result is bitwise independent of the other rows."""
    turned = np.empty((len(X), metric.shape[1]))
    metric = np.ascontiguousarray(metric)

    def work(first: int, last: int) -> None:
        for start in range(first, last, TURNED_ROWS):
            stop = min(start + TURNED_ROWS, last)
            rows = np.array(X[start:stop], dtype=np.float64, order="C")
            if not turn_rows(rows, normalize, metric, turned[start:stop]):
                raise NonFiniteRowsError

    for_ranges(len(X), threads_of(n_jobs), ROWS_WORTH_A_THREAD, work)
    return turned


def whitening_matrix(
    rows: Rows, membership: IntArray, strength: float, n_jobs: int | None
) -> Matrix:
    """W^(−strength / 2), float32, for the scatter W of rows around the means of their classes.

    With strength 1, rows vary about equally in every direction within their classes. Shrinkage
    towards the identity keeps the inverse stable; the more rows beyond one per class, the less.
    """
    counts = np.bincount(membership)
    d, start = rows.width, 0
    sums, scatter = np.zeros((len(counts), d)), np.zeros((d, d))
    for block in rows.blocks():
        exact = block.astype(np.float64)
        np.add.at(sums, membership[start : start + len(block)], exact)
        scatter += product(exact.T, exact, n_jobs)
        start += len(block)
    scatter -= sums.T @ (sums / counts[:, None])
    trace = float(np.trace(scatter))
    shrinkage = d / (d + len(rows) - len(counts))
    scatter *= (1.0 - shrinkage) * d / trace if trace > 0.0 else 0.0
    scatter[np.diag_indices(d)] += shrinkage
    values, vectors = np.linalg.eigh(scatter)
    metric: Matrix = ((vectors * values ** (-strength / 2)) @ vectors.T).astype(np.float32)
    return metric

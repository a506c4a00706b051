"""Rows of any number type → float32, as they are or of unit length, for any thread count."""

from __future__ import annotations

import numpy as np

from outscope._types import Matrix
from outscope.engine.blocks import (
    ROWS_WORTH_A_THREAD,
    NonFiniteRowsError,
    halves_to_floats,
    threads_of,
)
from outscope.engine.kernels.measure import measure_rows
from outscope.engine.kernels.parallel import for_ranges

# Rows converted at a time, so that they are still in cache when they are scaled.
CONVERTED_ROWS = 256


def to_float32(X: Matrix, n_jobs: int | None = None, out: Matrix | None = None) -> Matrix:
    """Rows as float32 in C order; the same object if they are and `out` is not given."""
    if out is None:
        if X.dtype == np.float32 and X.dtype.isnative and X.flags.c_contiguous:
            return np.asarray(X)
        out = np.empty(X.shape, np.float32)

    def work(first: int, last: int) -> None:
        for start in range(first, last, CONVERTED_ROWS):
            part = slice(start, min(start + CONVERTED_ROWS, last))
            _convert(X[part], out[part])

    for_ranges(len(X), threads_of(n_jobs), ROWS_WORTH_A_THREAD, work)
    return out


def unit_rows(X: Matrix, n_jobs: int | None = None, out: Matrix | None = None) -> Matrix:
    """Rows scaled to unit length, in float32; zero rows stay zero.

    Lengths are summed in float64 in one fixed order, as the coder sums them.
    """
    out = np.empty(X.shape, np.float32) if out is None else out

    def work(first: int, last: int) -> None:
        scale, square = np.empty(CONVERTED_ROWS), np.empty(CONVERTED_ROWS)
        for start in range(first, last, CONVERTED_ROWS):
            part = slice(start, min(start + CONVERTED_ROWS, last))
            if X.dtype.kind == "f" and X.dtype.itemsize <= 4:
                _convert(X[part], out[part])
                rows = out[part]
            else:
                rows = np.array(X[part], np.float64, order="C")
            if not measure_rows(rows, True, scale, square, out[part]):
                raise NonFiniteRowsError

    for_ranges(len(X), threads_of(n_jobs), ROWS_WORTH_A_THREAD, work)
    return out


def _convert(X: Matrix, out: Matrix) -> None:
    if X.dtype == np.float16 and X.dtype.isnative:
        halves_to_floats(X, out)
    else:
        np.copyto(out, X, casting="unsafe")

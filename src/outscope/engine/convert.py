"""Rows of any number type → float32, as they are or of unit length, for any thread count."""

from __future__ import annotations

from functools import cache

import numpy as np

from outscope._types import Matrix
from outscope.engine.blocks import ROWS_WORTH_A_THREAD, NonFiniteRowsError, threads_of
from outscope.engine.kernels.measure import look_up, measure_rows
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


@cache
def _every_half() -> Matrix:
    """All 65,536 values of float16. Looking them up is five times as fast as numpy's conversion."""
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def _convert(X: Matrix, out: Matrix) -> None:
    if X.dtype == np.float16 and X.dtype.isnative:
        # A copy, since rows may be read-only or apart, for which another kernel would be compiled.
        bits = np.array(X, order="C").view(np.uint16)
        look_up(bits, _every_half(), out)
    else:
        np.copyto(out, X, casting="unsafe")

"""Rows times a matrix in float64; the bits depend on nothing but the row and the matrix.

BLAS may sum in a different order for a different number of rows or threads. Here every entry is
the same plain sum over k = 0, 1, …, in that order, however rows are blocked.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from outscope.engine.kernels.measure import dot

# A tile of the matrix that stays in cache while all rows stream past.
TILE_HEIGHT, TILE_WIDTH = 64, 256


@njit(cache=True, nogil=True)
def turn_rows(
    rows,  # IN/OUT (n, d) float64, scaled to unit length if asked
    normalize,
    matrix,  # IN  (d, w) float64
    out,  # OUT (n, w) float64
):
    """Multiply rows by a matrix; return False if a row is too long or not finite."""
    n, d = rows.shape
    for i in range(n):
        square = dot(rows[i], rows[i])
        if not np.isfinite(square):
            return False
        if normalize and square > 0.0:
            factor = 1.0 / np.sqrt(square)
            for j in range(d):
                rows[i, j] *= factor
    out[:] = 0.0
    for left in range(0, matrix.shape[1], TILE_WIDTH):
        right = min(left + TILE_WIDTH, matrix.shape[1])
        for top in range(0, d, TILE_HEIGHT):
            bottom = min(top + TILE_HEIGHT, d)
            fours = top + (bottom - top) // 4 * 4
            for i in range(0, n - 3, 4):
                for k in range(top, fours, 4):
                    _four_by_four(rows, matrix, out, i, k, left, right)
                _one_by_one(rows, matrix, out, i, i + 4, fours, bottom, left, right)
            _one_by_one(rows, matrix, out, n - n % 4, n, top, bottom, left, right)
    return True


@njit(cache=True, nogil=True)
def _one_by_one(rows, matrix, out, first, last, top, bottom, left, right):
    """Add the products of some rows with some rows of the matrix."""
    for i in range(first, last):
        for k in range(top, bottom):
            value = rows[i, k]
            for j in range(np.uintp(left), np.uintp(right)):
                out[i, j] += value * matrix[k, j]


@njit(cache=True, nogil=True)
def _four_by_four(rows, matrix, out, i, k, left, right):
    """Do the same for four rows and four rows of the matrix, which are read once for all."""
    m0, m1, m2, m3 = matrix[k], matrix[k + 1], matrix[k + 2], matrix[k + 3]
    o0, o1, o2, o3 = out[i], out[i + 1], out[i + 2], out[i + 3]
    a0, a1, a2, a3 = rows[i, k], rows[i, k + 1], rows[i, k + 2], rows[i, k + 3]
    b0, b1, b2, b3 = rows[i + 1, k], rows[i + 1, k + 1], rows[i + 1, k + 2], rows[i + 1, k + 3]
    c0, c1, c2, c3 = rows[i + 2, k], rows[i + 2, k + 1], rows[i + 2, k + 2], rows[i + 2, k + 3]
    d0, d1, d2, d3 = rows[i + 3, k], rows[i + 3, k + 1], rows[i + 3, k + 2], rows[i + 3, k + 3]
    for j in range(np.uintp(left), np.uintp(right)):
        p, q, r, s = m0[j], m1[j], m2[j], m3[j]
        o0[j] = (((o0[j] + a0 * p) + a1 * q) + a2 * r) + a3 * s
        o1[j] = (((o1[j] + b0 * p) + b1 * q) + b2 * r) + b3 * s
        o2[j] = (((o2[j] + c0 * p) + c1 * q) + c2 * r) + c3 * s
        o3[j] = (((o3[j] + d0 * p) + d1 * q) + d2 * r) + d3 * s


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _squared_gap(a, b):
    """Squared distance; as with `dot`, the order of the sum is fixed at compile time."""
    total = 0.0
    for j in range(a.shape[0]):
        gap = a[j] - b[j]
        total += gap * gap
    return total


@njit(cache=True, nogil=True)
def smallest_gaps(
    rows,  # IN  (n, d) float64
    points,  # IN  (m, d) float64
    out,  # OUT (n,)
):
    """Squared distance from each row to the nearest point.

    Sums squared differences directly, so that distances near 0 keep their precision.
    """
    for i in range(rows.shape[0]):
        least = np.inf
        for j in range(points.shape[0]):
            least = min(least, _squared_gap(rows[i], points[j]))
        out[i] = least

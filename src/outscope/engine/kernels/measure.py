"""What is measured of rows before they are compared: lengths and inner products, in float64."""

from __future__ import annotations

import numpy as np
from numba import njit

# Squared length beyond which products of unnormalised rows overflow float32.
LONGEST = 1e30


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def dot(
    a,  # IN  (d,)
    b,  # IN  (d,)
):
    """Inner product summed in float64.

    Only in inner products may the compiler reorder a sum; its order is fixed at compile time,
    so equal rows still give equal bits.
    """
    total = 0.0
    for i in range(a.shape[0]):
        total += np.float64(a[i]) * np.float64(b[i])
    return total


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def four_dots(
    row,  # IN  (d,) float64
    atoms,  # IN  (m, d) float32
    a,  # index of an atom, and so the others
    b,
    c,
    d,
):
    """Inner products of a row with four atoms, each summed in the same order.

    Reading the row once for four atoms takes two thirds of the time of four calls of `dot`.
    """
    first = second = third = fourth = 0.0
    for i in range(np.uintp(row.shape[0])):
        value = row[i]
        first += value * np.float64(atoms[a, i])
        second += value * np.float64(atoms[b, i])
        third += value * np.float64(atoms[c, i])
        fourth += value * np.float64(atoms[d, i])
    return first, second, third, fourth


@njit(cache=True, nogil=True)
def measure_rows(
    rows,  # IN  (n, d)
    normalize,
    scale,  # OUT (n,) what a row is multiplied by
    square,  # OUT (n,) squared length after scaling, 1 for every normalised row
    proposal,  # OUT (n, d) float32, scaled rows as the float32 product sees them
):
    """Scale rows to unit length (or leave them); return False if that is impossible.

    A zero row has no direction: it counts as a unit row orthogonal to everything.
    """
    for i in range(rows.shape[0]):
        length = dot(rows[i], rows[i])
        if not np.isfinite(length) or (not normalize and length > LONGEST):
            return False
        scale[i] = 1.0
        square[i] = length
        if normalize:
            scale[i] = 1.0 / np.sqrt(length) if length > 0.0 else 0.0
            square[i] = 1.0
        factor = scale[i]
        for j in range(rows.shape[1]):
            proposal[i, j] = rows[i, j] * factor
    return True


@njit(cache=True, nogil=True)
def what_is_left(
    parts,  # IN  (n, p) float32, leading parts
    squares,  # IN  (n,) whole squared lengths
    slack,  # more than those and the parts' squared lengths can be off
    left,  # OUT (n,) float32, the length of what lies outside the basis, rounded up
):
    """Measure what leading parts leave out; return the mean."""
    total = 0.0
    for i in range(parts.shape[0]):
        left[i] = np.sqrt(max(squares[i] - dot(parts[i], parts[i]), 0.0) + slack)
        total += left[i]
    return total / parts.shape[0]


@njit(cache=True, nogil=True)
def widen(
    row,  # IN  (d,)
    wide,  # OUT (d,) float64
):
    """Convert a row once, before comparing it with many atoms."""
    for j in range(row.shape[0]):
        wide[j] = row[j]


@njit(cache=True, nogil=True)
def widen_halves(
    halves,  # IN  (n, d) uint16, the bits of float16
    bits,  # OUT (n, d) uint32, the bits of `out`
    out,  # OUT (n, d) float32
):
    """Convert float16 exactly: ten times as fast as numpy, four times as a table of all values.

    Both formats count the exponent from the smallest number, so after a shift every finite value,
    subnormal or not, is too small by the same power of two.
    """
    power = np.float32(2.0**112)
    for i in range(halves.shape[0]):
        for j in range(halves.shape[1]):
            half = np.uint32(halves[i, j])
            moved = (half & np.uint32(0x7FFF)) << np.uint32(13)
            bits[i, j] = (half & np.uint32(0x8000)) << np.uint32(16) | moved
        for j in range(halves.shape[1]):
            out[i, j] *= power
        for j in range(halves.shape[1]):  # infinity and NaN
            largest = np.uint32((np.uint32(halves[i, j]) & np.uint32(0x7C00)) == np.uint32(0x7C00))
            bits[i, j] |= largest * np.uint32(0x7F800000)

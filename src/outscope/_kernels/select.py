"""The k best atoms of a row: found in float32, decided and ordered in float64.

A matrix product in float32 is fast but its last bits depend on the shape of the batch. So the
product only *proposes* candidates, with a margin wider than its rounding; their similarities are
then summed again in float64, in one fixed order. Scores therefore do not depend on batch size,
row order or the number of threads, to the last bit.
"""

from __future__ import annotations

import numpy as np
from numba import njit

# Columns are first looked at in blocks: the k-th best block maximum bounds the k-th best value, and
# most blocks are then skipped. Wide blocks where there are many atoms, narrow ones otherwise.
WIDE = 32
NARROW = 8
# Squared length beyond which products of rows left at their own length overflow float32.
LONGEST = 1e30


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def dot(
    a,  # IN  (d,)
    b,  # IN  (d,)
):
    """Inner product summed in float64.

    Only in inner products may the compiler reorder a sum; the order it picks is fixed when
    the kernel is compiled, so equal rows still give equal bits.
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
    """Scale rows to unit length (or leave them); return False where that cannot be done.

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


@njit(cache=True, nogil=True, fastmath={"reassoc", "nnan", "nsz"})
def _block_maxima(
    values,  # IN  (m,) float32
    offsets,  # IN  (m,) float32
    width,
    maxima,  # OUT (m // width,) float32
):
    """Largest value − offset of each full block of columns.

    A maximum is the same in any order; saying so lets the compiler take several at a time.
    """
    step = np.uintp(width)
    for block in range(np.uintp(values.shape[0]) // step):
        start = block * step
        largest = values[start] - offsets[start]
        for j in range(start, start + step):
            value = values[j] - offsets[j]
            largest = value if value > largest else largest
        maxima[block] = largest


@njit(cache=True, nogil=True)
def _reached_by(
    values,  # IN  (n,) float32
    n,
    k,
):
    """Return a bound that at least k of the first n ≥ k values reach, close to the k-th largest."""
    end = np.uintp(n)
    low, high = values[0], values[0]
    for j in range(end):
        low = values[j] if values[j] < low else low
        high = values[j] if values[j] > high else high
    for _ in range(12):
        middle = np.float32(0.5) * (low + high)
        count = np.int32(0)
        for j in range(end):
            count += np.int32(values[j] >= middle)
        if count >= k:
            low = middle
            if count == k:
                break
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def _kth_largest(
    values,  # SCRATCH (n,) float32, reordered
    n,
    k,
):
    """Return the k-th largest of the first n values."""
    left, right, place = 0, n - 1, k - 1
    while left < right:
        pivot = values[(left + right) // 2]
        i, j = left, right
        while i <= j:
            while values[np.uintp(i)] > pivot:
                i += 1
            while values[np.uintp(j)] < pivot:
                j -= 1
            if i <= j:
                values[np.uintp(i)], values[np.uintp(j)] = values[np.uintp(j)], values[np.uintp(i)]
                i += 1
                j -= 1
        if place <= j:
            right = j
        elif place >= i:
            left = i
        else:
            break
    return values[place]


@njit(cache=True, nogil=True)
def propose(
    values,  # IN  (m,) float32 products of a row with the atoms
    offsets,  # IN  (m,) float32
    k,
    margin,  # float32
    maxima,  # SCRATCH (m + 1,) float32
    found,  # OUT (m + 1,) indices, in rising order
    keys,  # SCRATCH (m + 1,) float32
):
    """Collect every atom whose value − offset may be among the k largest; return how many."""
    m = values.shape[0]
    if m <= k:
        for j in range(m):
            found[j] = j
        return m
    width = WIDE if m >= 3 * WIDE * k else NARROW
    n_blocks = m // width
    bound = np.float32(-np.inf)
    _block_maxima(values, offsets, width, maxima)
    if n_blocks >= k:
        bound = _reached_by(maxima, n_blocks, k) - margin
    count = np.uintp(0)
    step = np.uintp(width)
    for block in range(np.uintp(n_blocks)):
        if maxima[block] >= bound:
            for j in range(block * step, block * step + step):
                value = values[j] - offsets[j]
                # Written in any case, counted only if wanted: no branch to guess wrong.
                found[count] = j
                keys[count] = value
                count += np.uintp(value >= bound)
    for j in range(np.uintp(n_blocks) * step, np.uintp(m)):
        value = values[j] - offsets[j]
        found[count] = j
        keys[count] = value
        count += np.uintp(value >= bound)
    if count > k:
        for a in range(count):
            maxima[a] = keys[a]
        cut = _kth_largest(maxima, np.int64(count), k) - margin
        kept = np.uintp(0)
        for a in range(count):
            found[kept] = found[a]
            kept += np.uintp(keys[a] >= cut)
        count = kept
    return np.int64(count)


@njit(cache=True, nogil=True)
def widen(
    row,  # IN  (d,)
    wide,  # OUT (d,) float64
):
    """Convert a row once, before it meets many atoms."""
    for j in range(row.shape[0]):
        wide[j] = row[j]


@njit(cache=True, nogil=True)
def decide(
    row,  # IN  (d,) float64
    scale,
    atoms,  # IN  (m, d) float32
    offsets,  # IN  (m,) float64
    found,  # IN  (m + 1,)
    count,
    k,
    neighbors,  # OUT (k,)
    keys,  # OUT (k,) exact value − offset, falling
):
    """Keep the k best of the proposed atoms by their exact values; ties go to the lower index."""
    size = 0
    last = count - 1
    for a in range(0, count, 4):
        first, second = found[a], found[min(a + 1, last)]
        third, fourth = found[min(a + 2, last)], found[min(a + 3, last)]
        products = four_dots(row, atoms, first, second, third, fourth)
        for b in range(min(4, count - a)):
            j = found[a + b]
            value = scale * products[b] - offsets[j]
            if size < k or value > keys[size - 1]:
                place = size if size < k else k - 1
                if size < k:
                    size += 1
                while place > 0 and keys[place - 1] < value:
                    keys[place] = keys[place - 1]
                    neighbors[place] = neighbors[place - 1]
                    place -= 1
                keys[place] = value
                neighbors[place] = j
    return size


@njit(cache=True, nogil=True)
def nearest_rows(
    rows,  # IN  (n, d)
    scale,  # IN  (n,)
    square,  # IN  (n,)
    products,  # IN  (n, m) float32
    margin,  # float32
    atoms,  # IN  (m, d) float32
    offsets,  # IN  (m,) half the squared lengths
    offsets32,  # IN  (m,)
    neighbors,  # OUT (n, k)
    distances,  # OUT (n, k) squared, rising
):
    """Find the k nearest atoms of each row."""
    k = neighbors.shape[1]
    m = atoms.shape[0]
    maxima = np.empty(m + 1, np.float32)
    found = np.empty(m + 1, np.uintp)
    proposed = np.empty(m + 1, np.float32)
    keys = np.empty(k)
    row = np.empty(rows.shape[1])
    for i in range(rows.shape[0]):
        widen(rows[i], row)
        count = propose(products[i], offsets32, k, margin, maxima, found, proposed)
        decide(row, scale[i], atoms, offsets, found, count, k, neighbors[i], keys)
        for a in range(k):
            gap = square[i] - 2.0 * keys[a]
            distances[i, a] = gap if gap > 0.0 else 0.0

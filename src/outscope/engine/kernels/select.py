"""The k best atoms of a row: found in float32, decided and ordered in float64.

A matrix product in float32 is fast, but its last bits depend on the shape of the batch. So the
product only *proposes* candidates, with a margin wider than its rounding; their similarities are
then recomputed in float64, in one fixed order. Scores therefore do not depend on batch size,
row order or the number of threads, to the last bit.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from outscope.engine.kernels.measure import four_dots, widen

# Columns are first looked at in groups: the k-th best group bounds the k-th best value, so most
# groups can be skipped. A whole number of vectors of groups.
LANES = 16
# Up to so many candidates are put in order by counting how many come before each, which a processor
# does without guessing at branches (10 of 10 sorted in 0.1 µs; inserted one by one, in 0.6 µs).
COUNTED = 64
# Leading parts leave dozens of atoms to look at, which wide blocks would spread over most blocks.
OVERLOOKED = 16


@njit(cache=True, nogil=True, fastmath={"reassoc", "nnan", "nsz"})
def _group_maxima(
    values,  # IN  (m,) float32
    offsets,  # IN  (m,) float32
    n_groups,
    maxima,  # OUT (n_groups,) float32
):
    """Largest value − offset of each group of columns.

    A group's columns lie n_groups apart: all maxima then grow side by side, which vectorises,
    whereas neighbouring columns would have to be compared across one vector, group by group.
    """
    end, groups = np.uintp(values.shape[0]), np.uintp(n_groups)
    for j in range(groups):
        maxima[j] = values[j] - offsets[j]
    for start in range(groups, end, groups):
        for j in range(min(groups, end - start)):
            value = values[start + j] - offsets[start + j]
            maxima[j] = value if value > maxima[j] else maxima[j]


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
def propose(
    values,  # IN  (m,) float32 products of a row with the atoms
    offsets,  # IN  (m,) float32
    k,
    margin,  # float32
    maxima,  # SCRATCH (m + 1,) float32
    found,  # OUT (m + 1,) indices, in no order
    keys,  # SCRATCH (m + 1,) float32
    promising,  # SCRATCH (m + 1,)
):
    """Collect every atom whose value − offset may be among the k largest; return how many."""
    m = values.shape[0]
    if m <= k:
        for j in range(m):
            found[j] = j
        return m
    n_groups = min(m, (int(math.sqrt(m * k)) // LANES + 1) * LANES)
    _group_maxima(values, offsets, n_groups, maxima)
    bound = _reached_by(maxima, n_groups, k) - margin
    end, groups = np.uintp(m), np.uintp(n_groups)
    # Always written, counted only if wanted: no branch to mispredict, here and below.
    picked = np.uintp(0)
    for group in range(groups):
        promising[picked] = group
        picked += np.uintp(maxima[group] >= bound)
    count = np.uintp(0)
    for turn in range(picked):
        for j in range(promising[turn], end, groups):
            value = values[j] - offsets[j]
            found[count] = j
            keys[count] = value
            count += np.uintp(value >= bound)
    if count > k:
        cut = _reached_by(keys, count, k) - margin
        kept = np.uintp(0)
        for a in range(count):
            found[kept] = found[a]
            kept += np.uintp(keys[a] >= cut)
        count = kept
    return np.int64(count)


@njit(cache=True, nogil=True)
def _before(keys, neighbors, place, value, atom):
    """Whether the atom at a position ranks before another one."""
    return keys[place] > value or (keys[place] == value and neighbors[place] < atom)


@njit(cache=True, nogil=True)
def _insert(k, size, value, atom, neighbors, keys):
    """Put an atom where it belongs among the k best; return how many those are now."""
    if size == k and _before(keys, neighbors, k - 1, value, atom):
        return size
    size = min(size + 1, k)
    place = size - 1
    while place > 0 and not _before(keys, neighbors, place - 1, value, atom):
        keys[place] = keys[place - 1]
        neighbors[place] = neighbors[place - 1]
        place -= 1
    keys[place] = value
    neighbors[place] = atom
    return size


@njit(cache=True, nogil=True)
def _put_in_order(values, found, count, k, neighbors, keys):
    """Write the k best of a few atoms, best first; return how many there are."""
    end, size = np.uintp(count), np.uintp(min(count, k))
    for a in range(size):
        neighbors[a] = found[a]
    for a in range(end):
        value, atom = values[a], found[a]
        place = np.uintp(0)
        for b in range(end):
            place += np.uintp((values[b] > value) | ((values[b] == value) & (found[b] < atom)))
        if place < size:
            keys[place] = value
            neighbors[place] = atom
    return np.int64(size)


@njit(cache=True, nogil=True)
def decide(
    row,  # IN  (d,) float64
    scale,
    atoms,  # IN  (m, d) float32
    offsets,  # IN  (m,) float64
    found,  # IN  (m + 1,)
    count,
    k,
    size,  # how many are already there
    neighbors,  # IN/OUT (k,)
    keys,  # IN/OUT (k,) exact value − offset, falling
    exact,  # SCRATCH (COUNTED,)
):
    """Keep the k best of the proposed atoms by their exact values; ties go to the lower index."""
    last = count - 1
    counted = size == 0 and count <= COUNTED
    for a in range(0, count, 4):
        first, second = found[a], found[min(a + 1, last)]
        third, fourth = found[min(a + 2, last)], found[min(a + 3, last)]
        products = four_dots(row, atoms, first, second, third, fourth)
        for b in range(min(4, count - a)):
            j = found[a + b]
            value = scale * products[b] - offsets[j]
            if counted:
                exact[a + b] = value
            else:
                size = _insert(k, size, value, j, neighbors, keys)
    return _put_in_order(exact, found, count, k, neighbors, keys) if counted else size


@njit(cache=True, nogil=True, fastmath={"reassoc", "nnan", "nsz"})
def _block_bounds(values, offsets, rests, left, width, maxima):
    """Upper bound on the values in each block of columns, including the rests."""
    n_blocks = np.uintp(values.shape[0] // width)
    for j in range(n_blocks):
        maxima[j] = values[j] + left * rests[j] - offsets[j]
    for turn in range(np.uintp(1), np.uintp(width)):
        start = turn * n_blocks
        for j in range(n_blocks):
            value = values[start + j] + left * rests[start + j] - offsets[start + j]
            maxima[j] = value if value > maxima[j] else maxima[j]


@njit(cache=True, nogil=True)
def _overlooked(
    values,  # SCRATCH (m,) float32 products of the leading parts; those already seen are lost
    offsets,  # IN  (m,) float32
    rests,  # IN  (m,) float32, what those leave of each atom
    left,  # what they leave of the row
    bound,  # float32
    maxima,  # SCRATCH (m + 1,) float32
    seen,  # IN  (m + 1,) atoms already looked at
    n_seen,
    found,  # OUT (m + 1,) the other atoms whose whole value may reach the bound
):
    """Collect the atoms that leading parts alone cannot rule out; return how many."""
    for a in range(n_seen):
        values[seen[a]] = -np.inf
    apart = np.uintp(values.shape[0] // OVERLOOKED)
    rest = apart * np.uintp(OVERLOOKED)
    _block_bounds(values, offsets, rests, left, OVERLOOKED, maxima)
    count = np.uintp(0)
    for block in range(apart):
        if maxima[block] >= bound:
            for j in range(block, rest, apart):
                found[count] = j
                count += np.uintp(values[j] + left * rests[j] - offsets[j] >= bound)
    for j in range(rest, np.uintp(values.shape[0])):
        found[count] = j
        count += np.uintp(values[j] + left * rests[j] - offsets[j] >= bound)
    return np.int64(count)


@njit(cache=True, nogil=True)
def find_nearest(
    row,  # IN  (d,) float64
    scale,
    values,  # IN  (m,) float32 products of the row with the atoms, or of their leading parts
    margin,  # float32
    left,  # what leading parts leave of the row
    rests,  # IN  (m,) what they leave of the atoms, or (0,) where the products are whole
    atoms,  # IN  (m, d) float32
    offsets,  # IN  (m,) float64
    offsets32,  # IN  (m,) float32
    k,
    room,  # SCRATCH, from selection_room
    neighbors,  # OUT (k,)
    keys,  # OUT (k,) exact value − offset, falling
):
    """Find the k best atoms of a row; return how many there are."""
    maxima, found, proposed, more, exact = room
    count = propose(values, offsets32, k, margin, maxima, found, proposed, more)
    size = decide(row, scale, atoms, offsets, found, count, k, 0, neighbors, keys, exact)
    if rests.shape[0] > 0 and count < atoms.shape[0]:
        # k atoms have at least this value, so what cannot reach it is not among the k best.
        bound = np.float32(keys[k - 1]) - margin
        extra = _overlooked(values, offsets32, rests, left, bound, maxima, found, count, more)
        size = decide(row, scale, atoms, offsets, more, extra, k, size, neighbors, keys, exact)
    return size


@njit(cache=True, nogil=True)
def selection_room(m):
    """Working memory of `find_nearest` for m atoms."""
    return (
        np.empty(m + 1, np.float32),
        np.empty(m + 1, np.uintp),
        np.empty(m + 1, np.float32),
        np.empty(m + 1, np.uintp),
        np.empty(COUNTED),
    )


@njit(cache=True, nogil=True)
def nearest_rows(
    rows,  # IN  (n, d)
    scale,  # IN  (n,)
    square,  # IN  (n,)
    products,  # IN  (n, m) float32
    margin,  # float32
    left,  # IN  (n,) float32, what leading parts leave of each row
    rests,  # IN  (m,) float32, and of each atom, or (0,) where the products are whole
    atoms,  # IN  (m, d) float32
    offsets,  # IN  (m,) half the squared lengths
    offsets32,  # IN  (m,)
    neighbors,  # OUT (n, k)
    distances,  # OUT (n, k) squared, rising
):
    """Find the k nearest atoms of each row."""
    k = neighbors.shape[1]
    room = selection_room(atoms.shape[0])
    keys = np.empty(k)
    row = np.empty(rows.shape[1])
    for i in range(rows.shape[0]):
        widen(rows[i], row)
        find_nearest(
            row,
            scale[i],
            products[i],
            margin,
            left[i],
            rests,
            atoms,
            offsets,
            offsets32,
            k,
            room,
            neighbors[i],
            keys,
        )
        for a in range(k):
            gap = square[i] - 2.0 * keys[a]
            distances[i, a] = gap if gap > 0.0 else 0.0

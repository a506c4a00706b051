"""Code rows on their nearest atoms: select, build the local Gram matrix, solve."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from outscope.engine.kernels.measure import dot, widen
from outscope.engine.kernels.nnls import solve_nonnegative
from outscope.engine.kernels.prefetch import prefetch
from outscope.engine.kernels.select import COUNTED, decide, find_nearest, selection_room

# Below this share of the largest target, a target counts as zero: its square underflows float64.
_TINY = 1e-300
# Rows between asking for memory and using it.
AHEAD = 2


@njit(cache=True, nogil=True)
def kernel_rows(
    atoms,  # IN  (m, d) float32
    squares,  # IN  (m,) squared lengths
    bandwidth,  # 0 for the linear kernel
    first,
    last,
    gram,  # OUT (m, m); rows first … last − 1 are written, up to the diagonal
):
    """Kernel between atoms, in float64."""
    # Tiles of columns stay in cache while rows stream past.
    tile = 64
    for start in range(0, last, tile):
        for i in range(max(first, start), last):
            for j in range(start, min(start + tile, i + 1)):
                gram[i, j] = atom_similarity(atoms, squares, i, j, bandwidth)


@njit(cache=True, nogil=True)
def atom_similarity(atoms, squares, i, j, bandwidth):
    """Kernel between two atoms."""
    product = dot(atoms[i], atoms[j])
    if bandwidth == 0.0:
        return product
    gap = squares[i] + squares[j] - 2.0 * product
    return math.exp(-gap / (2.0 * bandwidth)) if i != j and gap > 0.0 else 1.0


@njit(cache=True, nogil=True)
def local_targets(
    keys,  # IN  (k,) falling
    size,
    bandwidth,
    targets,  # OUT (k,) similarities, relative to the largest one for the Gaussian kernel
):
    """Turn keys into similarities that cannot all underflow."""
    if bandwidth == 0.0:
        for a in range(size):
            targets[a] = keys[a]
    else:
        for a in range(size):
            value = math.exp((keys[a] - keys[0]) / bandwidth)
            targets[a] = value if value > _TINY else 0.0


@njit(cache=True, nogil=True)
def local_gram(atoms, squares, gram, neighbors, size, bandwidth, local):
    """Gather (or, if no Gram matrix is kept, compute) the kernel between a row's atoms."""
    kept = gram.shape[0] > 0
    for a in range(size):
        i = neighbors[a]
        for b in range(a + 1):
            j = neighbors[b]
            if kept:
                value = gram[max(i, j), min(i, j)]
            else:
                value = atom_similarity(atoms, squares, i, j, bandwidth)
            local[a, b] = value
            local[b, a] = value


@njit(cache=True, nogil=True)
def _fetch_gram(gram, neighbors, size):
    """Ask for the kernel between a row's atoms, which lies all over a large matrix."""
    for a in range(size):
        i = neighbors[a]
        for b in range(a):
            j = neighbors[b]
            prefetch(gram, max(i, j), min(i, j))


@njit(cache=True, nogil=True)
def ood_value(energy, best_key, square, bandwidth):
    """Strangeness from the explained energy; higher is stranger.

    Gaussian: −σ·log(energy), a soft squared distance that never saturates. Linear: the share of
    the row's own energy that stays unexplained; for rows that every atom points away from, it keeps
    rising above 1 with their best (negative) similarity.
    """
    if bandwidth != 0.0:
        return square - 2.0 * best_key - bandwidth * math.log(energy)
    if square <= 0.0:
        return 1.0
    if energy > 0.0:
        return 1.0 - energy / square
    return 1.0 - best_key


@njit(cache=True, nogil=True)
def code_rows(
    rows,  # IN  (n, d)
    scale,  # IN  (n,)
    square,  # IN  (n,)
    products,  # IN  (n, m) float32, rows times atoms
    margin,  # float32
    left,  # IN  (n,) float32, what leading parts leave of each row
    rests,  # IN  (m,) float32, and of each atom, or (0,) where the products are whole
    atoms,  # IN  (m, d) float32
    squares,  # IN  (m,) squared lengths of the atoms
    offsets,  # IN  (m,) subtracted from an inner product to give a key
    offsets32,  # IN  (m,) the same in float32
    gram,  # IN  (m, m) lower triangle, or (0, 0) to compute local blocks as needed
    bandwidth,  # 0 for the linear kernel
    relative,  # leave codes relative to the largest similarity, where they cannot underflow
    neighbors,  # OUT (n, k)
    codes,  # OUT (n, k)
    scores,  # OUT (n,)
):
    """Code rows; every output row depends only on its own input row."""
    n, k = codes.shape
    selection = selection_room(atoms.shape[0])
    row = np.empty(rows.shape[1])
    for i in range(n):
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
            selection,
            neighbors[i],
            codes[i],  # keys, for now
        )
    # Apart from the search, so that both fit in the nearest caches.
    _explain(square, atoms, squares, gram, bandwidth, relative, neighbors, codes, scores)


@njit(cache=True, nogil=True)
def _explain(
    square,  # IN  (n,)
    atoms,  # IN  (m, d) float32
    squares,  # IN  (m,)
    gram,  # IN  (m, m) lower triangle, or (0, 0)
    bandwidth,
    relative,
    neighbors,  # IN  (n, k)
    codes,  # IN/OUT (n, k): keys, then weights
    scores,  # OUT (n,)
):
    """Solve the local problem of each row on the atoms found for it."""
    n, k = codes.shape
    room = local_room(k)
    keys, targets, local = room[0], room[1], room[2]
    for i in range(n):
        if gram.shape[0] > 0 and i + AHEAD < n:
            _fetch_gram(gram, neighbors[i + AHEAD], k)
        size = 0
        for a in range(k):
            keys[a] = codes[i, a]
            size += keys[a] > -math.inf
        local_targets(keys, size, bandwidth, targets)
        local_gram(atoms, squares, gram, neighbors[i], size, bandwidth, local)
        for a in range(size, k):
            codes[i, a] = 0.0
        energy = solve_energy(size, codes[i], room)
        scores[i] = ood_value(energy, keys[0], square[i], bandwidth)
        if bandwidth != 0.0 and not relative:
            largest = math.exp((keys[0] - 0.5 * square[i]) / bandwidth)
            for a in range(size):
                codes[i, a] *= largest


@njit(cache=True, nogil=True)
def code_found(
    rows,  # IN  (n, d)
    scale,  # IN  (n,)
    square,  # IN  (n,)
    found,  # IN  (n, c) int64 candidates, −1 where there are fewer
    atoms,  # IN  (m, d) float32
    squares,  # IN  (m,)
    offsets,  # IN  (m,)
    bandwidth,
    relative,
    neighbors,  # OUT (n, k)
    codes,  # OUT (n, k)
    scores,  # OUT (n,)
):
    """Code rows on the best of the candidates that somebody else found.

    Where there are fewer than k, the best one stands in for the others, at weight 0.
    """
    n, k = codes.shape
    chosen = np.empty(found.shape[1] + 1, np.uintp)
    exact = np.empty(COUNTED)
    row = np.empty(rows.shape[1])
    for i in range(n):
        widen(rows[i], row)
        chosen[0] = 0
        count = 0
        for c in range(found.shape[1]):
            if found[i, c] >= 0:
                chosen[count] = found[i, c]
                count += 1
        count = max(count, 1)
        size = decide(
            row, scale[i], atoms, offsets, chosen, count, k, 0, neighbors[i], codes[i], exact
        )
        for a in range(size, k):
            neighbors[i, a], codes[i, a] = neighbors[i, 0], -math.inf
    _explain(
        square, atoms, squares, np.empty((0, 0)), bandwidth, relative, neighbors, codes, scores
    )


@njit(cache=True, nogil=True)
def local_room(k):
    """Working memory of a local problem: keys, targets, Gram matrix and the solver's arrays."""
    return (
        np.empty(k),
        np.empty(k),
        np.empty((k, k)),
        np.empty((k, k)),
        np.empty(k, np.uintp),
        np.empty(k, np.int8),
        np.empty(k),
    )


@njit(cache=True, nogil=True)
def solve_energy(size, code, room):
    """Solve the local problem laid out in `room`; return the energy θᵀ·target it explains."""
    _, targets, local, upper, passive, state, solution = room
    solve_nonnegative(local, targets, size, code, upper, passive, state, solution)
    energy = 0.0
    for a in range(size):
        energy += code[a] * targets[a]
    return energy

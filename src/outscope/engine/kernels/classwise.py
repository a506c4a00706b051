"""The smallest score over many dictionaries, without solving for most of them."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from outscope.engine.kernels.coding import (
    local_gram,
    local_room,
    local_targets,
    ood_value,
    solve_energy,
)
from outscope.engine.kernels.measure import widen
from outscope.engine.kernels.select import decide, propose, selection_room

# A class must be worse by more than rounding to be skipped.
ROUNDING = 1e-9


@njit(cache=True, nogil=True)
def energy_bound(
    keys,  # IN  (m,) float32, a class's keys
    offsets,  # IN  (m,) float32
    best,  # largest key of the class
    bandwidth,
    slack,  # error bound of a key
    closeness,  # smallest kernel value between two atoms of the class
):
    """Return more energy than the class can explain (relative to `best` for the Gaussian kernel).

    Replacing each kernel value between atoms by the smallest one can only raise the energy, and
    for that matrix, (1 − ρ)·I + ρ·1·1ᵀ, the unconstrained optimum has a closed form.
    """
    if bandwidth == 0.0 and closeness < 0.0:
        # Atoms pointing apart can support each other; the bound below does not hold for them.
        return math.inf
    total, squares, count = 0.0, 0.0, 0
    for j in range(keys.shape[0]):
        key = keys[j] - offsets[j]
        similarity = key + slack if bandwidth == 0.0 else math.exp((key - best) / bandwidth)
        if similarity > 0.0:
            total += similarity
            squares += similarity * similarity
            count += 1
    if bandwidth != 0.0:
        # A common factor for the errors of keys and best.
        squares *= math.exp(4.0 * slack / bandwidth)
        total *= math.exp(-4.0 * slack / bandwidth)
    elif closeness > 0.0:
        total = max(0.0, total - 2.0 * slack * count)
    spread = 1.0 - closeness
    middle = spread + closeness * count
    if spread <= 1e-9 or middle <= 1e-9:
        return math.inf
    return (squares - closeness * total * total / middle) / spread


@njit(cache=True, nogil=True)
def score_classes(
    rows,  # IN  (n, d)
    scale,  # IN  (n,)
    square,  # IN  (n,)
    products,  # IN  (n, m) float32
    margin,  # float32
    atoms,  # IN  (m, d) float32, class after class
    squares,  # IN  (m,)
    offsets,  # IN  (m,)
    offsets32,  # IN  (m,)
    starts,  # IN  (c + 1,) where each class begins
    grams,  # IN  (Σ m_c²,) kernel within each class, or (0,)
    gram_starts,  # IN  (c + 1,)
    closeness,  # IN  (c,)
    bandwidth,
    k,
    neighbors,  # OUT (n, k) atoms of the best class, best first; (n, 0) to omit codes
    weights,  # OUT (n, k) relative to the largest similarity where Gaussian; or (n, 0)
    scores,  # OUT (n,)
    classes,  # OUT (n,) the class that explains the row best
):
    """Code rows by their best class; classes that provably cannot be best are skipped."""
    n_classes = starts.shape[0] - 1
    widest = 0
    for c in range(n_classes):
        widest = max(widest, starts[c + 1] - starts[c])
    maxima, found, proposed, more, exact = selection_room(widest)
    chosen = np.empty(k, np.int64)
    code = np.empty(k)
    room = local_room(k)
    keys, targets, local = room[0], room[1], room[2]
    best_keys = np.empty(n_classes, np.float32)
    no_gram = np.empty((0, 0))
    row = np.empty(rows.shape[1])
    for i in range(rows.shape[0]):
        widen(rows[i], row)
        favourite = _best_keys(products[i], offsets32, starts, best_keys)
        lowest = math.inf
        for turn in range(-1, n_classes):
            c = favourite if turn < 0 else turn
            if turn == favourite:
                continue
            first, last = starts[c], starts[c + 1]
            size = min(k, last - first)
            if turn >= 0:
                slack = 2.0 * margin
                best = best_keys[c] + slack
                if bandwidth != 0.0 and (
                    ood_value(float(size), best, square[i], bandwidth) > lowest + ROUNDING
                ):
                    continue
                bound = energy_bound(
                    products[i, first:last],
                    offsets32[first:last],
                    best_keys[c],
                    bandwidth,
                    slack,
                    closeness[c],
                )
                if ood_value(bound, best, square[i], bandwidth) > lowest + ROUNDING:
                    continue
            count = propose(
                products[i, first:last],
                offsets32[first:last],
                k,
                margin,
                maxima,
                found,
                proposed,
                more,
            )
            own = atoms[first:last]
            size = decide(
                row, scale[i], own, offsets[first:last], found, count, k, 0, chosen, keys, exact
            )
            local_targets(keys, size, bandwidth, targets)
            gram = no_gram
            if grams.shape[0] > 0:
                width = last - first
                gram = grams[gram_starts[c] : gram_starts[c + 1]].reshape((width, width))
            local_gram(own, squares[first:last], gram, chosen, size, bandwidth, local)
            energy = solve_energy(size, code, room)
            score = ood_value(energy, keys[0], square[i], bandwidth)
            if score < lowest or (score == lowest and c < classes[i]):
                lowest = score
                classes[i] = c
                for a in range(neighbors.shape[1]):
                    # If the class has no more atoms, pad with its best one at weight 0.
                    neighbors[i, a] = first + chosen[a if a < size else 0]
                    weights[i, a] = code[a] if a < size else 0.0
        scores[i] = lowest


@njit(cache=True, nogil=True)
def _best_keys(products, offsets, starts, best):
    """Find the largest key of each class; return the class with the largest overall."""
    favourite = 0
    for c in range(starts.shape[0] - 1):
        largest = np.float32(-np.inf)
        for j in range(np.uintp(starts[c]), np.uintp(starts[c + 1])):
            key = products[j] - offsets[j]
            largest = key if key > largest else largest
        best[c] = largest
        if largest > best[favourite]:
            favourite = c
    return favourite

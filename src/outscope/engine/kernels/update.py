"""Sums over coded rows from which the new dictionary is computed."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def share_weights(
    weights,  # IN/OUT (n, k) scaled to sum to 1 in each row that has any
    neighbors,  # IN  (n, k)
    negligible,
    usage,  # IN/OUT (m,) grows by the number of rows that use an atom
    mass,  # IN/OUT (m,) and by their weights
):
    """L1-normalise codes; weights below a share `negligible` of their row are set to zero first."""
    for i in range(weights.shape[0]):
        total = 0.0
        for a in range(weights.shape[1]):
            total += weights[i, a]
        if total > 0.0:
            kept = 0.0
            for a in range(weights.shape[1]):
                if weights[i, a] < negligible * total:
                    weights[i, a] = 0.0
                kept += weights[i, a]
            for a in range(weights.shape[1]):
                weights[i, a] /= kept
                usage[neighbors[i, a]] += weights[i, a] > 0.0
                mass[neighbors[i, a]] += weights[i, a]


@njit(cache=True, nogil=True)
def add_moments(
    rows,  # IN  (n, d) float32
    neighbors,  # IN  (n, k)
    weights,  # IN  (n, k)
    first,
    last,
    moments,  # IN/OUT (m, d) float64; columns first … last − 1 grow
):
    """Add weight · row to each row's atoms.

    Threads share the work by columns, so every sum runs over the rows in their order and the
    result does not depend on how many threads there are.
    """
    begin, end = np.uintp(first), np.uintp(last)
    for i in range(rows.shape[0]):
        for a in range(weights.shape[1]):
            weight = weights[i, a]
            if weight > 0.0:
                j = neighbors[i, a]
                for t in range(begin, end):
                    moments[j, t] += weight * rows[i, t]

"""Shorter products: the leading directions of the atoms, and when they are enough.

Split a unit row and an atom into their projections on a basis of p directions and the rests. Then
x·c ≤ (leading parts)·(leading parts) + ‖rest of x‖·‖rest of c‖, and atoms whose bound is below the
k-th best value need no full product. The winning atoms and all scores stay the same; only the
length of the product shrinks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from outscope._types import FloatArray, Matrix

# Cost of one multiplication in a candidate's exact sum, relative to one in a BLAS product.
EXACT_COST = 6.0
# Below this gain, rechecking the candidates is not worth it.
WORTH = 0.8
# Rows with a rest this many times larger than the sample's are of another kind, and the cost
# estimate does not hold for them.
UNLIKE = 1.5
STEP = 64
SAMPLE = 256


class Leading(NamedTuple):
    """Atoms projected on the leading directions, and what those leave out."""

    basis: Matrix  # (d, p) float32
    atoms: Matrix  # (m, p) float32
    rests: Matrix  # (m,) float32, length of what is left of each atom, rounded up
    limit: float  # rows with a rest above this are cheaper with full products


def leading_part(
    atoms: Matrix,  # (m, d)
    offsets: FloatArray,  # (m,)
    rows: Matrix,  # (n, d) unit rows like those to come
    k: int,
) -> Leading | None:
    """The cheapest basis for finding the k best atoms, or None if full products are cheaper."""
    m, d = atoms.shape
    exact, sample = atoms.astype(np.float64), rows[:: -(-len(rows) // SAMPLE)].astype(np.float64)
    directions = np.linalg.eigh(exact.T @ exact)[1][:, ::-1]
    turned, queries = exact @ directions, sample @ directions
    keys = queries @ turned.T - offsets
    reached = -np.partition(-keys, k - 1, axis=1)[:, k - 1]
    best: tuple[float, Leading | None] = (WORTH * m * d, None)
    for p in range(STEP, d // 2 + 1, STEP):
        rests = np.sqrt(np.maximum(np.square(turned[:, p:]).sum(axis=1), 1e-12))
        left = np.sqrt(np.maximum(np.square(queries[:, p:]).sum(axis=1), 1e-12))
        part = queries[:, :p] @ turned[:, :p].T - offsets
        # How large a row's rest may be before this atom becomes a candidate.
        allowed = (reached[:, None] - part) / rests
        candidates = float((allowed <= left[:, None]).sum(axis=1).mean())
        product = float(p * (m + d))
        cost = product + EXACT_COST * d * candidates
        if cost < best[0]:
            enough = min(m - 1, max(k, int((m * d - product) / (EXACT_COST * d))))
            even = float(np.median(np.partition(allowed, enough, axis=1)[:, enough]))
            limit = min(even, UNLIKE * float(left.mean()))
            best = (
                cost,
                Leading(
                    np.ascontiguousarray(directions[:, :p], np.float32),
                    np.ascontiguousarray(turned[:, :p], np.float32),
                    (rests * (1.0 + 1e-6)).astype(np.float32),
                    limit,
                ),
            )
    return best[1]


def what_is_left(
    parts: Matrix,  # (n, p) leading parts of unit rows
    slack: float,  # more than their squared lengths can be off
    left: Matrix,  # OUT (n,)
) -> None:
    """Write the length of each row's rest outside the basis, rounded up."""
    squares = np.einsum("ij,ij->i", parts, parts)
    np.sqrt(np.maximum(1.0 - squares, 0.0) + slack, out=left, casting="unsafe")

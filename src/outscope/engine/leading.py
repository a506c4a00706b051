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
from outscope.engine.kernels.measure import what_is_left

# Directions are looked for once rows × atoms exceeds this many times columns², which keeps their
# cost at about a third of the work done until then.
PAYS_AFTER = 64
# Cost of one multiplication in a candidate's exact sum, relative to one in a BLAS product.
EXACT_COST = 6.0
# Below this gain, rechecking the candidates is not worth it.
WORTH = 0.8
# Rows with a rest this many times larger than the sample's are of another kind, and the cost
# estimate does not hold for them.
UNLIKE = 1.5
STEP = 64
# Rows by which directions are judged.
SAMPLE = 256


class Leading(NamedTuple):
    """Atoms projected on the leading directions, and what those leave out."""

    basis: Matrix  # (d, p) float32
    atoms: Matrix  # (m, p) float32
    rests: Matrix  # (m,) float32, length of what is left of each atom, rounded up
    limit: float  # rows with a rest above this are cheaper with full products


class Directions:
    """Directions of some atoms, most of their length first, for engines on similar atoms to share.

    Learning codes the same rows on atoms that move a little from pass to pass. Any orthonormal
    basis bounds what it leaves out, so an old one changes no bit of any result; and projecting on
    it costs a tenth of looking for a new one. Two threads that look for directions at once only
    waste time.
    """

    def __init__(self) -> None:
        self._work = 0
        self._basis: Matrix | None = None
        # For each k: how many directions are worth taking, and up to which rest of a row.
        self._choices: dict[int, tuple[int, float] | None] = {}

    def pay(self, work: int, width: int) -> bool:
        """Whether enough rows × atoms came by, this time included, to look for directions."""
        self._work += work
        return self._work >= PAYS_AFTER * width * width

    def leading(
        self,
        atoms: Matrix,  # (m, d) float32
        offsets: FloatArray,  # (m,)
        slack: float,  # more than a squared length in float32 can be off
        k: int,
        rows: Matrix,  # (n, d) unit rows like those to come
    ) -> Leading | None:
        """The atoms on the cheapest basis for finding the k best, or None if none is cheaper."""
        if self._basis is None:
            exact = atoms.astype(np.float64)
            found = np.linalg.eigh(exact.T @ exact)[1][:, ::-1]
            self._basis = np.ascontiguousarray(found[:, : atoms.shape[1] // 2], np.float32)
        if k not in self._choices:
            self._choices[k] = cheapest(atoms, offsets, rows, self._basis, k)
        choice = self._choices[k]
        if choice is None:
            return None
        width, limit = choice
        basis = np.ascontiguousarray(self._basis[:, :width])
        parts = atoms @ basis
        rests = np.empty(len(atoms), np.float32)
        squares = np.einsum("ij,ij->i", atoms, atoms, dtype=np.float64)
        what_is_left(parts, squares, slack * max(1.0, float(squares.max())), rests)
        return Leading(basis, parts, rests, limit)


def cheapest(
    atoms: Matrix,  # (m, d) float32
    offsets: FloatArray,  # (m,)
    rows: Matrix,  # (n, d) unit rows like those to come
    basis: Matrix,  # (d, w) float32, orthonormal
    k: int,
) -> tuple[int, float] | None:
    """The number of directions that finds the k best atoms at the least cost, and its limit."""
    m, d = atoms.shape
    sample = rows.astype(np.float32)
    turned, queries = atoms @ basis, sample @ basis
    keys = sample @ atoms.T - offsets
    reached = -np.partition(-keys, k - 1, axis=1)[:, k - 1]
    lengths, ones = np.einsum("ij,ij->i", atoms, atoms, dtype=np.float64), np.ones(len(sample))
    least, best = WORTH * m * d, None
    for p in range(STEP, d // 2 + 1, STEP):
        rests, left = np.empty(m, np.float32), np.empty(len(sample), np.float32)
        what_is_left(np.ascontiguousarray(turned[:, :p]), lengths, 1e-6, rests)
        what_is_left(np.ascontiguousarray(queries[:, :p]), ones, 1e-6, left)
        part = queries[:, :p] @ turned[:, :p].T - offsets
        # How large a row's rest may be before this atom becomes a candidate.
        allowed = (reached[:, None] - part) / rests
        candidates = float((allowed <= left[:, None]).sum(axis=1).mean())
        product = float(p * (m + d))
        cost = product + EXACT_COST * d * candidates
        if cost < least:
            enough = min(m - 1, max(k, int((m * d - product) / (EXACT_COST * d))))
            even = float(np.median(np.partition(allowed, enough, axis=1)[:, enough]))
            least, best = cost, (p, min(even, UNLIKE * float(left.mean())))
    return best

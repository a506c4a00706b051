"""The last touch on averages: single rows go where the whole error is smallest."""

from __future__ import annotations

import numpy as np
import scipy.sparse

from outscope._engine import Neighbors, threads_of
from outscope._kernels.blas import one_thread_each
from outscope._kernels.parallel import for_ranges
from outscope._rows import Rows
from outscope._types import FloatArray, IntArray, Matrix

# Looks at the data: the first two take most of the gain, eight gain little more than four.
PASSES = 4
# Rows whose moves are weighed against the same atoms. An atom takes part in one move a block, so
# that every move lowers the error, and none rests on an atom that another has changed.
BLOCK_ROWS = 256
# Atoms in one product; always the same ones together, so that bits do not depend on the threads.
TILE_ATOMS = 512


def transfer_rows(rows: Rows, atoms: Matrix, n_jobs: int | None) -> Matrix:
    """Means of rows after some passes in which single rows move to where the error falls most.

    Alternating between nearest atoms and averages gets stuck, above all where atoms have few rows:
    each of n rows has pulled the atom 1/n of the way to itself and so finds it the nearest. Here a
    row is compared with its atom as that would be without it, and with others as they would be
    with it (Hartigan's criterion): n / (n − 1) times the squared distance, and n / (n + 1) times.
    """
    parts = _Parts(rows, atoms, n_jobs)
    with one_thread_each():
        for _ in range(PASSES):
            if not parts.improve():
                break
    return parts.means


class _Parts:
    """Rows parted among atoms, each the mean of its rows."""

    def __init__(self, rows: Rows, atoms: Matrix, n_jobs: int | None) -> None:
        self.rows, self.threads = rows, threads_of(n_jobs)
        nearest = Neighbors(atoms, normalize=False)
        found = [nearest.distances(block, 1, n_jobs) for block in rows.blocks()]
        self.owner: IntArray = np.concatenate([index[:, 0] for _, index in found])
        self.counts = np.bincount(self.owner, minlength=len(atoms)).astype(np.float64)
        self._fill_empty(np.concatenate([distance[:, 0] for distance, _ in found]))
        self.sums = np.zeros(atoms.shape)
        start = 0
        for block in rows.blocks():
            n = len(block)
            own = (np.ones(n), self.owner[start : start + n], np.arange(n + 1))
            self.sums += scipy.sparse.csr_matrix(own, shape=(n, len(atoms))).T @ block
            start += n
        used = self.counts > 0
        self.means = atoms.copy()
        self.means[used] = self.sums[used] / self.counts[used, None]

    def _fill_empty(self, distance: FloatArray) -> None:
        """Give atoms without rows the rows that are explained worst, where others stay behind."""
        empty = np.flatnonzero(self.counts == 0).tolist()
        for i in np.argsort(-distance, kind="stable").tolist():
            if not empty or distance[i] <= 0.0:
                break
            if self.counts[self.owner[i]] > 1:
                self.counts[self.owner[i]] -= 1
                self.owner[i] = empty.pop()
                self.counts[self.owner[i]] = 1

    def improve(self) -> int:
        """Let every row move once where that lowers the error; how many did."""
        return sum(self._move(start) for start in range(0, len(self.rows), BLOCK_ROWS))

    def _move(self, start: int) -> int:
        """Make the best moves of one block of rows."""
        block = self.rows.take(slice(start, start + BLOCK_ROWS))
        owner = self.owner[start : start + BLOCK_ROWS]
        distance = self._distances(block)
        row, own = np.arange(len(block)), self.counts[owner]
        # A row alone in its atom costs nothing there.
        leaving = np.where(own > 1, distance[row, owner] * own / np.maximum(own - 1, 1), 0.0)
        cost = distance * (self.counts / (self.counts + 1.0))
        cost[row, owner] = leaving
        target = cost.argmin(axis=1)
        gain = leaving - cost[row, target]
        taken, moved = np.zeros(len(self.counts), dtype=bool), 0
        for i in np.argsort(-gain, kind="stable")[: np.count_nonzero(gain > 0.0)].tolist():
            old, new = owner[i], target[i]
            if not (taken[old] or taken[new]):
                taken[[old, new]] = True
                for atom, sign in ((old, -1.0), (new, 1.0)):
                    self.sums[atom] += sign * block[i]
                    self.counts[atom] += sign
                    self.means[atom] = self.sums[atom] / self.counts[atom]
                owner[i] = new
                moved += 1
        return moved

    def _distances(self, block: Matrix) -> Matrix:
        """Squared distances to all atoms, never below zero."""
        squares = np.einsum("ij,ij->i", block, block)[:, None]
        distance = np.empty((len(block), len(self.means)), np.float32)

        def work(first: int, last: int) -> None:
            for tile in range(first * TILE_ATOMS, last * TILE_ATOMS, TILE_ATOMS):
                atoms = self.means[tile : tile + TILE_ATOMS]
                # BLAS kernels for small matrices may raise flags over what lies beside them.
                with np.errstate(invalid="ignore"):
                    products = block @ atoms.T
                products *= -2.0
                products += np.einsum("ij,ij->i", atoms, atoms)
                products += squares
                np.maximum(products, 0.0, out=distance[:, tile : tile + TILE_ATOMS])

        for_ranges(-(-len(self.means) // TILE_ATOMS), self.threads, 1, work)
        return distance

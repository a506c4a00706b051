"""Candidates from a FAISS index, for dictionaries so large that looking at every atom is slow.

Only the search is approximate: candidates are compared in float64 and the local problem is solved
exactly, as always.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from outscope._types import FloatArray, Matrix
from outscope.engine.blocks import NonFiniteRowsError, halves_to_floats, threads_of
from outscope.engine.coder import Coder, Codes
from outscope.engine.kernels.coding import code_found
from outscope.engine.kernels.measure import measure_rows
from outscope.engine.kernels.parallel import for_ranges
from outscope.errors import require

# With fewer atoms, one matrix product takes less time than a search (docs/scale.md).
FEWEST = 8192
# Atoms lie in lists, this many times √m of them; so many of the lists nearest to a row are looked
# through. The lists hold two numbers in four bits, which are compared in registers: four times as
# fast at 100,000 atoms as numbers of eight bits, and seven times as fast as float32.
LISTS, LOOKED_THROUGH = 2, 128
# Four bits cannot tell atoms apart that have few numbers, nor the usual ones if a few lie this many
# times as far out (as a squared distance from the mean): these are compared in float32, where fewer
# lists suffice.
NARROW, FAR_OUT, LOOKED_THROUGH_IN_FULL = 16, 50.0, 24
# Candidates per neighbour, because four bits only tell roughly which atoms are near.
CANDIDATES = 4
# Rows looked up at a time.
BLOCK = 1024
SEED = 1234


def coder_of(search: str) -> type[Coder]:
    """The coder that looks for atoms in this way, "exact" or "faiss"."""
    return FaissCoder if search == "faiss" else Coder


class FaissCoder(Coder):
    """Codes rows on candidates that an index finds; on few atoms, exactly as `Coder` does."""

    def __init__(self, *given: Any, **named: Any) -> None:
        require("faiss", extra="faiss")
        super().__init__(*given, **named)

    def code(
        self, X: Matrix, n_neighbors: int, n_jobs: int | None = None, *, relative: bool = False
    ) -> Codes:
        """Codes and scores of every row."""
        if len(self) < FEWEST:
            return super().code(X, n_neighbors, n_jobs, relative=relative)
        n, k = len(X), min(n_neighbors, len(self))
        codes = Codes(np.empty((n, k), np.intp), np.empty((n, k)), np.empty(n))
        self._code(X, n_jobs, codes, relative)
        return codes

    def ood_score(self, X: Matrix, n_neighbors: int, n_jobs: int | None = None) -> FloatArray:
        """Scores only."""
        if len(self) < FEWEST:
            return super().ood_score(X, n_neighbors, n_jobs)
        return self.code(X, n_neighbors, n_jobs, relative=True).ood_score

    def _code(self, X: Matrix, n_jobs: int | None, codes: Codes, relative: bool) -> None:
        index, k = self._index(), codes.weights.shape[1]

        def work(first: int, last: int) -> None:
            _faiss().omp_set_num_threads(1)  # of this thread
            for start in range(first, last, BLOCK):
                part = slice(start, min(start + BLOCK, last))
                rows = _floats(X[part])
                n, d = rows.shape
                scale, square = np.empty(n), np.empty(n)
                asked = np.zeros((n, index.d), np.float32)
                unit = np.empty((n, d), np.float32)
                if not measure_rows(rows, self.normalize, scale, square, unit):
                    raise NonFiniteRowsError
                asked[:, :d] = unit
                found = index.search(asked, min(CANDIDATES * k, len(self)))[1]
                code_found(
                    rows,
                    scale,
                    square,
                    found,
                    self.atoms,
                    self.squares,
                    self.offsets,
                    self.bandwidth,
                    relative,
                    *(out[part] for out in codes),
                )

        for_ranges(len(X), threads_of(n_jobs), 64, work)

    def _index(self) -> Any:
        """Lists of near atoms; a row's distances to their points fall as its keys rise."""
        with self._lock:
            if "index" not in self._cache:
                self._cache["index"] = _index_of(self.atoms, self.squares, self.offsets)
            return self._cache["index"]


def _faiss() -> Any:
    return require("faiss", extra="faiss")


def _floats(X: Matrix) -> Matrix:
    """Rows as the kernels take them, float32 or float64."""
    if X.dtype == np.float16 and X.dtype.isnative:
        out = np.empty(X.shape, np.float32)
        halves_to_floats(X, out)
        return out
    return np.require(X, np.float32 if X.dtype == np.float32 else np.float64, ["C", "W"])


def _index_of(atoms: Matrix, squares: FloatArray, offsets: FloatArray) -> Any:
    faiss = _faiss()
    # ‖x − c‖² + e² = ‖x‖² − 2 (x·c − offset) + constant, with one more column e for each atom.
    beside = 2.0 * offsets - squares
    beside -= beside.min()
    points = atoms
    if beside.max() > 1e-6:
        points = np.hstack([atoms, np.sqrt(beside)[:, None]]).astype(np.float32)
    in_full = points.shape[1] <= NARROW or _uneven(points)
    points = np.pad(points, ((0, 0), (0, points.shape[1] % 2)))  # two numbers to a code
    n_lists, width = int(LISTS * math.sqrt(len(atoms))), points.shape[1]
    kind = "Flat" if in_full else f"PQ{width // 2}x4fs"
    index = faiss.index_factory(width, f"IVF{n_lists},{kind}", faiss.METRIC_L2)
    index.nprobe = LOOKED_THROUGH_IN_FULL if in_full else LOOKED_THROUGH
    index.cp.seed, index.cp.niter = SEED, 10
    index.cp.min_points_per_centroid = 1  # lists are short on purpose: no warning
    index.train(points)
    index.add(points)
    return index


def _uneven(points: Matrix) -> bool:
    apart = points - points.mean(axis=0)
    squares = np.einsum("ij,ij->i", apart, apart, dtype=np.float64)
    return bool(squares.max() > FAR_OUT * np.median(squares))

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
# Atoms lie in lists, this many times √m of them. In a list they are compared two numbers in four
# bits, in registers: at 100,000 atoms twelve times as fast as in float32, and good enough for most
# rows; for others (few numbers, tight clusters, some atoms far out) there is float32, with fewer of
# the lists nearest to a row looked through. So many, of these two kinds:
LISTS, LOOKED_THROUGH = 2, {"PQ{half}x4fs": 128, "Flat": 24}
# An index serves if it finds this share of the neighbours of a sample of atoms.
ENOUGH, SAMPLE, SAMPLE_NEIGHBORS = 0.9, 256, 10
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
        if self._index() is None:
            return super().code(X, n_neighbors, n_jobs, relative=relative)
        n, k = len(X), min(n_neighbors, len(self))
        codes = Codes(np.empty((n, k), np.intp), np.empty((n, k)), np.empty(n))
        self._code(X, n_jobs, codes, relative)
        return codes

    def ood_score(self, X: Matrix, n_neighbors: int, n_jobs: int | None = None) -> FloatArray:
        """Scores only."""
        if self._index() is None:
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
        """Lists of near atoms; a row's distances to their points fall as its keys rise.

        None where exact search is as fast, or where no index finds enough.
        """
        if len(self) < FEWEST:
            return None
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
    """The first kind of index that finds enough neighbours; None if none does."""
    # ‖x − c‖² + e² = ‖x‖² − 2 (x·c − offset) + constant, with one more column e for each atom.
    beside = 2.0 * offsets - squares
    beside -= beside.min()
    points = atoms
    if beside.max() > 1e-6:
        points = np.hstack([atoms, np.sqrt(beside)[:, None]]).astype(np.float32)
    points = np.pad(points, ((0, 0), (0, points.shape[1] % 2)))  # two numbers to a code
    asked = points[:: -(-len(points) // SAMPLE)].copy()
    asked[:, atoms.shape[1] :] = 0.0
    keys = (asked[:, : atoms.shape[1]] @ atoms.T).astype(np.float64) - offsets
    nearest = np.argpartition(-keys, min(SAMPLE_NEIGHBORS, len(atoms)) - 1)[:, :SAMPLE_NEIGHBORS]
    for kind, probes in LOOKED_THROUGH.items():
        index = _made(points, kind.format(half=points.shape[1] // 2), probes)
        found = index.search(asked, min(CANDIDATES * SAMPLE_NEIGHBORS, len(atoms)))[1]
        hits = [np.isin(a, b).mean() for a, b in zip(nearest, found, strict=True)]
        if np.mean(hits) >= ENOUGH:
            return index
    return None


def _made(points: Matrix, kind: str, probes: int) -> Any:
    n_lists, width = int(LISTS * math.sqrt(len(points))), points.shape[1]
    index = _faiss().index_factory(width, f"IVF{n_lists},{kind}")
    index.nprobe = probes
    index.cp.seed, index.cp.niter = SEED, 10
    index.cp.min_points_per_centroid = 1  # lists are short on purpose: no warning
    index.train(points)
    index.add(points)
    return index

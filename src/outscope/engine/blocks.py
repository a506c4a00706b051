"""Rows against fixed atoms, in blocks and threads: the framework shared by all scorers."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

from outscope._types import FloatArray, Matrix
from outscope.engine.kernels.blas import one_thread_each
from outscope.engine.kernels.parallel import available_cores, for_ranges
from outscope.engine.kernels.select import measure_rows, nearest_rows
from outscope.engine.leading import Leading, leading_part, what_is_left
from outscope.errors import InputError

# Rows a worker takes at a time: smaller blocks make BLAS repack the atoms over and over (256 rows:
# up to a fifth slower). With many atoms, fewer rows, so that a block's products stay within 8 MB.
BLOCK_ROWS = 1024
BLOCK_ENTRIES = 2_100_000
# Rows of a product given to single-threaded BLAS at a time while fitting.
TILE_ROWS = 256
# Below this many rows, handing over to other threads costs more than it saves.
ROWS_WORTH_A_THREAD = 32
# Leading directions are computed once rows × atoms exceeds this many times columns², which keeps
# their cost at about a third of the work done until then.
PAYS_AFTER = 64
NARROWEST = 256


# A number of threads may come from a file.
MOST_THREADS = 256


class NonFiniteRowsError(InputError):
    """A row holds NaN or infinity, or is too long to compute with."""

    def __init__(self) -> None:
        super().__init__(
            "X contains NaN, infinity or rows too long to compute with (beyond 1e154, or 1e15 "
            "where normalize=False); drop or rescale those rows"
        )


class Block(NamedTuple):
    """A block of rows with what the kernels need to know about them."""

    rows: Matrix  # (b, d) float32 or float64
    scale: FloatArray  # (b,)
    square: FloatArray  # (b,)
    products: Matrix  # (b, m) float32
    margin: np.float32
    left: Matrix  # (b,) float32, for products of leading parts: each row's rest
    rests: Matrix  # (m,) float32, and what they leave of the atoms; (0,) for whole products


WHOLE = np.empty(0, np.float32)


def threads_of(n_jobs: int | None) -> int:
    """Number of threads from `n_jobs`; None and −1 mean all cores of the process."""
    cores = available_cores()
    if n_jobs is None:
        return cores
    return max(1, cores + 1 + n_jobs) if n_jobs < 0 else min(int(n_jobs), MOST_THREADS)


def product(a: Matrix, b: Matrix, n_jobs: int | None) -> Matrix:
    """Return a @ b, always in the same tiles, so that the bits do not depend on the threads."""
    out = np.empty((len(a), b.shape[1]), np.result_type(a, b))

    def work(first: int, last: int) -> None:
        for start in range(first * TILE_ROWS, min(last * TILE_ROWS, len(a)), TILE_ROWS):
            tile = slice(start, start + TILE_ROWS)
            # BLAS kernels for small matrices may raise flags over neighbouring memory.
            with np.errstate(invalid="ignore"):
                np.matmul(a[tile], b, out=out[tile])

    with one_thread_each():
        for_ranges(-(-len(a) // TILE_ROWS), threads_of(n_jobs), 1, work)
    return out


class Engine:
    """Products of rows with atoms, block by block. Safe to use from many threads at once.

    A row's key for an atom is their inner product minus the atom's offset. With `euclidean` the
    offset is half the atom's squared length, so that keys rank atoms by distance.
    `discount` is a vector whose inner product with a row lowers all keys of that row equally.
    """

    def __init__(
        self,
        atoms: Matrix,
        *,
        normalize: bool,
        euclidean: bool,
        penalty: FloatArray | None = None,
        discount: Matrix | None = None,
    ) -> None:
        self.atoms = np.ascontiguousarray(atoms, dtype=np.float32)
        self.normalize = normalize
        exact = self.atoms.astype(np.float64)
        self.squares: FloatArray = np.einsum("ij,ij->i", exact, exact)
        self.offsets: FloatArray = 0.5 * self.squares if euclidean else np.zeros(len(exact))
        if discount is not None:
            # Moving all atoms by the same vector preserves their distances to each other.
            self.atoms = (exact - discount).astype(np.float32)
            self.squares = np.einsum("ij,ij->i", self.atoms, self.atoms, dtype=np.float64)
        if penalty is not None:
            self.offsets = self.offsets + penalty
        self.offsets32 = self.offsets.astype(np.float32)
        # Several times the rounding error of a float32 product of this length.
        longest = math.sqrt(float(self.squares.max()))
        self._margin = 8.0 * 2.0**-24 * math.sqrt(self.atoms.shape[1]) * max(1.0, longest)
        self._margin += 4.0 * 2.0**-24 * float(np.abs(self.offsets).max())

        # Computed when first needed, never saved or copied.
        self._cache: dict[str, Any] = {}
        self.__setstate__({})

    def __len__(self) -> int:
        return len(self.atoms)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
        _engines.add(self)

    def run(
        self,
        X: Matrix,
        n_jobs: int | None,
        outputs: tuple[Matrix, ...],
        kernel: Callable[..., None],
        k: int = 0,
    ) -> None:
        """Call `kernel(block, *views)` until every row of every output is written.

        With `k` the kernel only looks for the k best atoms and may get products of leading parts.
        """
        n = len(X)
        block = max(1, min(BLOCK_ROWS, BLOCK_ENTRIES // len(self), n))

        def work(first: int, last: int) -> None:
            room = self._room(block)
            for start in range(first, last, block):
                stop = min(start + block, last)
                filled = self._fill(X[start:stop], room, leading)
                kernel(filled, *(output[start:stop] for output in outputs))

        few = n <= ROWS_WORTH_A_THREAD and n_jobs is None
        with nullcontext() if few else one_thread_each():
            leading = self._leading_for(X, k)
            for_ranges(n, threads_of(n_jobs), ROWS_WORTH_A_THREAD, work)

    def _room(self, block: int) -> tuple[Matrix, ...]:
        """Working memory of one thread."""
        m, d = self.atoms.shape
        return (
            np.empty((block, d)),
            np.empty(block),
            np.empty(block),
            np.empty((block, m), np.float32),
            np.empty((block, d), np.float32),
            np.zeros(block, np.float32),
        )

    def _leading_for(self, X: Matrix, k: int) -> Leading | None:
        """Leading directions, once enough rows have been scored to pay for finding them."""
        m, d = self.atoms.shape
        if not self.normalize or not 0 < k < m or d < NARROWEST or m < d:
            return None
        with self._lock:
            if "leading" not in self._cache:
                self._cache["rows"] = self._cache.get("rows", 0) + len(X)
                if self._cache["rows"] * m < PAYS_AFTER * d * d:
                    return None
                few = np.array(X[:: -(-len(X) // BLOCK_ROWS)], np.float64)
                lengths = np.linalg.norm(few, axis=1, keepdims=True)
                if not np.isfinite(lengths).all() or not lengths.all():
                    return None
                self._cache["leading"] = leading_part(self.atoms, self.offsets, few / lengths, k)
            return self._cache["leading"]

    def _fill(self, X: Matrix, room: tuple[Matrix, ...], leading: Leading | None) -> Block:
        rows, scale, square, products, proposal, left = (part[: len(X)] for part in room)
        # Other types, layouts and read-only rows are copied, so that fewer variants are compiled.
        if X.dtype.char in "fd" and X.dtype.isnative and X.flags.c_contiguous and X.flags.writeable:
            rows = X
        else:
            np.copyto(rows, X, casting="unsafe")
        if not measure_rows(rows, self.normalize, scale, square, proposal):
            raise NonFiniteRowsError
        margin = self._margin
        if leading is not None:
            parts = proposal @ leading.basis
            margin *= 4.0  # projecting onto the basis rounds rows twice more
            what_is_left(parts, margin, left)
            if left.mean() <= leading.limit:
                np.matmul(parts, leading.atoms.T, out=products)
                wide = np.float32(margin)
                return Block(rows, scale, square, products, wide, left, leading.rests)
        np.matmul(proposal, self.atoms.T, out=products)
        if not self.normalize:
            margin *= math.sqrt(max(1.0, float(square.max())))
        return Block(rows, scale, square, products, np.float32(margin), left, WHOLE)


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _renew_locks() -> None:
    """After a fork, no thread is left in the child to release what another thread held."""
    for engine in _engines:
        engine._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


class Neighbors(Engine):
    """Squared distances to the k nearest atoms."""

    def __init__(self, atoms: Matrix, *, normalize: bool = True) -> None:
        super().__init__(atoms, normalize=normalize, euclidean=True)

    def distances(
        self, X: Matrix, k: int, n_jobs: int | None = None
    ) -> tuple[FloatArray, np.ndarray[Any, Any]]:
        """Squared distances, rising, and the atoms they belong to; both (n, k)."""
        k = min(k, len(self))
        distances = np.empty((len(X), k))
        index = np.empty((len(X), k), np.intp)

        def kernel(block: Block, distances: FloatArray, index: Matrix) -> None:
            nearest_rows(*block, self.atoms, self.offsets, self.offsets32, index, distances)

        self.run(X, n_jobs, (distances, index), kernel, k)
        return distances, index

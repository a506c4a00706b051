"""Rows against fixed atoms, in blocks and threads: the framework shared by all scorers."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from outscope._types import FloatArray, Matrix
from outscope.engine.kernels.blas import one_thread_each
from outscope.engine.kernels.measure import measure_rows, what_is_left, widen_halves
from outscope.engine.kernels.parallel import available_cores, for_ranges
from outscope.engine.kernels.select import nearest_rows
from outscope.engine.leading import SAMPLE, Directions, Leading
from outscope.errors import InputError

# Rows a worker takes at a time: smaller blocks make BLAS repack the atoms over and over (256 rows:
# up to a fifth slower). With many atoms, fewer rows, so that a block's products stay within 8 MB.
BLOCK_ROWS = 1024
BLOCK_ENTRIES = 2_100_000
# Rows of a product given to single-threaded BLAS at a time while fitting.
TILE_ROWS = 256
# Below this many rows, handing over to other threads costs more than it saves.
ROWS_WORTH_A_THREAD = 32
# Up to this many rows are multiplied one by one: a product of matrices first copies all atoms,
# which takes four times as long as reading them. That also leaves leading directions less to gain.
SINGLY = 6
# Narrower atoms are not worth shortening.
NARROWEST = 256
# Projecting on leading directions rounds twice more.
PROJECTED = 4.0


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
    _for_tiles(a, n_jobs, lambda tile: _matmul(a[tile], b, out[tile]))
    return out


def largest_product(a: Matrix, b: Matrix, n_jobs: int | None) -> Matrix:
    """Return (a @ b).max(axis=1), tile by tile: never more than a tile of products in memory."""
    out = np.empty(len(a), np.result_type(a, b))

    def work(tile: slice) -> None:
        room = np.empty((len(a[tile]), b.shape[1]), out.dtype)
        _matmul(a[tile], b, room)
        room.max(axis=1, out=out[tile])

    _for_tiles(a, n_jobs, work)
    return out


def _matmul(a: Matrix, b: Matrix, out: Matrix) -> None:
    # BLAS kernels for small matrices may raise flags over neighbouring memory.
    with np.errstate(invalid="ignore"):
        np.matmul(a, b, out=out)


def _for_tiles(a: Matrix, n_jobs: int | None, work: Callable[[slice], None]) -> None:
    def some(first: int, last: int) -> None:
        for start in range(first * TILE_ROWS, min(last * TILE_ROWS, len(a)), TILE_ROWS):
            work(slice(start, start + TILE_ROWS))

    with one_thread_each():
        for_ranges(-(-len(a) // TILE_ROWS), threads_of(n_jobs), 1, some)


def halves_to_floats(X: Matrix, out: Matrix) -> None:
    """Write float16 rows as float32, in C order."""
    # A copy where rows are read-only or apart, for which another kernel would be compiled.
    rows = X if X.flags.c_contiguous and X.flags.writeable else np.array(X, order="C")
    widen_halves(rows.view(np.uint16), out.view(np.uint32), out)


class Engine:
    """Products of rows with atoms, block by block. Safe to use from many threads at once.

    A row's key for an atom is their inner product minus the atom's offset. With `euclidean` the
    offset is half the atom's squared length, so that keys rank atoms by distance.
    `discount` is a vector whose inner product with a row lowers all keys of that row equally.
    Engines on similar atoms may share `directions`, found by the first that needs them.
    """

    def __init__(
        self,
        atoms: Matrix,
        *,
        normalize: bool,
        euclidean: bool,
        penalty: FloatArray | None = None,
        discount: Matrix | None = None,
        directions: Directions | None = None,
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
        self._directions = directions or Directions()
        self.__setstate__({})

    def __len__(self) -> int:
        return len(self.atoms)

    def __getstate__(self) -> dict[str, Any]:
        fresh = {"_cache": {}, "_directions": Directions(), "_lock": None, "_own": None}
        return {**self.__dict__, **fresh}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
        self._own = threading.local()
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
        if n <= ROWS_WORTH_A_THREAD and n_jobs is None:
            filled = self._fill(X, self._small_room(n), self._leading_for(X, k))
            kernel(filled, *outputs)
            return
        threads = max(1, min(threads_of(n_jobs), n // ROWS_WORTH_A_THREAD))
        most = max(1, min(BLOCK_ROWS, BLOCK_ENTRIES // len(self), -(-n // threads)))
        # As many blocks for each thread: none waits for the last one.
        block = -(-n // (threads * -(-n // (threads * most))))
        # Taken one by one: a thread that another process holds up leaves more to the others.
        starts = deque(range(0, n, block))

        def work(*_: int) -> None:
            room = self._room(block)
            while starts:
                try:
                    start = starts.popleft()
                except IndexError:  # another thread was faster
                    return
                stop = min(start + block, n)
                filled = self._fill(X[start:stop], room, leading)
                kernel(filled, *(output[start:stop] for output in outputs))

        with one_thread_each():
            leading = self._leading_for(X, k)
            for_ranges(threads, threads, 1, work)

    def _small_room(self, n: int) -> tuple[Matrix, ...]:
        """Working memory for a few rows, kept by each thread."""
        room: tuple[Matrix, ...] | None = getattr(self._own, "room", None)
        if room is None or len(room[0]) != n:
            room = self._own.room = self._room(n)
        return room

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
        if "leading" in self._cache:
            found: Leading | None = self._cache["leading"]
            few = found is not None and len(X) <= SINGLY and 2 * found.basis.shape[1] >= d
            return None if few else found
        with self._lock:
            if "leading" not in self._cache:
                if not self._directions.pay(len(X) * m, d):
                    return None
                few = np.array(X[:: -(-len(X) // SAMPLE)], np.float64)
                lengths = np.linalg.norm(few, axis=1, keepdims=True)
                if not np.isfinite(lengths).all() or not lengths.all():
                    return None
                self._cache["leading"] = self._directions.leading(
                    self.atoms, self.offsets, PROJECTED * self._margin, k, few / lengths
                )
            return self._cache["leading"]

    def _fill(self, X: Matrix, room: tuple[Matrix, ...], leading: Leading | None) -> Block:
        if len(room[0]) > len(X):
            room = tuple(part[: len(X)] for part in room)
        rows, scale, square, products, proposal, left = room
        # Other types, layouts and read-only rows are copied, so that fewer variants are compiled.
        if X.dtype.char in "fd" and X.dtype.isnative and X.flags.c_contiguous and X.flags.writeable:
            rows = X
        elif X.dtype == np.float16 and X.dtype.isnative:
            # Here and not earlier: a block's rows are then still in cache when they are used.
            rows = rows.reshape(-1).view(np.float32)[: rows.size].reshape(rows.shape)
            halves_to_floats(X, rows)
        else:
            np.copyto(rows, X, casting="unsafe")
        if not measure_rows(rows, self.normalize, scale, square, proposal):
            raise NonFiniteRowsError
        margin = self._margin
        if leading is not None:
            parts = proposal @ leading.basis
            margin *= PROJECTED
            if what_is_left(parts, square, margin, left) <= leading.limit:
                _multiply(parts, leading.atoms, products)
                wide = np.float32(margin)
                return Block(rows, scale, square, products, wide, left, leading.rests)
        _multiply(proposal, self.atoms, products)
        if not self.normalize:
            margin *= math.sqrt(max(1.0, float(square.max())))
        return Block(rows, scale, square, products, np.float32(margin), left, WHOLE)


def _multiply(rows: Matrix, atoms: Matrix, products: Matrix) -> None:
    """Write rows @ atoms.T."""
    if len(rows) > SINGLY:
        np.matmul(rows, atoms.T, out=products)
        return
    for i in range(len(rows)):
        np.dot(atoms, rows[i], out=products[i])


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

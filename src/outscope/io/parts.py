"""The contract of a source: a table of rows in parts, and the parts of a matrix."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from outscope._types import IntArray, Matrix
from outscope.errors import InputError

# Rows of a part, at most. Sums are taken part by part, so the parts decide the last bits of a fit.
PART_ROWS = 32_768


class Part(NamedTuple):
    """Consecutive rows of a source."""

    name: str  # of the file, or what the rows are, for messages
    start: int  # its first row within what `name` says
    rows: int


class Source(ABC):
    """A table of numbers in parts, in a fixed order."""

    width: int
    parts: Sequence[Part]
    # Whether its rows are in the memory of this process. If not, it is pickled as where they are.
    in_memory: bool = False

    @abstractmethod
    def read(self, part: int) -> Matrix:
        """The rows of one part, as stored; the caller checks and converts them."""

    def blocks(self, part: int) -> Iterator[Matrix]:
        """The same rows in blocks, as they are read."""
        yield self.read(part)

    @abstractmethod
    def fingerprint(self) -> str:
        """Changes when the content may have changed; cheap to compute."""

    def __len__(self) -> int:
        return sum(part.rows for part in self.parts)

    def take(self, chosen: IntArray) -> Matrix:
        """Some rows, by rising index."""
        edges = np.concatenate([[0], np.cumsum([part.rows for part in self.parts])])
        cuts = np.searchsorted(chosen, edges)
        found = [
            self._take(i, chosen[cuts[i] : cuts[i + 1]] - edges[i])
            for i in range(len(self.parts))
            if cuts[i] < cuts[i + 1]
        ]
        return np.concatenate(found) if found else np.empty((0, self.width), np.float32)

    def _take(self, part: int, chosen: IntArray) -> Matrix:
        """Some rows of one part, counted from its first."""
        return self.read(part)[chosen]

    def place(self, part: int, row: int) -> str:
        """Where a row of a part is, counting from 1, for messages."""
        return _place(self.parts[part], part, row)


def _place(where: Part, part: int, row: int) -> str:
    return f"{where.name}, row {where.start + row + 1:,} (block {part + 1:,})"


class Table(ABC):
    """One table of a source."""

    name: str
    width: int
    pieces: list[int]  # rows of each piece it is stored in
    in_memory: bool = False

    @abstractmethod
    def read(self, start: int, rows: int) -> Matrix:
        """Consecutive rows; a `RowError` counts rows from the table's first."""

    def blocks(self, start: int, rows: int) -> Iterator[Matrix]:
        """The same rows in blocks, as they are read."""
        yield self.read(start, rows)

    def take(self, start: int, rows: int, chosen: IntArray) -> Matrix:
        """Some of these consecutive rows."""
        return self.read(start, rows)[chosen]

    @abstractmethod
    def state(self) -> str:
        """Changes when the content may have changed."""

    def check(self) -> None:  # noqa: B027 (nothing can change under a table in memory)
        """Refuse a table that is no longer what it was when it was opened."""


class RowError(Exception):
    """A row cannot be read; whoever knows its file says where it is."""

    def __init__(self, row: int, words: str) -> None:
        super().__init__(words)
        self.row, self.words = row, words


class ArraySource(Source):
    """A matrix in memory or mapped from a file."""

    def __init__(self, X: Matrix, name: str = "X") -> None:
        self._X, self.width = X, int(X.shape[1])
        self.parts = parts_of(name, len(X))
        self.in_memory = _place_in_file(X) is None

    def __getstate__(self) -> dict[str, Any]:
        # numpy would pickle the rows of a mapped file.
        return {**self.__dict__, "_X": self._X if self.in_memory else _place_in_file(self._X)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not self.in_memory:
            name, kind, offset, shape = state["_X"]
            self._X = np.memmap(name, kind, "r", offset, shape)

    def read(self, part: int) -> Matrix:
        """A view of the rows of one part."""
        start = self.parts[part].start
        return self._X[start : start + self.parts[part].rows]

    def take(self, chosen: IntArray) -> Matrix:
        """Some rows, by rising index."""
        return self._X[chosen]

    def fingerprint(self) -> str:
        """The shape and a few rows."""
        some = np.ascontiguousarray(self._X[:: max(1, len(self._X) // 16)])
        return f"{self._X.shape} {self._X.dtype} {hash_of(some)}"


class Block(Source):
    """One part of a source, as a source of its own; `number` is that of the part among all."""

    def __init__(self, number: int, where: Part, width: int, rows: Callable[[], Matrix]) -> None:
        self.parts, self.width, self._number, self._rows = [where], width, number, rows

    def read(self, part: int) -> Matrix:
        """Its rows, which must be as many as were counted."""
        try:
            found = self._rows()
        except RowError as error:
            raise InputError(f"{self.place(part, error.row)}: {error.words}") from error
        if found.shape != (self.parts[0].rows, self.width):
            raise InputError(
                f"{self.place(part, 0)}: {len(found):,} rows of {found.shape[1]} numbers, and "
                f"{self.parts[0].rows:,} of {self.width} the first time; its rows must not change"
            )
        return found

    def place(self, part: int, row: int) -> str:
        """Where a row is in the whole source."""
        return _place(self.parts[part], self._number, row)

    def fingerprint(self) -> str:
        """A few rows."""
        return ArraySource(self._rows()).fingerprint()


def _place_in_file(X: Matrix) -> tuple[Any, ...] | None:
    """File, type, offset and shape of mapped rows that others can map too."""
    if not isinstance(X, np.memmap) or not X.filename or X.mode == "c" or not X.flags.c_contiguous:
        return None
    first: Any = X
    while isinstance(first.base, np.memmap):
        first = first.base
    # A slice keeps the offset of what it was cut from.
    offset = first.offset + X.ctypes.data - first.ctypes.data
    return X.filename, X.dtype, offset, X.shape


def parts_of(name: str, rows: int) -> list[Part]:
    """A table of this many rows, cut into parts."""
    return cut(name, [rows])


def cut(name: str, pieces: Iterable[int]) -> list[Part]:
    """Parts of a table that is stored in pieces of so many rows each.

    A piece too large for a part is cut; small neighbours share one.
    """
    parts: list[Part] = []
    start, rows = 0, 0
    for piece in pieces:
        if rows + piece > PART_ROWS:
            parts.extend(_slices(name, start, rows))
            start, rows = start + rows, 0
        rows += piece
    return parts + _slices(name, start, rows)


def _slices(name: str, start: int, rows: int) -> list[Part]:
    firsts = range(0, rows, PART_ROWS)
    return [Part(name, start + first, min(PART_ROWS, rows - first)) for first in firsts]


def hash_of(*told: Matrix | str) -> str:
    """A short hash of some numbers and words."""
    import hashlib

    digest = hashlib.blake2b(digest_size=16)
    for one in told:
        digest.update(f"{one}\0".encode() if isinstance(one, str) else one.tobytes())
    return digest.hexdigest()

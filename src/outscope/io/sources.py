"""Rows that need not fit in memory: tables that are read part by part, any number of times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from outscope._types import IntArray, Matrix

# Rows of a part, at most. Sums are taken part by part, so the parts decide the last bits of a fit.
PART_ROWS = 65_536


class Part(NamedTuple):
    """Consecutive rows of a source."""

    name: str  # of the file, or what the rows are, for messages
    start: int  # its first row within what `name` says
    rows: int


class Source(ABC):
    """A table of numbers in parts, in a fixed order."""

    width: int
    parts: Sequence[Part]

    @abstractmethod
    def read(self, part: int) -> Matrix:
        """The rows of one part, as stored; the caller checks and converts them."""

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
            self.read(i)[chosen[cuts[i] : cuts[i + 1]] - edges[i]]
            for i in range(len(self.parts))
            if cuts[i] < cuts[i + 1]
        ]
        return np.concatenate(found) if found else np.empty((0, self.width), np.float32)


class ArraySource(Source):
    """A matrix in memory or mapped from a file."""

    def __init__(self, X: Matrix, name: str = "X") -> None:
        self._X, self.width = X, int(X.shape[1])
        self.parts = parts_of(name, len(X))

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


def parts_of(name: str, rows: int) -> list[Part]:
    """A table of this many rows, cut into parts."""
    return [Part(name, start, min(PART_ROWS, rows - start)) for start in range(0, rows, PART_ROWS)]


def hash_of(rows: Matrix) -> str:
    """A short hash of some numbers."""
    import hashlib

    return hashlib.blake2b(rows.tobytes(), digest_size=16).hexdigest()


def fingerprint(table: Matrix | Source) -> str:
    """Of a source, or of rows in memory."""
    return (table if isinstance(table, Source) else ArraySource(table)).fingerprint()


def as_source(X: Any) -> Source | None:
    """What can be read part by part, or None for what is an array, a frame or a list."""
    return X if isinstance(X, Source) else None

"""Rows that come block after block: read in order, and from the start again for the next pass."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from outscope._types import Matrix
from outscope.errors import InputError
from outscope.io.parts import RowError, Source, hash_of, parts_of


class Stream:
    """Rows by range from an iterator of blocks; asking in order never reads a block twice.

    Rows before the range are read and dropped; an earlier range starts a new iterator.
    """

    def __init__(self, start: Callable[[], Iterator[Matrix]]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._restart()

    def __reduce__(self) -> tuple[Any, ...]:
        return Stream, (self._start,)  # another process starts its own iterator

    def _restart(self) -> None:
        self._blocks: Iterator[Matrix] | None = None
        self._rest: Matrix | None = None
        self._next = 0  # the row that comes next: the first one of the rest, if there is a rest

    def read(self, start: int, rows: int, *, last: bool = False) -> Matrix:
        """Rows from `start`, fewer where the blocks end; with `last` they must end there."""
        with self._lock:
            try:
                found = self._read(start, rows)
                if last and self._block() is not None:
                    raise RowError(start + rows, "there are more rows than when it was opened")
            except BaseException:
                self._restart()
                raise
            if last:
                self._restart()  # what is left over need not stay in memory
        return found

    def _read(self, start: int, rows: int) -> Matrix:
        if self._blocks is None or start < self._next:
            self._restart()
            self._blocks = self._start()
        taken: list[Matrix] = []
        while self._next < start + rows:
            block = self._block()
            if block is None:
                break
            few = block[max(0, start - self._next) : start + rows - self._next]
            rest = block[start + rows - self._next :]
            if len(few):
                taken.append(few)
            self._next += len(block) - len(rest)
            self._rest = rest if len(rest) else None
        if len(taken) == 1:
            return taken[0]
        return np.concatenate(taken) if taken else np.empty((0, 0))

    def _block(self) -> Matrix | None:
        if self._rest is not None:
            return self._rest
        try:
            return next(self._blocks or iter(()), None)
        except RowError as error:
            raise RowError(self._next + error.row, error.words) from error


class FunctionSource(Source):
    """Rows from a function that starts an iterator of blocks; it is called once per pass."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self._function = start
        self._name = f"{getattr(start, '__name__', type(start).__name__)}()"
        self._sizes: Sequence[int] | None = None
        sizes, told, width = [], [], 0
        for block in self._blocks():
            width = width or block.shape[1]
            sizes.append(len(block))
            told.append(np.array(block[:1]))
        if not sum(sizes):
            raise InputError(f"{self._name} gave no rows; nothing to do")
        self._sizes, self.width = sizes, width
        self._stream = Stream(self._blocks)
        self.parts = parts_of(self._name, sum(sizes))
        self._hash = hash_of(str(sizes), *told)

    def read(self, part: int) -> Matrix:
        """The rows of one part; quick if the part before it was read last."""
        _, start, rows = self.parts[part]
        found = self._stream.read(start, rows, last=part == len(self.parts) - 1)
        if len(found) != rows:
            raise self._changed(f"{start + len(found):,} rows")
        return found

    def fingerprint(self) -> str:
        """The number of rows of each block, and its first row."""
        return self._hash

    def _blocks(self) -> Iterator[Matrix]:
        """Checked blocks of a new pass, which must have as many rows as those of the first."""
        known, width, number = self._sizes, None, 0
        try:
            blocks = iter(self._function())
        except TypeError as error:
            raise InputError(
                f"{self._name} cannot be read: {error}; give a function that takes no arguments "
                "and returns an iterator of matrices"
            ) from error
        for number, given in enumerate(blocks, 1):
            block = _matrix(given, f"{self._name}, block {number:,}")
            width = width or block.shape[1]
            if block.shape[1] != width:
                raise InputError(
                    f"{self._name}, block {number:,} has {block.shape[1]} columns; those before "
                    f"it have {width}"
                )
            if known is not None and [len(block)] != [*known[number - 1 : number]]:
                raise self._changed(f"another block {number:,} ({len(block):,} rows)")
            yield block
        if known is not None and number != len(known):
            raise self._changed(f"{number:,} blocks")

    def _changed(self, what: str) -> InputError:
        sizes = self._sizes or ()
        return InputError(
            f"{self._name} gave {what} when called again, after {len(sizes):,} blocks with "
            f"{sum(sizes):,} rows the first time; each call must start a new iterator over the "
            "same rows"
        )


def _matrix(given: Any, name: str) -> Matrix:
    block = np.asarray(given)
    if block.ndim != 2 or not block.shape[1]:
        raise InputError(f"{name} has shape {block.shape}; expected a matrix, one row per input")
    if block.dtype.kind not in "fiub":
        raise InputError(f"{name} holds {block.dtype}; expected numbers")
    return block

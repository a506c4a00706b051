"""Tables on disk and in Arrow: .npy and .parquet files, pyarrow and Hugging Face datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from outscope._types import IntArray, Matrix
from outscope.errors import InputError, require
from outscope.io.listing import files_of, is_pattern, split
from outscope.io.parts import Part, RowError, Source, Table, cut, hash_of
from outscope.io.streams import Stream
from outscope.io.vectors import matrix_of, vector_column, width_of

KINDS = (".npy", ".parquet")
# Rows decoded at a time where a piece of a table is larger than a part.
ROWS_AT_A_TIME = 16_384
BUFFER_BYTES = 1 << 20


class TableSource(Source):
    """Tables of one width, one after the other; no part spans two of them."""

    def __init__(self, tables: Sequence[Table], name: str) -> None:
        filled = [table for table in tables if sum(table.pieces)]
        if not filled:
            raise InputError(f"{name} has 0 rows; nothing to do")
        self.width = filled[0].width
        self.in_memory = any(table.in_memory for table in filled)
        self.parts: list[Part] = []
        self._tables: list[Table] = []
        for table in filled:
            if table.width != self.width:
                raise InputError(
                    f"{table.name} has {table.width} columns, but {filled[0].name} has "
                    f"{self.width}; give rows of one encoder"
                )
            parts = cut(table.name, table.pieces)
            self.parts += parts
            self._tables += [table] * len(parts)

    def read(self, part: int) -> Matrix:
        """The rows of one part; quick if the part before it was read last."""
        with self._reading(part) as table:
            return table.read(*self.parts[part][1:])

    def blocks(self, part: int) -> Iterator[Matrix]:
        """The same rows in blocks, as they are read."""
        with self._reading(part) as table:
            yield from table.blocks(*self.parts[part][1:])

    def _take(self, part: int, chosen: IntArray) -> Matrix:
        with self._reading(part) as table:
            return table.take(*self.parts[part][1:], chosen)

    @contextmanager
    def _reading(self, part: int) -> Iterator[Table]:
        """The table of a part; errors say where it is, and that it changed if it did."""
        table, (name, start, _) = self._tables[part], self.parts[part]
        table.check()
        try:
            yield table
        except RowError as error:
            table.check()
            raise InputError(f"{self.place(part, error.row - start)}: {error.words}") from error
        except InputError:
            raise
        except Exception as error:  # Arrow raises many kinds
            table.check()
            raise InputError(f"{name} cannot be read (block {part + 1:,}): {error}") from error
        table.check()

    def fingerprint(self) -> str:
        """Of each file its name, size and time; of a table in memory a few rows."""
        tables = dict.fromkeys(self._tables)
        shape = ",".join(str(part.rows) for part in self.parts)
        return hash_of(str(self.width), shape, *(table.state() for table in tables))


class _File(Table):
    """A table in a file, which must not change while it is in use."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)
        self._state = self._stat()

    def _stat(self) -> tuple[int, int]:
        try:
            found = self.path.stat()
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror}") from error
        return found.st_size, found.st_mtime_ns

    def check(self) -> None:
        """Refuse a file whose size or time is no longer that of opening."""
        if self._stat() != self._state:
            raise InputError(
                f"{self.path} changed after it was opened; start again once it is complete"
            )

    def state(self) -> str:
        """Name, size and time."""
        return f"{self.path.name} {self._state}"


class NpyFile(_File):
    """Rows of an .npy file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        except Exception as error:  # also what a damaged header raises
            if "Python objects" in str(error) or "Object arrays" in str(error):
                raise InputError(f"{path} holds objects; expected numbers") from error
            raise InputError(f"{path} cannot be read as npy: {error}") from error
        if mapped.ndim != 2 or not mapped.shape[1]:
            raise InputError(f"{path} has shape {mapped.shape}; expected a matrix, one row each")
        if mapped.dtype.kind not in "fiub":
            raise InputError(f"{path} holds {mapped.dtype}; expected numbers")
        self.width, self.pieces = int(mapped.shape[1]), [len(mapped)]
        self._dtype, self._first = mapped.dtype, int(mapped.offset)
        self._by_rows = mapped.flags.c_contiguous

    def read(self, start: int, rows: int) -> Matrix:
        """Read, not mapped: memory stays flat, and a cut file is an error, not a crash."""
        if not self._by_rows:
            return np.array(np.load(self.path, mmap_mode="r")[start : start + rows])
        offset = self._first + start * self.width * self._dtype.itemsize
        count = rows * self.width
        return np.fromfile(self.path, self._dtype, count, offset=offset).reshape(rows, self.width)

    def blocks(self, start: int, rows: int) -> Iterator[Matrix]:
        """The same rows in blocks of one megabyte or two, whose memory is used again."""
        step = max(1, BUFFER_BYTES // (self.width * self._dtype.itemsize))
        for first in range(start, start + rows, step):
            yield self.read(first, min(step, start + rows - first))

    def take(self, start: int, rows: int, chosen: IntArray) -> Matrix:
        """Only the chosen rows are read from disk."""
        return np.array(np.load(self.path, mmap_mode="r")[start + chosen])


class _ParquetGroups:
    """Consecutive rows of some row groups of a parquet file."""

    def __init__(self, opened: Callable[[], Any], groups: Sequence[int], column: str) -> None:
        self._opened, self._groups, self._column = opened, list(groups), column
        file = opened()
        self.sizes = [file.metadata.row_group(group).num_rows for group in self._groups]
        self._edges = np.concatenate([[0], np.cumsum(self.sizes)]).tolist()
        self._running: tuple[int, Stream] | None = None
        self.width = width_of(self._first(file))

    def _first(self, file: Any) -> Any:
        """The first rows of the column, maybe none."""
        columns = [self._column]
        for batch in file.iter_batches(1, row_groups=self._groups, columns=columns):
            if len(batch):
                return batch.column(0)
        return file.schema_arrow.empty_table().column(self._column)

    def read(self, start: int, rows: int, width: int) -> Matrix:
        """Whole row groups at once; of one that is larger than a part, row after row."""
        first = int(np.searchsorted(self._edges, start, "right")) - 1
        last = int(np.searchsorted(self._edges, start + rows, "left"))
        if (self._edges[first], self._edges[last]) == (start, start + rows):
            groups = self._groups[first:last]
            columns = [self._column]
            column = self._opened().read_row_groups(groups, columns=columns).column(0)
            return self._told(lambda: matrix_of(column, width), start)
        if self._running is None or self._running[0] != first:
            self._running = first, Stream(lambda: self._blocks(first, width))
        within = start - self._edges[first]
        end = within + rows == self.sizes[first]
        stream = self._running[1]
        return self._told(lambda: stream.read(within, rows, last=end), self._edges[first])

    @staticmethod
    def _told(read: Callable[[], Matrix], start: int) -> Matrix:
        try:
            return read()
        except RowError as error:
            raise RowError(start + error.row, error.words) from error

    def _blocks(self, group: int, width: int) -> Iterator[Matrix]:
        batches = self._opened().iter_batches(
            ROWS_AT_A_TIME, row_groups=[self._groups[group]], columns=[self._column]
        )
        for batch in batches:
            yield matrix_of(batch.column(0), width)


class ParquetFile(_File):
    """A column of vectors of a .parquet file."""

    def __init__(self, path: Path, column: str | None) -> None:
        super().__init__(path)
        try:
            schema = require("pyarrow.parquet", extra="parquet").read_schema(path)
            self._column = vector_column(schema, self.name, column)
            file = self._opened()
            self._rows = _ParquetGroups(self._opened, range(file.num_row_groups), self._column)
        except (InputError, ImportError):
            raise
        except Exception as error:  # Arrow raises many kinds
            raise InputError(f"{path} cannot be read as parquet: {error}") from error
        self.pieces, self.width = self._rows.sizes, self._rows.width or 0
        if not self.width and any(self.pieces):
            raise InputError(f"{path}, row 1: the vector in {self._column} is missing or empty")

    def _opened(self) -> Any:
        # Without its own buffering, Arrow would load whole row groups before the first row.
        parquet = require("pyarrow.parquet", extra="parquet")
        return parquet.ParquetFile(self.path, pre_buffer=False, buffer_size=BUFFER_BYTES)

    def read(self, start: int, rows: int) -> Matrix:
        """Consecutive vectors."""
        return self._rows.read(start, rows, self.width)

    def state(self) -> str:
        """Name, size, time and column."""
        return f"{super().state()} {self._column}"


class _Fragment(Table):
    """A fragment of a `pyarrow.dataset.Dataset`."""

    def __init__(self, fragment: Any, schema: Any, column: str, number: int) -> None:
        self._fragment, self._schema, self._column = fragment, schema, column
        self.name = str(getattr(fragment, "path", "") or f"fragment {number:,}")
        self.in_memory = not getattr(fragment, "path", "")
        self._groups: _ParquetGroups | None = None
        if hasattr(fragment, "row_groups"):
            groups = [group.id for group in fragment.row_groups]
            self._groups = _ParquetGroups(self._opened, groups, column)
            self.pieces, width = self._groups.sizes, self._groups.width
        else:
            self.pieces = [int(fragment.count_rows())]
            self._stream = Stream(self._blocks)
            first = next((b for b in self._batches(1) if len(b)), None)
            width = None if first is None else width_of(first.column(0))
        self.width = width or 0
        if not self.width and any(self.pieces):
            raise InputError(f"{self.name}, row 1: the vector in {column} is missing or empty")
        self._state = self._stat()

    def _opened(self) -> Any:
        parquet = require("pyarrow.parquet", extra="parquet")
        file = self._fragment.open()
        return parquet.ParquetFile(file, pre_buffer=False, buffer_size=BUFFER_BYTES)

    def _batches(self, size: int) -> Iterator[Any]:
        found: Iterator[Any] = self._fragment.to_batches(
            schema=self._schema, columns=[self._column], batch_size=size, batch_readahead=1
        )
        return found

    def _blocks(self) -> Iterator[Matrix]:
        return (matrix_of(b.column(0), self.width) for b in self._batches(ROWS_AT_A_TIME))

    def _stat(self) -> str:
        if not hasattr(self._fragment, "path"):
            return ""
        found = self._fragment.filesystem.get_file_info(self._fragment.path)
        return f"{found.size} {found.mtime_ns}"

    def read(self, start: int, rows: int) -> Matrix:
        """Consecutive vectors."""
        if self._groups is not None:
            return self._groups.read(start, rows, self.width)
        return self._stream.read(start, rows, last=start + rows == sum(self.pieces))

    def check(self) -> None:
        """Refuse a file whose size or time is no longer that of opening."""
        if self._stat() != self._state:
            raise InputError(f"{self.name} changed after it was opened; start again")

    def state(self) -> str:
        """Name, size, time, column and number of rows; for a table in memory, also some rows."""
        told = f"{Path(self.name).name} {self._state} {self._column} {self.pieces}"
        if hasattr(self._fragment, "path"):
            return told
        return f"{told} {hash_of(next(self._blocks())[:16])}"


class ArrowTable(Table):
    """A column of vectors of a table that gives Arrow tables by range of rows."""

    in_memory = True

    def __init__(
        self, part: Callable[[int, int], Any], rows: int, column: str, name: str, told: str = ""
    ) -> None:
        self._part, self._column, self._told = part, column, told
        self.name, self.pieces = name, [rows]
        self.width = (width_of(part(0, 1).column(column)) if rows else 0) or 0
        if rows and not self.width:
            raise InputError(f"{name}, row 1: the vector in {column} is missing or empty")

    def read(self, start: int, rows: int) -> Matrix:
        """Consecutive vectors."""
        try:
            return matrix_of(self._part(start, rows).column(self._column), self.width)
        except RowError as error:
            raise RowError(start + error.row, error.words) from error

    def state(self) -> str:
        """What identifies the table, else a few rows."""
        rows = self.pieces[0]
        few = self._told or hash_of(*(self.read(i, 1) for i in range(0, rows, -(-rows // 16))))
        return f"{few} {self._column}"


def of_files(source: str, column: str | None) -> TableSource:
    """The rows of a file, of a folder's files or of those that a pattern finds."""
    place, named = split(source)
    if not Path(place).exists() and not is_pattern(place):
        raise InputError(f"{place} does not exist; give {' or '.join(KINDS)} files or their folder")
    files = files_of(place, KINDS)
    kinds = {path.suffix.lower() for path in files}
    if len(kinds) > 1:
        raise InputError(
            f"{place} holds {' and '.join(sorted(kinds))} files; give a pattern for one"
        )
    if not kinds <= {*KINDS}:
        raise InputError(f"{files[0]} is no file of rows; give {' or '.join(KINDS)} files")
    column = column or named
    if kinds == {".parquet"}:
        return TableSource([ParquetFile(path, column) for path in files], place)
    if column is not None:
        raise InputError(f"{place} holds arrays, which have no column {column!r}")
    return TableSource([NpyFile(path) for path in files], place)


def of_dataset(dataset: Any, column: str | None) -> TableSource:
    """The rows of a `pyarrow.dataset.Dataset`, fragment by fragment."""
    column = vector_column(dataset.schema, "the dataset", column)
    try:
        fragments = list(dataset.get_fragments())
    except ValueError as error:
        raise InputError(
            f"the dataset cannot be read by its files: {error}; write what is left of it to a "
            "folder, or give a function that returns an iterator of matrices"
        ) from error
    tables = [_Fragment(f, dataset.schema, column, i) for i, f in enumerate(fragments, 1)]
    return TableSource(tables, "the dataset")


def of_table(table: Any, column: str | None) -> TableSource:
    """The rows of a `pyarrow.Table`."""
    column = vector_column(table.schema, "the table", column)
    return TableSource([ArrowTable(table.slice, len(table), column, "the table")], "the table")


def of_huggingface(dataset: Any, column: str | None) -> TableSource:
    """The rows of a Hugging Face `Dataset`."""
    name = "the dataset"
    column = vector_column(dataset.features.arrow_schema, name, column)
    part = partial(_some, dataset.with_format("arrow", columns=[column]))
    table = ArrowTable(part, len(dataset), column, name, dataset._fingerprint)
    table.in_memory = not dataset.cache_files
    return TableSource([table], name)


def _some(dataset: Any, start: int, count: int) -> Any:
    return dataset[start : start + count]


__all__ = ["of_dataset", "of_files", "of_huggingface", "of_table"]

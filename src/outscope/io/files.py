"""Embeddings and labels from files, results to files. Files are written whole or not at all."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from outscope._types import Matrix
from outscope.errors import InputError, require
from outscope.io.atomic import check_folder_writable, whole_file

__all__ = [
    "check_folder_writable",
    "check_writable",
    "print_jsonl",
    "read_array",
    "read_labels",
    "read_matrix",
    "records",
    "whole_file",
    "write_columns",
    "write_matrix",
    "written_columns",
]

READABLE = ".npy, .npz or .parquet"
WRITABLE = ".jsonl, .csv, .parquet or .npy"
ROWS_AT_A_TIME = 16_384


def _split(source: str) -> tuple[Path, str | None]:
    """`file.npz:name` → the path and the name of an array or column."""
    path = Path(source)
    if not path.exists() and ":" in source:
        head, name = source.rsplit(":", 1)
        path, chosen = Path(head), name
    else:
        chosen = None
    if not path.exists():
        raise InputError(f"{path} does not exist; give a {READABLE} file")
    if path.is_dir():
        raise InputError(f"{path} is a folder; give a {READABLE} file")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty (0 bytes); was it written completely?")
    return path, chosen


def read_array(source: str, *, wanted: str = "embeddings") -> np.ndarray[Any, Any]:
    """An array from `file.npy`, `file.npz:name` or `file.parquet:column`."""
    path, name = _split(source)
    suffix = path.suffix.lower()
    try:
        if suffix == ".npy":
            return np.load(path, mmap_mode="r", allow_pickle=False)
        if suffix == ".npz":
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                return np.asarray(archive[_choose(path, list(archive.files), name, "array")])
        if suffix == ".parquet":
            return _read_parquet(path, name, vectors=wanted == "embeddings")
        if suffix == ".txt" and wanted == "labels":
            return np.array(path.read_text().splitlines())
    except (InputError, ImportError):
        raise
    except Exception as error:  # each reader raises its own errors for a damaged file
        raise InputError(f"{path} cannot be read as {suffix[1:]}: {error}") from error
    raise InputError(f"{path} is not a kind of file that holds {wanted}; give {READABLE}")


def _choose(path: Path, names: list[str], name: str | None, kind: str) -> str:
    if name is None and len(names) == 1:
        return names[0]
    if name is None:
        raise InputError(f"{path} has several {kind}s; name one, as in {path}:{names[0]}")
    if name not in names:
        raise InputError(f"{path} has no {kind} {name!r}; it has {', '.join(names)}")
    return name


def _read_parquet(path: Path, name: str | None, *, vectors: bool) -> np.ndarray[Any, Any]:
    parquet = require("pyarrow.parquet", extra="parquet")
    types = require("pyarrow.types", extra="parquet")
    compute = require("pyarrow.compute", extra="parquet")
    schema = parquet.read_schema(path)
    names = [
        field.name
        for field in schema
        if vectors
        == any(
            is_vector(field.type)
            for is_vector in (types.is_list, types.is_large_list, types.is_fixed_size_list)
        )
    ]
    if not names:
        raise InputError(f"{path} has no {'vector' if vectors else 'plain'} column")
    column = parquet.read_table(path, columns=[_choose(path, names, name, "column")])[0]
    if column.null_count:
        raise InputError(
            f"{path}: column {name or names[0]} has {column.null_count} missing values"
        )
    if not vectors:
        return np.asarray(column.to_pylist())
    lengths = np.unique(compute.list_value_length(column).to_numpy())
    if len(lengths) != 1:
        raise InputError(f"{path}: vectors in {name or names[0]} must exist and be equally long")
    flat = column.combine_chunks().flatten()
    if flat.null_count:
        raise InputError(f"{path}: vectors in {name or names[0]} have missing values")
    return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(len(column), int(lengths[0]))


def read_matrix(source: str) -> Matrix:
    """Embeddings, one per row; memory-mapped if the file allows it."""
    rows = read_array(source)
    if rows.ndim != 2:
        raise InputError(f"{source} has shape {rows.shape}; expected a matrix, one row per input")
    if rows.dtype.kind not in "fiub":
        raise InputError(f"{source} holds {rows.dtype}; expected numbers")
    if not len(rows):
        raise InputError(f"{source} has 0 rows; nothing to do")
    return rows


def read_labels(source: str) -> np.ndarray[Any, Any]:
    """Labels, one per row, from an array, a plain column or the lines of a .txt file."""
    return read_array(source, wanted="labels")


def check_writable(path: Path, kinds: str = WRITABLE) -> None:
    """Refuse a result file of an unknown kind before any work is done."""
    if path.suffix.lower() not in kinds.replace(",", "").split():
        raise InputError(f"{path} has an unknown ending; give a {kinds} file")
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file to write")
    if not (path.parent or Path()).is_dir():
        raise InputError(f"the folder of {path} does not exist; make it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {path}: its folder is not yours to write to")
    if path.suffix.lower() == ".parquet":
        require("pyarrow.parquet", extra="parquet")


def write_matrix(path: Path, rows: Matrix) -> None:
    """Write a matrix as .npy."""
    with whole_file(path) as file:
        np.save(file, rows, allow_pickle=False)


Columns = Mapping[str, Any]


def write_columns(path: Path, columns: Columns) -> None:
    """Write columns of equal length; .npy keeps only the scores."""
    with written_columns(path) as write:
        write(columns)


@contextmanager
def written_columns(path: Path) -> Iterator[Callable[[Columns], None]]:
    """A function that adds rows, given as columns, to a file that appears once all are written."""
    with whole_file(path) as file, _WRITERS.get(path.suffix.lower(), _as_jsonl)(file) as write:
        yield write


@contextmanager
def _as_npy(file: IO[bytes]) -> Iterator[Callable[[Columns], None]]:
    found: list[Matrix] = []
    yield lambda columns: found.append(np.asarray(columns["ood_score"]))
    np.save(file, np.concatenate(found), allow_pickle=False)


@contextmanager
def _as_parquet(file: IO[bytes]) -> Iterator[Callable[[Columns], None]]:
    arrow = require("pyarrow", extra="parquet")
    parquet = require("pyarrow.parquet", extra="parquet")
    writers: list[Any] = []

    def write(columns: Columns) -> None:
        rows = arrow.table(dict(columns))
        if not writers:
            # Numbers hardly ever repeat: a dictionary of them would only cost time.
            numbers = arrow.types.is_floating, arrow.types.is_integer
            named = [f.name for f in rows.schema if not any(are(f.type) for are in numbers)]
            writers.append(parquet.ParquetWriter(file, rows.schema, use_dictionary=named))
        writers[0].write_table(rows)

    try:
        yield write
    finally:
        for writer in writers:
            writer.close()


@contextmanager
def _as_csv(file: IO[bytes]) -> Iterator[Callable[[Columns], None]]:
    writer = csv.writer(_Text(file))
    named: list[str] = []

    def write(columns: Columns) -> None:
        if not named:
            named.extend(columns)
            writer.writerow(named)
        for values in zip(*_lists(columns).values(), strict=True):
            writer.writerow([" | ".join(v) if isinstance(v, tuple) else v for v in values])

    yield write


@contextmanager
def _as_jsonl(file: IO[bytes]) -> Iterator[Callable[[Columns], None]]:
    def write(columns: Columns) -> None:
        for record in records(_lists(columns)):
            file.write((json.dumps(record, ensure_ascii=False) + "\n").encode())

    yield write


_WRITERS = {".npy": _as_npy, ".parquet": _as_parquet, ".csv": _as_csv}


def _lists(columns: Columns) -> dict[str, Sequence[Any]]:
    """Columns as Python values."""
    return {
        name: column.tolist() if isinstance(column, np.ndarray) else column
        for name, column in columns.items()
    }


class _Text:
    """The part of a text file that csv needs, over a binary one."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(text.encode())


def records(columns: Mapping[str, Sequence[Any]]) -> Iterable[dict[str, Any]]:
    """One dict per row."""
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def print_jsonl(lines: Iterable[dict[str, Any]]) -> None:
    """Write JSON lines to standard output."""
    plain = "utf" not in (sys.stdout.encoding or "").lower()
    for line in lines:
        sys.stdout.write(json.dumps(line, ensure_ascii=plain) + "\n")

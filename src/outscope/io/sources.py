"""Rows that need not fit in memory: tables that are read part by part, any number of times."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from outscope._types import IntArray, Matrix
from outscope.errors import InputError
from outscope.io.parts import PART_ROWS, ArraySource, Part, Source, hash_of, parts_of
from outscope.io.streams import FunctionSource

__all__ = [
    "PART_ROWS",
    "ArraySource",
    "FunctionSource",
    "Part",
    "Source",
    "as_source",
    "checked",
    "converted",
    "distributed",
    "fingerprint",
    "hash_of",
    "parts_of",
    "reader",
    "refuse_bad_rows",
    "taken",
]

# Squares of larger values overflow float64.
LARGEST = np.float64(1e154)  # not a plain number, which numpy would round to float32
NOT_READ_TWICE = (
    "can be read only once, and rows are needed several times; give a function that makes it, as "
    "in fit(lambda: blocks()), or hand its blocks to partial_fit"
)


def as_source(X: Any, column: str | None = None) -> Source | None:
    """What can be read part by part, or None for what is an array, a frame or a list.

    A source is a file (.npy or .parquet), a folder or pattern of such files, a `np.memmap`, a
    pyarrow `Table` or `Dataset`, a Hugging Face `Dataset`, a Dask collection of blocks, or a
    function that starts an iterator of matrices. `column` names the column of vectors where there
    are several.
    """
    if _is_of_dask(X):
        from outscope.io import cluster

        return cluster.on_workers(X, column)
    if type(X) is np.ndarray or isinstance(X, (list, tuple)):
        return None
    if isinstance(X, Source):
        return X
    if isinstance(X, (str, Path)):
        from outscope.io import tables

        return tables.of_files(str(X), column)
    if isinstance(X, np.memmap):
        return _of_map(X)
    if hasattr(X, "__next__"):
        raise InputError(f"a {type(X).__name__} {NOT_READ_TWICE}")
    room = type(X).__module__.partition(".")[0]
    if room in ("pyarrow", "datasets"):
        return _of_library(X, column)
    if callable(X) and not hasattr(X, "__array__"):
        return FunctionSource(X)
    return None


def _of_map(X: Any) -> Source | None:
    if X.ndim != 2 or not X.size or X.dtype.kind not in "fiub":
        return None  # refused like any other array
    return ArraySource(X)


def _is_of_dask(X: Any) -> bool:
    one = X[0] if isinstance(X, (list, tuple)) and X else X
    return type(one).__module__.startswith("dask.")


def distributed(X: Any, client: Any = None, column: str | None = None) -> Source:
    """The rows of X, to be read, learned from and scored by the workers of a Dask cluster.

    X is a Dask collection, or anything that is read part by part: see `outscope.io.sources`; files
    must have the same name on every worker. `client` is by default that of this process.

    fit(distributed("vectors/"), rows="all") gives the same atoms as fit("vectors/", rows="all").
    """
    from outscope.io import cluster

    client = cluster.active_client() if client is None else client
    if client is None:
        raise InputError("there is no Dask client; make one first: distributed.Client(address)")
    if isinstance(X, (str, Path)):
        X = os.path.abspath(X)  # noqa: PTH100 (workers may have been started anywhere)
    with client.as_current():
        source = as_source(X, column)
    if source is None:
        X = np.asarray(X)
        if X.ndim != 2 or not X.size or X.dtype.kind not in "fiub":
            raise InputError(f"X has shape {X.shape} and holds {X.dtype}; expected a matrix")
        source = ArraySource(X)
    if not isinstance(source, cluster.ClusterSource):
        cluster.check_workers(client)
        source = cluster.ClusterSource(source, client)
    return source


def _of_library(X: Any, column: str | None) -> Source | None:
    from outscope.io import tables, vectors

    kind = type(X).__name__
    if kind == "Table":
        # Without a column of vectors it is a frame, each column a number of the rows.
        framed = column is None and not any(vectors.is_vector(field.type) for field in X.schema)
        return None if framed else tables.of_table(X, column)
    if kind == "DatasetDict":
        raise InputError(f"a {kind} has several datasets ({', '.join(X)}); give one of them")
    if hasattr(X, "get_fragments"):
        return tables.of_dataset(X, column)
    if kind == "Dataset":
        return tables.of_huggingface(X, column)
    if hasattr(X, "features"):
        raise InputError(
            f"a {kind} gives rows one by one; give a function that returns an iterator of "
            "matrices, as in lambda: (batch['vector'] for batch in X.with_format('numpy').iter("
            "10_000))"
        )
    return None


def fingerprint(table: Matrix | Source) -> str:
    """Of a source, or of rows in memory."""
    return (table if isinstance(table, Source) else ArraySource(table)).fingerprint()


def converted(rows: Matrix) -> Matrix:
    """Rows as a C-contiguous, writable float32 or float64 matrix, whatever they hold."""
    # Kernels take writable rows as they are, and copy others, block by block, as float64.
    return np.require(rows, _kind_for(rows), ["C", "W"])


def _kind_for(rows: Matrix) -> Any:
    return np.float32 if rows.dtype.kind == "f" and rows.dtype.itemsize <= 4 else np.float64


def reader(source: Source) -> Callable[[int], Matrix]:
    """A function that reads a part as `converted` gives it, in one of two places in turns.

    So a result is good until the next but one is asked for. New memory for each part would cost
    more than reading it: all of it is cleared, page by page. float16 stays as it is, since whoever
    scores rows converts them faster, block by block.
    """
    rooms = [np.empty((0, source.width))] * 2

    def read(part: int) -> Matrix:
        rows, filled = source.parts[part].rows, 0
        rooms.reverse()
        for block in source.blocks(part):
            half = block.dtype == np.float16 and block.dtype.isnative
            kind = block.dtype if half else _kind_for(block)
            if len(block) == rows and block.dtype == kind:
                return block if half else converted(block)
            if len(rooms[0]) < rows or rooms[0].dtype != kind:
                rooms[0] = np.empty((rows, source.width), kind)
            rooms[0][filled : filled + len(block)] = block
            filled += len(block)
        return rooms[0][:rows]

    return read


def checked(source: Source, part: int) -> Matrix:
    """The rows of a part as finite float32 or float64 numbers, or an error that says where not."""
    rows = converted(source.read(part))
    if not _looks_fine(rows):
        refuse_bad_rows(source, part, rows)
    return rows


def taken(source: Source, chosen: IntArray) -> Matrix:
    """Some rows, by rising index, as finite float32 or float64 numbers."""
    rows = converted(source.take(chosen))
    if not _looks_fine(rows):
        edges = np.cumsum([part.rows for part in source.parts])
        for row in np.flatnonzero(~(np.abs(rows) <= LARGEST).all(axis=1))[:1]:
            checked(source, int(np.searchsorted(edges, chosen[row], "right")))
    return rows


def _looks_fine(rows: Matrix) -> bool:
    """Whether all numbers are surely fine; False may be a false alarm."""
    with np.errstate(all="ignore"):
        if not np.isfinite(rows.sum()):
            return False
    return rows.dtype == np.float32 or max(rows.max(), -rows.min()) <= LARGEST


def refuse_bad_rows(source: Source, part: int, rows: Matrix) -> None:
    """Raise an error about the first row with NaN, infinity or too large a number, if any."""
    for start in range(0, len(rows), 4096):
        few = rows[start : start + 4096]
        bad = ~(np.abs(few) <= LARGEST).all(axis=1)
        if bad.any():
            first = int(bad.argmax())
            row = few[first]
            what = "a number too large to square (beyond 1e154)"
            if not np.isfinite(row).all():
                what = "NaN" if np.isnan(row).any() else "infinity"
            raise InputError(
                f"{source.place(part, start + first)}: {what}; drop or repair that row"
            )

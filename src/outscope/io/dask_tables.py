"""Rows in Dask collections: each partition is one part, or several if it is large."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from outscope._types import Matrix
from outscope.errors import InputError, require
from outscope.io.parts import Block, Part, RowError, Source, hash_of, parts_of
from outscope.io.vectors import is_vector, matrix_of, width_of

# Some rows of what a partition holds, as a matrix.
Convert = Callable[[Any, slice], Matrix]
ALL = slice(None)


class DaskSource(Source):
    """Rows of partitions (Delayed objects) that are computed, by Dask, whenever they are read."""

    def __init__(
        self,
        partitions: Sequence[Any],
        convert: Convert,
        shape: tuple[Sequence[int], int] | None = None,
    ) -> None:
        self.given: Any = partitions  # what has been persisted lasts as long as who holds it
        self.convert, self._partitions = convert, _apart(partitions)
        if shape is not None:
            (sizes, self.width), told = shape, [str(one.key) for one in self._partitions]
        else:
            facts = _computed([_delayed(_facts)(one, convert) for one in self._partitions])
            sizes = [rows for rows, _, _ in facts]
            widths = {width for rows, width, _ in facts if rows}
            if len(widths) > 1:
                various = " and ".join(map(str, sorted(widths)))
                raise InputError(f"the Dask partitions have {various} columns; give rows alike")
            # The names of partitions may be drawn at random; their rows are not.
            self.width, told = next(iter(widths), 0), [few for _, _, few in facts]
        if not sum(sizes):
            raise InputError("the Dask collection has 0 rows; nothing to do")
        self.parts: list[Part] = []
        self._homes: list[int] = []  # the partition of each part
        for home, rows in enumerate(sizes):
            # Small ones do not share a part: what is computed at once is read at once.
            parts = parts_of(f"partition {home + 1:,}", rows)
            self.parts += parts
            self._homes += [home] * len(parts)
        self._hash = hash_of(str(self.width), str([*sizes]), *told)

    def partition(self, part: int) -> tuple[int, Any]:
        """The number of the partition that a part is in, and the partition."""
        home = self._homes[part]
        return home, self._partitions[home]

    def read(self, part: int) -> Matrix:
        """The rows of one part."""
        (held,) = _computed([self.partition(part)[1]])
        return block(part, self.parts[part], self.width, self.convert, held).read(0)

    def fingerprint(self) -> str:
        """What the partitions are made from, else their first rows."""
        return self._hash


def block(number: int, where: Part, width: int, convert: Convert, held: Any) -> Block:
    """One part, from what its partition holds."""
    rows = slice(where.start, where.start + where.rows)
    return Block(number, where, width, partial(convert, held, rows))


def of_collection(X: Any, column: str | None) -> DaskSource:
    """The rows of a Dask Array, DataFrame or Bag of blocks, or of Delayed blocks."""
    kind = type(X).__name__
    if kind == "Array":
        source = _of_array(X)
    elif kind == "DataFrame":
        source = _of_frame(X, column)
    elif kind == "Bag":
        source = DaskSource(X.to_delayed(), _of_blocks)
    elif isinstance(X, (list, tuple)):
        source = DaskSource(X, _of_block)
    elif kind.startswith("Delayed"):
        source = DaskSource([X], _of_block)
    else:
        raise InputError(
            f"a Dask {kind} is no table of rows; give an Array, a DataFrame, a Bag of blocks or a "
            "list of Delayed blocks"
        )
    source.given = X
    return source


def _of_array(X: Any) -> DaskSource:
    if X.ndim != 2 or not X.shape[1]:
        raise InputError(f"the Dask Array has shape {X.shape}; expected a matrix, one row each")
    if X.dtype.kind not in "fiub":
        raise InputError(f"the Dask Array holds {X.dtype}; expected numbers")
    known = not np.isnan(X.chunks[0]).any()
    if X.numblocks[1] > 1:
        if not known:
            raise InputError(
                "the columns of the Dask Array are in several chunks, and its number of rows is "
                "not known; call compute_chunk_sizes() on it first"
            )
        X = X.rechunk({1: -1})
    shape = ([int(rows) for rows in X.chunks[0]], int(X.shape[1])) if known else None
    return DaskSource(X.to_delayed().ravel().tolist(), _of_block, shape)


def _of_frame(X: Any, column: str | None) -> DaskSource:
    """All columns if all hold numbers, else the one that holds vectors."""
    kinds = dict(X.dtypes)
    if column is not None and column not in kinds:
        raise InputError(f"the Dask DataFrame has no column {column!r}; it has {', '.join(kinds)}")
    if column is None and all(getattr(kind, "kind", "O") in "fiub" for kind in kinds.values()):
        return DaskSource(X.to_delayed(), _numbers)
    some = [name for name, kind in kinds.items() if str(kind) == "object" or "list" in str(kind)]
    if column is None and len(some) != 1:
        raise InputError(
            f"the Dask DataFrame has {len(some) or 'no'} columns that may hold vectors, and not "
            "all others hold numbers; choose its columns, as in X[['vector']]"
        )
    return DaskSource(X[[column or some[0]]].to_delayed(), _vectors)


def _numbers(frame: Any, rows: slice) -> Matrix:
    some = frame.iloc[rows]
    if all(isinstance(kind, np.dtype) for kind in some.dtypes):
        return np.asarray(some.to_numpy())
    return np.asarray(some.to_numpy(dtype=np.float64, na_value=np.nan))


def _vectors(frame: Any, rows: slice) -> Matrix:
    column = require("pyarrow", extra="parquet").Array.from_pandas(frame.iloc[rows, 0])
    if not len(column):
        return np.empty((0, 0), np.float32)
    if not is_vector(column.type):
        name = frame.columns[0]
        raise InputError(f"column {name} holds {column.type}; expected lists of numbers")
    width = width_of(column)
    if width is None:
        raise RowError(0, "the vector is missing")
    return matrix_of(column, width)


def _of_block(held: Any, rows: slice) -> Matrix:
    matrix = np.asarray(held)
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiub":
        raise InputError(
            f"a block of shape {matrix.shape} holds {matrix.dtype}; expected a matrix of numbers"
        )
    return matrix[rows]


def _of_blocks(held: Any, rows: slice) -> Matrix:
    """Blocks, or single rows, of a partition of a Bag."""
    blocks = [_of_block(np.atleast_2d(one), ALL) for one in held]
    return np.concatenate(blocks)[rows] if blocks else np.empty((0, 0), np.float32)


def _facts(held: Any, convert: Convert) -> tuple[int, int, str]:
    """Rows, columns, and a hash of the first row."""
    try:
        rows = convert(held, ALL)
    except RowError as error:
        raise InputError(f"row {error.row + 1:,} of a Dask partition: {error.words}") from error
    return len(rows), int(rows.shape[1]), hash_of(np.array(rows[:1]))


def _apart(partitions: Sequence[Any]) -> list[Any]:
    """Each partition with no more of the graph than it depends on: it is sent alone."""
    cull = require("dask.optimization", extra="dask").cull
    delayed = require("dask.delayed", extra="dask").Delayed
    graphs: dict[int, tuple[Any, Any]] = {}  # shared ones are looked through only once
    apart = []
    for number, one in enumerate(partitions, 1):
        if not isinstance(one, delayed):
            raise InputError(f"block {number:,} is a {type(one).__name__}; give Delayed ones only")
        shared = one.dask
        if id(shared) not in graphs:
            graphs[id(shared)] = shared, dict(shared)
        graph = graphs[id(shared)][1]
        # Dask leaves out what has been persisted: the scheduler knows it by its key.
        apart.append(delayed(one.key, cull(graph, [one.key])[0] if one.key in graph else {}))
    return apart


def _delayed(function: Callable[..., Any]) -> Any:
    return require("dask.delayed", extra="dask").delayed(function)


def _computed(wanted: list[Any]) -> tuple[Any, ...]:
    found: tuple[Any, ...] = require("dask", extra="dask").compute(*wanted)
    return found

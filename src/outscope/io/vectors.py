"""Columns of vectors in Arrow tables, as matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from outscope._types import Matrix
from outscope.errors import InputError, require
from outscope.io.parts import RowError


def vector_column(schema: Any, name: str, column: str | None) -> str:
    """The column of vectors that is meant: the one named, else the only one."""
    plain = [field.name for field in schema if is_vector(field.type)]
    if column is not None and column not in schema.names:
        raise InputError(f"{name} has no column {column!r}; it has {', '.join(schema.names)}")
    if column is not None and column not in plain:
        kind = schema.field(column).type
        raise InputError(f"{name}: column {column} holds {kind}; expected lists of numbers")
    if column is None and len(plain) != 1:
        several = f"several columns of vectors: {', '.join(plain)}" if plain else None
        raise InputError(
            f"{name} has {several or 'no column of vectors (lists of numbers)'}"
            + (f"; name one, as in {name}:{plain[0]}" if plain else "")
        )
    return column or plain[0]


def is_vector(kind: Any) -> bool:
    """Whether an Arrow type is a list of numbers."""
    types = require("pyarrow.types", extra="parquet")
    kind = getattr(kind, "storage_type", kind)
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return False
    kind = kind.value_type
    return any((types.is_floating(kind), types.is_integer(kind), types.is_boolean(kind)))


def width_of(column: Any) -> int | None:
    """The length of the vectors of an Arrow column: by its type, else of the first one."""
    kind = getattr(column.type, "storage_type", column.type)
    if hasattr(kind, "list_size"):
        return int(kind.list_size)
    first = column[0].as_py() if len(column) else None
    return None if first is None else len(first)


def matrix_of(column: Any, width: int) -> Matrix:
    """A column of vectors as a matrix; a `RowError` says which row is not a whole vector."""
    pieces = [_matrix(piece, width) for piece in _with_offsets(column)]
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else np.empty((0, width), np.float32)


def _with_offsets(column: Any) -> list[tuple[Any, int]]:
    found, start = [], 0
    for piece in getattr(column, "chunks", [column]):
        found.append((getattr(piece, "storage", piece), start))
        start += len(piece)
    return found


def _matrix(piece_at: tuple[Any, int], width: int) -> Matrix:
    compute = require("pyarrow.compute", extra="parquet")
    piece, start = piece_at
    if piece.null_count:
        raise RowError(start + _first(compute.is_null(piece)), "the vector is missing")
    wrong = compute.not_equal(compute.list_value_length(piece), width)
    if compute.any(wrong).as_py():
        row = _first(wrong)
        raise RowError(start + row, f"a vector of {len(piece[row])} numbers; expected {width}")
    flat = piece.flatten()
    if flat.null_count:
        row = _first(compute.is_null(flat)) // width
        raise RowError(start + row, "a number of the vector is missing")
    return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(len(piece), width)


def _first(mask: Any) -> int:
    return int(np.argmax(mask.to_numpy(zero_copy_only=False)))

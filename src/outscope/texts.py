"""Texts, and labels beside them, from files and from standard input."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from outscope.errors import InputError, require

KINDS = ".txt (a text a line), .csv, .tsv, .jsonl or .parquet"
LINES, TABLES = (".txt",), (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
STDIN = "-"


class Texts(NamedTuple):
    """Texts and, where the file has them, labels."""

    texts: list[str]
    labels: list[str] | None


def holds_texts(source: str) -> bool:
    """Whether a source is one of texts (and not of embeddings), by its ending and columns."""
    path, column = _split(source)
    suffix = path.suffix.lower()
    if suffix != ".parquet" or not path.is_file():
        return source == STDIN or suffix in (*LINES, *TABLES)
    types = require("pyarrow.types", extra="parquet")
    fields = _parquet(path, "read_schema")
    looked_at = [field for field in fields if column in (None, field.name)]
    return any(
        types.is_string(field.type) or types.is_large_string(field.type) for field in looked_at
    ) and not any(types.is_list(f.type) or types.is_fixed_size_list(f.type) for f in looked_at)


def _split(source: str) -> tuple[Path, str | None]:
    path = Path(source)
    if not path.exists() and ":" in source:
        head, column = source.rsplit(":", 1)
        return Path(head), column
    return path, None


def has_lines_only(source: str) -> bool:
    """Whether a source has no columns."""
    return source == STDIN or _split(source)[0].suffix.lower() in LINES


def read_texts(
    source: str,
    text_column: str | None = None,
    label_column: str | None = None,
    *,
    labels: bool = True,
) -> Texts:
    """Texts of a file or, for "-", of standard input, a text a line.

    The text column is "text" unless named; labels, where they are wanted, are taken from the
    column named, or from one called "label".
    """
    if source == STDIN:
        if text_column or label_column:
            raise InputError("standard input has no columns, only lines; give a file with columns")
        found = [line for part in stream_texts(sys.stdin.buffer, 65536) for line in part]
        return _some(Texts(found, None), "standard input")
    path, column = _split(source)
    suffix = _checked_suffix(path)
    if suffix in LINES:
        if column or text_column or label_column:
            raise InputError(f"{path} has no columns, only lines; give a .csv, .tsv or .jsonl file")
        return _some(Texts(_lines(decode(path.read_bytes(), path)), None), str(path))
    rows = _rows(path, suffix)
    if not rows:
        raise InputError(f"{path} has 0 rows; nothing to do")
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = _column(path, names, column or text_column, "text", "--text-column")
    label = label_column
    if labels and label is None and "label" in names and text != "label":
        label = "label"
    texts = [_value(path, i, row.get(text), text) for i, row in enumerate(rows)]
    if label is None:
        return Texts(texts, None)
    label = _column(path, names, label, "label", "--label-column")
    return Texts(texts, [_label(path, i, row.get(label), label) for i, row in enumerate(rows)])


def _checked_suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if not path.exists():
        raise InputError(f"{path} does not exist; give a {KINDS} file")
    if path.is_dir():
        raise InputError(f"{path} is a folder; give a {KINDS} file")
    if suffix not in (*LINES, *TABLES):
        raise InputError(f"{path} is not a kind of file that holds texts; give {KINDS}")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty (0 bytes); was it written completely?")
    return suffix


def stream_texts(stream: Any, size: int) -> Iterator[list[str]]:
    """Lines of a stream as texts: whatever can be read now, at most `size` at a time."""
    rest, number = b"", 0
    while chunk := stream.read1(1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        for start in range(0, len(lines), size):
            yield from _decoded(lines[start : start + size], number)
            number += len(lines[start : start + size])
    if rest:
        yield from _decoded([rest], number)


def _decoded(lines: list[bytes], before: int) -> Iterator[list[str]]:
    """Lines as one list of texts; those before a damaged one are handed on first."""
    texts: list[str] = []
    for number, line in enumerate(lines, before + 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            if texts:
                yield texts
            raise InputError(
                f"line {number} of standard input is not UTF-8 (byte {error.start} of it is "
                f"0x{line[error.start]:02x}); convert it first, as with iconv -t UTF-8"
            ) from error
        texts.append(text.removesuffix("\r"))
    if texts:
        yield texts


def decode(content: bytes, path: Path) -> str:
    """UTF-8 with or without a byte-order mark, or an error that says where it stops being that."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path} is not UTF-8: line {line} has the byte 0x{content[error.start]:02x}; convert "
            f"it first, as with iconv -f LATIN1 -t UTF-8 {path.name}"
        ) from error


def _lines(text: str) -> list[str]:
    # Only line feeds end a text: other separators may stand inside one.
    found = text.removesuffix("\n").split("\n") if text else []
    return [line.removesuffix("\r") for line in found]


def _some(found: Texts, source: str) -> Texts:
    if not found.texts:
        raise InputError(f"{source} has 0 texts; nothing to do")
    return found


def _rows(path: Path, suffix: str) -> list[dict[str, Any]]:
    if suffix == ".parquet":
        rows: list[dict[str, Any]] = _parquet(path, "read_table").to_pylist()
        return rows
    text = decode(path.read_bytes(), path)
    if suffix in (".jsonl", ".ndjson"):
        return list(_json_rows(path, _lines(text)))
    return _csv_rows(path, text, "\t" if suffix == ".tsv" else ",")


def _csv_rows(path: Path, text: str, mark: str) -> list[dict[str, Any]]:
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark)
    rows: list[dict[str, Any]] = []
    try:
        names = next(reader, [])
        if len(set(names)) < len(names):
            raise InputError(f"{path} names a column twice: {', '.join(names)}")
        for values in reader:
            if len(values) > len(names):
                raise InputError(
                    f"{path}: line {reader.line_num} has {len(values)} fields for {len(names)} "
                    "columns; put texts that hold the separator in double quotes"
                )
            # An empty line is an empty text, so that results stay in step with lines.
            rows.append(dict(zip(names, values or [""] * len(names), strict=False)))
    except csv.Error as error:
        raise InputError(f"{path} cannot be read at line {reader.line_num}: {error}") from error
    while rows and not any(rows[-1].values()):
        rows.pop()
    return rows


def _parquet(path: Path, read: str) -> Any:
    parquet = require("pyarrow.parquet", extra="parquet")
    try:
        return getattr(parquet, read)(path)
    except Exception as error:  # pyarrow has many kinds
        raise InputError(f"{path} cannot be read as parquet: {error}") from error


def _json_rows(path: Path, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: line {number} is not JSON ({error})") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}: line {number} is no object; expected one with a text field")
        yield row


def _column(path: Path, names: list[str], name: str | None, usual: str, option: str) -> str:
    if name is None:
        if usual in names:
            return usual
        if len(names) == 1:
            return names[0]
        raise InputError(
            f"{path} has no column {usual!r} but {', '.join(names)}; choose by {option}"
        )
    if name not in names:
        raise InputError(f"{path} has no column {name!r}; it has {', '.join(names)}")
    return name


def _value(path: Path, i: int, value: Any, column: str) -> str:
    if not isinstance(value, str):
        kind = "missing" if value is None else f"a {type(value).__name__}"
        raise InputError(f"{path}: {column} of row {i + 1} is {kind}; expected a text")
    return value


def _label(path: Path, i: int, value: Any, column: str) -> str:
    if value is None or (isinstance(value, str) and not value.strip()):
        raise InputError(f"{path}: {column} of row {i + 1} is missing; name its class or drop it")
    return str(value)

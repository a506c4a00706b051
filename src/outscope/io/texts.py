"""Texts, with labels and other columns, from files and from standard input."""

from __future__ import annotations

import csv
import io
import json
import logging
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from outscope.errors import InputError, require
from outscope.io.listing import files_of, is_several, split

logger = logging.getLogger("outscope")

KINDS = ".txt (one text per line), .csv, .tsv, .jsonl or .parquet"
LINES, TABLES = (".txt",), (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
ARRAYS, PACKED = (".npy", ".npz"), (".gz", ".bz2", ".xz", ".zst", ".zip")
TEXTS, STDIN = (*LINES, *TABLES), "-"
MARKS, SAMPLED_ROWS, SAMPLED = ",;\t|", 50, 1 << 20


class Texts(NamedTuple):
    """Texts and, if the file has them, labels and all other columns."""

    texts: list[str]
    labels: list[str] | None = None
    columns: dict[str, list[Any]] = {}
    lines: Sequence[int | str] = ()  # where each text starts in its file; none for parquet
    named: str | None = None  # the column of texts


def place(lines: Sequence[int | str], i: int) -> str:
    """Where the i-th text is, as seen by someone who opens the file."""
    if not lines:
        return f"row {i + 1}"
    found = lines[i]
    return found if isinstance(found, str) else f"line {found}"


def holds_texts(source: str) -> bool:
    """Whether a source holds texts (not embeddings), by its extension and columns."""
    files, column = _files(source, (*TEXTS, *ARRAYS))
    path, kinds = files[0], {file.suffix.lower() for file in files}
    if kinds & {*ARRAYS} and kinds - {*ARRAYS}:
        told = " and ".join(sorted(kinds))
        raise InputError(f"{source} holds {told} files; give a pattern for one kind")
    suffix = path.suffix.lower()
    if suffix != ".parquet" or not path.is_file():
        return suffix not in (*ARRAYS, ".parquet")
    types = require("pyarrow.types", extra="parquet")
    fields = _parquet(path, "read_schema")
    looked_at = [field for field in fields if column in (None, field.name)]
    return any(
        types.is_string(field.type) or types.is_large_string(field.type) for field in looked_at
    ) and not any(types.is_list(f.type) or types.is_fixed_size_list(f.type) for f in looked_at)


def _files(source: str, kinds: Sequence[str]) -> tuple[list[Path], str | None]:
    place, column = split(source)
    return files_of(place, kinds) if is_several(source) else [Path(place)], column


def has_columns(source: str) -> bool:
    """Whether a source is a table, or several."""
    return source != STDIN and _files(source, (*TEXTS, *ARRAYS))[0][0].suffix.lower() in TABLES


def read_texts(
    source: str,
    text_column: str | None = None,
    label_column: str | None = None,
    *,
    labels: bool = True,
) -> Texts:
    """Texts of a file or, for "-", of standard input, one text per line.

    Those of the files of a folder, or of files that a pattern finds, are joined in order of name.
    The text column is "text" unless named; labels, if wanted, come from the named column or from
    one called "label".
    """
    if source == STDIN:
        if text_column or label_column:
            raise InputError("standard input has no columns, only lines; give a file with columns")
        return _of_stdin()
    files, column = _files(source, TEXTS)
    found = [_of_file(file, column or text_column, label_column, labels) for file in files]
    return _joined(files, found) if is_several(source) else found[0]


def _joined(files: list[Path], found: list[Texts]) -> Texts:
    """The texts of several files with the same columns as those of one."""
    first = found[0]
    for file, other in zip(files, found, strict=True):
        if (other.named, {*other.columns}) != (first.named, {*first.columns}):
            has, had = (", ".join(filter(None, (t.named, *t.columns))) for t in (other, first))
            raise InputError(
                f"{file} has {has or 'lines without columns'}, but {files[0]} has "
                f"{had or 'lines without columns'}; give files with the same columns"
            )
    return Texts(
        [text for one in found for text in one.texts],
        None if first.labels is None else [y for one in found for y in one.labels or ()],
        {name: [v for one in found for v in one.columns[name]] for name in first.columns},
        _Places(files, found),
        first.named,
    )


class _Places(Sequence[int | str]):
    """Where each of the texts of several files is."""

    def __init__(self, files: list[Path], found: list[Texts]) -> None:
        self._files, self._lines = files, [one.lines for one in found]
        self._ends = list(accumulate(len(one.texts) for one in found))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, i: Any) -> Any:
        file = bisect_right(self._ends, i)
        within = i - (self._ends[file - 1] if file else 0)
        return f"{self._files[file]}, {place(self._lines[file], within)}"


def _of_file(path: Path, column: str | None, label: str | None, labels: bool) -> Texts:
    suffix = _checked_suffix(path)
    if suffix in TABLES:
        return _of_table(path, suffix, column, label, labels)
    if column or label:
        raise InputError(f"{path} has no columns, only lines; give a .csv, .tsv or .jsonl file")
    if suffix not in LINES:
        logger.warning("%s is read as one text per line; name it .csv or .jsonl if it is", path)
    return _of_lines(_lines(decode(path.read_bytes(), path)), str(path))


def _of_stdin() -> Texts:
    found: list[str] = []
    for line in chain.from_iterable(stream_texts(standard_input(), 65536)):
        if isinstance(line, InputError):
            raise line
        found.append(line)
    return _of_lines(found, "standard input")


def _of_table(path: Path, suffix: str, text: str | None, label: str | None, labels: bool) -> Texts:
    columns, lines = _table(path, suffix)
    if not columns or not next(iter(columns.values())):
        raise InputError(f"{path} has 0 rows; nothing to do")
    text = _column(path, list(columns), text, "text", "--text-column")
    texts = _checked(path, text, columns[text], lines)
    if labels and label is None and "label" in columns and text != "label":
        label = "label"
    given = None
    if label is not None:
        label = _column(path, list(columns), label, "label", "--label-column")
        given = _checked(path, label, columns[label], lines, label=True)
    others = {n: v for n, v in columns.items() if n != text}
    return Texts(texts, given, others, lines, text)


def _of_lines(found: list[str], source: str) -> Texts:
    if not found:
        raise InputError(f"{source} has 0 texts; nothing to do")
    return Texts(found, lines=range(1, len(found) + 1))


def _checked_suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if not path.exists():
        raise InputError(
            f"{path} does not exist; give texts, as {KINDS}, or embeddings, as .npy, .npz or "
            ".parquet"
        )
    if suffix in PACKED:
        raise InputError(
            f"{path} is compressed; unpack it first (as with gunzip), or unpack it into a pipe and "
            "give - for the file"
        )
    if suffix in ARRAYS:
        raise InputError(f"{path} is not a kind of file that holds texts; give {KINDS}")
    if path.is_file() and path.stat().st_size == 0:
        raise InputError(f"{path} is empty (0 bytes); was it written completely?")
    if path.is_file() and suffix not in (*LINES, *TABLES):
        with path.open("rb") as file:
            if b"\0" in file.read(1 << 20):
                raise InputError(f"{path} is not a kind of file that holds texts; give {KINDS}")
    return suffix


def standard_input() -> Any:
    """The bytes of standard input."""
    if sys.stdin is None:
        raise InputError("standard input is closed; give the name of a file")
    return sys.stdin.buffer


def stream_texts(stream: Any, size: int) -> Iterator[list[str | InputError]]:
    """Lines of a stream as texts: whatever is available now, at most `size` at a time.

    A line that is not UTF-8 is replaced by an error that says so.
    """
    pieces, number = [], 0
    while chunk := stream.read1(1 << 16):
        pieces.append(chunk)
        if b"\n" not in chunk:
            continue
        *lines, rest = b"".join(pieces).split(b"\n")
        pieces = [rest]
        for start in range(0, len(lines), size):
            part = lines[start : start + size]
            yield [_decoded(line, number + i) for i, line in enumerate(part, 1)]
            number += len(part)
    if rest := b"".join(pieces):
        yield [_decoded(rest, number + 1)]


def _decoded(line: bytes, number: int) -> str | InputError:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\r")
    except UnicodeDecodeError as error:
        return InputError(
            f"line {number} of standard input is not UTF-8 (byte {error.start} of it is "
            f"0x{line[error.start]:02x}); convert it first, as with iconv -t UTF-8"
        )


def decode(content: bytes, path: Path) -> str:
    """Decode UTF-8, with or without a byte-order mark; an error says where that fails."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        likely = "UTF-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "LATIN1"
        raise InputError(
            f"{path} is not UTF-8: line {line} has the byte 0x{content[error.start]:02x}; convert "
            f"it first, as with iconv -f {likely} -t UTF-8 {path.name}"
        ) from error


def _lines(text: str) -> list[str]:
    # Only line feeds end a text: it may contain other separators.
    found = text.removesuffix("\n").split("\n") if text else []
    return [line.removesuffix("\r") for line in found]


def _table(path: Path, suffix: str) -> tuple[dict[str, list[Any]], Sequence[int]]:
    """The columns of a file and, if it has lines, the line of each row."""
    if suffix == ".parquet":
        _refuse_twice(path, _parquet(path, "read_schema").names)
        table = _parquet(path, "read_table")
        return {n: table[n].to_pylist() for n in table.column_names}, ()
    text = decode(path.read_bytes(), path)
    if suffix in (".jsonl", ".ndjson"):
        return _json_table(path, text)
    return _csv_table(path, text, "\t" if suffix == ".tsv" else _mark(path, text))


def _refuse_twice(path: Path, names: list[str]) -> None:
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise InputError(f"{path} names a column twice: {', '.join(twice)}; rename one of them")


def _mark(path: Path, text: str) -> str:
    """The column separator: one that splits the header and occurs in the rows too."""
    csv.field_size_limit(2**31 - 1)
    likely, sure = [], []
    for mark in MARKS:
        rows = csv.reader(io.StringIO(text[:SAMPLED], newline=""), delimiter=mark)
        try:
            names = next(rows, [])
            counts = [len(row) for row, _ in zip(rows, range(SAMPLED_ROWS), strict=False) if row]
        except csv.Error:
            continue
        if len(text) > SAMPLED:
            counts = counts[:-1]  # its last row may have been cut off
        # A quote left in a name was split from its counterpart.
        if len(names) > 1 and '"' not in "".join(names) and max(counts, default=2) > 1:
            likely.append(mark)
            if all(count == len(names) for count in counts):
                sure.append(mark)
    found = sure or likely or [","]
    if len(found) > 1:
        raise InputError(
            f"{path} may be separated by {' or by '.join(map(repr, found))}; put names and texts "
            "that contain one of these in double quotes, or give a .tsv or .jsonl file"
        )
    return found[0]


def _csv_table(path: Path, text: str, mark: str) -> tuple[dict[str, list[Any]], list[int]]:
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark)
    rows: list[list[Any]] = []
    lines: list[int] = []
    try:
        names = [name.strip() or f"column {i}" for i, name in enumerate(next(reader, []), 1)]
        _refuse_twice(path, names)
        before = reader.line_num
        for values in reader:
            if len(values) > len(names):
                raise InputError(
                    f"{path}: line {before + 1} has {len(values)} fields for {len(names)} "
                    "columns; put texts that contain the separator in double quotes"
                )
            # An empty line is an empty text, so that results stay aligned with lines.
            missing = None if values else ""
            rows.append([*values, *[missing] * (len(names) - len(values))])
            lines.append(before + 1)
            before = reader.line_num
    except csv.Error as error:
        raise InputError(f"{path} cannot be read at line {reader.line_num}: {error}") from error
    _refuse_open_quote(path, text, mark, lines)
    while rows and not any(rows[-1]):
        rows.pop()
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    return columns, lines[: len(rows)]


def _refuse_open_quote(path: Path, text: str, mark: str, lines: list[int]) -> None:
    """Refuse a quote that is never closed, which would swallow all that follows."""
    last = islice(io.StringIO(text, newline=""), lines[-1] - 1 if lines else 0, None)
    try:
        for _ in csv.reader(last, delimiter=mark, strict=True):
            pass
    except csv.Error as error:
        if "end of data" in str(error):
            raise InputError(
                f"{path}: a double quote opens in line {lines[-1] if lines else 1} and is never "
                "closed; close it, or double it inside quotes"
            ) from error


def _parquet(path: Path, read: str) -> Any:
    parquet = require("pyarrow.parquet", extra="parquet")
    try:
        return getattr(parquet, read)(path)
    except Exception as error:  # pyarrow raises many kinds
        raise InputError(f"{path} cannot be read as parquet: {error}") from error


def _json_table(path: Path, text: str) -> tuple[dict[str, list[Any]], list[int]]:
    rows, lines = [], []
    for number, line in enumerate(_lines(text), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: line {number} is not JSON ({error})") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}: line {number} is no object; expected one with a text field")
        rows.append(row)
        lines.append(number)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}, lines


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


def _checked(
    path: Path, column: str, values: list[Any], lines: Sequence[int], *, label: bool = False
) -> list[str]:
    """The values of a column as texts, or as labels, which may have any type but not be missing."""
    for i, value in enumerate(values):
        where = f"{path}: {column} in {place(lines, i)}"
        if value is None or (label and not str(value).strip()):
            raise InputError(f"{where} is missing; {'name its class or ' * label}drop it")
        if not label and not isinstance(value, str):
            raise InputError(f"{where} is {value!r:.60}; expected a text")
        try:
            str(value).encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"{where} holds half of a surrogate pair, which is not a character; write it again"
            ) from error
    return [str(value) for value in values]

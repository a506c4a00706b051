"""Texts from files and streams: every kind is read, every damage is named."""

from __future__ import annotations

import csv
import io
import json
import os
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outscope import InputError
from outscope.io.texts import holds_texts, read_texts, stream_texts

TEXTS = ["hello there", "¿qué tal? 🚲", "日本語のテキスト", 'with "quotes", commas']
LABELS = ["a", "b", "a", "c"]


def written(folder, kind):
    path = folder / f"data{kind}"
    if kind == ".txt":
        path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    elif kind == ".jsonl":
        rows = [{"text": t, "label": y} for t, y in zip(TEXTS, LABELS, strict=True)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == ".parquet":
        pq.write_table(pa.table({"text": TEXTS, "label": LABELS}), path)
    else:
        mark = "\t" if kind == ".tsv" else ","
        quoted = ['"' + t.replace('"', '""') + '"' for t in TEXTS]
        lines = [f"text{mark}label"] + [mark.join(row) for row in zip(quoted, LABELS, strict=True)]
        path.write_text("\ufeff" + "\r\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", [".txt", ".csv", ".tsv", ".jsonl", ".parquet"])
def test_every_kind_is_read(tmp_path, kind):
    path = written(tmp_path, kind)
    assert holds_texts(str(path))
    found = read_texts(str(path))
    assert found.texts == TEXTS
    assert found.labels == (None if kind == ".txt" else LABELS)


def test_columns_are_chosen_by_name(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("utterance,intent\nhi,greet\n")
    assert read_texts(str(path), "utterance", "intent")[:2] == (["hi"], ["greet"])
    assert read_texts(f"{path}:utterance").texts == ["hi"]
    with pytest.raises(
        InputError, match=r"no column 'text' but utterance, intent; .*--text-column"
    ):
        read_texts(str(path))
    with pytest.raises(InputError, match="no column 'x'; it has utterance, intent"):
        read_texts(str(path), "x")
    with pytest.raises(InputError, match="no column 'y'"):
        read_texts(str(path), "utterance", "y")


def test_only_line_feeds_end_a_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("one\u2028still one\r\n\ntwo\x85\n".encode())
    assert read_texts(str(path)).texts == ["one\u2028still one", "", "two\x85"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"", "empty"),
        ("a.csv", b"text,label\n", "0 rows"),
        ("a.txt", b"fine\nbad \xff here\n", "not UTF-8: line 2 has the byte 0xff"),
        ("a.csv", b"text\ncaf\xe9\n", "not UTF-8: line 2"),
        ("a.jsonl", b'{"text": "a"}\n{oops\n', "line 2 is not JSON"),
        ("a.jsonl", b'["a"]\n', "line 1 is no object"),
        ("a.jsonl", b'{"text": 5}\n', "text in line 1 is 5; expected a text"),
        ("a.jsonl", b'{"text": "a"}\n{"label": "b"}\n', "text in line 2 is missing"),
        ("a.csv", b"text,label\nhi,\n", "label in line 2 is missing"),
        ("a.csv", b"text,label\nhello, how are you,pay\n", "line 2 has 3 fields for 2 columns"),
        ("a.csv", b"text,text\na,b\n", "names a column twice"),
        ("a.parquet", b"PAR1", "cannot be read as parquet"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "line 1 holds half of a surrogate pair"),
        ("a.jsonl", b"[" * 100_000, "line 1 is not JSON"),
        ("a.csv", b'text,label\n"two\nlines",a\nhi,\n', "label in line 4 is missing"),
        ("a.csv", "text\nhi\n".encode("utf-16"), "iconv -f UTF-16 -t UTF-8 a.csv"),
        ("a.csv", b"a;b,c\n1;2,3\n4;5,6\n", "may be separated by ',' or by ';'"),
        ("a.csv", b'text,label\nhi,a\n"ho,b\nhe,c\n', "opens in line 3 and is never closed"),
        ("a.txt.gz", b"\x1f\x8b", "is compressed; unpack it first"),
        ("a.npy", b"x", "not a kind of file that holds texts"),
        ("a.docx", b"PK\0", "not a kind of file that holds texts"),
    ],
)
def test_damage_is_named(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_texts(str(tmp_path / name))


def test_missing_files_folders_and_columns_of_lines(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_texts(str(tmp_path / "no.txt"))
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(InputError, match=r"holds no \.txt"):
        read_texts(str(tmp_path / "d.csv"))
    with pytest.raises(InputError, match="no columns, only lines"):
        read_texts(str(written(tmp_path, ".txt")), "text")


def test_a_stream_is_read_in_parts_and_its_damage_has_a_line():
    parts = list(stream_texts(io.BytesIO(b"\xef\xbb\xbfa\nb\r\nd\nc"), 2))
    assert parts == [["a", "b"], ["d"], ["c"]]
    assert list(stream_texts(io.BytesIO(b""), 2)) == []
    damaged = stream_texts(io.BytesIO(b"a\nb\n\xfe\nc\n"), 9)
    *fine, bad, after = next(damaged)
    assert (fine, after) == (["a", "b"], "c")
    assert re.match("line 3 of standard input is not UTF-8", str(bad))


def test_a_stream_is_answered_as_it_comes():
    """A line that is there is handed on, though more may follow."""
    read, write = os.pipe()
    with os.fdopen(read, "rb") as stream, os.fdopen(write, "wb", buffering=0) as source:
        parts = stream_texts(stream, 1000)
        source.write(b"first\nhalf of")
        assert next(parts) == ["first"]
        source.write(b" the second\n")
        assert next(parts) == ["half of the second"]


def test_empty_lines_keep_their_place_and_unused_labels_may_be_missing(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\npay,a\n\nsend,\n\n")
    assert read_texts(str(tmp_path / "a.csv"), labels=False)[:2] == (["pay", "", "send"], None)
    with pytest.raises(InputError, match="label in line 3 is missing"):
        read_texts(str(tmp_path / "a.csv"))


def test_embeddings_are_not_taken_for_texts(tmp_path):
    pq.write_table(pa.table({"v": [[1.0, 2.0]], "name": ["x"]}), tmp_path / "v.parquet")
    assert not holds_texts(str(tmp_path / "v.parquet"))
    assert not holds_texts(f"{tmp_path / 'v.parquet'}:v")
    assert holds_texts(f"{tmp_path / 'v.parquet'}:name")
    assert not holds_texts("rows.npy")


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_the_separator_of_a_csv_is_found(tmp_path, mark):
    rows = [["text", "label"], ['a "b", c; d|e\tf', "x"], ["zwei\nZeilen", "y, z"]]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file, delimiter=mark).writerows(rows)
    found = read_texts(str(tmp_path / "a.csv"))
    assert found.texts == [row[0] for row in rows[1:]]
    assert found.labels == ["x", "y, z"]
    assert list(found.lines) == [2, 3]


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ("text\nhi; there; you\nho; ho\n", ["hi; there; you", "ho; ho"]),
        ("text\nhi | there\n", ["hi | there"]),
        ('text\n"one, two"\nthree\n', ["one, two", "three"]),
        ("words;here\nhi\nho\n", ["hi", "ho"]),
        ("text,label\nhi; you,a\nho; no,b\n", ["hi; you", "ho; no"]),
        ("text;label\nhi, you;a\nho, no;b\n", ["hi, you", "ho, no"]),
        ("text ; label\nhi;a\n", ["hi"]),
        ("text,label,,\nhi,a,,\n", ["hi"]),
        ('text;"note, in words"\nhi, you;a\nho;"b, c"\n', ["hi, you", "ho"]),
    ],
)
def test_what_only_looks_like_a_separator_stays_in_its_text(tmp_path, content, texts):
    (tmp_path / "a.csv").write_text(content)
    assert read_texts(str(tmp_path / "a.csv"), labels=False).texts == texts


def test_a_semicolon_too_many_is_told_and_nothing_is_swallowed(tmp_path):
    (tmp_path / "a.csv").write_text("text;label\nhi; you;a\n")
    with pytest.raises(InputError, match="line 2 has 3 fields for 2 columns"):
        read_texts(str(tmp_path / "a.csv"))


def test_a_long_file_is_judged_by_its_head(tmp_path):
    (tmp_path / "a.csv").write_text("text;label\n" + f"{'x, ' * 200_000};a\n" * 4)
    assert read_texts(str(tmp_path / "a.csv")).labels == ["a"] * 4


@pytest.mark.parametrize("name", ["a.log", "a", "a.md"])
def test_other_endings_are_lines_and_a_word_says_so(tmp_path, name, caplog):
    (tmp_path / name).write_text("one\ntwo\n")
    assert holds_texts(str(tmp_path / name))
    assert read_texts(str(tmp_path / name)).texts == ["one", "two"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"{name} is read as one text per line" in caplog.text


def test_other_columns_and_lines_are_kept(tmp_path):
    (tmp_path / "a.csv").write_text('id,text,label\n7,"a\nb",x\n\n8,c\n')
    found = read_texts(str(tmp_path / "a.csv"), labels=False)
    assert found.columns == {"id": ["7", "", "8"], "label": ["x", "", None]}
    assert found.lines == [2, 4, 5]
    (tmp_path / "a.jsonl").write_text('\n{"text": "a", "n": 1}\n\n{"text": "b"}\n')
    found = read_texts(str(tmp_path / "a.jsonl"))
    assert (found.columns, found.lines) == ({"n": [1, None]}, [2, 4])
    pq.write_table(pa.table({"text": ["a", None], "n": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="text in row 2 is missing"):
        read_texts(str(tmp_path / "a.parquet"))
    twice = pa.table([["a"], ["b"]], names=["text", "text"])
    pq.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(InputError, match="names a column twice: text"):
        read_texts(str(tmp_path / "a.parquet"))

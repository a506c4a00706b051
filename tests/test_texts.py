"""Texts from files and streams: every kind is read, every damage is named."""

from __future__ import annotations

import io
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outscope import InputError
from outscope.texts import holds_texts, read_texts, stream_texts

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
    assert read_texts(str(path), "utterance", "intent") == (["hi"], ["greet"])
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
        ("a.jsonl", b'{"text": 5}\n', "row 1 is a int"),
        ("a.jsonl", b'{"text": "a"}\n{"label": "b"}\n', "text of row 2 is missing"),
        ("a.csv", b"text,label\nhi,\n", "label of row 1 is missing"),
        ("a.csv", b"text,label\nhello, how are you,pay\n", "line 2 has 3 fields for 2 columns"),
        ("a.csv", b"text,text\na,b\n", "names a column twice"),
        ("a.parquet", b"PAR1", "cannot be read as parquet"),
        ("a.docx", b"x", "not a kind of file that holds texts"),
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
    with pytest.raises(InputError, match="is a folder"):
        read_texts(str(tmp_path / "d.csv"))
    with pytest.raises(InputError, match="no columns, only lines"):
        read_texts(str(written(tmp_path, ".txt")), "text")


def test_a_stream_is_read_in_parts_and_its_damage_has_a_line():
    parts = list(stream_texts(io.BytesIO(b"\xef\xbb\xbfa\nb\r\nd\nc"), 2))
    assert parts == [["a", "b"], ["d"], ["c"]]
    assert list(stream_texts(io.BytesIO(b""), 2)) == []
    damaged = stream_texts(io.BytesIO(b"a\nb\n\xfe\n"), 9)
    assert next(damaged) == ["a", "b"]
    with pytest.raises(InputError, match="line 3 of standard input is not UTF-8"):
        next(damaged)


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
    assert read_texts(str(tmp_path / "a.csv"), labels=False) == (["pay", "", "send"], None)
    with pytest.raises(InputError, match="label of row 2 is missing"):
        read_texts(str(tmp_path / "a.csv"))


def test_embeddings_are_not_taken_for_texts(tmp_path):
    pq.write_table(pa.table({"v": [[1.0, 2.0]], "name": ["x"]}), tmp_path / "v.parquet")
    assert not holds_texts(str(tmp_path / "v.parquet"))
    assert not holds_texts(f"{tmp_path / 'v.parquet'}:v")
    assert holds_texts(f"{tmp_path / 'v.parquet'}:name")
    assert not holds_texts("rows.npy")

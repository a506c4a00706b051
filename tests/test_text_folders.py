"""Folders of texts are read as one; what was embedded before a kill is not embedded again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from tiny import tiny_encoder

from outscope import InputError
from outscope.cli import main
from outscope.io.texts import holds_texts, place, read_texts

ENV = {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def run(*arguments):
    return main([str(argument) for argument in arguments])


def failed(capsys, words, *arguments):
    capsys.readouterr()
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert re.search(words, err), err


def texts_folder(folder, files):
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)
    return folder


TABLES = {
    "b.csv": "text,label\nthree,y\nfour,x\n",
    "a.jsonl": '{"text": "one", "label": "x"}\n\n{"text": "two", "label": "y"}\n',
    "_SUCCESS": "",
    ".hidden.csv": "other\n1\n",
}


def test_texts_of_a_folder_are_joined_in_order_of_name(tmp_path):
    folder = texts_folder(tmp_path / "t", TABLES)
    pq.write_table(pq.read_table(as_parquet(tmp_path)), folder / "c.parquet")
    for source in (str(folder), f"{folder}/*.*", f"{folder}/", f"{folder}:text"):
        assert holds_texts(source)
        found = read_texts(source)
        assert found.texts == ["one", "two", "three", "four", "five"]
        assert found.labels == ["x", "y", "y", "x", "x"]
        assert found.columns == {"label": found.labels}
    told = [place(found.lines, i).removeprefix(f"{folder}/") for i in range(5)]
    assert told == [
        "a.jsonl, line 1",
        "a.jsonl, line 3",
        "b.csv, line 2",
        "b.csv, line 3",
        "c.parquet, row 1",
    ]
    assert read_texts(f"{folder}/b*").texts == ["three", "four"]


def as_parquet(folder):
    import pyarrow as pa

    pq.write_table(pa.table({"label": ["x"], "text": ["five"]}), folder / "c.parquet")
    return folder / "c.parquet"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            {"a.csv": "text,n\nx,1\n", "b.csv": "text\ny\n"},
            r"b.csv has text, but .*a.csv has text, n",
        ),
        (
            {"a.csv": "p\nx\n", "b.csv": "q\ny\n"},
            r"b.csv has q, but .*a.csv has p; give files with",
        ),
        ({"a.csv": "text\nx\n", "b.txt": "y\n"}, r"b.txt has lines without columns, but .*a.csv"),
        ({"a.txt": "x\n", "b.txt": ""}, r"b.txt is empty \(0 bytes\)"),
        ({"a.jsonl": '{"text": "x"}\n', "b.jsonl": "no\n"}, r"b.jsonl: line 1 is not JSON"),
        ({"a.md": "x\n"}, r"holds no .txt, .csv, .*file$"),
        ({}, "holds no .txt"),
    ],
)
def test_a_file_that_does_not_fit_is_named(files, words, tmp_path):
    with pytest.raises(InputError, match=words):
        read_texts(str(texts_folder(tmp_path / "t", files)))


def test_embeddings_beside_texts_are_refused(tmp_path):
    folder = texts_folder(tmp_path / "t", TABLES)
    np.save(folder / "a.npy", np.eye(3))
    with pytest.raises(InputError, match=r"holds .*\.npy.* files; give a pattern for one kind"):
        holds_texts(str(folder))
    assert not holds_texts(f"{folder}/*.npy")
    assert holds_texts(f"{folder}/*.csv")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return tiny_encoder(tmp_path_factory.mktemp("encoder") / "tiny")


def test_fit_and_score_on_folders_of_texts(encoder, tmp_path, capsys):
    lines = [f"pay my bill {word} {i}" for word in ("now", "please") for i in range(20)]
    folder = texts_folder(
        tmp_path / "t",
        {f"{i}.txt": "\n".join(lines[i * 10 : i * 10 + 10]) + "\n" for i in range(4)},
    )
    assert run("fit", folder, "--encoder", encoder, "--out", tmp_path / "m") == 0
    assert run("score", tmp_path / "m", folder, "--out", tmp_path / "s.jsonl") == 0
    found = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert [record["text"] for record in found] == lines
    (folder / "2.txt").write_text("pay\n\nbill\n")
    words = r"2.txt, line 2 is empty; drop it"
    failed(capsys, words, "fit", folder, "--encoder", encoder, "--out", tmp_path / "n")


EMBEDDED = """
import sys, time
from outscope.cli import main
from outscope.text import cache, encoders
encoders.Encoder.at_a_time = 50
put = cache.VectorCache.put
def told(self, space, texts, vectors):
    put(self, space, texts, vectors)
    print(len(texts), flush=True)
    time.sleep(float(sys.argv[1]))
cache.VectorCache.put = told
sys.exit(main(sys.argv[2:]))
"""


def test_a_killed_embedding_goes_on_from_the_cache(encoder, tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"pay my bill {i}\n" for i in range(300)))
    arguments = ["embed", "a.txt", "--encoder", str(encoder), "--out", "v.npy"]
    how = {"env": {**ENV, "OUTSCOPE_CACHE": str(tmp_path / "cache")}, "cwd": tmp_path}

    def start(pause):
        return subprocess.Popen(
            [sys.executable, "-c", EMBEDDED, pause, *arguments], stdout=subprocess.PIPE, **how
        )

    child = start("5")
    assert child.stdout.readline() == b"50\n"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    child = start("0")
    out, _ = child.communicate()
    assert child.returncode == 0
    assert out.split() == [b"50"] * 5  # those of the first block are not computed again
    assert np.load(tmp_path / "v.npy").shape == (300, 32)

"""score and fit on what does not fit in memory: whole files, resumed folders, folders of texts."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import ROOT

from outscope import InputError, load
from outscope.cli import main, show
from outscope.io.partitions import MANIFEST, Partitions

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


@pytest.fixture(scope="module")
def big(blobs, tmp_path_factory):
    """A folder of rows, a calibrated model of such rows, and their scores."""
    folder = tmp_path_factory.mktemp("big")
    (folder / "rows").mkdir()
    rows = np.concatenate([blobs[2], blobs[3]])
    for i, start in enumerate(range(0, 100, 15)):
        np.save(folder / "rows" / f"{i}.npy", rows[start : start + 15])
    np.save(folder / "train.npy", blobs[0])
    assert run("fit", folder / "train.npy", "--out", folder / "model") == 0
    return folder, rows


def check(big, columns):
    folder, rows = big
    model = load(folder / "model")
    scores = model.ood_score(rows)
    decision = model.decide(scores)
    assert [*columns] == ["row", "ood_score", "is_ood", "p_value"]
    assert np.array_equal(columns["row"], np.arange(1, 101))
    assert np.array_equal(columns["ood_score"], scores)
    assert np.array_equal(columns["is_ood"], decision.is_ood)
    assert np.array_equal(columns["p_value"], decision.p_value)


def columns_of(path):
    table = pq.read_table(path)
    return {name: table[name].to_numpy() for name in table.column_names}


@pytest.mark.parametrize("source", ["rows", "rows/", "rows/*.npy"])
def test_a_folder_of_rows_becomes_one_parquet_file(source, big, tmp_path, capsys):
    folder, _ = big
    out = tmp_path / "scores.parquet"
    assert run("score", folder / "model", f"{folder}/{source}", "--out", out) == 0
    check(big, columns_of(out))
    assert pq.ParquetFile(out).num_row_groups == 7
    strange = int(columns_of(out)["is_ood"].sum())
    assert f"{strange} of 100 rows are out of scope" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["scores.parquet"]


def test_the_other_endings_hold_the_same(big, tmp_path, capsys):
    folder, rows = big
    score = ("score", folder / "model", folder / "rows")
    for suffix in (".jsonl", ".csv", ".npy"):
        assert run(*score, "--out", tmp_path / f"a{suffix}") == 0
    scores = load(folder / "model").ood_score(rows)
    assert np.array_equal(np.load(tmp_path / "a.npy"), scores)
    capsys.readouterr()
    assert run(*score) == 0
    printed = capsys.readouterr().out
    assert printed == (tmp_path / "a.jsonl").read_text()
    lines = [json.loads(line) for line in printed.splitlines()]
    check(big, {name: np.array([line[name] for line in lines]) for name in lines[0]})
    header, *rest = (tmp_path / "a.csv").read_text().splitlines()
    assert header == "row,ood_score,is_ood,p_value"
    assert [float(line.split(",")[1]) for line in rest] == scores.tolist()


def test_results_in_a_folder_are_one_file_for_each_part(big, tmp_path, capsys):
    folder, _ = big
    score = ("score", folder / "model", folder / "rows", "--out")
    assert run(*score, tmp_path / "scores") == 0
    files = sorted(path.name for path in (tmp_path / "scores").iterdir())
    assert files == [MANIFEST, *(f"part-0000{i}.parquet" for i in range(1, 8))]
    whole = pq.read_table(tmp_path / "scores")  # others read the folder as one table
    check(big, {name: whole[name].to_numpy() for name in whole.column_names})
    first = capsys.readouterr().err.splitlines()[-1]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "scores").iterdir()}
    (tmp_path / "scores/part-00003.parquet").unlink()
    (tmp_path / "scores/part-00005.parquet").write_bytes(b"PAR1 cut off")
    assert run(*score, f"{tmp_path}/scores/") == 0
    err = capsys.readouterr().err
    assert "5 of 7 parts were already there" in err
    assert err.splitlines()[-1] == first
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "scores").iterdir()}
    assert sum(before[path] != after[path] for path in before) == 2
    check(big, columns_of(tmp_path / "scores"))
    one = folder / "rows" / "0.npy"
    assert run("score", folder / "model", one, "--out", tmp_path / "one") == 0
    assert len(columns_of(tmp_path / "one")["row"]) == 15


def test_results_of_something_else_are_refused(big, tmp_path, capsys):
    folder, _ = big
    out = tmp_path / "scores"
    model, rows = folder / "model", folder / "rows"
    assert run("score", model, rows, "--out", out) == 0
    way = "give a new folder, or delete this one"
    failed(
        capsys, f"results of another source; {way}", "score", model, rows / "0.npy", "--out", out
    )
    failed(capsys, "results of another threshold", "score", model, rows, "--fpr", 0.2, "--out", out)
    assert run("fit", folder / "train.npy", "--seed", 3, "--out", tmp_path / "other") == 0
    failed(capsys, "another model", "score", tmp_path / "other", rows, "--out", out)
    failed(capsys, "holds other files", "score", model, rows, "--out", rows)
    (out / MANIFEST).write_text("{")
    failed(capsys, "cannot be read; give a new folder", "score", model, rows, "--out", out)
    (tmp_path / "a.txt").write_text("words\n")
    failed(capsys, "holds texts", "score", model, tmp_path / "a.txt", "--out", tmp_path / "a.csv")
    failed(capsys, "texts go to one file", "score", model, tmp_path / "a.txt", "--out", "new/")
    failed(capsys, "5 features", "score", model, narrow(tmp_path), "--out", tmp_path / "b.parquet")
    failed(capsys, "5 features", "score", model, tmp_path / "narrow", "--out", f"{tmp_path}/b/")
    assert not (tmp_path / "b").exists()
    assert not (tmp_path / "b.parquet").exists()


def narrow(folder):
    (folder / "narrow").mkdir()
    np.save(folder / "narrow" / "a.npy", np.ones((3, 5)))
    return folder / "narrow"


def test_a_bad_row_is_told_and_a_folder_of_embeddings_can_be_used_everywhere(
    big, blobs, tmp_path, capsys
):
    folder, _ = big
    bad = tmp_path / "bad"
    bad.mkdir()
    np.save(bad / "a.npy", blobs[2])
    rows = blobs[3].copy()
    rows[7, 2] = np.inf
    np.save(bad / "b.npy", rows)
    words = r"bad/b.npy, row 8 \(block 2\): infinity"
    failed(capsys, words, "score", folder / "model", bad, "--out", tmp_path / "x.parquet")
    rows = folder / "rows"
    capsys.readouterr()
    assert run("explain", folder / "model", rows, "--row", 90, "--row", 2) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["row"] for line in lines] == [90, 2]
    assert run("eval", folder / "model", "--inside", folder / "train.npy", "--outside", rows) == 0
    parts = tmp_path / "train"
    parts.mkdir()
    for i in range(3):
        np.save(parts / f"{i}.npy", blobs[0][60 * i : 60 * i + 60])
    assert run("fit", parts, "--calibrate", rows, "--out", tmp_path / "m") == 0
    assert load(tmp_path / "m").promise_ is not None


KILLED = """
import sys, time
from outscope.cli import main
from outscope.io import partitions
write = partitions.Partitions.write
def slow(self, part, columns):
    write(self, part, columns)
    print(part, flush=True)
    time.sleep(0.3)
partitions.Partitions.write = slow
main(sys.argv[1:])
"""


def test_a_killed_run_goes_on_where_it_was(big, tmp_path, capsys):
    folder, _ = big
    arguments = ["score", folder / "model", folder / "rows", "--out", tmp_path / "scores"]
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, *map(str, arguments)], env=ENV, stdout=subprocess.PIPE
    )
    for _ in range(3):
        child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    there = len([*(tmp_path / "scores").glob("part-*.parquet")])
    assert 3 <= there < 7
    capsys.readouterr()
    assert run(*arguments) == 0
    assert f"{there} of 7 parts were already there" in capsys.readouterr().err
    check(big, columns_of(tmp_path / "scores"))


def test_a_run_killed_before_its_manifest_leaves_a_usable_folder(tmp_path):
    (tmp_path / "scores").mkdir()
    (tmp_path / "scores" / f".writing-{'a' * 32}").touch()
    goal = Partitions(tmp_path / "scores", {"source": "x"}, [3])
    assert goal.missing() == [0]
    with pytest.raises(InputError, match="another source and model"):
        Partitions(tmp_path / "scores", {"source": "y", "model": "z"}, [3])


def test_large_files_are_streamed_and_small_ones_are_not(big, monkeypatch, tmp_path, capsys):
    from outscope.cli import reading, scoring

    folder, rows = big
    np.save(tmp_path / "all.npy", rows)
    assert isinstance(reading.read_items(str(tmp_path / "all.npy"), None).rows, np.ndarray)
    monkeypatch.setattr(reading, "LARGE_BYTES", 1000)
    assert not isinstance(reading.read_items(str(tmp_path / "all.npy"), None).rows, np.ndarray)
    for large, streamed in ((1000, 1000), (1 << 30, 1000), (1 << 30, 1 << 26)):
        monkeypatch.setattr(reading, "LARGE_BYTES", large)
        monkeypatch.setattr(scoring, "STREAMED_BYTES", streamed)
        out = tmp_path / f"{large}-{streamed}.parquet"
        assert run("score", folder / "model", tmp_path / "all.npy", "--out", out) == 0
        check(big, columns_of(out))


# ---- progress


def test_without_a_terminal_a_line_is_said_now_and_then(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(show.time, "monotonic", lambda: now[0])
    with show.progress("scoring 4,000 rows", 4000) as advance:
        for _ in range(40):
            now[0] += 10.0
            advance(100)
            logging.getLogger("outscope").info("epoch 3")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "scoring 4,000 rows: 300 (8%), 10 per second, 6 min left"
    assert len(lines) == 13
    now[0] = 100.0
    with show.progress("fitting") as advance:
        logging.getLogger("outscope").info("epoch 1")
        now[0] += 31.0
        logging.getLogger("outscope").info("epoch 2")
        now[0] += 1.0
        advance(5)
    assert capsys.readouterr().err == "fitting: epoch 2\n"
    assert logging.getLogger("outscope").level == logging.NOTSET


def test_times_in_words():
    assert [show.span(s) for s in (0.2, 46, 130, 9000)] == ["0 s", "46 s", "2 min", "2.5 h"]

"""The command line, as a person or a script would use it."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny import labelled_texts, tiny_encoder

from outscope.cli import COMMANDS, main
from outscope.detectors.methods import METHODS


@pytest.fixture(scope="module")
def files(blobs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    X, y, fresh, far = blobs
    np.save(folder / "train.npy", X)
    np.savez(folder / "all.npz", x=X, y=y, fresh=fresh, far=far)
    assert main(["fit", str(folder / "train.npy"), "--out", str(folder / "model")]) == 0
    return folder


def run(*arguments):
    return main([str(argument) for argument in arguments])


def failed(capsys, words, *arguments):
    """One clear line on stderr, nothing on stdout, exit code 2, no traceback."""
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("outscope: ")
    assert err.count("\n") == 1
    assert re.search(words, err), err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_ends_with_an_example(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    last = capsys.readouterr().out.rstrip().splitlines()
    assert last[-2] == "example:"
    assert last[-1].startswith(f"  outscope {command}")


def test_the_examples_of_the_main_help_list_every_command(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(f"\n    {command} " in text for command in COMMANDS)


def test_fit_score_eval_explain_info_on_an_archive(files, capsys):
    archive, model = files / "all.npz", files / "c-model"
    assert (
        run(
            "fit",
            f"{archive}:x",
            "--labels",
            f"{archive}:y",
            "--method",
            "c-nnk-means",
            "--calibrate",
            f"{archive}:fresh",
            "--fpr",
            "0.1",
            "--set",
            "n_atoms=9",
            "--out",
            model,
        )
        == 0
    )
    assert re.search(
        r"27 vectors of 24 numbers, \d+ kB of atoms, \d+ kB on disk", capsys.readouterr().err
    )
    assert run("score", model, f"{archive}:far") == 0
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert len(lines) == 40
    assert set(lines[0]) == {"row", "ood_score", "is_ood", "p_value"}
    assert [line["row"] for line in lines] == list(range(1, 41))
    assert "of 40 rows are out of scope" in err
    assert run("eval", model, "--inside", f"{archive}:fresh", "--outside", f"{archive}:far") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["auroc"] > 0.95
    assert result["false_alarms"] <= 0.1
    assert run("explain", model, f"{archive}:fresh", "--row", 1, "--row", 26) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["row"] for line in lines] == [1, 26]
    assert [line["label"] for line in lines] == ["pay", "send"]
    assert run("info", model) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["detector"] == "ClasswiseNNKDetector"
    assert info["parameters"]["n_atoms"] == 9


@pytest.mark.parametrize("method", METHODS)
def test_every_method_fits_and_scores(method, files, tmp_path, capsys):
    archive = files / "all.npz"
    assert (
        run(
            "fit",
            f"{archive}:x",
            "--labels",
            f"{archive}:y",
            "--method",
            method,
            "--out",
            tmp_path / "m",
        )
        == 0
    )
    assert (
        run("eval", tmp_path / "m", "--inside", f"{archive}:fresh", "--outside", f"{archive}:far")
        == 0
    )
    assert json.loads(capsys.readouterr().out)["auroc"] > 0.9


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "npy"])
def test_results_go_to_files_of_every_kind(files, tmp_path, kind, capsys):
    out = tmp_path / f"scores.{kind}"
    assert run("score", files / "model", f"{files}/all.npz:far", "--out", out) == 0
    assert capsys.readouterr().out == ""
    if kind == "npy":
        scores = np.load(out)
    elif kind == "parquet":
        scores = pq.read_table(out)["ood_score"].to_numpy()
    elif kind == "csv":
        lines = out.read_text().splitlines()
        scores = [float(row["ood_score"]) for row in csv.DictReader(lines)]
    else:
        scores = [json.loads(line)["ood_score"] for line in out.read_text().splitlines()]
    import outscope

    expected = outscope.load(files / "model").ood_score(np.load(files / "all.npz")["far"])
    np.testing.assert_array_equal(scores, expected)


def test_parquet_vectors_and_labels_are_read(files, tmp_path, blobs, capsys):
    table = pa.table({"embedding": blobs[0].tolist(), "intent": blobs[1].tolist()})
    pq.write_table(table, tmp_path / "t.parquet")
    source = tmp_path / "t.parquet"
    arguments = ("--labels", f"{source}:intent", "--method", "c-nnk-means", "--out", tmp_path / "m")
    assert run("fit", source, *arguments) == 0
    assert run("score", tmp_path / "m", f"{source}:embedding") == 0
    assert len(capsys.readouterr().out.splitlines()) == 180


def test_vectors_of_different_lengths_are_refused(tmp_path, capsys):
    pq.write_table(pa.table({"e": [[1.0, 2], [3, 4, 5, 6], [7, 8, 9]]}), tmp_path / "r.parquet")
    failed(capsys, "equally long", "fit", tmp_path / "r.parquet", "--out", tmp_path / "m")


def test_labels_may_be_lines_of_text(files, tmp_path, blobs):
    (tmp_path / "y.txt").write_text("\n".join(blobs[1]))
    arguments = ("--labels", tmp_path / "y.txt", "--method", "c-kmeans", "--out", tmp_path / "m")
    assert run("fit", files / "train.npy", *arguments) == 0


def test_methods_are_listed(capsys):
    assert run("methods") == 0
    names = [json.loads(line)["method"] for line in capsys.readouterr().out.splitlines()]
    assert names == list(METHODS)


def test_bad_files_get_one_clear_line(files, tmp_path, capsys):
    train, model = files / "train.npy", files / "model"
    failed(capsys, "does not exist", "score", model, tmp_path / "none.npy")
    failed(capsys, "does not exist", "score", tmp_path / "none", train)
    failed(capsys, "holds no .txt, .csv.* file$", "score", model, tmp_path)
    (tmp_path / "empty.npy").touch()
    failed(capsys, "is empty", "score", model, tmp_path / "empty.npy")
    (tmp_path / "bad.npy").write_bytes(b"hello")
    failed(capsys, "cannot be read as npy", "score", model, tmp_path / "bad.npy")
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04hello")
    failed(capsys, "cannot be read as npz", "score", model, tmp_path / "bad.npz")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    failed(capsys, "cannot be read as parquet", "score", model, tmp_path / "bad.parquet")
    np.save(tmp_path / "pickled.npy", np.array([{}, []], dtype=object))
    failed(capsys, "cannot be read", "score", model, tmp_path / "pickled.npy")
    np.save(tmp_path / "flat.npy", np.ones(5))
    failed(capsys, "expected a matrix", "score", model, tmp_path / "flat.npy")
    np.save(tmp_path / "none.npy", np.ones((0, 24)))
    failed(capsys, "0 rows", "score", model, tmp_path / "none.npy")
    np.save(tmp_path / "words.npy", np.full((3, 24), "a"))
    failed(capsys, "expected numbers", "score", model, tmp_path / "words.npy")
    np.save(tmp_path / "narrow.npy", np.ones((3, 5)))
    failed(capsys, "5 features", "score", model, tmp_path / "narrow.npy")
    np.save(tmp_path / "nan.npy", np.full((3, 24), np.nan))
    failed(
        capsys,
        "nan.npy contains NaN .rows: 3; first row 1 of [0-9]+.. Drop or repair",
        "score",
        model,
        tmp_path / "nan.npy",
    )
    np.save(tmp_path / "inf.npy", np.full((3, 24), np.inf))
    failed(capsys, "inf.npy contains infinity.* Drop or", "score", model, tmp_path / "inf.npy")
    np.save(tmp_path / "thin.npy", np.ones((3, 0)))
    failed(capsys, "thin.npy: Found array with 0 f", "score", model, tmp_path / "thin.npy")
    failed(capsys, "NaN", "fit", tmp_path / "nan.npy", "--out", tmp_path / "m")
    assert not (tmp_path / "m").exists()
    failed(capsys, "several arrays", "score", model, files / "all.npz")
    failed(capsys, "no array 'z'", "score", model, f"{files}/all.npz:z")
    (tmp_path / "picture.png").write_bytes(b"PNG\0\0")
    failed(capsys, "not a kind of file", "score", model, tmp_path / "picture.png")


def test_bad_options_get_one_clear_line(files, tmp_path, capsys):
    train, out = files / "train.npy", ("--out", tmp_path / "m")
    failed(capsys, "choose one of nnk-means", "fit", train, "--method", "magic", *out)
    failed(capsys, "expected NAME=VALUE", "fit", train, "--set", "n_atoms", *out)
    failed(capsys, "n_atoms=-1", "fit", train, "--set", "n_atoms=-1", *out)
    failed(capsys, "did you mean n_atoms?", "fit", train, "--set", "n_atom=5", *out)
    failed(capsys, "use --method knn", "fit", train, "--set", "method=knn", *out)
    failed(capsys, "--top 0", "explain", files / "model", train, "--top", "0")
    failed(capsys, "bananas", "fit", train, "--set", "bananas=1", *out)
    failed(capsys, "--fpr 2", "fit", train, "--fpr", "2", *out)
    failed(capsys, "unknown ending", "score", files / "model", train, "--out", tmp_path / "x.xml")
    failed(capsys, "make it first", "score", files / "model", train, "--out", tmp_path / "no/x.csv")
    failed(capsys, "--row 999", "explain", files / "model", train, "--row", "999")
    failed(capsys, "has the rows 1 to 180", "explain", files / "model", train, "--row", "0")
    failed(capsys, "a matrix with an atom a row", "fit", train, "--set", "init=[[1],[2,3]]", *out)
    failed(capsys, "use --fpr 0.9", "fit", train, "--set", "contamination=0.9", *out)
    failed(capsys, "--seed -1: expected", "fit", train, "--seed", "-1", *out)
    failed(capsys, "--preset 'x' is unknown", "fit", train, "--preset", "x", *out)
    for rate in ("0", "1", "nan", "-1"):
        failed(capsys, f"--fpr {float(rate)}", "fit", train, "--fpr", rate, *out)
        failed(capsys, f"--fpr {float(rate)}", "score", files / "model", train, "--fpr", rate)
    assert run("fit", train, "--method", "knn", *out) == 0
    capsys.readouterr()
    failed(capsys, "cannot explain", "explain", tmp_path / "m", train)
    with pytest.raises(SystemExit) as stopped:
        main(["fit"])
    assert stopped.value.code == 2


def test_a_reader_that_stops_early_is_no_failure(files):
    command = (
        f"'{sys.executable}' -m outscope score '{files}/model' '{files}/train.npy' | head -n 1"
    )
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert len(done.stdout.splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_a_pipe_sees_no_progress_and_a_terminal_sees_a_table(files):
    command = [sys.executable, "-m", "outscope", "score", files / "model", files / "train.npy"]
    piped = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(line.startswith("{") for line in piped.stdout.splitlines())
    assert piped.stderr.count("\n") == 1
    head, tail = pty.openpty()
    process = subprocess.Popen(command, stdout=tail, stderr=tail)
    os.close(tail)
    seen = b""
    while True:
        try:
            part = os.read(head, 4096)
        except OSError:
            break
        if not part:
            break
        seen += part
    assert process.wait() == 0
    text = seen.decode()
    assert "ood_score" in text
    assert "{" not in text.replace("\x1b", "")


def test_help_is_quick_and_light(files):
    code = (
        "import sys\nfrom outscope.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'faiss', 'matplotlib', 'safetensors.torch'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_wrong_option_gets_one_line(capsys):
    with pytest.raises(SystemExit) as end:
        main(["score", "model", "rows.npy", "--bananas"])
    assert end.value.code == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "--bananas" in err
    assert "--help" in err


# ---- texts, with a tiny encoder


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder with a model of texts and of labelled texts, and where their vectors are kept."""
    folder = tmp_path_factory.mktemp("texts")
    patch = pytest.MonkeyPatch()
    patch.setenv("OUTSCOPE_CACHE", str(folder / "cache"))
    tiny_encoder(folder / "tiny")
    with (folder / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *zip(*labelled_texts(60), strict=True)])
    fit = ("fit", folder / "train.csv", "--encoder", folder / "tiny", "--method", "c-nnk-means")
    assert run(*fit, "--out", folder / "model") == 0
    yield folder
    patch.undo()


COLUMNS = {"id": [7, 8], "label": ["a", "b"], "input_label": ["c", "d"], "score": [0.5, None]}


@pytest.mark.parametrize("given", ["csv", "tsv", "jsonl", "parquet"])
@pytest.mark.parametrize("asked", ["csv", "jsonl", "parquet", "stdout"])
def test_scores_keep_their_row_and_the_other_columns(texts, tmp_path, given, asked, capsys):
    table = {"words": ["pay my bill", "how tall is a mountain"], **COLUMNS}
    source, out = tmp_path / f"in.{given}", tmp_path / f"out.{asked}"
    rows = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
    if given == "jsonl":
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif given == "parquet":
        pq.write_table(pa.table(table), source)
    else:
        with source.open("w", newline="") as file:
            marked = csv.DictWriter(file, list(table), delimiter="\t" if given == "tsv" else ",")
            marked.writeheader()
            marked.writerows(rows)
    to = () if asked == "stdout" else ("--out", out)
    capsys.readouterr()
    assert run("score", texts / "model", source, "--text-column", "words", *to) == 0
    if asked == "parquet":
        found = pq.read_table(out).to_pylist()
    elif asked == "csv":
        found = list(csv.DictReader(out.read_text().splitlines()))
    else:
        lines = out.read_text() if asked == "jsonl" else capsys.readouterr().out
        found = [json.loads(line) for line in lines.splitlines()]
    assert [str(row["row"]) for row in found] == ["1", "2"]
    assert [row["text"] for row in found] == table["words"]
    assert [str(row["id"]) for row in found] == ["7", "8"]
    assert [row["input_label"] for row in found] == ["a", "b"]
    assert [row["input_input_label"] for row in found] == ["c", "d"]
    assert {"ood_score", "is_ood", "label", "nearest", "score"} <= set(found[0])
    assert str(found[0]["score"]) == "0.5"
    assert found[1]["score"] in (None, "")


def test_columns_of_odd_values_can_be_written_and_printed(texts, tmp_path, capsys):
    odd = [[1, {"a": "ü"}], "word", float("nan"), "\ud800", 2**70]
    lines = [json.dumps({"text": "pay", "odd": value, "n": i}) for i, value in enumerate(odd)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    when = pa.array([dt.datetime(2024, 1, 2)], pa.timestamp("us"))
    data = pa.table({"text": ["pay"], "when": when, "raw": [b"\xff"], "l": [["a"]]})
    pq.write_table(data, tmp_path / "b.parquet")
    for source in ("a.jsonl", "b.parquet"):
        name = ("--text-column", "text")
        assert run("score", texts / "model", tmp_path / source, *name) == 0
        for kind in ("csv", "parquet", "jsonl"):
            out = tmp_path / f"out.{kind}"
            assert run("score", texts / "model", tmp_path / source, *name, "--out", out) == 0
            assert out.stat().st_size
    assert "NaN" not in capsys.readouterr().out


def test_rows_of_a_csv_with_long_and_empty_texts_keep_their_numbers(texts, tmp_path, capsys):
    (tmp_path / "a.csv").write_text('text;id\n"pay\nmy bill";a\n\nsend money;c\n')
    assert run("score", texts / "model", tmp_path / "a.csv") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["row"], one["id"]) for one in found] == [(1, "a"), (2, ""), (3, "c")]
    assert run("explain", texts / "model", tmp_path / "a.csv", "--row", 3) == 0
    reason = json.loads(capsys.readouterr().out)
    assert (reason["row"], reason["text"]) == (3, "send money")
    train = list(csv.DictReader((texts / "train.csv").read_text().splitlines()))
    for evidence in reason["evidence"]:
        assert [train[row - 1]["text"] for row in evidence["rows"]] == evidence["texts"]


def streamed(texts, monkeypatch, content):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    return run("score", texts / "model", "-")


def test_a_damaged_line_does_not_end_a_stream(texts, monkeypatch, capsys):
    assert streamed(texts, monkeypatch, b"pay my bill\nbad \xff\n\nsend money\n") == 0
    out, err = capsys.readouterr()
    found = [json.loads(line) for line in out.splitlines()]
    assert [one["row"] for one in found] == [1, 2, 3, 4]
    assert ["error" in one for one in found] == [False, True, False, False]
    assert "line 2 of standard input is not UTF-8" in found[1]["error"]
    assert found[3]["text"] == "send money"
    assert "lines skipped, since they are not UTF-8: 1" in err
    assert streamed(texts, monkeypatch, b"\xff\n") == 0
    assert list(json.loads(capsys.readouterr().out)) == ["row", "error"]


def test_the_encoder_is_there_before_the_first_text_is_read(texts, monkeypatch, capsys, tmp_path):
    shutil.copytree(texts / "model", tmp_path / "model")
    (encoder,) = (tmp_path / "model").glob("encoder-*")
    (encoder / "config.json").write_text("{}")
    stdin = io.TextIOWrapper(io.BytesIO(b"pay my bill\n"))
    monkeypatch.setattr("sys.stdin", stdin)
    failed(capsys, "encoder", "score", tmp_path / "model", "-")
    assert stdin.buffer.tell() == 0


def test_a_closed_standard_input_is_told(texts, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", None)
    failed(capsys, "standard input is closed", "score", texts / "model", "-")
    failed(capsys, "standard input is closed", "fit", "-", "--out", texts / "none")


def test_empty_texts_are_told_by_file_and_line(texts, tmp_path, capsys):
    encoder = ("--encoder", texts / "tiny", "--out", tmp_path / "m")
    (tmp_path / "a.csv").write_text('text\n"two\nlines"\n \nhi\n\nho\n')
    way = "drop it, or leave empty ones out with --skip-empty"
    failed(
        capsys,
        rf"a.csv: line 4 is empty \(and 1 more\); {way}",
        "fit",
        tmp_path / "a.csv",
        *encoder,
    )
    (tmp_path / "b.txt").write_text("pay\n\n")
    held = ("--calibrate", tmp_path / "b.txt")
    (tmp_path / "c.txt").write_text("pay\nsend\nblock\n")
    failed(capsys, f"b.txt: line 2 is empty; {way}", "fit", tmp_path / "c.txt", *held, *encoder)
    (tmp_path / "d.txt").write_text("\n\n")
    assert run("fit", tmp_path / "d.txt", "--skip-empty", *encoder) == 2
    assert "d.txt has empty texts only" in capsys.readouterr().err
    assert run("fit", tmp_path / "a.csv", "--skip-empty", "--method", "knn", *encoder) == 0
    assert "a.csv: left out 2 empty texts" in capsys.readouterr().err


def test_a_log_is_read_and_a_word_says_so(texts, tmp_path, capsys):
    (tmp_path / "a.log").write_text("pay my bill\nsend money\n")
    assert run("score", texts / "model", tmp_path / "a.log") == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 2
    assert "a.log is read as one text per line" in err.splitlines()[0]


def test_the_size_of_a_model_is_told(texts, capsys):
    assert run("info", texts / "model") == 0
    told = json.loads(capsys.readouterr().out)["size"]
    disk = sum(f.stat().st_size for f in (texts / "model").rglob("*") if f.is_file())
    assert told.endswith(f"{disk / 1000:,.0f} kB on disk")


# ---- what goes wrong outside of the input


def test_a_target_that_cannot_be_written_is_told_before_any_work(
    files, tmp_path, capsys, monkeypatch
):
    def worked(*_):
        raise AssertionError("work was done")

    monkeypatch.setattr("outscope.cli.fitting.read_items", worked)
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "own.txt").write_text("x")
    for out, words in (
        ("file", "is a file"),
        ("file/m", "Not a directory"),
        ("full", "other files"),
    ):
        failed(capsys, words, "fit", files / "train.npy", "--out", tmp_path / out)
    denied = mock.Mock(side_effect=PermissionError(13, "Permission denied"))
    with monkeypatch.context() as locked:
        locked.setattr("pathlib.Path.mkdir", denied)
        failed(capsys, "Permission denied", "fit", files / "train.npy", "--out", tmp_path / "m")
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setattr("outscope.loading.load", worked)
    out = ("--out", tmp_path / "a.csv")
    failed(capsys, "not yours to write", "score", files / "model", files / "train.npy", *out)


def test_a_bug_keeps_its_traceback_and_asks_for_a_report(files, capsys, monkeypatch):
    for kind in (ValueError, TypeError, KeyError):
        monkeypatch.setattr("outscope.cli.describing.size", mock.Mock(side_effect=kind("oh")))
        assert run("info", files / "model") == 70
        err = capsys.readouterr().err
        assert "Traceback" in err
        assert "please report it" in err.splitlines()[-1]


def test_memory_and_files_that_fail_get_one_line(files, capsys, monkeypatch):
    for error, words in ((MemoryError(), "not enough memory"),
                         (PermissionError(13, "Permission denied", "a.npy"), "^outscope: a.npy: Permission denied$")):  # fmt: skip
        monkeypatch.setattr("outscope.cli.describing.size", mock.Mock(side_effect=error))
        failed(capsys, words, "info", files / "model")


@pytest.mark.parametrize("module", ["argparse", "outscope.cli", "numpy", "sklearn", "rich"])
def test_an_interrupt_while_modules_load_is_one_line(module):
    code = (
        "import runpy, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "sys.stdout.isatty = lambda: True\n"
        "sys.argv = ['outscope', 'methods']\n"
        "runpy.run_module('outscope', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
    assert done.stderr == "outscope: interrupted; no file is half written\n"


@pytest.mark.parametrize(
    ("ends", "code"), [("> /dev/full", 2), (">&-", 2), ("2>&- > /dev/null", 0), ("< /dev/null", 0)]
)
def test_full_and_closed_outputs(files, ends, code):
    command = f"'{sys.executable}' -m outscope score '{files}/model' '{files}/train.npy' {ends}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == code
    assert done.stderr.count("\n") == (0 if "2>" in ends else 1), done.stderr


def test_eval_tells_intervals_the_trade_off_and_draws_it(files, tmp_path, capsys):
    archive, page = files / "all.npz", tmp_path / "curve.html"
    given = ("eval", files / "model", "--inside", f"{archive}:fresh", "--outside", f"{archive}:far")
    assert run(*given, "--plot", page) == 0
    found = json.loads(capsys.readouterr().out)
    low, high = found["intervals"]["auroc"]
    assert low <= found["auroc"] <= high
    assert [p["caught"] for p in found["curve"]] == sorted(p["caught"] for p in found["curve"])
    assert "auroc_matched_length" not in found  # rows have no length
    assert "<svg" in page.read_text()
    assert run(*given, "--plot", tmp_path / "curve.pdf") == 2
    assert "give a .html file" in capsys.readouterr().err


def test_without_a_command_the_help_is_shown(capsys):
    assert main([]) == 2
    told = capsys.readouterr()
    assert "outscope fit inscope.txt" in told.err
    assert not told.out

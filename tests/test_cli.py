"""The command line, as a person or a script would use it."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import subprocess
import sys

import numpy as np
import pytest

from outscope.cli import main
from outscope.methods import METHODS

COMMANDS = ("fit", "score", "eval", "explain", "info", "methods")


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
    assert all(f"    {command} " in text for command in COMMANDS)


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
    assert "27 vectors of 24 numbers" in capsys.readouterr().err
    assert run("score", model, f"{archive}:far") == 0
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert len(lines) == 40
    assert set(lines[0]) == {"ood_score", "is_ood", "p_value"}
    assert "of 40 rows are out of scope" in err
    assert run("eval", model, "--inside", f"{archive}:fresh", "--outside", f"{archive}:far") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["auroc"] > 0.95
    assert result["false_alarms"] <= 0.1
    assert run("explain", model, f"{archive}:fresh", "--row", 0, "--row", 25) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["row"] for line in lines] == [0, 25]
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
        import pyarrow.parquet as parquet

        scores = parquet.read_table(out)["ood_score"].to_numpy()
    elif kind == "csv":
        lines = out.read_text().splitlines()
        scores = [float(row["ood_score"]) for row in csv.DictReader(lines)]
    else:
        scores = [json.loads(line)["ood_score"] for line in out.read_text().splitlines()]
    import outscope

    expected = outscope.load(files / "model").ood_score(np.load(files / "all.npz")["far"])
    np.testing.assert_array_equal(scores, expected)


def test_parquet_vectors_and_labels_are_read(files, tmp_path, blobs, capsys):
    import pyarrow as pa
    import pyarrow.parquet as parquet

    table = pa.table({"embedding": blobs[0].tolist(), "intent": blobs[1].tolist()})
    parquet.write_table(table, tmp_path / "t.parquet")
    source = tmp_path / "t.parquet"
    arguments = ("--labels", f"{source}:intent", "--method", "c-nnk-means", "--out", tmp_path / "m")
    assert run("fit", source, *arguments) == 0
    assert run("score", tmp_path / "m", f"{source}:embedding") == 0
    assert len(capsys.readouterr().out.splitlines()) == 180


def test_vectors_of_different_lengths_are_refused(tmp_path, capsys):
    import pyarrow as pa
    import pyarrow.parquet as parquet

    parquet.write_table(
        pa.table({"e": [[1.0, 2], [3, 4, 5, 6], [7, 8, 9]]}), tmp_path / "r.parquet"
    )
    failed(capsys, "one length", "fit", tmp_path / "r.parquet", "--out", tmp_path / "m")


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
    failed(capsys, "is a folder", "score", model, tmp_path)
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
    failed(capsys, "NaN. Drop or repair those rows.$", "score", model, tmp_path / "nan.npy")
    failed(capsys, "NaN", "fit", tmp_path / "nan.npy", "--out", tmp_path / "m")
    assert not (tmp_path / "m").exists()
    failed(capsys, "several arrays", "score", model, files / "all.npz")
    failed(capsys, "no array 'z'", "score", model, f"{files}/all.npz:z")
    failed(capsys, "not a kind of file", "score", model, __file__)


def test_bad_options_get_one_clear_line(files, tmp_path, capsys):
    train, out = files / "train.npy", ("--out", tmp_path / "m")
    failed(capsys, "choose one of nnk-means", "fit", train, "--method", "magic", *out)
    failed(capsys, "expected NAME=VALUE", "fit", train, "--set", "n_atoms", *out)
    failed(capsys, "n_atoms=-1", "fit", train, "--set", "n_atoms=-1", *out)
    failed(capsys, "use --method knn", "fit", train, "--set", "method=knn", *out)
    failed(capsys, "--top 0", "explain", files / "model", train, "--top", "0")
    failed(capsys, "bananas", "fit", train, "--set", "bananas=1", *out)
    failed(capsys, "--fpr 2", "fit", train, "--fpr", "2", *out)
    failed(capsys, "unknown ending", "score", files / "model", train, "--out", tmp_path / "x.xml")
    failed(capsys, "make it first", "score", files / "model", train, "--out", tmp_path / "no/x.csv")
    failed(capsys, "--row 999", "explain", files / "model", train, "--row", "999")
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

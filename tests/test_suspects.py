"""Training rows and texts that do not fit: found, told with a reason, remembered in a model."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from tiny import labelled_texts, tiny_encoder

import outscope
from outscope import (
    EnergyDetector,
    InputError,
    KNNDetector,
    MahalanobisDetector,
    NNKDetector,
    TextDetector,
)
from outscope.cli import main
from outscope.decisions.metrics import auroc
from outscope.detectors import suspects
from outscope.detectors.suspects import judge_rows

STRANGE = ["how tall is a mountain", "what is the weather"]


@pytest.fixture(scope="module")
def rows():
    """Two classes of 100 rows, three strays (numbers 0, 80, 202), and rows 10 and 150 mislabelled."""
    rng = np.random.default_rng(0)
    X = 5.0 * np.repeat(np.eye(2, 16), 100, axis=0) + 0.5 * rng.normal(size=(200, 16))
    y = np.repeat(["a", "b"], 100)
    y[[10, 149]] = ["b", "a"]
    strays = 5.0 * np.eye(16)[[8, 9, 10]]
    X = np.insert(X, [0, 79, 200], strays, axis=0)
    return X.astype(np.float32), np.insert(y, [0, 79, 200], ["a", "a", "b"])


def kinds(found):
    return {
        kind: {one.row for one in found if one.kind == kind} for kind in ("strange", "mislabelled")
    }


@pytest.mark.parametrize("detector", [NNKDetector(), KNNDetector(), MahalanobisDetector()])
def test_strays_and_wrong_labels_are_listed_with_reasons(detector, rows):
    X, y = rows
    found = detector.fit(X, y).suspicious(3)
    assert kinds(found)["strange"] == {0, 80, 202}
    assert {11, 151} <= kinds(found)["mislabelled"]
    wrong = next(one for one in found if one.kind == "mislabelled" and one.row == 11)
    assert (wrong.label, wrong.looks_like) == ("b", "a")
    assert wrong.reason == "labelled 'b', but looks like 'a'"
    assert all(y[row] == "a" for row in wrong.nearest)
    assert "times as far" in found[0].reason
    # Without labels nothing can be mislabelled.
    assert not kinds(detector.fit(X).suspicious(3))["mislabelled"]


def test_judging_agrees_with_plain_distances(rows):
    X, y = rows
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    squared = ((unit[:, None] - unit) ** 2).sum(axis=2)
    np.fill_diagonal(squared, np.inf)
    nearest = np.argsort(squared, axis=1)[:, : suspects.NEIGHBORS]
    judged = judge_rows(X, y)
    expected = np.take_along_axis(squared, nearest, axis=1).mean(axis=1)
    assert judged.strangeness == pytest.approx(expected, abs=1e-5)
    same = (y[nearest] == y[:, None]).mean(axis=1)
    assert judged.doubt == pytest.approx(1 - 2 * same)  # of two classes


def test_a_sample_of_the_rows_judges_nearly_as_well(rows, monkeypatch):
    X, y = rows
    truth = np.isin(np.arange(len(X)), [0, 80, 202]).astype(float)
    monkeypatch.setattr(suspects, "REFERENCES", 100)
    assert auroc(truth, judge_rows(X, y).strangeness) > 0.99


def test_equal_rows_few_rows_and_threads(rows):
    X, y = rows
    assert NNKDetector().fit(np.ones((30, 4))).suspicious(5) == []
    assert len(NNKDetector().fit(X[:2]).suspicious(5)) <= 2
    assert (
        NNKDetector(n_jobs=2).fit(X, y).suspicious() == NNKDetector(n_jobs=1).fit(X, y).suspicious()
    )


def test_models_remember_and_say_what_to_do_where_they_do_not(rows, tmp_path, monkeypatch):
    X, y = rows
    detector = NNKDetector(random_state=0).fit(X, y)
    detector.save(tmp_path / "model")
    assert outscope.load(tmp_path / "model").suspicious(7) == detector.suspicious(7)
    assert kinds(detector.suspicious(3, X, y)) == kinds(detector.suspicious(3))
    monkeypatch.setattr(suspects, "JUDGED", 100)
    detector.fit(X, y)
    with pytest.raises(InputError, match=r"give the training rows: suspicious\(n, X, y\)"):
        detector.suspicious(3)
    assert kinds(detector.suspicious(3, X, y))["strange"] == {0, 80, 202}
    with pytest.raises(InputError, match="n=0: expected how many rows"):
        detector.suspicious(0)
    with pytest.raises(InputError, match="other than embeddings"):
        EnergyDetector().fit(X).suspicious(3)


@pytest.fixture(scope="module")
def texts():
    found, labels = labelled_texts(60)
    found[7], found[31] = STRANGE
    return found, labels


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(tiny_encoder(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("OUTSCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))


def run(*words):
    return main([str(word) for word in words])


def test_texts_are_listed_by_their_place_in_fit(tiny, texts, tmp_path):
    detector = TextDetector(tiny, holdout=20).fit(*texts)
    found = detector.suspicious(10)
    assert all(one.text == texts[0][one.row] for one in found)
    assert all(one.label == texts[1][one.row] for one in found)
    detector.save(tmp_path / "model")
    assert outscope.load(tmp_path / "model").suspicious(10) == found
    # Given all texts, it judges those held out too.
    whole = detector.suspicious(4, *texts)
    assert {one.text for one in whole if one.kind == "strange"} >= set(STRANGE)


def test_the_command_lists_writes_and_says_what_is_missing(tiny, texts, tmp_path, capsys):
    with (tmp_path / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *zip(*texts, strict=True)])
    model, out = tmp_path / "model", tmp_path / "suspects.csv"
    assert run("fit", tmp_path / "train.csv", "--encoder", tiny, "--out", model) == 0
    capsys.readouterr()
    assert run("suspects", model, "--top", 3) == 0
    told, words = capsys.readouterr()
    lines = [json.loads(line) for line in told.splitlines()]
    assert all(line["text"] == texts[0][line["row"] - 1] for line in lines)
    assert "lie apart" in words
    assert run("suspects", model, "--data", tmp_path / "train.csv", "--out", out) == 0
    with out.open() as file:
        written = list(csv.DictReader(file))
    assert set(STRANGE) <= {row["text"] for row in written if row["kind"] == "strange"}
    assert run("suspects", model, "--top", 0) == 2
    assert run("suspects", model, "--out", tmp_path / "x.npy") == 2
    assert run("suspects", model, "--label-column", "label") == 2
    assert "--data" in capsys.readouterr().err


def test_rows_of_a_file_keep_their_numbers(rows, tmp_path, capsys, monkeypatch):
    X, y = rows
    np.savez(tmp_path / "rows.npz", x=X, y=y)
    model, data = tmp_path / "model", f"{tmp_path}/rows.npz"
    assert run("fit", f"{data}:x", "--labels", f"{data}:y", "--out", model) == 0
    capsys.readouterr()
    assert run("suspects", model, "--top", 3) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert listed[0]["row"] - 1 in {0, 80, 202}
    assert all(line["label"] == y[line["row"] - 1] for line in listed)
    monkeypatch.setattr(suspects, "JUDGED", 10)
    assert run("fit", f"{data}:x", "--out", model) == 0
    assert run("suspects", model) == 2
    assert "give the training file: outscope suspects" in capsys.readouterr().err
    assert run("suspects", model, "--data", f"{data}:x", "--labels", f"{data}:y", "--top", 3) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["row"] - 1 for line in listed if line["kind"] == "strange"} == {0, 80, 202}

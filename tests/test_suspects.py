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
from outscope.detectors import holdout, suspects
from outscope.detectors.holdout import fit_and_calibrate
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
    found = detector.fit(X, y).suspicious(3, X, y)
    assert kinds(found)["strange"] == {0, 80, 202}
    assert {11, 151} <= kinds(found)["mislabelled"]
    wrong = next(one for one in found if one.kind == "mislabelled" and one.row == 11)
    assert (wrong.label, wrong.looks_like) == ("b", "a")
    assert wrong.reason == "labelled 'b', but looks like 'a'"
    assert all(y[row] == "a" for row in wrong.nearest)
    assert "times as far" in found[0].reason
    # Without labels nothing can be mislabelled.
    assert not kinds(detector.suspicious(3, X))["mislabelled"]


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
    same = np.ones((30, 4))
    assert NNKDetector().fit(same).suspicious(5, same) == []
    assert len(NNKDetector().fit(X[:2]).suspicious(5, X[:2])) <= 2
    one, two = (NNKDetector(n_jobs=jobs).fit(X, y).suspicious(9, X, y) for jobs in (1, 2))
    assert one == two


def test_what_is_remembered_is_saved_and_forgotten_by_the_next_fit(rows, tmp_path):
    X, y = rows
    detector = NNKDetector(random_state=0)
    fit_and_calibrate(detector, X, y, fpr=0.1)
    assert kinds(detector.suspicious(3))["strange"] == {0, 80, 202}
    assert detector.suspicious(7) == detector.suspicious(7, X, y)
    detector.save(tmp_path / "model")
    assert outscope.load(tmp_path / "model").suspicious(7) == detector.suspicious(7)
    detector.fit(X, y)
    with pytest.raises(InputError, match=r"give the training rows: suspicious\(n, X, y\)"):
        detector.suspicious(3)


def test_unusable_requests_are_named(rows):
    X, y = rows
    detector = NNKDetector().fit(X, y)
    with pytest.raises(InputError, match="n=0: expected how many rows"):
        detector.suspicious(0, X)
    with pytest.raises(InputError, match="expecting 16 features"):
        detector.suspicious(3, X[:, :5])
    with pytest.raises(InputError, match="y has 2 labels"):
        detector.suspicious(3, X, ["a", "b"])
    with pytest.raises(InputError, match="this detector's are logits"):
        EnergyDetector().fit(X).suspicious(3, X)


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
    assert detector.suspicious(10, *texts) == found
    assert {one.text for one in found if one.kind == "strange"} >= set(STRANGE)


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
    assert "far from all others: 3" in words
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
    strange = {line["row"] - 1 for line in listed if line["kind"] == "strange"}
    assert strange == {0, 80, 202}
    monkeypatch.setattr(holdout, "JUDGED", 10)
    assert run("fit", f"{data}:x", "--out", model) == 0
    assert run("suspects", model) == 2
    assert "give the training file: outscope suspects" in capsys.readouterr().err
    assert run("suspects", model, "--data", f"{data}:x", "--labels", f"{data}:y", "--top", 3) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["row"] - 1 for line in listed if line["kind"] == "strange"} == {0, 80, 202}

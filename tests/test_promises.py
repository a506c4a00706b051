"""What is promised about false alarms holds, and where nothing can be, that is said."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.special import ndtr
from sklearn.base import clone
from sklearn.metrics import make_scorer, roc_auc_score
from tiny import labelled_texts, tiny_encoder

from outscope import (
    ConformalThreshold,
    InputError,
    KNNDetector,
    MSPDetector,
    NNKDetector,
    NoPromiseWarning,
    TextDetector,
    load,
)
from outscope.cli import main
from outscope.decisions.threshold import HELD_OUT, LEFT_ONE_OUT, holdout_size, rows_needed
from outscope.detectors.holdout import fit_and_calibrate

RNG = np.random.default_rng(0)
CENTRES = 3.0 * RNG.normal(size=(8, 24)) / np.sqrt(24)


def drawn(n, seed):
    """In-scope rows of eight loose clusters, with labels."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 8, n)
    return (CENTRES[y] + 0.5 * rng.normal(size=(n, 24))).astype(np.float32), y


def rates(detector, n, draws, fit):
    """False alarms on new rows, draw by draw."""
    found = []
    for seed in range(draws):
        X, y = drawn(n + 600, seed)
        one = fit(clone(detector), X[:n], y[:n], seed)
        found.append(one.is_ood(X[n:]).mean())
    return np.array(found)


def with_a_promise(detector, X, y, seed):
    fit_and_calibrate(detector, X, y, fpr=0.05, random_state=seed)
    assert detector.promise_ is not None
    return detector


@pytest.mark.parametrize("n", [40, 120, 450])
def test_a_promise_of_rows_held_out_is_kept(detector, n):
    found = rates(detector, n, 30, with_a_promise)
    assert found.mean() <= 0.05 + 2.5 * found.std() / np.sqrt(len(found))


@pytest.mark.parametrize("n", [20, 37])
def test_a_promise_by_leaving_one_out_is_kept(n):
    for detector in (NNKDetector(random_state=0), KNNDetector()):
        found = rates(detector, n, 60, with_a_promise)
        assert found.mean() <= 0.05 + 2.5 * found.std() / np.sqrt(len(found))


@pytest.mark.parametrize("n", [20, 150, 390])
def test_an_estimate_is_sane(detector, n):
    """Judged by what was learned, these thresholds let a third of new rows through and more."""
    detector.set_params(contamination="auto")
    found = rates(detector, n, 20, lambda one, X, y, _: one.fit(X, y))
    assert found.mean() <= 0.1


def test_leaving_one_out_promises_only_where_every_row_is_kept():
    X, y = drawn(100, 0)
    small = NNKDetector(random_state=0).fit(X[:60])
    assert small.promise_ is None
    assert small.calibrate(fpr=0.1).promise_.kind == LEFT_ONE_OUT
    assert len(small.calibration_scores_) == 60
    with pytest.raises(InputError, match="held out"):
        small.set_threshold(fpr=0.1, confidence=0.9)
    for other in (NNKDetector(20, random_state=0), NNKDetector(max_atoms=20, random_state=0)):
        with pytest.raises(InputError, match="every row is an atom"):
            other.fit(X, y).calibrate()


def test_rows_judged_without_themselves_are_judged_as_if_never_seen():
    """Where every row is an atom, taking one out of the sums is fitting without it."""
    X, _ = drawn(30, 3)
    whole = NNKDetector(bandwidth=0.05, common=0.0, random_state=0).fit(X)
    fresh = [
        NNKDetector(bandwidth=0.05, common=0.0, random_state=0)
        .fit(np.delete(X, i, 0))
        .ood_score(X[[i]])[0]
        for i in range(len(X))
    ]
    np.testing.assert_allclose(whole.held_out_scores_, np.sort(fresh), rtol=1e-6)


def test_confidence_makes_the_rate_hold_for_this_very_calibration():
    """On average over calibrations is not enough for somebody who has one."""
    rng = np.random.default_rng(1)
    n, above = 200, {None: 0, 0.95: 0}
    for _ in range(500):
        scores = rng.normal(size=n)
        for confidence in above:
            cut = ConformalThreshold(scores).cut(0.05, confidence)
            # The true rate of a normal score, without drawing any.
            above[confidence] += ndtr(-cut) > 0.05
    assert above[0.95] / 500 <= 0.06
    assert above[None] / 500 > 0.3


@pytest.mark.parametrize("rate", [0.2, 0.05, 0.01])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_rows_needed_for_confidence_are_just_enough(rate, confidence):
    n = rows_needed(rate, confidence)
    ConformalThreshold(np.arange(n)).cut(rate, confidence)
    with pytest.raises(InputError, match=f"at least {n} "):
        ConformalThreshold(np.arange(n - 1)).cut(rate, confidence)


def test_rounding_moves_no_decision():
    """An encoder gives a text of another batch a vector that differs by some 1e-7."""
    scores = np.random.default_rng(0).gamma(2.0, size=199)
    conformal = ConformalThreshold(scores)
    cut = conformal.cut(0.05)
    for noise in (-3e-7, 3e-7):
        again = scores * (1.0 + noise)
        np.testing.assert_array_equal(conformal.p_value(again), conformal.p_value(scores))
        np.testing.assert_array_equal(again > cut, scores > cut)


def test_held_out_rows_do_not_depend_on_classes():
    X, y = drawn(400, 0)
    y[:3] = 99  # a class too rare to be split
    chosen = np.zeros(400)
    for seed in range(200):
        fit = fit_and_calibrate(KNNDetector(), X, y, fpr=0.05, random_state=seed)
        chosen[np.setdiff1d(np.arange(400), fit)] += 1
    share = holdout_size(400, 0.05) / 400
    assert chosen[:3].mean() / 200 == pytest.approx(share, abs=0.08)


def test_rows_that_the_encoder_has_seen_set_no_threshold():
    X, y = drawn(200, 0)
    seen = np.arange(200) < 150
    detector = NNKDetector(random_state=0)
    fit = fit_and_calibrate(detector, X, y, fpr=0.05, seen=seen)
    assert set(np.setdiff1d(np.arange(200), fit)) <= set(range(150, 200))
    assert detector.promise_.kind == HELD_OUT
    formula = MSPDetector()
    fit_and_calibrate(formula, X, y, fpr=0.05, seen=seen)
    np.testing.assert_array_equal(formula.calibration_scores_, np.sort(formula.ood_score(X[~seen])))
    for few in (np.ones(200, bool), np.arange(200) < 190):
        with pytest.warns(NoPromiseWarning, match="the encoder was trained on"):
            fit_and_calibrate(detector, X, y, fpr=0.05, seen=few)
        assert detector.promise_ is None
        assert not hasattr(detector, "calibration_scores_")


def test_texts_too_few_for_a_promise_are_told_of():
    texts, labels = labelled_texts(60)

    def lengths(some):
        return [[len(t), t.count("o") + 1.0, t.count("e")] for t in some]

    with pytest.warns(NoPromiseWarning, match="12 texts are too few"):
        few = TextDetector(lengths).fit(texts[:12], labels[:12])
    assert few.promise_ is None
    assert np.isfinite(few.threshold_)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert TextDetector(lengths).fit(texts[:25]).promise_.kind == LEFT_ONE_OUT
        assert TextDetector(lengths).fit(texts).promise_.kind == HELD_OUT


def test_an_encoder_calibrates_on_no_text_that_it_was_trained_on(tmp_path, monkeypatch):
    from outscope.text.training import Plan, train

    monkeypatch.setenv("OUTSCOPE_CACHE", str(tmp_path / "cache"))
    texts, labels = labelled_texts(160)
    texts = [f"{text} {i}" for i, text in enumerate(texts)]
    plain = tiny_encoder(tmp_path / "tiny")
    found = train(plain, texts, labels, tmp_path / "own", plan=Plan(epochs=1, batch_size=16))
    detector = TextDetector(str(tmp_path / "own")).fit(texts, labels)
    assert detector.promise_.rows == found.card["set_aside"] == holdout_size(160, 0.05)
    learned = [texts[i] for i in detector.remembered_lines_]
    assert detector._encoder.has_seen(learned).all()
    with pytest.raises(InputError, match="trained on all of these"):
        detector.calibrate(learned)
    train(plain, texts, labels, tmp_path / "all", holdout=0, plan=Plan(epochs=1, batch_size=16))
    for method in ("nnk-means", "energy"):
        with pytest.warns(NoPromiseWarning, match="was trained on 160 of the 160 texts"):
            other = TextDetector(str(tmp_path / "all"), method).fit(texts, labels)
        assert other.promise_ is None
        assert other.detector_._notes()["calibrated"] is False


def test_text_detectors_work_with_scorers(tmp_path):
    texts, labels = labelled_texts(60)
    far = ["0123 4567", "??? !!!"] * 10

    def letters(some):
        return [[t.count(c) + 0.1 for c in "aeionst ?0"] for t in some]

    detector = TextDetector(letters, holdout=20).fit(texts, labels)
    np.testing.assert_array_equal(detector.score_samples(far), -detector.ood_score(far))
    np.testing.assert_array_equal(detector.decision_function(far) < 0, detector.is_ood(far))
    scorer = make_scorer(roc_auc_score, response_method="decision_function")
    assert scorer(detector, [*texts, *far], [1] * 60 + [0] * 20) > 0.9
    with pytest.raises(InputError, match="out of scope"):
        TextDetector(letters).fit(texts, ["out of scope"] * 60)


def test_the_command_line_promises_for_embeddings_and_moves_thresholds(tmp_path, capsys):
    X, _ = drawn(400, 0)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "few.npy", X[:10])
    model = str(tmp_path / "model")
    assert main(["fit", str(tmp_path / "X.npy"), "--out", model]) == 0
    assert "P(false alarm) ≤ 5 % on average" in capsys.readouterr().err
    assert load(model).promise_.kind == HELD_OUT
    before = load(model).threshold_
    assert main(["threshold", model, "--fpr", "0.02"]) == 0
    assert "P(false alarm) ≤ 2 %" in capsys.readouterr().out
    assert load(model).threshold_ > before
    assert main(["threshold", model, "--fpr", "0.05", "--confidence", "0.9"]) == 0
    assert "with 90 % confidence" in capsys.readouterr().out
    assert main(["threshold", model, "--value", "0.5"]) == 0
    assert "an estimate" in capsys.readouterr().out
    for wrong in (["--fpr", "0.0001"], ["--fpr", "2"], ["--fpr", "0.1", "--value", "1"]):
        assert main(["threshold", model, *wrong]) == 2
        assert capsys.readouterr().err.startswith("outscope: ")
        assert load(model).threshold_ == 0.5
    assert main(["fit", str(tmp_path / "few.npy"), "--out", model]) == 0
    told = capsys.readouterr().err
    assert "10 rows are too few to promise" in told
    assert load(model).promise_ is None

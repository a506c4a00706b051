"""The paper's measures against scikit-learn's."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from outscope import InputError
from outscope.decisions.evaluation import (
    RATES,
    _measures,
    intervals,
    matched_lengths,
    trade_off,
)
from outscope.decisions.metrics import aupr_in, aupr_out, auroc, evaluate, fpr_at_tpr


@pytest.fixture(params=range(4))
def problem(request):
    rng = np.random.default_rng(request.param)
    truth = rng.integers(0, 2, 400)
    return truth, np.round(rng.normal(size=400) + truth, request.param)  # ties included


def test_against_scikit_learn(problem):
    truth, scores = problem
    assert auroc(truth, scores) == pytest.approx(roc_auc_score(truth, scores))
    assert aupr_out(truth, scores) == pytest.approx(average_precision_score(truth, scores))
    assert aupr_in(truth, scores) == pytest.approx(average_precision_score(1 - truth, -scores))


def test_fpr_at_95_is_the_share_of_ood_accepted_where_95_percent_of_id_are(problem):
    truth, scores = problem
    wrong, right, _ = roc_curve(1 - truth, -scores)
    expected = min(w for w, r in zip(wrong, right, strict=True) if r >= 0.95)
    assert fpr_at_tpr(truth, scores) == pytest.approx(expected)
    # By hand: the lowest threshold that accepts 95 % of the in-scope rows.
    inside, outside = scores[truth == 0], scores[truth == 1]
    cut = min(t for t in np.unique(scores) if (inside <= t).mean() >= 0.95)
    assert fpr_at_tpr(truth, scores) == pytest.approx((outside <= cut).mean())


def test_perfect_and_inverted_scores():
    truth = np.repeat([0, 1], 50)
    assert evaluate(truth, truth + 0.0) == (1.0, 1.0, 1.0, 0.0)
    assert evaluate(truth, -truth).auroc == 0.0
    assert fpr_at_tpr(truth, -truth.astype(float)) == 1.0


@pytest.mark.parametrize(
    ("truth", "scores", "words"),
    [
        ([0, 1], [1.0], "equal length"),
        ([0, 0], [1.0, 2.0], "both 0"),
        ([0, 2], [1.0, 2.0], "both 0"),
        ([0, 1], [1.0, np.nan], "NaN"),
        ([[0], [1]], [[1.0], [2.0]], "equal length"),
    ],
)
def test_bad_input_is_named(truth, scores, words):
    with pytest.raises(InputError, match=words):
        evaluate(truth, scores)


def test_every_bootstrap_draw_uses_the_same_measures(problem):
    truth, scores = problem
    values, place = np.unique(scores, return_inverse=True)
    counts = [np.bincount(place[truth == kind], minlength=len(values)) for kind in (0, 1)]
    assert _measures(*counts) == pytest.approx(evaluate(truth, scores))


def test_intervals_hold_the_measure_and_narrow_with_more_rows(problem):
    truth, scores = problem
    few = intervals(truth, scores, draws=200)
    many = intervals(np.tile(truth, 16), np.tile(scores, 16), draws=200)
    for name, value in evaluate(truth, scores)._asdict().items():
        assert few[name].low <= value <= few[name].high
        assert many[name].high - many[name].low < 0.6 * (few[name].high - few[name].low)
    assert intervals(truth, scores, draws=20) == intervals(truth, scores, draws=20)


def test_intervals_cover_the_true_auroc_as_often_as_they_say():
    rng, true, covered = np.random.default_rng(0), 0.7602, 0  # Φ(1 / √2)
    for _ in range(200):
        scores = np.r_[rng.normal(size=150), rng.normal(1.0, size=150)]
        low, high = intervals(np.repeat([0, 1], 150), scores, draws=200, confidence=0.9)["auroc"]
        covered += low <= true <= high
    assert 0.84 <= covered / 200 <= 0.96


def test_the_trade_off_never_exceeds_a_rate_and_never_falls(problem):
    truth, scores = problem
    points = trade_off(truth, scores)
    assert all(p.false_alarms <= rate for p, rate in zip(points, RATES, strict=True))
    assert all(a.caught <= b.caught for a, b in pairwise(points))
    for p in points:
        assert p.caught == pytest.approx((scores[truth == 1] > p.threshold).mean())


def test_a_score_of_length_alone_is_exposed():
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1], 3000)
    lengths = np.r_[rng.integers(20, 120, 3000), rng.integers(60, 200, 3000)]
    only_length = lengths + rng.normal(size=6000)
    real = rng.normal(size=6000) + truth
    assert evaluate(truth, only_length).auroc > 0.8
    exposed = matched_lengths(truth, only_length, lengths)
    assert abs(exposed.auroc - 0.5) < 0.06
    assert exposed.length_auroc > 0.8
    assert 0.4 < exposed.share < 0.6  # the rest is longer than any in-scope row
    kept = matched_lengths(truth, real, lengths)
    assert kept.auroc == pytest.approx(evaluate(truth, real).auroc, abs=0.03)
    assert matched_lengths([0, 1], [1.0, 2.0], [5, 50]) is None


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: intervals([0, 1], [1.0, 2.0], draws=0), "draws=0"),
        (lambda: trade_off([0, 1], [1.0, 2.0], [1.0]), "rates holds 1.0"),
        (lambda: matched_lengths([0, 1], [1.0, 2.0], [3.0]), "equal length"),
    ],
)
def test_bad_settings_are_named(call, words):
    with pytest.raises(InputError, match=words):
        call()

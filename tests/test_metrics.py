"""The paper's measures against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from outscope import InputError
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

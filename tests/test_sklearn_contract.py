"""scikit-learn's own contract, on every public estimator, with nothing excused."""

from __future__ import annotations

from conftest import public_detectors
from sklearn.utils.estimator_checks import parametrize_with_checks

from outscope import NNKMeans


@parametrize_with_checks(
    [NNKMeans(), *(kind() for kind in public_detectors())],
    expected_failed_checks=lambda estimator: {},
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)

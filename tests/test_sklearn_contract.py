"""scikit-learn's own contract, on every public estimator, with nothing excused."""

from __future__ import annotations

import sys
from pathlib import Path

from sklearn.utils.estimator_checks import parametrize_with_checks

from outscope import NNKMeans

sys.path.insert(0, str(Path(__file__).parent))
from conftest import public_detectors


@parametrize_with_checks(
    [NNKMeans(), *(kind() for kind in public_detectors())],
    expected_failed_checks=lambda estimator: {},
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)

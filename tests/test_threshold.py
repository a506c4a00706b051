"""Cuts and p-values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outscope import ConformalThreshold, InputError
from outscope.decisions.threshold import quantile_threshold, rows_needed

scores = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)


@given(scores, scores, st.floats(0.001, 0.999))
def test_cut_and_p_value_say_the_same(calibration, queries, rate):
    conformal = ConformalThreshold(calibration)
    if rate * (len(calibration) + 1) < 1 - 1e-6:
        with pytest.raises(InputError, match="cannot be promised"):
            conformal.cut(rate)
        return
    above = np.asarray(queries) > conformal.cut(rate)
    np.testing.assert_array_equal(above, conformal.p_value(queries) <= rate + 1e-9)


@given(scores)
def test_p_values_lie_in_their_range_and_fall_with_the_score(calibration):
    conformal = ConformalThreshold(calibration)
    values = conformal.p_value(np.sort([*calibration, -2e6, 2e6]))
    assert values.max() == 1.0
    assert values.min() == pytest.approx(1 / (len(calibration) + 1))
    assert (np.diff(values) <= 0).all()


def test_p_values_of_fresh_rows_are_super_uniform():
    rng = np.random.default_rng(0)
    rates = {0.05: [], 0.2: []}
    for _ in range(300):
        drawn = rng.normal(size=99 + 50)
        values = ConformalThreshold(drawn[:99]).p_value(drawn[99:])
        for rate, found in rates.items():
            found.append((values <= rate).mean())
    for rate, found in rates.items():
        assert np.mean(found) < rate + 3 * np.std(found) / np.sqrt(300)


@pytest.mark.parametrize(
    ("rate", "rows"), [(0.5, 1), (0.1, 9), (0.05, 19), (0.01, 99), (0.001, 999)]
)
def test_rows_needed_is_just_enough(rate, rows):
    assert rows_needed(rate) == rows
    ConformalThreshold(np.arange(rows)).cut(rate)
    if rows > 1:
        with pytest.raises(InputError):
            ConformalThreshold(np.arange(rows - 1)).cut(rate)


def test_quantile_threshold_lets_the_share_through():
    values = np.random.default_rng(0).normal(size=1000)
    assert (values > quantile_threshold(values, 0.05)).mean() == 0.05


@pytest.mark.parametrize("bad", [[], [np.nan], [1.0, np.inf]])
def test_calibration_scores_must_be_there_and_finite(bad):
    with pytest.raises(InputError, match="finite"):
        ConformalThreshold(bad)


@pytest.mark.parametrize("rate", [0, 1, -0.1, "5%", None])
def test_rates_are_rates(rate):
    with pytest.raises(InputError, match="rate"):
        quantile_threshold([1.0], rate)

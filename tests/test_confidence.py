"""MSP, Energy, D2U and BLOOD against their closed forms, and where floats end."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax

from outscope import BLOODDetector, D2UDetector, EnergyDetector, InputError, MSPDetector

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(scale=4.0, size=(500, 30))


def scores(detector, logits=LOGITS):
    return detector.fit(LOGITS[:, : logits.shape[1]]).ood_score(logits)


def test_msp_is_one_minus_the_largest_probability():
    expected = 1.0 - softmax(LOGITS, axis=1).max(axis=1)
    np.testing.assert_allclose(scores(MSPDetector()), expected, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 10.0])
def test_energy_is_minus_t_log_sum_exp(temperature):
    expected = -temperature * np.log(np.exp(LOGITS / temperature).sum(axis=1))
    np.testing.assert_allclose(scores(EnergyDetector(temperature)), expected, atol=1e-9)


def test_d2u_is_minus_the_distance_to_uniform():
    p = softmax(LOGITS, axis=1)
    expected = -(p * np.log(p * LOGITS.shape[1])).sum(axis=1)
    np.testing.assert_allclose(scores(D2UDetector()), expected, atol=1e-9)


@pytest.mark.parametrize("detector", [MSPDetector(), EnergyDetector(), D2UDetector()])
def test_huge_logits_neither_overflow_nor_turn_round(detector):
    sure = np.full((1, 30), -1e4)
    sure[0, 3] = 1e4
    unsure = np.zeros((1, 30))
    found = scores(detector, np.concatenate([sure, unsure, np.full((1, 30), 1e4)]))
    assert np.isfinite(found).all()
    assert found[0] < found[1]


def test_msp_keeps_the_order_of_rows_that_are_nearly_certain():
    """1 − p would be 0 for both in float64."""
    found = scores(MSPDetector(), np.array([[60.0, 0.0], [80.0, 0.0]]))
    assert 0 < found[1] < found[0] < 1e-20


def test_blood_reads_the_last_transition_or_all():
    rough = np.array([[1.0, 2.0, 30.0], [9.0, 9.0, 0.0]])
    assert BLOODDetector().fit(rough).ood_score(rough).tolist() == [30.0, 0.0]
    assert BLOODDetector("mean").fit(rough).ood_score(rough).tolist() == [11.0, 6.0]


@pytest.mark.parametrize(
    ("detector", "words"),
    [
        (EnergyDetector(0), "temperature=0"),
        (EnergyDetector(np.inf), "temperature=inf"),
        (BLOODDetector("first"), "layers='first'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(detector, words):
    with pytest.raises(InputError, match=words):
        detector.fit(LOGITS)

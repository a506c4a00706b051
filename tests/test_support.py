"""Atoms that few rows stand behind say less, if asked to."""

from __future__ import annotations

import numpy as np
import pytest

import outscope
from outscope import ClasswiseNNKDetector, InputError, NNKDetector
from outscope.decisions.metrics import auroc
from outscope.learning.support import held_back

KINDS = [NNKDetector, ClasswiseNNKDetector]


@pytest.fixture(scope="module")
def dirty():
    """Three classes with 12 stray rows among 600, labels, and queries near strays and classes."""
    rng = np.random.default_rng(3)
    centres = 6.0 * np.eye(3, 32)
    rows = np.repeat(centres, 200, axis=0) + rng.normal(size=(600, 32))
    strays = 6.0 * np.eye(32)[20:32] + 0.5 * rng.normal(size=(12, 32))
    near = np.repeat(strays, 10, axis=0) + 0.5 * rng.normal(size=(120, 32))
    fresh = np.repeat(centres, 40, axis=0) + rng.normal(size=(120, 32))
    labels = np.r_[np.repeat(["a", "b", "c"], 200), np.resize(["a", "b", "c"], 12)]
    return np.concatenate([rows, strays]), labels, fresh, near


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_near_dirt_looks_stranger(kind, dirty):
    X, y, fresh, near = dirty
    truth = np.repeat([0, 1], 120)
    queries = np.concatenate([fresh, near])
    found = [
        auroc(truth, kind(support=s, random_state=0).fit(X, y).ood_score(queries))
        for s in (0.0, 1.0)
    ]
    assert found[1] > found[0] + 0.02


def test_atoms_are_held_back_as_the_formula_says():
    rng = np.random.default_rng(0)
    atoms, mass = rng.normal(size=(30, 5)).astype(np.float32), rng.uniform(1, 9, 30)
    squares = ((atoms[:, None].astype(float) - atoms) ** 2).sum(axis=2)
    rows = np.exp(-squares / (2 * 0.7)) @ mass
    expected = 0.5 * 0.2 * np.maximum(0, np.log(np.average(rows, weights=mass) / rows))
    assert held_back(atoms, mass, [0.2, 0.7]) == pytest.approx(expected)
    assert (expected == 0).any()
    assert (expected > 0).any()


@pytest.mark.parametrize("kind", KINDS)
def test_off_is_bitwise_the_detector_without_it(kind, dirty):
    X, y, fresh, _ = dirty
    plain = kind(random_state=0).fit(X, y)
    assert plain.support_ is None
    assert np.array_equal(
        kind(support=0, random_state=0).fit(X, y).ood_score(fresh), plain.ood_score(fresh)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits_for_any_batch_order_threads_and_after_saving(kind, dirty, tmp_path):
    X, y, fresh, _ = dirty
    detector = kind(support=0.3, random_state=0).fit(X, y)
    scores = detector.ood_score(fresh)
    order = np.random.default_rng(0).permutation(len(fresh))
    assert np.array_equal(detector.ood_score(fresh[order]), scores[order])
    assert np.array_equal([detector.ood_score(row[None])[0] for row in fresh[:20]], scores[:20])
    for jobs in (1, 2):
        again = kind(support=0.3, random_state=0, n_jobs=jobs).fit(X, y)
        assert np.array_equal(again.ood_score(fresh), scores)
    detector.save(tmp_path / "model")
    loaded = outscope.load(tmp_path / "model")
    assert np.array_equal(loaded.ood_score(fresh), scores)
    assert loaded.support_ == detector.support_
    assert np.array_equal(detector.read(fresh).ood_score, scores)


def test_it_follows_new_rows(dirty):
    X, y, fresh, near = dirty
    detector = NNKDetector(support=0.5, random_state=0).fit(X, y)
    before = detector.ood_score(near).mean() - detector.ood_score(fresh).mean()
    more = np.repeat(near, 20, axis=0) + 0.3 * np.random.default_rng(0).normal(size=(2400, 32))
    detector.partial_fit(more, np.resize(["a", "b", "c"], 2400), guard=False)
    assert detector.ood_score(near).mean() - detector.ood_score(fresh).mean() < before


def test_rows_judged_one_by_one_promise_nothing_with_it():
    """What support is usual depends on all rows, so leaving one out says nothing certain."""
    X = np.random.default_rng(0).normal(size=(60, 8))
    assert NNKDetector(random_state=0).fit(X).left_one_out_
    assert not NNKDetector(support=0.3, random_state=0).fit(X).left_one_out_


def test_equal_rows_and_unusable_settings():
    X = np.ones((20, 4))
    assert NNKDetector(support=0.3, random_state=0).fit(X).support_ is None
    with pytest.raises(InputError, match="needs distances; use kernel='gaussian'"):
        NNKDetector(kernel="cosine", support=0.3).fit(np.eye(4)[[0, 1, 2] * 9])
    with pytest.raises(InputError, match="support"):
        NNKDetector(support=-1).fit(X)

"""Candidates from a FAISS index: nearly the exact scores, the same promises, a clear way out."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import outscope
from outscope import ClasswiseNNKDetector, NNKDetector
from outscope.detectors.witnesses import Witnesses
from outscope.engine import approximate
from outscope.engine.approximate import FaissCoder
from outscope.engine.coder import Coder
from outscope.errors import InputError, MissingExtraError
from outscope.io.models import pack, unpack
from outscope.learning.dictionary import NNKMeans

pytest.importorskip("faiss")


def clustered(n, seed, d=24, noise=1.0):
    centres = np.random.default_rng(0).normal(size=(40, d))
    rng = np.random.default_rng(seed)
    return (centres[rng.integers(40, size=n)] + 0.3 * noise * rng.normal(size=(n, d))).astype(
        np.float32
    )


@pytest.fixture
def always(monkeypatch):
    monkeypatch.setattr(approximate, "FEWEST", 2)


@pytest.mark.parametrize("bandwidth", [0.0, 0.1])
@pytest.mark.parametrize("normalize", [True, False])
def test_all_candidates_give_the_exact_codes(always, monkeypatch, bandwidth, normalize):
    """With every list looked through and every atom a candidate, the index decides nothing."""
    monkeypatch.setattr(approximate, "LOOKED_THROUGH", {"Flat": 10_000})
    monkeypatch.setattr(approximate, "CANDIDATES", 1000)
    atoms, rows = clustered(900, 1), clustered(300, 2)
    if normalize:
        atoms /= np.linalg.norm(atoms, axis=1, keepdims=True)
    given = {"normalize": normalize, "penalty": np.linspace(0.0, 0.05, 900)}
    found = FaissCoder(atoms, bandwidth, **given).code(rows, 6)
    wanted = Coder(atoms, bandwidth, **given).code(rows, 6)
    np.testing.assert_array_equal(found.neighbors, wanted.neighbors)
    np.testing.assert_allclose(found.ood_score, wanted.ood_score, rtol=1e-9, atol=1e-9)


def test_where_no_index_finds_enough_the_search_is_exact(always, monkeypatch):
    monkeypatch.setattr(approximate, "ENOUGH", 1.1)
    atoms, rows = clustered(900, 1), clustered(300, 2)
    coder, wanted = FaissCoder(atoms, 0.1), Coder(atoms, 0.1).code(rows, 6)
    for found, exact in zip(coder.code(rows, 6), wanted, strict=True):
        np.testing.assert_array_equal(found, exact)
    np.testing.assert_array_equal(coder.ood_score(rows, 6), wanted.ood_score)


def test_the_more_lists_the_more_is_found(always, monkeypatch):
    monkeypatch.setattr(approximate, "CANDIDATES", 1000)
    monkeypatch.setattr(approximate, "ENOUGH", 0.0)
    atoms, rows = clustered(2000, 1), clustered(500, 2)
    wanted, recall = Coder(atoms, 0.1).code(rows, 8), []
    for lists in (1, 2, 1000):
        monkeypatch.setattr(approximate, "LOOKED_THROUGH", {"Flat": lists})
        found = FaissCoder(atoms, 0.1).code(rows, 8)
        both = [
            np.isin(a, b).mean() for a, b in zip(wanted.neighbors, found.neighbors, strict=True)
        ]
        recall.append(np.mean(both))
    assert recall[0] < recall[1] <= recall[2] == 1.0


@pytest.mark.parametrize(
    ("d", "stretched", "penalty", "noise"),
    [(1, 1, 0, 1), (2, 1, 0, 1), (4, 1, 0, 1), (24, 300, 0, 1), (24, 1, 1000, 1), (64, 1, 0, 0.1)],
)
def test_neighbours_are_found_where_four_bits_are_too_few(always, d, stretched, penalty, noise):
    """Few numbers, some atoms very long or ruled out by a penalty, tight clusters."""
    atoms, rows = clustered(3000, 1, d, noise), clustered(200, 2, d, noise)
    atoms[:100] *= stretched
    given = {"normalize": False, "penalty": np.repeat([penalty, 0.0], [100, 2900])}
    wanted = Coder(atoms, 0.1, **given).code(rows, 8)
    codes = FaissCoder(atoms, 0.1, **given).code(rows, 8)
    both = [len(np.intersect1d(a, b)) for a, b in zip(wanted[0], codes[0], strict=True)]
    assert np.mean(both) > 0.9 * 8
    assert np.median(np.abs(codes.ood_score - wanted.ood_score)) < 0.01


@pytest.mark.parametrize("d", [24, 25])
def test_rows_of_every_kind_and_few_atoms_are_coded(always, d):
    atoms, rows = clustered(20, 1, d), clustered(70, 2, d)
    coder = FaissCoder(atoms, 0.1)
    wanted = coder.ood_score(rows, 9)
    assert np.isfinite(wanted).all()
    half = rows.astype(np.float16)
    np.testing.assert_array_equal(
        coder.ood_score(half, 9), coder.ood_score(half.astype(np.float32), 9)
    )
    np.testing.assert_allclose(coder.ood_score(rows.astype(float), 9), wanted, atol=1e-6)


def test_a_detector_learns_scores_and_is_saved_with_it(always, tmp_path):
    X, strange = clustered(3000, 1), np.random.default_rng(3).normal(size=(400, 24))
    scores = {}
    for search in ("exact", "faiss"):
        detector = NNKDetector(600, n_epochs=2, search=search, random_state=0).fit(X)
        scores[search] = detector.ood_score(np.vstack([clustered(400, 4), strange]))
    truth = np.repeat([0, 1], 400)
    from sklearn.metrics import roc_auc_score

    exact, found = (roc_auc_score(truth, scores[name]) for name in ("exact", "faiss"))
    assert abs(exact - found) < 0.005
    detector.save(tmp_path / "model")
    again = outscope.load(tmp_path / "model")
    assert again.search == "faiss"
    np.testing.assert_array_equal(again.ood_score(strange), detector.ood_score(strange))
    assert "needs its extra" in (tmp_path / "model" / "manifest.json").read_text()


def test_without_faiss_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'outscope\[faiss\]'"):
        NNKDetector(20, search="faiss").fit(clustered(200, 1))


def test_classes_are_searched_exactly():
    with pytest.raises(InputError, match="takes 'exact'"):
        ClasswiseNNKDetector(search="faiss").fit(clustered(90, 1), np.arange(90) % 3)


def test_a_model_saved_before_there_was_a_choice_searches_exactly():
    detector = NNKDetector(20, random_state=0).fit(clustered(200, 1))
    state, arrays = pack(detector)
    for one in (state, state["fitted"]["dictionary_"]):
        del one["parameters"]["search"]
    again = unpack(state, arrays, {one.__name__: one for one in (NNKDetector, NNKMeans, Witnesses)})
    rows = clustered(50, 2)
    np.testing.assert_array_equal(again.ood_score(rows), detector.ood_score(rows))

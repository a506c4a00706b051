"""Baselines against plain definitions."""

from __future__ import annotations

import numpy as np
import pytest

from outscope import (
    ClasswiseKMeansDetector,
    KMeansDetector,
    KNNDetector,
    MahalanobisDetector,
)


def unit(X):
    return X / np.linalg.norm(X, axis=1, keepdims=True)


@pytest.mark.parametrize("k", [1, 4])
def test_knn_is_the_kth_distance_on_unit_rows(blobs, k):
    X, _, fresh, _ = blobs
    gaps = np.linalg.norm(unit(fresh)[:, None] - unit(X)[None], axis=2)
    scores = KNNDetector(k).fit(X).ood_score(fresh)
    np.testing.assert_allclose(scores, np.sort(gaps, axis=1)[:, k - 1], atol=1e-5)


def test_knn_passes_over_a_rows_own_copy_unless_told_otherwise(blobs):
    X = blobs[0]
    gaps = np.linalg.norm(unit(X)[:, None] - unit(X)[None], axis=2)
    np.fill_diagonal(gaps, np.inf)
    np.testing.assert_allclose(KNNDetector().fit(X).ood_score(X), gaps.min(axis=1), atol=1e-5)
    plain = KNNDetector(skip_copies=False).fit(X)
    assert plain.ood_score(X).max() < 1e-3
    assert plain.threshold_ > 0.1  # still from distances to other rows


@pytest.mark.parametrize("n", [1, 3, 1000])
@pytest.mark.parametrize("skip_copies", [True, False])
def test_knn_finds_scores_and_nearest_rows_in_one_search(blobs, n, skip_copies):
    X, _, fresh, _ = blobs
    detector = KNNDetector(2, skip_copies=skip_copies).fit(X)
    rows = np.concatenate([fresh, X[:20]])
    scores, nearest = detector._search_once(rows, n)
    np.testing.assert_array_equal(scores, detector.ood_score(rows))
    assert [tuple(found) for found in nearest.tolist()] == detector.nearest_rows(rows, n)


def test_kmeans_is_the_squared_distance_to_the_nearest_centre(blobs):
    X, _, fresh, _ = blobs
    detector = KMeansDetector(12, random_state=0).fit(X)
    gaps = ((unit(fresh)[:, None] - detector.atoms_[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(detector.ood_score(fresh), gaps.min(axis=1), atol=1e-5)
    assert len(detector.atoms_) == 12


def test_classwise_kmeans_has_centres_for_each_class(blobs):
    X, y, fresh, _ = blobs
    detector = ClasswiseKMeansDetector(4, random_state=0).fit(X, y)
    assert detector.atoms_.shape == (12, 24)
    gaps = ((unit(fresh)[:, None] - detector.atoms_[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(detector.ood_score(fresh), gaps.min(axis=1), atol=1e-5)


def test_mahalanobis_is_the_papers_formula(blobs):
    X, y, fresh, _ = blobs
    means = {c: X[y == c].mean(axis=0).astype(float) for c in np.unique(y)}
    centred = X - np.array([means[c] for c in y])
    inverse = np.linalg.inv(centred.T @ centred / len(X))
    expected = [
        min(float((x - mean) @ inverse @ (x - mean)) for mean in means.values())
        for x in fresh.astype(float)
    ]
    scores = MahalanobisDetector(shrinkage=0.0).fit(X, y).ood_score(fresh)
    np.testing.assert_allclose(scores, expected, rtol=1e-3)


def test_mahalanobis_is_sane_with_fewer_rows_than_columns():
    """Fresh rows of the same kind must not all look strange."""
    rng = np.random.default_rng(0)
    train, fresh = rng.normal(size=(2, 60, 200))
    detector = MahalanobisDetector().fit(train)
    assert detector.is_ood(fresh).mean() < 0.5
    assert detector.ood_score(rng.normal(size=(60, 200)) + 3).min() > detector.threshold_

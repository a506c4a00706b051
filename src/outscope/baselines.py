"""The feature-space methods that users would compare with, under the same contract."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from outscope import _schema
from outscope._engine import Neighbors, NonFiniteRowsError
from outscope._parameters import at_least, between, one_of
from outscope._rows import SAME_POINT, Rows, seed_atoms, size_for
from outscope._sklearn import check_labels, scoring_rows
from outscope._types import FloatArray, IntArray, Matrix
from outscope.detector import Detector

ATOMS = _schema.array("m d", *_schema.FLOATS)


class KNNDetector(Detector):
    """Distance to the k-th nearest training row, on unit rows (Sun et al. 2022). Keeps every row.

    A training row met again would be its own neighbour at distance 0 and say nothing, so a copy of
    the query among the stored rows is passed over (one, not all), unless `skip_copies=False` asks
    for the plain distance.
    """

    _rules = {"n_neighbors": at_least(1), "skip_copies": one_of(True, False)}
    _fitted = {**Detector._fitted, "atoms_": ATOMS}
    _unit_rows = True

    def __init__(
        self,
        n_neighbors: int = 1,
        *,
        skip_copies: bool = True,
        contamination: float = 0.05,
        n_jobs: int | None = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.skip_copies = skip_copies
        self.contamination = contamination
        self.n_jobs = n_jobs

    def _learn(self, X: Matrix, y: Any) -> FloatArray:
        self.atoms_ = Rows(X, normalize=True).all()
        self.prepare()
        if self.skip_copies:
            return self._ood_score(X)
        # Here too the threshold must not be taken from rows that find themselves.
        return self._distance(X, skip=True)

    def prepare(self) -> None:
        """Build what scoring needs from the fitted attributes (after fit or load)."""
        self._search = Neighbors(self.atoms_)

    def _ood_score(self, X: Matrix) -> FloatArray:
        return self._distance(X, skip=self.skip_copies)

    def _distance(self, X: Matrix, *, skip: bool) -> FloatArray:
        k = min(self.n_neighbors, len(self.atoms_))
        extra = 1 if skip and k < len(self.atoms_) else 0
        squared, _ = self._search.distances(X, k + extra, self.n_jobs)
        place = np.full(len(X), k - 1)
        if extra:
            place += squared[:, 0] < SAME_POINT
        return np.sqrt(squared[np.arange(len(X)), place])

    def remembered_rows(self) -> IntArray:
        """Every training row."""
        return np.arange(len(self.atoms_))

    def nearest_rows(self, X: Any, n: int) -> list[tuple[int, ...]]:
        """For each row its n nearest training rows."""
        rows, _ = scoring_rows(self, X)
        return [tuple(found) for found in self._search.distances(rows, n, self.n_jobs)[1].tolist()]


class KMeansDetector(Detector):
    """Squared distance to the nearest of `n_clusters` k-means centres, on unit rows.

    "auto" clusters are as many as the atoms of `NNKDetector`: a quarter of the rows, at most 2,000.
    """

    _rules = {"n_clusters": one_of("auto") | at_least(1) | between(0, 1), "n_epochs": at_least(1)}
    _fitted = {**Detector._fitted, "atoms_": ATOMS}
    _unit_rows = True

    def __init__(
        self,
        n_clusters: int | float | str = "auto",
        *,
        n_epochs: int = 20,
        contamination: float = 0.05,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_epochs = n_epochs
        self.contamination = contamination
        self.random_state = random_state
        self.n_jobs = n_jobs

    def _learn(self, X: Matrix, y: Any) -> FloatArray:
        self.atoms_ = self._centres(X, check_random_state(self.random_state))
        self.prepare()
        return self._ood_score(X)

    def _centres(self, X: Matrix, rng: np.random.RandomState) -> Matrix:
        rows = Rows(X, normalize=True)
        wanted = size_for(self.n_clusters, len(X))
        if wanted == len(X):
            return rows.all()
        seeds = seed_atoms(rows, wanted, rng)[0]
        from sklearn.cluster import KMeans  # here, since it takes long to import

        means = KMeans(len(seeds), init=seeds, n_init=1, max_iter=self.n_epochs, random_state=rng)
        centres: Matrix = means.fit(rows.all()).cluster_centers_
        return centres

    def prepare(self) -> None:
        """Build what scoring needs from the fitted attributes (after fit or load)."""
        self._search = Neighbors(self.atoms_)

    def _ood_score(self, X: Matrix) -> FloatArray:
        squared: FloatArray = self._search.distances(X, 1, self.n_jobs)[0][:, 0]
        return squared


class ClasswiseKMeansDetector(KMeansDetector):
    """k-means in each class; the nearest centre of any class counts. Without labels, one class.

    `n_clusters` counts the clusters of one class.
    """

    _fitted = {**KMeansDetector._fitted, "classes_": _schema.labels("c")}

    def _learn(self, X: Matrix, y: Any) -> FloatArray:
        labels = np.zeros(len(X), dtype=int) if y is None else check_labels(y, len(X))
        self.classes_, membership = np.unique(labels, return_inverse=True)
        rng = check_random_state(self.random_state)
        centres = [self._centres(X[membership == c], rng) for c in range(len(self.classes_))]
        self.atoms_ = np.concatenate(centres)
        self.prepare()
        return self._ood_score(X)


class MahalanobisDetector(Detector):
    """Smallest Mahalanobis distance to a class mean, with one shared covariance (Lee et al. 2018).

    `shrinkage` "auto" (Ledoit and Wolf) keeps the covariance regular where rows are fewer than
    columns or lie in a subspace; 0 is the plain estimate of the paper. Without labels, one class.
    """

    _rules = {"shrinkage": one_of("auto") | between(-1e-12, 1)}
    _fitted = {
        **Detector._fitted,
        "classes_": _schema.labels("c"),
        "means_": _schema.array("c d", "float64", low=-1e154, high=1e154),
        "shrinkage_": _schema.number(-1e-12, 1.0),
        "whitening_": _schema.array("d d", "float64", low=-1e160, high=1e160),
    }

    def __init__(self, *, shrinkage: float | str = "auto", contamination: float = 0.05) -> None:
        self.shrinkage = shrinkage
        self.contamination = contamination

    def _learn(self, X: Matrix, y: Any) -> FloatArray:
        labels = np.zeros(len(X), dtype=int) if y is None else check_labels(y, len(X))
        self.classes_, membership = np.unique(labels, return_inverse=True)
        rows = X.astype(np.float64)
        counts = np.bincount(membership)[:, None]
        self.means_ = np.zeros((len(self.classes_), X.shape[1]))
        np.add.at(self.means_, membership, rows)
        self.means_ /= counts
        centred = rows - self.means_[membership]
        if self.shrinkage == "auto" and len(rows) > 1:
            from sklearn.covariance import ledoit_wolf  # here, since it takes long to import

            covariance, self.shrinkage_ = ledoit_wolf(centred, assume_centered=True)
        else:
            self.shrinkage_ = 0.0 if self.shrinkage == "auto" else float(self.shrinkage)
            covariance = centred.T @ centred / len(rows)
            level = np.trace(covariance) / len(covariance)
            covariance *= 1.0 - self.shrinkage_
            covariance[np.diag_indices_from(covariance)] += self.shrinkage_ * level
        self.whitening_ = _whitening(covariance)
        return self._ood_score(X)

    def _ood_score(self, X: Matrix) -> FloatArray:
        means = self.means_ @ self.whitening_
        scores = np.empty(len(X))
        for start in range(0, len(X), 1024):
            rows = np.asarray(X[start : start + 1024], dtype=np.float64)
            if not np.isfinite(rows).all():
                raise NonFiniteRowsError
            white = rows @ self.whitening_
            # Differences, not squares of sums: distances near 0 keep their digits.
            gaps = [np.einsum("ij,ij->i", white - mean, white - mean) for mean in means]
            scores[start : start + 1024] = np.min(gaps, axis=0)
        return scores


def _whitening(covariance: FloatArray) -> FloatArray:
    """Matrix W with W·Wᵀ = Σ⁻¹, or the pseudo-inverse where Σ is singular."""
    values, vectors = np.linalg.eigh(covariance)
    kept = values > max(values.max(initial=0.0), 1e-300) * len(values) * np.finfo(float).eps
    inverse = np.zeros_like(values)
    inverse[kept] = values[kept] ** -0.5
    whitening: FloatArray = vectors * inverse
    return whitening

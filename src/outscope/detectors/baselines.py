"""Standard feature-space methods to compare with, under the same interface."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_random_state
from threadpoolctl import threadpool_limits

from outscope._parameters import at_least, between, one_of
from outscope._sklearn import check_labels, scoring_rows
from outscope._types import FloatArray, IntArray, Matrix
from outscope.detectors.base import JUDGED_ROWS, Detector, Reading
from outscope.engine.blocks import ROWS_WORTH_A_THREAD, Neighbors, product, threads_of
from outscope.engine.kernels.parallel import for_ranges
from outscope.engine.kernels.product import smallest_gaps
from outscope.io import schema
from outscope.learning.rows import EPOCH_ROWS, SAME_POINT, Rows, quarter, seed_atoms, size_for
from outscope.learning.view import turn

ATOMS = schema.array("m d", *schema.FLOATS)


# Nearest training rows that a nearest-neighbour detector reports for each row.
EVIDENCE = 5


class KNNDetector(Detector):
    """Distance to the k-th nearest training row, on unit rows (Sun et al. 2022). Keeps every row.

    A training row scored again would be its own neighbour at distance 0, which says nothing. So one
    stored copy of the query (not all of them) is skipped, unless `skip_copies=False` asks for the
    plain distance.
    """

    _rules = {"n_neighbors": at_least(1), "skip_copies": one_of(True, False)}
    _fitted = {**Detector._fitted, "atoms_": ATOMS}
    _unit_rows = True

    def __init__(
        self,
        n_neighbors: int = 1,
        *,
        skip_copies: bool = True,
        contamination: float | str = "auto",
        n_jobs: int | None = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.skip_copies = skip_copies
        self.contamination = contamination
        self.n_jobs = n_jobs

    def _learn(self, X: Matrix, y: Any) -> FloatArray:
        self.atoms_ = Rows(X, normalize=True).all()
        self.prepare()
        # Even without `skip_copies`, rows that find themselves must not set the threshold.
        return self._search_once(X, 0, skip=True)[0]

    def _held_out_scores(self, X: Matrix, y: Any, scores: FloatArray) -> FloatArray:
        return scores[:: -(-len(scores) // JUDGED_ROWS)]  # no row counts as its own neighbour

    def _keeps_every_row(self) -> bool:
        return True

    def prepare(self) -> None:
        """Build what scoring needs from the fitted attributes (after fit or load)."""
        self._search = Neighbors(self.atoms_)

    def _ood_score(self, X: Matrix) -> FloatArray:
        return self._search_once(X, 0)[0]

    def _search_once(
        self, X: Matrix, n: int, *, skip: bool | None = None
    ) -> tuple[FloatArray, IntArray]:
        """Scores and the n nearest training rows (copies too), from one search."""
        k = min(self.n_neighbors, len(self.atoms_))
        skip = self.skip_copies if skip is None else skip
        extra = 1 if skip and k < len(self.atoms_) else 0
        squared, nearest = self._search.distances(X, max(k + extra, n), self.n_jobs)
        place = np.full(len(X), k - 1)
        if extra:
            place += squared[:, 0] < SAME_POINT
        return np.sqrt(squared[np.arange(len(X)), place]), nearest[:, :n]

    def remembered_rows(self) -> IntArray:
        """Every training row."""
        return np.arange(len(self.atoms_))

    def nearest_rows(self, X: Any, n: int) -> list[tuple[int, ...]]:
        """For each row, its n nearest training rows."""
        rows, _ = scoring_rows(self, X)
        return [tuple(found) for found in self._search_once(rows, n)[1].tolist()]

    def _read(self, X: Matrix) -> Reading:
        return Reading(*self._search_once(X, EVIDENCE))

    def rows_in(self, reading: Reading, n: int) -> list[tuple[int, ...]]:
        """For each row read, its nearest training rows, at most n and at most 5."""
        if reading.neighbors is None:
            return super().rows_in(reading, n)
        return [tuple(found) for found in reading.neighbors[:, :n].tolist()]


class KMeansDetector(Detector):
    """Squared distance to the nearest of `n_clusters` k-means centres, on unit rows.

    "auto" means as many clusters as `NNKDetector` has atoms: a quarter of the rows, at most 2,000.
    With `contamination` "auto" it may flag no training row at all, since an isolated row is its own
    centre. scikit-learn expects some to be flagged, so the default is a number.
    """

    _rules = {"n_clusters": one_of("auto") | at_least(1) | between(0, 1), "n_epochs": at_least(1)}
    _fitted = {**Detector._fitted, "atoms_": ATOMS}
    _unit_rows = True

    def __init__(
        self,
        n_clusters: int | float | str = "auto",
        *,
        n_epochs: int = 20,
        contamination: float | str = 0.05,
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
        return self._owned(X)

    def _owned(self, X: Matrix) -> FloatArray:
        """Scores of the training rows; keeps each row's centre until `fit` is done."""
        self.prepare()
        squared, owner = self._search.distances(X, 1, self.n_jobs)
        self._owner = owner[:, 0]
        return squared[:, 0]

    def _score_without(self, X: Matrix, y: Any, chosen: IntArray) -> FloatArray:
        # Centres are means, so rows can be taken out of them again.
        counts = np.bincount(self._owner, minlength=len(self.atoms_)).astype(np.float64)
        rest = self.atoms_ * counts[:, None]
        np.subtract.at(rest, self._owner[chosen], Rows(X[chosen], normalize=True).all())
        counts -= np.bincount(self._owner[chosen], minlength=len(counts))
        left = counts > 0
        centres = Neighbors((rest[left] / counts[left, None]).astype(np.float32))
        squared: FloatArray = centres.distances(X[chosen], 1, self.n_jobs)[0][:, 0]
        return squared

    def _keeps_every_row(self) -> bool:
        return len(self.atoms_) == len(self._owner)

    def _forget(self) -> None:
        del self._owner

    def _centres(self, X: Matrix, rng: np.random.RandomState) -> Matrix:
        rows = Rows(X, normalize=True)
        wanted = size_for(self.n_clusters, len(X)) if self.n_clusters != "auto" else quarter(len(X))
        if wanted == len(X):
            return rows.all()
        seeds = seed_atoms(rows, wanted, rng, self.n_jobs)[0]
        from sklearn.cluster import KMeans  # here, since it takes long to import

        means = KMeans(len(seeds), init=seeds, n_init=1, max_iter=self.n_epochs, random_state=rng)
        with threadpool_limits(threads_of(self.n_jobs), user_api="openmp"):
            centres: Matrix = means.fit(rows.all()).cluster_centers_
        return centres

    def prepare(self) -> None:
        """Build what scoring needs from the fitted attributes (after fit or load)."""
        self._search = Neighbors(self.atoms_)

    def _ood_score(self, X: Matrix) -> FloatArray:
        squared: FloatArray = self._search.distances(X, 1, self.n_jobs)[0][:, 0]
        return squared


class ClasswiseKMeansDetector(KMeansDetector):
    """k-means per class; distance to the nearest centre of any class. Without labels, one class.

    `n_clusters` is per class.
    """

    _fitted = {**KMeansDetector._fitted, "classes_": schema.labels("c")}

    def _learn(self, X: Matrix, y: Any) -> FloatArray:
        labels = np.zeros(len(X), dtype=int) if y is None else check_labels(y, len(X))
        self.classes_, membership = np.unique(labels, return_inverse=True)
        rng = check_random_state(self.random_state)
        centres = [self._centres(X[membership == c], rng) for c in range(len(self.classes_))]
        self.atoms_ = np.concatenate(centres)
        return self._owned(X)


class MahalanobisDetector(Detector):
    """Smallest Mahalanobis distance to a class mean, with one shared covariance (Lee et al. 2018).

    `shrinkage` "auto" (Ledoit and Wolf) keeps the covariance regular if there are fewer rows than
    columns or they lie in a subspace; 0 is the paper's plain estimate. Without labels, one class.
    """

    _rules = {"shrinkage": one_of("auto") | between(-1e-12, 1)}
    _parts = ("means_", "whitening_")
    _fitted = {
        **Detector._fitted,
        "classes_": schema.labels("c"),
        "means_": schema.array("c d", "float64", low=-1e154, high=1e154),
        "shrinkage_": schema.number(-1e-12, 1.0),
        "whitening_": schema.array("d d", "float64", low=-1e160, high=1e160),
    }

    def __init__(
        self,
        *,
        shrinkage: float | str = "auto",
        contamination: float | str = "auto",
        n_jobs: int | None = None,
    ) -> None:
        self.shrinkage = shrinkage
        self.contamination = contamination
        self.n_jobs = n_jobs

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
            covariance = product(centred.T, centred, self.n_jobs) / len(rows)
            level = np.trace(covariance) / len(covariance)
            covariance *= 1.0 - self.shrinkage_
            covariance[np.diag_indices_from(covariance)] += self.shrinkage_ * level
        self.whitening_ = _whitening(covariance)
        self.prepare()
        return self._ood_score(X)

    def prepare(self) -> None:
        """Build what scoring needs from the fitted attributes (after fit or load)."""
        self._white_means: FloatArray | None = None  # computed at first use

    def _white(self, X: Matrix) -> FloatArray:
        return turn(X, self.whitening_, normalize=False, n_jobs=self.n_jobs)

    def _ood_score(self, X: Matrix) -> FloatArray:
        if self._white_means is None:
            self._white_means = self._white(self.means_)
        means, scores = self._white_means, np.empty(len(X))
        for start in range(0, len(X), EPOCH_ROWS):
            white = self._white(X[start : start + EPOCH_ROWS])
            found = scores[start : start + EPOCH_ROWS]

            def work(first: int, last: int, white: FloatArray = white, found: Any = found) -> None:
                smallest_gaps(white[first:last], means, found[first:last])

            for_ranges(len(white), threads_of(self.n_jobs), ROWS_WORTH_A_THREAD, work)
        return scores


def _whitening(covariance: FloatArray) -> FloatArray:
    """Matrix W with W·Wᵀ = Σ⁻¹, or of the pseudo-inverse if Σ is singular."""
    values, vectors = np.linalg.eigh(covariance)
    kept = values > max(values.max(initial=0.0), 1e-300) * len(values) * np.finfo(float).eps
    inverse = np.zeros_like(values)
    inverse[kept] = values[kept] ** -0.5
    whitening: FloatArray = vectors * inverse
    return whitening

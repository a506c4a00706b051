"""C- and C-EC-NNK-Means: one dictionary a class."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from outscope import _schema
from outscope._coder import ClassCoder
from outscope._engine import NonFiniteRowsError
from outscope._rows import AUTO_LIMIT, EPOCH_ROWS, Rows, quarter, seed_atoms, size_for
from outscope._sklearn import check_labels, check_rows, scoring_rows
from outscope._types import FloatArray, IntArray, Matrix
from outscope.detector import Detector
from outscope.dictionary import NNKMeans, largest_atom, refuse_small
from outscope.explanation import Explanation
from outscope.geometry import (
    CANDIDATES,
    Collapse,
    are_isolated,
    are_near,
    auto_bandwidth,
    class_bandwidth,
    collapse,
    measure_geometry,
    metric_bandwidth,
    turn,
    within_metric,
)
from outscope.nnk import COMMON, PAPER, NNKDetector, explanations


class ClasswiseNNKDetector(NNKDetector):
    """One dictionary a class; a row is as strange as its best class finds it (C-NNK-Means).

    `fit(X, y)` takes any labels; without labels all rows are one class. `n_atoms` and `max_atoms`
    count atoms *a class*, `max_bytes` is for all of them. Classes are scored together in one
    product, and those that provably cannot have the smallest score are never solved for.

    `bandwidth` "auto" reads the labels too: where classes have collapsed, as those of a fine-tuned
    encoder do, rows are turned to the metric within classes. `metric_` is that matrix or None, and
    the atoms of the classes are in its space. Where no size is asked for, the score is then the
    mean of theirs and that of `shared_`, one dictionary for all classes with the paper's settings.
    `n_atoms` "auto" is a quarter of the rows, drawn over all classes at once under that metric;
    rows too far from each other to be averaged are kept as they are, up to 2,000 a class. So are
    those of half-collapsed or crowded classes, without `shared_`; their lengths tell something too
    and stay as they are (`unit_rows_` is False).

    >>> import numpy as np
    >>> X = np.random.RandomState(0).normal(size=(60, 4)) + np.repeat(np.eye(2, 4) * 9, 30, axis=0)
    >>> detector = ClasswiseNNKDetector(random_state=0).fit(X, ["hi"] * 30 + ["bye"] * 30)
    >>> detector.nearest_class(np.eye(2, 4) * 9).tolist()
    ['hi', 'bye']
    """

    _parts = ("dictionaries_", "shared_", "common_", "metric_")
    _fitted = {
        **Detector._fitted,
        "classes_": _schema.labels("c"),
        "dictionaries_": _schema.many(_schema.nested("NNKMeans"), "c"),
        "n_neighbors_": _schema.whole(1),
        "bandwidth_": _schema.number(0.0),
        "common_": COMMON,
        "metric_": _schema.or_none(_schema.array("d d", "float64")),
        "metric_scale_": _schema.number(0.0),
        "unit_rows_": _schema.one_of(True, False),
        "shared_": _schema.or_none(_schema.nested("NNKMeans")),
    }
    metric_: FloatArray | None = None
    metric_scale_: float = 1.0
    unit_rows_: bool = True
    shared_: NNKMeans | None = None

    @property
    def atoms_(self) -> Matrix:
        """All stored atoms: one class after the other, then the shared ones, (m, d)."""
        every = [*self.dictionaries_, *([] if self.shared_ is None else [self.shared_])]
        return np.concatenate([dictionary.atoms_ for dictionary in every])

    def _learn(self, X: Matrix, y: Any) -> FloatArray:
        labels = np.zeros(len(X), dtype=int) if y is None else check_labels(y, len(X))
        self.classes_, membership = np.unique(labels, return_inverse=True)
        self._membership = membership
        rng = check_random_state(self.random_state)
        self.n_neighbors_ = CANDIDATES if self.n_neighbors == "auto" else int(self.n_neighbors)
        least = len(self.classes_) * largest_atom(X.shape[1], self.precision)
        if self.max_bytes is not None:
            refuse_small(self.max_bytes, least, f"an atom for each of {len(self.classes_)} classes")
        self._look_for_common(X, least)
        rows, n_atoms, collapsed = self._survey(X, membership, rng)
        firsts = self._first_atoms(rows, membership, rng) if collapsed else None
        extra = self.common_ if self.metric_ is None else self.metric_
        whole = self._bytes_for_atoms(extra)
        budget = whole and whole // len(self.classes_)
        self.dictionaries_ = []
        for c in range(len(self.classes_)):
            mine = np.flatnonzero(membership == c)
            size = size_for(n_atoms, len(mine), len(X))
            if collapsed and n_atoms == "auto":
                size = quarter(len(mine))
            # One bandwidth for all classes makes their scores comparable.
            dictionary = self._dictionary(
                n_atoms=size,
                bandwidth=self.bandwidth_ or "auto",
                max_bytes=budget,
                normalize=self._unit,
            )
            dictionary.learn_scores(rows.take(mine), rng, None if firsts is None else firsts[c])
            found = dictionary.representatives_
            dictionary.representatives_ = np.where(found >= 0, mine[found], -1)
            self.dictionaries_.append(dictionary)
        self.shared_, self.metric_scale_ = None, 1.0
        if collapsed:
            self._share(X, membership, rng)
        self.prepare()
        return self._ood_score(X)

    def _share(self, X: Matrix, membership: IntArray, rng: np.random.RandomState) -> None:
        """Under a metric, where no size is asked for, one more dictionary for all classes."""
        relative = self.max_atoms is None or self.max_atoms < 1
        if not (self.normalize and self.n_atoms == "auto" and relative and self.max_bytes is None):
            return
        self.shared_ = self._dictionary(**PAPER, n_atoms=quarter(len(X)))
        self.shared_.learn_scores(X, rng)
        # Both in units of what they leave unexplained of the training rows.
        errors = np.array([dictionary.reconstruction_error_ for dictionary in self.dictionaries_])
        own = float(errors @ np.bincount(membership)) / len(X)
        if own > 0:
            self.metric_scale_ = self.shared_.reconstruction_error_ / own

    @property
    def _unit(self) -> bool:
        """Whether the dictionaries scale what they see to unit length."""
        return self.normalize and self.metric_ is None

    def _survey(
        self, X: Matrix, membership: IntArray, rng: np.random.RandomState
    ) -> tuple[Rows, int | float | str, bool]:
        """Choose metric and bandwidth.

        Returns the rows under them, atoms to learn a class, and whether classes have collapsed.
        """
        rows = Rows(X, normalize=self.normalize)
        self.metric_, self.bandwidth_, self.unit_rows_ = None, 0.0, self.normalize
        if self.kernel == "cosine":
            return rows, self.n_atoms, False
        if self.bandwidth != "auto":
            self.bandwidth_ = float(self.bandwidth)
            return rows, self.n_atoms, False
        geometry = measure_geometry(rows, rng, self.n_jobs)
        if are_near(geometry):
            self.common_ = None
        least = len(self.classes_) * largest_atom(rows.width, self.precision)
        found = Collapse.NONE
        if self._affords(8 * rows.width**2, least):
            found = collapse(rows, membership, geometry)
        if found is not Collapse.NONE:
            self.unit_rows_ = self.normalize and found is Collapse.WHOLE
            rows = Rows(X, normalize=self.unit_rows_)
            self.metric_, self.common_ = within_metric(rows, membership, self.n_jobs), None
            rows = Rows(self._turned(X), normalize=False)
            geometry = measure_geometry(rows, rng, self.n_jobs)
            self.bandwidth_ = metric_bandwidth(geometry, found)
            kept = self.n_atoms == "auto" and found is not Collapse.WHOLE
            return rows, AUTO_LIMIT if kept else self.n_atoms, found is Collapse.WHOLE
        if len(self.classes_) == 1:
            share = 1.0 - size_for(self.n_atoms, len(X)) / len(X)
            self.bandwidth_ = auto_bandwidth(geometry, averaged=share)
            return rows, self.n_atoms, False
        self.bandwidth_ = class_bandwidth(geometry)
        kept = self.n_atoms == "auto" and are_isolated(geometry)
        return rows, AUTO_LIMIT if kept else self.n_atoms, False

    def _first_atoms(
        self, rows: Rows, membership: IntArray, rng: np.random.RandomState
    ) -> list[Matrix] | None:
        """First atoms of each class; None where classes draw their own."""
        if self.n_atoms != "auto" or not isinstance(self.init, str):
            return None
        # Drawn over all rows at once: under one metric, loose classes need more atoms.
        counts = np.bincount(membership)
        size = sum(map(quarter, counts))
        if self.init == "random":
            drawn = rng.choice(len(rows), size, replace=False)
        else:
            drawn = seed_atoms(rows, size, rng, self.n_jobs)[1]
        firsts = []
        for c in range(len(self.classes_)):
            mine = np.sort(drawn[membership[drawn] == c])
            firsts.append(rows.take(mine if len(mine) else np.flatnonzero(membership == c)[:1]))
        return firsts

    def remembered_rows(self) -> IntArray:
        """Training rows that stand for atoms of any class."""
        rows = np.concatenate([d.representatives_.ravel() for d in self.dictionaries_])
        return np.unique(rows[rows >= 0])

    def prepare(self) -> None:
        """Build what scoring needs from the fitted attributes (after fit or load)."""
        self._class_coder = self._coder_of([dictionary.atoms_ for dictionary in self.dictionaries_])

    def _coder_of(self, atoms: list[Matrix]) -> ClassCoder:
        return ClassCoder(
            atoms,
            self.dictionaries_[0].bandwidth_,
            normalize=self._unit,
            discount=self.common_,
        )

    def _score_without(self, X: Matrix, y: Any, chosen: IntArray) -> FloatArray:
        rows = X[chosen]
        seen, member = self._turned(rows), self._membership[chosen]
        atoms = [dictionary.atoms_ for dictionary in self.dictionaries_]
        for c in np.unique(member):
            atoms[c] = self.dictionaries_[c].atoms_without(seen[member == c])
        coder = self._coder_of([some for some in atoms if len(some)] or [self.atoms_])
        own = coder.ood_score(seen, self.n_neighbors_, self.n_jobs)[0]
        if self.shared_ is None:
            return own
        left = self.shared_.atoms_without(rows)
        shared = self.shared_.coder(None, left if len(left) else None)
        return self._mean(own, shared.ood_score(rows, self.shared_.n_neighbors_, self.n_jobs))

    def _keeps_every_row(self) -> bool:
        # A metric or a shared dictionary is learned from the very rows that are judged.
        own = self.metric_ is None and self.shared_ is None
        return own and all(dictionary.keeps_every_row for dictionary in self.dictionaries_)

    def _forget(self) -> None:
        del self._membership
        for dictionary in (*self.dictionaries_, *([] if self.shared_ is None else [self.shared_])):
            dictionary.forget()

    def _turned(self, X: Matrix) -> Matrix:
        """Rows as the dictionaries see them."""
        if self.metric_ is None:
            return X
        return turn(X, self.metric_, normalize=self.unit_rows_, n_jobs=self.n_jobs)

    def _ood_score(self, X: Matrix) -> FloatArray:
        if self.metric_ is None:
            return self._class_coder.ood_score(X, self.n_neighbors_, self.n_jobs)[0]
        scores = np.empty(len(X))
        for start in range(0, len(X), EPOCH_ROWS):
            part = slice(start, start + EPOCH_ROWS)
            own = self._class_coder.ood_score(
                self._turned(X[part]), self.n_neighbors_, self.n_jobs
            )[0]
            scores[part] = self._joined(X[part], own)
        return scores

    def _joined(self, X: Matrix, own: FloatArray) -> FloatArray:
        """Scores of the classes, and of the shared dictionary where there is one."""
        shared = self.shared_
        if shared is None:
            return own
        return self._mean(own, shared._coder.ood_score(X, shared.n_neighbors_, self.n_jobs))

    def _mean(self, own: FloatArray, shared: FloatArray) -> FloatArray:
        return 0.5 * (self.metric_scale_ * own + shared)

    def _nearest(self, X: Any) -> tuple[Matrix, FloatArray, IntArray]:
        """Rows as the dictionaries see them, their scores, and the class that explains them."""
        rows, checked = scoring_rows(self, X)
        try:
            seen = self._turned(rows)
            own, nearest = self._class_coder.ood_score(seen, self.n_neighbors_, self.n_jobs)
            return seen, self._joined(rows, own), nearest
        except NonFiniteRowsError:
            if not checked:
                check_rows(self, X, reset=False)
            raise

    def nearest_class(self, X: Any) -> np.ndarray[Any, Any]:
        """Label of the class that explains each row best (also for rows out of scope)."""
        nearest: np.ndarray[Any, Any] = self.classes_[self._nearest(X)[2]]
        return nearest

    def explain(self, X: Any, *, n_atoms: int = 5) -> list[Explanation]:
        """For each row the atoms of its best class that carry it, and the rest."""
        rows, scores, nearest = self._nearest(X)
        out: list[Explanation | None] = [None] * len(rows)
        for c in np.unique(nearest):
            mine = np.flatnonzero(nearest == c)
            dictionary, label = self.dictionaries_[c], self.classes_[c]
            labels = np.full(dictionary.representatives_.shape, label)
            found = explanations(self, rows[mine], dictionary, labels, label, n_atoms, scores[mine])
            for i, explanation in zip(mine, found, strict=True):
                out[i] = explanation
        return [explanation for explanation in out if explanation is not None]

"""NNK-Means and EC-NNK-Means as detectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from outscope._sklearn import check_labels
from outscope._types import FloatArray, IntArray, Matrix
from outscope.detectors.base import Reading
from outscope.detectors.coded import DictionaryDetector, in_parts
from outscope.detectors.sampling import Training
from outscope.detectors.streaming import labels_of
from outscope.io import schema
from outscope.learning.dictionary import NNKMeans
from outscope.learning.rows import size_for
from outscope.learning.stream import mass_of

# The settings behind the paper's published numbers (its score is the same ranking).
PAPER = {"kernel": "cosine", "update": "mod", "n_neighbors": 20, "n_fit_neighbors": None}


def _are_representative(value: Any, seen: schema.Seen) -> bool:
    """Whether the stored labels match the atoms' representative rows."""
    if value is None or seen["labels_"] is None:
        return value is None and seen["labels_"] is None
    rows = seen["dictionary_"].representatives_
    numbers = schema.integers("m 3", -1).passes(value, {"m": len(rows)})
    return numbers and bool((value < seen["c"]).all() and ((value < 0) == (rows < 0)).all())


class NNKDetector(DictionaryDetector):
    """Flags rows that a learned dictionary of atoms cannot explain. Needs no labels.

    With `entropy`, `max_atoms` or `max_bytes` it prunes itself (EC-NNK-Means). With the Gaussian
    kernel the score is −σ·log of the explained energy, a soft squared distance that still resolves
    far rows; with the cosine kernel it is the paper's normalised reconstruction error. Each row
    costs one product with the atoms, then a quadratic programme in `n_neighbors` unknowns.

    Parameters are those of `NNKMeans`, plus
    common : how much of the rows' mean, which they all have in common, to discount; "auto" decides
        from the rows. Twice a row's product with `common_` is added to its score.
    whitening : strength, 0 to 1: directions in which rows vary more count less; "auto" is 0
        without labels.
    lengths : power to which a whitened row's length is raised; "auto" is 0, unit length.
    support : how much less atoms say that few rows stand behind, for training rows with dirt in
        them; 0 is not at all, 0.3 gives up some accuracy on clean rows (docs/dirty-data.md).
    contamination : "auto", or the share of training rows that the first threshold flags.

    `plan_` says what was chosen and why.

    >>> import numpy as np
    >>> X = np.random.RandomState(0).normal([3.0, 0.0, 0.0], 1.0, size=(300, 3))
    >>> detector = NNKDetector(random_state=0).fit(X)
    >>> detector.predict([[3.0, 0.0, 0.0], [-3.0, 0.0, 0.0]]).tolist()
    [1, -1]
    """

    labels_: Any
    representative_labels_: Any
    _parts = ("dictionary_", "common_", "metric_")
    _fitted = {
        **DictionaryDetector._fitted,
        "dictionary_": schema.nested("NNKMeans"),
        "labels_": schema.or_none(schema.labels("c")),
        "representative_labels_": schema.Field(_are_representative, "labels of the atoms' rows"),
    }

    @property
    def atoms_(self) -> Matrix:
        """The stored atoms, (m, d)."""
        atoms: Matrix = self.dictionary_.atoms_
        return atoms

    @property
    def representatives_(self) -> IntArray:
        """(m, 3) training rows that use each atom most, padded with −1."""
        rows: IntArray = self.dictionary_.representatives_
        return rows

    def _labels_behind(self, atoms: IntArray) -> np.ndarray[Any, Any] | None:
        if self.labels_ is None:
            return None
        return np.asarray(self.labels_[self.representative_labels_[atoms]])

    def _learn_from(self, training: Training) -> None:
        rng = training.rng or check_random_state(self.random_state)
        rows = self._prepare_rows(training, None, rng)
        self.dictionary_ = self._dictionary(max_bytes=self._bytes_for_atoms())
        plan = self.plan_
        learner = self.dictionary_.begin(rows, plan, size_for(plan.n_atoms, training.n_rows), rng)
        learned = self._learn_all([learner], rows, None, training, None)
        self.dictionary_.finish(learner, learned[0])
        self.prepare()
        # Labels do not affect the scores; they are kept for explanations.
        self.labels_, self.representative_labels_ = None, None
        found = self.representatives_
        if training.y is not None:
            labels = check_labels(training.y, len(training.X))
            self.labels_, member = np.unique(labels, return_inverse=True)
            self.representative_labels_ = np.where(found >= 0, member[found], -1)
        self.dictionary_.representatives_ = training.number(found)

    def _prepare_coder(self) -> None:
        penalty = self._held_back(self.atoms_, mass_of(self.dictionary_))
        self._coder = self.dictionary_.coder(self.common_, penalty=penalty)

    def _base_score(self, X: Matrix) -> FloatArray:
        if self._view.plain:
            return self._coder.ood_score(X, self._k, self.n_jobs)
        return in_parts(X, lambda few: self._coder.ood_score(self._seen(few), self._k, self.n_jobs))

    def _base_reading(self, X: Matrix) -> Reading:
        codes = self._coder.code(self._seen(X), self._k, self.n_jobs, relative=True)
        return Reading(codes.ood_score, codes.neighbors, codes.weights)

    def _score_without(self, X: Matrix, y: Any, chosen: IntArray) -> FloatArray:
        seen = self._seen(X[chosen])
        atoms, mass = self.dictionary_.atoms_without(seen)
        if not len(atoms):
            atoms, mass = self.atoms_, mass_of(self.dictionary_)
        coder = self.dictionary_.coder(self.common_, atoms, self._held_back(atoms, mass))
        return coder.ood_score(seen, self._k, self.n_jobs)

    def _keeps_every_row(self) -> bool:
        return self._judges_rows_alone() and self.dictionary_.keeps_every_row

    def _forget(self) -> None:
        self.dictionary_.forget()

    def _dictionaries(self) -> list[NNKMeans]:
        return [self.dictionary_]

    def _put(self, dictionaries: list[NNKMeans]) -> None:
        (self.dictionary_,) = dictionaries

    def _known_labels(self) -> np.ndarray[Any, Any] | None:
        return self.labels_

    def _meet(self, labels: np.ndarray[Any, Any]) -> None:
        known, behind = np.searchsorted(labels, self.labels_), self.representative_labels_
        self.labels_, self.representative_labels_ = labels, np.where(behind < 0, -1, known[behind])

    def _name_rows(self, before: IntArray, numbers: IntArray, membership: IntArray) -> None:
        if self.labels_ is not None:
            known = np.concatenate([before.ravel(), numbers])
            labels = np.concatenate([self.representative_labels_.ravel(), membership])
            self.representative_labels_ = labels_of(self.representatives_, known, labels)

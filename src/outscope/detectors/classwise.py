"""C- and C-EC-NNK-Means: one dictionary per class."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from outscope._sklearn import check_labels
from outscope._types import BoolArray, FloatArray, IntArray, Matrix
from outscope.detectors.base import Reading
from outscope.detectors.coded import DictionaryDetector, in_parts
from outscope.detectors.sampling import Training
from outscope.engine.coder import ClassCoder
from outscope.errors import InputError
from outscope.io import schema
from outscope.learning.dictionary import NNKMeans
from outscope.learning.passes import REPRESENTATIVES
from outscope.learning.plan import largest_atom, refuse_small
from outscope.learning.rows import Rows, size_for
from outscope.learning.stream import begin, mass_of, remembered

# First rows of a new class that are learned whatever their scores: fewer cannot place a cut that
# 5 % of them exceed.
YOUNG_CLASS = 20


class ClasswiseNNKDetector(DictionaryDetector):
    """One dictionary per class; a row gets the smallest of its class scores (C-NNK-Means).

    `fit(X, y)` takes any labels; without labels all rows form one class. `n_atoms` and `max_atoms`
    are *per class*, `max_bytes` is for all classes together. All classes are scored in one product,
    and those that provably cannot have the smallest score are skipped.

    Parameters are those of `NNKDetector`; "auto" for `whitening` and `lengths` uses the labels:
    directions in which rows vary within their classes count less, the more so the more clearly the
    labels tell what varies, and rows of collapsed classes, as from a fine-tuned encoder, keep part
    of their length. `metric_` is the whitening matrix; the atoms live in the whitened space.

    >>> import numpy as np
    >>> X = np.random.RandomState(0).normal(size=(60, 4)) + np.repeat(np.eye(2, 4) * 9, 30, axis=0)
    >>> detector = ClasswiseNNKDetector(random_state=0).fit(X, ["hi"] * 30 + ["bye"] * 30)
    >>> detector.nearest_class(np.eye(2, 4) * 9).tolist()
    ['hi', 'bye']
    """

    _parts = ("dictionaries_", "common_", "metric_")
    _by_class = True
    _fitted = {
        **DictionaryDetector._fitted,
        "classes_": schema.labels("c"),
        "dictionaries_": schema.many(schema.nested("NNKMeans"), "c"),
    }

    @property
    def atoms_(self) -> Matrix:
        """All stored atoms, class by class, (m, d)."""
        return np.concatenate([dictionary.atoms_ for dictionary in self.dictionaries_])

    @property
    def representatives_(self) -> IntArray:
        """(m, 3) training rows that use each atom most, padded with −1."""
        return np.concatenate([dictionary.representatives_ for dictionary in self.dictionaries_])

    def _labels_behind(self, atoms: IntArray) -> np.ndarray[Any, Any]:
        sizes = [len(dictionary.atoms_) for dictionary in self.dictionaries_]
        owner = np.repeat(self.classes_, sizes)
        return np.repeat(owner[atoms][..., None], REPRESENTATIVES, axis=-1)

    def _learn_from(self, training: Training) -> None:
        if self.search != "exact":
            raise InputError(
                f"search={self.search!r} is for one dictionary; {type(self).__name__} takes 'exact'"
            )
        X, y = training.X, training.y
        labels = np.zeros(len(X), dtype=int) if y is None else check_labels(y, len(X))
        self.classes_, membership = np.unique(labels, return_inverse=True)
        self._membership = membership
        all_members, counts = None, np.bincount(membership)
        if training.source is not None:
            all_members = np.zeros(training.n_rows, np.intp)
            if training.labels is not None:
                all_members = np.searchsorted(self.classes_, training.labels)
            counts = np.bincount(all_members)
        rng = training.rng or check_random_state(self.random_state)
        if self.max_bytes is not None:
            least = len(self.classes_) * largest_atom(X.shape[1], self.precision)
            refuse_small(self.max_bytes, least, f"one atom per class ({len(self.classes_)})")
        rows = self._prepare_rows(training, membership, rng)
        plan, whole = self.plan_, self._bytes_for_atoms()
        share = whole and whole // len(self.classes_)
        self.dictionaries_, learners = [], []
        for c, count in enumerate(counts.tolist()):
            own = rows.take(np.flatnonzero(membership == c))
            dictionary = self._dictionary(max_bytes=share)
            size = min(size_for(plan.n_atoms, count, training.n_rows), count)
            ready = Rows(own, normalize=False, kept=True)
            learners.append(dictionary.begin(ready, plan.of_size(size), size, rng))
            self.dictionaries_.append(dictionary)
        learned = self._learn_all(learners, rows, membership, training, all_members)
        for dictionary, learner, one in zip(self.dictionaries_, learners, learned, strict=True):
            dictionary.finish(learner, one)
            dictionary.representatives_ = training.number(dictionary.representatives_)
        self.prepare()

    def _prepare_coder(self) -> None:
        self._coder = self._coder_of(self._behind())

    def _behind(self) -> list[tuple[Matrix, FloatArray]]:
        """Atoms and masses of each class."""
        return [(dictionary.atoms_, mass_of(dictionary)) for dictionary in self.dictionaries_]

    def _coder_of(self, behind: list[tuple[Matrix, FloatArray]]) -> ClassCoder:
        first, (atoms, masses) = self.dictionaries_[0], zip(*behind, strict=True)
        return ClassCoder(
            atoms,
            first.bandwidth_,
            normalize=first.normalize,
            discount=self.common_,
            penalty=self._held_back(np.concatenate(atoms), np.concatenate(masses)),
        )

    def _base_score(self, X: Matrix) -> FloatArray:
        if self._view.plain:
            scores: FloatArray = self._coder.ood_score(X, self._k, self.n_jobs)[0]
            return scores
        return in_parts(
            X, lambda few: self._coder.ood_score(self._seen(few), self._k, self.n_jobs)[0]
        )

    def _base_reading(self, X: Matrix) -> Reading:
        codes = self._coder.code(self._seen(X), self._k, self.n_jobs)
        return Reading(codes.ood_score, codes.neighbors, codes.weights, codes.classes)

    def labels_in(self, reading: Reading) -> np.ndarray[Any, Any] | None:
        """For each row, the class that explains it best."""
        return None if reading.classes is None else self.classes_[reading.classes]

    def nearest_class(self, X: Any) -> np.ndarray[Any, Any]:
        """Label of the class that explains each row best (out-of-scope rows included)."""
        return np.asarray(self.labels_in(self.read(X)))

    def _score_without(self, X: Matrix, y: Any, chosen: IntArray) -> FloatArray:
        seen, member = self._seen(X[chosen]), self._membership[chosen]
        behind = self._behind()
        for c in np.unique(member):
            behind[c] = self.dictionaries_[c].atoms_without(seen[member == c])
        coder = self._coder_of([some for some in behind if len(some[0])] or self._behind())
        return coder.ood_score(seen, self._k, self.n_jobs)[0]

    def _keeps_every_row(self) -> bool:
        whole = all(dictionary.keeps_every_row for dictionary in self.dictionaries_)
        return self._judges_rows_alone() and whole

    def _forget(self) -> None:
        del self._membership
        for dictionary in self.dictionaries_:
            dictionary.forget()

    def _dictionaries(self) -> list[NNKMeans]:
        return list(self.dictionaries_)

    def _put(self, dictionaries: list[NNKMeans]) -> None:
        self.dictionaries_ = dictionaries

    def _known_labels(self) -> np.ndarray[Any, Any]:
        return self.classes_

    def _owners(self, membership: IntArray) -> IntArray:
        return membership

    def _vouched(self, labels: np.ndarray[Any, Any]) -> BoolArray:
        young = [c for c in self.stream_.young_ if remembered(self.dictionaries_[c]) < YOUNG_CLASS]
        known = np.delete(self.classes_, young)
        return ~np.isin(labels, known)

    def _meet(self, labels: np.ndarray[Any, Any]) -> None:
        whole = self._bytes_for_atoms()
        if whole is not None:
            least = len(labels) * largest_atom(self.n_features_in_, self.plan_.precision)
            refuse_small(whole, least, f"one atom per class ({len(labels)})")
        known = dict(zip(self.classes_.tolist(), self.dictionaries_, strict=True))
        self.classes_, self.dictionaries_ = labels, []
        for label in labels.tolist():
            if label not in known:
                known[label] = self._dictionary()
                begin(known[label], self.plan_, self.n_features_in_)
            known[label].max_bytes = whole and whole // len(labels)
            self.dictionaries_.append(known[label])

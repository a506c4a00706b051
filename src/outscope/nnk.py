"""NNK-Means, EC-, C- and C-EC-NNK-Means as detectors."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from outscope._coder import ClassCoder, Coder
from outscope._engine import NonFiniteRowsError
from outscope._rows import AUTO_LIMIT, EPOCH_ROWS, Rows, seed_atoms, size_for
from outscope._sklearn import check_labels, check_rows, scoring_rows
from outscope._types import FloatArray, IntArray, Matrix
from outscope.detector import Detector
from outscope.dictionary import RULES, NNKMeans
from outscope.explanation import Evidence, Explanation
from outscope.geometry import (
    CANDIDATES,
    Collapse,
    are_isolated,
    are_near,
    auto_bandwidth,
    class_bandwidth,
    collapse,
    common_part,
    measure_geometry,
    turn,
    within_metric,
)

# The settings behind the paper's published numbers (its score is the same ranking).
PAPER = {"kernel": "cosine", "update": "mod", "n_neighbors": 20, "n_fit_neighbors": None}


class NNKDetector(Detector):
    """Strange is what a learned dictionary of atoms cannot explain. Needs no labels.

    With `entropy`, `max_atoms` or `max_bytes` it prunes itself (EC-NNK-Means). The score is −σ·log
    of the explained energy for the Gaussian kernel, a soft squared distance that keeps its
    resolution for far rows, and the paper's normalised reconstruction error for the cosine kernel.
    Cost of a row: one product with the atoms, then a quadratic programme of `n_neighbors` unknowns.

    `bandwidth` "auto" also looks at what all rows have in common, as those of one narrow domain do:
    a row's product with `common_`, a share of their mean, is then added to its score twice. None
    where there is little.

    Parameters are those of `NNKMeans`, and
    contamination : share of the training rows that the first threshold leaves out.

    >>> import numpy as np
    >>> X = np.random.RandomState(0).normal([3.0, 0.0, 0.0], 1.0, size=(300, 3))
    >>> detector = NNKDetector(random_state=0).fit(X)
    >>> detector.predict([[3.0, 0.0, 0.0], [-3.0, 0.0, 0.0]]).tolist()
    [1, -1]
    """

    _rules = RULES
    common_: Matrix | None = None

    def __init__(
        self,
        n_atoms: int | float | str = "auto",
        *,
        n_neighbors: int | str = "auto",
        n_fit_neighbors: int | None = 5,
        kernel: str = "gaussian",
        bandwidth: float | str = "auto",
        entropy: float = 0.0,
        max_atoms: int | float | None = None,
        max_bytes: int | None = None,
        update: str = "average",
        n_epochs: int = 8,
        n_plain_epochs: int = 2,
        init: str | Matrix = "k-means++",
        normalize: bool = True,
        precision: str = "float32",
        contamination: float = 0.05,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_atoms = n_atoms
        self.n_neighbors = n_neighbors
        self.n_fit_neighbors = n_fit_neighbors
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.entropy = entropy
        self.max_atoms = max_atoms
        self.max_bytes = max_bytes
        self.update = update
        self.n_epochs = n_epochs
        self.n_plain_epochs = n_plain_epochs
        self.init = init
        self.normalize = normalize
        self.precision = precision
        self.contamination = contamination
        self.random_state = random_state
        self.n_jobs = n_jobs

    @property
    def atoms_(self) -> Matrix:
        """The stored atoms, (m, d)."""
        atoms: Matrix = self.dictionary_.atoms_
        return atoms

    @property
    def stored_bytes_(self) -> int:
        """Bytes that the atoms, and `common_` where there is one, take in a saved model."""
        return self.dictionary_.stored_bytes_ + self._common_bytes

    def _dictionary(self, **changes: Any) -> NNKMeans:
        parameters = self.get_params(deep=False)
        del parameters["contamination"]
        return NNKMeans(**{**parameters, **changes})

    @property
    def _common_bytes(self) -> int:
        return 0 if self.common_ is None else self.common_.nbytes

    def _look_for_common(self, X: Matrix) -> int | None:
        """Set `common_`; return what it leaves of `max_bytes`."""
        by_geometry = self.kernel == "gaussian" and self.bandwidth == "auto" and self.normalize
        self.common_ = common_part(X) if by_geometry else None
        if self.max_bytes is None:
            return None
        if self._common_bytes >= self.max_bytes // 2:
            self.common_ = None
        return self.max_bytes - self._common_bytes

    def _learn(self, X: Matrix, y: Any) -> FloatArray:
        self.dictionary_ = self._dictionary(max_bytes=self._look_for_common(X))
        scores = self.dictionary_.learn_scores(X, check_random_state(self.random_state))
        if self.common_ is not None and are_near(self.dictionary_._geometry):
            self.common_ = None
        self.prepare()
        if self.common_ is not None:
            scores = self._ood_score(X)
        # Labels play no part in the scores; they are kept for explanations.
        self.labels_, self.representative_labels_ = None, None
        if y is not None:
            self.labels_, member = np.unique(check_labels(y, len(X)), return_inverse=True)
            rows = self.dictionary_.representatives_
            self.representative_labels_ = np.where(rows >= 0, member[rows], -1)
        return scores

    def prepare(self) -> None:
        """Build what scoring needs from the fitted attributes (after fit or load)."""
        found = self.dictionary_
        self._coder = found._coder
        if self.common_ is not None:
            self._coder = Coder(
                found.atoms_, found.bandwidth_, normalize=self.normalize, discount=self.common_
            )

    def _ood_score(self, X: Matrix) -> FloatArray:
        return self._coder.ood_score(X, self.dictionary_.n_neighbors_, self.n_jobs)

    def explain(self, X: Any, *, n_atoms: int = 5) -> list[Explanation]:
        """For each row the atoms that carry it (at most `n_atoms`, heaviest first) and the rest."""
        rows, _ = scoring_rows(self, X)
        labels = None
        if self.labels_ is not None:
            labels = self.labels_[self.representative_labels_]
        scores = None if self.common_ is None else self.ood_score(X)
        return _explanations(self, rows, self.dictionary_, labels, None, n_atoms, scores)

    def remembered_rows(self) -> IntArray:
        """Training rows that stand for atoms."""
        rows: IntArray = np.unique(self.dictionary_.representatives_)
        return rows[rows >= 0]

    def nearest_rows(self, X: Any, n: int) -> list[tuple[int, ...]]:
        """For each row the training rows behind the atoms that carry it, heaviest first."""
        out = []
        for why in self.explain(X, n_atoms=n):
            # The best row of each atom before the second best of any.
            turns = zip_longest(*(evidence.rows for evidence in why.evidence))
            rows = [row for turn in turns for row in turn if row is not None]
            out.append(tuple(dict.fromkeys(rows))[:n])
        return out


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
    rows too far from each other to be averaged are kept as they are, up to 2,000 a class.

    >>> import numpy as np
    >>> X = np.random.RandomState(0).normal(size=(60, 4)) + np.repeat(np.eye(2, 4) * 9, 30, axis=0)
    >>> detector = ClasswiseNNKDetector(random_state=0).fit(X, ["hi"] * 30 + ["bye"] * 30)
    >>> detector.nearest_class(np.eye(2, 4) * 9).tolist()
    ['hi', 'bye']
    """

    metric_: FloatArray | None = None
    metric_scale_: float = 1.0
    shared_: NNKMeans | None = None

    @property
    def atoms_(self) -> Matrix:
        """All stored atoms: one class after the other, then the shared ones, (m, d)."""
        return np.concatenate([dictionary.atoms_ for dictionary in self._every_dictionary()])

    @property
    def stored_bytes_(self) -> int:
        """Bytes that all atoms, and `common_` or the metric where there is one, take."""
        atoms = sum(dictionary.stored_bytes_ for dictionary in self._every_dictionary())
        atoms += self._common_bytes
        return atoms if self.metric_ is None else atoms + self.metric_.nbytes

    def _every_dictionary(self) -> list[NNKMeans]:
        return [*self.dictionaries_, *([] if self.shared_ is None else [self.shared_])]

    def _learn(self, X: Matrix, y: Any) -> FloatArray:
        labels = np.zeros(len(X), dtype=int) if y is None else check_labels(y, len(X))
        self.classes_, membership = np.unique(labels, return_inverse=True)
        rng = check_random_state(self.random_state)
        self.n_neighbors_ = CANDIDATES if self.n_neighbors == "auto" else int(self.n_neighbors)
        whole = self._look_for_common(X)
        rows, n_atoms = self._survey(X, membership, rng)
        firsts = self._first_atoms(rows, membership, rng)
        budget = None if whole is None else max(1, whole // len(self.classes_))
        self.dictionaries_ = []
        for c, first in enumerate(firsts):
            mine = np.flatnonzero(membership == c)
            # One bandwidth for all classes makes their scores comparable.
            dictionary = self._dictionary(
                n_atoms=n_atoms,
                bandwidth=self.bandwidth_ or "auto",
                max_bytes=budget,
                normalize=self._unit,
            )
            dictionary.learn_scores(rows.take(mine), rng, first)
            found = dictionary.representatives_
            dictionary.representatives_ = np.where(found >= 0, mine[found], -1)
            self.dictionaries_.append(dictionary)
        self._share(X, membership, rng)
        self.prepare()
        return self._ood_score(X)

    def _share(self, X: Matrix, membership: IntArray, rng: np.random.RandomState) -> None:
        """Under a metric, where no size is asked for, one more dictionary for all classes."""
        self.shared_, self.metric_scale_ = None, 1.0
        relative = self.max_atoms is None or self.max_atoms < 1
        if self._collapse is not Collapse.WHOLE or not (
            self.normalize and self.n_atoms == "auto" and relative and self.max_bytes is None
        ):
            return
        self.shared_ = self._dictionary(**PAPER)
        self.shared_.learn_scores(X, rng)
        # Both in units of what they leave unexplained of the training rows.
        errors = np.array([dictionary.reconstruction_error_ for dictionary in self.dictionaries_])
        own = float(errors @ np.bincount(membership)) / len(X)
        if own > 0:
            self.metric_scale_ = self.shared_.reconstruction_error_ / own

    @property
    def _unit(self) -> bool:
        """Whether the dictionaries see rows of unit length."""
        return self.normalize and self.metric_ is None

    def _survey(
        self, X: Matrix, membership: IntArray, rng: np.random.RandomState
    ) -> tuple[Rows, int | float | str]:
        """Choose metric and bandwidth; return the rows under them, and atoms to learn a class."""
        rows = Rows(X, normalize=self.normalize)
        self.metric_, self.bandwidth_, self._collapse = None, 0.0, Collapse.NONE
        if self.kernel == "cosine":
            return rows, self.n_atoms
        if self.bandwidth != "auto":
            self.bandwidth_ = float(self.bandwidth)
            return rows, self.n_atoms
        geometry = measure_geometry(rows, rng)
        if are_near(geometry):
            self.common_ = None
        self._collapse = collapse(rows, membership, geometry)
        if self._collapse is not Collapse.NONE:
            self.metric_, self.common_ = within_metric(rows, membership), None
            rows = Rows(self._turned(X), normalize=False)
            self.bandwidth_ = auto_bandwidth(measure_geometry(rows, rng))
            kept = self.n_atoms == "auto" and self._collapse is Collapse.HALF
            return rows, AUTO_LIMIT if kept else self.n_atoms
        if len(self.classes_) == 1:
            share = 1.0 - size_for(self.n_atoms, len(X)) / len(X)
            self.bandwidth_ = auto_bandwidth(geometry, averaged=share)
            return rows, self.n_atoms
        self.bandwidth_ = class_bandwidth(geometry)
        kept = self.n_atoms == "auto" and are_isolated(geometry)
        return rows, AUTO_LIMIT if kept else self.n_atoms

    def _first_atoms(
        self, rows: Rows, membership: IntArray, rng: np.random.RandomState
    ) -> list[Matrix | None]:
        """First atoms of each class; None where the class draws its own."""
        if (
            self.n_atoms != "auto"
            or not isinstance(self.init, str)
            or self._collapse is not Collapse.WHOLE
        ):
            return [None] * len(self.classes_)
        # Drawn over all rows at once: under one metric, loose classes need more atoms.
        size = sum(size_for("auto", count) for count in np.bincount(membership))
        if self.init == "random":
            drawn = rng.choice(len(rows), size, replace=False)
        else:
            drawn = seed_atoms(rows, size, rng)[1]
        firsts: list[Matrix | None] = []
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
        self._class_coder = ClassCoder(
            [dictionary.atoms_ for dictionary in self.dictionaries_],
            self.dictionaries_[0].bandwidth_,
            normalize=self._unit,
            discount=self.common_,
        )

    def _turned(self, X: Matrix) -> Matrix:
        """Rows as the dictionaries see them."""
        if self.metric_ is None:
            return X
        return turn(X, self.metric_, normalize=self.normalize, n_jobs=self.n_jobs)

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
        other: FloatArray = shared._coder.ood_score(X, shared.n_neighbors_, self.n_jobs)
        return 0.5 * (self.metric_scale_ * own + other)

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
            found = _explanations(
                self, rows[mine], dictionary, labels, label, n_atoms, scores[mine]
            )
            for i, explanation in zip(mine, found, strict=True):
                out[i] = explanation
        return [explanation for explanation in out if explanation is not None]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _explanations(
    detector: Detector,
    X: Matrix,
    dictionary: NNKMeans,
    labels: np.ndarray[Any, Any] | None,  # (m, r) of the remembered rows
    label: Any,
    n_atoms: int,
    scores: FloatArray | None = None,  # where more than this dictionary has a say in them
) -> list[Explanation]:
    codes = dictionary.encode(X)
    if scores is not None:
        codes = codes._replace(ood_score=scores)
    scaled = Rows(X, normalize=dictionary.normalize).all().astype(np.float64)
    out = []
    for row, atoms, weights, score in zip(scaled, *codes, strict=True):
        share = weights / weights.sum() if weights.sum() > 0 else weights
        evidence = tuple(
            _evidence(dictionary, labels, int(atoms[a]), float(weights[a]), float(share[a]))
            for a in np.argsort(-weights, kind="stable")[:n_atoms]
            if weights[a] > 0
        )
        # A narrow Gaussian's weights are tiny; their shares say how the row is put together.
        carried = (weights if dictionary.bandwidth_ == 0.0 else share) @ dictionary.atoms_[atoms]
        own = float(row @ row)
        left = float(np.sum((row - carried) ** 2)) / own if own > 0 else 1.0
        best = _plain(label)
        if best is None and evidence and evidence[0].labels:
            best = evidence[0].labels[0]
        strange = bool(score > detector.threshold_)
        out.append(Explanation(float(score), strange, min(1.0, left), best, evidence))
    return out


def _evidence(
    dictionary: NNKMeans,
    labels: np.ndarray[Any, Any] | None,
    atom: int,
    weight: float,
    share: float,
) -> Evidence:
    there = dictionary.representatives_[atom] >= 0
    rows = tuple(dictionary.representatives_[atom][there].tolist())
    names = () if labels is None else tuple(labels[atom][there].tolist())
    return Evidence(atom, weight, share, rows, names)

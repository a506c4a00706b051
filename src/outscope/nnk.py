"""NNK-Means and EC-NNK-Means as detectors, and the reasons they give."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from outscope import _schema
from outscope._rows import Rows
from outscope._sklearn import check_labels, scoring_rows
from outscope._types import FloatArray, IntArray, Matrix
from outscope.detector import Detector
from outscope.dictionary import RULES, NNKMeans, largest_atom
from outscope.explanation import Evidence, Explanation
from outscope.geometry import are_near, common_part

# The settings behind the paper's published numbers (its score is the same ranking).
PAPER = {"kernel": "cosine", "update": "mod", "n_neighbors": 20, "n_fit_neighbors": None}

COMMON = _schema.or_none(_schema.array("d", "float32"))


def _are_representative(value: Any, seen: _schema.Seen) -> bool:
    """Whether labels belong to the rows that stand for the atoms."""
    if value is None or seen["labels_"] is None:
        return value is None and seen["labels_"] is None
    rows = seen["dictionary_"].representatives_
    numbers = _schema.integers("m 3", -1).passes(value, {"m": len(rows)})
    return numbers and bool((value < seen["c"]).all() and ((value < 0) == (rows < 0)).all())


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
    contamination : "auto", or the share of the training rows that the first threshold leaves out.

    >>> import numpy as np
    >>> X = np.random.RandomState(0).normal([3.0, 0.0, 0.0], 1.0, size=(300, 3))
    >>> detector = NNKDetector(random_state=0).fit(X)
    >>> detector.predict([[3.0, 0.0, 0.0], [-3.0, 0.0, 0.0]]).tolist()
    [1, -1]
    """

    _rules = RULES
    _parts: tuple[str, ...] = ("dictionary_", "common_")
    _fitted = {
        **Detector._fitted,
        "dictionary_": _schema.nested("NNKMeans"),
        "common_": COMMON,
        "labels_": _schema.or_none(_schema.labels("c")),
        "representative_labels_": _schema.Field(_are_representative, "a label for each row behind"),
    }
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
        contamination: float | str = "auto",
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

    def _dictionary(self, **changes: Any) -> NNKMeans:
        parameters = self.get_params(deep=False)
        del parameters["contamination"]
        return NNKMeans(**{**parameters, **changes})

    def _look_for_common(self, X: Matrix, least: int) -> None:
        """Set `common_`, where it is looked for and affordable."""
        by_geometry = self.kernel == "gaussian" and self.bandwidth == "auto" and self.normalize
        affordable = by_geometry and self._affords(4 * X.shape[1], least)
        self.common_ = common_part(X) if affordable else None

    def _affords(self, extra: int, least: int) -> bool:
        """Whether `extra` bytes are at most half of `max_bytes` and leave `least` for atoms."""
        return self.max_bytes is None or max(2 * extra, extra + least) <= self.max_bytes

    def _bytes_for_atoms(self, extra: Matrix | None) -> int | None:
        """What an array beside the atoms leaves of `max_bytes`."""
        return self.max_bytes and self.max_bytes - (0 if extra is None else extra.nbytes)

    def _learn(self, X: Matrix, y: Any) -> FloatArray:
        self._look_for_common(X, largest_atom(X.shape[1], self.precision))
        self.dictionary_ = self._dictionary(max_bytes=self._bytes_for_atoms(self.common_))
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
        self._coder = found._coder if self.common_ is None else found.coder(self.common_)

    def _ood_score(self, X: Matrix) -> FloatArray:
        return self._coder.ood_score(X, self.dictionary_.n_neighbors_, self.n_jobs)

    def _score_without(self, X: Matrix, y: Any, chosen: IntArray) -> FloatArray:
        found = self.dictionary_
        atoms = found.atoms_without(X[chosen])
        coder = found.coder(self.common_, atoms if len(atoms) else None)
        return coder.ood_score(X[chosen], found.n_neighbors_, self.n_jobs)

    def _keeps_every_row(self) -> bool:
        return self.dictionary_.keeps_every_row

    def _forget(self) -> None:
        self.dictionary_.forget()

    def explain(self, X: Any, *, n_atoms: int = 5) -> list[Explanation]:
        """For each row the atoms that carry it (at most `n_atoms`, heaviest first) and the rest."""
        rows, _ = scoring_rows(self, X)
        labels = None
        if self.labels_ is not None:
            labels = self.labels_[self.representative_labels_]
        scores = None if self.common_ is None else self.ood_score(X)
        return explanations(self, rows, self.dictionary_, labels, None, n_atoms, scores)

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


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def explanations(
    detector: Detector,
    X: Matrix,
    dictionary: NNKMeans,
    labels: np.ndarray[Any, Any] | None,  # (m, r) of the remembered rows
    label: Any,
    n_atoms: int,
    scores: FloatArray | None = None,  # where more than this dictionary has a say in them
) -> list[Explanation]:
    """For each row the atoms of a dictionary that carry it, and what they leave of it."""
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

"""What detectors with dictionaries share: facts → plan → learning, and the reasons they give."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from outscope._parameters import NOT_NEGATIVE, one_of
from outscope._types import FloatArray, IntArray, Matrix
from outscope.detectors.base import Reading
from outscope.detectors.explanation import Evidence, Explanation
from outscope.detectors.gain import error_curve
from outscope.detectors.sampling import Training
from outscope.detectors.teaching import TaughtDetector
from outscope.errors import InputError
from outscope.io import schema
from outscope.io.cluster import ClusterSource
from outscope.io.sources import Source
from outscope.learning.bits import BITS
from outscope.learning.dictionary import RULES, NNKMeans, learnable
from outscope.learning.distributed import passes_over
from outscope.learning.geometry import ONE_CLASS, mean_of, measure_geometry, measure_grouping
from outscope.learning.loop import Learned, Learner, learn
from outscope.learning.plan import Plan, make_plan, plan_view
from outscope.learning.rows import EPOCH_ROWS, Rows
from outscope.learning.support import held_back, terms_of
from outscope.learning.view import View, whitening_matrix

log = logging.getLogger("outscope")

# Settings of detectors beyond those of a dictionary.
OWN_RULES = {
    "whitening": one_of("auto") | NOT_NEGATIVE,
    "lengths": one_of("auto") | NOT_NEGATIVE,
    "common": one_of("auto") | NOT_NEGATIVE,
    "support": NOT_NEGATIVE,
}


_STRENGTH = schema.number(0.0, schema.LARGEST)
_COUNT = schema.whole(1)
PLANNED = {
    "n_atoms": schema.Field(lambda v, _: RULES["n_atoms"].passes(v), "a size"),
    "bandwidth": _STRENGTH,
    "learning_bandwidth": _STRENGTH,
    "n_neighbors": _COUNT,
    "n_fit_neighbors": _COUNT,
    "whitening": _STRENGTH,
    "lengths": _STRENGTH,
    "common": _STRENGTH,
    "precision": schema.one_of(*BITS),
    "update": schema.one_of("average", "mod"),
    "entropy": schema.number(0.0),
    "n_epochs": schema.whole(0),
    "n_plain_epochs": schema.whole(0),
}


def _is_plan(value: Any, _: schema.Seen) -> bool:
    """Whether these are the rows of a plan: name, value and reason of each decision."""
    if not isinstance(value, list) or not all(isinstance(r, list) and len(r) == 3 for r in value):
        return False
    return [row[0] for row in value] == list(PLANNED) and all(
        PLANNED[name].passes(item, {}) and isinstance(why, str) for name, item, why in value
    )


class DictionaryDetector(TaughtDetector):
    """Base of detectors that code rows on learned atoms."""

    _rules = {**RULES, **OWN_RULES}
    _fitted = {
        **TaughtDetector._fitted,
        "planned_": schema.Field(_is_plan, "a plan: name, value and reason of each decision"),
        "metric_": schema.or_none(schema.array("d d", "float32")),
        "common_": schema.or_none(schema.array("d", "float32")),
        "support_": schema.maybe(schema.many(schema.number(0.0, schema.LARGEST), "2")),
        "sampled_": schema.maybe(schema.many(schema.whole(1), "2")),
        "curve_": schema.maybe(schema.array("3 2", "float64")),
    }
    _added = frozenset({"search", "support"})
    _samples = True
    _coder: Any

    def __init__(
        self,
        n_atoms: int | float | str = "auto",
        *,
        n_neighbors: int | str = "auto",
        n_fit_neighbors: int | None = 5,
        kernel: str = "gaussian",
        bandwidth: float | str = "auto",
        whitening: float | str = "auto",
        lengths: float | str = "auto",
        common: float | str = "auto",
        support: float = 0.0,
        entropy: float = 0.0,
        max_atoms: int | float | None = None,
        max_bytes: int | None = None,
        update: str = "average",
        n_epochs: int = 8,
        n_plain_epochs: int = 2,
        init: str | Matrix = "k-means++",
        normalize: bool = True,
        precision: str = "float32",
        search: str = "exact",
        contamination: float | str = "auto",
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_atoms = n_atoms
        self.n_neighbors = n_neighbors
        self.n_fit_neighbors = n_fit_neighbors
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.whitening = whitening
        self.lengths = lengths
        self.common = common
        self.support = support
        self.entropy = entropy
        self.max_atoms = max_atoms
        self.max_bytes = max_bytes
        self.update = update
        self.n_epochs = n_epochs
        self.n_plain_epochs = n_plain_epochs
        self.init = init
        self.normalize = normalize
        self.precision = precision
        self.search = search
        self.contamination = contamination
        self.random_state = random_state
        self.n_jobs = n_jobs

    # ---- what a subclass stores

    @property
    def atoms_(self) -> Matrix:
        """The stored atoms, (m, d)."""
        raise NotImplementedError

    @property
    def representatives_(self) -> IntArray:
        """(m, 3) training rows that use each atom most, padded with −1."""
        raise NotImplementedError

    def _labels_behind(self, atoms: IntArray) -> np.ndarray[Any, Any] | None:
        """Labels of the representatives of `atoms`, one more axis of length 3."""
        raise NotImplementedError

    # ---- learning

    @property
    def plan_(self) -> Plan:
        """What was decided before learning, and why; each field can be set as a parameter."""
        return Plan.from_rows(self.planned_)

    def _prepare_rows(
        self, training: Training, membership: IntArray | None, rng: np.random.RandomState
    ) -> Rows:
        """Measure the rows in memory, make the plan, and return them as the plan sees them."""
        X, n = training.X, training.n_rows
        asked = self.get_params(deep=False)
        groups = np.zeros(len(X), int) if membership is None else membership
        rows = learnable(X, normalize=self.normalize, n_jobs=self.n_jobs)
        grouping = ONE_CLASS if membership is None else measure_grouping(rows, groups)
        view = plan_view(asked, n, X.shape[1], grouping)
        self.metric_ = None
        if view.whitening > 0.0:
            self.metric_ = whitening_matrix(rows, groups, view.whitening, self.n_jobs)
        self._view = View(self.metric_, view.lengths)
        if not self._view.plain:
            rows = self._as_seen(X)
        geometry = replace(measure_geometry(rows, rng, self.n_jobs), rows=n)
        plan = make_plan(asked, geometry, grouping, view)
        self.planned_ = plan.rows()
        self.common_ = None
        if plan.common > 0.0:
            self.common_ = (plan.common * mean_of(rows)).astype(np.float32)
        if self.support > 0.0 and plan.bandwidth == 0.0:
            raise InputError(
                f"support={self.support:g} needs distances; use kernel='gaussian' or support=0"
            )
        self.support_ = terms_of(self.support, geometry)
        return rows

    def _as_seen(self, X: Matrix | Source, *, kept: bool | None = None) -> Rows:
        """Rows through the planned view."""
        # It travels to other processes, where every core has a task of its own.
        jobs = 1 if isinstance(X, ClusterSource) else self.n_jobs
        view = None if self._view.plain else partial(self._view, n_jobs=jobs)
        unit = self.normalize and self._view.plain
        return Rows(X, normalize=unit, view=view, kept=kept, n_jobs=jobs)

    def _learn_all(
        self,
        learners: list[Learner],
        rows: Rows,
        member: IntArray | None,
        training: Training,
        all_members: IntArray | None,
    ) -> list[Learned]:
        """Learn from the rows in memory or, if there is a source, from every row."""
        if training.source is None:
            return learn(learners, rows, member, on_epoch=self._report)
        kept, start = training.checkpoint, 0
        if kept is not None:
            start = kept.restore(learners)
            if start == 0:
                kept.write(0, learners)

        def on_epoch(epoch: int) -> None:
            if kept is not None:
                kept.write(epoch, learners)
            self._report(epoch)

        return learn(
            learners,
            self._as_seen(training.source, kept=False),
            all_members,
            sample=rows,
            sample_member=member,
            left_out=training.left_out,
            passes=passes_over(training.source, self.n_jobs),
            start=start,
            on_epoch=on_epoch,
            advance=training.advance or (lambda rows: None),
        )

    def _judge_sample(self, training: Training, n_rows: int) -> None:
        for name in ("sampled_", "curve_"):
            self.__dict__.pop(name, None)
        if training.numbers is not None and training.source is None:
            self.sampled_ = [len(training.X), n_rows]
            settled = {
                name: value
                for name, value, _ in self.planned_
                if name in self.get_params() and not (name == "bandwidth" and value == 0.0)
            }
            self.curve_ = error_curve(self, training, settled)

    def _report(self, epoch: int) -> None:
        log.info("epoch %d of %d", epoch, self.plan_.n_epochs)

    def _dictionary(self, **changes: Any) -> NNKMeans:
        parameters = {name: getattr(self, name) for name in RULES}
        unit = self.normalize and self._view.plain
        return NNKMeans(
            **{**parameters, "normalize": unit, "random_state": self.random_state, **changes}
        )

    def _bytes_for_atoms(self) -> int | None:
        """What is left of `max_bytes` for atoms after the other arrays."""
        beside = sum(part.nbytes for part in (self.metric_, self.common_) if part is not None)
        return self.max_bytes and self.max_bytes - beside

    def prepare(self) -> None:
        """Build what scoring needs from the fitted attributes (after fit or load)."""
        plan = self.plan_
        self._view = View(self.metric_, plan.lengths)
        self._k = plan.n_neighbors
        self._prepare_coder()
        if self._taught is not None:
            self._taught.ready(self._seeing)

    def _prepare_coder(self) -> None:
        raise NotImplementedError

    def _held_back(self, atoms: Matrix, mass: FloatArray) -> FloatArray | None:
        """Penalties of atoms that few rows stand behind; None without `support`."""
        terms = getattr(self, "support_", None)
        return None if terms is None else held_back(atoms, mass, terms, self.n_jobs)

    def _judges_rows_alone(self) -> bool:
        """Whether a row's score depends on the atoms only.

        A metric is learned from the same rows that are to be judged, and so is what usual support
        is.
        """
        return self.metric_ is None and getattr(self, "support_", None) is None

    def _seen(self, X: Matrix) -> Matrix:
        return self._view(X, self.n_jobs)

    def _notes(self) -> dict[str, Any]:
        unit = self.normalize and self.plan_.lengths == 0.0
        search = {} if self.search == "exact" else {"search": f"{self.search} (needs its extra)"}
        return {**super()._notes(), "normalize": unit, **search}

    # ---- using

    def remembered_rows(self) -> IntArray:
        """Training rows that represent the atoms."""
        rows: IntArray = np.unique(self.representatives_)
        return rows[rows >= 0]

    def labels_in(self, reading: Reading) -> np.ndarray[Any, Any] | None:
        """For each row, the label with the most weight in its code."""
        neighbors, weights = reading.code
        labels = self._labels_behind(np.arange(len(self.atoms_)))
        if labels is None:
            return None
        classes, of_atom = np.unique(labels[:, 0], return_inverse=True)
        member = of_atom.reshape(-1)[neighbors]
        found = np.empty(len(neighbors), np.intp)
        for start in range(0, len(neighbors), EPOCH_ROWS):
            part = slice(start, start + EPOCH_ROWS)
            votes = np.zeros((len(weights[part]), len(classes)))
            where = np.arange(len(votes))[:, None]
            np.add.at(votes, (where, member[part]), weights[part])
            found[part] = votes.argmax(axis=1)
        return classes[found]

    def rows_in(self, reading: Reading, n: int) -> list[tuple[int, ...]]:
        """For each row, the training rows behind its atoms, heaviest atom first."""
        neighbors, weights = reading.code
        order = np.argsort(-weights, axis=1, kind="stable")[:, :n]
        behind = self.representatives_[np.take_along_axis(neighbors, order, axis=1)]
        behind[np.take_along_axis(weights, order, axis=1) <= 0.0] = -1
        # Every atom's best row comes before any atom's second best; each row counts once.
        turns = behind.transpose(0, 2, 1).reshape(len(behind), -1)
        order = np.argsort(turns, axis=1, kind="stable")
        sorted_turns = np.take_along_axis(turns, order, axis=1)
        again = np.zeros(turns.shape, dtype=bool)
        np.put_along_axis(again, order[:, 1:], sorted_turns[:, 1:] == sorted_turns[:, :-1], axis=1)
        kept = (turns >= 0) & ~again
        place = np.cumsum(kept, axis=1)
        kept &= place <= n
        found = np.zeros((len(turns), n), turns.dtype)
        found[np.nonzero(kept)[0], place[kept] - 1] = turns[kept]
        counts = kept.sum(axis=1).tolist()
        return [tuple(row[:m]) for row, m in zip(found.tolist(), counts, strict=True)]

    def explain(self, X: Any, *, n_atoms: int = 5) -> list[Explanation]:
        """For each row, its atoms (at most `n_atoms`, heaviest first) and the unexplained rest."""
        rows, reading = self._reading_of(X)
        return self.explain_reading(rows, reading, n_atoms)

    def beside_atoms(self, X: Matrix) -> Matrix:
        """Rows in the space of the atoms: whitened and scaled as those are."""
        return Rows(self._seen(X), normalize=self.normalize and self._view.plain).all()

    def explain_reading(self, X: Matrix, reading: Reading, n_atoms: int) -> list[Explanation]:
        """Explain rows from an existing reading, without coding them again."""
        neighbors, weights = reading.code
        seen = self.beside_atoms(X).astype(np.float64)
        labels, strange = self.labels_in(reading), self.decide(reading.ood_score).is_ood
        refused = self.refused_in(reading)
        atoms, rows, behind = self.atoms_, self.representatives_, self._labels_behind(neighbors)
        linear = self.plan_.bandwidth == 0.0
        out = []
        for i, (row, near, weight) in enumerate(zip(seen, neighbors, weights, strict=True)):
            share = weight / weight.sum() if weight.sum() > 0 else weight
            chosen = [a for a in np.argsort(-weight, kind="stable")[:n_atoms] if weight[a] > 0]
            evidence = tuple(
                _evidence(
                    int(near[a]),
                    float(weight[a]),
                    float(share[a]),
                    rows[near[a]],
                    None if behind is None else behind[i, a],
                )
                for a in chosen
            )
            # A narrow Gaussian gives tiny weights; their shares show what the row is made of.
            carried = (weight if linear else share) @ atoms[near]
            own = float(row @ row)
            left = float(np.sum((row - carried) ** 2)) / own if own > 0 else 1.0
            label = None if labels is None else labels[i]
            label = label.item() if isinstance(label, np.generic) else label
            score = float(reading.ood_score[i])
            told = (score, bool(strange[i]), min(1.0, left), label, evidence, refused[i])
            out.append(Explanation(*told))
        return out


def in_parts(X: Matrix, score: Callable[[Matrix], FloatArray]) -> FloatArray:
    """Score many rows in blocks, to avoid copying all of them at once."""
    return np.concatenate([score(X[i : i + EPOCH_ROWS]) for i in range(0, len(X), EPOCH_ROWS)])


def _evidence(atom: int, weight: float, share: float, rows: IntArray, labels: Any) -> Evidence:
    there = rows >= 0
    names = () if labels is None else tuple(labels[there].tolist())
    return Evidence(atom, weight, share, tuple(rows[there].tolist()), names)

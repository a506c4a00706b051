"""A dictionary that goes on learning: new rows are added to what its atoms already stand for."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator

from outscope._sklearn import largest_value
from outscope._types import BoolArray, FloatArray, IntArray, Matrix
from outscope.engine.blocks import product
from outscope.engine.coder import Coder
from outscope.io import schema
from outscope.io.schema import LARGEST
from outscope.learning.bits import store
from outscope.learning.dictionary import NNKMeans
from outscope.learning.loop import Recipe, merge_atoms, unit_if_cosine
from outscope.learning.passes import REPRESENTATIVES, CodeStatistics
from outscope.learning.plan import Plan
from outscope.learning.rows import Rows, first_of_copies, size_for

# A stream keeps up to this many rows, to plan and learn again from all of them while they are few:
# the planned size stops growing at about as many.
KEPT_ROWS = 8192
# Scores of the latest rows that are remembered.
FEWEST_SCORES, KEPT_SCORES = 500, 4096
KEPT = ("kept_rows_", "kept_labels_", "kept_numbers_", "kept_learned_")


def _are_rows(value: Any, seen: schema.Seen) -> bool:
    """Whether these are rows as `Stream.keep` stores them."""
    plain = schema.array("r d", "float32", empty=True)
    large = schema.array("r d", "float64", low=-1e154, high=1e154, empty=True)
    return plain.passes(value, seen) or large.passes(value, seen)


class Stream(BaseEstimator):
    """What a detector must remember, beside its dictionary, to go on learning.

    Attributes
    ----------
    guarded_ : whether strange rows are left out unless told otherwise.
    rows_seen_ : rows of all calls. passed_over_ : how many of them the guard left out.
    kept_rows_ : every row that is still remembered, as it came; None once there were more
        than 8,192 and the plan was settled. kept_labels_, kept_numbers_ : their labels (numbers of
        classes) and their places in the stream. kept_learned_ : False for those passed over.
    young_ : classes (by number) that first came in with the guard on.
    planned_rows_, new_rows_ : rows at the latest plan, and since.
    recent_scores_ : of the latest rows, before they were learned or passed over.
    reference_scores_ : the latest ones from before the guard was on.
    """

    _fitted = {
        "n_features_in_": schema.whole(1, "d"),
        "seed_": schema.whole(0),
        "labelled_": schema.one_of(True, False),
        "guarded_": schema.one_of(True, False),
        "rows_seen_": schema.number(0.0),
        "passed_over_": schema.number(0.0),
        "young_": schema.integers("young", 0, empty=True),
        "planned_rows_": schema.number(0.0),
        "new_rows_": schema.number(0.0),
        "kept_rows_": schema.or_none(schema.Field(_are_rows, "rows (r, d), finite")),
        "kept_labels_": schema.integers("r", 0, empty=True),
        "kept_numbers_": schema.integers("r", 0, empty=True),
        "kept_learned_": schema.array("r", "bool", empty=True),
        "recent_scores_": schema.array("s", "float64", low=-1e300, high=1e300),
        "reference_scores_": schema.SCORES,
    }

    kept_rows_: Matrix | None
    kept_labels_: IntArray
    kept_numbers_: IntArray
    kept_learned_: BoolArray
    young_: IntArray
    planned_rows_: float
    new_rows_: float
    recent_scores_: FloatArray
    reference_scores_: FloatArray

    @property
    def stored_bytes(self) -> int:
        """Bytes that this adds to a saved model; scores do not depend on them."""
        arrays = [value for value in vars(self).values() if isinstance(value, np.ndarray)]
        return sum(int(array.nbytes) for array in arrays)

    def rng(self) -> np.random.RandomState:
        """Random draws for the next rows: the same in one process as after loading."""
        return np.random.RandomState([self.seed_, int(self.rows_seen_) % 2**32])

    def keep(self, rows: Matrix, labels: IntArray, numbers: IntArray, learned: BoolArray) -> None:
        """Remember rows as they came: after whitening, their own length may count.

        In float32, unless they are too large for its squares.
        """
        if largest_value(rows) < LARGEST:
            rows = rows.astype(np.float32)
        for name, new in zip(KEPT, (rows, labels, numbers, learned), strict=True):
            setattr(self, name, np.concatenate([getattr(self, name), new]))

    def drop(self) -> None:
        """Remember no rows; the plan is settled."""
        self.kept_rows_ = None
        self.kept_labels_ = self.kept_numbers_ = np.empty(0, np.int64)
        self.kept_learned_ = np.empty(0, bool)

    def fade(self, share: float, rng: np.random.RandomState) -> None:
        """Forget each row with the same chance, which leaves as many as their weights add up to."""
        if self.kept_rows_ is not None and share < 1.0:
            self.keep_only(rng.random_sample(len(self.kept_rows_)) < share)

    def keep_only(self, stays: BoolArray) -> None:
        """Drop some of the rows that are kept."""
        for name in KEPT:
            setattr(self, name, getattr(self, name)[stays])

    def note(self, scores: FloatArray, rows: float) -> None:
        """Remember scores that rows had before they were learned, after so many rows.

        Scores fall while a dictionary grows, so only those of the last quarter of the rows count.
        """
        latest = int(min(max(FEWEST_SCORES, rows / 4), KEPT_SCORES))
        self.recent_scores_ = np.concatenate([self.recent_scores_, scores])[-latest:]

    def started(self, n_features: int, seed: int, *, labelled: bool) -> Self:
        """An empty stream."""
        self.n_features_in_, self.seed_, self.labelled_ = n_features, seed, labelled
        self.guarded_ = False
        self.rows_seen_ = self.passed_over_ = self.planned_rows_ = self.new_rows_ = 0
        self.kept_rows_ = np.empty((0, n_features), np.float32)
        self.kept_labels_ = self.kept_numbers_ = np.empty(0, np.int64)
        self.kept_learned_ = np.empty(0, bool)
        self.young_ = np.empty(0, np.int64)
        self.recent_scores_ = self.reference_scores_ = np.empty(0)
        return self


class News(NamedTuple):
    """New rows of one dictionary."""

    seen: Matrix  # as the coder takes them
    rows: Rows  # as learning takes them
    numbers: IntArray  # their places in the stream


def mass_of(dictionary: NNKMeans) -> FloatArray:
    """How many rows each atom stands for.

    Models saved before streams existed know shares only; their rows are counted by the largest row
    number that explains an atom.
    """
    if (mass := vars(dictionary).get("atom_mass_")) is None:
        rows = max(len(dictionary.atoms_), int(dictionary.representatives_.max()) + 1)
        mass = dictionary.atom_probability_.astype(np.float64) * rows
    return np.asarray(mass)


def remembered(dictionary: NNKMeans) -> float:
    """Rows that a dictionary stands for; forgotten ones do not count."""
    return float(mass_of(dictionary).sum())


def fade(dictionary: NNKMeans, share: float) -> None:
    """Keep this share of what every atom stands for."""
    dictionary.atom_mass_ = mass_of(dictionary) * share
    dictionary.atom_leaning_ = _leaning(dictionary) * share


def limit_of(dictionary: NNKMeans, plan: Plan, rows: float, all_rows: float) -> int:
    """The size that a dictionary should have with so many rows, of which it may be one of several.

    An initial matrix of atoms says how many there shall be.
    """
    n, whole = max(1, round(rows)), max(1, round(all_rows))
    if isinstance(dictionary.init, str):
        size = size_for(dictionary.n_atoms, n, whole)
        if dictionary.precision == "auto" and plan.precision == "int4":
            size = min(n, 2 * size)  # as the plan does
    else:
        size = len(dictionary.init)
    target = dictionary._target(size, dictionary.n_features_in_)
    return size if target is None else min(size, target)


def begin(dictionary: NNKMeans, plan: Plan, width: int) -> None:
    """A dictionary without atoms, for a class that was not there before."""
    dictionary.n_features_in_ = width
    dictionary.precision_, dictionary.bandwidth_ = plan.precision, plan.bandwidth
    dictionary.n_neighbors_ = plan.n_neighbors
    dictionary.stored_atoms_, dictionary.atom_scale_ = store(
        np.empty((0, width), np.float32), "float32"
    )
    dictionary._atoms = dictionary.stored_atoms_
    dictionary.atom_mass_ = dictionary.atom_probability_ = np.empty(0)
    dictionary.representatives_ = np.empty((0, REPRESENTATIVES), np.int64)
    dictionary.losses_, dictionary.reconstruction_error_ = np.empty(0), 0.0


def go_on(
    dictionary: NNKMeans, news: News, plan: Plan, limit: int, rng: np.random.RandomState
) -> None:
    """Learn new rows: some become atoms, all are coded once, the size is kept.

    Every atom is the mean of what it stands for, so its position and its mass are all that has to
    be known of earlier rows.
    """
    recipe = dictionary.recipe(plan, limit, len(news.seen))
    block = news.rows.all()
    atoms, mass = _exact(dictionary), mass_of(dictionary)
    wanted = _quota(len(block), len(atoms), mass, limit, rng)
    new = _some_of(block, wanted, rng)
    atoms = np.concatenate([atoms, new])
    found = CodeStatistics(len(atoms), atoms.shape[1], recipe.update == "mod")
    found.mass = np.concatenate([mass, np.zeros(len(new))])
    found.moments = found.mass[:, None] * atoms
    if found.products is not None:
        # What is known of earlier rows without keeping a matrix: each holds on to its own atom.
        found.products[np.diag_indices(len(atoms))] = found.mass
    coder = Coder(atoms, recipe.bandwidth, normalize=recipe.normalize)
    codes = coder.code(news.seen, recipe.n_neighbors, recipe.n_jobs, relative=True)
    loss = float(codes.ood_score.mean())
    found.add(block, codes, recipe.n_jobs)
    k = codes.weights.shape[1]
    r = REPRESENTATIVES
    dictionary.representatives_, dictionary.atom_leaning_ = _best(
        np.concatenate([np.repeat(np.arange(len(mass)), r), codes.neighbors.ravel()]),
        np.concatenate([_leaning(dictionary).ravel(), codes.weights.ravel()]),
        np.concatenate([dictionary.representatives_.ravel(), np.repeat(news.numbers, k)]),
        len(atoms),
    )
    if not len(mass):
        dictionary.reconstruction_error_ = loss
    _replace(dictionary, unit_if_cosine(found.new_atoms(atoms), recipe), found.mass)
    trim(dictionary, plan, limit)


def trim(dictionary: NNKMeans, plan: Plan, limit: int) -> None:
    """Merge atoms that are not worth their bits, then down to the limit."""
    recipe = dictionary.recipe(plan, limit, len(dictionary.atoms_))
    before, mass = _exact(dictionary), mass_of(dictionary)
    atoms = before
    useful = (mass > 0.0) & _worthwhile(atoms, mass, recipe)
    if useful.any() and not useful.all():
        heir = _nearest(atoms, atoms[useful], recipe.n_jobs)
        heir[useful] = np.arange(int(useful.sum()))  # even where two atoms are the same point
        moments = np.zeros((int(useful.sum()), atoms.shape[1]))
        np.add.at(moments, heir, mass[:, None] * atoms)
        mass = np.asarray(np.bincount(heir, mass, len(moments)), np.float64)
        atoms = unit_if_cosine(moments / mass[:, None], recipe)
    if len(atoms) > limit:
        atoms, mass = merge_atoms(atoms, mass, limit, recipe.n_jobs)
        atoms = unit_if_cosine(atoms, recipe)
    if len(atoms) < len(before):
        dictionary.representatives_, dictionary.atom_leaning_ = _best(
            np.repeat(_nearest(before, atoms, recipe.n_jobs), REPRESENTATIVES),
            _leaning(dictionary).ravel(),
            dictionary.representatives_.ravel(),
            len(atoms),
        )
        _replace(dictionary, atoms, mass)


def _replace(dictionary: NNKMeans, atoms: Matrix, mass: FloatArray) -> None:
    """Put new atoms into a dictionary."""
    dictionary.stored_atoms_, dictionary.atom_scale_ = store(atoms, dictionary.precision_)
    if dictionary.precision_ != "float32":
        # Small steps would be lost in rounding.
        dictionary.exact_atoms_ = atoms
    dictionary.atom_mass_ = mass
    dictionary.atom_probability_ = mass / mass.sum()
    dictionary.prepare()


def _exact(dictionary: NNKMeans) -> Matrix:
    return np.asarray(vars(dictionary).get("exact_atoms_", dictionary.atoms_))


def _leaning(dictionary: NNKMeans) -> FloatArray:
    """How much of each representative row's code is on its atom; unknown after `fit`: all."""
    known = getattr(dictionary, "atom_leaning_", None)
    return (dictionary.representatives_ >= 0).astype(np.float64) if known is None else known


def _quota(
    n_new: int, n_atoms: int, mass: FloatArray, limit: int, rng: np.random.RandomState
) -> int:
    """How many new rows become atoms: as many as there is room for, and at least their share.

    A share of a dictionary for all rows is due to them, whatever has to be merged for it.
    """
    share = n_new * limit / (float(mass.sum()) + n_new)
    return min(n_new, max(limit - n_atoms, int(share + rng.random_sample())))


def _some_of(rows: Matrix, wanted: int, rng: np.random.RandomState) -> Matrix:
    """Rows that become atoms, drawn evenly.

    Drawing those that are explained worst is no better on rows in scope, and picks the strange
    rows that a guard missed.
    """
    chosen = np.sort(rng.choice(len(rows), wanted, replace=False))
    squares = np.einsum("ij,ij->i", rows, rows)
    return rows[chosen[first_of_copies(rows[chosen], squares[chosen])]]


def _worthwhile(atoms: Matrix, mass: FloatArray, recipe: Recipe) -> BoolArray:
    """Atoms that a row equal to them would still choose, at the price of their rarity."""
    penalty = recipe.penalty(np.maximum(mass, 1e-12) / max(mass.sum(), 1e-12), recipe.entropy)
    if penalty is None or len(atoms) < 2:
        return np.ones(len(atoms), dtype=bool)
    coder = Coder(atoms, recipe.bandwidth, normalize=recipe.normalize, penalty=penalty)
    codes = coder.code(atoms, recipe.n_neighbors, recipe.n_jobs, relative=True)
    own = (codes.neighbors == np.arange(len(atoms))[:, None]) & (codes.weights > 0.0)
    return own.any(axis=1)


def _nearest(points: Matrix, atoms: Matrix, n_jobs: int | None) -> IntArray:
    """The nearest atom of each point."""
    keys = product(points, atoms.T, n_jobs) - 0.5 * np.einsum("ij,ij->i", atoms, atoms)
    nearest: IntArray = keys.argmax(axis=1)
    return nearest


def _best(
    atom: IntArray, leaning: FloatArray, number: IntArray, n_atoms: int
) -> tuple[IntArray, FloatArray]:
    """For each atom, the rows that lean on it most."""
    there: IntArray = np.flatnonzero((leaning > 0.0) & (number >= 0))
    # A row may lean on both of two atoms that became one.
    there = there[np.lexsort((-leaning[there], number[there], atom[there]))]
    again = (np.diff(atom[there], prepend=-1) == 0) & (np.diff(number[there], prepend=-1) == 0)
    there = there[~again]
    atom, leaning, number = atom[there], leaning[there], number[there]
    order = np.lexsort((number, -leaning, atom))
    rank = np.arange(len(order)) - np.searchsorted(atom[order], atom[order])
    order, rank = order[rank < REPRESENTATIVES], rank[rank < REPRESENTATIVES]
    rows = np.full((n_atoms, REPRESENTATIVES), -1, dtype=np.int64)
    most = np.zeros((n_atoms, REPRESENTATIVES))
    rows[atom[order], rank], most[atom[order], rank] = number[order], leaning[order]
    return rows, most

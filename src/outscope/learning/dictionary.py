"""NNKMeans: a dictionary of atoms learned by soft clustering."""

from __future__ import annotations

import logging
import math
from typing import Any, Self

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state

from outscope._parameters import (
    JOBS,
    MATRIX,
    NOT_NEGATIVE,
    POSITIVE,
    at_least,
    between,
    check_parameters,
    one_of,
)
from outscope._sklearn import Sized, all_or_nothing, check_rows, largest_value, scoring_rows
from outscope._types import FloatArray, Matrix
from outscope.engine.approximate import coder_of
from outscope.engine.coder import Coder, Codes
from outscope.engine.kernels.blas import one_thread_each
from outscope.errors import InputError
from outscope.io import schema
from outscope.learning.bits import BITS, STORED, Stored, atom_bytes, restore, store
from outscope.learning.geometry import measure_geometry
from outscope.learning.loop import Learned, Learner, Recipe, atoms_without, learn
from outscope.learning.plan import Plan, make_plan, refuse_small
from outscope.learning.rows import Rows, seed_atoms, size_for

log = logging.getLogger("outscope")

# Rows that keep their length are multiplied in float32.
LONGEST_VALUE = 1e12

RULES = {
    "n_atoms": one_of("auto") | at_least(1) | between(0, 1),
    "n_neighbors": one_of("auto") | at_least(1),
    "n_fit_neighbors": one_of(None) | at_least(1),
    "kernel": one_of("gaussian", "cosine"),
    "bandwidth": one_of("auto") | POSITIVE,
    "entropy": NOT_NEGATIVE,
    "max_atoms": one_of(None) | at_least(1) | between(0, 1),
    "max_bytes": one_of(None) | at_least(1),
    "update": one_of("average", "mod"),
    "n_epochs": at_least(0),
    "n_plain_epochs": at_least(0),
    "init": one_of("k-means++", "random") | MATRIX,
    "normalize": one_of(True, False),
    "precision": one_of("float32", "int8", "int4", "auto"),
    "search": one_of("exact", "faiss"),
    "n_jobs": JOBS,
}


def learnable(X: Matrix, *, normalize: bool, n_jobs: int | None = 1) -> Rows:
    """Rows as learning sees them; if they keep their lengths, too long ones are refused."""
    if not normalize and largest_value(X) > LONGEST_VALUE:
        raise InputError(
            f"X has values beyond {LONGEST_VALUE:g}, too large for normalize=False; rescale X"
        )
    return Rows(X, normalize=normalize, n_jobs=n_jobs)


class NNKMeans(Sized, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Soft clustering: learned atoms, and exact non-negative codes of rows on their nearest atoms.

    Parameters
    ----------
    n_atoms : dictionary size, or a share of the rows if below 1; "auto" is a quarter, at most
        2,000, or every row if there are at most 100. Never more than the number of distinct rows.
    n_neighbors : candidate atoms per row; "auto" is 10, or 20 for the cosine kernel.
    n_fit_neighbors : candidates while learning; None means `n_neighbors`. A few learn an equally
        good dictionary in less time.
    kernel : "gaussian", exp(−‖x − c‖² / 2σ) with atoms that keep their length, or "cosine".
    bandwidth : σ of the Gaussian kernel; "auto" decides from the in-scope rows.
    entropy : λ, how strongly rare atoms are penalised and pruned (EC-NNK-Means); 0 prunes none.
    max_atoms, max_bytes : merge atoms down to this number (or share of the initial ones) or to this
        many bytes, whatever λ is. `n_atoms` is then the initial number.
    update : "average" (weighted means) or "mod" (method of optimal directions).
    n_epochs, n_plain_epochs : passes over the data, and how many of the last ones run with λ = 0.
    init : "k-means++" (drawn in blocks), "random", or a matrix of initial atoms.
    normalize : scale rows to unit length first.
    precision : "float32"; "int8" or "int4" for 8-bit or 4-bit atoms, in a quarter or an eighth of
        the bytes; "auto" is "int8" or, where rows are too far apart to be averaged, "int4" with
        twice as many atoms (at most one per row) in the same bytes.
    search : "exact", or "faiss" to find candidate atoms with an index where there are thousands of
        them (extra `faiss`).
    n_jobs : threads; None uses every core available to the process. Does not affect results.

    Attributes
    ----------
    atoms_ : (m, d) float32. stored_bytes_ : their size in a saved model.
    atom_probability_ : (m,) each atom's share of all non-zero weights.
    atom_mass_ : (m,) how many rows each atom stands for.
    representatives_ : (m, 3) training rows that use each atom most, padded with −1.
    reconstruction_error_ : mean ood_score of the training rows (cosine: the paper's normalised
        error; Gaussian: a soft squared distance to what the atoms explain).
    losses_ : that mean, epoch by epoch (for the atoms as learned so far, none penalised).
    bandwidth_, n_neighbors_ : σ (0 for the cosine kernel) and number of candidates in use.
    precision_ : "float32", "int8" or "int4".

    >>> import numpy as np
    >>> X = np.random.RandomState(0).normal(size=(200, 8))
    >>> NNKMeans(n_atoms=20, random_state=0).fit(X).transform(X).shape
    (200, 20)
    """

    _parts = ("stored_atoms_", "atom_scale_")
    _rules = RULES
    _added = frozenset({"search"})
    _fitted = {
        "n_features_in_": schema.whole(1, "d"),
        "feature_names_in_": schema.maybe(schema.names("d")),
        "precision_": schema.one_of(*BITS),
        **STORED,
        "atom_probability_": schema.array("m", *schema.FLOATS, low=0.0, high=1.0 + 1e-6),
        "representatives_": schema.integers("m 3", -1),
        "reconstruction_error_": schema.number(),
        "losses_": schema.array("epochs", "float64", empty=True),
        "bandwidth_": schema.number(0.0),
        "n_neighbors_": schema.whole(1),
        # For going on with new rows; scores do not depend on these.
        "atom_mass_": schema.maybe(schema.array("m", "float64", low=0.0)),
        "atom_leaning_": schema.maybe(schema.array("m 3", "float64", low=0.0)),
        "exact_atoms_": schema.maybe(schema.array("m d", "float32")),
    }

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
        search: str = "exact",
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
        self.search = search
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the dictionary; `y` is not used."""
        check_parameters(self, RULES)
        with all_or_nothing(self), one_thread_each():
            checked = check_rows(self, X, reset=True)
            rows = learnable(checked, normalize=self.normalize, n_jobs=self.n_jobs)
            rng = check_random_state(self.random_state)
            geometry = measure_geometry(rows, rng, self.n_jobs)
            plan = make_plan(self.get_params(deep=False), geometry)
            learner = self.begin(rows, plan, size_for(plan.n_atoms, len(rows)), rng)
            self.finish(learner, learn([learner], rows, on_epoch=self._report)[0])
            self.forget()
        return self

    def begin(self, rows: Rows, plan: Plan, size: int, rng: np.random.RandomState) -> Learner:
        """The first atoms, drawn from rows, and the recipe for learning from there."""
        self.n_features_in_ = rows.width
        self.precision_, self.bandwidth_ = plan.precision, plan.bandwidth
        self.n_neighbors_ = plan.n_neighbors
        first = self._first_atoms(rows, size, rng)
        return Learner(self.recipe(plan, len(first), len(rows)), first)

    def finish(self, learner: Learner, learned: Learned) -> None:
        """Take over what was learned."""
        self.stored_atoms_, self.atom_scale_ = store(learned.atoms, self.precision_)
        self.atom_probability_ = learned.probability
        self.atom_mass_ = learned.mass
        self.representatives_ = learned.representatives
        self.reconstruction_error_ = learned.loss
        self.losses_ = np.array(learned.losses)
        self.prepare()
        self._memory = learner, learned

    def atoms_without(self, X: Matrix) -> tuple[Matrix, FloatArray]:
        """Atoms and masses as they would be without these training rows; until `forget`."""
        learner, learned = self._memory
        atoms, mass = atoms_without(learned, Rows(X, normalize=self.normalize).all(), learner)
        return restore(store(atoms, self.precision_), X.shape[1]), mass

    @property
    def keeps_every_row(self) -> bool:
        """Whether every training row is an atom; available until `forget`."""
        recipe = self._memory[0].recipe
        return recipe.complete and recipe.n_epochs == 0

    def forget(self) -> None:
        """Drop what is only needed to judge the dictionary without some rows."""
        del self._memory

    @property
    def atoms_(self) -> Matrix:
        """The atoms as scoring uses them, (m, d) float32."""
        return self._atoms

    def prepare(self) -> None:
        """Build what scoring needs from the fitted attributes (after fit or load)."""
        self._atoms: Matrix = restore(
            Stored(self.stored_atoms_, self.atom_scale_), self.n_features_in_
        )
        self._coder = self.coder()

    def coder(
        self,
        discount: Matrix | None = None,
        atoms: Matrix | None = None,
        penalty: FloatArray | None = None,
    ) -> Coder:
        """A coder for these atoms; `discount` lowers all keys of a row by the same amount."""
        atoms = self.atoms_ if atoms is None else atoms
        return coder_of(self.search)(
            atoms,
            self.bandwidth_,
            normalize=self.normalize,
            discount=discount,
            penalty=penalty,
        )

    def encode(self, X: Any) -> Codes:
        """Atoms, weights and ood_score of each row."""
        rows, _ = scoring_rows(self, X)
        return self._coder.code(rows, self.n_neighbors_, self.n_jobs)

    def transform(self, X: Any) -> scipy.sparse.csr_matrix:
        """Non-negative codes as a sparse (rows × atoms) matrix, which `set_output` cannot wrap."""
        codes = self.encode(X)
        n, k = codes.weights.shape
        order = np.argsort(codes.neighbors, axis=1)
        matrix = scipy.sparse.csr_matrix(
            (
                np.take_along_axis(codes.weights, order, axis=1).ravel(),
                np.take_along_axis(codes.neighbors, order, axis=1).ravel(),
                np.arange(0, n * k + 1, k),
            ),
            shape=(n, len(self.atoms_)),
        )
        matrix.eliminate_zeros()
        return matrix

    @property
    def _n_features_out(self) -> int:
        return len(self.atoms_)

    def recipe(self, plan: Plan, n_first: int, n_rows: int) -> Recipe:
        """The plan's settings for one dictionary with this many initial atoms."""
        target = self._target(n_first, self.n_features_in_)
        # If every row is an atom there is nothing to learn: each row already explains itself.
        complete = n_first >= n_rows and not isinstance(self.init, np.ndarray)
        pruned = plan.entropy > 0 or (target is not None and target < n_first)
        return Recipe(
            n_neighbors=plan.n_fit_neighbors,
            n_final_neighbors=plan.n_neighbors,
            bandwidth=plan.learning_bandwidth,
            final_bandwidth=plan.bandwidth,
            update=plan.update,
            entropy=plan.entropy,
            # Reaching a target size takes at least one epoch.
            n_epochs=max(1, plan.n_epochs) if pruned else 0 if complete else plan.n_epochs,
            complete=complete,
            n_plain_epochs=plan.n_plain_epochs,
            max_atoms=target,
            precision=plan.precision,
            normalize=self.normalize,
            n_jobs=self.n_jobs,
            search=self.search,
        )

    def _report(self, epoch: int) -> None:
        log.info("epoch %d of %d", epoch, self.n_epochs)

    def _target(self, n_start: int, width: int) -> int | None:
        """Target size set by max_atoms or max_bytes, whichever is smaller."""
        wanted = []
        if self.max_atoms is not None:
            share = self.max_atoms < 1
            wanted.append(math.ceil(self.max_atoms * n_start) if share else int(self.max_atoms))
        if self.max_bytes is not None:
            least = atom_bytes(width, self.precision_)
            refuse_small(self.max_bytes, least, "one atom")
            wanted.append(int(self.max_bytes) // least)
        return min(wanted, default=None)

    def _first_atoms(self, rows: Rows, size: int, rng: np.random.RandomState) -> Matrix:
        if not isinstance(self.init, str):
            atoms = np.asarray(self.init, dtype=np.float32)
            if not len(atoms) or not np.isfinite(atoms).all():
                raise InputError("init must hold at least one atom and only finite numbers")
            if atoms.shape[1] != rows.width:
                raise InputError(
                    f"init has {atoms.shape[1]} columns but X has {rows.width}; "
                    "give initial atoms of the same width as the data"
                )
            return atoms.copy()
        if size >= len(rows):
            return rows.all()
        if self.init == "random":
            chosen = rng.choice(len(rows), size, replace=False)
            return rows.take(np.sort(chosen))
        return seed_atoms(rows, size, rng, self.n_jobs)[0]

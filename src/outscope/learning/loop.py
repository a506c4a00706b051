"""How dictionaries are learned: passes over the rows, updates between them, pruning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from outscope._types import FloatArray, IntArray, Matrix
from outscope.engine.blocks import product
from outscope.engine.leading import Directions
from outscope.learning.bits import restore, store
from outscope.learning.passes import CodeStatistics, Coding, Look, Passes, look_at
from outscope.learning.rows import Rows

# Keys lie between −2 and 2; any penalty far beyond that rules an atom out.
LARGEST_PENALTY = 1e3


@dataclass(frozen=True)
class Recipe:
    """Everything besides the data that determines how atoms are learned."""

    n_neighbors: int  # candidates while learning
    n_final_neighbors: int  # candidates in the final pass, as in scoring
    bandwidth: float  # while learning; 0 for the cosine kernel
    final_bandwidth: float  # in the final pass, as in scoring
    update: str
    entropy: float
    n_epochs: int
    complete: bool  # whether every row is an initial atom
    n_plain_epochs: int
    max_atoms: int | None
    precision: str  # the final atoms are rounded to values that it can hold
    normalize: bool
    n_jobs: int | None
    search: str = "exact"

    def entropy_at(self, epoch: int) -> float:
        """λ of an epoch; 0 for the last ones."""
        return self.entropy if epoch < self.n_epochs - self.n_plain_epochs else 0.0

    def size_at(self, epoch: int, n_start: int) -> int | None:
        """Atoms to keep after an epoch on the way to a target size, in equal ratios."""
        if self.max_atoms is None or self.max_atoms >= n_start:
            return None
        steps = max(1, self.n_epochs - self.n_plain_epochs)
        ratio = (self.max_atoms / n_start) ** min(1.0, (epoch + 1) / steps)
        return max(self.max_atoms, int(np.ceil(n_start * ratio - 1e-9)))

    def penalty(self, probability: FloatArray, entropy: float) -> FloatArray | None:
        """The penalty on an atom's key for being rare.

        Cosine: −λ·log p, as printed (with the sign that the paper's text implies). Gaussian: in
        units of the bandwidth, so that a similarity is multiplied by a power of p and cannot fall
        below zero; λ then means the same for narrow and wide kernels.
        """
        if entropy == 0.0:
            return None
        rarity = -np.log(np.maximum(probability, 1e-300))
        if self.bandwidth > 0.0:
            # Relative to the most used atom, which scales all similarities of a row alike.
            entropy, rarity = self.bandwidth * entropy, rarity - rarity.min()
        # Rarer atoms are penalised more, however large λ is.
        return rarity * min(entropy, LARGEST_PENALTY / max(float(rarity.max()), 1e-300))


@dataclass(frozen=True)
class Learned:
    """A learned dictionary with the results of the last pass over the data."""

    atoms: Matrix
    probability: FloatArray
    representatives: IntArray  # (m, REPRESENTATIVES) rows that use each atom most, −1 = none
    statistics: CodeStatistics  # of the rows of that pass
    mass: FloatArray  # (m,) how many of all rows each atom stands for
    loss: float
    losses: list[float]


@dataclass
class Learner:
    """One dictionary on its way. A pass codes rows as `coding` says; `update` ends an epoch."""

    recipe: Recipe
    atoms: Matrix
    probability: FloatArray = field(init=False)
    losses: list[float] = field(init=False, default_factory=list)
    n_start: int = field(init=False)
    n_rows: int = field(init=False, default=0)  # in the latest pass
    # Found in one pass, good for all: atoms move little from pass to pass.
    directions: Directions = field(init=False, default_factory=Directions)

    def __post_init__(self) -> None:
        self.n_start = len(self.atoms)
        self.probability = np.full(self.n_start, 1.0 / self.n_start)

    def coding(self, epoch: int) -> Coding | None:
        """How rows are coded in an epoch; None if this dictionary has had all of its epochs."""
        recipe = self.recipe
        if epoch >= recipe.n_epochs:
            return None
        entropy = recipe.entropy_at(epoch)
        replaces = entropy == 0.0 and recipe.size_at(epoch, self.n_start) is None
        return Coding(
            self.atoms,
            recipe.bandwidth,
            recipe.n_neighbors,
            recipe.normalize,
            recipe.penalty(self.probability, entropy),
            with_products=recipe.update == "mod",
            for_worst=replaces and epoch + 1 < recipe.n_epochs,
            for_examples=False,
            directions=self.directions,
            search=recipe.search,
        )

    def last_coding(self) -> Coding:
        """How rows are coded when learning has ended: as in scoring."""
        recipe = self.recipe
        return Coding(
            self.atoms,
            recipe.final_bandwidth,
            recipe.n_final_neighbors,
            recipe.normalize,
            None,
            with_products=recipe.update == "mod",
            for_worst=False,
            for_examples=True,
            directions=self.directions,
            search=recipe.search,
        )

    def update(self, epoch: int, found: Look) -> None:
        """New atoms from what a pass found; never an empty dictionary."""
        recipe, statistics = self.recipe, found.statistics
        size = recipe.size_at(epoch, self.n_start)
        self.n_rows = statistics.rows
        self.losses.append(statistics.loss / statistics.rows)
        atoms = unit_if_cosine(statistics.new_atoms(self.atoms), recipe)
        probability, mass = statistics.probability(), statistics.mass
        unused = np.flatnonzero(statistics.usage == 0)
        if recipe.entropy_at(epoch) > 0.0:
            atoms, probability, mass = (
                np.delete(part, unused, 0) for part in (atoms, probability, mass)
            )
        else:
            # There are no worst rows where atoms are not to be replaced.
            atoms[unused[: len(found.worst)]] = found.worst[: len(unused)]
        if size is not None and size < len(atoms):
            atoms, mass = merge_atoms(atoms, mass, size, recipe.n_jobs)
            atoms, probability = unit_if_cosine(atoms, recipe), mass / mass.sum()
        self.atoms, self.probability = atoms, probability

    def keep(self, used: IntArray) -> None:
        """Drop all other atoms."""
        self.atoms, self.probability = self.atoms[used], self.probability[used]


def learn(
    learners: Sequence[Learner],
    rows: Rows,
    member: IntArray | None = None,
    *,
    sample: Rows | None = None,
    sample_member: IntArray | None = None,
    left_out: IntArray | None = None,
    passes: Passes | None = None,
    start: int = 0,
    on_epoch: Callable[[int], None] = lambda epoch: None,
    advance: Callable[[int], None] = lambda rows: None,
) -> list[Learned]:
    """Alternate coding and updating, for all dictionaries in the same passes over the rows.

    `member` says which dictionary a row belongs to; `left_out` are the numbers of rows that must
    not count. A `sample` of the rows, if given, stands for all of them in the last look.
    """
    passes = passes or Passes(learners[0].recipe.n_jobs)
    for epoch in range(start, max(learner.recipe.n_epochs for learner in learners)):
        codings = [learner.coding(epoch) for learner in learners]
        found = passes(codings, rows, member, left_out, advance)
        for learner, one in zip(learners, found, strict=True):
            if one is not None:
                learner.update(epoch, one)
        on_epoch(epoch + 1)
    for learner in learners:
        kept = store(learner.atoms, learner.recipe.precision)
        learner.atoms = restore(kept, learner.atoms.shape[1])
    if sample is not None:
        rows, member, left_out = sample, sample_member, None
    passes = Passes(learners[0].recipe.n_jobs)
    looks: list[Look | None] = [None] * len(learners)
    codings = [learner.last_coding() for learner in learners]
    while any(codings):
        # Dropping atoms that no row uses changes the codes of other rows: look again.
        again = passes(codings, rows, member, left_out, lambda rows: None)
        for c, learner in enumerate(learners):
            codings[c], look = None, again[c]
            if look is not None:
                first, looks[c] = looks[c] is None, look
                used = np.flatnonzero(look.statistics.usage)
                if first and 0 < len(used) < len(learner.atoms):
                    learner.keep(used)
                    codings[c] = learner.last_coding()
    return [_learned(*pair) for pair in zip(learners, looks, strict=True)]


def _learned(learner: Learner, look: Look | None) -> Learned:
    if look is None:  # no row of the sample belongs to this dictionary
        look = look_at(learner.last_coding(), learner.atoms[:0], np.empty(0, np.intp), 1)
    statistics = look.statistics
    return Learned(
        learner.atoms,
        statistics.probability(),
        look.examples,
        statistics,
        # A sample stands for all rows in the last look.
        statistics.mass * max(1.0, learner.n_rows / max(1, statistics.rows)),
        statistics.loss / max(1, statistics.rows),
        learner.losses,
    )


def atoms_without(learned: Learned, rows: Matrix, learner: Learner) -> tuple[Matrix, FloatArray]:
    """The atoms and masses as they would be without some of the rows they were learned from.

    Atoms are averages, so a row's contribution can be subtracted again; an atom that no other row
    uses is dropped. The rows' influence on the initial atoms remains.
    """
    coding = replace(learner.last_coding(), for_examples=False)
    part = look_at(coding, rows, np.arange(len(rows)), learner.recipe.n_jobs).statistics
    left = learned.statistics.minus(part)
    left.mass[left.usage < 0.5] = 0.0
    used = left.mass > 0.0
    return unit_if_cosine(left.new_atoms(learned.atoms)[used], learner.recipe), left.mass[used]


def merge_atoms(
    atoms: Matrix, mass: FloatArray, size: int, n_jobs: int | None = None
) -> tuple[Matrix, FloatArray]:
    """Merge atoms down to `size`, always the pairs whose merger costs least (Ward's criterion).

    Dropping the rarest atoms would uncover sparse regions first; merging keeps them covered, and
    beat a dictionary learned directly at the small size in six of seven development tasks
    (docs/defaults.md).
    """
    atoms, weight = atoms.astype(np.float64), np.maximum(mass, 1e-12)
    while len(atoms) > size:
        squares = np.einsum("ij,ij->i", atoms, atoms)
        cost = np.maximum(squares[:, None] + squares - 2.0 * product(atoms, atoms.T, n_jobs), 0.0)
        cost *= weight[:, None] * weight / (weight[:, None] + weight)
        np.fill_diagonal(cost, np.inf)
        partner = cost.argmin(axis=1)
        order = np.argsort(cost[np.arange(len(atoms)), partner], kind="stable")
        # Only some of the pairs at a time, since each merger changes the cost of its neighbours.
        wanted = max(1, min(len(atoms) - size, len(atoms) // 8))
        taken = np.zeros(len(atoms), dtype=bool)
        gone: list[int] = []
        for i in order.tolist():
            j = int(partner[i])
            if len(gone) == wanted:
                break
            if not (taken[i] or taken[j]):
                taken[[i, j]] = True
                total = weight[i] + weight[j]
                atoms[i] = (weight[i] * atoms[i] + weight[j] * atoms[j]) / total
                weight[i] = total
                gone.append(j)
        atoms, weight = np.delete(atoms, gone, 0), np.delete(weight, gone)
    return atoms.astype(np.float32), weight


def unit_if_cosine(atoms: Matrix, recipe: Recipe) -> Matrix:
    """Unit length for the cosine kernel; Gaussian atoms of loose groups may be short."""
    if recipe.bandwidth == 0.0 and recipe.normalize:
        length = np.linalg.norm(atoms, axis=1, keepdims=True)
        atoms = np.divide(atoms, length, out=atoms.copy(), where=length > 0)
    return atoms.astype(np.float32)

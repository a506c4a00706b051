"""How a dictionary is learned: additive statistics, updates, pruning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import scipy.linalg
import scipy.sparse

from outscope._types import FloatArray, IntArray, Matrix
from outscope.engine.blocks import product, threads_of
from outscope.engine.coder import Coder, Codes
from outscope.engine.kernels.parallel import for_ranges
from outscope.engine.kernels.update import add_moments, share_weights
from outscope.engine.leading import Directions
from outscope.learning.bits import restore, store
from outscope.learning.rows import Rows

# Weights below this share of a row's code do not move atoms (narrow kernels leave such dust).
NEGLIGIBLE = 1e-4
# Training rows remembered for each atom, for explanations.
REPRESENTATIVES = 3
# Keys lie between −2 and 2; any penalty far beyond that rules an atom out.
LARGEST_PENALTY = 1e3
# Pull towards the old atoms in the MOD update, relative to the mean diagonal of W·Wᵀ: keeps the
# system regular if atoms share all their rows, and is far below the data's own weight.
MOD_ANCHOR = 1e-6


@dataclass
class CodeStatistics:
    """Sums over coded rows. Sums of two parts of the data add up to those of the whole."""

    n_atoms: int
    n_features: int
    with_products: bool = False
    rows: int = 0
    loss: float = 0.0
    usage: FloatArray = field(init=False)
    mass: FloatArray = field(init=False)
    moments: Matrix = field(init=False)
    products: Matrix | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.usage = np.zeros(self.n_atoms)
        self.mass = np.zeros(self.n_atoms)
        self.moments = np.zeros((self.n_atoms, self.n_features))
        if self.with_products:
            self.products = np.zeros((self.n_atoms, self.n_atoms))

    def add(self, rows: Matrix, codes: Codes, n_jobs: int | None) -> None:
        """Add one block of coded rows. Rescales `codes.weights` to sum to 1."""
        n, k = codes.weights.shape
        share_weights(codes.weights, NEGLIGIBLE)
        atoms, weights = codes.neighbors.ravel(), codes.weights.ravel()
        self.rows += n
        self.loss += float(np.sum(codes.ood_score))
        self.usage += np.bincount(atoms, weights > 0, minlength=self.n_atoms)
        self.mass += np.bincount(atoms, weights, minlength=self.n_atoms)
        for_ranges(
            self.n_features,
            threads_of(n_jobs),
            32,
            lambda first, last: add_moments(
                rows, codes.neighbors, codes.weights, first, last, self.moments
            ),
        )
        if self.products is not None:
            starts = np.arange(0, n * k + 1, k)
            W = scipy.sparse.csr_matrix((weights, atoms, starts), shape=(n, self.n_atoms))
            self.products += (W.T @ W).toarray()

    def merge(self, other: CodeStatistics) -> None:
        """Add the statistics of other rows coded on the same atoms."""
        self.rows += other.rows
        self.loss += other.loss
        self.usage += other.usage
        self.mass += other.mass
        self.moments += other.moments
        if self.products is not None and other.products is not None:
            self.products += other.products

    def minus(self, other: CodeStatistics) -> CodeStatistics:
        """The statistics without some of the rows they include."""
        left = CodeStatistics(self.n_atoms, self.n_features, rows=self.rows - other.rows)
        left.loss = self.loss - other.loss
        left.usage, left.mass = self.usage - other.usage, self.mass - other.mass
        left.moments = self.moments - other.moments
        if self.products is not None and other.products is not None:
            left.products = self.products - other.products
        return left

    def probability(self) -> FloatArray:
        """Each atom's share of all non-zero weights."""
        total = self.usage.sum()
        return self.usage / total if total > 0 else np.full(self.n_atoms, 1.0 / self.n_atoms)

    def new_atoms(self, old: Matrix) -> Matrix:
        """Atoms updated from these codes; an unused atom stays where it is."""
        used = self.mass > 0
        atoms = old.astype(np.float64)
        if self.products is None:
            atoms[used] = self.moments[used] / self.mass[used, None]
            return atoms
        system = self.products[np.ix_(used, used)]
        anchor = MOD_ANCHOR * float(np.mean(np.diag(system))) if used.any() else 0.0
        system[np.diag_indices_from(system)] += anchor
        wanted = self.moments[used] + anchor * atoms[used]
        atoms[used] = scipy.linalg.solve(system, wanted, assume_a="pos")
        return atoms


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
    scores: FloatArray  # (n,) ood_score of the rows it was learned from
    statistics: CodeStatistics  # of all of them
    loss: float
    losses: list[float]


def atoms_without(learned: Learned, rows: Matrix, codes: Codes, recipe: Recipe) -> Matrix:
    """The atoms as they would be without some coded rows.

    Atoms are averages, so a row's contribution can be subtracted again; an atom that no other row
    uses is dropped. The rows' influence on the initial atoms remains.
    """
    part = CodeStatistics(len(learned.atoms), rows.shape[1], recipe.update == "mod")
    part.add(rows, codes, recipe.n_jobs)
    left = learned.statistics.minus(part)
    left.mass[left.usage < 0.5] = 0.0
    used = left.mass > 0.0
    return _unit_if_cosine(left.new_atoms(learned.atoms)[used], recipe)


def learn(
    X: Matrix,
    rows: Rows,
    atoms: Matrix,
    recipe: Recipe,
    on_epoch: Callable[[int, int, float], None] = lambda epoch, size, loss: None,
) -> Learned:
    """Alternate coding and updating from given atoms; never ends with an empty dictionary."""
    n_start = len(atoms)
    probability = np.full(n_start, 1.0 / n_start)
    losses: list[float] = []
    directions = Directions()
    for epoch in range(recipe.n_epochs):
        entropy = recipe.entropy_at(epoch)
        size = recipe.size_at(epoch, n_start)
        look = _look(X, rows, atoms, recipe, recipe.penalty(probability, entropy), directions)
        statistics = look.statistics
        losses.append(statistics.loss / statistics.rows)
        atoms = _unit_if_cosine(statistics.new_atoms(atoms), recipe)
        probability, mass = statistics.probability(), statistics.mass
        unused = np.flatnonzero(statistics.usage == 0)
        if entropy > 0.0:
            atoms, probability, mass = (
                np.delete(part, unused, 0) for part in (atoms, probability, mass)
            )
        elif size is None and len(unused) and epoch + 1 < recipe.n_epochs:
            worst = np.argsort(-look.scores, kind="stable")[: len(unused)]
            atoms[unused[: len(worst)]] = rows.take(worst)
        if size is not None and size < len(atoms):
            atoms, mass = merge_atoms(atoms, mass, size, recipe.n_jobs)
            atoms, probability = _unit_if_cosine(atoms, recipe), mass / mass.sum()
        on_epoch(epoch, len(atoms), losses[-1])
    atoms = restore(store(atoms, recipe.precision), atoms.shape[1])
    look = _look(X, rows, atoms, recipe, None, directions, last=True)
    used = np.flatnonzero(look.statistics.usage)
    if 0 < len(used) < len(atoms):
        atoms = atoms[used]
        look = _look(X, rows, atoms, recipe, None, directions, last=True)
    return Learned(
        atoms,
        look.statistics.probability(),
        look.representatives,
        look.scores,
        look.statistics,
        look.statistics.loss / look.statistics.rows,
        losses,
    )


@dataclass
class _Look:
    """One coding pass over the data with fixed atoms."""

    statistics: CodeStatistics
    scores: FloatArray
    representatives: IntArray


def _look(
    X: Matrix,
    rows: Rows,
    atoms: Matrix,
    recipe: Recipe,
    penalty: FloatArray | None,
    directions: Directions,
    *,
    last: bool = False,
) -> _Look:
    """Code every row once."""
    sigma = recipe.final_bandwidth if last else recipe.bandwidth
    coder = Coder(atoms, sigma, normalize=recipe.normalize, penalty=penalty, directions=directions)
    look = _Look(
        CodeStatistics(len(atoms), atoms.shape[1], recipe.update == "mod"),
        np.empty(len(X)),
        np.full((len(atoms), REPRESENTATIVES), -1, dtype=np.intp),
    )
    leaning = np.zeros((len(atoms), REPRESENTATIVES))
    start = 0
    k = recipe.n_final_neighbors if last else recipe.n_neighbors
    for block in rows.blocks():
        stop = start + len(block)
        codes = coder.code(X[start:stop], k, recipe.n_jobs, relative=True)
        look.scores[start:stop] = codes.ood_score
        if penalty is not None:
            _adopt_uncoded(codes)
        look.statistics.add(block, codes, recipe.n_jobs)
        if last:
            _remember(codes, start, look.representatives, leaning)
        start = stop
    return look


def _remember(codes: Codes, start: int, rows: IntArray, leaning: FloatArray) -> None:
    """For each atom, keep the rows whose codes put the largest share on it."""
    n, k = codes.weights.shape
    m, r = rows.shape
    atom = np.concatenate([codes.neighbors.ravel(), np.repeat(np.arange(m), r)])
    weight = np.concatenate([codes.weights.ravel(), leaning.ravel()])
    row = np.concatenate([np.repeat(np.arange(start, start + n), k), rows.ravel()])
    order = np.lexsort((row, -weight, atom))
    rank = np.arange(len(order)) - np.searchsorted(atom[order], atom[order])
    order, rank = order[rank < r], rank[rank < r]
    rows[atom[order], rank] = np.where(weight[order] > 0, row[order], -1)
    leaning[atom[order], rank] = weight[order]


def _adopt_uncoded(codes: Codes) -> None:
    """Assign rows that the penalty left without any atom to their best one.

    As printed, one step with a large λ leaves every row without an atom and deletes all atoms.
    """
    uncoded = codes.weights.sum(axis=1) <= 0.0
    codes.weights[uncoded, 0] = 1.0


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


def _unit_if_cosine(atoms: Matrix, recipe: Recipe) -> Matrix:
    """Unit length for the cosine kernel; Gaussian atoms of loose groups may be short."""
    if recipe.bandwidth == 0.0 and recipe.normalize:
        length = np.linalg.norm(atoms, axis=1, keepdims=True)
        atoms = np.divide(atoms, length, out=atoms.copy(), where=length > 0)
    return atoms.astype(np.float32)

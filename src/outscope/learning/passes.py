"""Sums over coded rows, and one pass over them: a map over parts and a reduce in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse

from outscope._types import FloatArray, IntArray, Matrix
from outscope.engine.approximate import coder_of
from outscope.engine.blocks import threads_of
from outscope.engine.coder import Coder, Codes
from outscope.engine.kernels.parallel import for_ranges
from outscope.engine.kernels.update import add_moments, share_weights
from outscope.engine.leading import Directions
from outscope.learning.rows import EPOCH_ROWS, Rows

# Weights below this share of a row's code do not move atoms (narrow kernels leave such dust).
NEGLIGIBLE = 1e-4
# Training rows remembered for each atom, for explanations.
REPRESENTATIVES = 3
# Badly explained rows remembered of a part, to replace atoms that no row uses.
WORST_ROWS = 512
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
        usage, mass = np.zeros(self.n_atoms), np.zeros(self.n_atoms)
        share_weights(codes.weights, codes.neighbors, NEGLIGIBLE, usage, mass)
        self.rows += n
        self.loss += float(np.sum(codes.ood_score))
        self.usage += usage
        self.mass += mass
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
            entries = codes.weights.ravel(), codes.neighbors.ravel(), starts
            W = scipy.sparse.csr_matrix(entries, shape=(n, self.n_atoms))
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
class Coding:
    """How a pass codes rows on one dictionary. Small: this is what travels to other processes."""

    atoms: Matrix
    bandwidth: float
    n_neighbors: int
    normalize: bool
    penalty: FloatArray | None
    with_products: bool
    for_worst: bool  # remember badly explained rows
    for_examples: bool  # remember the rows that use each atom most
    directions: Directions  # shared by all passes
    search: str = "exact"

    @cached_property
    def coder(self) -> Coder:
        """Codes rows on these atoms."""
        return coder_of(self.search)(
            self.atoms,
            self.bandwidth,
            normalize=self.normalize,
            penalty=self.penalty,
            directions=self.directions,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "coder"}


@dataclass
class Look:
    """What one pass finds out about some rows; looks at other rows are merged into it."""

    statistics: CodeStatistics
    examples: IntArray  # (m, REPRESENTATIVES) numbers of rows, −1 = none; (0, …) if not asked for
    leaning: FloatArray  # their shares
    worst: Matrix  # (w, d) rows, the worst explained first
    worst_scores: FloatArray

    def merge(self, other: Look) -> None:
        """Add what was found out about later rows."""
        self.statistics.merge(other.statistics)
        m, r = self.examples.shape
        if m:
            atom = np.repeat(np.arange(m), r)
            self._remember(
                np.concatenate([atom, atom]),
                np.concatenate([self.leaning.ravel(), other.leaning.ravel()]),
                np.concatenate([self.examples.ravel(), other.examples.ravel()]),
            )
        if len(self.worst) + len(other.worst):
            self._keep_worst(
                np.concatenate([self.worst_scores, other.worst_scores]),
                np.concatenate([self.worst, other.worst]),
            )

    def _add(self, rows: Matrix, codes: Codes, numbers: IntArray, n_jobs: int | None) -> None:
        """Add a block of coded rows."""
        self.statistics.add(rows, codes, n_jobs)
        m, r = self.examples.shape
        if m:
            self._remember(
                np.concatenate([codes.neighbors.ravel(), np.repeat(np.arange(m), r)]),
                np.concatenate([codes.weights.ravel(), self.leaning.ravel()]),
                np.concatenate([np.repeat(numbers, codes.weights.shape[1]), self.examples.ravel()]),
            )

    def _remember(self, atom: IntArray, weight: FloatArray, row: IntArray) -> None:
        """For each atom, keep the rows whose codes put the largest share on it."""
        order = np.lexsort((row, -weight, atom))
        rank = np.arange(len(order)) - np.searchsorted(atom[order], atom[order])
        few = rank < self.examples.shape[1]
        order, rank = order[few], rank[few]
        self.examples[atom[order], rank] = np.where(weight[order] > 0, row[order], -1)
        self.leaning[atom[order], rank] = weight[order]

    def _keep_worst(self, scores: FloatArray, rows: Matrix) -> None:
        worst = np.argsort(-scores, kind="stable")[:WORST_ROWS]
        self.worst, self.worst_scores = rows[worst], scores[worst]


def look_at(
    coding: Coding,
    rows: Matrix,
    numbers: IntArray,
    n_jobs: int | None,
    left_out: IntArray | None = None,
) -> Look:
    """Code rows that are in memory. `left_out` are the numbers of rows that must not count."""
    m, d = coding.atoms.shape
    found = Look(
        CodeStatistics(m, d, coding.with_products),
        np.full((m if coding.for_examples else 0, REPRESENTATIVES), -1, dtype=np.intp),
        np.zeros((m if coding.for_examples else 0, REPRESENTATIVES)),
        np.empty((0, d), np.float32),
        np.empty(0),
    )
    scores = np.empty(len(rows))
    for start in range(0, len(rows), EPOCH_ROWS):
        block = slice(start, start + EPOCH_ROWS)
        codes = coding.coder.code(rows[block], coding.n_neighbors, n_jobs, relative=True)
        if coding.penalty is not None:
            _adopt_uncoded(codes)
        if left_out is not None:
            passed = np.isin(numbers[block], left_out)
            codes.weights[passed], codes.ood_score[passed] = 0.0, 0.0
            found.statistics.rows -= int(passed.sum())
        scores[block] = codes.ood_score
        found._add(rows[block], codes, numbers[block], n_jobs)
    if coding.for_worst:
        found._keep_worst(scores, rows)
    return found


def look_at_part(
    codings: Sequence[Coding | None],
    rows: Matrix,
    numbers: IntArray,
    n_jobs: int | None,
    member: IntArray | None = None,
    left_out: IntArray | None = None,
) -> list[Look | None]:
    """Code each row on its own dictionary; without `member`, all rows on the only one."""
    if member is None:
        only = codings[0]
        return [None if only is None else look_at(only, rows, numbers, n_jobs, left_out)]
    order = np.argsort(member, kind="stable")
    edges = np.searchsorted(member[order], np.arange(len(codings) + 1))
    found: list[Look | None] = []
    for c, coding in enumerate(codings):
        mine = order[edges[c] : edges[c + 1]]
        if coding is None or not len(mine):
            found.append(None)
        else:
            found.append(look_at(coding, rows[mine], numbers[mine], n_jobs, left_out))
    return found


def merge_looks(whole: list[Look | None], part: list[Look | None]) -> list[Look | None]:
    """What is known after one more part, dictionary by dictionary."""
    for c, found in enumerate(part):
        there = whole[c]
        if there is None:
            whole[c] = found
        elif found is not None:
            there.merge(found)
    return whole


class Passes:
    """Passes over rows on this machine: part by part, threads within a part.

    Anything with this method can take its place, e.g. to run the parts on other machines.
    """

    def __init__(self, n_jobs: int | None) -> None:
        self._n_jobs = n_jobs

    def __call__(
        self,
        codings: list[Coding | None],
        rows: Rows,
        member: IntArray | None,
        left_out: IntArray | None,
        advance: Callable[[int], None],
    ) -> list[Look | None]:
        """One look per dictionary at all of its rows, merged in the order of the parts."""
        whole: list[Look | None] = [None] * len(codings)
        for numbers, part in rows.parts():
            mine = None if member is None else member[numbers]
            found = look_at_part(codings, part, numbers, self._n_jobs, mine, left_out)
            whole = merge_looks(whole, found)
            advance(len(part))
        return whole


def _adopt_uncoded(codes: Codes) -> None:
    """Assign rows that the penalty left without any atom to their best one.

    As printed, one step with a large λ leaves every row without an atom and deletes all atoms.
    """
    uncoded = codes.weights.sum(axis=1) <= 0.0
    codes.weights[uncoded, 0] = 1.0

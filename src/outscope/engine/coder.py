"""Codes and scores of rows, for one dictionary or one per class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from outscope._types import FloatArray, IntArray, Matrix
from outscope.engine.blocks import Block, Engine, threads_of
from outscope.engine.kernels.classwise import score_classes
from outscope.engine.kernels.coding import code_rows, kernel_rows
from outscope.engine.kernels.parallel import for_ranges
from outscope.engine.leading import Directions

# The kernel between atoms is kept if it takes at most 128 MB.
KEPT_GRAM_ENTRIES = 4096 * 4096


class Codes(NamedTuple):
    """The result of coding each row."""

    neighbors: IntArray  # (n, k) atoms, best first
    weights: FloatArray  # (n, k) non-negative
    ood_score: FloatArray  # (n,) higher = stranger


class ClassCodes(NamedTuple):
    """The result of coding each row by its best class."""

    neighbors: IntArray  # (n, k) atoms of the best class, numbered over all classes, best first
    weights: FloatArray  # (n, k) non-negative, as `Coder.code` gives them with `relative`
    ood_score: FloatArray  # (n,) higher = stranger
    classes: IntArray  # (n,) the best class


def kernel_between(
    atoms: Matrix, squares: FloatArray, bandwidth: float, n_jobs: int | None
) -> FloatArray:
    """Kernel between all atoms; the lower triangle is filled."""
    m = len(atoms)
    gram = np.zeros((m, m))

    def fill(first: int, last: int) -> None:
        # Rows of a triangle differ in length, so pair each long one with a short one.
        kernel_rows(atoms, squares, bandwidth, first, last, gram)
        kernel_rows(atoms, squares, bandwidth, m - last, m - first, gram)

    for_ranges((m + 1) // 2, threads_of(n_jobs), 64, fill)
    return gram


class Coder(Engine):
    """Exact NNK coding on fixed atoms.

    `bandwidth` 0 is the linear kernel (cosine on unit rows); otherwise exp(−‖x − c‖² / 2σ).
    `penalty` lowers an atom's key, which implements the entropy constraint.
    """

    def __init__(
        self,
        atoms: Matrix,
        bandwidth: float,
        *,
        normalize: bool = True,
        penalty: FloatArray | None = None,
        discount: Matrix | None = None,
        directions: Directions | None = None,
    ) -> None:
        super().__init__(
            atoms,
            normalize=normalize,
            euclidean=bandwidth > 0,
            penalty=penalty,
            discount=discount,
            directions=directions,
        )
        self.bandwidth = float(bandwidth)

    def code(
        self, X: Matrix, n_neighbors: int, n_jobs: int | None = None, *, relative: bool = False
    ) -> Codes:
        """Codes and scores of every row.

        `relative` weights are divided by the row's largest similarity: they have the same shares
        but do not underflow for rows far from every atom.
        """
        n, k = len(X), min(n_neighbors, len(self))
        codes = Codes(np.empty((n, k), np.intp), np.empty((n, k)), np.empty(n))
        kernel = self._kernel(self._gram_for(n, k, n_jobs), relative)
        self.run(X, n_jobs, codes, kernel, k)
        return codes

    def ood_score(self, X: Matrix, n_neighbors: int, n_jobs: int | None = None) -> FloatArray:
        """Scores only, in memory that does not grow with the number of rows."""
        scores = np.empty(len(X))
        k = min(n_neighbors, len(self))
        kernel = self._kernel(self._gram_for(len(X), k, n_jobs), relative=True)

        def score(block: Block, scores: FloatArray) -> None:
            n = len(scores)
            kernel(block, np.empty((n, k), np.intp), np.empty((n, k)), scores)

        self.run(X, n_jobs, (scores,), score, k)
        return scores

    def _kernel(self, gram: FloatArray, relative: bool) -> Any:
        def code(block: Block, *out: Matrix) -> None:
            code_rows(
                *block,
                self.atoms,
                self.squares,
                self.offsets,
                self.offsets32,
                gram,
                self.bandwidth,
                relative,
                *out,
            )

        return code

    def _gram_for(self, n_rows: int, k: int, n_jobs: int | None) -> FloatArray:
        """The kernel between atoms, once enough rows have been coded to pay for it.

        Local blocks computed until then are bitwise the same, so scores are unaffected.
        """
        m = len(self)
        if "gram" in self._cache:
            return self._cache["gram"]
        with self._lock:
            if "gram" not in self._cache and m * m <= KEPT_GRAM_ENTRIES:
                self._cache["pairs"] = self._cache.get("pairs", 0) + n_rows * k * k
                if self._cache["pairs"] >= m * m // 4:
                    gram = kernel_between(self.atoms, self.squares, self.bandwidth, n_jobs)
                    self._cache["gram"] = gram
            return self._cache.get("gram", np.empty((0, 0)))


class _Within(NamedTuple):
    """The kernel within each class."""

    grams: FloatArray  # (Σ m_c²,) one after the other, or (0,) if that would be too large
    closeness: FloatArray  # (c,) its smallest value off the diagonal


class ClassCoder(Engine):
    """Scores against one dictionary per class, all classes in one product."""

    def __init__(
        self,
        dictionaries: Sequence[Matrix],
        bandwidth: float,
        *,
        normalize: bool = True,
        discount: Matrix | None = None,
        penalty: FloatArray | None = None,
    ) -> None:
        super().__init__(
            np.concatenate(dictionaries),
            normalize=normalize,
            euclidean=bandwidth > 0,
            penalty=penalty,
            discount=discount,
        )
        self.bandwidth = float(bandwidth)
        sizes = np.array([len(atoms) for atoms in dictionaries])
        self.starts = np.concatenate([[0], np.cumsum(sizes)])
        self._gram_starts = np.concatenate([[0], np.cumsum(sizes * sizes)])

    def _within(self, n_jobs: int | None) -> _Within:
        with self._lock:
            if "within" not in self._cache:
                self._cache["within"] = self._compute_within(n_jobs)
            return self._cache["within"]

    def _compute_within(self, n_jobs: int | None) -> _Within:
        closeness = np.ones(len(self.starts) - 1)
        blocks = []
        for c, (first, last) in enumerate(zip(self.starts, self.starts[1:], strict=False)):
            part = slice(first, last)
            gram = kernel_between(self.atoms[part], self.squares[part], self.bandwidth, n_jobs)
            # The bound for skipping needs a kernel with a unit diagonal; 1 switches it off.
            if self.bandwidth > 0 or self.normalize:
                below = gram[np.tril_indices(len(gram), -1)]
                closeness[c] = below.min() if len(below) else 0.0
            blocks.append(gram.ravel())
        kept = self._gram_starts[-1] <= KEPT_GRAM_ENTRIES
        return _Within(np.concatenate(blocks) if kept else np.empty(0), closeness)

    def ood_score(
        self, X: Matrix, n_neighbors: int, n_jobs: int | None = None
    ) -> tuple[FloatArray, IntArray]:
        """Smallest score over the classes, and the class that has it."""
        return self._code(X, n_neighbors, n_jobs, with_codes=False)[2:]

    def code(self, X: Matrix, n_neighbors: int, n_jobs: int | None = None) -> ClassCodes:
        """The same, with each row's code in that class.

        A class with fewer than k atoms is padded with its best atom, at weight 0.
        """
        return self._code(X, n_neighbors, n_jobs, with_codes=True)

    def _code(
        self, X: Matrix, n_neighbors: int, n_jobs: int | None, *, with_codes: bool
    ) -> ClassCodes:
        k = min(n_neighbors, int(np.diff(self.starts).max()))
        n, width = len(X), k if with_codes else 0
        codes = ClassCodes(
            np.empty((n, width), np.intp), np.empty((n, width)), np.empty(n), np.empty(n, np.intp)
        )
        within = self._within(n_jobs)

        def kernel(block: Block, *out: Matrix) -> None:
            score_classes(
                *block[:5],
                self.atoms,
                self.squares,
                self.offsets,
                self.offsets32,
                self.starts,
                within.grams,
                self._gram_starts,
                within.closeness,
                self.bandwidth,
                k,
                *out,
            )

        self.run(X, n_jobs, codes, kernel)
        return codes

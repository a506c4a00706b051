"""Scoring as an ONNX graph: rows → keys → nearest atoms → exact local problems → `ood_score`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from outscope._types import FloatArray, IntArray
from outscope.engine.coder import ClassCoder, Coder, kernel_between
from outscope.engine.kernels.classwise import ROUNDING
from outscope.integrations.onnx_graph import Graph
from outscope.integrations.onnx_solver import solve_energy
from outscope.learning.view import View


class Problems(NamedTuple):
    """Local problems, named in a graph: one per row, or one per row and class."""

    keys: str  # (p, k) falling
    atoms: str  # (p, k)
    square: str  # (p, 1) the row's squared length
    there: str | None = None  # (p, k) 0 for what only fills up a class of fewer than k atoms


def seen_rows(graph: Graph, rows: str, view: View, *, normalize: bool) -> tuple[str, str]:
    """Rows as the dictionary sees them, float64, and their squared lengths (n, 1)."""
    rows = graph.double(rows)
    if view.metric is not None:
        rows = graph.op("MatMul", rows, graph.constant(view.metric))
    if not view.plain:
        length = graph.op("Sqrt", _squares(graph, rows))
        rows = _rescaled(graph, rows, length, view.lengths - 1.0)
    square = _squares(graph, rows)
    if normalize:
        rows = _rescaled(graph, rows, graph.op("Sqrt", square), -1.0)
        # A zero row counts as a unit row orthogonal to everything; NaN stays NaN.
        square = graph.op("Add", graph.op("Mul", square, graph.number(0.0)), graph.number(1.0))
    return rows, square


def _squares(graph: Graph, rows: str) -> str:
    return graph.total(graph.op("Mul", rows, rows), 1)


def _rescaled(graph: Graph, rows: str, length: str, power: float) -> str:
    """Rows times a power of their length; rows of length 0 stay."""
    zero, factor = graph.number(0.0), graph.op("Pow", length, graph.number(power))
    return graph.op("Mul", rows, graph.op("Where", graph.op("Equal", length, zero), zero, factor))


class Atoms:
    """The atoms of a coder in a graph: keys of rows, the kernel among atoms, scores."""

    def __init__(self, graph: Graph, coder: Coder | ClassCoder, k: int) -> None:
        self.graph, self.bandwidth, self.k = graph, coder.bandwidth, k
        self._stored = graph.double(graph.constant(coder.atoms, np.float32))
        self._offsets = graph.constant(coder.offsets[None])
        self._lengths = coder.squares

    def keys(self, rows: str) -> str:
        """Inner products minus offsets, (n, m)."""
        turned = self.graph.op("Transpose", self._stored, perm=[1, 0])
        return self.graph.op("Sub", self.graph.op("MatMul", rows, turned), self._offsets)

    def targets(self, keys: str, best: str) -> str:
        """Similarities, relative to the largest one for the Gaussian kernel."""
        if self.bandwidth == 0.0:
            return keys
        gap = self.graph.op("Sub", keys, best)
        return self.graph.op("Exp", self.graph.op("Div", gap, self.graph.number(self.bandwidth)))

    def _gram(self, problems: Problems) -> str:
        """Kernel between the atoms of each problem, (p, k, k)."""
        g = self.graph
        near = g.op("Gather", self._stored, problems.atoms)
        gram = g.op("MatMul", near, g.op("Transpose", near, perm=[0, 2, 1]))
        if self.bandwidth != 0.0:
            squares = g.op("Gather", g.constant(self._lengths), problems.atoms)
            both = g.op("Add", g.with_axis(squares, 2), g.with_axis(squares, 1))
            gap = g.op("Max", g.op("Sub", both, g.op("Add", gram, gram)), g.number(0.0))
            gap = g.op("Mul", gap, g.constant(1.0 - np.eye(self.k)[None]))
            gram = g.op("Exp", g.op("Div", gap, g.number(-2.0 * self.bandwidth)))
        if problems.there is not None:
            there = problems.there
            apart = g.op("Mul", g.with_axis(there, 2), g.with_axis(there, 1))
            gram = g.op("Mul", gram, apart)
        return gram

    def scores(self, problems: Problems) -> str:
        """Strangeness (p, 1) from the energy that the best non-negative code explains."""
        best = self.graph.part(problems.keys, 1, 0, 1)
        targets = self.targets(problems.keys, best)
        if problems.there is not None:
            targets = self.graph.op("Mul", targets, problems.there)
        energy = solve_energy(self.graph, self._gram(problems), targets, self.k)
        return self.strangeness(energy, best, problems.square)

    def strangeness(self, energy: str, best: str, square: str) -> str:
        """What `ood_value` is to the engine."""
        g = self.graph
        if self.bandwidth != 0.0:
            soft = g.op("Mul", g.op("Log", energy), g.number(self.bandwidth))
            return g.op("Sub", g.op("Sub", square, g.op("Add", best, best)), soft)
        zero, share = g.number(0.0), g.op("Div", energy, square)
        share = g.op("Where", g.op("LessOrEqual", energy, zero), best, share)
        share = g.op("Where", g.op("LessOrEqual", square, zero), zero, share)
        return g.op("Sub", g.number(1.0), share)


def nearest(graph: Graph, keys: str, k: int) -> tuple[str, str]:
    """The k largest keys, falling, and which they are; ties go to the lower index."""
    values, index = graph.ops("TopK", keys, graph.constant([k], np.int64), results=2, axis=1)
    return values, index


def dictionary_scores(graph: Graph, coder: Coder, rows: str, square: str, k: int) -> str:
    """Scores (n, 1) by one dictionary."""
    atoms = Atoms(graph, coder, k)
    keys, index = nearest(graph, atoms.keys(rows), k)
    return atoms.scores(Problems(keys, index, square))


class Classes:
    """Scores by one dictionary per class: first the favourite, then those it does not rule out."""

    def __init__(self, graph: Graph, coder: ClassCoder, k: int) -> None:
        self.graph, self.coder = graph, coder
        self.sizes: IntArray = np.diff(coder.starts)
        self.k = min(k, int(self.sizes.max()))
        self.atoms = Atoms(graph, coder, self.k)

    def scores(self, rows: str, square: str) -> str:
        """The smallest score over the classes, (n, 1)."""
        g, count = self.graph, len(self.sizes)
        keys, index = self._nearest(self.atoms.keys(rows))
        best = g.without_axis(g.part(keys, 2, 0, 1), 2)
        favourite = g.op("ArgMax", best, axis=1, keepdims=1)
        firsts = g.op("Concat", self._numbers_of(square), favourite, axis=1)
        first = self._scores_of(keys, index, square, firsts)
        if count == 1:
            return first
        lowest = self._lowest(keys, best, square)
        limit = g.op("Add", first, g.number(ROUNDING))
        own = g.op("Equal", g.constant(np.arange(count)[None], np.int64), favourite)
        may_win = g.op("And", g.op("LessOrEqual", lowest, limit), g.op("Not", own))
        pairs = g.op("Transpose", g.op("NonZero", may_win), perm=[1, 0])
        found = g.without_axis(self._scores_of(keys, index, square, pairs), 1)
        everywhere = g.op("Add", first, g.constant(np.zeros((1, count))))
        everywhere = g.op("ScatterND", everywhere, pairs, found)
        return g.op("ReduceMin", everywhere, g.constant([1], np.int64), keepdims=1)

    def _numbers_of(self, square: str) -> str:
        """0, 1, 2 … for the rows, (n, 1)."""
        g, (zero, one) = self.graph, (self.graph.constant(i, np.int64) for i in (0, 1))
        number = g.op("Squeeze", g.op("Shape", square, start=0, end=1))
        return g.with_axis(g.op("Range", zero, number, one), 1)

    def _nearest(self, keys: str) -> tuple[str, str]:
        """The best atoms of each class, both (n, c, k)."""
        g = self.graph
        parts = [keys]
        if len(self.sizes) > 1:
            sizes = g.constant(self.sizes, np.int64)
            parts = g.ops("Split", keys, sizes, results=len(self.sizes), axis=1)
        found: list[tuple[str, str]] = []
        for part, first, size in zip(parts, self.coder.starts, self.sizes, strict=False):
            values, index = nearest(g, part, min(self.k, int(size)))
            index = g.op("Add", index, g.constant(first, np.int64))
            filled = np.minimum(np.arange(self.k), size - 1)
            if size < self.k:
                which = g.constant(filled, np.int64)
                values, index = (g.op("Gather", some, which, axis=1) for some in (values, index))
            found.append((g.with_axis(values, 1), g.with_axis(index, 1)))
        values, index = (g.op("Concat", *some, axis=1) for some in zip(*found, strict=True))
        return values, index

    def _filled(self) -> FloatArray | None:
        """(c, k) 0 for what only fills up a class; None if no class needs it."""
        there = np.arange(self.k) < self.sizes[:, None]
        return None if there.all() else there.astype(np.float64)

    def _scores_of(self, keys: str, index: str, square: str, pairs: str) -> str:
        """Scores (p, 1) of pairs of a row and a class."""
        g, filled, there = self.graph, self._filled(), None
        row, label = (g.without_axis(g.part(pairs, 1, i, i + 1), 1) for i in (0, 1))
        if filled is not None:
            there = g.op("Gather", g.constant(filled), label)
        own_keys, own_atoms = (g.op("GatherND", some, pairs) for some in (keys, index))
        return self.atoms.scores(Problems(own_keys, own_atoms, g.op("Gather", square, row), there))

    def _lowest(self, keys: str, best: str, square: str) -> str:
        """No class scores lower than this, (n, c).

        With every kernel value between atoms replaced by the smallest one, a class could only
        explain more, and then the optimum without signs has a closed form.
        """
        g, filled = self.graph, self._filled()
        targets = g.op("Max", self.atoms.targets(keys, g.with_axis(best, 2)), g.number(0.0))
        if filled is not None:
            targets = g.op("Mul", targets, g.constant(filled[None]))
        closeness = np.array([self._closeness(c) for c in range(len(self.sizes))])
        middle = 1.0 - closeness + closeness * np.minimum(self.k, self.sizes)
        known = (closeness >= 0.0) & (closeness < 1.0 - 1e-9)
        spread = np.where(known, 1.0 - closeness, 1.0)
        total = g.total(targets, 2, keep=False)
        shared = g.op("Mul", g.op("Mul", total, total), g.constant([closeness / middle]))
        energy = g.op("Sub", g.total(g.op("Mul", targets, targets), 2, keep=False), shared)
        energy = g.op("Div", energy, g.constant([spread]))
        lowest = self.atoms.strangeness(energy, best, square)
        return g.op("Where", g.constant([known], np.bool_), lowest, g.number(-np.inf))

    def _closeness(self, label: int) -> float:
        """The smallest kernel value between two atoms of a class; 1 where no bound holds."""
        part = slice(self.coder.starts[label], self.coder.starts[label + 1])
        if self.coder.bandwidth == 0.0 and not self.coder.normalize:
            return 1.0
        gram = kernel_between(
            self.coder.atoms[part], self.coder.squares[part], self.coder.bandwidth, None
        )
        below = gram[np.tril_indices(len(gram), -1)]
        return float(below.min()) if len(below) else 0.0

"""The local problem of NNK in ONNX operations, solved exactly for a batch of rows."""

from __future__ import annotations

import numpy as np

from outscope.engine.kernels.nnls import DUAL_TOLERANCE, PIVOT_TOLERANCE
from outscope.integrations.onnx_graph import Graph

# How often all wrong atoms may change sides without progress, before they do so one at a time.
PATIENCE = 3.0
# Problems of 20 independent atoms took at most 6 turns; dependent ones may turn in circles.
TURNS = 100


def solve_energy(graph: Graph, gram: str, targets: str, k: int) -> str:
    """The energy (p, 1) that θ explains: the minimum over θ ≥ 0 of ½ θᵀ·gram·θ − θᵀ·target.

    Block principal pivoting (Portugal, Júdice and Vicente 1994): all atoms on the wrong side of
    their condition change sides at once, and one at a time where that makes no progress. It ends
    where the conditions of the optimum hold for every problem. Where they never do, which may
    happen among atoms that depend on each other, the energy is NaN, not a wrong number.
    """
    column = graph.total(graph.op("Mul", targets, graph.number(0.0)), 1)
    fewest = graph.op("Add", column, graph.number(k + 1.0))
    patience = graph.op("Add", column, graph.number(PATIENCE))
    passive = graph.double(graph.op("Greater", targets, graph.number(0.0)))

    def turn(g: Graph, given: list[str]) -> tuple[str, list[str]]:
        passive, _, fewest, patience = given
        code, used = _solve_passive(g, gram, targets, passive, k)
        wrong = _wrong_side(g, gram, targets, code, passive, used)
        number = g.total(wrong, 1)
        better = g.op("Less", number, fewest)
        left = g.op("Sub", patience, g.number(1.0))
        left = g.op("Where", better, g.number(PATIENCE), left)
        places = g.op("Mul", wrong, g.constant(np.arange(1.0, k + 1)[None]))
        last = g.double(g.op("Equal", places, g.largest(places)))
        together = g.op("GreaterOrEqual", left, g.number(0.0))
        turned = g.op("Where", together, wrong, g.op("Mul", wrong, last))
        gap = g.op("Sub", passive, turned)
        sides = g.op("Mul", gap, gap)
        on = g.op("Greater", g.op("ReduceSum", number, keepdims=0), g.number(0.0))
        return on, [sides, code, g.op("Min", number, fewest), left]

    start = [passive, passive, fewest, patience]
    _, code, fewest, _ = graph.repeat(TURNS + 10 * k, start, turn)
    code = graph.op("Max", code, graph.number(0.0))
    # Twice the objective: at the optimum it is the energy, and errors of the code enter squared.
    pull = graph.op("Sub", graph.op("Add", targets, targets), _times(graph, gram, code))
    energy = graph.total(graph.op("Mul", code, pull), 1)
    solved = graph.op("Equal", fewest, graph.number(0.0))
    return graph.op("Where", solved, energy, graph.constant(np.nan))


def _times(g: Graph, gram: str, code: str) -> str:
    """Each matrix times its vector, (p, k)."""
    return g.without_axis(g.op("MatMul", gram, g.with_axis(code, 2)), 2)


def _wrong_side(g: Graph, gram: str, targets: str, code: str, passive: str, used: str) -> str:
    """1 where a weight is negative, or where raising a weight of 0 would lower the objective."""
    slope = g.op("Sub", targets, _times(g, gram, code))
    size = g.op("Add", g.total(g.op("Abs", code), 1), g.largest(g.op("Abs", targets)))
    slack = g.op("Mul", size, g.number(DUAL_TOLERANCE))
    negative = g.op("Mul", used, g.double(g.op("Less", code, g.number(0.0))))
    idle = g.op("Sub", g.number(1.0), passive)
    return g.op("Add", negative, g.op("Mul", idle, g.double(g.op("Greater", slope, slack))))


def _solve_passive(g: Graph, gram: str, targets: str, passive: str, k: int) -> tuple[str, str]:
    """Weights of the passive atoms, of any sign, and which atoms were used.

    Elimination column by column; an atom that depends on those before it is left out, as in the
    engine's factorisation.
    """
    both = g.op("Mul", g.with_axis(passive, 2), g.with_axis(passive, 1))
    sides = g.with_axis(g.op("Mul", targets, passive), 2)
    system = g.op("Concat", g.op("Mul", gram, both), sides, axis=2)
    own = g.total(g.op("Mul", system, g.constant(np.eye(k, k + 1)[None])), 2)
    tolerance = g.op("Mul", own, g.number(PIVOT_TOLERANCE))
    used = []
    for j in range(k):
        # The first column left is that of atom j: those before it are done with.
        column, rest = g.part(system, 2, 0, 1), g.part(system, 2, 1)
        pivot = g.part(column, 1, j, j + 1)
        fine = g.op("Greater", pivot, g.part(tolerance, 1, j, j + 1))
        row = g.op("Div", g.part(rest, 1, j, j + 1), pivot)
        row = g.op("Where", fine, row, g.number(0.0))
        others = g.op("Sub", column, g.constant(np.eye(k)[None, :, j : j + 1]))
        system = g.op("Sub", rest, g.op("Mul", others, row))
        used.append(g.double(fine))
    there = g.without_axis(g.op("Concat", *used, axis=1), 2)
    return g.op("Mul", g.without_axis(system, 2), there), there

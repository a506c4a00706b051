"""The local problem of NNK in ONNX operations, solved exactly for a batch of rows."""

from __future__ import annotations

import numpy as np

from outscope.engine.kernels.nnls import DUAL_TOLERANCE, PIVOT_TOLERANCE
from outscope.integrations.onnx_graph import Graph

# How often all wrong atoms may change sides without progress, before they do so one at a time.
PATIENCE = 3.0
# Problems of 20 independent atoms took at most 6 turns; dependent ones may turn in circles.
TURNS = 20


def solve_energy(graph: Graph, gram: str, targets: str, k: int) -> str:
    """The energy (p, 1) that θ explains: the minimum over θ ≥ 0 of ½ θᵀ·gram·θ − θᵀ·target.

    Block principal pivoting (Portugal, Júdice and Vicente 1994) is quick where atoms are
    independent: all atoms on the wrong side of their condition change sides at once, and one at a
    time where that makes no progress. Problems that this leaves unsolved are solved by the steps
    of Lawson and Hanson, as in the engine, which end for atoms that depend on each other, too.
    """
    code, solved = _by_blocks(graph, gram, targets, k)
    energy = _energy_of(graph, gram, targets, code)
    left = graph.op("NonZero", graph.without_axis(graph.op("Not", solved), 1))
    left = graph.without_axis(left, 0)
    gram, targets = (graph.op("Gather", some, left) for some in (gram, targets))
    code, solved = _by_steps(graph, gram, targets, k)
    late = _energy_of(graph, gram, targets, code)
    late = graph.op("Where", solved, late, graph.constant(np.nan))
    return graph.op("ScatterND", energy, graph.with_axis(left, 1), late)


def _energy_of(g: Graph, gram: str, targets: str, code: str) -> str:
    """Twice the objective: the energy at the optimum, where errors of the code enter squared."""
    code = g.op("Max", code, g.number(0.0))
    pull = g.op("Sub", g.op("Add", targets, targets), _times(g, gram, code))
    return g.total(g.op("Mul", code, pull), 1)


def _by_blocks(graph: Graph, gram: str, targets: str, k: int) -> tuple[str, str]:
    """Codes (p, k), and for which problems they are the optimum (p, 1)."""
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
    _, code, fewest, _ = graph.repeat(TURNS + k, start, turn)
    return code, graph.op("Equal", fewest, graph.number(0.0))


def _by_steps(graph: Graph, gram: str, targets: str, k: int) -> tuple[str, str]:
    """The same, atom by atom: from a feasible code, each step lowers the objective."""
    none = graph.double(graph.op("Greater", targets, graph.number(np.inf)))
    column = graph.total(none, 1)

    def turn(g: Graph, given: list[str]) -> tuple[str, list[str]]:
        code, passive, barred, newest, _ = given
        zero, one = g.number(0.0), g.number(1.0)
        best, _ = _solve_passive(g, gram, targets, passive, k)
        code, leaving, blocked = _towards(g, code, best, passive)
        passive = g.op("Sub", passive, leaving)
        # A new atom that blocks at once is rounding noise, until another one gets a weight.
        noise = g.op("Add", barred, g.op("Mul", newest, leaving))
        stays = g.op("Greater", g.total(g.op("Mul", newest, passive), 1), zero)
        barred = g.op("Where", blocked, noise, g.op("Where", stays, zero, barred))
        slope, slack = _slope(g, gram, targets, code)
        idle = g.op("Sub", one, g.op("Max", passive, barred))
        useful = g.op("Mul", idle, g.double(g.op("Greater", slope, slack)))
        useful = g.op("Where", blocked, zero, useful)
        entering = _steepest(g, slope, useful, k)
        busy = g.op("Max", g.double(blocked), g.largest(entering))
        on = g.op("Greater", g.op("ReduceSum", busy, keepdims=0), zero)
        newest = g.op("Where", blocked, newest, entering)
        return on, [code, g.op("Add", passive, entering), barred, newest, busy]

    start = [none, none, none, none, column]
    code, *_, busy = graph.repeat(10 * (k + 10), start, turn)
    return code, graph.op("Equal", busy, graph.number(0.0))


def _towards(g: Graph, code: str, best: str, passive: str) -> tuple[str, str, str]:
    """The code moved to the best one of its atoms until a weight is 0; which; whether one was."""
    zero, one = g.number(0.0), g.number(1.0)
    stuck = g.op("Mul", passive, g.double(g.op("LessOrEqual", best, zero)))
    room = g.op("Sub", code, best)
    share = g.op("Where", g.op("Greater", room, zero), g.op("Div", code, room), zero)
    share = g.op("Where", g.op("Greater", stuck, zero), share, one)
    step = g.op("ReduceMin", share, g.constant([1], np.int64), keepdims=1)
    blocked = g.op("Greater", g.largest(stuck), zero)
    moved = g.op("Sub", code, g.op("Mul", step, room))
    leaving = g.op("Mul", stuck, g.double(g.op("LessOrEqual", share, step)))
    moved = g.op("Where", g.op("Greater", leaving, zero), zero, moved)
    return g.op("Where", blocked, moved, best), leaving, blocked


def _steepest(g: Graph, slope: str, useful: str, k: int) -> str:
    """1 at the useful atom of the largest slope, of equal ones the last; else 0."""
    zero = g.number(0.0)
    slope = g.op("Where", g.op("Greater", useful, zero), slope, zero)
    first = g.op("Mul", useful, g.double(g.op("Equal", slope, g.largest(slope))))
    places = g.op("Mul", first, g.constant(np.arange(1.0, k + 1)[None]))
    return g.op("Mul", first, g.double(g.op("Equal", places, g.largest(places))))


def _times(g: Graph, gram: str, code: str) -> str:
    """Each matrix times its vector, (p, k)."""
    return g.without_axis(g.op("MatMul", gram, g.with_axis(code, 2)), 2)


def _slope(g: Graph, gram: str, targets: str, code: str) -> tuple[str, str]:
    """How much raising each weight lowers the objective (p, k), and what is rounding (p, 1)."""
    slope = g.op("Sub", targets, _times(g, gram, code))
    size = g.op("Add", g.total(g.op("Abs", code), 1), g.largest(g.op("Abs", targets)))
    return slope, g.op("Mul", size, g.number(DUAL_TOLERANCE))


def _wrong_side(g: Graph, gram: str, targets: str, code: str, passive: str, used: str) -> str:
    """1 where a weight is negative, or where raising a weight of 0 would lower the objective."""
    slope, slack = _slope(g, gram, targets, code)
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

"""What examples to refuse and to accept make of scores, as part of an ONNX graph."""

from __future__ import annotations

import numpy as np

from outscope.detectors.outside import WEIGHT, Outside
from outscope.detectors.rounded import MOST
from outscope.engine.coder import Coder
from outscope.integrations.onnx_graph import Graph
from outscope.integrations.onnx_scoring import dictionary_scores, seen_rows
from outscope.learning.view import View


def told_scores(graph: Graph, outside: Outside, base: str, rows: str, view: View) -> str:
    """The scores (n, 1) after all lessons, from those before; `Outside.told_of` as a graph."""
    kept = _rounded(graph, rows)

    def against(side: Coder | None) -> str:
        if side is None:
            return graph.number(np.inf)
        seen, square = seen_rows(graph, kept, view, normalize=side.normalize)
        return dictionary_scores(graph, side, seen, square, min(outside._k, len(side)))

    score, zero, refused = base, graph.number(0.0), against(outside._refused)
    margin = graph.op("Sub", graph.op("Add", base, graph.number(outside.level_)), refused)
    lacking = graph.op("Max", margin, zero)
    if outside._accepted is not None:
        accepted = against(outside._accepted)
        within = graph.op("LessOrEqual", accepted, graph.number(outside.reach_))
        vouched = graph.op("And", within, graph.op("LessOrEqual", accepted, refused))
        lacking = graph.op("Where", vouched, zero, lacking)
        score = graph.op("Where", vouched, graph.op("Min", base, accepted), base)
    return graph.op("Add", score, graph.op("Mul", lacking, graph.number(WEIGHT)))


def _rounded(graph: Graph, rows: str) -> str:
    """Rows at 8 bits per number, as examples are kept."""
    rows = graph.double(rows)
    scale = graph.op("Div", graph.largest(graph.op("Abs", rows)), graph.number(MOST))
    steps = graph.op("Round", graph.op("Div", rows, scale))
    nothing = graph.op("Equal", scale, graph.number(0.0))
    return graph.op("Where", nothing, graph.number(0.0), graph.op("Mul", steps, scale))

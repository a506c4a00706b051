"""eval: how well a saved detector separates in-scope from out-of-scope items, and how surely."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from outscope.cli.reading import (
    ITEMS,
    about,
    column_arguments,
    read_items,
    rows_for,
    vectors_argument,
)
from outscope.cli.show import progress, say, table
from outscope.errors import InputError


def eval_arguments(evaluate: argparse.ArgumentParser) -> None:
    """Options of eval."""
    evaluate.add_argument("model", help="folder written by fit")
    evaluate.add_argument("--inside", required=True, metavar="FILE", help=f"in scope; {ITEMS}")
    evaluate.add_argument("--outside", required=True, metavar="FILE", help="out of scope")
    column_arguments(evaluate)
    vectors_argument(evaluate)
    evaluate.add_argument(
        "--plot", metavar="FILE", help=".html: the curve of caught against false alarms"
    )


def evaluate(options: Any) -> None:
    """Measure how well a detector separates in-scope from out-of-scope items."""
    import numpy as np

    from outscope.decisions.evaluation import RATES, intervals, matched_lengths, trade_off
    from outscope.decisions.metrics import evaluate as measure
    from outscope.io.files import print_jsonl
    from outscope.loading import load

    plot = _plot_file(options.plot)
    model: Any = load(options.model)
    sources = (options.inside, options.outside)
    parts = [read_items(source, options, beside=True) for source in sources]
    total = sum(map(len, parts))
    with progress(f"scoring {total:,} {parts[0].noun}", total) as advance:
        scores = []
        for part, source in zip(parts, sources, strict=True):
            rows = rows_for(model, part, source, advance)
            with about(source):
                scores.append(getattr(model, "detector_", model).ood_score(rows))
    truth, whole = np.repeat([0, 1], [len(part) for part in parts]), np.concatenate(scores)
    result: dict[str, Any] = measure(truth, whole)._asdict()
    decide = getattr(model, "detector_", model).decide
    result["false_alarms"] = float(decide(scores[0]).is_ood.mean())
    result["caught"] = float(decide(scores[1]).is_ood.mean())
    texts = [text for part in parts for text in part.texts or ()]
    matched = matched_lengths(truth, whole, [*map(len, texts)]) if texts else None
    if matched is not None:
        result["auroc_matched_length"], result["matched"] = matched.auroc, matched.share
        result["auroc_of_length"] = matched.length_auroc
    found = {name: list(pair) for name, pair in intervals(truth, whole).items()}
    curve = [point._asdict() for point in trade_off(truth, whole)]
    if plot is not None:
        _draw(plot, [*trade_off(truth, whole, _fine(RATES))])
    if sys.stdout.isatty():
        _show(result, found, curve)
    else:
        print_jsonl([{**result, "intervals": found, "curve": curve}])


def _show(result: dict[str, Any], found: dict[str, Any], curve: list[dict[str, Any]]) -> None:
    def between(name: str) -> str:
        return " to ".join(f"{100 * end:.2f}" for end in found.get(name, ()))

    rows = [[name, f"{100 * value:.2f}", between(name)] for name, value in result.items()]
    table(["measure", "%", "95 % interval"], rows)
    print()
    cells = [
        [f"{100 * p['false_alarms']:.2f}", f"{100 * p['caught']:.2f}", f"{p['threshold']:.4g}"]
        for p in curve
    ]
    table(["false alarms %", "caught %", "above"], cells)


def _fine(rates: tuple[float, ...]) -> list[float]:
    """Enough rates for a smooth curve."""
    return sorted({*rates, *(i / 200 for i in range(200))})


def _plot_file(given: str | None) -> Path | None:
    if given is None:
        return None
    from outscope.io.files import check_writable

    path = Path(given)
    try:
        check_writable(path, ".html")
    except InputError as error:
        raise InputError(f"--plot: {error}") from error
    return path


def _draw(path: Path, points: list[Any]) -> None:
    """One page with the curve as a drawing; each point tells its numbers."""
    from outscope.io.files import whole_file

    line = " ".join(f"{400 * p.false_alarms:.1f},{400 - 400 * p.caught:.1f}" for p in points)
    dots = "".join(
        f'<circle cx="{400 * p.false_alarms:.1f}" cy="{400 - 400 * p.caught:.1f}" r="3"><title>'
        f"{p.false_alarms:.1%} false alarms, {p.caught:.1%} caught, above {p.threshold:.4g}"
        "</title></circle>"
        for p in points
    )
    page = (
        '<!doctype html><meta charset="utf-8"><title>caught against false alarms</title>'
        '<svg viewBox="-60 -20 500 480" width="640" font-family="sans-serif" font-size="13">'
        '<path d="M0 0V400H400" fill="none" stroke="#444"/>'
        '<text x="130" y="440">false alarms, 0 to 100 %</text>'
        '<text transform="translate(-20 270) rotate(-90)">caught, 0 to 100 %</text>'
        f'<polyline points="{line}" fill="none" stroke="#06c" stroke-width="2"/>'
        f'<g fill="#06c">{dots}</g></svg>\n'
    )
    with whole_file(path) as file:
        file.write(page.encode())
    say(f"wrote {path}")

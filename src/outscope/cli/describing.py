"""explain, info, methods and demo: the commands that display things."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from outscope.cli.reading import (
    ITEMS,
    Items,
    about,
    column_arguments,
    read_items,
    rows_at,
    rows_for,
    vectors_argument,
)
from outscope.cli.show import TABLE_ROWS, flat, progress, sample_told, say, size, table
from outscope.errors import InputError


def explain_arguments(explain: argparse.ArgumentParser) -> None:
    """Options of explain."""
    explain.add_argument("model", help="folder written by fit (an NNK method)")
    explain.add_argument("items", metavar="FILE", help=ITEMS)
    column_arguments(explain)
    vectors_argument(explain)
    explain.add_argument(
        "--row", type=int, action="append", help="only this row, counting from 1 (repeatable)"
    )
    explain.add_argument("--top", type=int, default=3, help="atoms to show (default 3)")


def info_arguments(info: argparse.ArgumentParser) -> None:
    """Options of info."""
    info.add_argument("model", help="folder written by fit")


def demo_arguments(demo: argparse.ArgumentParser) -> None:
    """Options of demo."""
    demo.add_argument("--encoder", metavar="NAME", help="encoder to use instead of the default")
    demo.add_argument("--all", action="store_true", help="show every sentence, not a selection")


def no_arguments(_: argparse.ArgumentParser) -> None:
    """A command without options."""


def explain(options: Any) -> None:
    """Show which atoms and training items explain an item, and how much stays unexplained."""
    from outscope.detectors.coded import DictionaryDetector
    from outscope.io.files import print_jsonl
    from outscope.loading import load

    model: Any = load(options.model)
    detector = getattr(model, "detector_", model)
    if not isinstance(detector, DictionaryDetector):
        raise InputError(
            f"{options.model} is a {type(detector).__name__}, which cannot explain; "
            "fit one of the nnk methods"
        )
    if options.top < 1:
        raise InputError(f"--top {options.top}: expected at least 1")
    items = read_items(options.items, options)
    chosen = list(range(1, len(items) + 1)) if options.row is None else options.row
    for row in chosen:
        if not 1 <= row <= len(items):
            raise InputError(
                f"--row {row} is not in {options.items}, which has the rows 1 to {len(items)}"
            )
    places = [row - 1 for row in chosen]
    texts = None if items.texts is None else [items.texts[i] for i in places]
    rows = rows_at(items, places)
    with about(options.items):
        given = None if items.vectors is None else items.vectors[places]
        taken = rows_for(model, Items(texts, rows, vectors=given), options.items)
        found = detector.explain(taken, n_atoms=options.top)
    known = {}
    if texts is not None:
        lines = zip(model.remembered_lines_.tolist(), model.remembered_texts_, strict=True)
        known = dict(zip(model.remembered_rows_.tolist(), lines, strict=True))
    if not sys.stdout.isatty():
        print_jsonl(_reasons(chosen, texts, found, known))
        return
    for place, (row, one) in enumerate(zip(chosen[:TABLE_ROWS], found, strict=False)):
        _show_reason(f"row {row}" if texts is None else repr(texts[place]), one, known)


def _reasons(chosen: Any, texts: Any, found: Any, known: Any) -> Iterator[dict[str, Any]]:
    for place, (row, one) in enumerate(zip(chosen, found, strict=True)):
        record = {"row": row, **({} if texts is None else {"text": texts[place]}), **one.as_dict()}
        for evidence in record["evidence"]:
            if known:
                evidence["texts"] = [known[r][1] for r in evidence["rows"]]
            evidence["rows"] = [(known[r][0] if known else r) + 1 for r in evidence["rows"]]
        yield record


def _show_reason(title: str, one: Any, known: Any) -> None:
    verdict = "out of scope" if one.is_ood else "in scope"
    print(f"\n{title}: {verdict}, score {one.ood_score:.4g}, {one.unexplained:.0%} unexplained")
    if one.refused_like is not None:
        print(f"refused: like {one.refused_like!r}, which you told me to refuse")
    table(
        ["atom", "share", "in-scope items behind it", "classes"],
        [
            [
                e.atom,
                f"{e.share:.0%}",
                "\n".join(known[r][1] if known else f"row {r + 1}" for r in e.rows),
                ", ".join(dict.fromkeys(map(str, e.labels))),
            ]
            for e in one.evidence
        ],
    )


def info(options: Any) -> None:
    """Describe a saved detector."""
    from outscope.io.files import print_jsonl
    from outscope.io.models import read_manifest
    from outscope.loading import load

    manifest = read_manifest(options.model)
    shown = {
        name: value
        for name, value in manifest.items()
        if name not in ("state", "checksum", "arrays_sha256", "format")
    }
    model: Any = load(options.model)
    shown["size"] = size(model, options.model)
    if lessons := model.lessons_:
        shown["lessons"] = ", ".join(f"{one.verb} {len(one.examples)}" for one in lessons)
    shown["parameters"] = manifest["state"]["parameters"]
    plan = getattr(getattr(model, "detector_", model), "planned_", None)
    if sys.stdout.isatty():
        table(["", ""], [[name, flat(value)] for name, value in shown.items()])
        if plan is not None:
            print()
            table(["plan", "", "because"], plan)
        if told := sample_told(model):
            print("", *told, sep="\n")
    else:
        shown["plan"] = plan
        print_jsonl([shown])


def methods(_: Any) -> None:
    """List the methods."""
    from outscope.detectors.methods import METHODS
    from outscope.io.files import print_jsonl

    told = {"blind": "not needed", "aware": "used", "classifier": "needs a fine-tuned encoder"}
    if sys.stdout.isatty():
        rows = [[m.name, told[m.labels], m.summary] for m in METHODS.values()]
        table(["method", "labels", "what the score measures"], rows)
    else:
        names = ("method", "labels", "summary")
        rows = [[m.name, f"label-{m.labels}", m.summary] for m in METHODS.values()]
        print_jsonl(dict(zip(names, row, strict=True)) for row in rows)


def demo(options: Any) -> None:
    """Fit, calibrate and evaluate on a small corpus that ships with the package."""
    from outscope.demo import run_demo

    with progress("embedding the corpus") as advance:
        outcome = run_demo(encoder=options.encoder, advance=advance)
    sentences = outcome.sentences if options.all else outcome.choice()
    table(
        ["sentence", "truth", "score", "p-value", "decision", "most like these in-scope sentences"],
        [
            [
                one.text,
                one.truth,
                f"{one.verdict.ood_score:.2f}",
                f"{one.verdict.p_value:.3f}",
                one.verdict.label,
                "\n".join(one.verdict.nearest[:2]),
            ]
            for one in sentences
        ],
    )
    print()
    table(
        ["method", "stored", "kB", "AUROC far", "AUROC near", "false alarms", "caught"],
        [list(row) for row in outcome.methods],
    )
    say(outcome.words)

"""fit, score, eval, explain: the commands that make detectors and use them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from outscope.cli.reading import ITEMS, Items, column_arguments, read_items, rows_for
from outscope.cli.show import TABLE_ROWS, progress, say, size, table
from outscope.errors import InputError

# Texts or rows that are scored and handed on together.
AT_A_TIME = 16_384
STREAMED = 1024


def fit_arguments(fit: argparse.ArgumentParser) -> None:
    """Options of fit."""
    fit.add_argument("items", metavar="FILE", help=ITEMS)
    fit.add_argument("--out", required=True, metavar="FOLDER", help="where to save the detector")
    fit.add_argument("--method", default="nnk-means", help="see: outscope methods")
    fit.add_argument("--preset", default="default", help="default, or paper for the paper's own")
    fit.add_argument("--labels", metavar="FILE", help="a label a row, in a file of its own")
    column_arguments(fit, labels=True)
    fit.add_argument("--encoder", metavar="NAME", help="model for texts: a name or a folder")
    fit.add_argument("--calibrate", metavar="FILE", help="in-scope items kept out of the fit")
    fit.add_argument("--fpr", type=float, default=0.05, help="false-alarm rate (default 0.05)")
    fit.add_argument("--skip-empty", action="store_true", help="leave out empty texts")
    fit.add_argument("--no-cache", action="store_true", help="neither read nor keep embeddings")
    fit.add_argument("--seed", type=int, default=0, help="random seed (default 0)")
    fit.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any setting of the method, as in --set n_atoms=500 (may be repeated)",
    )


def score_arguments(score: argparse.ArgumentParser) -> None:
    """Options of score."""
    score.add_argument("model", help="folder that fit wrote")
    score.add_argument("items", metavar="FILE", help=ITEMS)
    column_arguments(score)
    score.add_argument("--out", metavar="FILE", type=Path, help=".jsonl, .csv, .parquet or .npy")
    score.add_argument("--fpr", type=float, help="move the threshold for this run")
    score.add_argument("--no-cache", action="store_true", help="neither read nor keep embeddings")


def eval_arguments(evaluate: argparse.ArgumentParser) -> None:
    """Options of eval."""
    evaluate.add_argument("model", help="folder that fit wrote")
    evaluate.add_argument("--inside", required=True, metavar="FILE", help=f"in scope; {ITEMS}")
    evaluate.add_argument("--outside", required=True, metavar="FILE", help="out of scope")
    column_arguments(evaluate)


def explain_arguments(explain: argparse.ArgumentParser) -> None:
    """Options of explain."""
    explain.add_argument("model", help="folder that fit wrote (an NNK method)")
    explain.add_argument("items", metavar="FILE", help=ITEMS)
    column_arguments(explain)
    explain.add_argument("--row", type=int, action="append", help="only this row (repeatable)")
    explain.add_argument("--top", type=int, default=3, help="atoms to show (default 3)")


def settings_of(pairs: list[str]) -> dict[str, Any]:
    """--set NAME=VALUE as Python values."""
    settings = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator:
            raise InputError(f"--set {pair}: expected NAME=VALUE, as in --set n_atoms=500")
        if name in ("method", "preset"):
            raise InputError(f"--set {pair}: use --{name} {text}")
        try:
            settings[name] = json.loads(text)
        except ValueError:
            settings[name] = {"None": None, "True": True, "False": False}.get(text, text)
    return settings


def fit(options: Any) -> None:
    """Learn what is in scope and save a detector."""
    from outscope.methods import METHODS, make_detector

    settings = settings_of(options.set)
    if not 0 < options.fpr < 0.5:
        raise InputError(f"--fpr {options.fpr}: expected a rate between 0 and 0.5")
    detector = make_detector(
        options.method, preset=options.preset, **{"contamination": options.fpr, **settings}
    )
    if "random_state" in detector.get_params() and "random_state" not in settings:
        detector.set_params(random_state=options.seed)
    items = _with_labels(read_items(options.items, options, labels=True), options)
    if items.labels is None and METHODS[options.method].labels == "aware":
        say("no labels given: everything counts as one class")
    held_out = None
    if options.calibrate is not None:
        held_out = _without_empty(read_items(options.calibrate, options, beside=True), options)
    start = time.perf_counter()
    model: Any = detector
    if items.texts is not None:
        model = _text_detector(detector, options, held_out)
    elif options.encoder is not None:
        raise InputError(f"--encoder is for texts, and {options.items} holds embeddings")
    with progress(f"fitting {options.method} on {len(items):,} {items.noun}") as advance:
        if items.texts is not None:
            model.fit(items.texts, items.labels, advance=advance)
        else:
            model.fit(items.rows, items.labels)
        if held_out is not None:
            _calibrate(model, held_out, options)
    model.save(options.out)
    seconds = time.perf_counter() - start
    say(f"saved {options.out}: {size(model)}, fitted in {seconds:.1f} s")
    if not hasattr(getattr(model, "detector_", model), "calibration_scores_"):
        say("threshold from training items; --calibrate FILE makes the false-alarm rate a promise")


def _with_labels(items: Items, options: Any) -> Items:
    if options.labels is not None:
        from outscope.files import read_labels

        items = replace(items, labels=read_labels(options.labels))
        if len(items.labels) != len(items):
            raise InputError(
                f"{options.labels} has {len(items.labels)} labels for {len(items)} {items.noun} "
                f"in {options.items}"
            )
    elif items.labels is not None:
        say(f"labels: {len(set(items.labels))} classes")
    return _without_empty(items, options)


def _calibrate(model: Any, held_out: Items, options: Any) -> None:
    if held_out.texts is not None and hasattr(model, "detector_"):
        model.calibrate(held_out.texts, fpr=options.fpr)
    else:
        model.calibrate(rows_for(model, held_out, options.calibrate), fpr=options.fpr)


def _without_empty(items: Items, options: Any) -> Items:
    if items.texts is not None and options.skip_empty:
        kept = [i for i, text in enumerate(items.texts) if text.strip()]
        say(f"left out {len(items.texts) - len(kept)} empty texts")
        labels = None if items.labels is None else [items.labels[i] for i in kept]
        items = replace(items, texts=[items.texts[i] for i in kept], labels=labels)
    return items


def _text_detector(detector: Any, options: Any, held_out: Items | None) -> Any:
    from outscope.text.pipeline import TextDetector
    from outscope.text.weights import DEFAULT

    return TextDetector(
        DEFAULT if options.encoder is None else options.encoder,
        detector,
        holdout="auto" if held_out is None else 0,
        cache=not options.no_cache,
        random_state=options.seed,
    )


def score(options: Any) -> None:
    """Score items; higher means stranger."""
    from outscope.files import check_writable
    from outscope.loading import load
    from outscope.text.pipeline import TextDetector
    from outscope.texts import STDIN

    if options.out is not None:
        check_writable(options.out)
    model: Any = load(options.model)
    if options.fpr is not None:
        model.set_threshold(fpr=options.fpr)
    if isinstance(model, TextDetector):
        # A stream may never end: what it brings is not kept.
        model.cache = not (options.no_cache or options.items == STDIN)
    if options.items == STDIN:
        _score_stream(model, options)
        return
    items = read_items(options.items, options)
    columns: dict[str, list[Any]] = {}
    with progress(f"scoring {len(items):,} {items.noun}", len(items)) as advance:
        for start in range(0, len(items), AT_A_TIME):
            part = slice(start, start + AT_A_TIME)
            few = Items(
                None if items.texts is None else items.texts[part],
                None if items.rows is None else items.rows[part],
            )
            for name, values in _judged(model, few, options.items, advance).items():
                columns.setdefault(name, []).extend(values)
    _hand_over(columns, options)
    strange = sum(columns["is_ood"])
    above = f"above {model.threshold_:.4g}"
    say(f"{strange:,} of {len(items):,} {items.noun} are out of scope ({above})")


def _judged(model: Any, items: Items, source: str, advance: Any) -> dict[str, list[Any]]:
    """Columns of results for some items."""
    from outscope.threshold import ConformalThreshold

    rows = rows_for(model, items, source, advance)
    if items.texts is not None:
        verdicts = [verdict.as_dict() for verdict in model.judge(rows)]
        columns = {name: [verdict[name] for verdict in verdicts] for name in verdicts[0]}
        # What there is nothing to say about is not a column.
        empty = [name for name in ("p_value", "label") if columns[name][0] is None]
        return {
            "text": items.texts,
            **{name: values for name, values in columns.items() if name not in empty},
        }
    scores = model.ood_score(rows)
    found = {"ood_score": scores.tolist(), "is_ood": (scores > model.threshold_).tolist()}
    if hasattr(model, "calibration_scores_"):
        conformal = ConformalThreshold(model.calibration_scores_)
        found["p_value"] = conformal.p_value(scores).tolist()
    return found


def _hand_over(columns: dict[str, list[Any]], options: Any) -> None:
    """Results to a file, a terminal or a pipe."""
    from outscope.files import print_jsonl, records, write_columns

    if options.out is not None:
        write_columns(options.out, columns)
        say(f"wrote {options.out}")
    elif sys.stdout.isatty():
        head = {name: column[:TABLE_ROWS] for name, column in columns.items()}
        rows = [[i, *map(_cell, record.values())] for i, record in enumerate(records(head))]
        table(["row", *columns], rows)
    else:
        print_jsonl(records(columns))


def _cell(value: Any) -> Any:
    """A value as a table shows it."""
    if isinstance(value, tuple):
        return value[0] if value else ""
    return value if not isinstance(value, str) or len(value) <= 60 else value[:57] + "…"


def _score_stream(model: Any, options: Any) -> None:
    """Texts from standard input, each answered as JSON as soon as its part is done."""
    from outscope.files import print_jsonl, records
    from outscope.texts import stream_texts

    if options.out is not None:
        raise InputError("standard input is answered on standard output; redirect that, drop --out")
    if options.text_column is not None:
        raise InputError("standard input is read a text a line; --text-column is for files")
    done = strange = 0
    with progress("scoring standard input") as advance:
        for texts in stream_texts(sys.stdin.buffer, STREAMED):
            columns = _judged(model, Items(texts=texts), "standard input", advance)
            print_jsonl(records(columns))
            sys.stdout.flush()
            done, strange = done + len(texts), strange + sum(columns["is_ood"])
    if not done:
        raise InputError("standard input has 0 texts; nothing to do")
    say(f"{strange:,} of {done:,} texts are out of scope (above {model.threshold_:.4g})")


def evaluate(options: Any) -> None:
    """Measure how well a detector tells in-scope from out-of-scope items."""
    import numpy as np

    from outscope.files import print_jsonl
    from outscope.loading import load
    from outscope.metrics import evaluate as measure

    model: Any = load(options.model)
    sources = (options.inside, options.outside)
    parts = [read_items(source, options, beside=True) for source in sources]
    total = sum(map(len, parts))
    with progress(f"scoring {total:,} {parts[0].noun}", total) as advance:
        scores = [
            getattr(model, "detector_", model).ood_score(rows_for(model, part, source, advance))
            for part, source in zip(parts, sources, strict=True)
        ]
    truth = np.repeat([0, 1], [len(part) for part in parts])
    result = measure(truth, np.concatenate(scores))._asdict()
    result["false_alarms"] = float(np.mean(scores[0] > model.threshold_))
    result["caught"] = float(np.mean(scores[1] > model.threshold_))
    if sys.stdout.isatty():
        table(["measure", "%"], [[name, f"{100 * value:.2f}"] for name, value in result.items()])
    else:
        print_jsonl([result])


def explain(options: Any) -> None:
    """Show which atoms and training items carry an item, and what stays unexplained."""
    from outscope.files import print_jsonl
    from outscope.loading import load
    from outscope.nnk import NNKDetector

    model: Any = load(options.model)
    detector = getattr(model, "detector_", model)
    if not isinstance(detector, NNKDetector):
        raise InputError(
            f"{options.model} is a {type(detector).__name__}, which cannot explain; "
            "fit one of the nnk methods"
        )
    if options.top < 1:
        raise InputError(f"--top {options.top}: expected at least 1")
    items = read_items(options.items, options)
    chosen = list(range(len(items))) if options.row is None else options.row
    for row in chosen:
        if not 0 <= row < len(items):
            raise InputError(f"--row {row} is not in {options.items}, which has {len(items)} rows")
    texts = None if items.texts is None else [items.texts[row] for row in chosen]
    rows = None if items.rows is None else items.rows[chosen]
    found = detector.explain(
        rows_for(model, Items(texts, rows), options.items), n_atoms=options.top
    )
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
        if known:
            for evidence in record["evidence"]:
                evidence["texts"] = [known[r][1] for r in evidence["rows"]]
                evidence["rows"] = [known[r][0] for r in evidence["rows"]]
        yield record


def _show_reason(title: str, one: Any, known: Any) -> None:
    verdict = "out of scope" if one.is_ood else "in scope"
    print(f"\n{title}: {verdict}, score {one.ood_score:.4g}, {one.unexplained:.0%} unexplained")
    table(
        ["atom", "share", "in-scope items behind it", "classes"],
        [
            [
                e.atom,
                f"{e.share:.0%}",
                "\n".join(known[r][1] for r in e.rows) if known else ", ".join(map(str, e.rows)),
                ", ".join(dict.fromkeys(map(str, e.labels))),
            ]
            for e in one.evidence
        ],
    )

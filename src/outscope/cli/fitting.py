"""fit: learn what is in scope and save a detector."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from outscope.cli.reading import (
    ITEMS,
    Items,
    about,
    check_target,
    cluster_argument,
    column_arguments,
    on_cluster,
    read_items,
    rows_for,
)
from outscope.cli.show import progress, sample_told, say, size
from outscope.errors import InputError

# Settings that have their own option.
OPTIONS = {
    "method": "--method",
    "preset": "--preset",
    "contamination": "--fpr",
    "random_state": "--seed",
}


def fit_arguments(fit: argparse.ArgumentParser) -> None:
    """Options of fit."""
    fit.add_argument("items", metavar="FILE", help=ITEMS)
    fit.add_argument("--out", required=True, metavar="FOLDER", help="where to save the detector")
    fit.add_argument("--method", default="nnk-means", help="see: outscope methods")
    fit.add_argument("--preset", default="default", help="default, or paper (the paper's settings)")
    fit.add_argument("--labels", metavar="FILE", help="separate file with one label per row")
    column_arguments(fit, labels=True)
    fit.add_argument("--encoder", metavar="NAME", help="encoder for texts: a name or a folder")
    fit.add_argument(
        "--calibrate",
        metavar="FILE",
        help="in-scope items that set the threshold (default: some of FILE are held out)",
    )
    rate_arguments(fit, default=0.05)
    fit.add_argument("--skip-empty", action="store_true", help="skip empty texts")
    fit.add_argument("--no-cache", action="store_true", help="do not use the embedding cache")
    fit.add_argument("--seed", type=int, default=0, help="random seed (default 0)")
    large = fit.add_argument_group("many rows (embeddings)")
    large.add_argument(
        "--rows",
        default="auto",
        metavar="N",
        help="learn from a sample of N rows; auto is what --memory holds, at most 262,144; "
        "all reads every row, part by part (NNK methods)",
    )
    large.add_argument("--memory", default="1GB", help="memory for rows (default 1GB)")
    large.add_argument(
        "--checkpoint",
        metavar="FILE",
        help="with --rows all: where a killed fit resumes from (default: OUT.checkpoint)",
    )
    cluster_argument(large)
    fit.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any setting of the method, e.g. --set n_atoms=500 (repeatable)",
    )


def rate_arguments(command: argparse.ArgumentParser, default: float | None = None) -> None:
    """The options that set what is promised."""
    usual = "" if default is None else f" (default {default:g})"
    command.add_argument("--fpr", type=float, default=default, help=f"false-alarm rate{usual}")
    command.add_argument(
        "--confidence",
        type=float,
        metavar="P",
        help="promise the rate with this probability (e.g. 0.95), not on average over calibrations",
    )


def threshold_arguments(threshold: argparse.ArgumentParser) -> None:
    """Options of threshold."""
    threshold.add_argument("model", help="folder written by fit")
    rate_arguments(threshold)
    threshold.add_argument(
        "--value", type=float, metavar="SCORE", help="a score, instead of a rate"
    )


def settings_of(pairs: list[str]) -> dict[str, Any]:
    """--set NAME=VALUE as Python values."""
    settings = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator:
            raise InputError(f"--set {pair}: expected NAME=VALUE, e.g. --set n_atoms=500")
        if option := OPTIONS.get(name):
            raise InputError(f"--set {pair}: use {option} {text}")
        try:
            settings[name] = json.loads(text)
        except ValueError:
            settings[name] = {"None": None, "True": True, "False": False}.get(text, text)
    return settings


def fit(options: Any) -> None:
    """Learn what is in scope and save a detector."""
    from outscope.detectors.methods import METHODS

    detector = _detector(options)
    check_target(options.out)
    items = _labelled_items(options)
    if items.labels is None and METHODS[options.method].labels == "aware":
        say("no labels given: treating everything as one class")
    held_out = None
    if options.calibrate is not None:
        held_out = read_items(options.calibrate, options, beside=True)
        held_out = _without_empty(held_out, options.calibrate, options)
    start = time.perf_counter()
    model: Any = detector
    if items.texts is not None:
        model = _text_detector(detector, options, held_out)
    elif options.encoder is not None:
        raise InputError(f"--encoder is for texts, and {options.items} holds embeddings")
    title, total = f"fitting {options.method} on {len(items):,} {items.noun}", None
    if items.texts is None and options.rows == "all" and hasattr(detector, "n_epochs"):
        total = len(items) * detector.n_epochs
    with on_cluster(options, items) as away, progress(title, total) as advance:
        items = items if away is None else replace(items, rows=away)
        with about(options.items, options.labels):
            if items.texts is not None:
                model.fit(items.texts, items.labels, advance=advance)
            else:
                _fit_rows(model, items, options, held_out, advance)
        if held_out is not None:
            with about(options.calibrate):
                _calibrate(model, held_out, options)
        elif options.confidence is not None:
            model.set_threshold(fpr=options.fpr, confidence=options.confidence)
    model.save(options.out)
    seconds = time.perf_counter() - start
    say(f"saved {options.out}: {size(model, options.out)}, fitted in {seconds:.1f} s")
    for line in sample_told(model):
        say(line)
    say(_told(model))


def _told(model: Any) -> str:
    """What the threshold promises, or that it is only an estimate."""
    above = f"out of scope above {model.threshold_:.4g}"
    if model.promise_ is not None:
        return f"{above}: {model.promise_}"
    rate = getattr(getattr(model, "detector_", model), "rate_", None)
    if rate is None:
        return f"{above}, a score that was given, an estimate; nothing is promised"
    from outscope.decisions.threshold import rows_needed

    return (
        f"{above}, an estimate: about {100 * rate:.4g} % false alarms are expected, and no rate is "
        f"promised, which takes {rows_needed(rate)} in-scope items that were not learned from; "
        "give them with --calibrate FILE"
    )


def _fit_rows(model: Any, items: Items, options: Any, held_out: Items | None, advance: Any) -> None:
    import numpy as np

    from outscope._sklearn import check_labels
    from outscope.detectors.holdout import fit_and_calibrate
    from outscope.detectors.sampling import SAMPLE_ROWS
    from outscope.io.sources import ArraySource, Source

    labels = None if items.labels is None else check_labels(items.labels, len(items))
    rows: Any = items.rows
    if len(items) > SAMPLE_ROWS or options.rows != "auto":
        rows = rows if isinstance(rows, Source) else ArraySource(rows, options.items)
    whole, given = options.rows == "all", options.checkpoint
    if given is not None and not whole:
        raise InputError("--checkpoint is for --rows all; other fits are quick to start again")
    if whole and given is None:
        given = f"{options.out.rstrip('/')}.checkpoint"
    if whole and Path(given).exists():
        say(f"resuming from {given}")
    fit_and_calibrate(
        model,
        rows if isinstance(rows, Source) else np.asarray(rows),
        labels,
        fpr=options.fpr,
        holdout="auto" if held_out is None else 0,
        random_state=options.seed,
        rows=int(options.rows) if options.rows.isdigit() else options.rows,
        memory=options.memory,
        checkpoint=given,
        advance=advance,
    )


def threshold(options: Any) -> None:
    """Change the threshold of a saved detector, or show it."""
    from outscope.loading import load

    model: Any = load(options.model)
    if options.fpr is not None or options.value is not None or options.confidence is not None:
        model.set_threshold(fpr=options.fpr, value=options.value, confidence=options.confidence)
        model.save(options.model)
        say(f"saved {options.model}")
    print(_told(model))


def _detector(options: Any) -> Any:
    from outscope.detectors.methods import make_detector

    settings = settings_of(options.set)
    if options.cluster is not None and options.rows != "all":
        raise InputError("--cluster is for --rows all; a sample is learned from on this machine")
    if not 0 < options.fpr < 0.5:
        raise InputError(f"--fpr {options.fpr}: expected a rate between 0 and 0.5")
    if not 0 <= options.seed < 2**32:
        raise InputError(f"--seed {options.seed}: expected a number from 0 to 2**32 − 1")
    detector: Any = make_detector(options.method, preset=options.preset, **settings)
    if "random_state" in detector.get_params():
        detector.set_params(random_state=options.seed)
    return detector


def _labelled_items(options: Any) -> Items:
    items = read_items(options.items, options, labels=options.labels is None)
    if options.labels is not None:
        from outscope.io.files import read_labels

        if options.label_column is not None:
            raise InputError(
                "--labels FILE and --label-column both give labels; use one of the two"
            )
        items = replace(items, labels=read_labels(options.labels))
        if len(items.labels) != len(items):
            raise InputError(
                f"{options.labels} has {len(items.labels)} labels for {len(items)} {items.noun} "
                f"in {options.items}"
            )
    elif items.labels is not None:
        say(f"labels: {len(set(items.labels))} classes")
    return _without_empty(items, options.items, options)


def _calibrate(model: Any, held_out: Items, options: Any) -> None:
    if held_out.texts is not None and hasattr(model, "detector_"):
        rows: Any = held_out.texts
    else:
        rows = rows_for(model, held_out, options.calibrate)
    model.calibrate(rows, fpr=options.fpr, confidence=options.confidence)


def _without_empty(items: Items, source: str, options: Any) -> Items:
    """Items without empty texts, which are refused unless they may be skipped."""
    if items.texts is None:
        return items
    from outscope.io.texts import place

    kept = [i for i, text in enumerate(items.texts) if text.strip()]
    empty = len(items.texts) - len(kept)
    if empty and not options.skip_empty:
        first = next(i for i, text in enumerate(items.texts) if not text.strip())
        many = "" if empty == 1 else f" (and {empty - 1} more)"
        raise InputError(
            f"{source}: {place(items.lines, first)} is empty{many}; drop it, or leave empty ones "
            "out with --skip-empty"
        )
    if not kept:
        raise InputError(f"{source} has empty texts only; nothing to do")
    if options.skip_empty:
        say(f"{source}: left out {empty} empty texts")
    labels = None if items.labels is None else [items.labels[i] for i in kept]
    return Items(texts=[items.texts[i] for i in kept], labels=labels)


def _text_detector(detector: Any, options: Any, held_out: Items | None) -> Any:
    from outscope.text.pipeline import TextDetector
    from outscope.text.weights import DEFAULT

    return TextDetector(
        DEFAULT if options.encoder is None else options.encoder,
        detector,
        contamination=options.fpr,
        holdout="auto" if held_out is None else 0,
        cache=not options.no_cache,
        random_state=options.seed,
    )

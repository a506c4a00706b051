"""The command line: parse, one call, print. Data to stdout, words to stderr."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from outscope.errors import InputError, OutscopeError

TABLE_ROWS = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 = done, 2 = the input was not usable, 130 = interrupted."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the pipe has seen enough; that is no failure of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OutscopeError, ValueError, OSError, MemoryError) as error:
        print(f"outscope: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("outscope: interrupted; nothing was written", file=sys.stderr)
        return 130
    return 0


ROWS = "embeddings: FILE.npy, FILE.npz:array or FILE.parquet:column"


def _parser() -> argparse.ArgumentParser:
    from outscope import __version__

    parser = argparse.ArgumentParser(
        prog="outscope",
        description="Tell when an input is unlike anything your system was built for.",
        epilog="example:\n  outscope fit train.npy --out model && outscope score model new.npy",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"outscope {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (run, arguments, summary, example) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(run=run)
        arguments(command)
    return parser


def _fit_arguments(fit: argparse.ArgumentParser) -> None:
    fit.add_argument("rows", help=ROWS)
    fit.add_argument("--out", required=True, metavar="FOLDER", help="where to save the detector")
    fit.add_argument("--method", default="nnk-means", help="see: outscope methods")
    fit.add_argument("--preset", default="default", help="default, or paper for the paper's own")
    fit.add_argument("--labels", metavar="FILE", help="a label a row, for class-wise methods")
    fit.add_argument("--calibrate", metavar="FILE", help="in-scope rows kept out of the fit")
    fit.add_argument("--fpr", type=float, default=0.05, help="false-alarm rate (default 0.05)")
    fit.add_argument("--seed", type=int, default=0, help="random seed (default 0)")
    fit.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any setting of the method, as in --set n_atoms=500 (may be repeated)",
    )


def _score_arguments(score: argparse.ArgumentParser) -> None:
    score.add_argument("model", help="folder that fit wrote")
    score.add_argument("rows", help=ROWS)
    score.add_argument("--out", metavar="FILE", type=Path, help=".jsonl, .csv, .parquet or .npy")
    score.add_argument("--fpr", type=float, help="move the threshold for this run")


def _eval_arguments(evaluate: argparse.ArgumentParser) -> None:
    evaluate.add_argument("model", help="folder that fit wrote")
    evaluate.add_argument("--inside", required=True, metavar="FILE", help=f"in-scope {ROWS}")
    evaluate.add_argument("--outside", required=True, metavar="FILE", help=f"out-of-scope {ROWS}")


def _explain_arguments(explain: argparse.ArgumentParser) -> None:
    explain.add_argument("model", help="folder that fit wrote (an NNK method)")
    explain.add_argument("rows", help=ROWS)
    explain.add_argument("--row", type=int, action="append", help="only this row (repeatable)")
    explain.add_argument("--top", type=int, default=3, help="atoms to show (default 3)")


def _info_arguments(info: argparse.ArgumentParser) -> None:
    info.add_argument("model", help="folder that fit wrote")


def _no_arguments(_: argparse.ArgumentParser) -> None:
    pass


def _settings(pairs: list[str]) -> dict[str, Any]:
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


def _fit(options: Any) -> None:
    from outscope.files import read_labels, read_matrix
    from outscope.methods import METHODS, make_detector

    settings = _settings(options.set)
    detector = make_detector(
        options.method, preset=options.preset, **{"contamination": options.fpr, **settings}
    )
    if "random_state" in detector.get_params() and "random_state" not in settings:
        detector.set_params(random_state=options.seed)
    rows = read_matrix(options.rows)
    labels = None if options.labels is None else read_labels(options.labels)
    if labels is None and METHODS[options.method].labels == "aware":
        _say("no --labels given: all rows count as one class")
    held_out = None if options.calibrate is None else read_matrix(options.calibrate)
    start = time.perf_counter()
    with _progress(f"fitting {options.method} on {len(rows):,} rows"):
        detector.fit(rows, labels)
        if held_out is not None:
            detector.calibrate(held_out, fpr=options.fpr)
    detector.save(options.out)
    seconds = time.perf_counter() - start
    _say(f"saved {options.out}: {_size(detector)}, fitted in {seconds:.1f} s")
    if held_out is None:
        _say("threshold from training rows; --calibrate FILE makes the false-alarm rate a promise")


def _score(options: Any) -> None:
    import numpy as np

    from outscope.files import (
        ROWS_AT_A_TIME,
        check_writable,
        print_jsonl,
        read_matrix,
        records,
        write_columns,
    )
    from outscope.methods import load
    from outscope.threshold import ConformalThreshold

    if options.out is not None:
        check_writable(options.out)
    detector = load(options.model)
    if options.fpr is not None:
        detector.set_threshold(fpr=options.fpr)
    rows = read_matrix(options.rows)
    scores = np.empty(len(rows))
    with _progress(f"scoring {len(rows):,} rows", len(rows)) as advance:
        for start in range(0, len(rows), ROWS_AT_A_TIME):
            part = slice(start, start + ROWS_AT_A_TIME)
            scores[part] = detector.ood_score(rows[part])
            advance(len(scores[part]))
    columns = {"ood_score": scores, "is_ood": scores > detector.threshold_}
    if hasattr(detector, "calibration_scores_"):
        columns["p_value"] = ConformalThreshold(detector.calibration_scores_).p_value(scores)
    strange = int(columns["is_ood"].sum())
    if options.out is not None:
        write_columns(options.out, columns)
        _say(f"wrote {options.out}")
    elif sys.stdout.isatty():
        head = {name: column[:TABLE_ROWS] for name, column in columns.items()}
        _table(
            ["row", *columns],
            [[i, *record.values()] for i, record in enumerate(records(head))],
        )
    else:
        print_jsonl(records(columns))
    _say(f"{strange:,} of {len(rows):,} rows are out of scope (above {detector.threshold_:.4g})")


def _eval(options: Any) -> None:
    import numpy as np

    from outscope.files import print_jsonl, read_matrix
    from outscope.methods import load
    from outscope.metrics import evaluate

    detector = load(options.model)
    inside, outside = read_matrix(options.inside), read_matrix(options.outside)
    with _progress(f"scoring {len(inside) + len(outside):,} rows"):
        parts = [detector.ood_score(inside), detector.ood_score(outside)]
    truth = np.repeat([0, 1], [len(inside), len(outside)])
    result = evaluate(truth, np.concatenate(parts))._asdict()
    result["false_alarms"] = float(np.mean(parts[0] > detector.threshold_))
    result["caught"] = float(np.mean(parts[1] > detector.threshold_))
    if sys.stdout.isatty():
        _table(["measure", "%"], [[name, f"{100 * value:.2f}"] for name, value in result.items()])
    else:
        print_jsonl([result])


def _explain(options: Any) -> None:
    from outscope.files import print_jsonl, read_matrix
    from outscope.methods import load
    from outscope.nnk import NNKDetector

    detector = load(options.model)
    if not isinstance(detector, NNKDetector):
        raise InputError(
            f"{options.model} is a {type(detector).__name__}, which cannot explain; "
            "fit one of the nnk methods"
        )
    if options.top < 1:
        raise InputError(f"--top {options.top}: expected at least 1")
    rows = read_matrix(options.rows)
    chosen = list(range(len(rows))) if options.row is None else options.row
    for row in chosen:
        if not 0 <= row < len(rows):
            raise InputError(f"--row {row} is not in {options.rows}, which has {len(rows)} rows")
    found = detector.explain(rows[chosen], n_atoms=options.top)
    if not sys.stdout.isatty():
        pairs = zip(chosen, found, strict=True)
        print_jsonl({"row": row, **one.as_dict()} for row, one in pairs)
        return
    for row, one in zip(chosen[:TABLE_ROWS], found, strict=False):
        verdict = "out of scope" if one.is_ood else "in scope"
        print(
            f"\nrow {row}: {verdict}, score {one.ood_score:.4g}, {one.unexplained:.0%} unexplained"
        )
        _table(
            ["atom", "share", "training rows", "classes"],
            [
                [
                    e.atom,
                    f"{e.share:.0%}",
                    ", ".join(map(str, e.rows)),
                    ", ".join(map(str, e.labels)),
                ]
                for e in one.evidence
            ],
        )


def _info(options: Any) -> None:
    from outscope.files import print_jsonl
    from outscope.methods import load
    from outscope.persistence import read_manifest

    manifest = read_manifest(options.model)
    detector = load(options.model)
    shown = {
        name: value
        for name, value in manifest.items()
        if name not in ("state", "checksum", "arrays_sha256", "format")
    }
    shown["size"] = _size(detector)
    shown["parameters"] = manifest["state"]["parameters"]
    if sys.stdout.isatty():
        _table(["", ""], [[name, _flat(value)] for name, value in shown.items()])
    else:
        print_jsonl([shown])


def _methods(_: Any) -> None:
    from outscope.files import print_jsonl
    from outscope.methods import METHODS

    rows = [[m.name, f"label-{m.labels}", m.summary] for m in METHODS.values()]
    if sys.stdout.isatty():
        _table(["method", "labels", "strange is measured by"], rows)
    else:
        print_jsonl(dict(zip(("method", "labels", "summary"), row, strict=True)) for row in rows)


def _size(detector: Any) -> str:
    vectors = getattr(detector, "atoms_", getattr(detector, "means_", ()))
    return f"{len(vectors):,} vectors of {detector.n_features_in_} numbers"


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_flat(item)}" for name, item in value.items())
    return str(value)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _table(header: list[str], rows: list[list[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(f"{v:.4f}" if isinstance(v, float) else str(v) for v in row))
    Console().print(table)


@contextlib.contextmanager
def _progress(title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, silence elsewhere. Epochs are heard through the package's logger."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)

        class Listener(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                progress.update(task, description=f"{title}: {record.getMessage()}")

        logger, listener = logging.getLogger("outscope"), Listener()
        level = logger.level
        logger.addHandler(listener)
        logger.setLevel(logging.INFO)
        try:
            yield lambda done: progress.advance(task, done)
        finally:
            logger.removeHandler(listener)
            logger.setLevel(level)


COMMANDS: dict[str, tuple[Callable[[Any], None], Callable[..., None], str, str]] = {
    "fit": (
        _fit,
        _fit_arguments,
        "learn what is in scope and save a detector",
        "outscope fit train.npz:x --labels train.npz:y --method c-nnk-means --out model",
    ),
    "score": (
        _score,
        _score_arguments,
        "score rows; higher means stranger",
        "outscope score model new.npy --out scores.csv",
    ),
    "eval": (
        _eval,
        _eval_arguments,
        "measure how well a detector tells in-scope from out-of-scope rows",
        "outscope eval model --inside test.npy --outside strange.npy",
    ),
    "explain": (
        _explain,
        _explain_arguments,
        "show which atoms and training rows carry a row, and what stays unexplained",
        "outscope explain model new.npy --row 0 --row 7",
    ),
    "info": (_info, _info_arguments, "describe a saved detector", "outscope info model"),
    "methods": (_methods, _no_arguments, "list the methods", "outscope methods"),
}

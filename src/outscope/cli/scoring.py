"""score and eval: what a saved detector says about items."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from outscope.cli.reading import (
    ITEMS,
    Items,
    about,
    cluster_argument,
    column_arguments,
    on_cluster,
    read_items,
    rows_for,
    vectors_argument,
)
from outscope.cli.show import TABLE_ROWS, progress, say, table
from outscope.cli.streaming import score_source
from outscope.errors import InputError

# Texts or rows scored and written per chunk.
AT_A_TIME = 16_384
STREAMED = 1024
STREAMED_BYTES = 1 << 26
# Result columns; input columns with the same name are renamed.
RESULTS = ("row", "text", "ood_score", "is_ood", "p_value", "label", "nearest", "refused_like")
OUTPUT = f"""
Each item gets a record: its row (counting from 1, without the header), the other columns of its
table, and the results. A column of the table with the name of a result column
({", ".join(RESULTS)}) is kept as input_NAME.
A line of standard input that is not UTF-8 gets its row and an error; all other lines are scored."""


def score_arguments(score: argparse.ArgumentParser) -> None:
    """Options of score."""
    score.description = f"{score.description}\n{OUTPUT}"
    score.add_argument("model", help="folder written by fit")
    score.add_argument("items", metavar="FILE", help=ITEMS)
    column_arguments(score)
    vectors_argument(score)
    score.add_argument(
        "--out",
        metavar="FILE",
        help=".jsonl, .csv, .parquet or .npy; or FOLDER/, for embeddings: one .parquet file for "
        "each part, and a run that was stopped goes on where it was",
    )
    score.add_argument("--fpr", type=float, help="move the threshold for this run")
    score.add_argument("--no-cache", action="store_true", help="do not use the embedding cache")
    cluster_argument(score)


def score(options: Any) -> None:
    """Score items; higher means stranger."""
    from outscope.io.sources import Source
    from outscope.io.texts import STDIN
    from outscope.loading import load
    from outscope.text.pipeline import TextDetector

    to_folder = _check_out(options)
    model: Any = load(options.model)
    if options.fpr is not None:
        model.set_threshold(fpr=options.fpr)
    if isinstance(model, TextDetector):
        # A stream may never end, so its items are not kept.
        model.cache = not (options.no_cache or options.items == STDIN)
    if options.items == STDIN:
        _score_stream(model, options)
        return
    items = read_items(options.items, options)
    far = options.cluster is not None or isinstance(items.rows, Source)
    if to_folder or far or _is_streamed(items, options.items):
        _score_source(model, items, options, to_folder)
    else:
        _score_items(model, items, options)


def _is_streamed(items: Items, source: str) -> bool:
    """Whether rows of one file are scored part by part, which is faster than from a memory map."""
    from outscope.io.listing import split

    rows: Any = items.rows
    kind = Path(split(source)[0]).suffix.lower()
    return rows is not None and rows.nbytes >= STREAMED_BYTES and kind in (".npy", ".parquet")


def _score_source(model: Any, items: Items, options: Any, to_folder: bool) -> None:
    from outscope.io.sources import Source, as_source
    from outscope.text.pipeline import TextDetector

    if items.texts is not None and to_folder:
        raise InputError(f"--out {options.out}: results of texts go to one file; name it")
    if isinstance(model, TextDetector):
        rows_for(model, items, options.items)  # says what it takes
    with on_cluster(options, items) as away:
        source: Any = away or items.rows
        if not isinstance(source, Source):
            source = as_source(options.items)
        score_source(model, source, options, to_folder=to_folder)


def _score_items(model: Any, items: Items, options: Any) -> None:
    found: dict[str, list[Any]] = {}
    rows: Any = items.rows
    with progress(f"scoring {len(items):,} {items.noun}", len(items)) as advance:
        for start in range(0, len(items), AT_A_TIME):
            part = slice(start, start + AT_A_TIME)
            few = Items(
                None if items.texts is None else items.texts[part],
                None if rows is None else rows[part],
                vectors=None if items.vectors is None else items.vectors[part],
            )
            for name, values in _judged(model, few, options.items, advance).items():
                found.setdefault(name, []).extend(values)
    _hand_over(list(range(1, len(items) + 1)), items.columns, found, options)
    strange = sum(found["is_ood"])
    above = f"above {model.threshold_:.4g}"
    say(f"{strange:,} of {len(items):,} {items.noun} are out of scope ({above})")


def _check_out(options: Any) -> bool:
    """Refuse a place that cannot be written to; say whether it is a folder.

    It is by a slash at its end, or without the ending that a file would have.
    """
    from outscope.io.files import check_writable
    from outscope.io.partitions import check_partitions

    if options.out is None:
        return False
    given, options.out = options.out, Path(options.out)
    if given.endswith(("/", os.sep)) or not options.out.suffix or options.out.is_dir():
        check_partitions(options.out)
        return True
    check_writable(options.out)
    return False


def _judged(model: Any, items: Items, source: str, advance: Any) -> dict[str, list[Any]]:
    """Result columns for some items."""
    rows = rows_for(model, items, source, advance)
    if items.texts is not None:
        verdicts = [verdict.as_dict() for verdict in model.judge(rows)]
        columns = {name: [verdict[name] for verdict in verdicts] for name in verdicts[0]}
        # Leave out columns that would hold nothing.
        empty = [name for name in ("p_value", "label") if columns[name][0] is None]
        empty += [] if model.lessons_ else ["refused_like"]
        return {
            "text": items.texts,
            **{name: values for name, values in columns.items() if name not in empty},
        }
    with about(source):
        scores = model.ood_score(rows)
    decision = model.decide(scores)
    found = {"ood_score": scores.tolist(), "is_ood": decision.is_ood.tolist()}
    if decision.p_value is not None:
        found["p_value"] = decision.p_value.tolist()
    return found


def _hand_over(rows: list[int], others: dict[str, list[Any]], found: Any, options: Any) -> None:
    """Results to a file, a terminal or a pipe."""
    from outscope.io.files import print_jsonl, records, write_columns

    if options.out is None and sys.stdout.isatty():
        head = {name: column[:TABLE_ROWS] for name, column in {"row": rows, **found}.items()}
        table(list(head), [[*map(_cell, record.values())] for record in records(head)])
        return
    columns: dict[str, list[Any]] = {"row": rows}
    for name, values in others.items():
        while name in (*RESULTS, *columns):
            name = f"input_{name}"
        columns[name] = [_plain(value) for value in values]
    columns.update(found)
    if options.out is None:
        print_jsonl(records(columns))
        return
    if options.out.suffix.lower() in (".csv", ".parquet"):
        # One type per column: nested or mixed values become JSON.
        for name in columns.keys() - found.keys():
            columns[name] = _of_one_kind(columns[name])
    write_columns(options.out, columns)
    say(f"wrote {options.out}")


def _plain(value: Any) -> Any:
    """An input value as JSON represents it."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int)):
        return value
    return str(value).encode("utf-8", "replace").decode()


def _of_one_kind(values: list[Any]) -> list[Any]:
    kinds = {type(value) for value in values} - {type(None)}
    if len(kinds) > 1 or kinds & {dict, list}:
        return [v if v is None or isinstance(v, str) else json.dumps(v) for v in values]
    return values


def _cell(value: Any) -> Any:
    """A value as shown in a table."""
    if isinstance(value, tuple):
        return value[0] if value else ""
    return value if not isinstance(value, str) or len(value) <= 60 else value[:57] + "…"


def _score_stream(model: Any, options: Any) -> None:
    """Score texts from standard input; each result is written as JSON as soon as it is ready."""
    from outscope.io.files import print_jsonl, records
    from outscope.io.texts import standard_input, stream_texts

    if options.out is not None:
        raise InputError("results for - go to standard output; drop --out and redirect that")
    if options.text_column is not None:
        raise InputError("standard input is read as one text per line; --text-column is for files")
    # Fails on a broken model before reading any input, and makes the first answer quick.
    _judged(model, Items(texts=["a text"]), "standard input", lambda done: None)
    done = skipped = strange = 0
    with progress("scoring standard input") as advance:
        for lines in stream_texts(standard_input(), STREAMED):
            texts = [line for line in lines if isinstance(line, str)]
            columns: dict[str, list[Any]] = {"is_ood": []}
            if texts:
                columns = _judged(model, Items(texts=texts), "standard input", advance)
            print_jsonl(_answers(lines, done + 1, records(columns)))
            sys.stdout.flush()
            done, skipped = done + len(lines), skipped + len(lines) - len(texts)
            strange += sum(columns["is_ood"])
    if not done:
        raise InputError("standard input has 0 texts; nothing to do")
    say(f"{strange:,} of {done:,} texts are out of scope (above {model.threshold_:.4g})")
    if skipped:
        say(f"lines skipped, since they are not UTF-8: {skipped:,} (their records have an error)")


def _answers(lines: list[Any], first: int, found: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """One record per line, in order."""
    answers = iter(found)
    for row, line in enumerate(lines, first):
        if isinstance(line, str):
            yield {"row": row, **next(answers)}
        else:
            yield {"row": row, "error": str(line)}

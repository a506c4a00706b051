"""suspects: the training items that do not fit."""

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


def suspects_arguments(suspects: argparse.ArgumentParser) -> None:
    """Options of suspects."""
    suspects.add_argument("model", help="folder written by fit")
    suspects.add_argument(
        "--top", type=int, default=20, metavar="N", help="how many of each kind (default 20)"
    )
    suspects.add_argument("--out", metavar="FILE", help=".jsonl, .csv or .parquet")
    suspects.add_argument(
        "--data",
        metavar="FILE",
        help=f"training items, if the model does not remember them or for more of them; {ITEMS}",
    )
    suspects.add_argument("--labels", metavar="FILE", help="separate file with one label per row")
    column_arguments(suspects, labels=True)
    vectors_argument(suspects)


def suspects(options: Any) -> None:
    """List training items that lie apart from the others and, with labels, mislabelled ones."""
    from outscope.io.files import check_writable, print_jsonl, records, write_columns
    from outscope.loading import load

    if options.top < 1:
        raise InputError(f"--top {options.top}: expected at least 1")
    if options.out is not None:
        check_writable(Path(options.out), ".jsonl, .csv or .parquet")
    model: Any = load(options.model)
    found = _remembered(model, options) if options.data is None else _judged(model, options)
    columns = _columns(found)
    if options.out is not None:
        write_columns(Path(options.out), columns)
        say(f"wrote {options.out}")
    elif sys.stdout.isatty():
        shown = ["row", "text", "reason"] if "text" in columns else ["row", "reason"]
        table(shown, [[record[name] for name in shown] for record in records(columns)])
    else:
        print_jsonl(records(columns))
    strange = sum(one.kind == "strange" for one in found)
    told = f"far from all others: {strange}"
    if len(found) > strange:
        told += f"; label looks wrong: {len(found) - strange}"
    say(f"{told}. Look at them before you drop any: rare and wrong look alike")


def _remembered(model: Any, options: Any) -> list[Any]:
    if options.labels is not None or options.label_column is not None:
        raise InputError("--labels and --label-column belong to --data FILE; give that too")
    try:
        found: list[Any] = model.suspicious(options.top)
    except InputError as error:
        told = str(error).split("; give the training")[0]
        if told == str(error):
            raise
        raise InputError(
            f"{told}; give the training file: outscope suspects {options.model} --data FILE"
        ) from error
    return found


def _judged(model: Any, options: Any) -> list[Any]:
    from outscope.io.files import read_labels
    from outscope.io.sources import Source

    items = read_items(options.data, options, labels=options.labels is None)
    labels = items.labels if options.labels is None else read_labels(options.labels)
    if isinstance(items.rows, Source):
        raise InputError(
            f"--data {options.data} is read part by part; give one file of at most 1 GB"
        )
    with about(options.data, options.labels):
        given: Any = items.texts
        if items.texts is None or not hasattr(model, "detector_"):
            given = rows_for(model, items, options.data)
        else:
            with progress(f"judging {len(items):,} texts", len(items)) as advance:
                # Kept in the cache.
                model.rows_of(items.texts, advance, vectors=items.vectors)
        beside = {} if items.vectors is None else {"vectors": items.vectors}
        found: list[Any] = model.suspicious(options.top, given, labels, **beside)
    return found


def _columns(found: list[Any]) -> dict[str, list[Any]]:
    """A column for each field that says something; rows count from 1."""
    columns: dict[str, list[Any]] = {
        "row": [one.row + 1 for one in found],
        "text": [one.text for one in found],
        "kind": [one.kind for one in found],
        "score": [one.score for one in found],
        "label": [one.label for one in found],
        "looks_like": [one.looks_like for one in found],
        "nearest": [" ".join(str(row + 1) for row in one.nearest) for one in found],
        "reason": [one.reason for one in found],
    }
    return {
        name: values
        for name, values in columns.items()
        if not values or any(value is not None for value in values)
    }

"""score, for rows that do not fit in memory: part by part, from a source to files."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outscope.cli.reading import about
from outscope.cli.show import TABLE_ROWS, progress, say, table

if TYPE_CHECKING:  # numpy takes a while
    from outscope.io.sources import Source


def score_source(model: Any, source: Source, options: Any, *, to_folder: bool) -> None:
    """Score a source and write one file, or one file for each part; say how many are strange."""
    if to_folder:
        strange = _to_folder(model, source, options)
    elif options.out is not None:
        strange = _to_file(model, source, options)
    else:
        strange = _to_output(model, source, options)
    above = f"above {model.threshold_:.4g}"
    say(f"{strange:,} of {len(source):,} rows are out of scope ({above})")


def _judged(
    model: Any, source: Source, options: Any, chosen: Sequence[int]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Parts and their result columns, with a bar for those chosen."""
    import numpy as np

    firsts = [0, *accumulate(part.rows for part in source.parts)]
    total = sum(source.parts[part].rows for part in chosen)
    with progress(f"scoring {total:,} rows", total) as advance, about(options.items):
        for part, scores in zip(chosen, model.score_parts(source, chosen), strict=True):
            decision = model.decide(scores)
            rows = np.arange(firsts[part] + 1, firsts[part + 1] + 1)
            columns = {"row": rows, "ood_score": scores, "is_ood": decision.is_ood}
            if decision.p_value is not None:
                columns["p_value"] = decision.p_value
            yield part, columns
            advance(len(scores))


def _to_folder(model: Any, source: Source, options: Any) -> int:
    from outscope.io.models import read_manifest
    from outscope.io.partitions import Partitions

    told = {
        "source": source.fingerprint(),
        "model": read_manifest(options.model)["checksum"],
        "threshold": model.threshold_,
    }
    goal = Partitions(options.out, told, [part.rows for part in source.parts])
    missing = goal.missing()
    there = sorted({*range(len(source.parts))} - {*missing})
    if there:
        say(f"{len(there):,} of {len(source.parts):,} parts were already there")
    strange = sum(int(goal.column(part, "is_ood").sum()) for part in there)
    for part, columns in _judged(model, source, options, missing):
        goal.write(part, columns)
        strange += int(columns["is_ood"].sum())
    say(f"wrote {options.out}: {len(source.parts):,} parts")
    return strange


def _to_file(model: Any, source: Source, options: Any) -> int:
    from outscope.io.files import written_columns

    strange = 0
    with written_columns(Path(options.out)) as write:
        for _, columns in _judged(model, source, options, range(len(source.parts))):
            write(columns)
            strange += int(columns["is_ood"].sum())
    say(f"wrote {options.out}")
    return strange


def _to_output(model: Any, source: Source, options: Any) -> int:
    """JSON Lines in a pipe; on a terminal, the first rows in a table."""
    from outscope.io.files import print_jsonl, records

    strange, head = 0, None
    for _, columns in _judged(model, source, options, range(len(source.parts))):
        strange += int(columns["is_ood"].sum())
        if not sys.stdout.isatty():
            print_jsonl(records({name: values.tolist() for name, values in columns.items()}))
        elif head is None:
            head = {name: values[:TABLE_ROWS].tolist() for name, values in columns.items()}
    if head is not None:
        table(list(head), [[*record.values()] for record in records(head)])
    return strange

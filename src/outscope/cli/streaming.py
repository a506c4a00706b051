"""score, for rows that do not fit in memory: part by part, from a source to files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outscope._sklearn import check_width
from outscope.cli.reading import about
from outscope.cli.show import TABLE_ROWS, progress, say, table
from outscope.errors import InputError

if TYPE_CHECKING:  # numpy takes a while
    from outscope.io.cluster import ClusterSource
    from outscope.io.partitions import Partitions
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
    firsts = _firsts(source)
    with _scoring(source, options, chosen) as advance:
        for part, scores in zip(chosen, model.score_parts(source, chosen), strict=True):
            yield part, _columns(model, scores, firsts[part])
            advance(len(scores))


@contextmanager
def _scoring(
    source: Source, options: Any, chosen: Sequence[int]
) -> Iterator[Callable[[int], None]]:
    total = sum(source.parts[part].rows for part in chosen)
    with progress(f"scoring {total:,} rows", total) as advance, about(options.items):
        yield advance


def _firsts(source: Source) -> list[int]:
    """For each part, the number of rows before it."""
    return [0, *accumulate(part.rows for part in source.parts)]


def _columns(model: Any, scores: Any, first: int) -> dict[str, Any]:
    import numpy as np

    decision = model.decide(scores)
    rows = np.arange(first + 1, first + len(scores) + 1)
    columns = {"row": rows, "ood_score": scores, "is_ood": decision.is_ood}
    if decision.p_value is not None:
        columns["p_value"] = decision.p_value
    return columns


class _ScoreAndWrite:
    """What a worker of a cluster does with a part: only a number comes back."""

    def __init__(self, model: Any, goal: Partitions) -> None:
        self._model, self._goal = model, goal

    def __call__(self, source: Source, number: int, told: tuple[int, int]) -> int:
        part, first = told
        (scores,) = self._model.score_parts(source, [number])
        columns = _columns(self._model, scores, first)
        self._goal.write(part, columns)
        return int(columns["is_ood"].sum())


def _written_away(
    model: Any, source: ClusterSource, options: Any, goal: Partitions, chosen: Sequence[int]
) -> int:
    """Have every part scored and written by the worker that reads it."""
    from outscope.detectors.away import for_workers

    firsts, strange = _firsts(source), 0
    work = _ScoreAndWrite(for_workers(model), goal)
    with _scoring(source, options, chosen) as advance:
        counts = source.each(work, chosen, lambda part: (part, firsts[part]))
        for part, count in zip(chosen, counts, strict=True):
            strange += count
            advance(source.parts[part].rows)
    if absent := goal.missing():
        raise InputError(
            f"{goal.path(absent[0])} was written by a worker, and is not here; --out must be a "
            "folder that all workers share"
        )
    return strange


def _to_folder(model: Any, source: Source, options: Any) -> int:
    from outscope.engine.kernels.parallel import behind
    from outscope.io.cluster import ClusterSource
    from outscope.io.models import read_manifest
    from outscope.io.partitions import Partitions

    with about(options.items):
        check_width(model, source.width)  # before there is a folder
    told = {
        "source": source.fingerprint(),
        "model": read_manifest(options.model)["checksum"],
        "threshold": model.threshold_,
    }
    goal = Partitions(options.out.absolute(), told, [part.rows for part in source.parts])
    missing = goal.missing()
    there = sorted({*range(len(source.parts))} - {*missing})
    if there:
        say(f"{len(there):,} of {len(source.parts):,} parts were already there")
    strange = sum(int(goal.column(part, "is_ood").sum()) for part in there)
    if isinstance(source, ClusterSource):
        strange += _written_away(model, source, options, goal, missing)
    else:
        with behind(goal.write) as put:
            for part, columns in _judged(model, source, options, missing):
                put(part, columns)
                strange += int(columns["is_ood"].sum())
    say(f"wrote {len(missing):,} of {len(source.parts):,} parts to {options.out}")
    return strange


def _to_file(model: Any, source: Source, options: Any) -> int:
    from outscope.engine.kernels.parallel import behind
    from outscope.io.files import written_columns

    strange = 0
    # Written in a thread of its own, while the next part is scored.
    with written_columns(Path(options.out)) as write, behind(write) as put:
        for _, columns in _judged(model, source, options, range(len(source.parts))):
            put(columns)
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

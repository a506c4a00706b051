"""paper run, paper report: rerun the paper's experiments."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outscope.cli.show import say
from outscope.errors import InputError

RECORDS = Path("paper/records.jsonl")
QUICK = "quick: one draw of Banking77 and CLINC150, minutes"
FULL = "full: every dataset, representation and method, five draws, tuned; days on a small machine"


def paper_arguments(paper: argparse.ArgumentParser) -> None:
    """The two paper subcommands."""
    commands = paper.add_subparsers(title="commands", metavar="COMMAND", required=True)
    shape = argparse.RawDescriptionHelpFormatter
    run_command = commands.add_parser(
        "run",
        help="run what is missing and append records",
        description="Run the paper's experiments that are not in the records yet.",
        epilog="example:\n  outscope paper run --preset quick --data DATA",
        formatter_class=shape,
    )
    report_command = commands.add_parser(
        "report",
        help="tables, figures and claims from the records",
        description="Write report.md and report.html beside the records.",
        epilog="example:\n  outscope paper report --records paper/records.jsonl",
        formatter_class=shape,
    )
    run_command.set_defaults(run=run)
    report_command.set_defaults(run=report)
    for command in (run_command, report_command):
        command.add_argument("--records", type=Path, default=RECORDS, metavar="FILE")
        command.add_argument(
            "--data", type=Path, metavar="FOLDER", help="dataset/split.parquet files"
        )
        command.add_argument("--store", type=Path, metavar="FOLDER", help="vectors and encoders")
        command.add_argument("--encoder", metavar="NAME", help="model to embed with")
    run_command.add_argument("--preset", choices=("quick", "full"), help=f"{QUICK}; {FULL}")
    for name in ("dataset", "representation", "method"):
        run_command.add_argument(f"--{name}", action="append", metavar="NAME", help="repeatable")
    run_command.add_argument("--ratio", type=int, action="append", metavar="PERCENT")
    run_command.add_argument("--seeds", type=int, metavar="N", help="draws 0 … N − 1")
    run_command.add_argument("--seed", type=int, action="append", metavar="N", help="one draw")
    run_command.add_argument(
        "--tune", action="store_true", help="the paper's grids on validation texts (Appendix F)"
    )
    report_command.add_argument("--no-figures", action="store_true", help="tables only")


def _choices(options: Any) -> list[Any]:
    from outscope.paper.features import REPRESENTATIONS
    from outscope.paper.runner import Choice
    from outscope.paper.tasks import RATIOS
    from outscope.text.weights import DEFAULT

    encoder = options.encoder or DEFAULT
    if options.preset == "quick":
        return [
            Choice(
                ("banking77", "clinc150"), (25, 50), ("pretrained",), None, (0,), encoder, False
            ),
            Choice(("banking77",), (25,), ("finetuned",), None, (0,), encoder, False),
        ]
    full = options.preset == "full"
    seeds = tuple(options.seed or range(options.seeds or (5 if full else 1)))
    if not full and not options.dataset:
        raise InputError("say what to run: --preset quick, --preset full or --dataset NAME …")
    return [
        Choice(
            tuple(options.dataset or RATIOS),
            tuple(options.ratio) if options.ratio else None,
            tuple(options.representation or (REPRESENTATIONS if full else ("pretrained",))),
            tuple(options.method) if options.method else None,
            seeds,
            encoder,
            options.tune or full,
        )
    ]


def _store(options: Any, encoder: str, tell: Callable[[str], None]) -> Any:
    from outscope.paper.features import Store
    from outscope.text.cache import default_folder

    if options.data is not None and not options.data.is_dir():
        raise InputError(f"--data {options.data} is not a folder")
    return Store(options.store or default_folder() / "paper", options.data, encoder, tell)


def run(options: Any) -> None:
    """Run what is missing and append records."""
    from outscope.paper.records import Records
    from outscope.paper.runner import plan
    from outscope.paper.runner import run as run_jobs

    choices = _choices(options)
    records = Records(options.records)
    jobs = [job for choice in choices for job in plan(choice)]
    missing = [job for job in jobs if job.key not in records]
    say(f"{len(jobs):,} results wanted, {len(missing):,} missing; records in {options.records}")
    failed = []
    with _plan_bar(len(missing)) as (tell, advance):
        store = _store(options, choices[0].encoder, tell)

        def done(job: Any, record: Any) -> None:
            if record["status"] == "failed":
                failed.append(record)
                say(f"failed: {job.key}: {record['error']}")
            advance(job, record)

        run_jobs(missing, store, records, done=done)
    say(f"{len(missing) - len(failed):,} done, {len(failed):,} failed")


@contextmanager
def _plan_bar(total: int) -> Iterator[tuple[Callable[[str], None], Callable[[Any, Any], None]]]:
    """Overall progress with time left; one line per result when not on a terminal."""
    start, count = time.perf_counter(), 0

    def line(job: Any, record: Any) -> None:
        nonlocal count
        count += 1
        left = (time.perf_counter() - start) / count * (total - count)
        value = record.get("metrics", {}).get("auroc")
        shown = "failed" if value is None else f"AUROC {100 * value:.2f}"
        say(f"{count}/{total} {job.key}: {shown}, about {left / 60:.0f} min left")

    if not sys.stderr.isatty():
        yield (lambda words: None), line
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)
        yield (
            lambda words: bar.update(task, description=words),
            lambda job, record: bar.update(task, advance=1, description=job.key),
        )


def report(options: Any) -> None:
    """Write the tables, figures and claims of the records."""
    from outscope.io.files import whole_file
    from outscope.paper.records import Records
    from outscope.paper.rendering import markdown, page
    from outscope.paper.report import build_report
    from outscope.text.weights import DEFAULT

    records = Records(options.records).all
    if not any(record["status"] == "done" for record in records):
        raise InputError(f"{options.records} holds no results; first run: outscope paper run …")
    store = None
    if options.data is not None and not options.no_figures:
        store = _store(options, options.encoder or DEFAULT, lambda words: None)
    built = build_report(records, with_figures=not options.no_figures, store=store)
    for name, text in (("report.md", markdown(built)), ("report.html", page(built))):
        target = options.records.with_name(name)
        with whole_file(target) as file:
            file.write(text.encode())
        say(f"wrote {target}")

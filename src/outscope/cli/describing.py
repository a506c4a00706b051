"""info, methods and demo: the commands that show."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from outscope.cli.show import flat, progress, say, size, table


def info_arguments(info: argparse.ArgumentParser) -> None:
    """Options of info."""
    info.add_argument("model", help="folder that fit wrote")


def demo_arguments(demo: argparse.ArgumentParser) -> None:
    """Options of demo."""
    demo.add_argument("--encoder", metavar="NAME", help="another encoder than the default")
    demo.add_argument("--all", action="store_true", help="show every sentence, not a choice")


def no_arguments(_: argparse.ArgumentParser) -> None:
    """Options of a command without any."""


def info(options: Any) -> None:
    """Describe a saved detector."""
    from outscope.files import print_jsonl
    from outscope.loading import load
    from outscope.persistence import read_manifest

    manifest = read_manifest(options.model)
    shown = {
        name: value
        for name, value in manifest.items()
        if name not in ("state", "checksum", "arrays_sha256", "format")
    }
    shown["size"] = size(load(options.model))
    shown["parameters"] = manifest["state"]["parameters"]
    if sys.stdout.isatty():
        table(["", ""], [[name, flat(value)] for name, value in shown.items()])
    else:
        print_jsonl([shown])


def methods(_: Any) -> None:
    """List the methods."""
    from outscope.files import print_jsonl
    from outscope.methods import METHODS

    told = {"blind": "not needed", "aware": "used", "classifier": "needs a fine-tuned encoder"}
    if sys.stdout.isatty():
        rows = [[m.name, told[m.labels], m.summary] for m in METHODS.values()]
        table(["method", "labels", "strange is measured by"], rows)
    else:
        names = ("method", "labels", "summary")
        rows = [[m.name, f"label-{m.labels}", m.summary] for m in METHODS.values()]
        print_jsonl(dict(zip(names, row, strict=True)) for row in rows)


def demo(options: Any) -> None:
    """Fit, calibrate and judge on a small corpus that ships with the package."""
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

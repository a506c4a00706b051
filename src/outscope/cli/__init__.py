"""The command line: parse, one call, print. Data to stdout, words to stderr."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from outscope.cli import describing, detecting, paper, training
from outscope.cli.show import say
from outscope.errors import OutscopeError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 = done, 2 = the input was not usable, 130 = interrupted."""
    options = _parser().parse_args(arguments)
    if sys.stdout is None:
        say("outscope: standard output is closed; redirect it to a file or to /dev/null")
        return 2
    try:
        options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the pipe has seen enough; that is no failure of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OutscopeError, ValueError, OSError, MemoryError) as error:
        say(f"outscope: {' '.join(str(error).split()) or type(error).__name__}")
        return 2
    except KeyboardInterrupt:
        say("outscope: interrupted; no file is half written")
        return 130
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, as for every other input that cannot be used."""
        say(f"outscope: {message}; see: {self.prog} --help")
        raise SystemExit(2)


def _parser() -> argparse.ArgumentParser:
    from outscope import __version__

    parser = _Parser(
        prog="outscope",
        description="Tell when an input is unlike anything your system was built for.",
        epilog="example:\n  outscope fit inscope.txt --out model && outscope score model new.txt",
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
        arguments(command)  # a command with commands of its own sets theirs
    return parser


COMMANDS: dict[str, tuple[Callable[[Any], None], Callable[..., None], str, str]] = {
    "fit": (
        detecting.fit,
        detecting.fit_arguments,
        "learn what is in scope and save a detector",
        "outscope fit tickets.csv --method c-nnk-means --calibrate held-out.csv --out model",
    ),
    "score": (
        detecting.score,
        detecting.score_arguments,
        "score items; higher means stranger",
        "outscope score model new.txt --out scores.csv    (or: … | outscope score model -)",
    ),
    "eval": (
        detecting.evaluate,
        detecting.eval_arguments,
        "measure how well a detector tells in-scope from out-of-scope items",
        "outscope eval model --inside test.txt --outside strange.txt",
    ),
    "explain": (
        detecting.explain,
        detecting.explain_arguments,
        "show which atoms and training items carry an item, and what stays unexplained",
        "outscope explain model new.txt --row 0 --row 7",
    ),
    "embed": (
        training.embed,
        training.embed_arguments,
        "write the vectors of texts to a file",
        "outscope embed texts.csv --out vectors.npy",
    ),
    "finetune": (
        training.finetune,
        training.finetune_arguments,
        "train an encoder on labelled texts; the result is an encoder and a classifier",
        "outscope finetune train.csv --validation val.csv --batch-size 32 --learning-rate 2e-4 "
        "--out encoder",
    ),
    "info": (
        describing.info,
        describing.info_arguments,
        "describe a saved detector",
        "outscope info model",
    ),
    "methods": (
        describing.methods,
        describing.no_arguments,
        "list the methods",
        "outscope methods",
    ),
    "demo": (
        describing.demo,
        describing.demo_arguments,
        "fit, calibrate and judge on a small corpus that ships with the package",
        "outscope demo --all",
    ),
    "paper": (
        paper.report,
        paper.paper_arguments,
        "run the paper's experiments again and report on them",
        "outscope paper run --preset quick --data DATA && outscope paper report",
    ),
}

"""The command line: parse, make one call, print. Data to stdout, messages to stderr."""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from outscope.cli import (
    describing,
    evaluating,
    fitting,
    paper,
    plugging,
    scoring,
    serving,
    suspects,
    teaching,
    training,
)
from outscope.cli.show import say, warnings_said
from outscope.errors import OutscopeError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 = done, 2 = unusable input, 70 = a bug, 130 = interrupted."""
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (stays open until the process ends)
    parser = _parser()
    if not (sys.argv[1:] if arguments is None else arguments):
        say(parser.format_help())
        return 2
    options = parser.parse_args(arguments)
    if sys.stdout is None:
        say("outscope: standard output is closed; redirect it to a file or to /dev/null")
        return 2
    try:
        with warnings_said():
            options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        _close_stdout()  # the reader of the pipe has closed it, which is not an error
    except (OutscopeError, OSError, MemoryError) as error:
        say(f"outscope: {_words(error, options)}")
        try:
            sys.stdout.flush()
        except OSError:
            _close_stdout()
        return 2
    except KeyboardInterrupt:
        say("outscope: interrupted; no file is half written")
        return 130
    except Exception:
        traceback.print_exc()
        say("outscope: this is a bug of Outscope; please report it with the lines above")
        return 70
    return 0


def _close_stdout() -> None:
    """Keep Python from flushing what is left at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _words(error: BaseException, options: Any) -> str:
    """An error on one line, in command-line terms: fpr=0.1 becomes --fpr 0.1."""
    if isinstance(error, OSError) and error.strerror:
        return ": ".join(str(part) for part in (error.filename, error.strerror) if part)

    def option(found: re.Match[str]) -> str:
        return f"--{found[1].replace('_', '-')} " if hasattr(options, found[1]) else found[0]

    text = " ".join(str(error).split()) or "there is not enough memory"
    return re.sub(r"\b([a-z_]+)=", option, text).replace("save() wrote", "outscope fit wrote")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Report usage errors on one line, like all other unusable input."""
        say(f"outscope: {message}; see: {self.prog} --help")
        raise SystemExit(2)


def _parser() -> argparse.ArgumentParser:
    from outscope import __version__

    parser = _Parser(
        prog="outscope",
        description="Tells you when an input is unlike anything your system was built for.",
        epilog="example:\n  outscope fit inscope.txt --out model && outscope score model new.txt",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"outscope {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND ...", required=True)
    for name, (run, arguments, summary, example) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(run=run)
        arguments(command)  # a command with subcommands sets its own
    return parser


COMMANDS: dict[str, tuple[Callable[[Any], None], Callable[..., None], str, str]] = {
    "fit": (
        fitting.fit,
        fitting.fit_arguments,
        "learn what is in scope and save a detector",
        "outscope fit tickets.csv --method c-nnk-means --calibrate held-out.csv --out model",
    ),
    "score": (
        scoring.score,
        scoring.score_arguments,
        "score items; higher means stranger",
        "outscope score model new.txt --out scores.csv    (or: … | outscope score model -)",
    ),
    "eval": (
        evaluating.evaluate,
        evaluating.eval_arguments,
        "measure how well a detector separates in-scope from out-of-scope items",
        "outscope eval model --inside test.txt --outside strange.txt",
    ),
    "suspects": (
        suspects.suspects,
        suspects.suspects_arguments,
        "list training items that do not fit: to drop, to relabel, or to refuse",
        "outscope suspects model --top 50 --out suspects.csv",
    ),
    "explain": (
        describing.explain,
        describing.explain_arguments,
        "show which atoms and training items explain an item, and how much stays unexplained",
        "outscope explain model new.txt --row 1 --row 7",
    ),
    "threshold": (
        fitting.threshold,
        fitting.threshold_arguments,
        "change the threshold of a saved detector, or show it",
        "outscope threshold model --fpr 0.01",
    ),
    "export": (
        plugging.export,
        plugging.export_arguments,
        "write a detector's scoring of rows as an ONNX file",
        "outscope export model --out scorer.onnx",
    ),
    "mcp": (
        plugging.mcp,
        plugging.mcp_arguments,
        "serve a detector of texts to agents, over the Model Context Protocol on stdio",
        "outscope mcp model    (what an agent starts: command outscope, arguments mcp and model)",
    ),
    "teach": (
        teaching.teach,
        teaching.teach_arguments,
        "tell a saved detector what to refuse and what to accept after all, or list that",
        "outscope teach model --refuse strange.txt --accept fine.txt    (or: --undo)",
    ),
    "embed": (
        training.embed,
        training.embed_arguments,
        "write embeddings of texts to a file",
        "outscope embed texts.csv --out vectors.npy",
    ),
    "finetune": (
        training.finetune,
        training.finetune_arguments,
        "fine-tune an encoder on labelled texts; the result is an encoder and a classifier",
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
        "fit, calibrate and evaluate on a small corpus that ships with the package",
        "outscope demo --all",
    ),
    "serve": (
        serving.serve,
        serving.serve_arguments,
        "answer requests over HTTP, with a page to try it",
        "outscope serve model --port 8000    (or: outscope serve --demo)",
    ),
    "paper": (
        paper.report,
        paper.paper_arguments,
        "rerun the paper's experiments and report on them",
        "outscope paper run --preset quick --data DATA && outscope paper report",
    ),
}

"""embed and finetune: the encoder commands."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from outscope.cli.encoding import chosen_encoder, encoder_arguments
from outscope.cli.reading import column_arguments
from outscope.cli.show import progress, say
from outscope.errors import InputError, require


def embed_arguments(embed: argparse.ArgumentParser) -> None:
    """Options of embed."""
    embed.add_argument("items", metavar="FILE", help="texts; see: outscope score --help")
    embed.add_argument("--out", required=True, type=Path, metavar="FILE", help=".npy or .parquet")
    column_arguments(embed)
    encoder_arguments(embed)
    embed.add_argument(
        "--kind",
        default="embedding",
        choices=("embedding", "logits", "smoothness", "last-smoothness"),
        help="what to compute; logits and smoothness need a fine-tuned encoder",
    )
    embed.add_argument("--layer", type=int, help="masked mean of this layer, e.g. -2 (penultimate)")
    embed.add_argument("--no-cache", action="store_true", help="do not use the embedding cache")


def embed(options: Any) -> None:
    """Write embeddings of texts to a file."""
    from outscope.io.files import check_writable, write_columns, write_matrix
    from outscope.io.texts import read_texts
    from outscope.text.cache import VectorCache

    check_writable(options.out)
    if options.out.suffix.lower() not in (".npy", ".parquet"):
        raise InputError(f"{options.out}: vectors are written as .npy or .parquet")
    found = read_texts(options.items, options.text_column, labels=False)
    settings = {} if options.layer is None else {"layer": options.layer}
    encoder = chosen_encoder(options, **settings)
    cache = None if options.no_cache else VectorCache()
    with progress(f"embedding {len(found.texts):,} texts", len(found.texts)) as advance:
        rows = encoder.features(found.texts, options.kind, cache=cache, advance=advance)
    if options.out.suffix.lower() == ".npy":
        write_matrix(options.out, rows)
    else:
        write_columns(options.out, {"text": found.texts, "vector": list(rows)})
    say(f"wrote {options.out}: {len(rows):,} rows of {rows.shape[1]} numbers by {encoder.name}")


def finetune_arguments(finetune: argparse.ArgumentParser) -> None:
    """Options of finetune."""
    finetune.add_argument("items", metavar="FILE", help="labelled texts: .csv, .tsv, .jsonl …")
    finetune.add_argument("--out", required=True, metavar="FOLDER", help="where to save")
    column_arguments(finetune, labels=True)
    finetune.add_argument("--validation", metavar="FILE", help="labelled texts to evaluate on")
    finetune.add_argument(
        "--holdout",
        type=_holdout,
        default="auto",
        metavar="N",
        help="texts kept out of training for the threshold: auto, a share or a number",
    )
    finetune.add_argument("--encoder", metavar="NAME", help="model to start from")
    finetune.add_argument(
        "--loss", default="cross-entropy", help="cross-entropy (default) or margin-contrastive"
    )
    for name, kind, words in (
        ("epochs", int, "passes over the texts (default 5)"),
        ("batch-size", int, "texts per step (default 4, the paper's; 32 suits small encoders)"),
        ("learning-rate", float, "default 1e-5, the paper's; 2e-4 suits all-MiniLM-L6-v2"),
        ("weight-decay", float, "default 0.01"),
        ("contrastive-weight", float, "weight of the margin loss beside cross-entropy (default 2)"),
        ("max-length", int, "tokens read from each text (default 128)"),
        ("frozen", int, "first layers to freeze: 1 = token embeddings, 2 = also block 1 …"),
        ("seed", int, "random seed (default 0)"),
    ):
        finetune.add_argument(f"--{name}", type=kind, metavar="N", help=words)
    finetune.add_argument("--device", help="cpu, cuda or mps (default: the best available)")


def _holdout(given: str) -> float | str:
    try:
        return float(given)
    except ValueError:
        return given  # "auto", or refused by name


def finetune(options: Any) -> None:
    """Fine-tune an encoder on labelled texts; the result is an encoder and a classifier."""
    from outscope.io.texts import read_texts
    from outscope.text.weights import DEFAULT, find_encoder

    found = read_texts(options.items, options.text_column, options.label_column)
    if found.labels is None:
        raise InputError(f"{options.items} has no labels; name their column: --label-column NAME")
    held = None
    if options.validation is not None:
        held = read_texts(options.validation, options.text_column, options.label_column)
        if held.labels is None:
            raise InputError(f"{options.validation} has no labels; name their column")
    source = find_encoder(DEFAULT if options.encoder is None else options.encoder)
    require("torch", extra="text")
    require("sentence_transformers", extra="text")
    from outscope.text.training import Plan, train

    given = {field.name: getattr(options, field.name) for field in fields(Plan)}
    plan = Plan(**{name: value for name, value in given.items() if value is not None})
    start = time.perf_counter()
    with _training_bar() as watch:
        trained = train(
            source,
            found.texts,
            found.labels,
            options.out,
            plan=plan,
            holdout=options.holdout,
            validation=None if held is None else (held.texts, held.labels or []),
            device=options.device,
            watch=watch,
        )
    seconds = time.perf_counter() - start
    say(f"saved {options.out}, trained in {seconds:.0f} s; use it as --encoder {options.out}")
    say(_promise(trained.card["set_aside"], len(found.texts), trained.seen is not None))


def _promise(set_aside: int, total: int, on_record: bool) -> str:
    """What a detector's threshold can be based on with the new encoder."""
    if not on_record:
        return (
            "there is no record of the texts the encoder was trained on before; with it, fit can "
            "promise a false-alarm rate only with --calibrate FILE of texts that it never saw"
        )
    if set_aside:
        return (
            f"set aside {set_aside:,} of {total:,} texts for the threshold; fit on the same file "
            "and they will be used"
        )
    return (
        f"trained on all {total:,} texts; fit on the same file cannot promise a false-alarm rate "
        "without --calibrate FILE of other texts"
    )


@contextmanager
def _training_bar() -> Iterator[Callable[[Any], None]]:
    """Loss and time left on a terminal; elsewhere one line per epoch, if there is a result."""

    def tell(step: Any) -> None:
        if step.accuracy is not None:
            say(
                f"step {step.step:,} of {step.steps:,}: loss {step.loss:.4f}, "
                f"validation accuracy {step.accuracy:.2%}"
            )

    if not sys.stderr.isatty():
        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("fine-tuning")

        def watch(step: Any) -> None:
            words = f"fine-tuning: step {step.step:,} of {step.steps:,}, loss {step.loss:.4f}"
            bar.update(task, total=step.steps, completed=step.step, description=words)
            tell(step)

        yield watch

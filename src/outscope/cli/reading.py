"""Reads the user's input as texts or rows, and checks it against what a model takes."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outscope.errors import InputError

if TYPE_CHECKING:  # numpy takes a while
    from outscope._types import Matrix

ITEMS = (
    "texts: FILE.txt or .log (one per line), .csv (separated by , ; tab or |), .tsv, .jsonl, "
    ".parquet, or - for standard input; "
    "or embeddings: FILE.npy, FILE.npz:array, FILE.parquet:column"
)


@dataclass(frozen=True)
class Items:
    """Either texts or rows, with labels if there are any."""

    texts: list[str] | None = None
    rows: Matrix | None = None
    labels: Any = None
    columns: dict[str, list[Any]] = field(default_factory=dict)
    lines: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.rows if self.texts is None else self.texts)  # type: ignore[arg-type]

    @property
    def noun(self) -> str:
        """What the items are called in messages."""
        return "rows" if self.texts is None else "texts"


def column_arguments(command: argparse.ArgumentParser, *, labels: bool = False) -> None:
    """The options that name columns of a table of texts."""
    command.add_argument("--text-column", metavar="NAME", help='column of texts (default "text")')
    if labels:
        command.add_argument(
            "--label-column", metavar="NAME", help='column of labels (default "label", if present)'
        )


def read_items(source: str, options: Any, *, labels: bool = False, beside: bool = False) -> Items:
    """Read a file of texts or of embeddings.

    A file `beside` another one may lack the columns that the options name.
    """
    from outscope.io.texts import has_columns, holds_texts, read_texts

    text_column = getattr(options, "text_column", None)
    label_column = getattr(options, "label_column", None) if labels else None
    if beside and not has_columns(source):
        text_column = None
    if text_column or label_column or holds_texts(source):
        found = read_texts(source, text_column, label_column, labels=labels)
        return Items(found.texts, None, found.labels, found.columns, found.lines)
    import numpy as np

    from outscope.io.files import read_matrix

    return Items(rows=np.asarray(read_matrix(source)))


def check_target(folder: str) -> None:
    """Refuse a folder that a model cannot be saved to, before any work is done."""
    from outscope.io import models

    try:
        models.check_target(folder)
    except InputError as error:
        raise InputError(f"--out: {error}") from error


@contextmanager
def about(source: str, labels: str | None = None) -> Iterator[None]:
    """Rewrite errors about X and y to name the files they came from."""
    names = {"X": source, "y": labels or source}
    try:
        yield
    except InputError as error:
        told = re.sub(
            r"(?<![\w\"'./-])(?:Input )?([Xy])(?![\w\"'./-])", lambda x: names[x[1]], str(error)
        )
        raise InputError(told) from error


def rows_for(model: Any, items: Items, source: str, advance: Any = lambda done: None) -> Matrix:
    """Rows for a loaded model to score, or an error that says what it takes."""
    from outscope.text.pipeline import TextDetector

    if isinstance(model, TextDetector):
        if items.texts is None:
            raise InputError(
                f"{source} holds embeddings, but this model was fitted on texts; give texts "
                "(.txt, .csv, .tsv, .jsonl, or .parquet with --text-column)"
            )
        return model.rows_of(items.texts, advance)
    if items.rows is None:
        raise InputError(
            f"{source} holds texts, but this model was fitted on embeddings; give rows of the same "
            "encoder (see: outscope embed) or fit on texts"
        )
    advance(len(items))
    return items.rows

"""What the user points to, as texts or as rows, and what a model can take of it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from outscope._types import Matrix
from outscope.errors import InputError

ITEMS = (
    "texts: FILE.txt (one a line), .csv, .tsv, .jsonl, .parquet, or - for standard input; "
    "or embeddings: FILE.npy, FILE.npz:array, FILE.parquet:column"
)


@dataclass(frozen=True)
class Items:
    """Texts or rows, one of the two, and labels where there are some."""

    texts: list[str] | None = None
    rows: Matrix | None = None
    labels: Any = None

    def __len__(self) -> int:
        return len(self.rows if self.texts is None else self.texts)  # type: ignore[arg-type]

    @property
    def noun(self) -> str:
        """What they are, for messages."""
        return "rows" if self.texts is None else "texts"


def column_arguments(command: argparse.ArgumentParser, *, labels: bool = False) -> None:
    """The options that name columns of a table of texts."""
    command.add_argument("--text-column", metavar="NAME", help='column of texts (default "text")')
    if labels:
        command.add_argument(
            "--label-column", metavar="NAME", help='column of labels (default "label", if there)'
        )


def read_items(source: str, options: Any, *, labels: bool = False, beside: bool = False) -> Items:
    """Read a file of texts or of embeddings.

    A file `beside` another one may be without the columns that the options name.
    """
    from outscope.texts import has_lines_only, holds_texts, read_texts

    text_column = getattr(options, "text_column", None)
    label_column = getattr(options, "label_column", None) if labels else None
    if beside and has_lines_only(source):
        text_column = None
    if text_column or label_column or holds_texts(source):
        found = read_texts(source, text_column, label_column, labels=labels)
        return Items(texts=found.texts, labels=found.labels)
    from outscope.files import read_matrix

    return Items(rows=read_matrix(source))


def rows_for(model: Any, items: Items, source: str, advance: Any = lambda done: None) -> Matrix:
    """Rows that a loaded model scores, or a refusal that says what it takes."""
    from outscope.text.pipeline import TextDetector

    if isinstance(model, TextDetector):
        if items.texts is None:
            raise InputError(
                f"{source} holds embeddings, but this model was fitted on texts; give texts "
                "(.txt, .csv, .tsv, .jsonl, .parquet)"
            )
        return model.rows_of(items.texts, advance)
    if items.rows is None:
        raise InputError(
            f"{source} holds texts, but this model was fitted on embeddings; give rows of the same "
            "encoder (see: outscope embed) or fit on texts"
        )
    advance(len(items))
    return items.rows

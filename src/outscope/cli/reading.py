"""Reads the user's input as texts or rows, and checks it against what a model takes."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outscope.errors import InputError

if TYPE_CHECKING:  # numpy takes a while
    from outscope._types import Matrix
    from outscope.io.sources import Source

ITEMS = (
    "texts: FILE.txt or .log (one per line), .csv (separated by , ; tab or |), .tsv, .jsonl, "
    ".parquet, or - for standard input; "
    "or embeddings: FILE.npy, FILE.npz:array, FILE.parquet:column; "
    "or a folder or pattern of such files"
)
# Embeddings in larger files are read part by part, like those in folders.
LARGE_BYTES = 1 << 30


@dataclass(frozen=True)
class Items:
    """Either texts or rows, with labels if there are any."""

    texts: list[str] | None = None
    rows: Matrix | Source | None = None
    labels: Any = None
    columns: dict[str, list[Any]] = field(default_factory=dict)
    lines: Sequence[int | str] = ()
    vectors: Matrix | None = None  # of the texts, if the file has them

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


def vectors_argument(command: argparse.ArgumentParser) -> None:
    """The option that names a column of vectors beside the texts."""
    command.add_argument(
        "--vectors",
        metavar="COLUMN",
        help="column with a vector for each text (.jsonl, .parquet), instead of an encoder",
    )


def read_items(source: str, options: Any, *, labels: bool = False, beside: bool = False) -> Items:
    """Read texts or embeddings; those of folders, patterns and large files become a source.

    A file `beside` another one may lack the columns that the options name.
    """
    from outscope.io.texts import has_columns, holds_texts, read_texts

    text_column = getattr(options, "text_column", None)
    label_column = getattr(options, "label_column", None) if labels else None
    if beside and not has_columns(source):
        text_column = None
    column = getattr(options, "vectors", None)
    if column or text_column or label_column or holds_texts(source):
        found = read_texts(source, text_column, label_column, labels=labels)
        vectors = None if column is None else _vectors(found.columns, column, source)
        return Items(found.texts, None, found.labels, found.columns, found.lines, vectors)
    if _is_large(source):
        from outscope.io.sources import as_source

        return Items(rows=as_source(source))
    import numpy as np

    from outscope.io.files import read_matrix

    return Items(rows=np.asarray(read_matrix(source)))


def _vectors(columns: dict[str, list[Any]], column: str, source: str) -> Matrix:
    """The vectors of a table, taken out of its columns."""
    from outscope.text.given import as_vectors

    if column not in columns:
        others = ", ".join(columns) or "no column beside its texts"
        raise InputError(f"{source} has no column {column!r} for --vectors; it has {others}")
    values = columns.pop(column)
    return as_vectors(values, len(values), f"{source}: {column}")


def _is_large(source: str) -> bool:
    """Whether embeddings should be read part by part."""
    from outscope.io.listing import is_several, split

    path = Path(split(source)[0])
    return is_several(source) or (
        path.suffix.lower() in (".npy", ".parquet")
        and path.is_file()
        and path.stat().st_size >= LARGE_BYTES
    )


def cluster_argument(command: Any) -> None:
    """The option that names a cluster."""
    command.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="work on the parts of FILE on a Dask cluster, such as tcp://host:8786, or local: a "
        "worker process for each core (embeddings)",
    )


@contextmanager
def on_cluster(options: Any, items: Items) -> Iterator[Source | None]:
    """The rows of FILE as the workers of the cluster see them; None if no cluster is named."""
    if options.cluster is None:
        yield None
        return
    if items.texts is not None:
        raise InputError(f"--cluster is for embeddings, and {options.items} holds texts")
    from outscope.io.cluster import connected
    from outscope.io.sources import distributed

    with connected(options.cluster) as client:
        yield distributed(options.items, client)


def rows_at(items: Items, places: list[int]) -> Matrix | None:
    """The rows at some places, in this order; None for texts."""
    import numpy as np

    if items.rows is None or isinstance(items.rows, np.ndarray):
        return items.rows if items.rows is None else items.rows[places]
    rising, back = np.unique(places, return_inverse=True)
    return items.rows.take(rising)[back]


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


def rows_for(model: Any, items: Items, source: str, advance: Any = lambda done: None) -> Any:
    """Rows for a loaded model to score, maybe a source; or an error that says what it takes."""
    from outscope.text.pipeline import TextDetector

    if isinstance(model, TextDetector):
        if items.texts is None:
            raise InputError(
                f"{source} holds embeddings, but this model was fitted on texts; give texts "
                "(.txt, .csv, .tsv, .jsonl, or .parquet with --text-column or --vectors)"
            )
        return model.rows_of(items.texts, advance, vectors=items.vectors)
    if items.rows is None:
        raise InputError(
            f"{source} holds texts, but this model was fitted on embeddings; give rows of the same "
            "encoder (see: outscope embed) or fit on texts"
        )
    advance(len(items))
    return items.rows

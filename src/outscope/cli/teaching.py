"""teach: tell a saved detector what to refuse, what to accept after all, or take that back."""

from __future__ import annotations

import argparse
from typing import Any

from outscope.cli.reading import (
    ITEMS,
    Items,
    about,
    column_arguments,
    read_items,
    vectors_argument,
)
from outscope.cli.show import say, told
from outscope.errors import InputError


def teach_arguments(teach: argparse.ArgumentParser) -> None:
    """Options of teach."""
    teach.add_argument("model", help="folder written by fit (an NNK method)")
    teach.add_argument("--refuse", metavar="FILE", help=f"out of scope; {ITEMS}")
    teach.add_argument("--accept", metavar="FILE", help="in scope after all")
    teach.add_argument("--undo", action="store_true", help="first take back the last lesson")
    column_arguments(teach)
    vectors_argument(teach)
    teach.add_argument("--no-cache", action="store_true", help="do not use the embedding cache")


def teach(options: Any) -> None:
    """Teach a saved detector, or list what it was taught."""
    from outscope.loading import load

    model: Any = load(options.model)
    of_texts = hasattr(model, "detector_")
    if of_texts:
        model.cache = not options.no_cache
    if not hasattr(getattr(model, "detector_", model), "refuse"):
        kind = type(getattr(model, "detector_", model)).__name__
        raise InputError(
            f"{options.model} is a {kind}, which cannot be taught; fit one of the nnk methods"
        )
    if options.undo:
        model.undo()
        say("took back the last lesson")
    for verb in ("refuse", "accept"):
        source = getattr(options, verb)
        if source is not None:
            items = examples(source, options, like=Items(texts=[] if of_texts else None))
            with about(source):
                if items.texts is None:
                    getattr(model, verb)(items.rows)
                else:
                    getattr(model, verb)(items.texts, vectors=items.vectors)
            say(f"told to {verb} {len(items):,} {items.noun}")
    if options.undo or options.refuse is not None or options.accept is not None:
        model.save(options.model)
        say(f"saved {options.model}; {told(model)}")
    for number, lesson in enumerate(model.lessons_, 1):
        for example in lesson.examples:
            print(f"{number}\t{lesson.verb}\t{example}")


def examples(source: str, options: Any, *, like: Items) -> Items:
    """Examples in a file: texts if the others are texts, rows otherwise."""
    items = read_items(source, options, beside=True)
    if (items.texts is None) != (like.texts is None):
        raise InputError(f"{source} holds {items.noun}, but {like.noun} are needed, as in fit")
    if items.texts is None:
        import numpy as np

        from outscope.io.sources import Source, taken

        rows: Any = items.rows
        whole = isinstance(rows, Source)
        items = Items(rows=taken(rows, np.arange(len(rows))) if whole else np.asarray(rows))
    return items

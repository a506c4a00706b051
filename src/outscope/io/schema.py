"""What fit may set: type, shape and range of each fitted attribute, checked on load.

Classes declare their attributes in `_fitted`. Letters in shapes are sizes that must agree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

# Sizes by letter, and attributes already checked by name.
Seen = dict[str, Any]
# Beyond this, products of rows and atoms overflow float32.
LARGEST = 1e15
FLOATS = ("float32", "float64")


class Field(NamedTuple):
    """A test of one attribute, a description of what passes, and whether it may be missing."""

    passes: Callable[[Any, Seen], bool]
    wanted: str
    optional: bool = False


def check_fitted(kind: type, fitted: Mapping[str, Any]) -> None:
    """Raise ValueError for the first attribute that is missing, unknown or not as declared."""
    declared: dict[str, Field] = getattr(kind, "_fitted", {})
    needed = {name for name, field in declared.items() if not field.optional}
    if wrong := sorted((needed - fitted.keys()) | (fitted.keys() - declared.keys())):
        verb = "is missing" if wrong[0] in needed else "is unknown"
        raise ValueError(f"{kind.__name__}.{wrong[0]} {verb}")
    seen: Seen = {}
    for name, field in declared.items():
        if name in fitted:
            if not field.passes(fitted[name], seen):
                raise ValueError(f"{kind.__name__}.{name} is not {field.wanted}")
            seen[name] = fitted[name]


def maybe(field: Field) -> Field:
    """A field that may be missing, or None."""
    return Field(or_none(field).passes, field.wanted, optional=True)


def or_none(field: Field) -> Field:
    """A field that may be None."""
    return Field(lambda v, seen: v is None or field.passes(v, seen), f"{field.wanted} or None")


def _agrees(letter: str, size: int, seen: Seen) -> bool:
    """Whether a size matches its letter; the first one found sets it."""
    if letter.isdigit():
        return size == int(letter)
    if letter.endswith("/2"):
        return size == (seen[letter[:-2]] + 1) // 2
    return bool(seen.setdefault(letter, size) == size)


def array(
    shape: str, *kinds: str, low: float = -LARGEST, high: float = LARGEST, empty: bool = False
) -> Field:
    """An array of one of the given types, with nothing NaN or out of range."""

    def passes(value: Any, seen: Seen) -> bool:
        letters = shape.split()
        return (
            isinstance(value, np.ndarray)
            and value.dtype.name in kinds
            and value.ndim == len(letters)
            and all(map(_agrees, letters, value.shape, [seen] * value.ndim))
            and (empty if not value.size else bool(low <= value.min() and value.max() <= high))
        )

    return Field(passes, f"an array ({shape}) of {' or '.join(kinds)} in range")


def integers(shape: str, low: int, *, empty: bool = False) -> Field:
    """Whole numbers of at least `low`, such as row indices."""
    return array(shape, "int64", "int32", low=low, high=2**53, empty=empty)


def _sorted_scores(value: Any, _: Seen) -> bool:
    found = array("scores", "float64", low=-np.finfo(float).max, high=np.finfo(float).max)
    return found.passes(value, {}) and bool((np.diff(value) >= 0).all())


SCORES = Field(_sorted_scores, "scores (n,), finite and rising")


def _is_promise(value: Any, seen: Seen) -> bool:
    """A rate and a confidence, valid only with calibration scores."""
    if value is None:
        return True
    rate = Field(lambda v, _: type(v) is float and 0.0 < v < 1.0, "a rate")
    return (
        isinstance(value, list)
        and len(value) == 2
        and rate.passes(value[0], seen)
        and or_none(rate).passes(value[1], seen)
        and {"calibration_scores_", "calibration_kind_"} <= seen.keys()
    )


PROMISE = Field(_is_promise, "[rate, confidence or None] of a calibrated detector, or None")


def number(low: float = -math.inf, high: float = math.inf) -> Field:
    """A finite number."""
    return Field(
        lambda v, seen: type(v) in (int, float) and math.isfinite(v) and low <= v <= high,
        f"a finite number from {low:g} to {high:g}",
    )


def whole(low: int, letter: str = "") -> Field:
    """A whole number, which may be a size named by a letter."""
    return Field(
        lambda v, seen: (
            type(v) is int and low <= v < 2**31 and (not letter or _agrees(letter, v, seen))
        ),
        f"a whole number of at least {low}",
    )


def one_of(*choices: Any) -> Field:
    """One of a few values."""
    return Field(
        lambda v, seen: any(type(v) is type(choice) and v == choice for choice in choices),
        " or ".join(map(repr, choices)),
    )


def by(name: str, fields: Mapping[Any, Field]) -> Field:
    """An attribute whose form depends on another one, checked before."""
    return Field(lambda v, seen: fields[seen[name]].passes(v, seen), f"what {name} asks for")


NOTHING = Field(lambda v, seen: v is None, "None")


def text(pattern: str = r"(?s).*") -> Field:
    """A text that matches a pattern."""
    return Field(
        lambda v, seen: isinstance(v, str) and re.fullmatch(pattern, v) is not None,
        f"a text of the form {pattern}",
    )


def texts(letter: str) -> Field:
    """A list of texts."""
    return Field(
        lambda v, seen: (
            isinstance(v, list)
            and all(isinstance(item, str) for item in v)
            and _agrees(letter, len(v), seen)
        ),
        "a list of texts of the right length",
    )


def labels(letter: str) -> Field:
    """Distinct labels of one type, in ascending order."""

    def passes(value: Any, seen: Seen) -> bool:
        return (
            isinstance(value, np.ndarray)
            and value.ndim == 1
            and value.dtype.kind in "biufU"
            and 0 < len(value) == len(np.unique(value))
            and (value.dtype.kind != "f" or bool(np.isfinite(value).all()))
            and _agrees(letter, len(value), seen)
        )

    return Field(passes, "distinct labels")


def names(letter: str) -> Field:
    """Column names, as scikit-learn keeps them."""
    return Field(
        lambda v, seen: (
            isinstance(v, np.ndarray)
            and v.dtype.kind == "O"
            and v.ndim == 1
            and _agrees(letter, len(v), seen)
        ),
        "one name per column",
    )


def nested(kind: str) -> Field:
    """Another fitted estimator, for rows of the same width."""
    return Field(
        lambda v, seen: (
            kind in (base.__name__ for base in type(v).__mro__)
            and _agrees("d", v.n_features_in_, seen)
        ),
        f"a fitted {kind} for rows of this width",
    )


def many(field: Field, letter: str) -> Field:
    """A list of such items."""
    return Field(
        lambda v, seen: (
            isinstance(v, list)
            and _agrees(letter, len(v), seen)
            and all(field.passes(item, seen) for item in v)
        ),
        f"a list, each {field.wanted}",
    )

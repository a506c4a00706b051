"""Valid values of constructor arguments, checked when `fit` is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

from outscope.errors import InputError


class Rule(NamedTuple):
    """A test and a description of what passes it."""

    passes: Callable[[Any], bool]
    wanted: str

    def __or__(self, other: Rule) -> Rule:
        return Rule(
            lambda value: self.passes(value) or other.passes(value),
            f"{self.wanted} or {other.wanted}",
        )


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, (bool, np.bool_))


def _is_matrix(value: Any) -> bool:
    try:
        return np.ndim(value) == 2
    except ValueError:  # rows of different lengths
        return False


def at_least(low: int) -> Rule:
    """A whole number of at least `low`."""
    return Rule(
        lambda value: _is_number(value, Integral) and value >= low,
        f"a whole number of at least {low}",
    )


def between(low: float, high: float) -> Rule:
    """A real number strictly between two others."""
    return Rule(
        lambda value: _is_number(value, Real) and low < value < high,
        f"a number between {low:g} and {high:g} (both excluded)",
    )


def one_of(*choices: Any) -> Rule:
    """One of a few values."""
    return Rule(
        lambda value: isinstance(value, (str, bool, type(None))) and value in choices,
        " or ".join(repr(choice) for choice in choices),
    )


POSITIVE = Rule(
    lambda value: _is_number(value, Real) and 0 < value < np.inf, "a finite number above 0"
)
NOT_NEGATIVE = Rule(
    lambda value: _is_number(value, Real) and 0 <= value < np.inf, "a finite number of at least 0"
)
MATRIX = Rule(_is_matrix, "a matrix with an atom a row")
CONTAMINATION = one_of("auto") | between(0, 0.5)
JOBS = one_of(None) | Rule(
    lambda value: _is_number(value, Integral) and value != 0, "a whole number other than 0"
)
SEED = one_of(None) | Rule(
    lambda value: _is_number(value, Integral) and 0 <= value < 2**32,
    "a whole number from 0 to 2**32 − 1",
)


def check_parameters(estimator: Any, rules: Mapping[str, Rule]) -> None:
    """Raise for the first parameter that breaks its rule, with its value and what was expected."""
    for name, rule in rules.items():
        value = getattr(estimator, name)
        if not rule.passes(value):
            raise InputError(
                f"{name}={value!r} is not valid for {type(estimator).__name__}: "
                f"expected {rule.wanted}"
            )

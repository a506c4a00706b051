"""The only file that touches scikit-learn's internals, and the place where input is checked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Number
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted, validate_data

from outscope._types import Matrix
from outscope.errors import InputError

__all__ = [
    "Sized",
    "all_or_nothing",
    "check_is_fitted",
    "check_labels",
    "check_rows",
    "check_width",
    "largest_value",
    "scoring_rows",
]

_KINDS = [np.float64, np.float32]


def check_rows(estimator: Any, X: Any, *, reset: bool) -> Matrix:
    """Finite 2-d rows as float32 or float64; with `reset` their width is remembered."""
    X = np.asarray(X) if isinstance(X, (list, tuple)) else X
    if isinstance(X, (str, os.PathLike)):
        raise InputError(f"X is a name, {str(X)!r}; give rows, or a detector, which reads files")
    _refuse_masked("X", X)
    dtypes = getattr(X, "dtypes", getattr(X, "dtype", None))
    for dtype in dtypes if np.iterable(dtypes) else [dtypes]:
        if getattr(dtype, "kind", "O") in "mM":
            raise ValueError(f"X holds times ({dtype}); convert them to numbers first")
    if isinstance(X, np.ndarray) and X.dtype == np.float16:
        X = X.astype(np.float32, order="C")
    try:
        rows: Matrix = validate_data(estimator, X, dtype=_KINDS, order="C", reset=reset)
    except ValueError as error:
        # After the first line, scikit-learn adds advice on other estimators.
        first, _, _ = str(error).partition("\n")
        if "NaN" in first or "infinity" in first:
            told = first.rstrip(".") + _where_bad(X)
            raise InputError(f"{told}. Drop or repair those rows.") from error
        if "is expecting" in first:
            raise InputError(f"{first} Give rows like those it was fitted on.") from error
        raise InputError(f"X: {error}") from error
    # Squares of larger values overflow float64; no embedding comes near that.
    if largest_value(rows) > 1e154:
        raise InputError("X has values too large to square (beyond 1e154); rescale the columns")
    return rows


def _where_bad(X: Any) -> str:
    """Which rows are not finite, if that can be told."""
    try:
        bad = ~np.isfinite(np.asarray(X, dtype=np.float64)).all(axis=1)
    except (ValueError, TypeError):
        return ""
    # Counted from 1, as in the messages on rows of a file.
    first = f"row {int(bad.argmax()) + 1} of {bad.size:,}"
    return f" (rows: {int(bad.sum()):,}; first {first})" if bad.any() else ""


def check_width(estimator: Any, width: int) -> None:
    """Refuse rows of another width than those of fit, in scikit-learn's words."""
    if width != estimator.n_features_in_:
        raise InputError(
            f"X has {width} features, but {type(estimator).__name__} is expecting "
            f"{estimator.n_features_in_} features as input. Give rows like those it was fitted on."
        )


def _refuse_masked(name: str, values: Any) -> None:
    if isinstance(values, np.ma.MaskedArray):
        raise ValueError(
            f"{name} is a masked array, and its mask would be ignored; drop or fill what it masks, "
            "and give a plain array"
        )


def largest_value(rows: Matrix) -> float:
    """Largest absolute value, without copying the rows."""
    return max(float(rows.max()), -float(rows.min()))


def scoring_rows(estimator: Any, X: Any) -> tuple[Matrix, bool]:
    """Rows to score, and whether they have already been checked to be finite.

    A plain float matrix of the right width passes unchecked, since the kernels detect NaN and
    infinity themselves: scikit-learn's full check costs more than scoring a single row.
    """
    fitted = vars(estimator)
    if (
        type(X) in (np.ndarray, np.memmap)
        and X.ndim == 2
        and X.shape[0] > 0
        and X.shape[1] == fitted.get("n_features_in_")
        and X.dtype.char in "fde"
        and X.dtype.isnative
        and "feature_names_in_" not in fitted
    ):
        return np.asarray(X), False
    check_is_fitted(estimator)
    return check_rows(estimator, X, reset=False), True


class Sized:
    """Reports the saved size of an estimator, from the parts that its scores depend on."""

    _parts: tuple[str, ...] = ("atoms_",)

    @property
    def stored_bytes_(self) -> int:
        """Bytes of all arrays behind the scores in a saved model."""
        check_is_fitted(self)
        return sum(_bytes_of(getattr(self, name)) for name in self._parts)


def _bytes_of(part: Any) -> int:
    if part is None:
        return 0
    if isinstance(part, list):
        return sum(_bytes_of(one) for one in part)
    return int(part.nbytes if isinstance(part, np.ndarray) else part.stored_bytes_)


@contextmanager
def all_or_nothing(estimator: Any) -> Iterator[None]:
    """A failed fit leaves the estimator as it was."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


def check_labels(y: Any, n_rows: int) -> np.ndarray[Any, Any]:
    """Labels as a 1-d array of text, whole numbers, numbers or booleans, one for each row."""
    _refuse_masked("y", y)
    # Lists are converted via objects: numpy would turn a missing label into text and hide it.
    labels = np.array(y, dtype=object) if isinstance(y, (list, tuple)) else np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels.ravel()
    if labels.ndim != 1:
        raise InputError(f"y has shape {labels.shape}; expected one label for each row of X")
    if len(labels) != n_rows:
        raise InputError(
            f"y has {len(labels)} labels but X has {n_rows} rows; give one label for each row"
        )
    if labels.dtype.kind == "O":
        labels = _plain_labels(labels.tolist())
    if labels.dtype.kind not in "biufU" or labels.dtype.char == "g":
        raise InputError(f"y holds labels of type {labels.dtype}; convert them to text first")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise InputError("y contains NaN or infinity; drop those rows or name their class")
    return labels


def _plain_labels(labels: list[Any]) -> np.ndarray[Any, Any]:
    """Objects as an array of their common type."""
    kinds = {type(label) for label in labels}
    missing = {"NoneType", "NAType", "NaTType"} & {kind.__name__ for kind in kinds}
    if missing or any(isinstance(label, float) and label != label for label in labels):
        raise InputError("y contains missing labels; drop those rows or name their class")
    families = {
        next((f for f in (bool, str, Number) if issubclass(kind, f)), kind) for kind in kinds
    }
    if len(families) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(f"y mixes labels of types {names}; convert them all to one type")
    return np.array(labels)

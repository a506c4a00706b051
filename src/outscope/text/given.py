"""Vectors that the user brings along with the texts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from outscope._types import Matrix
from outscope.errors import InputError
from outscope.text.encoders import Advance, Encoder

GIVEN = hashlib.sha256(b"given vectors").hexdigest()


class GivenVectors(Encoder):
    """Stands where an encoder would: the detector was fitted on vectors given beside the texts."""

    name = "given vectors"
    cacheable = False

    def fingerprint(self) -> str:
        """The same for all: nothing is known of the model that made them."""
        return GIVEN

    def _compute(self, texts: Sequence[str], kind: str, advance: Advance) -> Matrix:
        raise InputError(
            "this detector was fitted on vectors given beside the texts, so it has no encoder; "
            "give the vectors of these texts too: vectors=… (on the command line --vectors COLUMN)"
        )


def as_vectors(
    vectors: Any, n: int, name: str = "given vectors", width: int | None = None
) -> Matrix:
    """Vectors as a matrix with a row for each text; an error says what is wrong with them."""
    try:
        found: Matrix = np.array([*vectors], dtype=np.float32)
    except (TypeError, ValueError):
        raise InputError(
            f"{name} are no table of numbers: expected a vector for each text, all of one length"
        ) from None
    if found.ndim != 2 or len(found) != n or not found.shape[1]:
        raise InputError(f"{name} have shape {found.shape} for {n} texts; expected a row for each")
    if not np.isfinite(found).all():
        row = int(np.flatnonzero(~np.isfinite(found).all(axis=1))[0])
        raise InputError(f"{name} have NaN or infinite numbers in row {row + 1}; drop that text")
    if width not in (None, found.shape[1]):
        raise InputError(
            f"{name} have {found.shape[1]} columns, but the detector was fitted on {width}; use "
            "vectors of the same encoder"
        )
    return found

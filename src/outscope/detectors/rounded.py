"""Rows kept at 8 bits per number, and any row as it would be kept."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from outscope._types import FloatArray, IntArray, Matrix

MOST = 127


class Rounded(NamedTuple):
    """Rows as whole numbers from −127 to 127 and a factor for each row."""

    numbers: np.ndarray[Any, Any]  # (n, d) int8
    scale: FloatArray  # (n,)

    def rows(self) -> Matrix:
        """The rows, as float64."""
        restored: Matrix = self.numbers * self.scale[:, None]
        return restored

    def take(self, chosen: IntArray) -> Rounded:
        """Some of the rows."""
        return Rounded(self.numbers[chosen], self.scale[chosen])


def rounded(X: Matrix) -> Rounded:
    """Rows at 8 bits per number; each is bitwise independent of the others.

    >>> rounded(np.array([[1.0, -0.5], [0.0, 0.0]])).rows().round(3).tolist()
    [[1.0, -0.504], [0.0, 0.0]]
    """
    rows = np.asarray(X, dtype=np.float64)
    scale = np.abs(rows).max(axis=1) / MOST
    steps = np.divide(rows, scale[:, None], out=np.zeros_like(rows), where=scale[:, None] > 0.0)
    return Rounded(np.rint(steps).astype(np.int8), scale)

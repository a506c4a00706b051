"""In-scope rows that a detector keeps, so that its threshold still holds after it was taught."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator

from outscope._types import FloatArray, Matrix
from outscope.decisions.threshold import HELD_MOST
from outscope.detectors.rounded import Rounded, rounded
from outscope.io import schema

# Rows learned from that tell how near in-scope rows usually are to what is outside.
USUAL_ROWS = 256


class Witnesses(BaseEstimator):
    """In-scope rows at 8 bits per number.

    `judged_rows_` set the threshold and were not learned from, or are scored as if they had not
    been; `base_scores_` are their scores without any teaching. `usual_rows_` were learned from.
    """

    _fitted = {
        "n_features_in_": schema.whole(1, "d"),
        "judged_rows_": schema.maybe(schema.array("n d", "int8")),
        "judged_scale_": schema.maybe(schema.array("n", "float64", low=0.0)),
        "base_scores_": schema.maybe(
            schema.array("n", "float64", low=-np.finfo(float).max, high=np.finfo(float).max)
        ),
        "usual_rows_": schema.array("u d", "int8"),
        "usual_scale_": schema.array("u", "float64", low=0.0),
    }

    def seeing(self, learned: Matrix) -> Self:
        """Keep a sample of the rows learned from."""
        kept = rounded(learned[_sample(len(learned), USUAL_ROWS)])
        self.n_features_in_ = int(learned.shape[1])
        self.usual_rows_, self.usual_scale_ = kept
        return self

    def judging(self, X: Matrix, base: FloatArray) -> Self:
        """The same, with other rows that set the threshold; at most 2,000 are kept."""
        chosen = _sample(len(X), HELD_MOST)
        kept, other = rounded(X[chosen]), type(self)()
        other.__dict__.update(self.__dict__)
        other.judged_rows_, other.judged_scale_ = kept
        other.base_scores_ = np.array(base[chosen], dtype=np.float64)
        return other

    def unjudged(self) -> Self:
        """The same without rows that set the threshold."""
        other = type(self)()
        for name in ("n_features_in_", "usual_rows_", "usual_scale_"):
            setattr(other, name, getattr(self, name))
        return other

    @property
    def has_judged(self) -> bool:
        """Whether there are rows that set the threshold."""
        return {"judged_rows_", "judged_scale_", "base_scores_"} <= vars(self).keys()

    @property
    def judged(self) -> Rounded:
        """The rows that set the threshold."""
        return Rounded(self.judged_rows_, self.judged_scale_)

    @property
    def usual(self) -> Rounded:
        """A sample of the rows learned from."""
        return Rounded(self.usual_rows_, self.usual_scale_)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(v.nbytes) for v in vars(self).values() if isinstance(v, np.ndarray))


def _sample(n: int, most: int) -> Any:
    """Rising indices of at most so many rows, the same in every run."""
    return np.sort(np.random.RandomState(0).permutation(n)[:most])

"""In-scope rows that a detector keeps, so that its threshold still holds after it was taught."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator

from outscope._types import FloatArray, Matrix
from outscope.decisions.threshold import HELD_MOST
from outscope.detectors.rounded import Rounded, rounded
from outscope.io import schema

# Training rows that tell how near in-scope rows usually are to what is outside.
USUAL_ROWS = 128
FAR = float(np.finfo(float).max)


class Witnesses(BaseEstimator):
    """In-scope rows at 8 bits per number, with their scores before any lesson.

    `usual_rows_` are training rows, scored as if they had not been learned from; they tell how near
    in-scope rows usually are to what is refused. `judged_rows_` are those that calibrated the
    threshold, if there were any: they never shape the score. `held_out_` are the scores behind an
    estimated threshold, while there are lessons.
    """

    _fitted = {
        "n_features_in_": schema.whole(1, "d"),
        "judged_rows_": schema.maybe(schema.array("n d", "int8")),
        "judged_scale_": schema.maybe(schema.array("n", "float64", low=0.0)),
        "base_scores_": schema.maybe(schema.array("n", "float64", low=-FAR, high=FAR)),
        "usual_rows_": schema.array("u d", "int8"),
        "usual_scale_": schema.array("u", "float64", low=0.0),
        "usual_scores_": schema.array("u", "float64", low=-FAR, high=FAR),
        "held_out_": schema.maybe(schema.SCORES),
    }

    def seeing(self, training: Matrix, base: FloatArray) -> Self:
        """Keep a sample of training rows."""
        chosen = _sample(len(training), USUAL_ROWS)
        self.n_features_in_ = int(training.shape[1])
        self.usual_rows_, self.usual_scale_ = rounded(training[chosen])
        self.usual_scores_ = np.array(base[chosen], dtype=np.float64)
        return self

    def judging(self, X: Matrix, base: FloatArray) -> Self:
        """The same, with other rows that calibrated the threshold; at most 2,000 are kept."""
        chosen = _sample(len(X), HELD_MOST)
        numbers, scale = rounded(X[chosen])
        scores = np.array(base[chosen], dtype=np.float64)
        return self._with(judged_rows_=numbers, judged_scale_=scale, base_scores_=scores)

    def holding(self, scores: FloatArray | None) -> Self:
        """The same, with the scores behind an estimate."""
        return self._with(held_out_=scores)

    def _with(self, **changes: Any) -> Self:
        other = type(self)()
        other.__dict__.update(self.__dict__ | changes)
        return other

    def unjudged(self) -> Self:
        """The same without rows that set the threshold."""
        kept = ("n_features_in_", "usual_rows_", "usual_scale_", "usual_scores_")
        other = type(self)()
        other.__dict__.update({name: vars(self)[name] for name in kept})
        return other

    @property
    def has_judged(self) -> bool:
        """Whether there are rows that set the threshold."""
        return {"judged_rows_", "judged_scale_", "base_scores_"} <= vars(self).keys()

    @property
    def rows(self) -> Rounded:
        """The rows that set the threshold, or else the usual ones."""
        if self.has_judged:
            return Rounded(self.judged_rows_, self.judged_scale_)
        return self.usual

    @property
    def scores(self) -> FloatArray:
        """The scores of these rows before any lesson."""
        found: FloatArray = self.base_scores_ if self.has_judged else self.usual_scores_
        return found

    @property
    def usual(self) -> Rounded:
        """A sample of the training rows."""
        return Rounded(self.usual_rows_, self.usual_scale_)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(v.nbytes) for v in vars(self).values() if isinstance(v, np.ndarray))


def _sample(n: int, most: int) -> Any:
    """Rising indices of at most so many rows, the same in every run."""
    return np.sort(np.random.RandomState(0).permutation(n)[:most])

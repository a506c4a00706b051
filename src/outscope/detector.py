"""What every detector has: fit, ood_score, a threshold that can be moved, scikit-learn's verbs."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, OutlierMixin

from outscope import _schema, persistence
from outscope._engine import NonFiniteRowsError
from outscope._parameters import JOBS, Rule, between, check_parameters
from outscope._sklearn import all_or_nothing, check_is_fitted, check_rows, scoring_rows
from outscope._types import BoolArray, FloatArray, IntArray, Matrix
from outscope.errors import InputError
from outscope.threshold import ConformalThreshold, check_rate, quantile_threshold

# Training scores are kept as at most this many quantiles, so that a model's size stays bounded.
KEPT_SCORES = 4096


class Detector(OutlierMixin, BaseEstimator):
    """Base of all detectors. A subclass writes `_learn` and `_ood_score`.

    `ood_score` is higher for stranger rows. `score_samples`, `decision_function` and `predict`
    keep scikit-learn's signs: higher is more normal, +1 in scope, −1 out of scope.
    """

    contamination: float
    _rows_are: ClassVar[str] = "embedding"
    _rules: dict[str, Rule] = {}
    # Every attribute that fit may leave, for `load` to check; one that is not here is not saved.
    _fitted: ClassVar[dict[str, _schema.Field]] = {
        "n_features_in_": _schema.whole(1, "d"),
        "feature_names_in_": _schema.maybe(_schema.names("d")),
        "offset_": _schema.number(),
        "training_scores_": _schema.maybe(_schema.SCORES),
        "held_out_scores_": _schema.maybe(_schema.SCORES),
        "calibration_scores_": _schema.maybe(_schema.SCORES),
        "promised_": _schema.maybe(_schema.PROMISE),
    }
    # Whether rows are scaled to unit length, where that is no parameter.
    _unit_rows: ClassVar[bool] = False

    @property
    def needs(self) -> str:
        """What a row of X is: "embedding", or what only a classifier can give, as "logits"."""
        return self._rows_are

    @abstractmethod
    def _learn(self, X: Matrix, y: Any) -> FloatArray:
        """Learn from checked rows and return their scores."""

    @abstractmethod
    def _ood_score(self, X: Matrix) -> FloatArray:
        """Scores of rows that are known to be of the right width."""

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn what is in scope. The threshold lets `contamination` of these rows be exceeded."""
        check_parameters(self, {**self._rules, "contamination": between(0, 0.5)})
        if hasattr(self, "n_jobs"):
            check_parameters(self, {"n_jobs": JOBS})
        with all_or_nothing(self):
            rows = check_rows(self, X, reset=True)
            scores = self._learn(rows, y)
        self.__dict__.pop("calibration_scores_", None)
        # Same rule as scikit-learn's own detectors, so that the same share is flagged.
        self.offset_ = -quantile_threshold(scores, self.contamination)
        self.training_scores_ = np.sort(scores)
        if len(scores) > KEPT_SCORES:
            self.training_scores_ = np.quantile(scores, np.linspace(0.0, 1.0, KEPT_SCORES))
        return self

    def ood_score(self, X: Any) -> FloatArray:
        """How strange each row is; higher = stranger."""
        rows, checked = scoring_rows(self, X)
        try:
            return self._ood_score(rows)
        except NonFiniteRowsError:
            if not checked:
                check_rows(self, X, reset=False)  # says which of NaN and infinity it was
            raise

    def score_samples(self, X: Any) -> FloatArray:
        """scikit-learn's sign: higher = more normal."""
        return -self.ood_score(X)

    def decision_function(self, X: Any) -> FloatArray:
        """scikit-learn's sign: below 0 = out of scope."""
        scores = self.score_samples(X)
        return scores - self.offset_

    def predict(self, X: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
        """+1 in scope, −1 out of scope."""
        return np.where(self.decision_function(X) >= 0.0, 1, -1)

    def is_ood(self, X: Any) -> BoolArray:
        """True where a row is out of scope at the present threshold."""
        return self.predict(X) == -1

    @property
    def threshold_(self) -> float:
        """Score above which a row is out of scope."""
        check_is_fitted(self, "offset_")
        return -float(self.offset_)

    def calibrate(self, X: Any, *, fpr: float | None = None) -> Self:
        """Set the threshold from in-scope rows that the detector has not seen.

        With it P(false alarm) ≤ `fpr` (default: `contamination`) is guaranteed, and `p_value`
        becomes available.
        """
        conformal = ConformalThreshold(self.ood_score(X))
        cut = conformal.cut(self.contamination if fpr is None else fpr)
        self.calibration_scores_ = conformal.scores
        self.offset_ = -cut
        return self

    def set_threshold(self, *, fpr: float | None = None, value: float | None = None) -> Self:
        """Move the threshold after fit: to a false-alarm rate, or to a score.

        A rate is guaranteed after `calibrate`; before, it is that of the training rows.
        """
        check_is_fitted(self, "offset_")
        if (fpr is None) == (value is None):
            raise InputError("give set_threshold either fpr=… or value=…, one of the two")
        if value is not None:
            if not np.isfinite(value):
                raise InputError(f"value={value!r} is not a finite score")
            cut = float(value)
        elif hasattr(self, "calibration_scores_"):
            cut = ConformalThreshold(self.calibration_scores_).cut(check_rate(fpr or 0.0))
        else:
            cut = quantile_threshold(self.training_scores_, check_rate(fpr or 0.0))
        self.offset_ = -cut
        return self

    def p_value(self, X: Any) -> FloatArray:
        """Conformal p-value: the chance of an in-scope row at least this strange."""
        check_is_fitted(self, "offset_")
        if not hasattr(self, "calibration_scores_"):
            raise InputError(
                "p_value needs calibration: call calibrate(X) with in-scope rows that were not "
                "used in fit"
            )
        return ConformalThreshold(self.calibration_scores_).p_value(self.ood_score(X))

    def remembered_rows(self) -> IntArray:
        """Training rows that the detector can point to; none for most detectors."""
        return np.empty(0, np.intp)

    def nearest_rows(self, X: Any, n: int) -> list[tuple[int, ...]]:
        """For each row the training rows most like it, at most n, of those it can point to."""
        return [()] * len(X)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted detector to a folder; `outscope.load` reads it back."""
        check_is_fitted(self, "offset_")
        persistence.write(path, self, self._notes())

    def _notes(self) -> dict[str, Any]:
        """What a reader of the manifest wants to know at a glance."""
        return {
            "detector": type(self).__name__,
            "n_features": int(self.n_features_in_),
            "normalize": bool(getattr(self, "normalize", self._unit_rows)),
            "kernel": getattr(self, "kernel", None),
            "needs": self.needs,
            "threshold": self.threshold_,
            "calibrated": hasattr(self, "calibration_scores_"),
        }

"""Scores → decisions: the threshold of a detector, how it is set, and what it promises."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator

from outscope._sklearn import check_is_fitted
from outscope._types import BoolArray, FloatArray
from outscope.decisions.threshold import (
    HELD_OUT,
    LEFT_ONE_OUT,
    ConformalThreshold,
    Promise,
    check_rate,
    estimated_cut,
)
from outscope.errors import InputError

# The default false-alarm rate.
USUAL_RATE = 0.05
# Up to this many rows are left out one by one; more, in this many parts.
ONE_BY_ONE, PARTS = 100, 5
ESTIMATE = "an estimate, no promise"


class Decision(NamedTuple):
    """What scores mean: yes or no and, if calibrated, how unusual."""

    is_ood: BoolArray
    p_value: FloatArray | None


class Thresholded(BaseEstimator):
    """A movable threshold on `ood_score`, apart from what the scores are learned from."""

    contamination: float | str
    offset_: float
    held_out_scores_: FloatArray
    left_one_out_: bool
    promised_: list[float | None] | None
    rate_: float | None
    calibration_scores_: FloatArray
    calibration_kind_: str

    def ood_score(self, X: Any) -> FloatArray:
        """How strange each row is; higher = stranger."""
        raise NotImplementedError

    def _judged(self, X: Any) -> FloatArray:
        """Scores of in-scope rows that are to set the threshold."""
        return self.ood_score(X)

    def decide(self, ood_score: FloatArray) -> Decision:
        """What scores mean at the current threshold; all decisions are made here."""
        check_is_fitted(self, "offset_")
        calibrated = getattr(self, "calibration_scores_", None)
        chances = None if calibrated is None else ConformalThreshold(calibrated).p_value(ood_score)
        return Decision(ood_score > self.threshold_, chances)

    @property
    def threshold_(self) -> float:
        """Score above which a row is out of scope."""
        check_is_fitted(self, "offset_")
        return -float(self.offset_)

    @property
    def promise_(self) -> Promise | None:
        """What the current threshold promises; None if it is an estimate."""
        check_is_fitted(self, "offset_")
        if self.promised_ is None:
            return None
        fpr, confidence = self.promised_
        rows = len(self.calibration_scores_)
        return Promise(fpr or 0.0, rows, self.calibration_kind_, confidence)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """The settings and, once fitted, what the threshold promises."""
        text = super().__repr__(N_CHAR_MAX)
        if not hasattr(self, "offset_"):
            return text
        return f"{text}  # above {self.threshold_:.4g} is out of scope: {self.promise_ or ESTIMATE}"

    def calibrate(
        self, X: Any = None, *, fpr: float | None = None, confidence: float | None = None
    ) -> Self:
        """Set the threshold from in-scope rows that the detector has not seen.

        P(false alarm) ≤ `fpr` (default: `contamination`, or 5 %) then holds for rows exchangeable
        with these, on average over calibrations; with `confidence`, say 0.95, it holds for this
        calibration with that probability. `p_value` becomes available.

        Without rows, those that fit set aside are used, as it does if it learns from a sample.
        Otherwise training rows are, each scored without itself. That is just as good if there are
        at most 100 and every one is an atom; otherwise it is refused.
        """
        if X is not None:
            found = ConformalThreshold(self._judged(X)), HELD_OUT
        elif getattr(self, "set_aside_", False):
            found = ConformalThreshold(self.held_out_scores_), HELD_OUT
        else:
            check_is_fitted(self, "offset_")
            if not self.left_one_out_:
                raise InputError(
                    "calibrate needs in-scope rows that were not used in fit; without them it can "
                    f"promise a rate only if every row is an atom, for up to {ONE_BY_ONE} rows"
                )
            found = ConformalThreshold(self.held_out_scores_), LEFT_ONE_OUT
        rate = self.contamination if fpr is None else fpr
        self._promise(*found, USUAL_RATE if isinstance(rate, str) else rate, confidence)
        return self

    def estimate(self, X: Any, *, fpr: float) -> Self:
        """Set the threshold from in-scope rows that are too few for a promise."""
        self.held_out_scores_ = np.sort(self._judged(X))
        self.left_one_out_ = False
        self.__dict__.pop("set_aside_", None)
        return self.set_threshold(fpr=fpr)

    def _promise(
        self, conformal: ConformalThreshold, kind: str, fpr: float, confidence: float | None
    ) -> None:
        if confidence is not None and kind == LEFT_ONE_OUT:
            raise InputError(
                "training rows cannot promise a rate with confidence; calibrate with rows held out"
            )
        self.offset_ = -conformal.cut(fpr, confidence)
        self.calibration_scores_, self.calibration_kind_ = conformal.scores, kind
        self.promised_ = [float(fpr), None if confidence is None else float(confidence)]

    def set_threshold(
        self,
        *,
        fpr: float | None = None,
        value: float | None = None,
        confidence: float | None = None,
    ) -> Self:
        """Move the threshold after fit, to a false-alarm rate or to a score.

        After `calibrate` the rate is promised (see there); before, it is estimated from training
        rows scored as if they had not been learned from.
        """
        check_is_fitted(self, "offset_")
        if (fpr is None) == (value is None):
            if fpr is None and confidence is not None:
                raise InputError(f"confidence={confidence:g} is for a rate; give fpr=… with it")
            raise InputError("give a rate, fpr=…, or a score, value=…: exactly one of the two")
        if fpr is not None and hasattr(self, "calibration_scores_"):
            conformal = ConformalThreshold(self.calibration_scores_)
            self._promise(conformal, self.calibration_kind_, check_rate(fpr), confidence)
            return self
        if confidence is not None:
            raise InputError("confidence needs a rate and calibration: call calibrate(X) first")
        if value is not None and not np.isfinite(value):
            raise InputError(f"value={value!r} is not a finite score")
        cut = estimated_cut(self.held_out_scores_, fpr) if fpr is not None else float(value or 0.0)
        # What was asked for, for `partial_fit` to keep to; None for a score.
        self.offset_, self.promised_, self.rate_ = -cut, None, fpr
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

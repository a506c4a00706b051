"""The threshold after a lesson: set again from in-scope rows that the detector keeps."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np

from outscope._sklearn import all_or_nothing
from outscope._types import FloatArray, Matrix
from outscope.decisions.threshold import (
    HELD_MOST,
    LEFT_ONE_OUT,
    ConformalThreshold,
    estimated_cut,
)
from outscope.detectors.outside import Outside, Seeing
from outscope.detectors.sampling import Training
from outscope.detectors.streaming import StreamingDetector
from outscope.detectors.witnesses import Witnesses
from outscope.errors import InputError, NoPromiseWarning
from outscope.io import schema
from outscope.io.sources import as_source, taken
from outscope.learning.rows import EPOCH_ROWS


class Rethresholded(StreamingDetector):
    """Keeps the rows that set the threshold, and sets it again when lessons change the scores."""

    outside_: Outside
    witnesses_: Witnesses
    max_bytes: int | None
    _fitted = {
        **StreamingDetector._fitted,
        "outside_": schema.maybe(schema.nested("Outside")),
        "witnesses_": schema.maybe(schema.nested("Witnesses")),
    }

    # ---- what a subclass does

    def _base_score(self, X: Matrix) -> FloatArray:
        """Scores without any lesson."""
        raise NotImplementedError

    def _learned(self, outside: Outside) -> Outside:
        """Lessons, learned as this detector sees rows."""
        raise NotImplementedError

    @property
    def _seeing(self) -> Seeing:
        raise NotImplementedError

    @property
    def _taught(self) -> Outside | None:
        return vars(self).get("outside_")

    # ---- rows that are kept

    def _first_threshold(self, training: Training, scores: FloatArray | None) -> None:
        super()._first_threshold(training, scores)
        if training.held is not None and self.max_bytes is None:
            # So many were learned from that each of them hardly looks nearer for it.
            some = training.X[:EPOCH_ROWS]
            kept = Witnesses().seeing(some, self._base_score(some))
            self.witnesses_ = kept.judging(training.held, self._base_score(training.held))

    def _held_out_scores(self, X: Matrix, y: Any, scores: FloatArray) -> FloatArray:
        """Scores of training rows as if not learned; after learning again, lessons are too."""
        base = super()._held_out_scores(X, y, scores)
        if len(X) < 2:
            return base
        judged = X[np.concatenate(self._judged_parts(len(X)))]
        if self.max_bytes is None:  # otherwise the model is to be as small as it was asked to be
            self.witnesses_ = Witnesses().seeing(judged, base)
        if self._taught is None:
            return base
        self.outside_ = self._learned(self._taught)
        return self.outside_.told(base, judged, self._seeing).ood_score

    def _judged(self, X: Any) -> FloatArray:
        source = as_source(X)
        if source is not None:
            scores = self.ood_score(X)
            chosen = np.random.RandomState(0).permutation(len(source))[:HELD_MOST]
            rows = taken(source, np.sort(chosen))
            base = self._base_score(rows)
        else:
            rows, base = self._checked(X, self._base_score)
            outside = self._taught
            scores = base if outside is None else outside.told(base, rows, self._seeing).ood_score
        if "witnesses_" in vars(self):
            self.witnesses_ = self.witnesses_.judging(rows, base)
        return scores

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

        Up to 2,000 of the rows are kept, at 8 bits per number, to calibrate again after `refuse`
        and `accept`.
        """
        with all_or_nothing(self):
            return super().calibrate(X, fpr=fpr, confidence=confidence)

    def _estimate_again(self, rate: float) -> None:
        super()._estimate_again(rate)
        if "witnesses_" in vars(self):
            self.witnesses_ = self.witnesses_.unjudged()  # their scores are no longer these

    def _usual_scores(self) -> FloatArray:
        """Scores of in-scope rows before any lesson, as far as they are known."""
        kept = vars(self).get("witnesses_")
        return self.held_out_scores_ if kept is None else kept.scores

    def _set_threshold_again(self, before: Self) -> None:
        """The same false-alarm rate as before, for scores after other lessons."""
        kept = vars(self).get("witnesses_")
        if kept is None:
            self._withdraw()
            return
        seen, base = self._seeing(kept.rows.rows()), kept.scores
        if "calibration_scores_" in vars(self):
            self._calibrate_again(self._scored(base, seen))
        else:
            self._estimate_after_lesson(before, base, seen)

    def _scored(self, base: FloatArray, seen: Matrix) -> FloatArray:
        return base if self._taught is None else self._taught.told_of(base, seen).ood_score

    def _calibrate_again(self, scores: FloatArray) -> None:
        """Promise the same from the rows that were kept."""
        kind, conformal = self.calibration_kind_, ConformalThreshold(scores)
        if kind == LEFT_ONE_OUT and len(scores) < len(self.calibration_scores_):
            self._withdraw()
            return
        try:
            if self.promised_ is not None:
                fpr, confidence = self.promised_
                self._promise(conformal, kind, float(fpr or 0.0), confidence)
        except InputError:
            self._withdraw()  # too few of the calibration rows were kept
            return
        self.calibration_scores_ = self.held_out_scores_ = conformal.scores
        self.left_one_out_ = kind == LEFT_ONE_OUT

    def _estimate_after_lesson(self, before: Self, base: FloatArray, seen: Matrix) -> None:
        """Move an estimate as far as the scores of the rows that were kept have moved."""
        kept, new = self.witnesses_, np.sort(self._scored(base, seen))
        held = vars(kept).get("held_out_")
        held = self.held_out_scores_ if held is None else held
        old = np.sort(base)
        moved = new if len(new) == len(held) else np.sort(held + np.interp(held, old, new - old))
        if rate := self._rate_in_use():
            self.offset_ -= estimated_cut(moved, rate) - estimated_cut(
                before.held_out_scores_, rate
            )
        taught = self._taught is not None
        self.held_out_scores_ = moved if taught else held
        self.witnesses_ = kept.holding(held if taught else None)

    def _withdraw(self) -> None:
        """The threshold stays where it is and promises nothing."""
        if "calibration_scores_" not in vars(self):
            return
        self.rate_ = None if self.promised_ is None else self.promised_[0]
        self.promised_, self.left_one_out_ = None, False
        for name in ("calibration_scores_", "calibration_kind_"):
            self.__dict__.pop(name)
        warnings.warn(
            "this model keeps no in-scope rows to set its threshold again, so its false-alarm rate "
            "is no longer promised; calibrate again",
            NoPromiseWarning,
            stacklevel=5,
        )

"""`refuse`, `accept` and `undo`: a detector that is told of examples, before or after fit."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from outscope._sklearn import all_or_nothing, check_is_fitted, check_rows
from outscope._types import FloatArray, Matrix
from outscope.decisions.threshold import (
    HELD_MOST,
    LEFT_ONE_OUT,
    ConformalThreshold,
    estimated_cut,
    quantile_threshold,
)
from outscope.detectors.base import Reading
from outscope.detectors.explanation import Lesson
from outscope.detectors.outside import ACCEPT, REFUSE, Outside, Seeing
from outscope.detectors.sampling import Training
from outscope.detectors.streaming import StreamingDetector
from outscope.detectors.witnesses import Witnesses
from outscope.engine.kernels.blas import one_thread_each
from outscope.errors import InputError, InScopeExampleWarning, NoPromiseWarning
from outscope.io import schema
from outscope.io.sources import as_source, taken
from outscope.learning.dictionary import NNKMeans
from outscope.learning.loop import learn
from outscope.learning.rows import EPOCH_ROWS, Rows, size_for
from outscope.learning.view import View

# An outside example is in doubt if it looks more familiar than this share of in-scope rows.
DOUBTFUL = 0.1
# Pairs named in one warning.
NAMED = 3


class TaughtDetector(StreamingDetector):
    """Base of detectors that take examples of what to refuse, and of what to accept after all.

    A row near a refused example gets a higher score; elsewhere scores are as before. The threshold
    is set again from in-scope rows that are kept for it (`witnesses_`), so a promise still holds.
    """

    outside_: Outside
    witnesses_: Witnesses
    max_bytes: int | None
    n_jobs: int | None
    common_: Any
    _view: View
    _fitted = {
        **StreamingDetector._fitted,
        "outside_": schema.maybe(schema.nested("Outside")),
        "witnesses_": schema.maybe(schema.nested("Witnesses")),
    }

    # ---- what a subclass does

    def _base_score(self, X: Matrix) -> FloatArray:
        """Scores without any teaching."""
        raise NotImplementedError

    def _base_reading(self, X: Matrix) -> Reading:
        """A reading without any teaching."""
        raise NotImplementedError

    def _dictionary(self, **changes: Any) -> NNKMeans:
        raise NotImplementedError

    @property
    def atoms_(self) -> Matrix:
        """The stored atoms, (m, d)."""
        raise NotImplementedError

    @property
    def plan_(self) -> Any:
        """What was decided before learning."""
        raise NotImplementedError

    # ---- teaching

    @property
    def lessons_(self) -> tuple[Lesson, ...]:
        """What was taught and not taken back, the oldest first."""
        check_is_fitted(self, "offset_")
        outside = self._taught
        return () if outside is None else outside.lessons

    def refuse(self, X: Any, *, names: Sequence[str] | None = None) -> Self:
        """Rows that are out of scope: rows near them get higher scores from now on.

        `names` are what explanations call them; without names they are numbered.
        """
        doubtful = self.also_in_scope(X)
        called = list(names) if names is not None else [f"X[{i}]" for i in range(len(X))]
        found = self.after(REFUSE, X, names)
        warn_of_doubt([(called[i], f"training row {row}") for i, row in doubtful])
        return self._become(found)

    def accept(self, X: Any, *, names: Sequence[str] | None = None) -> Self:
        """Rows that are in scope after all: rows like them get lower scores from now on."""
        return self._become(self.after(ACCEPT, X, names))

    def undo(self) -> Self:
        """Take back the last lesson: a call of `refuse` or `accept`, or what `fit` was given."""
        return self._become(self.before_last_lesson())

    def after(self, verb: str, X: Any, names: Sequence[str] | None = None) -> Self:
        """Another detector, after one more lesson; this one stays as it is."""
        check_is_fitted(self, "offset_")
        rows = check_rows(self, X, reset=False)
        known = self._taught or Outside.empty(self.n_features_in_)
        return self._with(known.after(verb, rows, names))

    def before_last_lesson(self) -> Self:
        """Another detector, without the last lesson; this one stays as it is."""
        check_is_fitted(self, "offset_")
        if self._taught is None:
            raise InputError("there is no lesson to take back; refuse or accept something first")
        return self._with(self._taught.before_last())

    def also_in_scope(self, X: Any) -> list[tuple[int, int]]:
        """Rows that look in scope without doubt, each with the training row most like it."""
        check_is_fitted(self, "offset_")
        reading = self._checked(X, self._base_reading)[1]
        bound = float(np.quantile(self._usual_scores(), DOUBTFUL))
        near = self.rows_in(reading, 1)
        found = np.flatnonzero(reading.ood_score <= bound).tolist()
        return [(i, near[i][0]) for i in found if near[i]]

    def _become(self, other: Self) -> Self:
        self.__dict__ = other.__dict__  # at once, for whoever is scoring meanwhile
        return self

    def _with(self, outside: Outside | None) -> Self:
        new = copy.copy(self)
        new.__dict__.pop("outside_", None)
        if outside is not None:
            new.outside_ = self._learned(outside)
        new._set_threshold_again(self)
        return new

    def _learned(self, outside: Outside) -> Outside:
        kept = vars(self).get("witnesses_")
        usual = np.asarray(self.atoms_) if kept is None else self._seeing(kept.usual.rows())
        with one_thread_each():
            reach = float(np.median(self._usual_scores()))
            return outside.learned(self._seeing, self._learn_side, usual, reach)

    def _learn_side(self, seen: Matrix) -> NNKMeans:
        """A dictionary of examples, learned and pruned like the one of in-scope rows."""
        size = size_for("auto", len(seen))
        one = self._dictionary(
            n_atoms=size, max_atoms=None, max_bytes=None, init="k-means++", random_state=0
        )
        rows = Rows(seen, normalize=one.normalize, n_jobs=self.n_jobs)
        learner = one.begin(rows, self.plan_.of_size(size), size, np.random.RandomState(0))
        one.finish(learner, learn([learner], rows)[0])
        one.forget()
        return one

    @property
    def _taught(self) -> Outside | None:
        return vars(self).get("outside_")

    @property
    def _seeing(self) -> Seeing:
        return Seeing(self._view, self.common_, self.n_jobs)

    @property
    def stored_bytes_(self) -> int:
        """Bytes of all arrays behind the scores in a saved model, with those of examples."""
        outside = vars(self).get("outside_")
        return super().stored_bytes_ + (0 if outside is None else outside.stored_bytes_)

    @property
    def teaching_bytes_(self) -> int:
        """Bytes beyond `stored_bytes_` for taking lessons back and keeping the promise."""
        outside, kept = self._taught, vars(self).get("witnesses_")
        own = 0 if outside is None else outside.ledger_bytes
        return own + (0 if kept is None else kept.stored_bytes)

    # ---- scoring

    def _ood_score(self, X: Matrix) -> FloatArray:
        base = self._base_score(X)
        outside = self._taught
        if outside is None:
            return base
        for first in range(0, len(X), EPOCH_ROWS):
            part = slice(first, first + EPOCH_ROWS)
            base[part] = outside.told(base[part], X[part], self._seeing).ood_score
        return base

    def _read(self, X: Matrix) -> Reading:
        reading = self._base_reading(X)
        outside = self._taught
        if outside is None:
            return reading
        told = outside.told(reading.ood_score, X, self._seeing)
        return reading._replace(ood_score=told.ood_score, told=told)

    def refused_in(self, reading: Reading) -> list[str | None]:
        """For each row read, the refused example for which it is out of scope, if any.

        It is named if it decided, or if the row is nearer to it than to what is in scope.
        """
        outside, told = self._taught, reading.told
        if outside is None or told is None:
            return [None] * len(reading.ood_score)
        decided = (told.base <= self.threshold_) | (told.distance <= told.base)
        named = decided & (told.ood_score > self.threshold_)
        return outside.refused_names(np.where(named, told.refused, -1))

    # ---- fit, and the rows that keep the promise

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        outside: Any = None,
        rows: int | str = "auto",
        memory: int | str = "1GB",
        checkpoint: str | os.PathLike[str] | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> Self:
        """Learn what is in scope and set a first, estimated threshold.

        `outside` are rows that are out of scope, as for `refuse`; a few are enough. X is an array,
        or anything that is read part by part: see `outscope.io.sources`. Of more than 262,144 rows
        (or what fits into `memory`) a sample is learned from; `rows` sets its size, and "all" makes
        NNK detectors learn from every row, in bounded memory. They then write a `checkpoint` after
        each epoch, from which the same call resumes; `advance` is called with the number of rows
        seen.

        With `contamination` "auto", about 5 % of new in-scope rows will be flagged, as estimated
        from training rows scored as if they had not been learned from. A number is the share of
        the training rows that is flagged, as in scikit-learn; of new rows it can be many times
        that. (With up to 100 rows, each may be its own atom and none stranger than another.)
        """
        with all_or_nothing(self):
            for name in ("outside_", "witnesses_"):
                self.__dict__.pop(name, None)
            how = {"rows": rows, "memory": memory, "checkpoint": checkpoint, "advance": advance}
            super().fit(X, y, **how)  # type: ignore[arg-type]
            if outside is not None:
                try:
                    self.refuse(outside)
                except InputError as error:
                    raise InputError(f"outside: {error}") from error
                if not isinstance(self.contamination, str):
                    scores = self.ood_score(X)
                    self.offset_ = -quantile_threshold(scores, self.contamination)
        return self

    def _first_threshold(self, training: Training, scores: FloatArray | None) -> None:
        super()._first_threshold(training, scores)
        if training.held is not None:
            self._keep(training.X, training.held, self._base_score(training.held))

    def _held_out_scores(self, X: Matrix, y: Any, scores: FloatArray) -> FloatArray:
        """Scores of training rows as if not learned; after learning again, lessons are too."""
        base = super()._held_out_scores(X, y, scores)
        if len(X) < 2:
            return base
        judged = X[np.concatenate(self._judged_parts(len(X)))]
        self._keep(X, judged, base)
        if self._taught is None:
            return base
        self.outside_ = self._learned(self._taught)
        return self.outside_.told(base, judged, self._seeing).ood_score

    def _keep(self, learned: Matrix, judged: Matrix, base: FloatArray) -> None:
        if self.max_bytes is None:  # otherwise the model is to be as small as it was asked to be
            self.witnesses_ = Witnesses().seeing(learned).judging(judged, base)

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
        """Scores of in-scope rows without any teaching, as far as they are known."""
        kept = vars(self).get("witnesses_")
        if kept is None or not kept.has_judged:
            return self.held_out_scores_
        base: FloatArray = kept.base_scores_
        return base

    def _set_threshold_again(self, before: Self) -> None:
        """The same false-alarm rate as before, for scores after other lessons."""
        kept = vars(self).get("witnesses_")
        if kept is None or not kept.has_judged:
            self._withdraw()
            return
        seen = self._seeing(kept.judged.rows())
        old, new = (
            kept.base_scores_
            if one._taught is None
            else one._taught.told_of(kept.base_scores_, seen).ood_score
            for one in (before, self)
        )
        self.held_out_scores_ = np.sort(new)
        if "calibration_scores_" in vars(self):
            self.left_one_out_ = self.calibration_kind_ == LEFT_ONE_OUT
            conformal = ConformalThreshold(new)
            try:
                if self.promised_ is not None:
                    fpr, confidence = self.promised_
                    self._promise(conformal, self.calibration_kind_, float(fpr or 0), confidence)
                self.calibration_scores_ = conformal.scores
            except InputError:
                self._withdraw()  # too few of the calibration rows were kept
        elif rate := self._rate_in_use():
            self.offset_ -= estimated_cut(new, rate) - estimated_cut(old, rate)

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


def warn_of_doubt(pairs: Sequence[tuple[str, str]]) -> None:
    """Warn of examples to refuse that are also in scope, and name both sides."""
    if not pairs:
        return
    told = "; ".join(f"{one!r} is like {other!r}" for one, other in pairs[:NAMED])
    more = f"; and {len(pairs) - NAMED} more" if len(pairs) > NAMED else ""
    warnings.warn(
        f"told to refuse what is also in scope: {told}{more}. In-scope inputs like these may now "
        "be flagged; undo, or drop one of the two",
        InScopeExampleWarning,
        stacklevel=4,
    )

"""What all detectors share: fit, ood_score, a movable threshold, scikit-learn's methods."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
from sklearn.base import BaseEstimator, OutlierMixin, clone

from outscope._parameters import CONTAMINATION, JOBS, Rule, check_parameters
from outscope._sklearn import (
    Sized,
    all_or_nothing,
    check_is_fitted,
    check_labels,
    check_rows,
    scoring_rows,
)
from outscope._types import BoolArray, FloatArray, IntArray, Matrix
from outscope.decisions.threshold import (
    HELD_OUT,
    LEFT_ONE_OUT,
    ConformalThreshold,
    Promise,
    check_rate,
    estimated_cut,
    quantile_threshold,
)
from outscope.engine.blocks import NonFiniteRowsError
from outscope.engine.kernels.blas import one_thread_each
from outscope.errors import InputError
from outscope.io import models, schema

# The default false-alarm rate.
USUAL_RATE = 0.05
# At most this many training rows are scored as held out; bounds the cost and a model's size.
JUDGED_ROWS = 4096
# Up to this many rows are left out one by one; more, in this many parts.
ONE_BY_ONE, PARTS = 100, 5
ESTIMATE = "an estimate, no promise"


Result = TypeVar("Result")


class Reading(NamedTuple):
    """What one pass says about each row; None where the detector has no answer."""

    ood_score: FloatArray
    neighbors: IntArray | None = None  # (n, k) atoms or training rows, best first
    weights: FloatArray | None = None  # (n, k) non-negative
    classes: IntArray | None = None  # (n,) which class has the smallest score

    @property
    def code(self) -> tuple[IntArray, FloatArray]:
        """Atoms and weights, if the detector codes rows."""
        if self.neighbors is None or self.weights is None:
            raise InputError("this reading has no codes; take one of an NNK detector")
        return self.neighbors, self.weights


class Decision(NamedTuple):
    """What scores mean: yes or no and, if calibrated, how unusual."""

    is_ood: BoolArray
    p_value: FloatArray | None


class Detector(Sized, OutlierMixin, BaseEstimator):
    """Base of all detectors. Subclasses implement `_learn` and `_ood_score`.

    `ood_score` is higher for stranger rows. `score_samples`, `decision_function` and `predict`
    keep scikit-learn's signs: higher is more normal, +1 in scope, −1 out of scope.
    """

    contamination: float | str
    learns: ClassVar[bool] = True  # False: the score is a formula, and fit only sets the threshold
    _rows_are: ClassVar[str] = "embedding"
    _rules: dict[str, Rule] = {}
    # Every attribute that fit may set, for `load` to check; others are not saved.
    _fitted: ClassVar[dict[str, schema.Field]] = {
        "n_features_in_": schema.whole(1, "d"),
        "feature_names_in_": schema.maybe(schema.names("d")),
        "offset_": schema.number(),
        "held_out_scores_": schema.SCORES,
        "left_one_out_": schema.one_of(True, False),
        "calibration_scores_": schema.maybe(schema.SCORES),
        "calibration_kind_": schema.maybe(schema.one_of(HELD_OUT, LEFT_ONE_OUT)),
        "promised_": schema.PROMISE,
        "rate_": schema.maybe(schema.number(0.0, 1.0)),
    }
    # Whether rows are scaled to unit length, for detectors without such a parameter.
    _unit_rows: ClassVar[bool] = False

    @property
    def needs(self) -> str:
        """What a row of X is: "embedding", or classifier output such as "logits"."""
        return self._rows_are

    @abstractmethod
    def _learn(self, X: Matrix, y: Any) -> FloatArray:
        """Learn from checked rows and return their scores."""

    @abstractmethod
    def _ood_score(self, X: Matrix) -> FloatArray:
        """Scores of rows already known to have the right width."""

    def _score_without(self, X: Matrix, y: Any, chosen: IntArray) -> FloatArray:
        """Scores of some training rows as if never seen; here, by refitting without them."""
        rest = np.setdiff1d(np.arange(len(X)), chosen)
        other = clone(self)
        other.n_features_in_ = X.shape[1]
        other._learn(X[rest], None if y is None else check_labels(y, len(X))[rest])
        return other._ood_score(X[chosen])

    def _held_out_scores(self, X: Matrix, y: Any, scores: FloatArray) -> FloatArray:
        """Scores of training rows, each scored as if it had not been learned from."""
        if len(X) < 2:
            return scores
        order = np.random.RandomState(0).permutation(len(X))[:JUDGED_ROWS]
        parts = len(X) if len(X) <= ONE_BY_ONE and self._keeps_every_row() else PARTS
        found = [
            self._score_without(X, y, np.sort(chosen))
            for chosen in np.array_split(order, min(parts, len(X)))
        ]
        return np.concatenate(found)

    def _keeps_every_row(self) -> bool:
        """Whether every row learned from is an atom.

        Then adding a row never raises a score, so leave-one-out scores are as good as held-out ones
        (the jackknife-minmax argument of Barber et al. 2021).
        """
        return False

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn what is in scope and set a first, estimated threshold.

        With `contamination` "auto", about 5 % of new in-scope rows will be flagged, as estimated
        from training rows scored as if they had not been learned from. A number is the share of
        the training rows that is flagged, as in scikit-learn; of new rows it can be many times
        that. (With up to 100 rows, each may be its own atom and none stranger than another.)
        """
        check_parameters(self, {**self._rules, "contamination": CONTAMINATION})
        if hasattr(self, "n_jobs"):
            check_parameters(self, {"n_jobs": JOBS})
        # Threading is ours: BLAS results here are bitwise the same for any number of threads.
        with all_or_nothing(self), one_thread_each():
            rows = check_rows(self, X, reset=True)
            scores = self._learn(rows, y)
            self.held_out_scores_ = np.sort(self._held_out_scores(rows, y, scores))
            self.left_one_out_ = len(rows) <= ONE_BY_ONE and self._keeps_every_row()
            self._forget()
        for name in ("calibration_scores_", "calibration_kind_", "rate_", "stream_"):
            self.__dict__.pop(name, None)
        self.promised_: list[float | None] | None = None
        if isinstance(self.contamination, str):
            self.offset_ = -estimated_cut(self.held_out_scores_, USUAL_RATE)
        else:
            # Same rule as scikit-learn's own detectors, so that the same share is flagged.
            self.offset_ = -quantile_threshold(scores, self.contamination)
        return self

    def _forget(self) -> None:
        """Drop what only `fit` needed."""

    def ood_score(self, X: Any) -> FloatArray:
        """How strange each row is; higher = stranger."""
        return self._checked(X, self._ood_score)[1]

    def _checked(self, X: Any, work: Callable[[Matrix], Result]) -> tuple[Matrix, Result]:
        """Checked rows, and the result of `work` on them."""
        rows, checked = scoring_rows(self, X)
        try:
            return rows, work(rows)
        except NonFiniteRowsError:
            if not checked:
                check_rows(self, X, reset=False)  # tells NaN from infinity in the message
            raise

    def read(self, X: Any) -> Reading:
        """Everything one coding pass says about each row: score, code, class."""
        return self._reading_of(X)[1]

    def _reading_of(self, X: Any) -> tuple[Matrix, Reading]:
        return self._checked(X, self._read)

    def _read(self, X: Matrix) -> Reading:
        return Reading(self._ood_score(X))

    def labels_in(self, reading: Reading) -> np.ndarray[Any, Any] | None:
        """For each row read, the class it is most like; None if the detector knows no classes."""
        return None

    def rows_in(self, reading: Reading, n: int) -> list[tuple[int, ...]]:
        """For each row read, the training rows most like it, at most n."""
        return [()] * len(reading.ood_score)

    def decide(self, ood_score: FloatArray) -> Decision:
        """What scores mean at the current threshold; all decisions are made here."""
        check_is_fitted(self, "offset_")
        calibrated = getattr(self, "calibration_scores_", None)
        chances = None if calibrated is None else ConformalThreshold(calibrated).p_value(ood_score)
        return Decision(ood_score > self.threshold_, chances)

    def score_samples(self, X: Any) -> FloatArray:
        """scikit-learn's sign: higher = more normal."""
        return -self.ood_score(X)

    def decision_function(self, X: Any) -> FloatArray:
        """scikit-learn's sign: below 0 = out of scope."""
        scores = self.score_samples(X)
        return scores - self.offset_

    def predict(self, X: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
        """+1 in scope, −1 out of scope."""
        return np.where(self.is_ood(X), -1, 1)

    def is_ood(self, X: Any) -> BoolArray:
        """True where a row is out of scope at the current threshold."""
        return self.decide(self.ood_score(X)).is_ood

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

        Without rows, the training rows are used, each scored without itself. That is just as good
        if there are at most 100 and every one is an atom; otherwise it is refused.
        """
        if X is not None:
            found = ConformalThreshold(self.ood_score(X)), HELD_OUT
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
        self.held_out_scores_ = np.sort(self.ood_score(X))
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
            raise InputError("give set_threshold fpr=… or value=…, exactly one of the two")
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

    def remembered_rows(self) -> IntArray:
        """Training rows that the detector can point to; none for most detectors."""
        return np.empty(0, np.intp)

    def nearest_rows(self, X: Any, n: int) -> list[tuple[int, ...]]:
        """For each row, the training rows most like it, at most n, of those it can point to."""
        return self.rows_in(self.read(X), n)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted detector to a folder; `outscope.load` reads it back."""
        check_is_fitted(self, "offset_")
        models.write(path, self, self._notes())

    def _notes(self) -> dict[str, Any]:
        """What a reader of the manifest should see at a glance."""
        return {
            "detector": type(self).__name__,
            "n_features": int(self.n_features_in_),
            "normalize": bool(getattr(self, "normalize", self._unit_rows)),
            "kernel": getattr(self, "kernel", None),
            "needs": self.needs,
            "threshold": self.threshold_,
            "calibrated": self.promised_ is not None,
            "promise": str(self.promise_ or ESTIMATE),
        }

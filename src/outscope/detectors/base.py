"""What all detectors share: fit, ood_score, a movable threshold, scikit-learn's methods."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
from sklearn.base import OutlierMixin, clone

from outscope._parameters import CONTAMINATION, JOBS, Rule, check_parameters
from outscope._sklearn import (
    Sized,
    all_or_nothing,
    check_is_fitted,
    check_labels,
    check_rows,
    check_width,
    scoring_rows,
)
from outscope._types import BoolArray, FloatArray, IntArray, Matrix
from outscope.decisions.threshold import (
    HELD_OUT,
    LEFT_ONE_OUT,
    estimated_cut,
    quantile_threshold,
)
from outscope.detectors.away import Scores, for_workers
from outscope.detectors.explanation import Lesson, Told
from outscope.detectors.sampling import Training, rows_to_learn
from outscope.detectors.suspects import Suspecting
from outscope.detectors.thresholded import (
    ESTIMATE,
    ONE_BY_ONE,
    PARTS,
    USUAL_RATE,
    Thresholded,
)
from outscope.engine.blocks import NonFiniteRowsError
from outscope.engine.kernels.blas import one_thread_each
from outscope.engine.kernels.parallel import ahead
from outscope.errors import InputError
from outscope.io import models, schema
from outscope.io.cluster import ClusterSource
from outscope.io.sources import Source, as_source, fingerprint, reader, refuse_bad_rows
from outscope.learning.checkpoint import Checkpoint

# At most this many training rows are scored as held out; bounds the cost and a model's size.
JUDGED_ROWS = 4096


Result = TypeVar("Result")


class Reading(NamedTuple):
    """What one pass says about each row; None where the detector has no answer."""

    ood_score: FloatArray
    neighbors: IntArray | None = None  # (n, k) atoms or training rows, best first
    weights: FloatArray | None = None  # (n, k) non-negative
    classes: IntArray | None = None  # (n,) which class has the smallest score
    told: Told | None = None  # what examples to refuse and to accept made of the scores

    @property
    def code(self) -> tuple[IntArray, FloatArray]:
        """Atoms and weights, if the detector codes rows."""
        if self.neighbors is None or self.weights is None:
            raise InputError("this reading has no codes; take one of an NNK detector")
        return self.neighbors, self.weights


class Detector(Sized, OutlierMixin, Suspecting, Thresholded):
    """Base of all detectors. Subclasses implement `_learn` and `_ood_score`.

    `ood_score` is higher for stranger rows. `score_samples`, `decision_function` and `predict`
    keep scikit-learn's signs: higher is more normal, +1 in scope, −1 out of scope.
    """

    contamination: float | str
    _samples: ClassVar[bool] = False  # whether a large array is sampled by default
    _by_class: ClassVar[bool] = False  # whether a sample must have rows of every class
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
        "set_aside_": schema.maybe(schema.one_of(True)),
        "calibration_scores_": schema.maybe(schema.SCORES),
        "calibration_kind_": schema.maybe(schema.one_of(HELD_OUT, LEFT_ONE_OUT)),
        "promised_": schema.PROMISE,
        "rate_": schema.maybe(schema.number(0.0, 1.0)),
        **Suspecting._suspected,
    }
    # Whether rows are scaled to unit length, for detectors without such a parameter.
    _unit_rows: ClassVar[bool] = False

    @property
    def needs(self) -> str:
        """What a row of X is: "embedding", or classifier output such as "logits"."""
        return self._rows_are

    def _learn(self, X: Matrix, y: Any) -> FloatArray:
        """Learn from checked rows and return their scores."""
        raise NotImplementedError

    def _learn_from(self, training: Training) -> FloatArray | None:
        """Learn; return the scores of the rows in memory if they are at hand."""
        if training.source is not None:
            raise InputError(
                f"{type(self).__name__} needs its rows in memory: give rows='auto' or a number, "
                "and it learns from a sample of them"
            )
        return self._learn(training.X, training.y)

    @abstractmethod
    def _ood_score(self, X: Matrix) -> FloatArray:
        """Scores of rows already known to have the right width."""

    def _score_without(self, X: Matrix, y: Any, chosen: IntArray) -> FloatArray:
        """Scores of some training rows as if never seen; here, by refitting without them."""
        rest = np.setdiff1d(np.arange(len(X)), chosen)
        other = clone(self)
        other.n_features_in_ = X.shape[1]
        some = None if y is None else check_labels(y, len(X))[rest]
        other._learn_from(Training(X[rest], some))
        return other._ood_score(X[chosen])

    def _held_out_scores(self, X: Matrix, y: Any, scores: FloatArray) -> FloatArray:
        """Scores of training rows, each scored as if it had not been learned from."""
        if len(X) < 2:
            return self._ood_score(X)
        found = [self._score_without(X, y, chosen) for chosen in self._judged_parts(len(X))]
        return np.concatenate(found)

    def _judged_parts(self, n: int) -> list[IntArray]:
        """Which training rows are left out together, in the order of their held-out scores."""
        order = np.random.RandomState(0).permutation(n)[:JUDGED_ROWS]
        parts = n if n <= ONE_BY_ONE and self._keeps_every_row() else PARTS
        return [np.sort(chosen) for chosen in np.array_split(order, min(parts, n))]

    def _keeps_every_row(self) -> bool:
        """Whether every row learned from is an atom.

        Then adding a row never raises a score, so leave-one-out scores are as good as held-out ones
        (the jackknife-minmax argument of Barber et al. 2021).
        """
        return False

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        rows: int | str = "auto",
        memory: int | str = "1GB",
        checkpoint: str | os.PathLike[str] | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> Self:
        """Learn what is in scope and set a first, estimated threshold.

        X is an array, or anything that is read part by part: see `outscope.io.sources`. Of more
        than 262,144 rows (or what fits into `memory`) a sample is learned from; `rows` sets its
        size, and "all" makes NNK detectors learn from every row, in bounded memory. They then write
        a `checkpoint` after each epoch, from which the same call resumes; `advance` is called with
        the number of rows seen.

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
            table = self._table(X)
            kept = None
            if checkpoint is not None:
                settings = {
                    name: value
                    for name, value in self.get_params().items()
                    if name not in ("random_state", "n_jobs", "contamination")
                }
                about = (type(self).__name__, settings, fingerprint(table), rows, memory)
                kept = Checkpoint(checkpoint, about)
            training = rows_to_learn(
                table,
                y,
                rows=rows,
                memory=memory,
                random_state=getattr(self, "random_state", 0),
                by_class=self._by_class,
                checkpoint=kept,
                advance=advance,
                samples=self._samples,
            )
            scores = self._learn_from(training)
            self._first_threshold(training, scores)
            self._judge_sample(training, len(table))
            self._forget()
            if kept is not None:
                kept.remove()
        return self

    def _table(self, X: Any) -> Matrix | Source:
        """Checked rows in memory, or a source whose parts are checked as they are read."""
        source = as_source(X)
        if source is None:
            return check_rows(self, X, reset=True)
        self.n_features_in_ = source.width
        self.__dict__.pop("feature_names_in_", None)
        return source

    def _first_threshold(self, training: Training, scores: FloatArray | None) -> None:
        """Set the threshold after learning; it promises nothing."""
        if training.held is not None:
            held, whole = self._ood_score(training.held), False
            self.set_aside_ = True
        else:
            self.__dict__.pop("set_aside_", None)
            known = np.empty(0) if scores is None else scores
            held = self._held_out_scores(training.X, training.y, known)
            whole = len(training.X) <= ONE_BY_ONE and self._keeps_every_row()
        self.held_out_scores_, self.left_one_out_ = np.sort(held), whole
        for name in ("calibration_scores_", "calibration_kind_", "rate_", "stream_", "suspects_"):
            self.__dict__.pop(name, None)
        self.promised_ = None
        if isinstance(self.contamination, str):
            self.offset_ = -estimated_cut(self.held_out_scores_, USUAL_RATE)
        else:
            # Same rule as scikit-learn's own detectors, so that the same share is flagged.
            scores = self._ood_score(training.X) if scores is None else scores
            self.offset_ = -quantile_threshold(scores, self.contamination)

    def _judge_sample(self, training: Training, n_rows: int) -> None:
        """Remember what was learned from and, for a sample, what more rows would gain."""

    def _forget(self) -> None:
        """Drop what only `fit` needed."""

    def ood_score(self, X: Any) -> FloatArray:
        """How strange each row is; higher = stranger.

        Rows that do not fit in memory are read part by part: X may be a file, folder or pattern of
        .npy or .parquet files, a dataset, or a function that starts an iterator of matrices.
        """
        source = as_source(X)
        if source is None:
            return self._checked(X, self._ood_score)[1]
        return np.concatenate([*self.score_parts(source)])

    def score_parts(
        self, source: Source, chosen: Sequence[int] | None = None
    ) -> Iterator[FloatArray]:
        """Scores of every part of a source, or of the chosen ones; the next part is read ahead."""
        check_is_fitted(self, "offset_")
        check_width(self, source.width)
        if isinstance(source, ClusterSource):
            yield from source.each(Scores(for_workers(self)), chosen)
            return
        parts = range(len(source.parts)) if chosen is None else chosen
        blocks = ahead(reader(source), parts)
        for part in parts:
            rows = next(blocks)
            try:
                scores = self._checked(rows, self._ood_score)[1]
            except InputError:
                refuse_bad_rows(source, part, rows)
                raise
            del rows  # before the part after the next one is read
            yield scores

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

    @property
    def lessons_(self) -> tuple[Lesson, ...]:
        """What was taught and not taken back, the oldest first; most detectors are not taught."""
        return ()

    def refused_in(self, reading: Reading) -> list[str | None]:
        """For each row read, the refused example for which it is out of scope, if any."""
        return [None] * len(reading.ood_score)

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

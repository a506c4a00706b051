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
from outscope.decisions.threshold import quantile_threshold
from outscope.detectors.base import Reading
from outscope.detectors.explanation import Lesson
from outscope.detectors.outside import ACCEPT, REFUSE, Outside, Seeing, Usual
from outscope.detectors.rethreshold import Rethresholded
from outscope.engine.kernels.blas import one_thread_each
from outscope.errors import InputError, InScopeExampleWarning
from outscope.io.sources import as_source
from outscope.learning.dictionary import NNKMeans
from outscope.learning.loop import learn
from outscope.learning.rows import EPOCH_ROWS, Rows, size_for
from outscope.learning.view import View

# An outside example is in doubt if it looks more familiar than this share of in-scope rows.
DOUBTFUL = 0.1
# Every example is an atom up to so many; of more, a quarter, but no fewer than these.
EVERY_EXAMPLE = 400
# Pairs named in one warning.
NAMED = 3


class TaughtDetector(Rethresholded):
    """Base of detectors that take examples of what to refuse, and of what to accept after all.

    A row near a refused example gets a higher score; elsewhere scores are as before. The threshold
    is set again from in-scope rows that are kept for it (`witnesses_`), so a promise still holds.
    """

    n_jobs: int | None
    common_: Any
    _view: View
    _k: int

    # ---- what a subclass does

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
        called = [f"X[{i}]" for i in range(len(X))] if names is None else list(names)
        found, doubtful = self.after(REFUSE, X, names), self.also_in_scope(X)
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
        with one_thread_each():
            base = self._base_score(outside.examples)
            return outside.learned(self._seeing, self._learn_side, self._usual(), base)

    def _usual(self) -> Usual:
        """What in-scope rows are like; without witnesses, as far as atoms tell."""
        kept, reach = vars(self).get("witnesses_"), float(np.median(self._usual_scores()))
        if kept is not None:
            return Usual(self._seeing(kept.usual.rows()), kept.usual_scores_, reach)
        atoms = np.asarray(self.atoms_)
        return Usual(atoms, np.full(len(atoms), reach), reach)

    def _learn_side(self, seen: Matrix) -> NNKMeans:
        """A dictionary of examples, learned and pruned like the one of in-scope rows."""
        size = min(len(seen), max(EVERY_EXAMPLE, size_for("auto", len(seen))))
        one = self._dictionary(
            n_atoms=size, max_atoms=None, max_bytes=None, init="k-means++", random_state=0
        )
        rows = Rows(seen, normalize=one.normalize, n_jobs=self.n_jobs)
        learner = one.begin(rows, self.plan_.of_size(size), size, np.random.RandomState(0))
        one.finish(learner, learn([learner], rows)[0])
        one.forget()
        return one

    @property
    def _seeing(self) -> Seeing:
        return Seeing(self._view, self.common_, self._k, self.n_jobs)

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

        It is named if it decided, or if the row is clearly like it: nearer to it than to what is
        in scope, and within the threshold or at half the distance.
        """
        outside, told = self._taught, reading.told
        if outside is None or told is None:
            return [None] * len(reading.ood_score)
        cut = self.threshold_
        near = np.maximum(np.minimum(told.base, cut), told.base / 2.0)
        decided = (told.base <= cut) | (told.distance <= near)
        named = decided & (told.ood_score > cut)
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
                self._refuse_from_start(X, outside)
                if not isinstance(self.contamination, str):
                    scores = self.ood_score(X)
                    self.offset_ = -quantile_threshold(scores, self.contamination)
        return self

    def _refuse_from_start(self, X: Any, outside: Any) -> None:
        """Refuse rows while the training rows are at hand, so that every copy is found."""
        try:
            found, doubtful = self.after(REFUSE, outside), dict(self.also_in_scope(outside))
        except InputError as error:
            raise InputError(f"outside: {error}") from error
        if as_source(X) is None:
            known = {row.tobytes(): i for i, row in enumerate(np.asarray(X, np.float32))}
            told = (row.tobytes() for row in np.asarray(outside, np.float32))
            doubtful |= {i: known[row] for i, row in enumerate(told) if row in known}
        warn_of_doubt([(f"outside[{i}]", f"training row {j}") for i, j in sorted(doubtful.items())])
        self._become(found)


def warn_of_doubt(pairs: Sequence[tuple[str, str]]) -> None:
    """Warn of examples to refuse that are also in scope, and name both sides."""
    if not pairs:
        return
    told = "; ".join(f"{one!r} is like {other!r}" for one, other in pairs[:NAMED])
    more = f"; and {len(pairs) - NAMED} more" if len(pairs) > NAMED else ""
    warnings.warn(
        f"examples to refuse look like what is in scope: {told}{more}. In-scope inputs like these "
        "may now be flagged, and the threshold may rise, so that other strange inputs pass; undo, "
        "or drop one of the two",
        InScopeExampleWarning,
        stacklevel=4,
    )

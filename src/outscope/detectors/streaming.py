"""`partial_fit`: a detector that goes on learning from blocks of new rows."""

from __future__ import annotations

import copy
from typing import Any, Self

import numpy as np
from sklearn.utils import check_random_state

from outscope._parameters import CONTAMINATION, POSITIVE, check_parameters, one_of
from outscope._sklearn import all_or_nothing, check_labels, check_rows
from outscope._types import BoolArray, FloatArray, IntArray, Matrix
from outscope.decisions.threshold import estimated_cut, without_strange
from outscope.detectors.base import Detector
from outscope.detectors.sampling import Training
from outscope.detectors.thresholded import USUAL_RATE
from outscope.engine.kernels.blas import one_thread_each
from outscope.errors import InputError
from outscope.io import schema
from outscope.io.sources import as_source, checked
from outscope.learning import stream as learning
from outscope.learning.dictionary import NNKMeans, learnable
from outscope.learning.plan import Plan
from outscope.learning.rows import EPOCH_ROWS
from outscope.learning.stream import KEPT_ROWS, KEPT_SCORES, News, Stream

# Learned again once there are a quarter as many new rows as there were at the last time.
GROWTH = 0.25


class StreamingDetector(Detector):
    """Base of detectors that can go on learning. Subclasses name their dictionaries and classes."""

    _fitted = {**Detector._fitted, "stream_": schema.maybe(schema.nested("Stream"))}
    random_state: Any
    normalize: bool
    stream_: Stream

    plan_: Any
    representatives_: Any

    # ---- what a subclass says about itself

    def _dictionaries(self) -> list[NNKMeans]:
        raise NotImplementedError

    def _put(self, dictionaries: list[NNKMeans]) -> None:
        raise NotImplementedError

    def _known_labels(self) -> np.ndarray[Any, Any] | None:
        """All labels, in ascending order; None without labels."""
        raise NotImplementedError

    def _meet(self, labels: np.ndarray[Any, Any]) -> None:
        """Prepare for these labels, some of which are new."""
        raise NotImplementedError

    def _owners(self, membership: IntArray) -> IntArray:
        """Which dictionary learns each row."""
        return np.zeros(len(membership), np.intp)

    def _vouched(self, labels: np.ndarray[Any, Any]) -> BoolArray:
        """Rows whose label alone says that they are in scope."""
        return np.zeros(len(labels), dtype=bool)

    def _name_rows(self, before: IntArray, numbers: IntArray, membership: IntArray) -> None:
        """Learn the labels of new rows, for explanations."""

    def _seen(self, X: Matrix) -> Matrix:
        raise NotImplementedError

    def prepare(self) -> None:
        """Build what scoring needs from the fitted attributes."""

    # ---- going on

    @property
    def rows_seen_(self) -> int:
        """Rows of all calls; representatives are numbered by their place among them."""
        return int(self.stream_.rows_seen_)

    @property
    def rows_passed_over_(self) -> int:
        """Rows that the guard left out."""
        return int(self.stream_.passed_over_)

    @property
    def stream_bytes_(self) -> int:
        """Bytes beyond `stored_bytes_` that a saved model takes to go on learning."""
        beside = ("atom_mass_", "atom_leaning_", "exact_atoms_")
        arrays = [vars(one).get(name) for one in self._dictionaries() for name in beside]
        own = self.stream_.stored_bytes if "stream_" in vars(self) else 0
        return own + sum(int(array.nbytes) for array in arrays if array is not None)

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        *,
        guard: bool | str = "auto",
        half_life: float | None = None,
    ) -> Self:
        """Go on learning from new rows, without the old ones; on an unfitted detector, start.

        guard : leave out rows that the present threshold flags, so that strange rows in the stream
            are not learned. "auto" does so once `fit` or `calibrate` was called: until then, all
            rows are training rows.
        half_life : number of rows after which a row counts half; None forgets nothing.

        Up to 8,192 rows are kept, and whenever they are a quarter more, the plan is made and
        the dictionary learned again from all of them; beyond that, the plan is settled, each block
        is learned once, and some of its rows become atoms, up to the planned size.

        Every row is scored before it is learned; the threshold is an estimate from the latest such
        scores (`held_out_scores_`), at the rate that was asked for. What `calibrate` promised no
        longer holds: `promise_` is None until you calibrate again. A threshold that was set to a
        value stays.
        """
        check_parameters(self, {**self._rules, "contamination": CONTAMINATION})
        _check_options(guard, half_life)
        source = as_source(X)
        if source is not None:
            with all_or_nothing(self):
                first, labels = 0, None if y is None else check_labels(y, len(source))
                for i, (_, _, n) in enumerate(source.parts):
                    mine = None if labels is None else labels[first : first + n]
                    self.partial_fit(checked(source, i), mine, guard=guard, half_life=half_life)
                    first += n
            return self
        with all_or_nothing(self), one_thread_each():
            if not hasattr(self, "offset_"):
                return self._start(X, y)
            rows = check_rows(self, X, reset=False)
            labels = None if y is None else check_labels(y, len(rows))
            self._put([copy.copy(one) for one in self._dictionaries()])
            if "stream_" in vars(self):
                self.stream_ = copy.copy(self.stream_)
            else:
                self._continue_from_fit(labels is not None)
            if self.promised_ is not None:
                self._trust(self.calibration_scores_)
            self._refuse_other_labels(labels)
            rate = self._rate_in_use()
            for first in range(0, len(rows), EPOCH_ROWS):
                part = slice(first, first + EPOCH_ROWS)
                mine = None if labels is None else labels[part]
                self._take_in(rows[part], mine, guard, half_life, rate)
        return self

    def _start(self, X: Any, y: Any) -> Self:
        """The first rows are fitted as usual, and kept."""
        self.fit(X, y)
        rows = check_rows(self, X, reset=False)
        self._new_stream(y is not None)
        stream = self.stream_
        labels = None if y is None else check_labels(y, len(rows))
        codes = self._numbered(labels, len(rows))
        if len(rows) <= KEPT_ROWS:
            stream.keep(rows, codes, np.arange(len(rows)), np.ones(len(rows), bool))
        else:
            stream.drop()
        stream.rows_seen_ = stream.planned_rows_ = len(rows)
        return self

    def _continue_from_fit(self, with_labels: bool) -> None:
        """A stream that goes on from a detector whose rows are gone."""
        known = self._known_labels()
        self._new_stream(known is not None and (with_labels or len(known) > 1))
        self.stream_.drop()
        self._trust(self.held_out_scores_)
        rows = sum(learning.remembered(one) for one in self._dictionaries())
        self.stream_.rows_seen_ = max(round(rows), int(self.remembered_rows().max(initial=-1)) + 1)

    def _new_stream(self, labelled: bool) -> None:
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.stream_ = stream = Stream().started(self.n_features_in_, seed, labelled=labelled)
        # Sorted scores would be dropped from the bottom.
        stream.note(np.random.RandomState(0).permutation(self.held_out_scores_), np.inf)
        stream.reference_scores_ = np.sort(stream.recent_scores_)

    def _trust(self, scores: FloatArray) -> None:
        """From now on, rows are guarded: these scores are of rows in scope."""
        self.stream_.guarded_, self.stream_.reference_scores_ = True, np.sort(scores)

    def _take_in(
        self,
        X: Matrix,
        labels: Any,
        guard: bool | str,
        half_life: float | None,
        rate: float,
    ) -> None:
        """One block: score it, leave out what is strange, forget a little, learn the rest."""
        stream = self.stream_
        rng = stream.rng()
        scores = self._ood_score(X)
        free = not (stream.guarded_ if guard == "auto" else guard)
        taken = np.ones(len(X), dtype=bool) if free else ~self.decide(scores).is_ood
        if labels is not None:
            taken |= self._vouched(labels)
        numbers = int(stream.rows_seen_) + np.arange(len(X))
        stream.rows_seen_ += len(X)
        stream.passed_over_ += int(np.count_nonzero(~taken))
        rows = sum(learning.remembered(one) for one in self._dictionaries())
        stream.note(scores, rows + len(X))
        if free and not stream.guarded_ and not stream.passed_over_:
            stream.reference_scores_ = np.sort(stream.recent_scores_)
        if half_life is not None:
            share = 0.5 ** (len(X) / half_life)
            stream.fade(share, rng)
            for one in self._dictionaries():
                learning.fade(one, share)
        membership = self._numbered(labels, len(X))
        if stream.kept_rows_ is not None:
            stream.keep(X, membership, numbers, taken)
        if taken.any() and not self._learn_again_if_due(int(np.count_nonzero(taken))):
            self._learn_block(X[taken], membership[taken], numbers[taken], rng)
        self._estimate_again(rate)

    def _learn_block(
        self, X: Matrix, membership: IntArray, numbers: IntArray, rng: np.random.RandomState
    ) -> None:
        """Add new rows to what the dictionaries already stand for."""
        seen = self._seen(X)
        owner, before = self._owners(membership), self.representatives_
        plan: Plan = self.plan_
        dictionaries = self._dictionaries()
        counts = np.bincount(owner, minlength=len(dictionaries))
        rows = counts + [learning.remembered(one) for one in dictionaries]
        for c, one in enumerate(dictionaries):
            limit = learning.limit_of(one, plan, rows[c], rows.sum())
            mine = owner == c
            if mine.any():
                own = seen[mine]
                news = News(own, learnable(own, normalize=one.normalize), numbers[mine])
                learning.go_on(one, news, plan, limit, rng)
            else:
                learning.trim(one, plan, limit)
        self._name_rows(before, numbers, membership)
        self.prepare()

    def _learn_again_if_due(self, n_new: int) -> bool:
        """Whether there were enough new rows to plan and learn again from all that are kept."""
        stream = self.stream_
        stream.new_rows_ += n_new
        full = len(stream.kept_numbers_) > KEPT_ROWS
        due = full or stream.new_rows_ >= GROWTH * stream.planned_rows_
        if stream.kept_rows_ is None or not due:
            return False
        self._learn_again(stream.kept_rows_)
        if full:
            stream.drop()
        return True

    def _learn_again(self, kept: Matrix) -> None:
        """As `fit` does; rows that were passed over are judged again."""
        stream = self.stream_
        again = ~stream.kept_learned_
        if again.any():
            stream.kept_learned_ = stream.kept_learned_.copy()
            stream.kept_learned_[again] = ~self.decide(self._ood_score(kept[again])).is_ood
        learned = stream.kept_learned_
        rows, numbers = kept[learned], stream.kept_numbers_[learned]
        names, y = self._known_labels() if stream.labelled_ else None, None
        if names is not None:
            y = names[stream.kept_labels_[learned]]
        self._learn_from(Training(rows, y))
        held = self._held_out_scores(rows, y, np.empty(0))
        self._forget()
        for one in self._dictionaries():
            found = one.representatives_
            one.representatives_ = np.where(found >= 0, numbers[found], -1)
        known = self._known_labels()
        if names is not None and known is not None:
            # A row that was passed over may have had a label of its own.
            stream.keep_only(np.isin(names, known)[stream.kept_labels_])
            moved = np.searchsorted(known, names)
            stream.kept_labels_ = moved[stream.kept_labels_]
            stream.young_ = moved[stream.young_[np.isin(names[stream.young_], known)]]
        order = np.random.RandomState(0).permutation
        if not learned.all():
            # Rows that were passed over, at their share of all.
            rest = order(self._ood_score(kept[~learned]))
            held = np.concatenate([held, rest[: round(len(held) * len(rest) / len(rows))]])
        stream.recent_scores_ = order(held)[-KEPT_SCORES:]
        stream.planned_rows_, stream.new_rows_ = len(rows), 0

    # ---- the threshold

    def _rate_in_use(self) -> float:
        """The false-alarm rate that the present threshold was asked for; 0 if it was a score."""
        promised = vars(self).get("promised_")
        if promised is not None:
            return float(promised[0])
        if "rate_" in vars(self):
            return float(self.rate_ or 0.0)
        return USUAL_RATE if isinstance(self.contamination, str) else float(self.contamination)

    def _estimate_again(self, rate: float) -> None:
        """Set the threshold from scores of rows that were not yet learned."""
        stream = self.stream_
        scores = np.sort(stream.recent_scores_)
        if stream.passed_over_:
            scores = without_strange(scores, stream.reference_scores_)
        self.held_out_scores_ = scores
        if rate:
            self.offset_ = -estimated_cut(self.held_out_scores_, rate)
        self.rate_, self.promised_, self.left_one_out_ = rate or None, None, False
        for name in ("calibration_scores_", "calibration_kind_"):
            self.__dict__.pop(name, None)

    # ---- labels

    def _numbered(self, labels: Any, n: int) -> IntArray:
        """Labels as numbers among all that are known; new ones find their place."""
        known = self._known_labels()
        if labels is None or known is None:
            return np.zeros(n, np.int64)
        together = np.union1d(known, labels)
        if len(together) > len(known):
            stream = self.stream_
            moved = np.searchsorted(together, known)
            stream.kept_labels_, stream.young_ = moved[stream.kept_labels_], moved[stream.young_]
            if stream.guarded_:
                new = np.flatnonzero(~np.isin(together, known))
                stream.young_ = np.concatenate([stream.young_, new])
            self._meet(together)
        return np.asarray(np.searchsorted(together, labels))

    def _refuse_other_labels(self, labels: Any) -> None:
        """Labels come with all rows or with none, and are of one type."""
        if self.stream_.labelled_ != (labels is not None):
            has = "has" if self.stream_.labelled_ else "has no"
            raise InputError(f"this detector {has} labels; give y with every call or with none")
        known = self._known_labels()
        numbers = np.concatenate([self.stream_.kept_labels_, self.stream_.young_])
        if numbers.max(initial=0) >= (1 if known is None else len(known)):
            raise InputError("the rows kept in this model have labels that it does not know")
        if labels is not None and known is not None:
            kinds = {"U": "U", "b": "b"}
            if kinds.get(labels.dtype.kind) != kinds.get(known.dtype.kind):
                raise InputError(
                    f"y holds labels of type {labels.dtype}, earlier ones were {known.dtype}; "
                    "give labels of one type"
                )


def labels_of(wanted: IntArray, numbers: IntArray, labels: IntArray) -> IntArray:
    """The labels of rows that are known by their numbers; −1 for no row."""
    order = np.argsort(numbers, kind="stable")
    place = np.searchsorted(numbers[order], wanted)
    return np.where(wanted >= 0, labels[order][np.minimum(place, len(order) - 1)], -1)


def _check_options(guard: Any, half_life: Any) -> None:
    if not one_of("auto", True, False).passes(guard):
        raise InputError(f"guard={guard!r} is not valid: expected 'auto', True or False")
    if half_life is not None and not POSITIVE.passes(half_life):
        raise InputError(
            f"half_life={half_life!r} is not valid: expected a number of rows above 0, or None"
        )

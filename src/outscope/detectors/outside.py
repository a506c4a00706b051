"""What a detector was told: examples to refuse and to accept, and what they do to scores."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator

from outscope._types import BoolArray, FloatArray, IntArray, Matrix
from outscope.detectors.explanation import Lesson, Told
from outscope.detectors.rounded import Rounded, rounded
from outscope.engine.coder import Coder
from outscope.errors import InputError
from outscope.io import schema
from outscope.learning.dictionary import NNKMeans
from outscope.learning.rows import Rows
from outscope.learning.view import View

REFUSE, ACCEPT = "refuse", "accept"
# The margin between what is refused and what is in scope that this share of in-scope rows does not
# have, and the part of what a row lacks to it that its score gets on top. Fewer examples than
# ENOUGH say less of what is outside: the share is smaller in proportion. RARE in-scope rows may
# exceed a bound, and the bound is above what they exceed anyway by this SLACK, as a share of what
# lies between there and the median. Chosen on other draws of classes: see docs/teach.md.
USUALLY, WEIGHT = 0.15, 0.5
ENOUGH, RARE, SLACK = 20, 0.05, 0.1
# An example counts as the same as another within this distance, as a share of the usual one.
SAME = 0.1
MOST_EXAMPLES = 10_000


# Learns a dictionary from rows as a detector sees them.
Learn = Callable[[Matrix], NNKMeans]


class Usual(NamedTuple):
    """What in-scope rows are like."""

    rows: Matrix  # as seen
    scores: FloatArray  # of these rows, as if they had not been learned from
    reach: float  # the score that half of them have at most


class Seeing(NamedTuple):
    """How a detector sees rows and codes them."""

    view: View
    common: Matrix | None  # what it discounts in all rows
    n_neighbors: int
    n_jobs: int | None

    def __call__(self, X: Matrix) -> Matrix:
        """The rows as seen."""
        return self.view(X, self.n_jobs)


def _are_verbs(value: Any, seen: schema.Seen) -> bool:
    known = isinstance(value, list) and all(verb in (REFUSE, ACCEPT) for verb in value)
    lessons = seen["lesson_"]
    return known and bool(
        (np.diff(lessons) >= 0).all() and np.array_equal(np.unique(lessons), np.arange(len(value)))
    )


def _is_side(value: Any, seen: schema.Seen) -> bool:
    """A dictionary whose representatives are examples, or None."""
    if value is None:
        return True
    behind = schema.nested("NNKMeans").passes(value, seen) and value.representatives_
    return behind is not False and bool(behind.max() < seen["e"])


class Outside(BaseEstimator):
    """Lessons, and one small dictionary of the refused examples and one of the accepted ones.

    It never changes once it is made: `after` and `before_last` return another one, so that scoring
    may go on meanwhile.
    """

    _fitted = {
        "n_features_in_": schema.whole(1, "d"),
        "rows_": schema.array("e d", "int8"),
        "scale_": schema.array("e", "float64", low=0.0),
        "lesson_": schema.integers("e", 0),
        "verbs_": schema.Field(_are_verbs, "a verb for each lesson"),
        "names_": schema.texts("e"),
        "refused_": schema.Field(_is_side, "a dictionary of examples, or None"),
        "accepted_": schema.Field(_is_side, "a dictionary of examples, or None"),
        "level_": schema.number(),
        "reach_": schema.number(),
    }

    # ---- lessons

    @classmethod
    def empty(cls, width: int) -> Self:
        """No lessons yet."""
        new = cls()
        new.n_features_in_ = width
        new.rows_, new.scale_ = np.empty((0, width), np.int8), np.empty(0)
        new.lesson_, new.verbs_, new.names_ = np.empty(0, np.int64), [], []
        return new

    def after(self, verb: str, X: Matrix, names: Sequence[str] | None) -> Self:
        """With one more lesson; not learned yet."""
        first = len(self.names_)
        if first + len(X) > MOST_EXAMPLES:
            raise InputError(
                f"X has {len(X):,} examples and {first:,} were given before, more than "
                f"{MOST_EXAMPLES:,} together; give a sample of them"
            )
        if names is None:
            names = [f"example {first + i + 1}" for i in range(len(X))]
        if len(names) != len(X):
            raise InputError(f"names has {len(names)} entries for {len(X)} rows; give one for each")
        kept, new = rounded(X), type(self)()
        new.n_features_in_ = self.n_features_in_
        new.rows_ = np.concatenate([self.rows_, kept.numbers])
        new.scale_ = np.concatenate([self.scale_, kept.scale])
        new.lesson_ = np.concatenate([self.lesson_, np.full(len(X), len(self.verbs_))])
        new.verbs_, new.names_ = [*self.verbs_, verb], [*self.names_, *map(str, names)]
        return new

    def before_last(self) -> Self | None:
        """Without the last lesson; not learned yet. None if that was the only one."""
        if len(self.verbs_) == 1:
            return None
        kept, new = self.lesson_ < len(self.verbs_) - 1, type(self)()
        new.n_features_in_ = self.n_features_in_
        new.rows_, new.scale_, new.lesson_ = self.rows_[kept], self.scale_[kept], self.lesson_[kept]
        new.verbs_, new.names_ = self.verbs_[:-1], self.names_[: int(kept.sum())]
        return new

    @property
    def lessons(self) -> tuple[Lesson, ...]:
        """All lessons, the oldest first."""
        starts = np.searchsorted(self.lesson_, np.arange(len(self.verbs_) + 1))
        return tuple(
            Lesson(verb, tuple(self.names_[starts[i] : starts[i + 1]]))
            for i, verb in enumerate(self.verbs_)
        )

    @property
    def examples(self) -> Matrix:
        """All examples, the oldest first."""
        return Rounded(self.rows_, self.scale_).rows()

    # ---- learning

    def learned(self, seeing: Seeing, learn: Learn, usual: Usual, base: FloatArray) -> Self:
        """Ready to score; `base` are the scores of the examples themselves before any lesson."""
        seen = seeing(self.examples)
        says = np.array([self.verbs_[lesson] == REFUSE for lesson in self.lesson_])
        holds, new = self._in_force(seen, says, learn, usual.reach), copy.copy(self)
        new.refused_ = _side(seen, np.flatnonzero(holds & says), learn)
        new.accepted_ = _side(seen, np.flatnonzero(holds & ~says), learn)
        new.level_, new.reach_ = 0.0, float(usual.reach)
        new.ready(seeing)
        if new.refused_ is not None:
            margin = new._against(new._refused, usual.rows)[0] - usual.scores
            new.level_ = _level(margin, usual.scores, base[holds & says])
        return new

    def ready(self, seeing: Seeing) -> None:
        """Build what scoring needs (after learning or loading)."""
        sides = (self.refused_, self.accepted_)
        self._refused, self._accepted = (s and s.coder(seeing.common) for s in sides)
        self._k, self._n_jobs = seeing.n_neighbors, seeing.n_jobs

    def _in_force(self, seen: Matrix, says: BoolArray, learn: Learn, reach: float) -> BoolArray:
        """Examples that no later lesson contradicts: the last word on the same thing counts."""
        holds = np.ones(len(says), dtype=bool)
        for lesson in range(1, len(self.verbs_)):
            mine = self.lesson_ == lesson
            against = (self.lesson_ < lesson) & (says != (self.verbs_[lesson] == REFUSE))
            if not against.any():
                continue
            against = np.flatnonzero(against)
            distance = learn(seen[mine]).coder().ood_score(seen[against], 1, 1)
            holds[against[distance <= SAME * abs(reach)]] = False
        return holds

    # ---- scoring

    def told(self, base: FloatArray, X: Matrix, seeing: Seeing) -> Told:
        """What these lessons make of the scores of rows."""
        return self.told_of(base, seeing(rounded(X).rows()))

    def told_of(self, base: FloatArray, seen: Matrix) -> Told:
        """The same for rows already rounded and seen.

        A row's distance to what is refused is its score if the refused examples were all that is
        in scope. Where that is less than its own score and the usual margin, the row gets half of
        the difference on top. Accepted examples count only where they are within reach, and nearer
        than refused ones; there they lower the score to what they give alone. Elsewhere no score
        is ever lowered.
        """
        distance, atom = self._against(self._refused, seen)
        score, lacking = base, np.maximum(0.0, self.level_ + base - distance)
        if self._accepted is not None:
            accepted = self._against(self._accepted, seen)[0]
            vouched = (accepted <= self.reach_) & (accepted <= distance)
            lacking[vouched] = 0.0
            score = np.where(vouched, np.minimum(base, accepted), base)
        like = np.full(len(seen), -1)
        if self.refused_ is not None:
            like = np.where(lacking > 0.0, self.refused_.representatives_[atom, 0], -1)
        return Told(score + WEIGHT * lacking, base, distance, like)

    def _against(self, coder: Coder | None, seen: Matrix) -> tuple[FloatArray, IntArray]:
        """Scores against some examples alone, and each row's heaviest atom."""
        if coder is None:
            return np.full(len(seen), np.inf), np.full(len(seen), -1)
        codes = coder.code(seen, self._k, self._n_jobs, relative=True)
        heaviest = codes.weights.argmax(axis=1)[:, None]
        return codes.ood_score, np.take_along_axis(codes.neighbors, heaviest, axis=1)[:, 0]

    def refused_names(self, refused: IntArray) -> list[str | None]:
        """The names of examples, None where there is none."""
        return [None if i < 0 else self.names_[i] for i in refused.tolist()]

    @property
    def stored_bytes_(self) -> int:
        """Bytes of what scores depend on."""
        sides = (self.refused_, self.accepted_)
        return sum(side.stored_bytes_ for side in sides if side is not None)

    @property
    def ledger_bytes(self) -> int:
        """Bytes of the examples themselves, kept so that lessons can be taken back."""
        return int(self.rows_.nbytes + self.scale_.nbytes + self.lesson_.nbytes)


def _level(margins: FloatArray, scores: FloatArray, told: FloatArray) -> float:
    """The margin below which rows are raised, from those of in-scope rows and their scores.

    A lesson that lifts in-scope rows lifts the threshold, and what it does not lift is missed. So
    the level is no higher than keeps all but few in-scope rows within their usual bound. Yet half
    of the examples are to score above all of these rows, as far as the usual margin allows; `told`
    are the scores of examples.
    """
    share = USUALLY * min(1.0, len(told) / ENOUGH)
    typical, high = np.quantile(scores, [0.5, 1.0 - RARE])
    bound = high + SLACK * (high - typical)
    crossing = np.where(scores > bound, -np.inf, margins + (bound - scores) / WEIGHT)
    allowed = np.quantile(crossing, RARE, method="higher")
    needed = np.quantile((scores.max() - told) / WEIGHT - told, 0.5, method="higher")
    least = min(needed, np.quantile(margins, USUALLY))
    return float(max(least, min(np.quantile(margins, share), allowed)))


def _side(seen: Matrix, chosen: IntArray, learn: Learn) -> NNKMeans | None:
    """A dictionary of some examples; each atom knows the examples behind it."""
    if not len(chosen):
        return None
    side = learn(seen[chosen])
    behind = side.representatives_
    # A copy of another example is an atom that no row needs; it still stands for an example.
    alone = np.flatnonzero(behind[:, 0] < 0)
    rows = Rows(seen[chosen], normalize=side.normalize).all()
    for i in alone:
        behind[i, 0] = np.square(rows - side.atoms_[i]).sum(axis=1).argmin()
    side.representatives_ = np.where(behind >= 0, chosen[behind], -1)
    return side

"""Which training rows do not belong: those that lie apart, and those that look mislabelled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from outscope._sklearn import check_is_fitted, check_labels, check_rows
from outscope._types import BoolArray, FloatArray, IntArray, Matrix
from outscope.engine.blocks import Neighbors
from outscope.errors import InputError
from outscope.io import schema
from outscope.learning.rows import EPOCH_ROWS, Rows

# A row is judged by this many nearest other rows, of at most REFERENCES drawn ones.
NEIGHBORS, REFERENCES = 10, 4096
# With more rows than this, they are judged only when asked for.
JUDGED = 20_000
# Rows remembered of each kind: a tenth of all, so that 5 % of dirt are among them.
SHARE, LEAST, MOST = 0.1, 20, 2000
NEAREST = 3
STRANGE, MISLABELLED = "strange", "mislabelled"


@dataclass(frozen=True)
class Suspect:
    """A training row that does not fit, and why."""

    row: int  # number of the training row, from 0
    kind: str  # "strange" or "mislabelled"
    score: float  # strange: mean squared distance to its nearest rows; mislabelled: doubt, −1 … 1
    label: Any  # the label it has; None without labels
    looks_like: Any  # the label of most of its nearest rows; None without labels
    nearest: tuple[int, ...]  # the training rows nearest to it
    reason: str
    text: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


class Judged(NamedTuple):
    """How well each training row fits among the others."""

    strangeness: FloatArray  # (n,) mean squared distance to the nearest other rows
    nearest: IntArray  # (n, 3) numbers of the nearest other rows, padded with −1
    doubt: FloatArray  # (n,) share of nearest rows with the likeliest other label − own share
    looks_like: IntArray  # (n,) place, in the sorted labels, of the label of most nearest rows


def judge_rows(X: Matrix, y: Any = None, n_jobs: int | None = None) -> Judged:
    """Judge every row by its nearest other rows, on rows of unit length."""
    rows = Rows(X, normalize=True).all()
    n, k = len(rows), min(NEIGHBORS, len(rows) - 1)
    member = np.zeros(n, np.intp) if y is None else np.unique(y, return_inverse=True)[1]
    judged = Judged(
        np.zeros(n), np.full((n, NEAREST), -1, np.intp), np.full(n, -1.0), member.copy()
    )
    if k < 1:
        return judged
    chosen = np.arange(n)
    if n > REFERENCES:
        chosen = np.sort(np.random.RandomState(0).permutation(n)[:REFERENCES])
    search = Neighbors(rows[chosen], normalize=False)
    for start in range(0, n, EPOCH_ROWS):
        part = np.arange(start, min(start + EPOCH_ROWS, n))
        squared, found = search.distances(rows[part], k + 1, n_jobs)
        near = chosen[found]
        _leave_out(near == part[:, None], squared, near)
        near, squared = near[:, :k], squared[:, :k]
        judged.strangeness[part] = squared.mean(axis=1)
        judged.nearest[part, : min(k, NEAREST)] = near[:, :NEAREST]
        if y is not None:
            _doubt(member, part, near, judged)
    return judged


def _leave_out(own: BoolArray, squared: FloatArray, near: IntArray) -> None:
    """Move a row's own entry, or the farthest one if it is not there, to the end."""
    own[~own.any(axis=1), -1] = True
    order = np.argsort(own, axis=1, kind="stable")
    squared[:], near[:] = (np.take_along_axis(part, order, axis=1) for part in (squared, near))


def _doubt(member: IntArray, part: IntArray, near: IntArray, judged: Judged) -> None:
    votes = np.zeros((len(part), int(member.max()) + 1))
    places = np.arange(len(part))
    np.add.at(votes, (places[:, None], member[near]), 1.0 / near.shape[1])
    own = votes[places, member[part]]
    judged.looks_like[part] = votes.argmax(axis=1)
    votes[places, member[part]] = 0.0
    judged.doubt[part] = votes.max(axis=1) - own


def find_suspects(X: Matrix, y: Any, n: int, n_jobs: int | None = None) -> list[Suspect]:
    """At most n rows that lie apart, strangest first; with labels, at most n mislabelled ones.

    A row counts as mislabelled if more of its nearest rows have another label than its own.
    """
    judged = judge_rows(X, y, n_jobs)
    labels = None if y is None else np.unique(y)
    usual = float(np.median(judged.strangeness))

    def suspect(row: int, kind: str) -> Suspect:
        own = None if labels is None else np.asarray(y)[row].item()
        like = None if labels is None else labels[judged.looks_like[row]].item()
        if kind == STRANGE:
            score = float(judged.strangeness[row])
            reason = "apart from the other training rows, which are all equal"
            if usual > 0:
                reason = f"{score / usual:.1f} times as far from its nearest rows as is usual"
        else:
            score, reason = float(judged.doubt[row]), f"labelled {own!r}, but looks like {like!r}"
        near = tuple(int(i) for i in judged.nearest[row] if i >= 0)
        return Suspect(row, kind, score, own, like, near, reason)

    apart = np.argsort(-judged.strangeness, kind="stable")
    doubted = np.argsort(-judged.doubt, kind="stable")
    found = [suspect(int(i), STRANGE) for i in apart[:n] if judged.strangeness[i] > usual]
    return found + [suspect(int(i), MISLABELLED) for i in doubted[:n] if judged.doubt[i] > 0.0]


def _are_suspects(value: Any, _: schema.Seen) -> bool:
    """Whether these are rows as `_told` gives them."""
    return isinstance(value, list) and all(
        isinstance(one, list)
        and len(one) == 7
        and type(one[0]) is int
        and one[0] >= 0
        and one[1] in (STRANGE, MISLABELLED)
        and schema.number().passes(one[2], {})
        and all(v is None or isinstance(v, (str, int, float)) for v in one[3:5])
        and isinstance(one[5], list)
        and all(type(row) is int and row >= 0 for row in one[5])
        and isinstance(one[6], str)
        for one in value
    )


class Suspecting:
    """Remembers which training rows do not seem to belong."""

    n_features_in_: int
    suspects_: list[list[Any]]
    _suspected = {"suspects_": schema.maybe(schema.Field(_are_suspects, "suspicious rows"))}

    def remember_suspects(self, X: Matrix, y: Any = None) -> None:
        """Judge these training rows and keep a tenth of them, for `suspicious` and for saving."""
        check_is_fitted(self, "offset_")
        self.suspects_ = [
            [one.row, one.kind, one.score, one.label, one.looks_like, [*one.nearest], one.reason]
            for one in self.suspicious(min(MOST, max(LEAST, round(SHARE * len(X)))), X, y)
        ]

    def suspicious(self, n: int = 20, X: Any = None, y: Any = None) -> list[Suspect]:
        """Training rows that do not fit: n that lie apart and, with labels, n mislabelled ones.

        Give the training rows X, and their labels y. A `TextDetector` and `outscope fit` have the
        detector remember a tenth of up to 20,000 rows, and then need nothing.
        """
        check_is_fitted(self, "offset_")
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
            raise InputError(f"n={n!r}: expected how many rows to list, at least 1")
        if X is not None:
            needs = getattr(self, "needs", "embedding")
            if needs != "embedding":
                raise InputError(
                    f"suspicious rows are found among embeddings, and this detector's are {needs}; "
                    "fit one of the nnk methods"
                )
            rows = check_rows(self, X, reset=False)
            labels = None if y is None else check_labels(y, len(rows))
            return find_suspects(rows, labels, int(n), getattr(self, "n_jobs", None))
        if "suspects_" not in vars(self):
            raise InputError(
                "this detector does not remember which training rows are suspicious (outscope fit "
                f"has it do so for up to {JUDGED:,} embeddings or texts); give the training rows: "
                "suspicious(n, X, y)"
            )
        found = [
            Suspect(row, kind, score, label, like, tuple(nearest), reason)
            for row, kind, score, label, like, nearest, reason in self.suspects_
        ]
        return first_of_each(found, int(n))


def first_of_each(found: Sequence[Suspect], n: int) -> list[Suspect]:
    """The first n strange and the first n mislabelled ones."""
    kinds = ([one for one in found if one.kind == kind] for kind in (STRANGE, MISLABELLED))
    return [one for some in kinds for one in some[:n]]

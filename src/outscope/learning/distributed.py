"""Passes over rows by the workers of a cluster: atoms travel to them, statistics come back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from outscope._types import IntArray, Matrix
from outscope.engine.kernels.blas import one_thread_each
from outscope.io.cluster import ClusterSource
from outscope.io.sources import Source
from outscope.learning.passes import Coding, Look, Passes, look_at_part, merge_looks
from outscope.learning.rows import Rows


class DaskPasses(Passes):
    """A task for each part; looks are merged here, in the order of the parts.

    So the sums have the same bits for any number of workers, and as on one machine.
    """

    def __init__(self, source: ClusterSource) -> None:
        self._source = source

    def __call__(
        self,
        codings: list[Coding | None],
        rows: Rows,
        member: IntArray | None,
        left_out: IntArray | None,
        advance: Callable[[int], None],
    ) -> list[Look | None]:
        """One look per dictionary at all of its rows."""
        parts = self._source.parts
        edges = np.cumsum([0, *(part.rows for part in parts)])

        def told(part: int) -> tuple[int, IntArray | None, IntArray | None]:
            first, end = int(edges[part]), int(edges[part + 1])
            mine = None if member is None else _small(member[first:end], len(codings))
            few = left_out
            if few is not None:
                few = few[(few >= first) & (few < end)]
            return first, mine, few

        whole: list[Look | None] = [None] * len(codings)
        work = _LookAtPart(codings, rows.normalize, rows.view)
        for part, found in enumerate(self._source.each(work, told=told)):
            whole = merge_looks(whole, found)
            advance(parts[part].rows)
        return whole


@dataclass(frozen=True)
class _LookAtPart:
    """What a worker does with one part."""

    codings: list[Coding | None]
    normalize: bool
    view: Callable[[Matrix], Matrix] | None

    def __call__(self, source: Source, number: int, told: Any) -> list[Look | None]:
        first, member, left_out = told
        seen = Rows(source, normalize=self.normalize, view=self.view, kept=False).part(number)
        numbers = np.arange(first, first + len(seen))
        with one_thread_each():
            return look_at_part(self.codings, seen, numbers, 1, member, left_out)


def _small(member: IntArray, classes: int) -> IntArray:
    """Class numbers in as few bytes as they need on their way."""
    return member.astype(np.min_scalar_type(classes))


def passes_over(source: Source, n_jobs: int | None) -> Passes:
    """How parts of a source are passed over: where they are."""
    return DaskPasses(source) if isinstance(source, ClusterSource) else Passes(n_jobs)

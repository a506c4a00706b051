"""What the in-scope rows alone say about their geometry."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import numpy as np

from outscope._engine import ROWS_WORTH_A_THREAD, NonFiniteRowsError, product, threads_of
from outscope._kernels.parallel import for_ranges
from outscope._kernels.product import turn_rows
from outscope._rows import EPOCH_ROWS, SAME_POINT, Rows, unit
from outscope._types import FloatArray, IntArray, Matrix

# Rows whose neighbours are looked up, and rows among which they are looked for.
PROBES = 512
REFERENCES = 50_000
# σ = spread² / (SCALE · gap). Pre-trained text embeddings want a narrow kernel, well below
# the squared distance between neighbours; fine-tuned ones, whose classes have collapsed, a wide
# one. One constant serves both: see docs/defaults.md for the tables behind these.
SCALE = 400.0
# Limits of σ, relative to the spread; and relative to the gap, for averages of rows far apart.
NARROWEST, WIDEST = 1 / 50, 1 / 2
GAP_BRIDGED = 1 / 4
# σ relative to the spread where each class has its own atoms: none of another class can be mixed
# in, so a wider kernel helps a class to explain what lies between its own atoms. Wider still gains
# another tenth of a point and makes scoring several times slower: fewer classes can be ruled out.
CLASS_WIDTH = 1 / 13
# Rows whose nearest neighbour is this far away, relative to the spread, do not form clusters that
# averages could stand for.
ISOLATED = 0.3
# Classes that hold less than this share of all variance have collapsed, as those of a fine-tuned
# encoder do (0.02 to 0.08 on short texts; pre-trained 0.5 and more). Trained on few long texts,
# classes keep more of it (0.28 to 0.47) while neighbours are near already: their gap is at most
# 0.065 of the spread, that of a pre-trained encoder 0.11 and more.
COLLAPSED = 0.25
HALF_COLLAPSED, NEAR = 0.6, 0.085
# Collapsed classes of this many rows crowd (AG News has 4,700 a class, with neighbours at 0.02 to
# 0.04 of the distances within it; others have 100 to 200, at 0.08 and more): a wide kernel would
# fill what lies between rows, one below the gap asks how near the nearest is.
CROWD, CROWD_WIDTH = 1000, 1 / 50
# Unit rows whose mean holds more than this share of their energy are of one domain, and what all of
# them have in common says little about what belongs to them: that direction counts for less.
# Banking77 has 0.21 to 0.26, CLINC150 0.09, 20 Newsgroups 0.05, a fine-tuned encoder 0.002.
COMMON, COMMON_DISCOUNT = 0.15, 1 / 8
# Rows that are turned at a time.
TURNED_ROWS = 512


# Candidate atoms for a row: a narrow kernel, well below the distance between neighbours, gives
# weight to a few atoms only, and more candidates cost time without being used.
FEW_CANDIDATES, CANDIDATES = 6, 20


class Geometry(NamedTuple):
    """Typical squared distances between scaled rows."""

    gap: float  # from a row to its nearest other row
    spread: float  # between any two rows


class Collapse(Enum):
    """Whether distances should be weighed by how rows vary within their classes, and how."""

    NONE = "plain distances"
    HALF = "by the metric, each row for itself, lengths kept"
    CROWDED = "by the metric, each row for itself, lengths kept, by how near it is"
    WHOLE = "by the metric, with averages of unit rows"


def measure_geometry(rows: Rows, rng: np.random.RandomState, n_jobs: int | None = None) -> Geometry:
    """Median squared distances, from a sample where the data is large."""
    reference = (
        rows.all()
        if len(rows) <= REFERENCES
        else rows.take(np.sort(rng.choice(len(rows), REFERENCES, replace=False)))
    )
    shuffled = rng.permutation(len(reference))
    probe, some = reference[shuffled[:PROBES]], reference[shuffled[-2 * PROBES :]]
    squares = np.einsum("ij,ij->i", reference, reference)
    own = np.einsum("ij,ij->i", probe, probe)[:, None]
    spread = float(np.median(own + np.einsum("ij,ij->i", some, some) - 2.0 * (probe @ some.T)))
    gaps = []
    for block, size in zip(np.array_split(probe, 8), np.array_split(own, 8), strict=True):
        # The references come first, so that threads share them.
        distance = product(reference, block.T, n_jobs).T
        distance *= -2.0
        distance += squares
        distance += size
        # The smallest distance is a row's to itself; copies of a row are no neighbours either.
        distance[distance <= SAME_POINT * size] = np.inf
        gaps.append(distance.min(axis=1, initial=np.inf))
    gap = np.concatenate(gaps)
    gap = gap[np.isfinite(gap)]
    return Geometry(float(np.median(gap)) if len(gap) else 0.0, max(spread, 0.0))


def auto_bandwidth(geometry: Geometry, *, averaged: float = 0.0) -> float:
    """Bandwidth for a Gaussian kernel, from the geometry alone; 1 where all rows are equal.

    `averaged` is the share of the rows that have no atom of their own: a kernel has to bridge the
    distances between those, and none where every row is an atom.
    """
    gap, spread = geometry
    if gap <= 0.0:
        return 1.0
    spread = max(spread, gap)
    bridge = averaged * GAP_BRIDGED * gap / spread
    return min(max(spread / (SCALE * gap), NARROWEST, bridge), WIDEST) * spread


def candidates_for(bandwidth: float, geometry: Geometry) -> int:
    """Candidate atoms that a kernel of this bandwidth makes use of."""
    return FEW_CANDIDATES if bandwidth < geometry.gap else CANDIDATES


def class_bandwidth(geometry: Geometry) -> float:
    """Bandwidth where each class has atoms of its own; 1 where all rows are equal."""
    return CLASS_WIDTH * max(geometry) if geometry.gap > 0.0 else 1.0


def common_part(X: Matrix) -> Matrix | None:
    """A share of the mean of unit rows, to be discounted; None where they have little in common."""
    total, rows = np.zeros(X.shape[1]), 0
    for start in range(0, len(X), EPOCH_ROWS):
        block = unit(np.asarray(X[start : start + EPOCH_ROWS], dtype=np.float64))
        total += block.sum(axis=0)
        rows += int(np.count_nonzero(block.any(axis=1)))
    if float(total @ total) <= COMMON * float(rows) ** 2:
        return None
    return (COMMON_DISCOUNT * total / rows).astype(np.float32)


def are_isolated(geometry: Geometry) -> bool:
    """Whether rows are so far from each other that averages of them lose what each one says."""
    return geometry.gap > ISOLATED * geometry.spread


def are_near(geometry: Geometry) -> bool:
    """Whether rows have neighbours as near as collapsed classes or copies have."""
    return geometry.gap < NEAR * geometry.spread


def collapse(rows: Rows, membership: IntArray, geometry: Geometry) -> Collapse:
    """How far classes have collapsed, as those of a fine-tuned encoder do."""
    counts = np.bincount(membership)
    if len(counts) < 2:
        return Collapse.NONE
    squares, start = 0.0, 0
    sums = np.zeros((len(counts), rows.width))
    for block in rows.blocks():
        np.add.at(sums, membership[start : start + len(block)], block)
        squares += float(np.einsum("ij,ij->", block, block, dtype=np.float64))
        start += len(block)
    within = squares - float(np.einsum("ij,ij->", sums, sums / counts[:, None]))
    whole = squares - float(sums.sum(axis=0) @ sums.sum(axis=0)) / len(membership)
    # Classes of one row, or of equal ones, show no variance to weigh by.
    if within <= 1e-9 * squares:
        return Collapse.NONE
    # Each class has a mean of its own to be near to: few rows a class would look collapsed.
    within *= (len(membership) - 1) / (len(membership) - len(counts))
    if within < COLLAPSED * whole:
        return Collapse.CROWDED if np.median(counts) >= CROWD else Collapse.WHOLE
    half = are_near(geometry) and within < HALF_COLLAPSED * whole
    return Collapse.HALF if half else Collapse.NONE


def metric_bandwidth(geometry: Geometry, found: Collapse) -> float:
    """Bandwidth for rows under the metric, each class with atoms of its own."""
    if found is Collapse.WHOLE or geometry.gap <= 0.0:
        return auto_bandwidth(geometry)
    if found is Collapse.CROWDED:
        return CROWD_WIDTH * geometry.gap
    return WIDEST * max(geometry)


def within_metric(rows: Rows, membership: IntArray, n_jobs: int | None = None) -> FloatArray:
    """Matrix that makes rows vary about as much in every direction within their classes."""
    counts = np.bincount(membership)
    d, start = rows.width, 0
    sums, scatter = np.zeros((len(counts), d)), np.zeros((d, d))
    for block in rows.blocks():
        exact = block.astype(np.float64)
        np.add.at(sums, membership[start : start + len(block)], exact)
        scatter += product(exact.T, exact, n_jobs)
        start += len(block)
    scatter -= sums.T @ (sums / counts[:, None])
    # A share of the identity keeps the inverse tame; the more rows, the less is needed.
    shrinkage = d / (d + len(rows))
    scatter *= (1.0 - shrinkage) * d / np.trace(scatter)
    scatter[np.diag_indices(d)] += shrinkage
    values, vectors = np.linalg.eigh(scatter)
    metric: FloatArray = (vectors / np.sqrt(values)) @ vectors.T
    return metric


def turn(X: Matrix, metric: FloatArray, *, normalize: bool, n_jobs: int | None) -> FloatArray:
    """Rows under a metric; the bits of one do not depend on the others."""
    turned = np.empty((len(X), metric.shape[1]))
    metric = np.ascontiguousarray(metric)

    def work(first: int, last: int) -> None:
        for start in range(first, last, TURNED_ROWS):
            stop = min(start + TURNED_ROWS, last)
            rows = np.array(X[start:stop], dtype=np.float64, order="C")
            if not turn_rows(rows, normalize, metric, turned[start:stop]):
                raise NonFiniteRowsError

    for_ranges(len(X), threads_of(n_jobs), ROWS_WORTH_A_THREAD, work)
    return turned

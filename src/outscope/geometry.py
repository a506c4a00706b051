"""What the in-scope rows alone say about their geometry."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from outscope._rows import SAME_POINT, Rows

# Rows whose neighbours are looked up, and rows among which they are looked for.
PROBES = 512
REFERENCES = 50_000
# σ = spread² / (SCALE · gap). Pre-trained text embeddings want a narrow kernel, well below
# the squared distance between neighbours; fine-tuned ones, whose classes have collapsed, a wide
# one. One constant serves both: see docs/defaults.md for the table behind it.
SCALE = 400.0
# Limits of σ, relative to the spread.
NARROWEST, WIDEST = 1 / 50, 1 / 2


class Geometry(NamedTuple):
    """Typical squared distances between scaled rows."""

    gap: float  # from a row to its nearest other row
    spread: float  # between any two rows


def measure_geometry(rows: Rows, rng: np.random.RandomState) -> Geometry:
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
        distance = block @ reference.T
        distance *= -2.0
        distance += squares
        distance += size
        # The smallest distance is a row's to itself; copies of a row are no neighbours either.
        distance[distance <= SAME_POINT * size] = np.inf
        gaps.append(distance.min(axis=1, initial=np.inf))
    gap = np.concatenate(gaps)
    gap = gap[np.isfinite(gap)]
    return Geometry(float(np.median(gap)) if len(gap) else 0.0, max(spread, 0.0))


def auto_bandwidth(geometry: Geometry) -> float:
    """Bandwidth for a Gaussian kernel, from the geometry alone; 1 where all rows are equal."""
    gap, spread = geometry
    if gap <= 0.0:
        return 1.0
    spread = max(spread, gap)
    return min(max(spread / (SCALE * gap), NARROWEST), WIDEST) * spread

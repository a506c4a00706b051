"""What the in-scope rows alone say about their geometry."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from outscope._learning import take_rows
from outscope._types import Matrix

# Rows whose neighbours are looked up, and rows among which they are looked for.
PROBES = 512
REFERENCES = 50_000
# σ = spread² / (SCALE · gap). Pre-trained text embeddings want a narrow kernel, about an eighth of
# the squared distance between neighbours; fine-tuned ones, whose classes have collapsed, a wide
# one. One constant serves both: see docs/defaults.md for the table behind it.
SCALE = 400.0
# Limits of σ, relative to the spread.
NARROWEST, WIDEST = 1 / 50, 1 / 2


class Geometry(NamedTuple):
    """Typical squared distances between scaled rows."""

    gap: float  # from a row to its nearest other row
    spread: float  # between any two rows


def measure_geometry(X: Matrix, rng: np.random.RandomState, *, normalize: bool) -> Geometry:
    """Median squared distances, from a sample where the data is large."""
    n = len(X)
    order = rng.permutation(n)
    reference = take_rows(X, order[:REFERENCES], normalize=normalize)
    probe = reference[rng.permutation(len(reference))[:PROBES]]
    squares = np.einsum("ij,ij->i", reference, reference)
    gaps, spreads = [], []
    for block in np.array_split(probe, max(1, len(probe) * len(reference) // 4_000_000)):
        own = np.einsum("ij,ij->i", block, block)[:, None]
        distance = np.maximum(own + squares - 2.0 * (block @ reference.T), 0.0)
        spreads.append(np.median(distance, axis=1))
        # The smallest distance is a row's to itself; copies of a row are no neighbours either.
        distance[distance < 1e-6 * max(1.0, float(squares.max()))] = np.inf
        gaps.append(distance.min(axis=1))
    gap, spread = np.concatenate(gaps), float(np.median(np.concatenate(spreads)))
    gap = gap[np.isfinite(gap)]
    return Geometry(float(np.median(gap)) if len(gap) else 0.0, spread)


def auto_bandwidth(geometry: Geometry) -> float:
    """Bandwidth for a Gaussian kernel, from the geometry alone; 1 where all rows are equal."""
    gap, spread = geometry
    if gap <= 0.0:
        return 1.0
    spread = max(spread, gap)
    return min(max(spread / (SCALE * gap), NARROWEST), WIDEST) * spread

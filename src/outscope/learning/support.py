"""Atoms that few rows stand behind say less: how much each is held back in scoring."""

from __future__ import annotations

import numpy as np

from outscope._types import FloatArray, Matrix
from outscope.engine.coder import kernel_between
from outscope.learning.geometry import Geometry

# Rows stand behind an atom if they lie within a thirty-second of the spread, softly.
REACH = 1 / 32


def terms_of(support: float, geometry: Geometry) -> list[float] | None:
    """What is taken off for each factor that support is missing, and how far support reaches.

    Both are squared distances; None where nothing is held back.
    """
    strength, reach = support * geometry.gap, REACH * geometry.spread
    return [strength, reach] if strength > 0.0 and reach > 0.0 else None


def held_back(
    atoms: Matrix, mass: FloatArray, terms: list[float], n_jobs: int | None = None
) -> FloatArray:
    """The penalty on each atom's key: 0 with as many rows around it as around the mean row.

    Rows around an atom are those of all atoms, weighted by a Gaussian of their distance.
    """
    strength, reach = terms
    exact = atoms.astype(np.float64)
    lower = kernel_between(atoms, np.einsum("ij,ij->i", exact, exact), reach, n_jobs)
    kernel = np.tril(lower) + np.tril(lower, -1).T
    mass = np.maximum(mass, 1e-12)
    rows = np.einsum("ij,j->i", kernel, mass)
    usual = float(np.einsum("i,i->", rows, mass) / mass.sum())
    # A key is half of a squared distance.
    return np.asarray(0.5 * strength * np.maximum(0.0, np.log(usual / rows)))

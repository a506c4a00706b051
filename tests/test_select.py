"""Candidate selection: exact, whatever float32 says."""

from __future__ import annotations

import numpy as np
import pytest

from outscope.engine.blocks import Neighbors
from outscope.engine.kernels.select import measure_rows


@pytest.mark.parametrize("m", [1, 5, 19, 20, 21, 300, 2500])
@pytest.mark.parametrize("k", [1, 3, 20])
def test_nearest_are_those_of_a_full_sort(m, k):
    rng = np.random.default_rng(m + k)
    atoms, rows = rng.normal(size=(m, 12)).astype(np.float32), rng.normal(size=(40, 12))
    distances, index = Neighbors(atoms, normalize=False).distances(rows, k)
    full = ((rows[:, None] - atoms[None].astype(float)) ** 2).sum(axis=2)
    order = np.argsort(full, axis=1, kind="stable")[:, : min(k, m)]
    np.testing.assert_array_equal(index, order)
    np.testing.assert_allclose(distances, np.take_along_axis(full, order, 1), atol=1e-9)


def test_differences_below_float32_still_decide():
    """Two atoms that float32 products cannot tell apart are told apart by the exact sum."""
    base = np.full(256, 0.1, dtype=np.float32)
    atoms = np.repeat(base[None], 64, axis=0)
    atoms[37, 0] = np.nextafter(np.float32(0.1), np.float32(1))
    row = base.astype(np.float64)
    row[0] += 1e-3
    _, index = Neighbors(atoms, normalize=False).distances(row[None], 1)
    assert index[0, 0] == 37


def test_equal_atoms_are_taken_in_their_order():
    atoms = np.ones((500, 8), dtype=np.float32)
    _, index = Neighbors(atoms).distances(np.ones((3, 8)), 4)
    assert index.tolist() == [[0, 1, 2, 3]] * 3


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e200])
def test_measuring_notices_what_cannot_be_squared(bad):
    rows = np.ones((3, 4))
    rows[1, 2] = bad
    out = np.empty(3), np.empty(3), np.empty((3, 4), np.float32)
    assert not measure_rows(rows, True, *out)


def test_a_zero_row_counts_as_orthogonal_to_everything():
    atoms = np.eye(3, dtype=np.float32)
    distances, _ = Neighbors(atoms).distances(np.zeros((1, 3)), 1)
    assert distances[0, 0] == pytest.approx(2.0)


def _decaying(n, d, rng):
    """Rows whose spread falls off by direction, as that of real embeddings does."""
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return (rng.normal(size=(n, d)) * np.geomspace(1.0, 0.002, d)) @ turn


@pytest.mark.parametrize("k", [1, 20])
@pytest.mark.parametrize("kind", ["like", "mixed", "noise", "zero"])
def test_leading_directions_change_no_bit(k, kind, monkeypatch):
    rng = np.random.default_rng(k)
    both = _decaying(2200, 512, rng)
    atoms, rows = both[:1200].astype(np.float32), both[1200:]
    atoms /= np.linalg.norm(atoms, axis=1, keepdims=True)
    atoms[700:800] = atoms[:100]  # ties must go to the lower index
    whole, short = Neighbors(atoms), Neighbors(atoms)
    monkeypatch.setattr("outscope.engine.blocks.PAYS_AFTER", 0)
    short.distances(rows, k)
    assert short._cache["leading"].atoms.shape[1] <= 256
    whole._cache["leading"] = None
    if kind == "mixed":
        rows = np.concatenate([rows, rng.normal(size=(50, 512))])
    elif kind == "noise":
        rows = rng.normal(size=(60, 512))
    elif kind == "zero":
        rows = np.concatenate([rows[:60], np.zeros((3, 512))])
    for found, expected in zip(short.distances(rows, k), whole.distances(rows, k), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_directions_that_lead_nowhere_are_not_used(monkeypatch):
    rng = np.random.default_rng(0)
    monkeypatch.setattr("outscope.engine.blocks.PAYS_AFTER", 0)
    atoms = rng.normal(size=(600, 300)).astype(np.float32)
    engine = Neighbors(atoms / np.linalg.norm(atoms, axis=1, keepdims=True))
    engine.distances(rng.normal(size=(50, 300)), 5)
    assert engine._cache["leading"] is None

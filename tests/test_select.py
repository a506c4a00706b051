"""Candidate selection: exact, whatever float32 says."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from outscope.engine.blocks import Neighbors, largest_product, product
from outscope.engine.coder import Coder
from outscope.engine.kernels.measure import measure_rows
from outscope.engine.leading import Directions


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
    monkeypatch.setattr("outscope.engine.leading.PAYS_AFTER", 0)
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
    monkeypatch.setattr("outscope.engine.leading.PAYS_AFTER", 0)
    atoms = rng.normal(size=(600, 300)).astype(np.float32)
    engine = Neighbors(atoms / np.linalg.norm(atoms, axis=1, keepdims=True))
    engine.distances(rng.normal(size=(50, 300)), 5)
    assert engine._cache["leading"] is None


def _unit_decaying(n, d, rng):
    rows = _decaying(n, d, rng).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_directions_of_other_atoms_serve_as_well(monkeypatch):
    """A basis is found once; on atoms that have moved since, it still changes no bit."""
    rng = np.random.default_rng(2)
    monkeypatch.setattr("outscope.engine.leading.PAYS_AFTER", 0)
    both = _unit_decaying(1500, 512, rng)
    atoms, rows = both[:1200], both[1200:]
    shared = Directions()
    Coder(atoms, 0.05, directions=shared).code(rows, 5)
    moved = (atoms[:900] + 0.01 * rng.normal(size=(900, 512))).astype(np.float32)
    monkeypatch.setattr("numpy.linalg.eigh", None)  # nobody may look again
    short, whole = Coder(moved, 0.05, directions=shared), Coder(moved, 0.05)
    found = short.code(rows, 5)
    assert short._cache["leading"].rests.shape == (900,)
    whole._cache["leading"] = None
    for a, b in zip(found, whole.code(rows, 5), strict=True):
        np.testing.assert_array_equal(a, b)


def test_work_on_several_engines_adds_up_until_directions_pay():
    rng = np.random.default_rng(3)
    both = _unit_decaying(4600, 256, rng)
    atoms, rows = both[:600], both[600:]
    shared = Directions()
    first, second = (Coder(atoms, 0.05, directions=shared) for _ in range(2))
    first.code(rows, 3)
    assert "leading" not in first._cache
    second.code(rows, 3)
    assert second._cache["leading"] is not None


@pytest.mark.parametrize("bandwidth", [0.0, 0.05])
@pytest.mark.parametrize("penalised", [False, True])
@pytest.mark.parametrize("discounted", [False, True])
def test_codes_are_the_same_with_leading_directions(bandwidth, penalised, discounted, monkeypatch):
    monkeypatch.setattr("outscope.engine.leading.PAYS_AFTER", 0)
    rng = np.random.default_rng(4)
    both = _unit_decaying(1500, 512, rng)
    atoms, rows = both[:1200], both[1200:]
    settings = {
        "penalty": rng.uniform(0.0, 0.1, 1200) if penalised else None,
        "discount": both.mean(axis=0) if discounted else None,
    }
    short, whole = (Coder(atoms, bandwidth, **settings) for _ in range(2))
    whole._cache["leading"] = None
    for relative in (False, True):
        for found, expected in zip(
            short.code(rows, 10, relative=relative),
            whole.code(rows, 10, relative=relative),
            strict=True,
        ):
            assert found.tobytes() == expected.tobytes()
    assert short._cache["leading"] is not None


@pytest.mark.parametrize("width", [256, 512])
def test_a_few_rows_get_the_bits_of_a_batch(width, monkeypatch):
    """Up to a handful are multiplied one by one, in memory that their thread keeps."""
    monkeypatch.setattr("outscope.engine.leading.PAYS_AFTER", 0)
    rng = np.random.default_rng(5)
    both = _unit_decaying(1400, width, rng)
    coder = Coder(both[:1000], 0.05)
    whole = coder.ood_score(both[1000:], 10)
    assert coder._cache["leading"] is not None
    for size in (1, 2, 3, 6, 7, 9, 32, 33):
        parts = [coder.ood_score(both[s : s + size], 10) for s in range(1000, 1400, size)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    for jobs in (1, 2):
        assert coder.ood_score(both[1000:1001], 10, jobs)[0] == whole[0]
    copy = pickle.loads(pickle.dumps(coder))
    assert copy.ood_score(both[1000:1001], 10)[0] == whole[0]


@pytest.mark.parametrize("width", [1, 7, 300])
def test_largest_products_are_those_of_the_whole_product(width):
    rng = np.random.default_rng(6)
    a = rng.normal(size=(700, 40)).astype(np.float32)
    b = rng.normal(size=(40, width)).astype(np.float32)
    expected = product(a, b, 1).max(axis=1)
    for threads in (1, 2, 3):
        assert largest_product(a, b, threads).tobytes() == expected.tobytes()

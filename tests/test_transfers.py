"""Rows move between atoms where that lowers the whole error, and never otherwise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

import outscope._learning
from outscope import NNKDetector, NNKMeans
from outscope._rows import Rows
from outscope._transfers import transfer_rows


def error(X, atoms):
    return float(((X[:, None] - atoms[None]) ** 2).sum(axis=2).min(axis=1).sum())


def test_a_row_leaves_the_atom_that_only_it_holds_in_place():
    X = np.float32([[-3], [3], [7], [7], [7], [7], [7]])
    stuck = np.float32([[0], [7]])  # every row is with its nearest atom, every atom is a mean
    found = transfer_rows(Rows(X, normalize=False), stuck, 1)
    np.testing.assert_allclose(found, [[-3], [38 / 6]], rtol=1e-6)


def test_an_atom_without_rows_takes_one_that_is_badly_explained():
    X = np.float32([[0], [1], [50]])
    found = transfer_rows(Rows(X, normalize=False), np.float32([[17], [900]]), 1)
    np.testing.assert_allclose(np.sort(found, axis=0), [[0.5], [50]], rtol=1e-6)


def test_all_atoms_without_rows_take_one_each():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5)).astype(np.float32)
    X[100:] = X[0]
    far = np.full((50, 5), 90.0, np.float32)
    found = transfer_rows(Rows(X, normalize=False), np.concatenate([X[:50], far]), 1)
    assert len(np.unique(found, axis=0)) == 100
    assert error(X, found) < 1e-4


@given(st.integers(0, 10_000), st.integers(2, 600), st.integers(1, 40))
def test_the_error_never_rises(seed, n, m):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5)).astype(np.float32).astype(np.float64)
    X[rng.random(n) < 0.2] = X[0]
    atoms = X[rng.permutation(n)[:m]].astype(np.float32)
    nearest = ((X[:, None] - atoms[None]) ** 2).sum(axis=2).argmin(axis=1)
    before = sum(
        ((X[nearest == j] - X[nearest == j].mean(axis=0)) ** 2).sum() for j in np.unique(nearest)
    )
    found = transfer_rows(Rows(X, normalize=False), atoms, 1)
    assert found.shape == atoms.shape
    assert found.dtype == np.float32
    assert error(X, found) <= before * (1 + 1e-6) + 1e-6  # atoms are float32


@pytest.mark.parametrize("size", [{}, {"n_atoms": 0.5}, {"max_atoms": 30}, {"precision": "auto"}])
@pytest.mark.parametrize("seed", range(6))
def test_a_row_that_came_often_is_never_strange(size, seed):
    """Where rows lie far apart, as long texts do, copies of an empty one are rows like any other."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(400, 80))
    X[16:19] += 0.5 * X[0]  # few others lean on it
    X[:16] = X[0]
    detector = NNKDetector(**size, random_state=seed).fit(X)
    scores = detector.ood_score(X)
    assert scores[0] < np.median(scores[16:])


@pytest.mark.parametrize(
    ("width", "n_atoms", "changes", "moves"),
    [
        (60, 150, {}, True),  # far apart
        (60, 150, {"bandwidth": 0.1}, False),  # nothing is read off the rows
        (12, 30, {}, True),  # few atoms
        (12, 31, {}, False),
        (12, 60, {"max_atoms": 30}, True),
        (12, 30, {"update": "mod"}, False),
        (2, 30, {}, False),  # neighbours as near as in collapsed classes
    ],
)
def test_rows_move_where_they_lie_far_apart_or_atoms_are_few(
    monkeypatch, width, n_atoms, changes, moves
):
    X = np.random.RandomState(0).normal(size=(600, width)).astype(np.float32)
    rows, seen = Rows(X, normalize=True).all(), []

    def watched(*given):
        seen.append((error(rows, given[1]), error(rows, found := transfer_rows(*given))))
        return found

    monkeypatch.setattr(outscope._learning, "transfer_rows", watched)
    found = NNKMeans(n_atoms, random_state=0, **changes).fit(X)
    assert len(seen) == moves
    assert all(after < 0.995 * before for before, after in seen)
    assert (found.looseness_ > 0.0) == (moves and width == 60)


def test_the_atoms_do_not_depend_on_how_many_threads_blas_has():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(20, 128))[rng.integers(20, size=1200)] * 0.5 + rng.normal(size=(1200, 128))
    rows, atoms = Rows(X, normalize=True), Rows(X[::4], normalize=True).all()
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            found.append(transfer_rows(rows, atoms, threads))
    np.testing.assert_array_equal(*found)

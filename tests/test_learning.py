"""Learning: seeds, statistics, updates, pruning."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.cluster import kmeans_plusplus

from outscope import NNKMeans
from outscope.engine.coder import Coder
from outscope.learning.loop import merge_atoms
from outscope.learning.passes import CodeStatistics
from outscope.learning.rows import Rows, seed_atoms


def rows(n=400, d=10, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32) + 0.5


def potential(X, atoms):
    return float((((X[:, None] - atoms[None]) ** 2).sum(axis=2)).min(axis=1).sum())


def test_seeds_are_as_good_as_those_of_k_means_plus_plus():
    X = Rows(rows(1500), normalize=True).all()
    ours = [
        potential(X, seed_atoms(Rows(X, normalize=True), 60, np.random.RandomState(s))[0])
        for s in range(5)
    ]
    theirs = [potential(X, kmeans_plusplus(X, 60, random_state=s)[0]) for s in range(5)]
    assert np.mean(ours) < 1.1 * np.mean(theirs)


def test_seeds_are_different_rows_of_the_data():
    X = np.repeat(rows(30), 5, axis=0)
    atoms, index = seed_atoms(Rows(X, normalize=True), 100, np.random.RandomState(0))
    assert len(atoms) == 30
    assert len(np.unique(atoms, axis=0)) == 30
    np.testing.assert_allclose(
        atoms, X[index] / np.linalg.norm(X[index], axis=1)[:, None], atol=1e-6
    )


@pytest.mark.parametrize("products", [False, True])
def test_statistics_of_parts_add_up_to_those_of_the_whole(products):
    X = rows()
    atoms = X[:40]
    coder = Coder(atoms, 0.3)

    def statistics(part):
        found = CodeStatistics(len(atoms), X.shape[1], products)
        found.add(part, coder.code(part, 5), None)
        return found

    whole, first, second = statistics(X), statistics(X[:150]), statistics(X[150:])
    first.merge(second)
    for name in ("usage", "mass", "moments", *(["products"] if products else [])):
        np.testing.assert_allclose(getattr(first, name), getattr(whole, name), atol=1e-10)
    assert first.rows == whole.rows == len(X)
    assert first.loss == pytest.approx(whole.loss)


def test_average_update_is_the_weighted_mean():
    X, atoms = rows(50), rows(50)[:5]
    found = CodeStatistics(5, 10)
    codes = Coder(atoms, 0.5).code(X, 3)
    found.add(X, codes, None)
    W = np.zeros((50, 5))
    np.put_along_axis(W, codes.neighbors, codes.weights, axis=1)
    used = W.sum(axis=0) > 0
    expected = (W.T @ X)[used] / W.sum(axis=0)[used, None]
    np.testing.assert_allclose(found.new_atoms(atoms)[used], expected, atol=1e-6)
    np.testing.assert_array_equal(found.new_atoms(atoms)[~used], atoms[~used])
    np.testing.assert_allclose(W.sum(axis=1), 1.0)


def test_mod_update_is_the_least_squares_dictionary():
    X = rows(200)
    atoms = X[:12]
    found = CodeStatistics(12, 10, with_products=True)
    codes = Coder(atoms, 0.0).code(X, 6)
    found.add(X, codes, None)
    W = np.zeros((200, 12))
    np.put_along_axis(W, codes.neighbors, codes.weights, axis=1)
    expected = np.linalg.lstsq(W, X.astype(float), rcond=None)[0]
    np.testing.assert_allclose(found.new_atoms(atoms), expected, atol=1e-3)


@pytest.mark.parametrize("update", ["average", "mod"])
@pytest.mark.parametrize("kernel", ["gaussian", "cosine"])
def test_unused_and_identical_atoms_never_break_the_update(update, kernel):
    X = np.repeat(rows(15), 4, axis=0)
    first = np.concatenate([X[:30], -X[:5], X[:5]])  # copies, and atoms that point away
    fitted = NNKMeans(init=first, kernel=kernel, update=update, n_epochs=5).fit(X)
    assert 1 <= len(fitted.atoms_) <= len(first)
    assert np.isfinite(fitted.atoms_).all()


def test_unused_atoms_are_given_to_the_worst_explained_rows():
    X = rows(300)
    first = np.concatenate([X[:20], np.tile(-10 * X.mean(axis=0), (10, 1))])
    fitted = NNKMeans(init=first, bandwidth=0.05, n_epochs=4).fit(X)
    assert len(fitted.atoms_) == 30
    plain = NNKMeans(init=X[:20], bandwidth=0.05, n_epochs=4).fit(X)
    assert fitted.reconstruction_error_ < plain.reconstruction_error_


def test_learning_lowers_the_error():
    losses = NNKMeans(40, random_state=0).fit(rows(800)).losses_
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("kernel", ["gaussian", "cosine"])
@pytest.mark.parametrize("update", ["average", "mod"])
@pytest.mark.parametrize("entropy", [0, 1e-6, 0.05, 0.15, 1, 30, 1e6, 1e300])
def test_no_entropy_weight_empties_the_dictionary(kernel, update, entropy):
    X = rows(200)
    fitted = NNKMeans(60, kernel=kernel, update=update, entropy=entropy, random_state=0).fit(X)
    assert len(fitted.atoms_) >= 1
    assert np.isfinite(fitted.atoms_).all()
    assert fitted.atom_probability_.sum() == pytest.approx(1.0)
    assert np.isfinite(fitted.encode(X).ood_score).all()


@pytest.mark.parametrize(
    ("kernel", "weights"), [("gaussian", (0, 3, 30)), ("cosine", (0, 0.05, 3))]
)
def test_more_entropy_means_fewer_atoms(kernel, weights):
    X = rows(400)
    sizes = [
        len(NNKMeans(100, kernel=kernel, entropy=weight, random_state=0).fit(X).atoms_)
        for weight in weights
    ]
    assert sizes[0] == 100
    assert sizes[2] < sizes[1] <= sizes[0]


@pytest.mark.parametrize("size", [1, 2, 7, 59, 60, 500])
def test_a_wanted_size_is_met(size):
    fitted = NNKMeans(60, max_atoms=size, random_state=0).fit(rows())
    assert len(fitted.atoms_) == min(size, 60)


@pytest.mark.parametrize(("budget", "atoms"), [(40, 1), (79, 1), (400, 10), (10**9, 60)])
def test_a_byte_budget_is_kept(budget, atoms):
    fitted = NNKMeans(60, max_bytes=budget, random_state=0).fit(rows())
    assert len(fitted.atoms_) == atoms


@pytest.mark.parametrize(("epochs", "plain"), [(0, 0), (1, 5), (3, 3)])
def test_a_wanted_size_is_met_in_any_number_of_epochs(epochs, plain):
    model = NNKMeans(60, max_atoms=7, n_epochs=epochs, n_plain_epochs=plain, random_state=0)
    assert len(model.fit(rows()).atoms_) == 7


def test_a_size_and_an_entropy_weight_together_stay_below_the_size():
    fitted = NNKMeans(60, max_atoms=20, entropy=50.0, random_state=0).fit(rows())
    assert 1 <= len(fitted.atoms_) <= 20


def test_merging_takes_the_cheapest_pair_and_keeps_the_mean():
    atoms = np.array([[0.0, 0.0], [0.1, 0.0], [5.0, 5.0]], dtype=np.float32)
    merged, share = merge_atoms(atoms, np.array([0.2, 0.6, 0.2]), 2)
    np.testing.assert_allclose(merged, [[0.075, 0.0], [5.0, 5.0]], atol=1e-6)
    np.testing.assert_allclose(share, [0.8, 0.2])

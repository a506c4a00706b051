"""NNKMeans as a scikit-learn transformer."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from outscope import InputError, NNKMeans
from outscope.learning.bits import atom_bytes, restore, store
from outscope.learning.rows import size_for


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(3).normal(size=(240, 9)).astype(np.float32)


def test_transform_gives_sparse_non_negative_codes(X):
    model = NNKMeans(30, n_neighbors=5, random_state=0).fit(X)
    codes = model.transform(X)
    assert scipy.sparse.issparse(codes)
    assert codes.format == "csr"
    assert codes.shape == (240, 30)
    assert codes.data.min() > 0
    assert np.diff(codes.indptr).max() <= 5
    assert codes.has_sorted_indices


def test_codes_rebuild_rows_under_the_cosine_kernel(X):
    """The score is the share of a row that atoms times codes leave over."""
    model = NNKMeans(30, kernel="cosine", random_state=0).fit(X)
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    left = ((unit - model.transform(X) @ model.atoms_) ** 2).sum(axis=1)
    np.testing.assert_allclose(model.encode(X).ood_score, left, atol=1e-6)


def test_the_same_seed_gives_the_same_dictionary_on_any_number_of_threads(X):
    one, two = (NNKMeans(30, random_state=5, n_jobs=jobs).fit(X) for jobs in (1, 2))
    np.testing.assert_array_equal(one.atoms_, two.atoms_)
    assert not np.array_equal(one.atoms_, NNKMeans(30, random_state=6).fit(X).atoms_)


def test_sizes_by_number_share_and_default(X):
    assert len(NNKMeans(17, random_state=0).fit(X).atoms_) == 17
    assert len(NNKMeans(0.1, random_state=0).fit(X).atoms_) == 24
    assert len(NNKMeans(random_state=0).fit(X).atoms_) == 100
    assert [size_for("auto", n) for n in (20, 100, 240, 1000, 50_000)] == [20, 100, 100, 250, 2000]
    assert [size_for("auto", 10, n_all) for n_all in (50, 200, 1000)] == [10, 5, 3]


@pytest.mark.parametrize(("precision", "bytes_", "steps"), [("int8", 13, 254), ("int4", 7, 14)])
def test_few_bits_a_number_take_few_bytes_and_change_little(X, precision, bytes_, steps):
    plain, small = (
        NNKMeans(30, random_state=0, precision=p).fit(X) for p in ("float32", precision)
    )
    assert plain.stored_bytes_ == 30 * 9 * 4
    assert small.stored_bytes_ == 30 * bytes_ == 30 * atom_bytes(9, precision)
    assert small.atoms_.dtype == np.float32
    shift = np.linalg.norm(small.atoms_ - plain.atoms_, axis=1)
    assert (shift > 0).all()
    assert shift.max() <= 3 * np.abs(plain.atoms_).max() / steps
    np.testing.assert_allclose(small.encode(X).ood_score, plain.encode(X).ood_score, atol=3 / steps)
    assert len(NNKMeans(max_bytes=20 * bytes_, precision=precision).fit(X).atoms_) == 20


def test_auto_precision_keeps_twice_as_many_rows_where_they_lie_far_apart():
    rng = np.random.default_rng(0)
    apart = rng.normal(size=(200, 60))
    together = np.repeat(apart[:50], 4, axis=0) + 0.1 * rng.normal(size=(200, 60))
    found = NNKMeans(0.25, precision="auto", random_state=0).fit(apart)
    assert (found.precision_, len(found.atoms_)) == ("int4", 100)
    assert found.stored_bytes_ == NNKMeans(50, precision="int8").fit(apart).stored_bytes_
    assert len(NNKMeans(0.7, precision="auto").fit(apart).atoms_) == 200
    found = NNKMeans(0.25, precision="auto", kernel="cosine", random_state=0).fit(together)
    assert (found.precision_, len(found.atoms_)) == ("int8", 50)


def test_rare_atoms_lose_more_however_large_the_entropy_is(X):
    sizes = [
        len(NNKMeans(60, kernel="cosine", entropy=entropy, random_state=0).fit(X).atoms_)
        for entropy in (0.0, 3.0, 1e6, 1e308)
    ]
    assert sizes[0] == 60
    assert max(sizes[1:]) < 10


@given(
    arrays(
        np.float32,
        (3, 5),
        elements=st.floats(-1e6, 1e6, width=32).filter(lambda v: v == 0 or abs(v) > 1e-6),
    )
)
def test_stored_atoms_are_what_they_stand_for(atoms):
    for precision, half_step in (("float32", 0.0), ("int8", 0.5001 / 127), ("int4", 0.51 / 7)):
        stored = store(atoms, precision)
        meant = restore(stored, 5)
        again = store(meant, precision)
        for one, other in zip(stored, again, strict=True):
            np.testing.assert_array_equal(one, other)
        # Cutting large values off is done only where it lowers the error as a whole.
        error = np.square(meant - atoms, dtype=np.float64).sum(axis=1)
        largest = np.abs(atoms).max(axis=1, initial=0.0).astype(np.float64)
        assert (error <= 5.1 * (half_step * largest) ** 2).all()


def test_more_atoms_than_rows_keeps_every_row(X):
    model = NNKMeans(1000).fit(X)
    assert len(model.atoms_) == len(X)
    assert model.encode(X).ood_score == pytest.approx(0.0, abs=1e-6)


def test_representatives_are_rows_near_their_atom(X):
    model = NNKMeans(20, random_state=0).fit(X)
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    for atom, rows in zip(model.atoms_, model.representatives_, strict=True):
        assert (rows >= 0).any()
        near = ((unit[rows[rows >= 0]] - atom) ** 2).sum(axis=1).mean()
        assert near < ((unit - atom) ** 2).sum(axis=1).mean()


def test_bandwidth_follows_the_geometry(X):
    wide = NNKMeans(random_state=0).fit(X).bandwidth_
    tight = np.repeat(X[:40], 30, axis=0) + 0.01 * np.random.default_rng(0).normal(size=(1200, 9))
    assert NNKMeans(random_state=0).fit(tight).bandwidth_ > 2 * wide
    assert NNKMeans(bandwidth=0.123).fit(X).bandwidth_ == 0.123
    assert NNKMeans(kernel="cosine").fit(X).bandwidth_ == 0.0


def test_atoms_keep_their_length_or_not(X):
    gaussian = np.linalg.norm(NNKMeans(20, random_state=0).fit(X).atoms_, axis=1)
    cosine = np.linalg.norm(NNKMeans(20, kernel="cosine", random_state=0).fit(X).atoms_, axis=1)
    assert gaussian.min() < 0.95
    np.testing.assert_allclose(cosine, 1.0, atol=1e-6)


def test_lengths_count_where_rows_are_not_normalised(X):
    model = NNKMeans(30, normalize=False, random_state=0).fit(X)
    near, far = model.encode(np.stack([X[0], 50 * X[0]])).ood_score
    assert far > near + 100


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_atoms": 0}, "n_atoms=0"),
        ({"n_atoms": -3}, "whole number of at least 1"),
        ({"n_atoms": "many"}, "'auto'"),
        ({"n_atoms": True}, "n_atoms=True"),
        ({"n_neighbors": 0}, "n_neighbors=0"),
        ({"kernel": "rbf"}, "'gaussian' or 'cosine'"),
        ({"bandwidth": -1.0}, "bandwidth=-1.0"),
        ({"bandwidth": float("nan")}, "bandwidth=nan"),
        ({"entropy": -0.1}, "entropy=-0.1"),
        ({"entropy": float("inf")}, "entropy=inf"),
        ({"max_atoms": 0}, "max_atoms=0"),
        ({"max_bytes": 0}, "max_bytes=0"),
        ({"update": "sgd"}, "'average' or 'mod'"),
        ({"n_epochs": -1}, "n_epochs=-1"),
        ({"init": "best"}, "'k-means++' or 'random'"),
        ({"init": np.ones((2, 3))}, "init has 3 columns but X has 9"),
        ({"n_jobs": 0}, "n_jobs=0"),
        ({"normalize": "yes"}, "normalize='yes'"),
    ],
)
def test_wrong_settings_are_named(X, settings, words):
    with pytest.raises(InputError) as caught:
        NNKMeans(**settings).fit(X)
    assert words in str(caught.value)


def test_random_first_atoms_work_too(X):
    assert len(NNKMeans(25, init="random", random_state=0).fit(X).atoms_) == 25


def test_sparse_codes_are_not_made_a_table(X):
    model = NNKMeans(10, random_state=0).fit(X).set_output(transform="pandas")
    with pytest.raises(ValueError, match=r"sparse matrix.*set_output\(transform='default'\)"):
        model.transform(X)
    assert model.set_output(transform="default").transform(X).shape == (len(X), 10)


def test_the_layout_of_rows_changes_no_bit(X):
    expected = NNKMeans(30, random_state=0).fit(X)
    found = NNKMeans(30, random_state=0).fit(np.asfortranarray(X))
    np.testing.assert_array_equal(found.atoms_, expected.atoms_)
    for one, other in zip(found.encode(np.asfortranarray(X)), expected.encode(X), strict=True):
        np.testing.assert_array_equal(one, other)

"""The local solver against scipy's, on problems of every kind of difficulty."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import nnls

from outscope.engine.kernels.nnls import solve_batch, solve_nonnegative


def solve(gram, target, solver=solve_nonnegative):
    k = len(target)
    code = np.empty(k)
    scratch = np.empty((k, k)), np.empty(k, np.uintp), np.empty(k, np.int8), np.empty(k)
    solver(gram, target, k, code, *scratch)
    return code


def objective(A, b, code):
    return float(np.sum((A @ code - b) ** 2))


numbers = st.floats(-3, 3, allow_nan=False, width=32).map(lambda v: round(v, 3))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_problem_is_solved_as_well_as_scipy_does(data):
    """Includes dependent columns, zero columns and more unknowns than equations."""
    d, k = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 8))
    A = data.draw(arrays(np.float64, (d, k), elements=numbers))
    b = data.draw(arrays(np.float64, d, elements=numbers))
    code = solve(A.T @ A, A.T @ b)
    assert (code >= 0).all()
    expected, _ = nnls(A, b)
    assert objective(A, b, code) <= objective(A, b, expected) + 1e-7 * (1 + b @ b)


@pytest.mark.parametrize("solver", [solve_nonnegative, solve_nonnegative.py_func])
@pytest.mark.parametrize("k", [1, 2, 7, 20, 40])
def test_weights_equal_scipy_on_regular_problems(solver, k):
    rng = np.random.default_rng(k)
    for _ in range(20):
        A = np.abs(rng.normal(size=(60, 1))) + 0.4 * rng.normal(size=(60, k))
        b = np.abs(rng.normal(size=60))
        expected, _ = nnls(A, b)
        np.testing.assert_allclose(solve(A.T @ A, A.T @ b, solver), expected, atol=1e-9)


def test_duplicated_atoms_share_and_do_not_fail():
    A = np.repeat(np.eye(3), 4, axis=1)
    b = np.array([1.0, 2.0, 0.0])
    code = solve(A.T @ A, A.T @ b)
    np.testing.assert_allclose(A @ code, b, atol=1e-12)


def test_nothing_similar_gives_an_empty_code():
    assert solve(np.eye(4), -np.ones(4)).tolist() == [0.0] * 4


def test_zero_gram_does_not_divide_by_zero():
    assert np.isfinite(solve(np.zeros((3, 3)), np.ones(3))).all()


def test_batch_solves_each_problem_on_its_own():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(5, 30, 6))
    grams, targets = np.einsum("nij,nik->njk", A, A), np.einsum("nij,ni->nj", A, A[:, :, 0])
    codes = np.empty((5, 6))
    solve_batch(grams, targets, codes)
    for gram, target, code in zip(grams, targets, codes, strict=True):
        np.testing.assert_array_equal(code, solve(gram, target))

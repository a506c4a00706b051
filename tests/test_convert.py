"""Rows → float32: numpy's values, and the same bits for any thread count."""

from __future__ import annotations

import numpy as np
import pytest

from outscope.engine.blocks import NonFiniteRowsError
from outscope.engine.convert import to_float32, unit_rows

KINDS = [np.float16, np.float32, np.float64, ">f2", ">f4", np.int32]


def rows_of(kind, n=700, d=33):
    return (np.random.default_rng(0).normal(size=(n, d)) * 8).astype(kind)


def test_every_half_precision_number_is_converted_as_numpy_does():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(64, -1)
    with np.errstate(invalid="ignore"):
        assert to_float32(every).tobytes() == every.astype(np.float32).tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_any_type_and_layout_is_converted(kind):
    X = rows_of(kind)
    expected = X.astype(np.float32)
    fixed = X.copy()
    fixed.flags.writeable = False
    for same in (X, np.asfortranarray(X), np.repeat(X, 2, axis=0)[::2], fixed):
        found = to_float32(same, 2)
        np.testing.assert_array_equal(found, expected)
        assert found.flags.c_contiguous
    assert to_float32(expected) is expected


@pytest.mark.parametrize("kind", KINDS)
def test_unit_rows_have_unit_length_and_do_not_depend_on_threads(kind):
    X = rows_of(kind)
    X[3] = 0
    exact = X.astype(np.float64)
    length = np.linalg.norm(exact, axis=1, keepdims=True)
    expected = np.divide(exact, length, out=np.zeros_like(exact), where=length > 0)
    found = unit_rows(X, 1)
    np.testing.assert_allclose(found, expected, rtol=2e-7)
    assert not found[3].any()
    for threads in (2, 3, 7):
        assert unit_rows(X, threads).tobytes() == found.tobytes()
    for i in (0, 300, 699):
        assert unit_rows(X[i : i + 1]).tobytes() == found[i].tobytes()
    assert unit_rows(X[:0]).shape == (0, 33)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_without_a_length_are_refused(bad):
    X = rows_of(np.float16)
    X[500, 2] = bad
    with pytest.raises(NonFiniteRowsError):
        unit_rows(X, 2)

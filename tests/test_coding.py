"""Codes and scores: exact, and independent of batches, order and threads."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.optimize import nnls
from threadpoolctl import ThreadpoolController

from outscope.engine.blocks import threads_of
from outscope.engine.coder import ClassCoder, Coder
from outscope.engine.kernels.blas import one_thread_each
from outscope.engine.kernels.parallel import available_cores


def kernel(a, b, bandwidth):
    a, b = a.astype(np.float64), b.astype(np.float64)
    if bandwidth == 0:
        return a @ b.T
    return np.exp(-((a[:, None] - b[None]) ** 2).sum(axis=2) / (2 * bandwidth))


def unit(X):
    X = X.astype(np.float64)
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def problem(seed=0, n=80, m=300, d=16):
    rng = np.random.default_rng(seed)
    atoms = unit(rng.normal(size=(m, d)) + 1).astype(np.float32)
    return rng.normal(size=(n, d)).astype(np.float32) + 1, atoms


@pytest.mark.parametrize("bandwidth", [0.0, 0.02, 0.3, 2.0])
@pytest.mark.parametrize("k", [1, 5, 20])
def test_codes_equal_scipy_nnls(bandwidth, k):
    X, atoms = problem()
    codes = Coder(atoms, bandwidth).code(X, k)
    rows = unit(X)
    similarity = kernel(rows, atoms, bandwidth)
    for i in range(len(X)):
        chosen = codes.neighbors[i]
        assert set(chosen) == set(np.argsort(-similarity[i], kind="stable")[:k])
        # nnls wants A and b with AᵀA = K and Aᵀb = k_q.
        root = np.linalg.cholesky(
            kernel(atoms[chosen], atoms[chosen], bandwidth) + 1e-13 * np.eye(k)
        )
        target = similarity[i, chosen]
        scale = max(target.max(), 1e-300)
        expected, _ = nnls(root.T, np.linalg.solve(root, target / scale))
        np.testing.assert_allclose(codes.weights[i] / scale, expected, atol=1e-6)


@pytest.mark.parametrize("bandwidth", [0.0, 0.05])
def test_scores_do_not_depend_on_batch_order_or_threads(bandwidth):
    X, atoms = problem(1, n=700, m=900, d=64)
    coder = Coder(atoms, bandwidth)
    whole = coder.ood_score(X, 20, 1)
    for threads in (2, 3, 7):
        np.testing.assert_array_equal(coder.ood_score(X, 20, threads), whole)
    order = np.random.default_rng(0).permutation(len(X))
    np.testing.assert_array_equal(coder.ood_score(X[order], 20), whole[order])
    singles = [coder.ood_score(X[i : i + 1], 20)[0] for i in range(50)]
    np.testing.assert_array_equal(singles, whole[:50])
    np.testing.assert_array_equal(coder.code(X, 20).ood_score, whole)


@pytest.mark.parametrize("bandwidth", [0.0, 0.05])
def test_a_kept_gram_matrix_changes_no_bit(bandwidth):
    X, atoms = problem(2)
    cold, warm = Coder(atoms, bandwidth), Coder(atoms, bandwidth)
    warm.ood_score(X, 20)
    assert "gram" in warm._cache
    first = cold.ood_score(X[:1], 20)
    assert "gram" not in cold._cache
    assert first[0] == warm.ood_score(X[:1], 20)[0]


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32])
def test_number_types_agree(dtype):
    X, atoms = problem(3)
    X = np.round(X * 8).astype(dtype)
    coder = Coder(atoms, 0.05)
    np.testing.assert_array_equal(coder.ood_score(X, 20), coder.ood_score(X.astype(np.float32), 20))


def test_layout_does_not_matter():
    X, atoms = problem(4)
    coder = Coder(atoms, 0.05)
    expected = coder.ood_score(X, 20)
    np.testing.assert_array_equal(coder.ood_score(np.asfortranarray(X), 20), expected)
    np.testing.assert_array_equal(coder.ood_score(np.repeat(X, 2, axis=0)[::2], 20), expected)
    X.flags.writeable = False
    np.testing.assert_array_equal(coder.ood_score(X, 20), expected)


def test_far_rows_keep_their_order_under_a_narrow_kernel():
    """exp(−d²/2σ) is 0 in float64 for all of these; their scores still differ and rise."""
    atoms = np.array([[1.0, 0.0]], dtype=np.float32)
    angle = np.linspace(0.1, 3.1, 200)
    X = np.c_[np.cos(angle), np.sin(angle)]
    scores = Coder(atoms, 1e-4).ood_score(X, 20)
    assert (np.diff(scores) > 0).all()


def test_cosine_rows_that_point_away_keep_their_order():
    atoms = np.array([[1.0, 0.0]], dtype=np.float32)
    angle = np.linspace(0.1, 3.1, 200)
    scores = Coder(atoms, 0.0).ood_score(np.c_[np.cos(angle), np.sin(angle)], 20)
    assert (np.diff(scores) > 0).all()


def test_one_atom_gives_the_squared_distance():
    X, atoms = problem(5, m=1)
    expected = ((unit(X) - atoms.astype(float)) ** 2).sum(axis=1)
    np.testing.assert_allclose(Coder(atoms, 0.3).ood_score(X, 20), expected, atol=1e-12)


def test_many_threads_may_score_at_once():
    X, atoms = problem(6, n=400)
    coder = Coder(atoms, 0.05)
    expected = Coder(atoms, 0.05).ood_score(X, 20)
    with ThreadPoolExecutor(8) as pool:
        for scores in pool.map(lambda _: coder.ood_score(X, 20), range(32)):
            np.testing.assert_array_equal(scores, expected)


def test_any_thread_can_hold_blas_at_one_thread():
    def threads():
        controllers = ThreadpoolController().select(user_api="blas").lib_controllers
        return [library.get_num_threads() for library in controllers]

    def held():
        with one_thread_each():
            return threads()

    before = threads()
    for _ in range(2):  # another thread each time, after this one has held it, too
        assert set(held()) == {1}
        with ThreadPoolExecutor(1) as pool:
            assert set(pool.submit(held).result()) == {1}
        assert threads() == before


def test_the_environment_can_ask_for_fewer_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = available_cores()
    for told, meant in (("1", 1), (str(cores + 5), cores), ("0", cores), ("²", cores)):
        monkeypatch.setenv("OMP_NUM_THREADS", told)
        assert available_cores() == threads_of(None) == meant


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_can_score_after_its_parent_has():
    X, atoms = problem(7, n=400)
    coder = Coder(atoms, 0.05)
    expected = coder.ood_score(X, 20, 2)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, pickle.dumps(coder.ood_score(X, 20, 2).tolist()))
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        scores = pickle.loads(pipe.read())
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(scores, expected)


@pytest.mark.parametrize("bandwidth", [0.0, 0.04, 0.5])
@pytest.mark.parametrize("k", [3, 20])
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_skipping_classes_changes_no_score(bandwidth, k, shift):
    """All classes at once, most skipped, equals solving each class and taking the minimum."""
    rng = np.random.default_rng(8)
    dictionaries = [
        unit(rng.normal(size=(size, 12)) + shift + 2 * rng.normal(size=12)).astype(np.float32)
        for size in (1, 2, 5, 25, 40, 25, 3)
    ]
    X = rng.normal(size=(300, 12)) + shift
    each = np.array([Coder(atoms, bandwidth).ood_score(X, k) for atoms in dictionaries])
    scores, classes = ClassCoder(dictionaries, bandwidth).ood_score(X, k)
    np.testing.assert_array_equal(scores, each.min(axis=0))
    np.testing.assert_array_equal(classes, each.argmin(axis=0))


def classes_of_many_kinds(seed=11, d=12):
    """One atom, two, more than k, duplicates; the last class is a copy of an earlier one."""
    rng = np.random.default_rng(seed)
    sizes = (1, 2, 5, 25, 40, 1, 3)
    dictionaries = [
        unit(rng.normal(size=(size, d)) + 1 + rng.normal(size=d)).astype(np.float32)
        for size in sizes
    ]
    dictionaries[3][10:14] = dictionaries[3][5]
    return rng.normal(size=(400, d)).astype(np.float32) + 1, [*dictionaries, dictionaries[4]]


def same_bits(one, other):
    return all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("bandwidth", [0.0, 0.002, 0.04, 0.5])
@pytest.mark.parametrize("k", [1, 4, 20, 100])
@pytest.mark.parametrize("discount", [False, True])
def test_codes_of_the_best_class_are_what_that_class_gives_alone(bandwidth, k, discount):
    X, dictionaries = classes_of_many_kinds()
    common = np.full(12, 0.05) if discount and bandwidth else None
    coder = ClassCoder(dictionaries, bandwidth, discount=common)
    codes = coder.code(X, k)
    assert same_bits(codes[2:], coder.ood_score(X, k))
    assert codes.neighbors.shape == codes.weights.shape == (len(X), min(k, 40))
    assert len(np.unique(codes.classes)) >= 5
    for c in np.unique(codes.classes):
        mine = codes.classes == c
        alone = Coder(dictionaries[c], bandwidth, discount=common).code(X[mine], k, relative=True)
        size = alone.weights.shape[1]
        neighbors = codes.neighbors[mine] - coder.starts[c]
        np.testing.assert_array_equal(neighbors[:, :size], alone.neighbors)
        np.testing.assert_array_equal(codes.weights[mine, :size], alone.weights)
        np.testing.assert_array_equal(codes.ood_score[mine], alone.ood_score)
        assert not codes.weights[mine, size:].any()
        assert (neighbors[:, size:] == neighbors[:, :1]).all()


@pytest.mark.parametrize("bandwidth", [0.0, 0.04])
def test_codes_of_the_best_class_equal_scipy_nnls(bandwidth):
    X, dictionaries = classes_of_many_kinds(12)
    atoms, rows = np.concatenate(dictionaries).astype(np.float64), unit(X)
    codes = ClassCoder(dictionaries, bandwidth).code(X, 10)
    similarity = kernel(rows, atoms, bandwidth)
    for i, chosen in enumerate(codes.neighbors):
        if similarity[i, chosen[0]] <= 0:
            assert not codes.weights[i].any()
            continue
        # Duplicates share a weight as they like: compare what all the atoms add up to.
        used = np.unique(chosen)
        gram = kernel(atoms[used], atoms[used], bandwidth)
        root = np.linalg.cholesky(gram + 1e-12 * np.eye(len(used)))
        scale = 1.0 if bandwidth == 0 else similarity[i, chosen[0]]
        expected, _ = nnls(root.T, np.linalg.solve(root, similarity[i, used] / scale))
        carried = codes.weights[i] @ atoms[chosen]
        np.testing.assert_allclose(carried, expected @ atoms[used], atol=1e-6)


@pytest.mark.parametrize("bandwidth", [0.0, 0.04])
def test_codes_of_the_best_class_do_not_depend_on_batch_order_or_threads(bandwidth):
    X, dictionaries = classes_of_many_kinds(13)
    coder = ClassCoder(dictionaries, bandwidth)
    whole = coder.code(X, 20, 1)
    for threads in (2, 7):
        assert same_bits(coder.code(X, 20, threads), whole)
    order = np.random.default_rng(0).permutation(len(X))
    assert same_bits(coder.code(X[order], 20), [part[order] for part in whole])
    for i in range(50):
        assert same_bits(coder.code(X[i : i + 1], 20), [part[i : i + 1] for part in whole])


def test_atoms_that_point_apart_are_not_skipped():
    """Two atoms at 120 degrees explain a row between them that neither is near to."""
    apart = np.array([[1, 0], [-0.5, 0.75**0.5]], dtype=np.float32)
    close = np.array([[np.cos(0.3), np.sin(0.3)]], dtype=np.float32)
    row = np.array([[np.cos(0.17), np.sin(0.17)]])
    scores, classes = ClassCoder([apart, close], 0.0).ood_score(row, 5)
    assert classes[0] == 0
    assert scores[0] == pytest.approx(0.0, abs=1e-7)


def test_rows_too_long_for_float32_are_refused():
    coder = Coder(np.eye(3, dtype=np.float32), 0.5, normalize=False)
    with pytest.raises(ValueError, match="too long"):
        coder.ood_score(np.full((2, 3), 1e40), 3)


def test_byte_order_does_not_matter():
    X, atoms = problem(10)
    coder = Coder(atoms, 0.05)
    np.testing.assert_array_equal(coder.ood_score(X.astype(">f4"), 20), coder.ood_score(X, 20))


def test_skipping_stays_right_without_normalising():
    rng = np.random.default_rng(9)
    dictionaries = [rng.normal(size=(6, 5)).astype(np.float32) * s for s in (0.5, 1, 4)]
    X = rng.normal(size=(100, 5)) * 3
    for bandwidth in (0.0, 0.7):
        each = [Coder(a, bandwidth, normalize=False).ood_score(X, 4) for a in dictionaries]
        scores, _ = ClassCoder(dictionaries, bandwidth, normalize=False).ood_score(X, 4)
        np.testing.assert_array_equal(scores, np.min(each, axis=0))

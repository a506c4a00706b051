"""Our own contract, for every public detector that there is or will be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from threadpoolctl import threadpool_limits

import outscope
from outscope import InputError, Promise
from outscope._sklearn import check_rows
from outscope.decisions.metrics import auroc
from outscope.decisions.threshold import HELD_OUT
from outscope.detectors.methods import CLASSES
from outscope.io import models

OOD = np.repeat([0, 1], [60, 40])


@pytest.fixture
def fitted(detector, blobs):
    X, y, _, _ = blobs
    return detector.fit(X, y)


def test_the_sign_is_one_through_every_layer(fitted, blobs, tmp_path):
    _, _, fresh, far = blobs
    near, strange = fitted.ood_score(fresh), fitted.ood_score(far)
    assert strange.min() > np.median(near)
    assert auroc(OOD, np.r_[near, strange]) > 0.95
    np.testing.assert_array_equal(fitted.score_samples(far), -strange)
    np.testing.assert_array_equal(fitted.decision_function(far), -strange - fitted.offset_)
    assert fitted.threshold_ == -fitted.offset_
    fitted.set_threshold(value=(near.max() + strange.min()) / 2)
    np.testing.assert_array_equal(fitted.is_ood(far), strange > fitted.threshold_)
    np.testing.assert_array_equal(fitted.predict(far), np.where(fitted.is_ood(far), -1, 1))
    fitted.calibrate(fresh, fpr=0.1)
    assert fitted.p_value(far).mean() < fitted.p_value(fresh).mean()
    fitted.save(tmp_path / "model")
    manifest = json.loads((tmp_path / "model" / "manifest.json").read_text())
    assert manifest["score_direction"] == "higher_is_ood"
    np.save(tmp_path / "far.npy", far)
    done = subprocess.run(
        [sys.executable, "-m", "outscope", "score", tmp_path / "model", tmp_path / "far.npy"],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["ood_score"] for line in lines] == strange.tolist()
    assert [line["is_ood"] for line in lines] == (strange > fitted.threshold_).tolist()


def test_scores_do_not_depend_on_the_rest_of_the_batch(fitted, blobs):
    _, _, fresh, far = blobs
    queries = np.concatenate([fresh, far])
    whole = fitted.ood_score(queries)
    assert whole.shape == (100,)
    assert whole.dtype == np.float64
    for size in (1, 2, 7, 33):
        parts = [fitted.ood_score(queries[i : i + size]) for i in range(0, 100, size)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(fitted.ood_score(queries[::-1])[::-1], whole)


def test_wide_rows_have_the_same_bits_in_any_company(detector):
    """Sums over many columns are where libraries of linear algebra change the order."""
    rng = np.random.default_rng(0)
    y = np.arange(500) % 5
    X = (6 * np.eye(5, 389)[y] + rng.normal(size=(500, 389)) * rng.random(389)).astype(np.float32)
    queries = X[::-1] + rng.normal(size=X.shape).astype(np.float32)
    detector.fit(X, y)
    expected = detector.ood_score(queries)
    order = rng.permutation(500)
    np.testing.assert_array_equal(detector.ood_score(queries[order]), expected[order])
    for size, threads in ((1, 2), (3, 1), (64, 2), (500, 1)):
        with threadpool_limits(threads, user_api="blas"):
            parts = [detector.ood_score(queries[i : i + size]) for i in range(0, 500, size)]
        np.testing.assert_array_equal(np.concatenate(parts), expected)


def layouts(X):
    """The same rows in every layout that numpy, pandas and files give."""
    spaced = np.zeros((2 * len(X), 2 * X.shape[1]), X.dtype)
    spaced[::2, ::2] = X
    return {
        "fortran": np.asfortranarray(X),
        "spaced": spaced[::2, ::2],
        "swapped": X.astype(X.dtype.newbyteorder()),
        "table": pandas.DataFrame(X, columns=[f"c{i}" for i in range(X.shape[1])]),
        "list": X.tolist(),
        "read-only": np.frombuffer(X.tobytes(), X.dtype).reshape(X.shape),
    }


def test_the_layout_of_rows_changes_no_bit_of_a_score(fitted, blobs):
    queries = np.concatenate(blobs[2:])
    expected = fitted.ood_score(queries)
    for name, rows in layouts(queries).items():
        if name != "table":  # whose column names the fitted detector has not seen
            np.testing.assert_array_equal(fitted.ood_score(rows), expected, err_msg=name)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_layout_of_rows_changes_no_bit_of_a_fit(detector, blobs, dtype):
    X, y, fresh, _ = blobs
    X, fresh = X.astype(dtype), fresh.astype(dtype)
    expected = clone(detector).fit(X, y).ood_score(fresh)
    queries = layouts(fresh)
    for name, rows in layouts(X).items():
        if name != "list" or dtype is np.float64:  # a list is of float64
            found = clone(detector).fit(rows, y).ood_score(queries[name])
            np.testing.assert_array_equal(found, expected, err_msg=name)


def test_rows_on_disk_are_not_copied(tmp_path):
    X = np.memmap(tmp_path / "rows", np.float32, "w+", shape=(50, 6))
    assert np.shares_memory(check_rows(outscope.NNKDetector(), X, reset=True), X)


def test_fitting_is_the_same_on_any_number_of_threads(detector):
    if isinstance(detector, outscope.KMeansDetector):
        pytest.skip("scikit-learn's k-means adds up centres in the order of its threads")
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(1100, 40)) + 3 * np.eye(40)[np.arange(1100) % 3], np.arange(1100) % 3
    found = []
    for threads in (1, 2):
        if "n_jobs" in detector.get_params():
            detector.set_params(n_jobs=threads)
        with threadpool_limits(threads, user_api="blas"):
            found.append(detector.fit(X, y).ood_score(X))
    np.testing.assert_array_equal(*found)


def test_one_job_is_one_thread(detector):
    """All the time that fit and scoring take is the calling thread's own."""
    rng = np.random.default_rng(0)
    y = np.arange(3000) % 2
    X = rng.normal(size=(3000, 300)) + 40 * np.eye(300)[y]
    if "n_jobs" in detector.get_params():
        detector.set_params(n_jobs=1)
    detector.fit(X[:100], y[:100]).ood_score(X[:100])  # compiles what is not yet
    time.sleep(0.3)  # threads of the work before go on spinning for a while
    every, own = time.process_time(), time.thread_time()
    detector.fit(X, y).ood_score(X)
    detector.ood_score(X[:5])
    own = time.thread_time() - own
    assert time.process_time() - every - own < 0.05 * own + 0.02


def test_threads_change_no_bit(fitted, blobs):
    _, _, fresh, far = blobs
    queries = np.tile(np.concatenate([fresh, far]), (5, 1))
    expected = fitted.ood_score(queries)
    if "n_jobs" in fitted.get_params():
        for jobs in (1, 2, 5):
            np.testing.assert_array_equal(
                fitted.set_params(n_jobs=jobs).ood_score(queries), expected
            )
    with ThreadPoolExecutor(6) as pool:
        for scores in pool.map(lambda _: fitted.ood_score(queries), range(12)):
            np.testing.assert_array_equal(scores, expected)


def test_fitting_twice_is_fitting_once(fitted, blobs):
    X, y, fresh, far = blobs
    first = fitted.calibrate(fresh, fpr=0.2).ood_score(far)
    again = fitted.fit(X, y)
    np.testing.assert_allclose(again.ood_score(far), first, rtol=1e-9)
    with pytest.raises(InputError, match="calibrate"):
        again.p_value(far)


def test_a_fit_that_fails_loses_nothing(fitted, blobs):
    before = fitted.ood_score(blobs[2])
    with pytest.raises(ValueError, match="NaN"):
        fitted.fit(np.full((50, 3), np.nan))
    with pytest.raises(ValueError, match="rows"):
        outscope.ClasswiseNNKDetector().fit(blobs[0], ["a"])
    np.testing.assert_array_equal(fitted.ood_score(blobs[2]), before)


def test_a_saved_detector_scores_the_same_in_a_new_process(fitted, blobs, tmp_path):
    _, _, fresh, far = blobs
    fitted.calibrate(fresh, fpr=0.1).save(tmp_path / "model")
    np.save(tmp_path / "q.npy", far)
    code = (
        "import sys, pickle, numpy as np\n"
        "def refuse(*a, **k): raise RuntimeError('pickle used')\n"
        "import outscope\n"
        "kept = pickle.load, pickle.loads\n"
        "pickle.load = pickle.loads = refuse\n"
        f"d = outscope.load({str(tmp_path / 'model')!r})\n"
        "pickle.load, pickle.loads = kept\n"  # numba keeps compiled kernels in pickles of its own
        f"X = np.load({str(tmp_path / 'q.npy')!r})\n"
        "sys.stdout.buffer.write(np.r_[d.ood_score(X), d.p_value(X), d.threshold_].tobytes())\n"
    )
    one = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, env={**os.environ, **one}
    )
    there = np.frombuffer(done.stdout)
    here = np.r_[fitted.ood_score(far), fitted.p_value(far), fitted.threshold_]
    np.testing.assert_array_equal(there, here)


def test_a_loaded_detector_is_the_same_object_again(fitted, blobs, tmp_path):
    fitted.save(tmp_path / "m")
    back = outscope.load(tmp_path / "m")
    assert type(back) is type(fitted)
    assert back.get_params() == fitted.get_params()
    assert set(vars(back)) == set(vars(fitted))
    back.save(tmp_path / "n")
    state = [json.loads((tmp_path / f / "manifest.json").read_text())["state"] for f in "mn"]
    assert state[0] == state[1]


def test_the_threshold_moves_after_fit(fitted, blobs):
    fresh = blobs[2]
    for rate in (0.01, 0.1, 0.3):
        cut = fitted.set_threshold(fpr=rate).threshold_
        assert (fitted.held_out_scores_ > cut).mean() == pytest.approx(rate, abs=0.015)
        assert fitted.promise_ is None
    with pytest.raises(InputError, match="confidence needs"):
        fitted.set_threshold(fpr=0.1, confidence=0.9)
    fitted.calibrate(fresh, fpr=0.1)
    assert fitted.promise_ == Promise(0.1, len(fresh), HELD_OUT)
    assert "P(false alarm) ≤ 10 %" in repr(fitted)
    assert fitted.set_threshold(value=1.0).promise_ is None
    assert "no promise" in repr(fitted)
    average = fitted.set_threshold(fpr=0.1).threshold_
    assert fitted.set_threshold(fpr=0.1, confidence=0.9).threshold_ >= average
    assert fitted.promise_.confidence == 0.9
    fitted.calibrate(fresh, fpr=0.1)
    assert fitted.is_ood(fresh).mean() <= 0.1
    wide = fitted.threshold_
    assert fitted.set_threshold(fpr=0.3).threshold_ < wide
    with pytest.raises(InputError, match="at least 999"):
        fitted.set_threshold(fpr=0.001)
    with pytest.raises(InputError, match="one of the two"):
        fitted.set_threshold()
    with pytest.raises(InputError, match="finite"):
        fitted.set_threshold(value=np.nan)
    with pytest.raises(InputError, match="rate"):
        fitted.set_threshold(fpr=1.5)


def test_the_promised_false_alarm_rate_is_kept_on_average():
    """Over many splits the rate on fresh rows stays below the promise, and near it."""
    rng = np.random.default_rng(0)
    rates = []
    for _ in range(40):
        X = rng.normal(size=(700, 6)) + 1
        detector = outscope.NNKDetector(20, random_state=0).fit(X[:100])
        rates.append(detector.calibrate(X[100:199], fpr=0.1).is_ood(X[199:]).mean())
    assert 0.07 < np.mean(rates) < 0.11


def test_an_unfitted_detector_says_so(detector, blobs, tmp_path):
    for use in (
        lambda: detector.ood_score(blobs[0]),
        lambda: detector.predict(blobs[0]),
        lambda: detector.threshold_,
        lambda: detector.set_threshold(fpr=0.1),
        lambda: detector.save(tmp_path / "x"),
        lambda: detector.p_value(blobs[0]),
        lambda: detector.calibrate(blobs[0]),
    ):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            use()
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda X: X[:, :5], "24 features as input. Give rows like those it was fitted on"),
        (lambda X: X[:0], "0 sample"),
        (lambda X: X[0], "2D"),
        (lambda X: np.where(np.arange(24) == 3, np.nan, X), "NaN"),
        (lambda X: np.where(np.arange(24) == 3, np.inf, X), "infinity"),
        (lambda X: np.full(X.shape, "hello"), "could not convert|dtype"),
        (lambda X: X.astype(complex), "[Cc]omplex"),
        (lambda X: None, "."),
        (lambda X: np.ma.masked_greater(X, 3.0), "X is a masked array"),
        (lambda X: (100 * X).astype("datetime64[s]"), "X holds times"),
        (lambda X: list((100 * X).astype("timedelta64[s]")), "X holds times"),
        (lambda X: pandas.DataFrame((100 * X).astype("datetime64[s]")), "X holds times"),
    ],
    ids=[
        *("width", "no rows", "one dimension", "nan", "infinity", "text", "complex", "none"),
        *("masked", "dates", "durations", "table of dates"),
    ],
)
def test_bad_rows_are_refused_and_nothing_is_lost(fitted, blobs, spoil, words):
    before = fitted.ood_score(blobs[2])
    for verb in (fitted.ood_score, fitted.predict, fitted.score_samples, fitted.calibrate):
        with pytest.raises((ValueError, TypeError), match=words):
            verb(spoil(blobs[2]))
    if "24 features" not in words:
        with pytest.raises((ValueError, TypeError), match=words):
            fitted.fit(spoil(blobs[2]))
    np.testing.assert_array_equal(fitted.ood_score(blobs[2]), before)


@pytest.mark.parametrize(
    "rows",
    [
        np.ones((1, 5)),
        np.ones((50, 5)),
        np.arange(30.0)[:, None] - 10,
        np.zeros((20, 3)),
        np.repeat(np.eye(4), 25, axis=0),
        np.random.default_rng(0).normal(size=(10, 200)),
        np.random.default_rng(0).normal(size=(40, 6)).astype(np.float16),
        np.random.default_rng(0).integers(-5, 5, size=(40, 6)),
        np.asfortranarray(np.random.default_rng(0).normal(size=(40, 6))),
        np.random.default_rng(0).normal(size=(40, 6)) * 1e-30,
        np.random.default_rng(0).normal(size=(40, 6)) * 1e30,
    ],
    ids=[
        "one row",
        "constant",
        "one column",
        "zero",
        "duplicates",
        "wide",
        "float16",
        "integer",
        "fortran",
        "tiny",
        "huge",
    ],
)
def test_odd_data_gives_finite_scores(detector, rows):
    scores = detector.fit(rows).ood_score(rows)
    assert np.isfinite(scores).all()
    assert set(detector.predict(rows)) <= {1, -1}


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["a"] * 10, "10 labels but X has 180 rows"),
        ([["a", "b"]] * 180, "shape"),
        ([None] * 180, "missing"),
        ([float("nan")] * 180, "missing"),
        (["a", 1] * 90, "mixes"),
        (["a"] * 179 + [float("nan")], "missing"),
        (np.array([b"a"] * 180), "text first"),
        (np.zeros(180, dtype="datetime64[D]"), "text first"),
        (np.ma.masked_equal(np.arange(180) % 3, 2), "y is a masked array"),
    ],
)
def test_bad_labels_are_refused_where_labels_count(blobs, labels, words):
    detector = outscope.ClasswiseNNKDetector()
    with pytest.raises(ValueError, match=words):
        detector.fit(blobs[0], labels)


def test_a_label_seen_once_and_more_atoms_than_rows_are_fine(detector, blobs):
    X, y, fresh, _ = blobs
    y = y.astype(object)
    y[0] = "rare"
    if "n_atoms" in detector.get_params():
        detector.set_params(n_atoms=1000)
    if "n_clusters" in detector.get_params():
        detector.set_params(n_clusters=1000)
    assert np.isfinite(detector.fit(X, y).ood_score(fresh)).all()


@pytest.mark.parametrize("kind", [outscope.NNKDetector, outscope.ClasswiseNNKDetector])
def test_candidates_beyond_the_dictionary_are_fine(blobs, kind):
    detector = kind(7, n_neighbors=200_000, random_state=0).fit(*blobs[:2])
    assert np.isfinite(detector.ood_score(blobs[2])).all()


@pytest.mark.parametrize("kind", [outscope.NNKDetector, outscope.ClasswiseNNKDetector])
@pytest.mark.parametrize("normalize", [True, False])
def test_zero_rows_under_the_cosine_kernel(kind, normalize):
    detector = kind(kernel="cosine", normalize=normalize)
    assert np.isfinite(detector.fit(np.zeros((60, 5))).ood_score(np.eye(5))).all()
    X = np.random.default_rng(0).normal(size=(60, 5))
    assert detector.fit(X).ood_score(np.zeros((1, 5))) == pytest.approx(1.0)


def test_small_and_far_rows_keep_their_dictionary_without_normalising():
    X = np.random.default_rng(0).normal(size=(400, 6))
    assert len(outscope.NNKDetector(100, normalize=False).fit(X * 1e-4).atoms_) == 100
    X[0] *= 3e3
    assert len(outscope.NNKDetector(100, normalize=False).fit(X).atoms_) == 100
    with pytest.raises(InputError, match="rescale X"):
        outscope.NNKDetector(normalize=False).fit(X * 1e30)


def test_contamination_is_the_flagged_share_of_the_training_rows(detector, blobs):
    for share in (0.02, 0.25):
        flagged = clone(detector).set_params(contamination=share).fit(blobs[0]).is_ood(blobs[0])
        assert flagged.mean() == pytest.approx(share, abs=0.012)
    with pytest.raises(InputError, match=r"contamination=0\.7"):
        clone(detector).set_params(contamination=0.7).fit(blobs[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_fork_while_others_score_leaves_the_child_free_to_score(detector):
    """A pre-forking server loads once and scores in its children."""
    code = (
        "import gc, os, sys, threading, numpy as np, outscope\n"
        "from outscope.engine.blocks import Engine\n"
        "rng = np.random.default_rng(0)\n"
        "y = np.arange(600) % 2\n"
        "X = 9 * np.eye(2, 256)[y] + rng.normal(size=(600, 256))\n"
        f"d = outscope.{type(detector).__name__}().fit(X, y); a = d.ood_score(X)\n"
        "engines = [one for one in gc.get_objects() if isinstance(one, Engine)]\n"
        # What another thread's first score holds while it prepares.
        "other = threading.Thread(target=lambda: [one._lock.acquire() for one in engines])\n"
        "other.start(); other.join()\n"
        "pid = os.fork()\n"
        "if pid == 0: os._exit(0 if np.array_equal(d.ood_score(X), a) else 3)\n"
        "import signal, time\n"
        "for _ in range(200):\n"
        "    done, status = os.waitpid(pid, os.WNOHANG)\n"
        "    if done: sys.exit(os.waitstatus_to_exitcode(status))\n"
        "    time.sleep(0.1)\n"
        "os.kill(pid, signal.SIGKILL); sys.exit('the child hangs')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_stored_bytes_are_those_of_every_array_that_scores_need(detector, precision, blobs):
    if "precision" in detector.get_params():
        detector.set_params(precision=precision)
    with pytest.raises(NotFittedError):
        detector.stored_bytes_  # noqa: B018
    queries = np.concatenate(blobs[2:])
    expected = detector.fit(*blobs[:2]).ood_score(queries)
    state, arrays = models.pack(detector)
    needed = 0
    for name, array in arrays.items():
        if name.rsplit(".", 1)[-1] in ("representatives_", "representative_labels_"):
            continue  # checked against each other on load, and read by explanations alone
        try:
            without = {**arrays, name: np.zeros_like(array)}
            with np.errstate(all="ignore"):
                scores = models.unpack(state, without, CLASSES).ood_score(queries)
            needed += 0 if np.array_equal(scores, expected) else array.nbytes
        except ValueError:
            needed += array.nbytes
    assert detector.stored_bytes_ == needed

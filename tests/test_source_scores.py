"""Rows that are read part by part get the same scores as rows in memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT

from outscope import InputError, NNKDetector
from outscope.engine.kernels.parallel import ahead, behind
from outscope.io import parts


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(parts, "PART_ROWS", 25)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, int])
def test_every_verb_of_every_detector_gives_the_same_bits(detector, dtype, blobs, tmp_path):
    X, y, fresh, far = (
        (10 * part).astype(dtype) if part.dtype.kind == "f" else part for part in blobs
    )
    detector.fit(X, y).calibrate(fresh)
    cut = detector.threshold_
    np.save(tmp_path / "far.npy", far)
    pq.write_table(pa.table({"v": fresh.tolist()}), tmp_path / "fresh.parquet")
    given = {
        "file": tmp_path / "far.npy",
        "function": lambda: (far[i : i + 7] for i in range(0, len(far), 7)),
    }
    given["mapped"] = np.load(tmp_path / "far.npy", mmap_mode="r")
    for name in ("ood_score", "p_value", "is_ood", "predict", "score_samples", "decision_function"):
        verb = getattr(detector, name)
        wanted = verb(far)
        for source in given.values():
            found = verb(source)
            assert found.dtype == wanted.dtype
            assert found.shape == (len(far),)
            assert np.array_equal(found, wanted), name
    before = detector.calibration_scores_
    if dtype is not np.float16:  # the parquet file has float64
        detector.calibrate(str(tmp_path / "fresh.parquet"))
        assert np.array_equal(detector.calibration_scores_, before)
        assert detector.threshold_ == cut


def test_bad_rows_and_other_widths_are_named(blobs, detector, tmp_path):
    X, y, fresh, _ = blobs
    detector.fit(X, y)
    bad = fresh.copy()
    bad[41, 3] = np.nan
    np.save(tmp_path / "bad.npy", bad)
    with pytest.raises(InputError, match=r"bad.npy, row 42 \(block 2\): NaN"):
        detector.ood_score(tmp_path)
    with pytest.raises(InputError, match=r"X has 23 features, but \w+ is expecting 24"):
        detector.ood_score(lambda: iter([X[:, 1:]]))
    with pytest.raises(InputError, match="does not exist"):
        detector.is_ood("no.npy")
    with pytest.raises(InputError, match="only once"):
        detector.calibrate(iter([X]))


def test_a_detector_must_be_fitted_before_rows_are_read(blobs):
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        NNKDetector().ood_score(lambda: iter([blobs[0]]))


def test_one_part_is_read_ahead_and_no_more():
    started, used = [], []

    def work(i):
        started.append(i)
        assert threading.current_thread() is not threading.main_thread()
        return i

    for i in ahead(work, range(6)):
        time.sleep(0.02)
        used.append(i)
        assert len(started) <= i + 2
    assert started == used == [*range(6)]
    assert list(ahead(work, [])) == []

    def fail(i):
        if i == 2:
            raise KeyError(i)
        return i

    seen = []
    with pytest.raises(KeyError):
        seen.extend(ahead(fail, range(5)))
    assert seen == [0, 1]


MEMORY = """
import resource, sys
import numpy as np
from outscope import NNKDetector
rng = np.random.default_rng(0)
detector = NNKDetector(50, n_epochs=1, random_state=0).fit(rng.normal(size=(500, 64)))
detector.ood_score(np.ones((70_000, 64), np.float32))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
scores = detector.ood_score(sys.argv[1])
assert scores.shape == (1_500_000,)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_the_rows(tmp_path):
    rows = np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.float16, (1_500_000, 64))
    for start in range(0, len(rows), 100_000):
        rows[start : start + 100_000] = np.random.default_rng(start).normal(size=(100_000, 64))
    del rows
    told = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    # The rows are 183 MB, a part of them 16 MB as float32; the scores 24 MB while they are joined.
    assert int(told.stdout) / 1024 < 110


def test_what_is_written_behind_keeps_its_order_and_tells_its_errors():
    done = []
    with behind(done.append) as put:
        for i in range(20):
            put(i)
    assert done == list(range(20))

    def full(number):
        if number == 3:
            raise OSError("disk full")
        done.append(number)

    def write_all():
        with behind(full) as put:
            for i in range(20):
                put(i)

    done.clear()
    with pytest.raises(OSError, match="disk full"):
        write_all()
    assert done == [0, 1, 2]

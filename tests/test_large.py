"""Fitting rows that need not fit in memory: samples, every row part by part, resuming."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from outscope import ClasswiseNNKDetector, KNNDetector, NNKDetector, load
from outscope.cli import main
from outscope.detectors import sampling
from outscope.errors import InputError
from outscope.io import parts

N, D = 6000, 16
KINDS = {
    "blind": lambda: NNKDetector(60, n_epochs=3, random_state=0),
    "entropy": lambda: NNKDetector(60, n_epochs=4, entropy=0.05, max_atoms=30, random_state=0),
    "cosine, mod": lambda: NNKDetector(
        60, n_epochs=3, kernel="cosine", update="mod", n_neighbors=8, random_state=0
    ),
    "classes": lambda: ClasswiseNNKDetector(15, n_epochs=3, random_state=0),
}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """The same rules at a size that tests can afford."""
    monkeypatch.setattr(sampling, "SAMPLE_ROWS", 1500)
    monkeypatch.setattr(sampling, "HELD_ROWS", 300)
    monkeypatch.setattr(parts, "PART_ROWS", 700)


@pytest.fixture(scope="module")
def cloud():
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=N)
    X = np.eye(4, D)[y] * 4 + rng.normal(size=(N, D))
    return X.astype(np.float32), y


def same(a, b):
    a, b = (d.dictionaries_ if hasattr(d, "dictionaries_") else [d.dictionary_] for d in (a, b))
    return all(
        np.array_equal(one.stored_atoms_, other.stored_atoms_)
        and np.array_equal(one.representatives_, other.representatives_)
        for one, other in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("rows", ["auto", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_files_and_functions_give_the_bits_of_an_array(kind, rows, cloud, tmp_path):
    X, y = cloud
    np.save(tmp_path / "rows.npy", X)

    def blocks():
        return (X[i : i + 700] for i in range(0, N, 700))

    fitted = [
        KINDS[kind]().fit(table, y, rows=rows) for table in (X, str(tmp_path / "rows.npy"), blocks)
    ]
    assert same(fitted[0], fitted[1])
    assert same(fitted[0], fitted[2])
    assert fitted[0].threshold_ == fitted[1].threshold_ == fitted[2].threshold_


def test_threads_do_not_change_the_bits(cloud):
    X, _ = cloud
    one, two = (
        NNKDetector(60, n_epochs=3, random_state=0, n_jobs=jobs).fit(X, rows="all")
        for jobs in (1, 2)
    )
    assert same(one, two)


def test_every_row_counts_with_all_and_only_a_sample_by_default(cloud):
    X, _ = cloud
    far = X.copy()
    far[3000:3400] = 0.0
    far[3000:3400, -1] = 9.0 + np.random.default_rng(0).normal(size=400)
    sampled = NNKDetector(60, n_epochs=3, random_state=0).fit(far, rows=1000)
    whole = NNKDetector(60, n_epochs=3, random_state=0).fit(far, rows="all")
    masses = [len(np.unique(d.representatives_)) for d in (sampled, whole)]
    assert min(masses) > 60
    # Numbers of rows are those of the whole table, not of the sample.
    assert whole.representatives_.max() > 1500
    assert whole.ood_score(far[3000:3400]).mean() < whole.threshold_


def test_rows_set_aside_make_the_threshold_hold_on_new_rows(cloud):
    X, _ = cloud
    rng = np.random.default_rng(1)
    new = np.eye(4, D)[rng.integers(4, size=4000)] * 4 + rng.normal(size=(4000, D))
    detector = NNKDetector(60, random_state=0).fit(X, rows="all")
    assert detector.promise_ is None
    assert len(detector.held_out_scores_) == 150
    assert 0.01 < detector.is_ood(new).mean() < 0.12
    detector.calibrate(fpr=0.1)
    assert "10 %" in str(detector.promise_)
    assert 0.03 < detector.is_ood(new).mean() < 0.2


def test_rare_classes_are_in_every_sample(cloud):
    X, y = cloud
    y = y.copy()
    y[:3] = 9
    detector = ClasswiseNNKDetector(10, random_state=0).fit(X, y, rows="all")
    assert detector.classes_.tolist() == [0, 1, 2, 3, 9]
    assert len(detector.dictionaries_[4].atoms_) <= 3


def test_other_detectors_learn_from_a_sample_of_a_file(cloud, tmp_path):
    np.save(tmp_path / "rows.npy", cloud[0])
    detector = KNNDetector().fit(str(tmp_path / "rows.npy"))
    assert len(detector.atoms_) == 1350
    with pytest.raises(InputError, match="needs its rows in memory"):
        KNNDetector().fit(str(tmp_path / "rows.npy"), rows="all")


def test_a_large_fit_is_saved_and_read_back(cloud, tmp_path):
    detector = NNKDetector(60, random_state=0).fit(cloud[0])
    detector.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert (again.ood_score(cloud[0][:50]) == detector.ood_score(cloud[0][:50])).all()
    assert again.calibrate(fpr=0.1).promise_ is not None


# ---- checkpoints


class StopError(Exception):
    pass


def stop_after(epochs):
    """An `advance` that ends the fit in the middle of an epoch."""
    seen = [0]

    def advance(rows):
        seen[0] += rows
        if seen[0] > epochs * N + N // 2:
            raise StopError

    return advance


@pytest.mark.parametrize("epochs", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_resumes_with_the_same_bits(kind, epochs, cloud, tmp_path):
    X, y = cloud
    kept = tmp_path / "fit.checkpoint"
    whole = KINDS[kind]().fit(X, y, rows="all")
    broken = KINDS[kind]()
    with pytest.raises(StopError):
        broken.fit(X, y, rows="all", checkpoint=kept, advance=stop_after(epochs))
    assert not hasattr(broken, "offset_")
    seen = []
    broken.fit(X, y, rows="all", checkpoint=kept, advance=seen.append)
    assert same(whole, broken)
    assert sum(seen) == (whole.n_epochs - epochs) * N
    assert not kept.exists()


def test_without_a_seed_a_fit_resumes_with_the_seed_it_began_with(cloud, tmp_path):
    kept = tmp_path / "fit.checkpoint"
    with pytest.raises(StopError):
        NNKDetector(60).fit(cloud[0], rows="all", checkpoint=kept, advance=stop_after(2))
    before = kept.read_bytes()
    twice = []
    for _ in range(2):
        kept.write_bytes(before)
        twice.append(NNKDetector(60).fit(cloud[0], rows="all", checkpoint=kept))
    assert same(*twice)


KILLED = """
import sys
from outscope import NNKDetector
from outscope.cli import main
from outscope.detectors import sampling
from outscope.io import parts
sampling.SAMPLE_ROWS, sampling.HELD_ROWS, parts.PART_ROWS = 1500, 300, 700
detector = NNKDetector(60, n_epochs=40, random_state=0)
print("ready", flush=True)
detector.fit(sys.argv[1], rows="all", checkpoint=sys.argv[2]).save(sys.argv[3])
"""


def test_a_fit_killed_again_and_again_ends_with_the_same_bits(cloud, tmp_path):
    path, kept, model = tmp_path / "rows.npy", tmp_path / "fit.checkpoint", tmp_path / "model"
    np.save(path, cloud[0])
    rng, kills = np.random.default_rng(0), 0
    for _ in range(30):
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(path), str(kept), str(model)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        child.stdout.readline()
        time.sleep(rng.uniform(0.0, 0.4))
        if kills < 4 and child.poll() is None:
            child.send_signal(signal.SIGKILL)
            kills += 1
        code = child.wait()
        child.stdout.close()
        if code == 0:
            break
    whole = NNKDetector(60, n_epochs=40, random_state=0).fit(str(path), rows="all")
    assert kills
    assert same(whole, load(model))


def test_a_checkpoint_of_something_else_is_refused(cloud, tmp_path):
    X, _ = cloud
    kept = tmp_path / "fit.checkpoint"
    with pytest.raises(StopError):
        NNKDetector(60).fit(X, rows="all", checkpoint=kept, advance=stop_after(1))
    before = kept.read_bytes()
    for detector, table in ((NNKDetector(61), X), (NNKDetector(60), X[:-1])):
        with pytest.raises(InputError, match=r"belongs to a fit of other rows.*delete"):
            detector.fit(table, rows="all", checkpoint=kept)
    kept.write_bytes(before[: len(before) // 2])
    with pytest.raises(InputError, match=r"fit\.checkpoint is not a checkpoint.*cut short"):
        NNKDetector(60).fit(X, rows="all", checkpoint=kept)
    kept.write_bytes(before)
    NNKDetector(60).fit(X, rows="all", checkpoint=kept)


def test_a_full_disk_leaves_the_last_checkpoint(cloud, tmp_path, monkeypatch):
    kept = tmp_path / "fit.checkpoint"
    with pytest.raises(StopError):
        NNKDetector(60).fit(cloud[0], rows="all", checkpoint=kept, advance=stop_after(1))
    before = kept.read_bytes()

    def full(number):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(InputError, match=r"fit\.checkpoint: No space left"):
            NNKDetector(60).fit(cloud[0], rows="all", checkpoint=kept)
    assert kept.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["fit.checkpoint"]


# ---- what can go wrong


def test_a_bad_row_is_named_and_nothing_is_lost(cloud, tmp_path):
    X, kept = cloud[0].copy(), tmp_path / "fit.checkpoint"
    path = tmp_path / "rows.npy"
    np.save(path, X)
    detector = NNKDetector(60, random_state=0).fit(X[:500])
    before = detector.atoms_
    with pytest.raises(StopError):
        detector.fit(path, rows="all", checkpoint=kept, advance=stop_after(1))
    saved = kept.read_bytes()
    table = np.load(path, mmap_mode="r+")
    stamp = path.stat()
    table[4321, 3] = np.nan
    table.flush()
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # as if it had always been there
    with pytest.raises(InputError, match=r"rows\.npy, row 4,322 \(block 7\): NaN"):
        detector.fit(path, rows="all", checkpoint=kept)
    assert detector.atoms_ is before
    assert kept.read_bytes() == saved


def test_a_file_that_changes_between_epochs_is_noticed(cloud, tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, cloud[0])
    seen = [0]

    def change(rows):
        seen[0] += rows
        if seen[0] == N:
            np.save(path, cloud[0][:-5])

    with pytest.raises(InputError, match=r"rows\.npy"):
        NNKDetector(60, random_state=0).fit(path, rows="all", advance=change)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"rows": "most"}, "rows='most'"),
        ({"rows": 0}, "rows=0"),
        ({"rows": True}, "rows=True"),
        ({"memory": "a lot"}, "memory='a lot'"),
        ({"memory": "10kB"}, r"memory='10kB' holds 39 rows.*give memory='\d+MB'"),
        ({"memory": "1MB", "rows": 5000}, r"holds 3,906 rows.*give memory='2MB'"),
    ],
)
def test_amounts_are_checked(given, told, cloud, tmp_path):
    np.save(tmp_path / "rows.npy", cloud[0])
    with pytest.raises(InputError, match=told):
        NNKDetector(60).fit(str(tmp_path / "rows.npy"), **given)


def test_less_memory_means_a_smaller_sample(cloud, tmp_path):
    np.save(tmp_path / "rows.npy", cloud[0])
    detector = KNNDetector().fit(str(tmp_path / "rows.npy"), memory="256kB")
    assert len(detector.atoms_) == 900


# ---- the command line


def fit(*arguments):
    return main(["fit", *map(str, arguments)])


def test_fit_tells_what_more_rows_would_gain(cloud, tmp_path, capsys):
    np.save(tmp_path / "rows.npy", cloud[0])
    assert fit(tmp_path / "rows.npy", "--out", tmp_path / "model", "--set", "n_atoms=60") == 0
    err = capsys.readouterr().err
    assert "learned from 1,350 of 6,000 rows" in err
    assert "expected with --rows all" in err
    assert "the 150 rows held out" in err
    detector = load(tmp_path / "model")
    assert detector.sampled_ == [1350, N]
    assert np.argmin(detector.curve_[:, 1]) == 2
    assert main(["info", str(tmp_path / "model")]) == 0


def test_fit_resumes_from_a_checkpoint_beside_the_model(cloud, tmp_path, capsys, monkeypatch):
    path, model = tmp_path / "rows.npy", tmp_path / "model"
    np.save(path, cloud[0])
    given = [path, "--out", model, "--rows", "all", "--set", "n_atoms=60", "--set", "n_epochs=3"]
    with monkeypatch.context() as patched:
        patched.setattr("outscope.cli.fitting.progress", broken_progress)
        assert fit(*given) not in (0, 2)  # as for any bug
    kept = tmp_path / "model.checkpoint"
    assert kept.exists()
    assert not model.exists()
    capsys.readouterr()
    assert fit(*given) == 0
    assert f"resuming from {kept}" in capsys.readouterr().err
    assert not kept.exists()
    whole = NNKDetector(60, n_epochs=3, random_state=0).fit(path, rows="all")
    assert same(whole, load(model))


@contextlib.contextmanager
def broken_progress(title, total):
    assert total == 3 * N
    yield stop_after(1)


def test_a_checkpoint_without_all_rows_is_refused(cloud, tmp_path, capsys):
    np.save(tmp_path / "rows.npy", cloud[0])
    assert fit(tmp_path / "rows.npy", "--out", tmp_path / "m", "--checkpoint", tmp_path / "c") == 2
    assert "--checkpoint is for --rows all" in capsys.readouterr().err

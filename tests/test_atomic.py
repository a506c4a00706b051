"""Files and folders appear whole, with the permissions asked for, and nothing is left behind."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time

import numpy as np
import pytest

from outscope import InputError, KNNDetector
from outscope.io.atomic import whole_folder
from outscope.io.files import check_folder_writable, whole_file, write_columns, write_matrix
from outscope.io.models import check_target
from outscope.text.cache import FILE, SECRET, VectorCache

TEXTS = ["one", "two", "three"]
VECTORS = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(params=[0o022, 0o077, 0o002], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder):
    return {
        path.name: (path.stat().st_mode & 0o777, 0o777 if path.is_dir() else 0o666)
        for path in [folder, *folder.rglob("*")]
    }


def test_what_is_written_has_the_permissions_that_the_umask_asks_for(umask, tmp_path, blobs):
    from outscope.io import models

    out = tmp_path / "out"
    out.mkdir()
    source = tmp_path / "weights"
    source.write_text("w")
    source.chmod(0o600)
    detector = KNNDetector().fit(blobs[0])
    attached = ("encoder-0123456789abcdef", {"sub/weights.safetensors": source})
    models.write(out / "model", detector, detector._notes(), attached)
    write_matrix(out / "rows.npy", VECTORS)
    write_columns(out / "scores.csv", {"ood_score": [1.0]})
    with whole_folder(out / "tuned") as folder:
        (folder / "sub").mkdir(mode=0o700)
        for name in ("weights", "sub/head"):
            (folder / name).touch(0o600)
    found = modes(out)
    assert len(found) == 12
    for name, (mode, most) in found.items():
        assert mode == most & ~umask, name


def test_a_folder_is_whole_or_not_there(tmp_path):
    goal = tmp_path / "goal"

    def fail():
        with whole_folder(goal) as folder:
            (folder / "half").write_text("x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []
    goal.mkdir()
    with whole_folder(goal) as folder:
        (folder / "a").write_text("x")
    assert [file.name for file in goal.iterdir()] == ["a"]
    with pytest.raises(InputError, match="cannot write to"), whole_folder(goal) as folder:
        (folder / "b").write_text("x")
    with whole_folder(goal, replace=True) as folder:
        (folder / "b").write_text("x")
    assert [file.name for file in goal.iterdir()] == ["b"]
    assert [file.name for file in tmp_path.iterdir()] == ["goal"]


def test_a_full_disk_is_told_and_nothing_is_lost(tmp_path, monkeypatch):
    (tmp_path / "a.npy").write_text("before")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"a\.npy: No space left on device"):
        write_matrix(tmp_path / "a.npy", VECTORS)
    assert [(f.name, f.read_text()) for f in tmp_path.iterdir()] == [("a.npy", "before")]


def test_what_killed_writers_left_is_removed_once_it_is_old(tmp_path, blobs):
    ours = tmp_path / ".writing-0123456789abcdef0123456789abcdef"
    folder = tmp_path / ".writing-abcdef0123456789abcdef0123456789"
    young = tmp_path / ".writing-00000000000000000000000000000000"
    busy = tmp_path / ".writing-11111111111111111111111111111111"
    foreign = tmp_path / ".writing-my-thesis.tex"
    folder.mkdir()
    busy.mkdir()
    (busy / "weights").write_text("being written")
    old = time.time() - 4000
    for path in (ours, young, foreign, folder / "part"):
        path.write_text("x")
    for path in (ours, foreign, folder / "part", folder, busy):
        os.utime(path, (old, old))
    KNNDetector().fit(blobs[0]).save(tmp_path / "model")
    write_matrix(tmp_path / "rows.npy", VECTORS)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"model", "rows.npy", young.name, busy.name, foreign.name}


def test_a_folder_that_cannot_be_written_to_is_refused_before_the_work(tmp_path, blobs):
    check_folder_writable(tmp_path / "new" / "and" / "deep")
    check_folder_writable(tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file"):
        check_folder_writable(tmp_path / "file")
    with pytest.raises(InputError, match="cannot write to"):
        check_folder_writable(tmp_path / "file" / "below")
    with pytest.raises(InputError, match="holds other files"):
        check_folder_writable(tmp_path)
    with pytest.raises(InputError, match="cannot write to"):
        check_folder_writable("/proc/outscope/model")
    KNNDetector().fit(blobs[0]).save(tmp_path / "model")
    check_target(tmp_path / "model")
    with pytest.raises(InputError, match="holds other files"):
        check_folder_writable(tmp_path / "model")
    with pytest.raises(InputError, match="holds other files"):
        check_target(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write all")
def test_a_parent_without_access_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="Permission denied"):
        check_folder_writable(tmp_path / "model")


def test_a_file_that_cannot_be_made_is_named(tmp_path):
    with pytest.raises(InputError, match="nowhere"), whole_file(tmp_path / "nowhere" / "a"):
        pass


# ---- the cache of vectors


def filled(folder):
    VectorCache(folder).put("space", TEXTS, VECTORS)
    return VectorCache(folder)


def change(folder, statement, *values):
    database = sqlite3.connect(folder / FILE)
    with database:
        database.execute(statement, values)
    database.close()


def test_a_vector_that_others_wrote_is_missing_and_is_written_again(tmp_path):
    cache = filled(tmp_path)
    assert len(cache.get("space", TEXTS)) == 3
    change(tmp_path, "UPDATE sealed SET vector = ? WHERE key = ?", bytes(16), cache._key("one"))
    change(
        tmp_path, "UPDATE sealed SET vector = NULL, seal = NULL WHERE key = ?", cache._key("two")
    )
    assert set(cache.get("space", TEXTS)) == {2}
    cache.put("space", TEXTS, VECTORS)
    found = cache.get("space", TEXTS)
    np.testing.assert_array_equal([found[i] for i in range(3)], VECTORS)
    # Another space or text cannot be given the vector of this one.
    change(tmp_path, "UPDATE sealed SET space = 'other'")
    assert cache.get("other", TEXTS) == {}


def test_nothing_but_vectors_is_kept(tmp_path):
    cache = VectorCache(tmp_path)
    cache.put("space", TEXTS, np.array([[1.0, np.nan], [np.inf, 0.0], [1.0, 2.0]], np.float32))
    assert set(cache.get("space", TEXTS)) == {2}
    cache.put("none", TEXTS, np.empty((3, 0), np.float32))
    assert cache.get("none", TEXTS) == {}
    cache.put("space", TEXTS[:1], np.ones((1, 5), np.float32))
    assert cache.get("space", TEXTS) == {}, "two widths in one space"


def test_a_cache_that_is_damaged_as_a_whole_is_made_anew_and_said_once(tmp_path, caplog):
    (tmp_path / FILE).write_bytes(b"this is no database" * 100)
    cache = VectorCache(tmp_path)
    assert cache.get("space", TEXTS) == {}
    cache.put("space", TEXTS, VECTORS)
    assert len(cache.get("space", TEXTS)) == 3
    assert len(caplog.records) == 1
    assert "was damaged" in caplog.text


def test_a_cache_of_the_old_form_is_made_anew_in_silence(tmp_path, caplog):
    change(tmp_path, "CREATE TABLE vectors (space TEXT, key BLOB, vector BLOB)")
    assert len(filled(tmp_path).get("space", TEXTS)) == 3
    assert not caplog.records


def test_a_folder_that_others_can_write_has_its_secret_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    shared, own = tmp_path / "shared", tmp_path / "own"
    filled(own)
    assert (own / SECRET).stat().st_mode & 0o777 == 0o600
    shared.mkdir()
    shared.chmod(0o777)
    filled(shared)
    assert not (shared / SECRET).exists()
    secret = tmp_path / "config" / "outscope" / SECRET
    assert secret.stat().st_mode & 0o777 == 0o600
    # One who has another secret sees nothing of it, and spoils nothing.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
    other = VectorCache(shared)
    assert other.get("space", TEXTS) == {}
    other.put("space", TEXTS, VECTORS + 1)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    np.testing.assert_array_equal(VectorCache(shared).get("space", TEXTS)[0], VECTORS[0])
    # A private folder that was open to others brings no secret that they may know.
    shutil.copy(own / SECRET, shared / SECRET)
    assert len(VectorCache(shared).get("space", TEXTS)) == 3

"""Fitting and scoring on a Dask cluster: real worker processes, and the bits of one process."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time

import cloudpickle
import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from distributed import Client, LocalCluster

import outscope
from outscope import ClasswiseNNKDetector, InputError, KNNDetector, NNKDetector, OutscopeError
from outscope.detectors import sampling
from outscope.io import cluster as clusters
from outscope.io import parts
from outscope.io.cluster import ClusterSource
from outscope.io.sources import as_source, distributed

N, D, PART = 6000, 16, 700
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
    monkeypatch.setattr(parts, "PART_ROWS", PART)


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    """Rows, labels, and a file of the rows."""
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=N)
    X = (np.eye(4, D)[y] * 4 + rng.normal(size=(N, D))).astype(np.float32)
    path = tmp_path_factory.mktemp("cloud") / "rows.npy"
    np.save(path, X)
    return X, y, str(path)


@pytest.fixture(scope="module")
def started():
    given = {"threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    # Workers that ask a dead one for what it had need not wait 30 s for it.
    settings = {**clusters.KEEP_WORKERS, "distributed.comm.timeouts.connect": "10s"}
    with dask.config.set(settings), LocalCluster(n_workers=2, **given) as cluster:
        yield cluster


@pytest.fixture
def client(started):
    with Client(started) as client:
        yield client


def same(a, b):
    a, b = (d.dictionaries_ if hasattr(d, "dictionaries_") else [d.dictionary_] for d in (a, b))
    return all(
        np.array_equal(one.stored_atoms_, other.stored_atoms_)
        and np.array_equal(one.representatives_, other.representatives_)
        for one, other in zip(a, b, strict=True)
    )


# ---- the same bits


@pytest.mark.parametrize("kind", KINDS)
def test_workers_give_the_atoms_and_scores_of_one_process(kind, cloud, client):
    X, y, path = cloud
    local = KINDS[kind]().fit(path, y, rows="all")
    away = KINDS[kind]().fit(distributed(path), y, rows="all")
    chunked = KINDS[kind]().fit(da.from_array(X, chunks=(PART, 5)), y, rows="all")
    assert same(local, away)
    assert same(local, chunked)
    assert local.threshold_ == away.threshold_ == chunked.threshold_
    wanted = local.calibrate(X[:2000]).p_value(X)
    assert np.array_equal(wanted, local.p_value(distributed(path)))
    assert np.array_equal(away.predict(X), away.predict(da.from_array(X, chunks=(1000, D))))


def test_work_is_done_by_the_workers_and_only_what_was_learned_travels(cloud, client):
    source = distributed(cloud[2])
    pids = set(source.each(lambda source, part, told: os.getpid()))
    assert pids == set(client.run(os.getpid).values())
    assert len(pids) == 2
    assert os.getpid() not in pids


def test_a_detector_of_rows_in_memory_learns_from_a_sample_and_scores_there(cloud, client):
    X, _, path = cloud
    local, away = KNNDetector().fit(path), KNNDetector().fit(distributed(path))
    assert np.array_equal(local.atoms_, away.atoms_)
    assert np.array_equal(local.ood_score(X), away.ood_score(distributed(path)))


def test_a_checkpoint_of_one_process_is_resumed_by_workers(cloud, client, tmp_path):
    _, _, path = cloud

    class Stop(Exception):  # noqa: N818
        pass

    seen = []

    def advance(rows):
        seen.append(rows)
        if sum(seen) > 1.5 * N:
            raise Stop

    whole = KINDS["blind"]().fit(path, rows="all")
    given = {"rows": "all", "checkpoint": tmp_path / "checkpoint"}
    with pytest.raises(Stop):
        KINDS["blind"]().fit(path, **given, advance=advance)
    seen.clear()
    again = KINDS["blind"]().fit(distributed(path), **given)
    assert same(whole, again)


# ---- sources


def frame(X, parts=4):
    return dd.from_pandas(pd.DataFrame(X, columns=[f"c{i}" for i in range(D)]), npartitions=parts)


def vectors(X, tmp_path):
    folder = tmp_path / "frame"
    folder.mkdir()
    for i in range(3):
        rows = X[i * 2000 : (i + 1) * 2000]
        table = pa.table({"id": [str(i)] * len(rows), "vector": list(rows)})
        pq.write_table(table, folder / f"{i}.parquet")
    return dd.read_parquet(folder)


def some_empty(X):
    return [dask.delayed(X[a:b]) for a, b in ((0, 0), (0, 2500), (2500, 2500), (2500, N))]


COLLECTIONS = {
    "array": lambda X, _: da.from_array(X, chunks=(1000, D)),
    "columns in chunks": lambda X, _: da.from_array(X, chunks=(1000, 3)),
    "array of unknown size": lambda X, _: da.from_array(X, chunks=(900, D))[
        da.from_array(np.ones(N, bool), chunks=900)
    ],
    "frame": lambda X, _: frame(X),
    "frame of vectors": vectors,
    "bag of blocks": lambda X, _: db.from_sequence(np.split(X, 12), npartitions=5),
    "bag of rows": lambda X, _: db.from_sequence(X[:500], npartitions=3),
    "delayed": lambda X, _: some_empty(X),
    "one delayed": lambda X, _: dask.delayed(X),
}


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of pandas, in Dask's own reader
@pytest.mark.parametrize("kind", COLLECTIONS)
def test_collections_give_their_rows_here_and_on_workers(kind, cloud, tmp_path, started):
    X = cloud[0]
    given = COLLECTIONS[kind](X, tmp_path)
    here = as_source(given)
    assert not isinstance(here, ClusterSource)
    with Client(started):
        there = as_source(given)
        assert isinstance(there, ClusterSource)
        for source in (here, there):
            assert source.width == D
            assert all(0 < part.rows <= PART for part in source.parts)
            found = np.concatenate([source.read(i) for i in range(len(source.parts))])
            assert np.array_equal(found, X[: len(found)])
            assert len(found) == len(source) == (500 if "rows" in kind else N)
            chosen = np.array([0, 1, 250, len(found) - 1])
            assert np.array_equal(source.take(chosen), X[chosen])
        assert here.parts == there.parts
        assert here.fingerprint() == there.fingerprint()


def test_persisted_partitions_stay_where_they_are(cloud, client):
    X = cloud[0]
    persisted = da.from_array(X, chunks=(1000, D)).persist()
    for held in (persisted, persisted + 0, db.from_sequence(np.split(X, 6)).persist()):
        assert np.array_equal(as_source(held).take(np.arange(N)), X)
    assert np.array_equal(as_source(frame(X).persist()).take(np.arange(N)), X)
    local = KINDS["blind"]().fit(da.from_array(X, chunks=(1000, D)), rows="all")
    assert same(local, KINDS["blind"]().fit(persisted, rows="all"))


def arrow_dataset(X, tmp_path):
    for i in range(2):
        table = pa.table({"vector": list(X[i * 3000 : (i + 1) * 3000])})
        pq.write_table(table, tmp_path / f"{i}.parquet", row_group_size=2000)
    return pa.dataset.dataset(tmp_path)


def saved_dataset(X, tmp_path):
    datasets.Dataset.from_dict({"vector": list(X)}).save_to_disk(tmp_path / "saved")
    return datasets.load_from_disk(tmp_path / "saved")


def a_function(X, _):
    name = _ / "rows.npy"
    np.save(name, X)
    return lambda: (np.load(name)[i : i + 500] for i in range(0, N, 500))


SOURCES = {
    "npy": lambda X, tmp_path: np.save(tmp_path / "a.npy", X) or str(tmp_path / "a.npy"),
    "parquet": lambda X, tmp_path: arrow_dataset(X, tmp_path) and str(tmp_path),
    "dataset": arrow_dataset,
    "Hugging Face": saved_dataset,
    "function": a_function,
    "mapped": lambda X, tmp_path: (
        np.save(tmp_path / "a.npy", np.vstack([X[:9], X]))
        or np.load(tmp_path / "a.npy", mmap_mode="r")[9:]
    ),
}
IN_MEMORY = {
    "table": lambda X, _: pa.table({"vector": list(X)}),
    "dataset in memory": lambda X, _: pa.dataset.dataset(pa.table({"vector": list(X)})),
    "Hugging Face in memory": lambda X, _: datasets.Dataset.from_dict({"vector": list(X)}),
    "array": lambda X, _: X,
}


@pytest.mark.parametrize("kind", [*SOURCES, *IN_MEMORY])
def test_any_source_is_read_by_workers(kind, cloud, tmp_path, client):
    X = cloud[0]
    given = (SOURCES | IN_MEMORY)[kind](X, tmp_path)
    source = distributed(given)
    assert source.source.in_memory == (kind in IN_MEMORY)
    for _ in range(2):
        found = np.concatenate(list(source.each(lambda source, part, told: source.read(part))))
        assert np.array_equal(found, X)
    chosen = np.array([3, 800, 801, N - 1])
    assert np.array_equal(source.take(chosen), X[chosen])


@pytest.mark.parametrize("kind", SOURCES)
def test_what_is_in_files_travels_as_their_names(kind, cloud, tmp_path):
    source = as_source(SOURCES[kind](cloud[0], tmp_path))
    source.read(0)
    source.read(1)  # whatever that opened must not travel
    sent = cloudpickle.dumps(source)
    assert len(sent) < 10_000
    again = pickle.loads(sent)
    for part in (2, 0):
        assert np.array_equal(again.read(part), source.read(part))
    assert again.fingerprint() == source.fingerprint()


# ---- what is refused


def test_what_does_not_travel_is_refused(cloud, client):
    X, lock = cloud[0], threading.Lock()

    def blocks():
        assert not lock.locked()
        return iter([X])

    with pytest.raises(InputError, match=r"blocks\(\) cannot be sent to the workers"):
        NNKDetector(20).fit(distributed(blocks), rows="all")
    with pytest.raises(InputError, match="give a function"):
        distributed(iter([X]))
    with pytest.raises(InputError, match="has shape"):
        distributed(np.ones(3))
    with pytest.raises(InputError, match="expected a matrix"):
        as_source(da.ones((3, 2, 2)))
    with pytest.raises(InputError, match="expected numbers"):
        as_source(da.from_array(np.array([["a"]])))
    with pytest.raises(InputError, match="no table of rows"):
        as_source(frame(X)["c1"])
    with pytest.raises(InputError, match="no columns that may hold vectors"):
        as_source(frame(X).assign(name="a"))
    with pytest.raises(InputError, match="2 and 3 columns"):
        as_source([dask.delayed(np.ones((2, 2))), dask.delayed(np.ones((2, 3)))])
    with pytest.raises(InputError, match="0 rows"):
        as_source([dask.delayed(np.ones((0, 2)))])


def test_without_a_client_there_is_nothing_to_send_to(cloud):
    with pytest.raises(InputError, match="no Dask client"):
        distributed(cloud[2])


@pytest.mark.parametrize("verb", ["fit", "ood_score"])
def test_a_bad_row_is_named_as_on_one_machine(verb, cloud, tmp_path, client):
    X = cloud[0].copy()
    detector = NNKDetector(60, n_epochs=1, random_state=0).fit(X[:500])
    X[8 * PART + 11, 3] = np.nan
    np.save(tmp_path / "bad.npy", X)
    given = {"rows": "all"} if verb == "fit" else {}
    for bad, place in (
        (distributed(tmp_path / "bad.npy"), "bad.npy, row 5,612"),
        (da.from_array(X, chunks=(PART, D)), "partition 9, row 12"),
    ):
        with pytest.raises(InputError, match=rf"{place} \(block 9\): NaN; drop or repair"):
            getattr(detector, verb)(bad, **given)


def test_a_file_that_workers_cannot_see_is_named(cloud, tmp_path, client):
    np.save(tmp_path / "gone.npy", cloud[0])
    source = distributed(tmp_path / "gone.npy")
    (tmp_path / "gone.npy").unlink()
    with pytest.raises(InputError, match=r"gone.npy .*every worker must see it"):
        source.read(0)


def test_a_partition_that_changes_is_refused(client, tmp_path):
    np.save(tmp_path / "a.npy", np.ones((9, 2)))
    source = as_source([dask.delayed(np.load)(tmp_path / "a.npy")])
    np.save(tmp_path / "a.npy", np.ones((8, 2)))
    with pytest.raises(InputError, match="its rows must not change"):
        source.read(0)


# ---- other processes


def other_outscope(folder, text):
    """An environment whose outscope is not ours."""
    (folder / "outscope").mkdir(parents=True)
    (folder / "outscope" / "__init__.py").write_text(text)
    return {**os.environ, "PYTHONPATH": str(folder)}


class Processes:
    """Dask processes of their own, ended with the block."""

    def __init__(self):
        self.running = []

    def __enter__(self):
        return self

    def start(self, *command, env=None):
        found = subprocess.Popen(
            [sys.executable, "-m", "dask", *command],
            env=env or {**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.running.append(found)

    def worker(self, address, env=None):
        self.start("worker", address, "--nthreads=1", "--no-nanny", "--no-dashboard", env=env)

    def __exit__(self, *error):
        for process in self.running:
            process.kill()
            process.wait()


def test_workers_without_the_package_or_with_another_version_are_named(cloud, tmp_path):
    other = {
        "cannot import outscope": 'raise ImportError("no outscope here")',
        "has outscope 0.1.0, this process": '__version__ = "0.1.0"',
    }
    for i, (words, text) in enumerate(other.items()):
        with (
            LocalCluster(n_workers=0, dashboard_address=":0") as cluster,
            Client(cluster) as client,
            Processes() as processes,
        ):
            processes.worker(cluster.scheduler_address, other_outscope(tmp_path / str(i), text))
            with pytest.raises(InputError, match=rf"worker tcp://\S+ {words}.*pip install"):
                distributed(cloud[2])
            # One that joins later is found out by its first task.
            source = ClusterSource(as_source(cloud[2]), client)
            with pytest.raises(InputError, match=r"a worker (cannot import|has outscope)"):
                source.read(0)


def test_a_scheduler_needs_no_outscope(cloud, tmp_path):
    file = tmp_path / "scheduler.json"
    with Processes() as processes:
        processes.start(
            "scheduler", "--port=0", "--no-dashboard", "--no-show", f"--scheduler-file={file}",
            env=other_outscope(tmp_path, 'raise ImportError("no outscope here")'),
        )  # fmt: skip
        while not file.exists():
            time.sleep(0.05)
        with Client(scheduler_file=str(file)) as client:
            processes.worker(client.scheduler.address)
            X, y, path = cloud
            away = KINDS["classes"]().fit(distributed(path), y, rows="all")
            assert same(away, KINDS["classes"]().fit(path, y, rows="all"))
            chunked = da.from_array(X, chunks=(PART, D))
            assert np.array_equal(away.ood_score(chunked), away.ood_score(X))


def test_a_cluster_without_workers_or_without_a_scheduler_is_refused(cloud, monkeypatch):
    monkeypatch.setattr(clusters, "WAIT_SECONDS", 0.1)
    with (
        LocalCluster(n_workers=0, dashboard_address=":0") as cluster,
        Client(cluster),
        pytest.raises(InputError, match="has had no worker"),
    ):
        distributed(cloud[2])
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "200ms"}),
        pytest.raises(InputError, match=r"no Dask scheduler answers at tcp://127.0.0.1:9"),
        clusters.connected("tcp://127.0.0.1:9"),
    ):
        pass


# ---- workers that die


def test_a_cluster_that_is_gone_for_good_is_an_error(cloud, tmp_path, monkeypatch):
    monkeypatch.setattr(clusters, "WAIT_SECONDS", 0.3)
    monkeypatch.setattr(clusters, "LOOK_SECONDS", 0.1)
    file = tmp_path / "scheduler.json"
    with Processes() as processes:
        processes.start(
            "scheduler", "--port=0", "--no-dashboard", "--no-show", f"--scheduler-file={file}"
        )
        while not file.exists():
            time.sleep(0.05)
        with Client(scheduler_file=str(file), timeout=3) as client:
            processes.worker(client.scheduler.address)
            client.wait_for_workers(1, timeout=60)
            source = distributed(cloud[2])
            source.read(0)
            processes.running[1].kill()
            with pytest.raises(OutscopeError, match="no worker is left"):
                source.read(1)
            processes.running[0].kill()
            with pytest.raises(OutscopeError, match="scheduler"):
                source.read(2)


class Killer:
    """Kills some worker, without warning, each time that another of five moments has come."""

    def __init__(self, cluster, steps, seed):
        self.random = random.Random(seed)
        self.moments = sorted(self.random.sample(range(1, steps - 1), 5))
        self.cluster, self.steps, self.killed = cluster, 0, []

    def __call__(self, rows=0):
        self.steps += 1
        if self.moments and self.steps > self.moments[0]:
            pids = [
                nanny.pid
                for nanny in self.cluster.workers.values()
                if nanny.worker_address in self.cluster.scheduler.workers
            ]
            if not pids:
                return  # both are being started again: the moment comes later
            self.moments.pop(0)
            self.killed.append(self.random.choice(pids))
            os.kill(self.killed[-1], signal.SIGKILL)


def at(given, cloud):
    if given == "file":
        return distributed(cloud[2])
    return as_source(da.from_array(cloud[0], chunks=(100, D)))


@pytest.mark.parametrize("given", ["file"])
def test_workers_killed_during_a_fit_change_nothing(given, cloud, started, client, monkeypatch):
    monkeypatch.setattr(parts, "PART_ROWS", 100)
    seed = random.randrange(10**6)
    print("seed", seed)  # noqa: T201
    killer = Killer(started, 3 * N // 100, seed)
    local = KINDS["blind"]().fit(cloud[2], rows="all")
    away = KINDS["blind"]().fit(at(given, cloud), rows="all", advance=killer)
    assert len(killer.killed) == 5
    assert same(local, away)
    client.wait_for_workers(2, timeout=60)


@pytest.mark.parametrize("given", ["collection"])
def test_workers_killed_while_scoring_change_nothing(given, cloud, started, client, monkeypatch):
    monkeypatch.setattr(parts, "PART_ROWS", 100)
    seed = random.randrange(10**6)
    print("seed", seed)  # noqa: T201
    detector = KINDS["blind"]().fit(cloud[0][:1000])
    killer, found = Killer(started, N // 100, seed), []
    for scores in detector.score_parts(at(given, cloud)):
        found.append(scores)
        killer()
    assert len(killer.killed) == 5
    assert np.array_equal(np.concatenate(found), detector.ood_score(cloud[0]))
    client.wait_for_workers(2, timeout=60)


def test_the_public_name():
    assert outscope.distributed is distributed


# ---- the command line


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "outscope", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_commands_work_on_a_cluster(started, client, tmp_path, monkeypatch):
    monkeypatch.undo()  # the command has samples and parts of the usual size
    rows = np.random.default_rng(0).normal(size=(20_000, D)).astype(np.float16)
    (tmp_path / "big").mkdir()
    for i in range(5):
        np.save(tmp_path / "big" / f"{i}.npy", rows[i * 4000 : (i + 1) * 4000])
    monkeypatch.chdir(tmp_path)
    away = ["--cluster", started.scheduler_address]
    settings = ["--memory", "2MB", "--set", "n_atoms=20", "--set", "n_epochs=1"]
    made = run("fit", "big/", "--rows", "all", "--out", "model", *settings, *away)
    assert made.returncode == 0, made.stderr
    local = NNKDetector(20, n_epochs=1, random_state=0).fit("big/", rows="all", memory="2MB")
    detector = outscope.load("model")
    assert same(local, detector)

    scored = run("score", "model", "big/", "--out", "scores/", *away)
    assert scored.returncode == 0, scored.stderr
    files = sorted((tmp_path / "scores").glob("*.parquet"))
    assert len(files) == 5
    table = pa.concat_tables([pq.read_table(file) for file in files])
    assert np.array_equal(table["row"], np.arange(1, len(rows) + 1))
    assert np.array_equal(table["ood_score"], local.ood_score(rows))
    assert f"{sum(table['is_ood'].to_pylist()):,} of 20,000" in scored.stderr
    # What is there is not scored again; what is missing is the same if it is scored here.
    before = files[2].read_bytes()
    files[2].unlink()
    again = run("score", "model", "big/", "--out", "scores/")
    assert "4 of 5 parts were already there" in again.stderr
    assert files[2].read_bytes() == before
    one_file = run("score", "model", "big/0.npy", "--out", "scores.npy", *away)
    assert one_file.returncode == 0, one_file.stderr
    assert np.array_equal(np.load("scores.npy"), local.ood_score(rows[:4000]))


def test_a_local_cluster_is_started_and_ended(cloud, tmp_path):
    _, _, path = cloud
    made = run("fit", path, "--rows", "all", "--out", tmp_path / "m", "--cluster", "local")
    assert made.returncode == 0, made.stderr
    assert "Traceback" not in made.stderr


@pytest.mark.parametrize(
    ("added", "words"),
    [
        (["--cluster", "local"], "--cluster is for --rows all"),
        (["--cluster", "tcp://127.0.0.1", "--rows", "all"], "no Dask scheduler answers"),
    ],
)
def test_a_cluster_that_is_of_no_use_is_an_error_in_one_line(added, words, cloud, tmp_path):
    found = run("fit", cloud[2], "--out", tmp_path / "m", *added)
    assert found.returncode == 2
    assert words in found.stderr
    assert len(found.stderr.splitlines()) == 1

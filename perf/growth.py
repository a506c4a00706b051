"""How cost grows with rows, atoms, columns and workers: a fit of every row, in processes of its own.

Records go to results/growth.jsonl; `page.py` fits an exponent to each row of points and plots it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

THREADS = "2"
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, THREADS)

import numpy as np  # noqa: E402
import scale  # noqa: E402
from records import keep  # noqa: E402

ROWS = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
ATOMS = (250, 500, 1000, 2000, 4000)
COLUMNS = (96, 192, 384, 768)
WORKERS = (1, 2)
FILE_ROWS = 500_000
# Little enough for even the smallest table to be read part by part.
MEMORY = "400MB"


def fitted(path, atoms):
    """Seconds of facts, first atoms and one epoch over every row."""
    import time

    from outscope import NNKDetector

    start, before = time.perf_counter(), scale.cpu_seconds()
    detector = NNKDetector(int(atoms), n_epochs=1, random_state=0, n_jobs=int(THREADS))
    detector.fit(path, rows="all", memory=MEMORY)
    return {"seconds": time.perf_counter() - start, "cpu": scale.cpu_seconds() - before}


def by_workers(path, workers):
    """The same by worker processes of one thread each; peak memory is that of the largest."""
    import time

    from dask.distributed import Client, LocalCluster
    from records import peak

    import outscope
    from outscope import NNKDetector

    def used():
        return scale.cpu_seconds(), peak()

    def of_all(client):
        return scale.cpu_seconds() + sum(seconds for seconds, _ in client.run(used).values())

    options = {"n_workers": int(workers), "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        client.wait_for_workers(int(workers))
        few = Path(path).parent / "few.npy"
        np.save(few, np.load(next(Path(path).glob("*.npy")), mmap_mode="r")[:2000])
        NNKDetector(50, n_epochs=1).fit(outscope.distributed(str(few)), rows="all")
        start, before = time.perf_counter(), of_all(client)
        detector = NNKDetector(1000, n_epochs=2, random_state=0)
        detector.fit(outscope.distributed(path), rows="all", memory=MEMORY)
        seconds, cpu = time.perf_counter() - start, of_all(client) - before
        most = max(memory for _, memory in client.run(used).values())
    return {"seconds": seconds, "cpu": cpu, "largest": most}


def folder_of(folder, rows):
    """So many rows, as links to one file (and a smaller one for the rest)."""
    out = Path(folder) / f"rows-{rows}"
    if not out.exists():
        out.mkdir()
        whole, rest = divmod(rows, FILE_ROWS)
        for i in range(whole):
            (out / f"{i:03}.npy").symlink_to(scale.rows_file(folder, FILE_ROWS).resolve())
        if rest:
            (out / "rest.npy").symlink_to(scale.rows_file(folder, rest).resolve())
    return out


def narrower(folder, columns):
    """Rows of so many columns: some of theirs, or theirs more than once with noise between."""
    path = Path(folder) / f"columns-{columns}.npy"
    if not path.exists():
        rows = np.load(scale.rows_file(folder, FILE_ROWS), mmap_mode="r")
        wide = np.tile(rows[:], (1, -(-columns // rows.shape[1])))[:, :columns]
        np.save(path, wide + np.random.default_rng(0).normal(0, 0.2, columns).astype(np.float16))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: python growth.py rows")
    parser.add_argument("only", nargs="*", choices=[[], "rows", "atoms", "columns", "workers"])
    parser.add_argument("--most", type=int, default=ROWS[-1], help="most rows")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--folder", help="for generated rows (default: a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = options.folder or temporary
        some = scale.rows_file(folder, FILE_ROWS)
        points = [("rows", rows, 250) for rows in ROWS if rows <= options.most]
        points += [("atoms", atoms, atoms) for atoms in ATOMS]
        points += [("columns", columns, 1000) for columns in COLUMNS]
        points += [("workers", workers, 1000) for workers in WORKERS]
        for what, value, atoms in points:
            if options.only and what not in options.only:
                continue
            path = folder_of(folder, value) if what == "rows" else some
            path = narrower(folder, value) if what == "columns" else path
            work = (fitted, path, atoms)
            if what == "workers":
                work = (by_workers, folder_of(folder, 2 * FILE_ROWS), value)
            (best,) = scale.turns(options.turns, work, script="growth")
            keep("growth", what=what, value=value, **{k: round(v, 3) for k, v in best.items()})
            told = (
                f"{best['seconds']:7.1f} s, cpu {best['cpu']:7.1f} s, peak {best['peak']:,.0f} MB"
            )
            print(f"{what} {value:>12,}  {told}", flush=True)


if __name__ == "__main__":
    main()

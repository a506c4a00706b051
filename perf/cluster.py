"""Fitting and scoring by worker processes against threads of one process, on the same cores.

Both read the same file in the same parts, and must give the same bits. (The name `distributed.py`
would hide Dask's package from the script.) Each side runs in a process of its own, in turns; the
best turn of each counts. Processor time is that of all processes, workers and scheduler included;
where other programs are running, it says more than wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

CORES, ATOMS, EPOCHS = 2, 1000, 3


def detector():
    from outscope import NNKDetector

    return NNKDetector(ATOMS, n_epochs=EPOCHS, random_state=0, n_jobs=CORES)


def measured(path, wrapped, others=lambda: {}):
    """Seconds of a fit and of scoring, and a hash of what came out."""
    import numpy as np

    from outscope.io.sources import hash_of

    # Several parts, so that every worker has loaded what it needs.
    warm = str(Path(path).with_suffix(".warm.npy"))
    np.save(warm, np.load(path, mmap_mode="r")[:200_000])
    detector().set_params(n_epochs=1).fit(wrapped(warm), rows="all").ood_score(wrapped(warm))
    told = {}
    used = processor_seconds(others())
    start = time.perf_counter()
    fitted = detector().fit(wrapped(path), rows="all")
    told["fit"] = time.perf_counter() - start
    told["fit, processor"] = processor_seconds(others()) - used
    start = time.perf_counter()
    scores = fitted.ood_score(wrapped(path))
    told["score"] = time.perf_counter() - start
    told["bits"] = hash_of(fitted.atoms_, fitted.representatives_, scores)
    told["peak"] = [usage()[1]]
    told["peak"] += [used[1] for used in others().values()]
    return told


def usage():
    """Processor seconds and peak memory of this process, in MB."""
    from records import peak

    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, peak()


def processor_seconds(others):
    return usage()[0] + sum(used[0] for used in others.values())


def threads(path):
    return measured(path, lambda name: name)


def workers(path):
    import outscope
    from outscope.io.cluster import connected

    with connected("local") as client:
        client.wait_for_workers(CORES)
        assert sum(client.nthreads().values()) == CORES, "run on two cores, e.g. with taskset"
        return measured(path, outscope.distributed, lambda: client.run(usage))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--folder", default=None, help="scratch folder; the rows are kept there")
    parser.add_argument("--side", choices=["threads", "workers"], help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps({"threads": threads, "workers": workers}[options.side](options.path)))
        return
    import scale
    from records import keep

    with tempfile.TemporaryDirectory() as scratch:
        path = str(scale.rows_file(options.folder or scratch, options.rows))
        found = {"threads": [], "workers": []}
        for _ in range(options.turns):
            for side, taken in found.items():
                command = [sys.executable, __file__, "--side", side, "--path", path]
                done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
                taken.append(json.loads(done.stdout.splitlines()[-1]))
                told = ", ".join(f"{name} {taken[-1][name]:.1f} s" for name in list(taken[-1])[:3])
                print(f"  {side}: {told}", flush=True)
        assert len({one["bits"] for taken in found.values() for one in taken}) == 1
        for name in ("fit", "fit, processor", "score"):
            here, there = (min(one[name] for one in found[side]) for side in found)
            detail = f"{there:.1f} s / {here:.1f} s, {options.rows:,} rows, same bits"
            told = f"{name}: {CORES} workers / {CORES} threads"
            keep(
                "performance",
                name=told,
                ratio=there / here,
                bar="<= 1.3",
                goal="1.1",
                detail=detail,
            )
            print(
                f"{name}: {CORES} workers {there:.1f} s, {CORES} threads {here:.1f} s, ratio "
                f"{there / here:.2f}   bar: 1.3, goal 1.1   same bits"
            )
        own, *peaks = (
            max(all_of) for all_of in zip(*(o["peak"] for o in found["workers"]), strict=True)
        )
        single = max(one["peak"][0] for one in found["threads"])
        print(
            f"peak memory: {max(peaks):,.0f} MB per worker, {own:,.0f} MB in the process that has "
            f"the client and the scheduler; {single:,.0f} MB for threads"
        )


if __name__ == "__main__":
    main()

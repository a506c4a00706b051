"""Rows that do not fit in memory: peak memory, and time against reading them and bare products.

Each side runs in a process of its own, in turns; the best turn of each counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

THREADS = "2"
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, THREADS)

import numpy as np  # noqa: E402
from speed import report  # noqa: E402

WIDTH, ATOMS, EPOCHS, CENTRES, AT_A_TIME = 384, 1000, 3, 2000, 65_536

# What a child runs: it prints what it measured, its seconds and its peak memory, as JSON.
CHILD = """
import json, sys, time
import numpy as np
sys.path.insert(0, {here!r})
import {script}
from records import peak
told = {script}.{work}(*{arguments!r})
print(json.dumps({{**told, "peak": peak()}}))
"""


def child(work, *arguments, script="scale"):
    """What a function of this file returns when it runs in a new process, and its peak in MB."""
    here = str(Path(__file__).parent)
    given = tuple(map(str, arguments))
    code = CHILD.format(here=here, script=script, work=work.__name__, arguments=given)
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def turns(count, *works, script="scale"):
    """For each task its best turn, and its highest peak."""
    found = [[] for _ in works]
    for _ in range(count):
        for (work, *arguments), taken in zip(works, found, strict=True):
            taken.append(child(work, *arguments, script=script))
    best = [min(taken, key=lambda one: one["seconds"]) for taken in found]
    return [
        {**one, "peak": max(turn["peak"] for turn in taken)}
        for one, taken in zip(best, found, strict=True)
    ]


def cpu_seconds():
    """Work on all cores; on a busy machine it says more than the clock."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def rows_file(folder, rows, draw=0):
    """Clustered rows, like embeddings of sentences; kept for the next run."""
    path = Path(folder) / f"rows-{rows}{'-new' * draw}.npy"
    if not path.exists():
        rng = np.random.default_rng(0)
        # Most of what rows have in common lies in few directions.
        decay = (1.0 + np.arange(WIDTH)) ** -0.4
        turn = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0].astype(np.float32)
        centres = (rng.standard_normal((CENTRES, WIDTH)) * decay).astype(np.float32) @ turn
        if draw:  # the same clusters, other rows
            rng = np.random.default_rng(draw)
        noise = (rng.standard_normal((AT_A_TIME, WIDTH)) * decay).astype(np.float32) @ turn
        aside = path.with_suffix(".writing")
        out = np.lib.format.open_memmap(aside, "w+", np.float16, (rows, WIDTH))
        for start in range(0, rows, AT_A_TIME):
            block = out[start : start + AT_A_TIME]
            drawn = rng.permutation(AT_A_TIME)[: len(block)]
            block[:] = centres[rng.integers(CENTRES, size=len(block))] + 0.7 * noise[drawn]
        out.flush()
        del out
        aside.rename(path)
    return path


def model_folder(folder, rows):
    """A detector of so many atoms, calibrated."""
    from outscope import NNKDetector

    few = np.load(rows, mmap_mode="r")[:30_000].astype(np.float32)
    model = Path(folder) / "model"
    detector = NNKDetector(ATOMS, n_epochs=3, random_state=0).fit(few[:20_000])
    detector.calibrate(few[20_000:]).save(model)
    return model


def scored(model, rows, out):
    """`outscope score`, as a user runs it."""
    import time

    from outscope.cli import main

    start, before = time.perf_counter(), cpu_seconds()
    if main(["score", model, rows, "--out", out]) != 0:
        raise SystemExit(1)
    return {"seconds": time.perf_counter() - start, "cpu": cpu_seconds() - before}


def read_and_multiplied(model, path):
    """One read of all rows, and their bare products with the atoms in float32, in blocks."""
    import time

    from outscope import load

    atoms = np.ascontiguousarray(load(model).atoms_.T)
    out = np.empty((AT_A_TIME // 16, atoms.shape[1]), np.float32)
    mapped = np.load(path, mmap_mode="r")
    rows, offset, dtype = len(mapped), mapped.offset, mapped.dtype
    reading = converting = multiplying = cpu = 0.0
    with Path(path).open("rb") as file:
        file.seek(offset)
        for start in range(0, rows, AT_A_TIME):
            count = min(AT_A_TIME, rows - start)
            began = time.perf_counter()
            block = np.fromfile(file, dtype, count * WIDTH).reshape(count, WIDTH)
            read = time.perf_counter()
            block = block.astype(np.float32)
            converted, before = time.perf_counter(), cpu_seconds()
            for first in range(0, count, len(out)):
                few = block[first : first + len(out)]
                np.matmul(few, atoms, out=out[: len(few)])
            multiplying += time.perf_counter() - converted
            cpu += cpu_seconds() - before + read - began
            reading, converting = reading + read - began, converting + converted - read
    return {
        "seconds": reading + multiplying,
        "reading": reading,
        "converting": converting,
        "multiplying": multiplying,
        "cpu": cpu,
    }


def score(folder, options):
    rows = rows_file(folder, options.rows)
    model = model_folder(folder, rows)
    out = Path(folder) / "scores.parquet"
    ours, bare = turns(
        options.turns, (scored, model, rows, out), (read_and_multiplied, model, rows)
    )
    shape = f"{options.rows:,} x {WIDTH} float16, {ATOMS:,} atoms, to parquet"
    detail = (
        f"cpu {ours['cpu']:.1f} / {bare['cpu']:.1f} s; {ours['seconds']:.1f} s / {bare['seconds']:.1f} s (read {bare['reading']:.1f}, product "
        f"{bare['multiplying']:.1f}; float16 to float32, not counted, {bare['converting']:.1f})"
    )
    report(
        "score from a file / read + product", ours["seconds"] / bare["seconds"], "<= 1.4", "", shape
    )
    print(f"{'':<58} {detail}")
    report("score from a file: peak memory, GB", ours["peak"] / 1024, "<= 1.0", "", shape)


def fitted(path, fresh, rows):
    """A fit of a file, and its error on other rows of the same kind."""
    import time

    from outscope import NNKDetector

    detector = NNKDetector(ATOMS, n_epochs=EPOCHS, random_state=0)
    start, before = time.perf_counter(), cpu_seconds()
    detector.fit(path, rows=rows)
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - before
    error = float(detector.ood_score(fresh).mean())
    return {"seconds": seconds, "cpu": cpu, "error": error, "sigma": detector.plan_.bandwidth}


def fit(folder, options):
    path, fresh = rows_file(folder, options.rows), rows_file(folder, 20_000, draw=1)
    model = model_folder(folder, path)
    every, few, bare = turns(
        options.turns,
        (fitted, path, fresh, "all"),
        (fitted, path, fresh, "auto"),
        (read_and_multiplied, model, path),
    )
    shape = f"{options.rows:,} x {WIDTH} float16, {ATOMS:,} atoms, {EPOCHS} epochs"
    ratio = every["seconds"] / (EPOCHS * bare["seconds"])
    report("fit every row / three reads + three products", ratio, "<= 1.6", "1.2", shape)
    detail = f"cpu {every['cpu']:.1f} / {EPOCHS * bare['cpu']:.1f} s; "
    detail += f"{every['seconds']:.1f} / {EPOCHS * bare['seconds']:.1f} s"
    print(f"{'':<58} {detail}")
    report("fit every row: peak memory, GB", every["peak"] / 1024, "<= 1.5", "", shape)
    ratio = every["seconds"] / few["seconds"]
    detail = f"{few['seconds']:.1f} s, peak {few['peak'] / 1024:.2f} GB"
    report("fit every row / fit a sample", ratio, ">= 10", "", detail)
    worse = few["error"] - every["error"]
    detail = f"error on new rows {few['error']:.4f} / {every['error']:.4f}"
    report("sample: error above that of all rows", worse, "<= 0.1", "", detail)


BENCHMARKS = {f.__name__: f for f in (score, fit)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: python scale.py score")
    parser.add_argument("only", nargs="*", choices=[[], *BENCHMARKS], help="all if none is named")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--folder", help="for generated rows (default: a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = options.folder or temporary
        for name in options.only or BENCHMARKS:
            BENCHMARKS[name](folder, options)


if __name__ == "__main__":
    main()

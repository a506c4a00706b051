"""Exact search against a FAISS index, on dictionaries of growing size: recall, AUROC, time.

Atoms are rows of a generated file (2,000 clusters). Half of the queries are other rows of it, half
are strange: they lie between two of its rows. Records go to results/search.jsonl.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

THREADS = "2"
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, THREADS)

import numpy as np  # noqa: E402
import scale  # noqa: E402
from records import keep  # noqa: E402

ATOMS = (2_000, 20_000, 100_000)
NEIGHBORS, BANDWIDTH, QUERIES = 10, 0.08, 4000


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def best_of(turns, work):
    """The result and the least wall and processor time in microseconds per query."""
    wall, cpu = [], []
    for _ in range(turns):
        start, before = time.perf_counter(), scale.cpu_seconds()
        found = work()
        wall.append(time.perf_counter() - start)
        cpu.append(scale.cpu_seconds() - before)
    return found, *(1e6 * min(taken) / (2 * QUERIES) for taken in (wall, cpu))


def main() -> None:
    from sklearn.metrics import roc_auc_score

    from outscope.engine import approximate
    from outscope.engine.coder import Coder

    parser = argparse.ArgumentParser(description=__doc__, epilog="example: python search.py")
    parser.add_argument("--atoms", type=int, nargs="*", default=ATOMS)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--folder", help="for generated rows (default: a temporary one)")
    options = parser.parse_args()
    approximate.FEWEST = 0  # so that the index is measured where it would not be used
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        path = scale.rows_file(options.folder or temporary, 500_000)
        every = np.load(path, mmap_mode="r")
        usual = every[-QUERIES:].astype(np.float32)
        others = every[-3 * QUERIES : -QUERIES].astype(np.float32)
        strange = 0.5 * (others[:QUERIES] + others[QUERIES:])
        queries = unit(np.concatenate([usual, strange]))
        truth = np.repeat([0, 1], QUERIES)
        for m in options.atoms:
            atoms = unit(every[:m].astype(np.float32))
            told = {}
            for name, kind in (("exact", Coder), ("faiss", approximate.FaissCoder)):
                coder = kind(atoms, BANDWIDTH)
                start = time.perf_counter()
                coder.code(queries[:64], NEIGHBORS)
                first = time.perf_counter() - start
                codes, wall, cpu = best_of(
                    options.turns, lambda coder=coder: coder.code(queries, NEIGHBORS)
                )
                told[name] = codes
                told |= {f"{name}_us": round(wall, 1), f"{name}_cpu_us": round(cpu, 1)}
                told |= {f"{name}_auroc": round(roc_auc_score(truth, codes.ood_score) * 100, 3)}
                told |= {f"{name}_first_s": round(first, 2)}
            exact, found = told.pop("exact"), told.pop("faiss")
            pairs = zip(exact.neighbors, found.neighbors, strict=True)
            both = np.array([np.isin(a, b).mean() for a, b in pairs])
            told |= {
                "recall": round(float(both[:QUERIES].mean()), 4),
                "recall_strange": round(float(both[QUERIES:].mean()), 4),
            }
            keep("search", atoms=m, **told)
            print(f"{m:>8,} atoms: {told}", flush=True)


if __name__ == "__main__":
    main()

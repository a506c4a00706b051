"""Texts: vectors, throughput and cache against sentence-transformers; memory on a long stream."""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "2")

import numpy as np  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from tasks import DATA  # noqa: E402

TURNS = 4


def clinc_texts(n):
    return pq.read_table(DATA / "clinc150" / "train.parquet")["text"].to_pylist()[:: 15000 // n][:n]


def encoding():
    """Ours and theirs in turns, with the same loaded weights, batch size and threads."""
    from sentence_transformers import SentenceTransformer

    from outscope import make_encoder
    from outscope.text.cache import VectorCache

    texts = clinc_texts(5000)
    encoder = make_encoder(batch_size=32)
    theirs = SentenceTransformer(str(encoder.folder), device="cpu")
    gap = np.abs(encoder.encode(texts[:1000]) - theirs.encode(texts[:1000], batch_size=32)).max()
    print(
        f"largest difference to sentence-transformers           {gap:.1e}   bar <= 1e-5", flush=True
    )
    ours, other = [], []
    for _ in range(TURNS):
        start = time.perf_counter()
        encoder.encode(texts)
        middle = time.perf_counter()
        theirs.encode(texts, batch_size=32)
        ours.append(middle - start)
        other.append(time.perf_counter() - middle)
    a, b = min(ours), min(other)
    print(
        f"sentence-transformers / ours, 5,000 texts, batch 32   {b / a:.2f}      bar >= 1.0    "
        f"{len(texts) / a:.0f} and {len(texts) / b:.0f} texts per second",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        cache = VectorCache(Path(folder))
        start = time.perf_counter()
        encoder.features(texts, cache=cache)
        middle = time.perf_counter()
        encoder._compute = None  # a forward pass would fail
        encoder.features(texts, cache=cache)
        seconds = time.perf_counter() - middle
    print(
        f"first run / second run over the same texts            {(middle - start) / seconds:.0f}       "
        f"bar >= 20     {1e3 * seconds:.0f} ms",
        flush=True,
    )


def stream(n):
    """Peak memory of `outscope score MODEL -` on n short texts."""
    with tempfile.TemporaryDirectory() as folder:
        run = [sys.executable, "-m", "outscope"]
        file = Path(folder) / "in.txt"
        file.write_text("\n".join(clinc_texts(3000)))
        model = Path(folder) / "model"
        subprocess.run([*run, "fit", file, "--out", model], check=True, capture_output=True)
        few = clinc_texts(1000)
        start = time.perf_counter()
        done = subprocess.Popen(
            [*run, "score", model, "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(n):
            done.stdin.write(f"{few[i % 1000]} {i}\n")
        done.stdin.close()
        words = done.stderr.read().strip()
        done.wait()
        seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        f"peak memory of scoring {n:,} texts from standard input  {peak:.0f} MB   bar <= 1500   "
        f"{seconds:.0f} s; said: {words!r}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: python text.py --stream 100000"
    )
    parser.add_argument("--stream", type=int, default=100_000, metavar="N", help="texts (0 = skip)")
    options = parser.parse_args()
    encoding()
    if options.stream:
        stream(options.stream)

"""Encoders: from text to decision on ONNX Runtime against sentence-transformers' `encode` alone; AUROC beside it."""

from __future__ import annotations

import argparse
import os
import time
from itertools import pairwise

THREADS = os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAYON_NUM_THREADS", THREADS)
os.environ.setdefault("NUMBA_NUM_THREADS", THREADS)

import numpy as np  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from records import keep  # noqa: E402
from tasks import DATA  # noqa: E402

from outscope import TextDetector, make_detector, make_encoder  # noqa: E402
from outscope.decisions.metrics import auroc  # noqa: E402

TURNS = 3
KINDS = ("torch", "onnx", "onnx-int8", "fast")


def encoder_of(kind):
    return make_encoder("fast") if kind == "fast" else make_encoder(backend=kind)


def texts_of(name, split):
    table = pq.read_table(DATA / name / f"{split}.parquet")
    return table["text"].to_pylist(), np.array(table["label"].to_pylist())


def speed(kinds, n):
    """CPU seconds of this process, in turns and in one run: other processes do not count."""
    from sentence_transformers import SentenceTransformer

    texts, labels = texts_of("clinc150", "train")
    some = texts[:: len(texts) // n][:n]
    models = {}
    for kind in kinds:
        model = TextDetector(encoder_of(kind), cache=False)
        models[kind] = model.fit(texts[::15], labels[::15])
    theirs = SentenceTransformer(str(make_encoder(backend="torch").folder), device="cpu")
    work = {"sentence-transformers": lambda: theirs.encode(some, batch_size=32)}
    work |= {kind: lambda m=model: m.predict(some) for kind, model in models.items()}
    best = dict.fromkeys(work, np.inf)
    for turn in range(TURNS + 1):  # the first warms up
        for kind, call in work.items():
            marks = [(time.process_time(), time.perf_counter())]
            call()
            marks.append((time.process_time(), time.perf_counter()))
            spent = next(b[THREADS != "1"] - a[THREADS != "1"] for a, b in pairwise(marks))
            best[kind] = min(best[kind], spent) if turn else np.inf
    for kind, seconds in best.items():
        ratio = best["sentence-transformers"] / seconds
        print(f"{kind:24s} {len(some) / seconds:8.0f} texts/s  {ratio:.2f} times", flush=True)
        keep("encoders", what="speed", encoder=kind, threads=THREADS, texts=len(some),
             per_second=round(len(some) / seconds), ratio=round(ratio, 2))  # fmt: skip


def quality(kinds, draws, seeds, step):
    """AUROC with half of the classes in scope (Banking77) and against `oos` (CLINC150)."""
    for kind in kinds:
        encoder = encoder_of(kind)
        for name in ("clinc150", "banking77"):
            train, y = (part[::step] for part in texts_of(name, "train"))
            test, z = texts_of(name, "test")
            if name == "clinc150":
                test, z = test[::step] + texts_of(name, "oos_test")[0], z[::step]
                z = np.r_[z, ["oos"] * (len(test) - len(z))]
            rows, asked = encoder.encode(train), encoder.encode(test)
            found = {}
            for draw in range(1 if name == "clinc150" else draws):
                classes = np.unique(y)
                if name != "clinc150":
                    rng = np.random.RandomState(100 + draw)
                    classes = rng.permutation(classes)[: len(classes) // 2]
                for method in ("nnk-means", "knn"):
                    for seed in range(seeds if method == "nnk-means" else 1):
                        detector = make_detector(method)
                        if method == "nnk-means":
                            detector.set_params(random_state=seed)
                        detector.fit(rows[np.isin(y, classes)])
                        value = auroc(~np.isin(z, classes), detector.ood_score(asked))
                        found.setdefault(method, []).append(100 * value)
            told = {method: round(float(np.mean(v)), 3) for method, v in found.items()}
            print(f"{kind:12s} {name:10s} {told}", flush=True)
            keep("encoders", what="auroc", encoder=kind, data=name, draws=draws, seeds=seeds,
                 every=step, auroc=told)  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: OUTSCOPE_FAST=potion-base-8M python encoders.py"
    )
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--step", type=int, default=1, help="every so many-th text")
    parser.add_argument("--only", choices=("speed", "auroc"))
    options = parser.parse_args()
    if options.only != "auroc":
        speed(options.kinds, options.texts)
    if options.only != "speed":
        quality(options.kinds, options.draws, options.seeds, options.step)

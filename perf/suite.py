"""Eight datasets, two encoders: the plan's results next to 1-NN and k-means of the same size.

Some classes are in scope; the test texts of all classes are queries. At most 4,000 rows and 1,000
queries of each kind, so that the suite runs in minutes; results on full training sets are in
quality.py. The static encoder is a model2vec folder named by $OUTSCOPE_STATIC. Records go to
results/suite.jsonl under a label; existing ones are not rerun.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from tasks import DATA, EMBEDDINGS, Task, stored

from outscope import (
    ClasswiseNNKDetector,
    KMeansDetector,
    KNNDetector,
    MahalanobisDetector,
    NNKDetector,
    make_encoder,
)
from outscope.decisions.metrics import auroc
from outscope.io.texts import read_texts
from outscope.text.cache import VectorCache

RECORDS = Path(__file__).parent / "results" / "suite.jsonl"
ENCODERS = {"MiniLM": "all-MiniLM-L6-v2", "static": os.environ.get("OUTSCOPE_STATIC", "")}
SHARES = {
    "clinc150": (0.5, 0.75),
    "banking77": (0.5, 0.75),
    "20newsgroups": (0.5, 0.75),
    "ag_news": (0.5, 0.75),
    "snips": (0.5, 0.75),
    "trec": (0.5, 0.75),
    "search_snippets": (0.5, 0.75),
    "biomedical": (0.5, 0.75),
}
NEW = ("snips", "trec", "search_snippets", "biomedical")
ROWS, QUERIES, MOST_TEXTS = 4000, 1000, 10_000
METHODS = {
    "1-NN": lambda seed: KNNDetector(skip_copies=False),
    "k-means": lambda seed: KMeansDetector(random_state=seed),
    "NNK": lambda seed: NNKDetector(random_state=seed),
    "C-NNK": lambda seed: ClasswiseNNKDetector(random_state=seed),
    "Mahalanobis": lambda seed: MahalanobisDetector(),
}


@cache
def vectors(encoder: str, dataset: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows and labels of one file, embedded once."""
    if encoder == "MiniLM" and (EMBEDDINGS / f"{dataset}.npz").exists():
        found = stored(dataset)
        return found[f"{split}_x"], found[f"{split}_y"].astype(str)
    texts = read_texts(str(DATA / dataset / f"{split}.parquet"))
    labels = np.array(texts.labels)
    chosen = np.random.default_rng(0).permutation(len(labels))[:MOST_TEXTS]
    rows = make_encoder(ENCODERS[encoder]).features(
        [texts.texts[i] for i in chosen], cache=VectorCache()
    )
    return rows, labels[chosen]


def tasks(encoder: str, draws: range) -> Iterator[tuple[str, float, int, Task]]:
    for dataset, shares in SHARES.items():
        X, y = vectors(encoder, dataset, "train")
        queries, labels = vectors(encoder, dataset, "test")
        for share in shares:
            for draw in draws:
                rng = np.random.default_rng(draw)
                classes = np.unique(y)
                chosen = rng.choice(classes, round(share * len(classes)), replace=False)
                truth = ~np.isin(labels, chosen)
                inside = np.flatnonzero(np.isin(y, chosen))
                inside = np.sort(rng.permutation(inside)[:ROWS])
                kept = [rng.permutation(np.flatnonzero(truth == v))[:QUERIES] for v in (0, 1)]
                kept = np.sort(np.concatenate(kept))
                task = Task(dataset, X[inside], y[inside], queries[kept], truth[kept].astype(float))
                yield dataset, share, draw, task


def read() -> list[dict]:
    return (
        [json.loads(line) for line in RECORDS.read_text().splitlines()] if RECORDS.exists() else []
    )


def run(label: str, encoders, draws: range, methods) -> None:
    done = {
        tuple(r[k] for k in ("label", "encoder", "dataset", "share", "draw", "method"))
        for r in read()
    }
    for encoder in encoders:
        for dataset, share, draw, task in tasks(encoder, draws):
            for method in methods:
                key = (label, encoder, dataset, share, draw, method)
                if key in done:
                    continue
                detector = METHODS[method](draw).fit(task.X, task.y)
                value = 100 * auroc(task.is_ood, detector.ood_score(task.queries))
                names = ("label", "encoder", "dataset", "share", "draw", "method")
                record = dict(zip(names, key, strict=True)) | {"auroc": round(value, 3)}
                with RECORDS.open("a") as file:
                    file.write(json.dumps(record) + "\n")
            print(encoder, dataset, share, draw, flush=True)


def table() -> str:
    """Means by dataset: over draws, then over shares."""
    found: dict[tuple, dict[tuple, list[float]]] = {}
    for r in read():
        where = found.setdefault((r["encoder"], r["dataset"], r["share"]), {})
        where.setdefault((r["label"], r["method"]), []).append(r["auroc"])
    columns = sorted({c for cells in found.values() for c in cells})
    lines = ["| rows | " + " | ".join(f"{m} ({label})" for label, m in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for encoder in ENCODERS:
        means = {}
        for dataset in SHARES:
            tasks_ = [v for k, v in found.items() if k[:2] == (encoder, dataset)]
            means[dataset] = [
                np.mean([np.mean(t.get(c, [np.nan])) for t in tasks_]) for c in columns
            ]
        groups = {d: [d] for d in SHARES} | {
            "mean": list(SHARES),
            "mean of the new four": list(NEW),
        }
        for name, members in groups.items():
            cells = np.mean([means[d] for d in members], axis=0)
            lines.append(f"| {encoder} {name} | " + " | ".join(f"{c:.2f}" for c in cells) + " |")
    for label in sorted({c[0] for c in columns}):
        gains = {
            k: np.mean(v[label, "NNK"]) - np.mean(v[label, "k-means"])
            for k, v in found.items()
            if (label, "NNK") in v and (label, "k-means") in v
        }
        if gains:
            below = {k: round(g, 2) for k, g in gains.items() if g < -0.1}
            above = np.mean([g > 0 for g in gains.values()])
            lines.append(
                f"\n{label}: above k-means in {above:.0%} of {len(gains)}; below by more than 0.1: {below}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: python suite.py --draws 3"
    )
    parser.add_argument("--label", default="plan", help="name of what is measured")
    parser.add_argument("--encoder", choices=list(ENCODERS), action="append")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="first draw")
    parser.add_argument("--method", choices=list(METHODS), action="append")
    parser.add_argument("--table", action="store_true", help="only print the table of the records")
    given = parser.parse_args()
    if not given.table:
        draws = range(given.first, given.first + given.draws)
        run(given.label, given.encoder or list(ENCODERS), draws, given.method or list(METHODS))
    print(table())

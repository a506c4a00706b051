"""Learning from a stream: `partial_fit` against one `fit`, and with drift and strange rows in it.

Records go to results/stream.jsonl; existing ones with the same settings are not rerun. `--dev` uses
the validation splits and other draws of classes, on which rules were chosen.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tasks import Task, banking, clinc, newsgroups, stored

import outscope
from outscope import ClasswiseNNKDetector, NNKDetector
from outscope.decisions.metrics import evaluate

RESULTS = Path(__file__).parent / "results"
KINDS = {"label-blind": NNKDetector, "class-wise": ClasswiseNNKDetector}
PIECES, SEEDS = 100, 3
STRANGE, BLOCK = 0.05, 100
# Classes that are there from the start; the others come in later, if any do.
EARLY = 75
# In the hard case a third of the classes is never in scope, and some of their rows in the stream.
OUTSIDE = 50
BEFORE = "before the stream"


class Drift(NamedTuple):
    """Rows in their order of arrival."""

    X: np.ndarray
    y: np.ndarray  # of strange rows: the nearest class, as a careless classifier gives it
    strange: np.ndarray
    first: int  # rows known to be in scope, which are fitted
    queries: np.ndarray
    is_ood: np.ndarray


def drift(seed: int, split: str, *, late: bool = False, hard: bool = False) -> Drift:
    """CLINC150 with a changing mixture of classes and, if `late`, classes that come in later.

    The strange rows are the dataset's own out-of-scope texts, some in the stream and others among
    the queries; if `hard`, they are rows of classes on the same subjects as those in scope.
    """
    data, rng = stored("clinc150"), np.random.default_rng(seed)
    classes = rng.permutation(np.unique(data["train_y"]))
    inside = classes[OUTSIDE:] if hard else classes
    X, y = data["train_x"], data["train_y"]
    queries, of = data[f"{split}_x"], data[f"{split}_y"]
    rows = np.flatnonzero(np.isin(y, inside))
    if hard:
        odd = X[np.isin(y, classes[:OUTSIDE])]
        odd = odd[rng.permutation(len(odd))[: round(STRANGE / (1 - STRANGE) * len(rows))]]
        is_ood = np.isin(of, classes[:OUTSIDE]).astype(float)
    else:
        names = ["oos_train_x", "oos_val_x"] + (["oos_test_x"] if split == "test" else [])
        odd = np.concatenate([data[name] for name in names])
        odd = odd[rng.permutation(len(odd))]
        odd, other = np.array_split(odd, [round(0.6 * len(odd))])
        rows = rng.permutation(rows)[: round(len(odd) * (1 - STRANGE) / STRANGE)]
        is_ood = np.repeat([0.0, 1.0], [len(queries), len(other)])
        queries = np.concatenate([queries, other])
    X, y = X[rows], y[rows]
    when, start = np.empty(len(y)), {}
    for i, c in enumerate(inside):
        # Some classes fade, some grow; the late ones start in the first 70 % of the stream.
        shape = (2, 1) if rng.random() < 0.5 else (1, 2)
        start[c] = rng.uniform(0.1, 0.7) if late and i >= EARLY else 0.0
        mine = y == c
        when[mine] = start[c] + (1.0 - start[c]) * rng.beta(*shape, size=mine.sum())
    moments = rng.uniform(0.1, 1.0, len(odd))
    likeness = odd @ np.stack([X[y == c].mean(axis=0) for c in inside]).T
    likeness[moments[:, None] < np.array([start[c] for c in inside])] = -np.inf
    when, y = np.r_[when, moments], np.r_[y, inside[likeness.argmax(axis=1)]]
    order = np.argsort(when, kind="stable")
    strange = order >= len(X)
    first = int(np.count_nonzero(when < 0.1))
    return Drift(np.concatenate([X, odd])[order], y[order], strange, first, queries, is_ood)


def pieces(task: Task, seed: int, kind: str) -> Iterator[tuple[str, outscope.Detector, float]]:
    """One fit, and the same rows in pieces, with and without the guard."""
    order = np.random.default_rng(seed).permutation(len(task.X))
    X, y = task.X[order], task.y[order]
    start = time.perf_counter()
    yield "fit", KINDS[kind](random_state=seed).fit(X, y), time.perf_counter() - start
    for name, guard in (("100 pieces", "auto"), ("100 pieces, guard", True)):
        start, detector = time.perf_counter(), KINDS[kind](random_state=seed)
        for part in np.array_split(np.arange(len(X)), PIECES):
            detector.partial_fit(X[part], y[part], guard=guard)
        yield name, detector, time.perf_counter() - start


def drifting(task: Drift, seed: int, kind: str) -> Iterator[tuple[str, outscope.Detector, float]]:
    """Before the stream; after it, with and without strange rows, with and without the guard."""
    start, detector = time.perf_counter(), KINDS[kind](random_state=seed)
    detector.fit(task.X[: task.first], task.y[: task.first])
    yield BEFORE, detector, time.perf_counter() - start
    for dirty in (False, True):
        kept = np.flatnonzero(~task.strange | dirty)
        for guard in (False, True):
            start, detector = time.perf_counter(), KINDS[kind](random_state=seed)
            detector.fit(task.X[kept[: task.first]], task.y[kept[: task.first]])
            for i in range(task.first, len(kept), BLOCK):
                part = kept[i : i + BLOCK]
                detector.partial_fit(task.X[part], task.y[part], guard=guard)
            name = f"{'5 % strange' if dirty else 'clean'}, {'guard' if guard else 'no guard'}"
            yield name, detector, time.perf_counter() - start


def plan(dev: bool) -> Iterator[tuple[str, int, str, object]]:
    """Task, seed, kind and what to measure."""
    split = "val" if dev else "test"
    for seed in range(100, 100 + SEEDS) if dev else range(SEEDS):
        for kind in KINDS:
            tasks = [
                clinc(split),
                banking(0.5, seed, split),
                newsgroups(0.5, seed, split),
            ]
            for task in tasks:
                yield task.name, seed, kind, task
            yield "drift", seed, kind, drift(seed, split)
            yield "drift, late classes", seed, kind, drift(seed, split, late=True)
            yield "drift, near classes", seed, kind, drift(seed, split, hard=True)


def run(file: Path, dev: bool, only: str) -> None:
    file.parent.mkdir(exist_ok=True)
    done = {(r["task"], r["seed"], r["kind"]) for r in read(file)}
    for name, seed, kind, task in plan(dev):
        if (name, seed, kind) in done or only not in name:
            continue
        measure = drifting if isinstance(task, Drift) else pieces
        for method, detector, seconds in measure(task, seed, kind):
            scores = detector.ood_score(task.queries)
            flagged, outside = detector.decide(scores).is_ood, task.is_ood == 1
            found = evaluate(task.is_ood, scores)
            record = {"task": name, "seed": seed, "kind": kind, "method": method}
            record |= {key: round(100 * value, 3) for key, value in found._asdict().items()}
            record |= {
                "false_alarms": round(100 * float(flagged[~outside].mean()), 2),
                "found": round(100 * float(flagged[outside].mean()), 2),
                "rows": len(task.X),
                "atoms": len(detector.atoms_),
                "passed_over": 0 if method in ("fit", BEFORE) else detector.rows_passed_over_,
                "seconds": round(seconds, 2),
                "outscope": outscope.__version__,
            }
            with file.open("a") as out:
                out.write(json.dumps(record) + "\n")
            print(name, seed, kind, method, record["auroc"], flush=True)


def read(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def table(file: Path) -> str:
    """Means over seeds, and the difference to one fit or to the stream without strange rows."""
    found: dict[tuple, dict[int, dict]] = {}
    for record in read(file):
        key = record["task"], record["kind"], record["method"]
        found.setdefault(key, {})[record["seed"]] = record
    lines = [
        "| task | detector | rows come | AUROC | difference | false alarms % | strange found % "
        "| passed over | atoms | seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    first: dict[tuple, dict[int, dict]] = {}
    for (task, kind, method), records in sorted(found.items(), key=lambda item: item[0][:2]):
        base = records if method == BEFORE else first.setdefault((task, kind), records)
        gap = np.mean([records[s]["auroc"] - base[s]["auroc"] for s in records if s in base])
        mean = {
            name: np.mean([record[name] for record in records.values()])
            for name in ("auroc", "false_alarms", "found", "passed_over", "atoms", "seconds")
        }
        lines.append(
            f"| {task} | {kind} | {method} | {mean['auroc']:.2f} | {gap:+.2f} "
            f"| {mean['false_alarms']:.1f} | {mean['found']:.1f} | {mean['passed_over']:,.0f} "
            f"| {mean['atoms']:,.0f} | {mean['seconds']:.1f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: stream.py --table")
    parser.add_argument("--table", action="store_true", help="only print the table of the records")
    parser.add_argument("--dev", action="store_true", help="validation splits, other draws")
    parser.add_argument("--only", default="", help="only tasks with this in their name")
    given = parser.parse_args()
    records = RESULTS / ("stream_dev.jsonl" if given.dev else "stream.jsonl")
    if not given.table:
        run(records, given.dev, given.only)
    print(table(records))

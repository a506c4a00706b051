"""Five to twenty texts per class: scores against 1-NN and class means, and false alarms.

"quality": CLINC150 with all classes and its own out-of-scope queries, Banking77 with half of its
classes in scope. "promise": false alarms on new in-scope texts under a promise of 5 %. Records go
to results/few.jsonl, one for each draw and method; existing ones are not rerun.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
from tasks import stored

from outscope import ClasswiseNNKDetector, KNNDetector, NNKDetector, NoPromiseWarning
from outscope.decisions.metrics import auroc
from outscope.detectors.holdout import fit_and_calibrate

RECORDS = Path(__file__).parent / "results" / "few.jsonl"
SIZES = (5, 10, 20)
DATA = ("clinc150", "banking77")
FPR = 0.05
NEW_ROWS = 1000
METHODS = {
    "1-NN": lambda seed: KNNDetector(skip_copies=False),
    "NNK": lambda seed: NNKDetector(random_state=seed),
    "C-NNK": lambda seed: ClasswiseNNKDetector(random_state=seed),
}
MEANS = "class means"


def unit(rows: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1.0)


def few_of(X, y, size, rng):
    """`size` rows of each class."""
    chosen = [rng.permutation(np.flatnonzero(y == c))[:size] for c in np.unique(y)]
    chosen = np.sort(np.concatenate(chosen))
    return X[chosen], y[chosen]


def task(name: str, size: int, draw: int):
    """Rows and labels to fit, queries, and 1 for each that is out of scope."""
    data, rng = stored(name), np.random.default_rng([draw, size])
    X, y, queries = data["train_x"], data["train_y"], data["test_x"]
    if name == "clinc150":
        is_ood = np.r_[np.zeros(len(queries)), np.ones(len(data["oos_test_x"]))]
        queries = np.concatenate([queries, data["oos_test_x"]])
    else:
        classes = np.unique(y)
        inside = rng.choice(classes, len(classes) // 2, replace=False)
        is_ood = (~np.isin(data["test_y"], inside)).astype(float)
        kept = np.isin(y, inside)
        X, y = X[kept], y[kept]
    return *few_of(X, y, size, rng), queries, is_ood


def to_means(X, y, queries):
    means = unit(np.stack([unit(X)[y == c].mean(axis=0) for c in np.unique(y)]))
    return 1.0 - (unit(queries) @ means.T).max(axis=1)


def quality(name, size, draw, methods=tuple(METHODS)):
    X, y, queries, is_ood = task(name, size, draw)
    found = {MEANS: to_means(X, y, queries)}
    found |= {m: METHODS[m](draw).fit(X, y).ood_score(queries) for m in methods}
    return {method: {"auroc": round(100 * auroc(is_ood, s), 3)} for method, s in found.items()}


def promise(name, size, draw, methods=("NNK", "C-NNK")):
    """False alarms on rows of the same classes; all rows are drawn alike, so classes vary in size."""
    data, rng = stored(name), np.random.default_rng([draw, size, 1])
    X, y = (np.concatenate([data[f"{s}_{part}"] for s in ("train", "test")]) for part in "xy")
    order = rng.permutation(len(X))
    n = size * len(np.unique(y))
    mine, new = order[:n], order[n : n + NEW_ROWS]
    found = {}
    for method in methods:
        detector = METHODS[method](draw)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoPromiseWarning)
            fit_and_calibrate(detector, X[mine], y[mine], fpr=FPR, random_state=draw)
        rate = float(detector.is_ood(X[new]).mean())
        found[method] = {"promised": detector.promise_ is not None, "rate": round(rate, 5)}
    return found


def read() -> list[dict]:
    lines = RECORDS.read_text().splitlines() if RECORDS.exists() else []
    return [json.loads(line) for line in lines]


def run(kind: str, draws: int, sizes, methods) -> None:
    done = {(r["kind"], r["data"], r["size"], r["draw"], r["method"]) for r in read()}
    for draw in range(draws):
        for name in DATA:
            for size in sizes:
                missing = [m for m in methods if (kind, name, size, draw, m) not in done]
                if not missing:
                    continue
                measure = {"quality": quality, "promise": promise}[kind]
                for method, found in measure(name, size, draw, missing).items():
                    about = {"kind": kind, "data": name, "size": size, "draw": draw}
                    with RECORDS.open("a") as file:
                        file.write(json.dumps(about | {"method": method} | found) + "\n")
        print(kind, draw, flush=True)


def table() -> str:
    cells: dict[tuple, list[float]] = {}
    for r in read():
        value = r["auroc"] if r["kind"] == "quality" else 100 * r["rate"]
        cells.setdefault((r["kind"], r["method"], r["data"], r["size"]), []).append(value)
    lines = []
    for kind in dict.fromkeys(key[0] for key in cells):
        lines += [
            "",
            f"| {kind} | " + " | ".join(f"{d} {s}" for d in DATA for s in SIZES) + " | mean |",
        ]
        lines.append("|---" * (2 + len(DATA) * len(SIZES)) + "|")
        for method in dict.fromkeys(key[1] for key in cells if key[0] == kind):
            own = [cells.get((kind, method, d, s), [np.nan]) for d in DATA for s in SIZES]
            told = [
                f"{np.mean(v):.2f}"
                + (f" ± {np.std(v) / len(v) ** 0.5:.2f} ({len(v)})" if kind == "promise" else "")
                for v in own
            ]
            mean = np.mean([np.mean(v) for v in own])
            lines.append(f"| {method} | {' | '.join(told)} | {mean:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: python few.py --kind promise --draws 200"
    )
    parser.add_argument("--kind", choices=("quality", "promise"), default="quality")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--method", choices=list(METHODS), action="append")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--table", action="store_true", help="only print the table of the records")
    given = parser.parse_args()
    if not given.table:
        usual = list(METHODS) if given.kind == "quality" else ["NNK", "C-NNK"]
        run(given.kind, given.draws, given.sizes, given.method or usual)
    print(table())

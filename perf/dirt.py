"""Training rows with dirt in them: what scores lose, and whether the dirt is found.

Half of the classes are in scope, as in suite.py. A share of training rows of the other classes is
added to the in-scope ones and, where labels are used, labelled by the nearest class mean. Queries
come from the test files. Losses are against the same method on the clean rows. Records go to
results/dirt.jsonl; existing ones are not rerun.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from suite import ENCODERS, QUERIES, ROWS, SHARES, vectors

from outscope import ClasswiseNNKDetector, KNNDetector, NNKDetector
from outscope.decisions.metrics import auroc

RECORDS = Path(__file__).parent / "results" / "dirt.jsonl"
AMOUNTS = (0.0, 0.02, 0.1)
DRAWS = range(3)
METHODS = {
    "1-NN": lambda seed: KNNDetector(skip_copies=False),
    "NNK": lambda seed: NNKDetector(random_state=seed),
    "NNK, support 0.1": lambda seed: NNKDetector(support=0.1, random_state=seed),
    "NNK, support 0.3": lambda seed: NNKDetector(support=0.3, random_state=seed),
    "C-NNK": lambda seed: ClasswiseNNKDetector(random_state=seed),
    "C-NNK, support 0.3": lambda seed: ClasswiseNNKDetector(support=0.3, random_state=seed),
}
MISLABELLED = 0.02
NEIGHBORS = 10


def unit(rows: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1.0)


class Case:
    """Training rows with their dirt, labels as a user would have them, and queries."""

    def __init__(self, encoder: str, dataset: str, draw: int, amount: float) -> None:
        X, y = vectors(encoder, dataset, "train")
        queries, labels = vectors(encoder, dataset, "test")
        rng = np.random.default_rng([draw, 18])
        classes = np.unique(y)
        chosen = np.sort(rng.choice(classes, round(0.5 * len(classes)), replace=False))
        inside = rng.permutation(np.flatnonzero(np.isin(y, chosen)))[:ROWS]
        outside = rng.permutation(np.flatnonzero(~np.isin(y, chosen)))
        outside = outside[: round(amount * len(inside))]
        truth = ~np.isin(labels, chosen)
        kept = [rng.permutation(np.flatnonzero(truth == kind))[:QUERIES] for kind in (0, 1)]
        kept = np.concatenate(kept)
        rows = np.concatenate([inside, outside])
        order = rng.permutation(len(rows))
        self.X, self.y = X[rows][order], y[rows].copy()
        rows_in = unit(X[inside])
        means = unit(np.stack([rows_in[y[inside] == c].mean(axis=0) for c in chosen]))
        self.y[len(inside) :] = chosen[(unit(X[outside]) @ means.T).argmax(axis=1)]
        self.y = self.y[order]
        self.is_dirt = (order >= len(inside)).astype(float)
        self.queries, self.is_ood = queries[kept], truth[kept].astype(float)
        self.rng = rng


def quality(case: Case, draw: int, methods) -> dict[str, float]:
    found = {}
    for name in methods:
        detector = METHODS[name](draw).fit(case.X, case.y)
        found[name] = auroc(case.is_ood, detector.ood_score(case.queries))
    return found


def finding(case: Case) -> dict[str, float]:
    """AUROC of telling dirt from in-scope training rows, and wrong labels from right ones."""
    from outscope.detectors.suspects import judge_rows

    squared = np.sort(2.0 - 2.0 * unit(case.X) @ unit(case.X).T, axis=1)[:, 1 : NEIGHBORS + 1]
    found = {
        "10-NN distance": auroc(case.is_dirt, squared.mean(axis=1)),
        "suspicious": auroc(case.is_dirt, judge_rows(case.X, None).strangeness),
    }
    clean, wrong = case.X[case.is_dirt == 0], case.y[case.is_dirt == 0].copy()
    changed = case.rng.permutation(len(wrong))[: round(MISLABELLED * len(wrong))]
    for i in changed:
        wrong[i] = case.rng.choice(np.setdiff1d(np.unique(wrong), [wrong[i]]))
    truth = np.isin(np.arange(len(wrong)), changed).astype(float)
    judged = judge_rows(clean, wrong)
    found["mislabelled"] = auroc(truth, judged.doubt)
    top = np.argsort(-judged.doubt, kind="stable")[: len(changed)]
    found["mislabelled, share of the top 2 %"] = float(truth[top].mean())
    return found


def read() -> list[dict]:
    lines = RECORDS.read_text().splitlines() if RECORDS.exists() else []
    return [json.loads(line) for line in lines]


def keep(task: dict, found: dict[str, float]) -> None:
    with RECORDS.open("a") as file:
        for name, value in found.items():
            record = {**task, "method": name, "value": round(100 * value, 3)}
            file.write(json.dumps(record) + "\n")


def run(kind: str, encoders, draws, methods) -> None:
    names = ("kind", "encoder", "dataset", "draw", "dirt")
    done = {(*(r[n] for n in names), r["method"]) for r in read()}
    for encoder in encoders:
        for draw in draws:
            for dataset in SHARES:
                for amount in AMOUNTS if kind == "quality" else (0.02,):
                    key = (kind, encoder, dataset, draw, amount)
                    missing = [m for m in methods if (*key, m) not in done]
                    if ((*key, "suspicious") in done) if kind == "finding" else not missing:
                        continue
                    case = Case(encoder, dataset, draw, amount)
                    found = quality(case, draw, missing) if kind == "quality" else finding(case)
                    keep(dict(zip(names, key, strict=True)), found)
                print(kind, encoder, dataset, draw, flush=True)


def table() -> str:
    """Means over datasets of means over draws."""
    cells: dict[tuple, dict[str, dict[int, float]]] = {}
    for r in read():
        place = (r["kind"], r["encoder"], r["method"], r["dirt"])
        cells.setdefault(place, {}).setdefault(r["dataset"], {})[r["draw"]] = r["value"]

    def mean(encoder: str, method: str, amount: float, like: str) -> float:
        """Over datasets of means over draws, where there are records of `like`."""
        own = cells.get(("quality", encoder, method, amount), {})
        ours = [
            np.mean([own[d][draw] for draw in draws if draw in own.get(d, {})])
            for d, draws in cells.get(("quality", encoder, like, AMOUNTS[-1]), {}).items()
        ]
        return float(np.mean(ours)) if ours else np.nan

    lines = []
    for encoder in dict.fromkeys(place[1] for place in cells):
        lines += ["", f"| {encoder} | clean | 2 % | loss, of 1-NN's | 10 % | loss, of 1-NN's |"]
        lines.append("|---" * 6 + "|")
        for method in METHODS:
            at = [mean(encoder, method, amount, method) for amount in AMOUNTS]
            one = [mean(encoder, "1-NN", amount, method) for amount in AMOUNTS]
            told = [
                f"{at[i]:.2f} | {at[0] - at[i]:.2f}, {(at[0] - at[i]) / (one[0] - one[i]):.2f}"
                for i in (1, 2)
            ]
            lines.append(f"| {method} | {at[0]:.2f} | {' | '.join(told)} |")
        found = [place for place in cells if place[:2] == ("finding", encoder)]
        if found:
            lines += ["", f"| {encoder}, finding | " + " | ".join([*SHARES, "mean"]) + " |"]
            lines.append("|---" * (2 + len(SHARES)) + "|")
            for place in found:
                own = [np.mean([*cells[place].get(d, {0: np.nan}).values()]) for d in SHARES]
                told = " | ".join(f"{v:.1f}" for v in [*own, np.nanmean(own)])
                lines.append(f"| {place[2]} | {told} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: python dirt.py --kind finding --encoder MiniLM"
    )
    parser.add_argument("--kind", choices=("quality", "finding"), action="append")
    parser.add_argument("--encoder", choices=list(ENCODERS), action="append")
    parser.add_argument("--draws", type=int, default=len(DRAWS))
    parser.add_argument("--method", choices=list(METHODS), action="append")
    parser.add_argument("--table", action="store_true", help="only print the table of the records")
    given = parser.parse_args()
    if not given.table:
        for kind in given.kind or ("quality", "finding"):
            run(
                kind,
                given.encoder or list(ENCODERS),
                range(given.draws),
                given.method or list(METHODS),
            )
    print(table())

"""Rules read off the rows, on validation texts: moving rows between atoms where rows lie far apart or
atoms are few, holding loose atoms back where rows lie far apart, and a discount on what all rows have
in common. Each column is one fixed setting; no rule is chosen per task.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from tasks import Task, banking, clinc, clinc_classes, newsgroups

import outscope._learning
import outscope._transfers
from outscope import ClasswiseNNKDetector, NNKDetector
from outscope.metrics import auroc

PASSES = (0, 1, 2, 4, 8)
LOOSENESS = (0.0, 0.5, 1.0, 1.5)
DISCOUNTS = (0.0, 1 / 8, 1 / 4, 3 / 8, 1 / 2)
DRAWS = range(100, 112)


# 20 Newsgroups: what is stored, the share of classes in scope, and how to ask for it.
CASES = [("a quarter", share, {}) for share in (0.25, 0.5, 0.75)] + [
    ("2,000", 0.25, {"n_atoms": 2000}),
    ("200", 0.25, {"n_atoms": 200}),
    ("2,000 -> 200", 0.25, {"n_atoms": 2000, "max_atoms": 200}),
    ("bytes of 200", 0.25, {"max_bytes": 200 * 384 * 4, "precision": "auto"}),
]


def far_apart(draws: range) -> None:
    heading("atoms", ["none", *(f"{p} passes" for p in PASSES[1:])])
    original, usual = outscope._learning.transfer_rows, outscope._transfers.PASSES
    for name, share, size in CASES:
        found = []
        for seed in draws:
            task = newsgroups(share, seed, "val")
            row = []
            for passes in PASSES:
                outscope._transfers.PASSES = passes
                outscope._learning.transfer_rows = (
                    original if passes else lambda rows, atoms, _: atoms
                )
                row.append(score(task, NNKDetector(**size, random_state=seed).fit(task.X)))
            outscope._transfers.PASSES, outscope._learning.transfer_rows = usual, original
            found.append(row)
        show(f"20 Newsgroups {share:.0%}, {name}", found, 0)


def few_atoms(draws: range) -> None:
    """Rows that lie nearer: learned with `ROWS_WORTH_MOVING` out of reach, then as it is."""
    heading("atoms", ["none", "4 passes"])
    usual = outscope._learning.ROWS_WORTH_MOVING
    tasks: dict[str, Callable[[int], Task]] = {
        f"Banking77 {share:.0%}": lambda seed, share=share: banking(share, seed, "val")
        for share in (0.25, 0.5, 0.75)
    }
    tasks["CLINC150 75%"] = lambda seed: clinc_classes(0.75, seed)
    tasks["CLINC150"] = lambda seed: clinc("val")
    for task_name, make in tasks.items():
        for name, size in (
            ("200", {"n_atoms": 200}),
            ("2,000 -> 200", {"n_atoms": 2000, "max_atoms": 200}),
            ("500", {"n_atoms": 500}),
        ):
            found = []
            for seed in draws:
                task, row = make(seed), []
                for worth in (np.inf, 0):
                    outscope._learning.ROWS_WORTH_MOVING = worth
                    row.append(score(task, NNKDetector(**size, random_state=seed).fit(task.X)))
                outscope._learning.ROWS_WORTH_MOVING = usual
                found.append(row)
            rows = len(task.X) / int(name.split()[-1])
            show(f"{task_name}, {name} ({rows:.0f} rows an atom)", found, 0)


def loose(draws: range) -> None:
    heading("atoms", [f"{factor:g} x share" for factor in LOOSENESS])
    for name, share, size in CASES:
        found = []
        for seed in draws:
            task = newsgroups(share, seed, "val")
            detector = NNKDetector(**size, random_state=seed).fit(task.X)
            row = []
            for factor in LOOSENESS:
                detector.dictionary_.looseness_ = factor * len(detector.atoms_) / len(task.X)
                detector.dictionary_.prepare()
                detector.prepare()
                row.append(score(task, detector))
            found.append(row)
        show(f"20 Newsgroups {share:.0%}, {name}", found, 0)


def in_common(draws: range) -> None:
    heading("rows", [f"{d:g}" for d in DISCOUNTS])
    tasks: dict[str, Callable[[int], Task]] = {
        f"Banking77 {share:.0%}": lambda seed, share=share: banking(share, seed, "val")
        for share in (0.25, 0.5, 0.75)
    }
    tasks["CLINC150"] = lambda seed: clinc("val")
    tasks["20 Newsgroups 50 %"] = lambda seed: newsgroups(0.5, seed, "val")
    for name, make in tasks.items():
        for kind in (NNKDetector, ClasswiseNNKDetector):
            found = []
            for seed in draws:
                task = make(seed)
                detector = kind(random_state=seed).fit(task.X, task.y)
                detector.common_ = None
                detector.prepare()
                unit = task.queries / np.linalg.norm(task.queries, axis=1, keepdims=True)
                mean = (task.X / np.linalg.norm(task.X, axis=1, keepdims=True)).mean(axis=0)
                plain = detector.ood_score(task.queries)
                found.append(
                    [100 * auroc(task.is_ood, plain + 2 * d * (unit @ mean)) for d in DISCOUNTS]
                )
            show(f"{name}, {kind.__name__}", found, 0)


def heading(first: str, columns: list[str]) -> None:
    print(f"| {first} | " + " | ".join(columns) + " |")
    print("|---" * (1 + len(columns)) + "|")


def score(task: Task, detector: NNKDetector) -> float:
    return 100 * auroc(task.is_ood, detector.ood_score(task.queries))


def show(name: str, found: list[list[float]], base: int) -> None:
    values = np.array(found)
    change = (values - values[:, base : base + 1]).mean(axis=0)
    cells = [
        f"{values[:, base].mean():.2f}" if i == base else f"{c:+.2f}" for i, c in enumerate(change)
    ]
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: python rows.py --draws 4 common"
    )
    rules = {"apart": far_apart, "few": few_atoms, "loose": loose, "common": in_common}
    parser.add_argument("rule", choices=tuple(rules))
    parser.add_argument("--draws", type=int, default=len(DRAWS), help="validation draws")
    parser.add_argument("--first", type=int, default=0, help="draws to leave out before those")
    options = parser.parse_args()
    rules[options.rule](DRAWS[options.first :][: options.draws])

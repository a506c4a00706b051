"""Two rules read off the rows, on validation texts: weights where rows lie far apart, and a discount
on what all rows have in common. Each column is one fixed setting; no rule is chosen per task.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from tasks import Task, banking, clinc, newsgroups

import outscope._learning
from outscope import ClasswiseNNKDetector, NNKDetector
from outscope._coder import Codes
from outscope.metrics import auroc

POWERS = (0.0, 0.5, 1.0, 2.0)
DISCOUNTS = (0.0, 1 / 8, 1 / 4, 3 / 8, 1 / 2)
DRAWS = range(100, 112)


def by_power(power: float) -> Callable[..., None]:
    """A replacement for `CodeStatistics.add`: rows weigh by a power of their error."""
    add = outscope._learning.CodeStatistics.add

    def changed(self, rows, codes, n_jobs, *, by_error=False):
        weighed = np.maximum(codes.ood_score, 1e-9) ** power
        if by_error and power:
            loss = float(codes.ood_score.sum())
            add(self, rows, Codes(*codes[:2], weighed), n_jobs, by_error=True)
            self.loss += loss - float(weighed.sum())
        else:
            add(self, rows, codes, n_jobs)

    return changed


def far_apart(draws: range) -> None:
    print("| atoms | " + " | ".join(f"error^{p:g}" for p in POWERS) + " |")
    print("|---" * (1 + len(POWERS)) + "|")
    original = outscope._learning.CodeStatistics.add
    cases = [("a quarter", 0.25, None), ("a quarter", 0.5, None), ("a quarter", 0.75, None)]
    cases += [("200", 0.25, 200), ("2,000", 0.25, 2000)]
    for name, share, size in cases:
        found = []
        for seed in draws:
            task = newsgroups(share, seed, "val")
            row = []
            for power in POWERS:
                outscope._learning.CodeStatistics.add = by_power(power)
                atoms = size or min(2000, len(task.X) // 4)
                row.append(score(task, NNKDetector(atoms, random_state=seed).fit(task.X)))
                outscope._learning.CodeStatistics.add = original
            found.append(row)
        show(f"20 Newsgroups {share:.0%}, {name}", found, POWERS.index(0.0))


def in_common(draws: range) -> None:
    print("| rows | " + " | ".join(f"{d:g}" for d in DISCOUNTS) + " |")
    print("|---" * (1 + len(DISCOUNTS)) + "|")
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
    parser.add_argument("rule", choices=("apart", "common"))
    parser.add_argument("--draws", type=int, default=len(DRAWS), help="validation draws")
    options = parser.parse_args()
    chosen = DRAWS[: options.draws]
    far_apart(chosen) if options.rule == "apart" else in_common(chosen)

"""The evidence behind the class-wise metric: plain and within-class distances on validation texts.

Fine-tuned encoders and vectors come from the store of `outscope paper run` (made where missing).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from outscope import ClasswiseNNKDetector, NNKDetector, nnk
from outscope._rows import Rows
from outscope.metrics import auroc
from outscope.paper.features import Store
from outscope.paper.tasks import Task
from outscope.text.weights import DEFAULT

TASKS = [
    ("pretrained", Task("banking77", 50, 0)),
    ("pretrained", Task("clinc150", 100, 0)),
    ("pretrained", Task("20newsgroups", 25, 0)),
    ("pretrained", Task("20newsgroups", 75, 0)),
    ("pretrained", Task("ag_news", 50, 0)),
    ("pretrained", Task("ag_news", 75, 0)),
    ("finetuned", Task("banking77", 25, 0)),
    ("finetuned", Task("banking77", 75, 0)),
    ("contrastive", Task("banking77", 25, 0)),
    ("contrastive", Task("banking77", 50, 0)),
    ("contrastive", Task("clinc150", 100, 0)),
]


def within_share(X, y):
    """Share of the variance of unit rows that is within classes."""
    rows = Rows(X, normalize=True).all()
    means = {label: rows[y == label].mean(axis=0) for label in np.unique(y)}
    own = rows - np.stack([means[label] for label in y])
    return float((own**2).sum() / ((rows - rows.mean(axis=0)) ** 2).sum())


def measured(features, detector):
    train, held = features.data.train, features.data.validation
    detector.fit(features.train, train.labels)
    return 100 * auroc(held.is_ood.astype(int), detector.ood_score(features.validation))


def line(store, representation, task):
    features = store.features(task, representation)
    X, y = features.train, features.data.train.labels
    chosen = nnk.wants_metric
    values = [measured(features, NNKDetector(random_state=0))]
    for metric in (False, True):
        nnk.wants_metric = lambda rows, membership, metric=metric: metric
        values.append(measured(features, ClasswiseNNKDetector(random_state=0)))
    nnk.wants_metric = chosen
    default = ClasswiseNNKDetector(random_state=0).fit(X, y).metric_ is not None
    shown = [f"{value:.2f}" for value in values]
    shown[1 + default] = f"**{shown[1 + default]}**"
    rows_a_class = len(X) / len(np.unique(y))
    name = f"{task.dataset} {task.ratio} %, {representation}"
    return (
        f"| {name} | {within_share(X, y):.2f} | {rows_a_class:,.0f} | " + " | ".join(shown) + " |"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    options = parser.parse_args()
    store = Store(options.store, options.data, DEFAULT, lambda words: None)
    print("| task | variance within | rows a class | label-blind | plain | within-class metric |")
    print("|---" * 6 + "|")
    for representation, task in TASKS:
        print(line(store, representation, task), flush=True)

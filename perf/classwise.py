"""The evidence behind the class-wise defaults: kernel widths and metric on validation texts.

Fine-tuned encoders and vectors come from the store of `outscope paper run` (made where missing).
"""

from __future__ import annotations

import argparse
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from outscope import (
    ClasswiseNNKDetector,
    KNNDetector,
    MahalanobisDetector,
    NNKDetector,
    classwise,
    geometry,
)
from outscope._rows import Rows
from outscope.geometry import Collapse
from outscope.metrics import auroc
from outscope.paper.features import Store
from outscope.paper.tasks import Task
from outscope.text.weights import DEFAULT

WHOLE, HALF, CROWDED = Collapse.WHOLE, Collapse.HALF, Collapse.CROWDED
POWERS = (0.0, 0.5, 1.0)
TASKS = [
    ("pretrained", Task("banking77", 25, 0)),
    ("pretrained", Task("banking77", 50, 0)),
    ("pretrained", Task("banking77", 75, 0)),
    ("pretrained", Task("clinc150", 100, 0)),
    ("pretrained", Task("20newsgroups", 25, 0)),
    ("pretrained", Task("20newsgroups", 50, 0)),
    ("pretrained", Task("20newsgroups", 75, 0)),
    ("pretrained", Task("ag_news", 50, 0)),
    ("pretrained", Task("ag_news", 75, 0)),
    ("finetuned", Task("banking77", 25, 0)),
    ("finetuned", Task("banking77", 25, 1)),
    ("finetuned", Task("banking77", 50, 1)),
    ("finetuned", Task("banking77", 75, 1)),
    ("finetuned", Task("clinc150", 100, 1)),
    ("finetuned", Task("20newsgroups", 25, 0)),
    ("finetuned", Task("20newsgroups", 50, 0)),
    ("finetuned", Task("20newsgroups", 75, 0)),
    *(("finetuned", Task("ag_news", ratio, draw)) for ratio in (50, 75) for draw in range(3)),
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


@contextmanager
def choosing(*, metric, width=geometry.CLASS_WIDTH, shared=False):
    """Class-wise detectors with the metric or without, kernels of a given width, alone or not."""
    before = classwise.collapse, geometry.CLASS_WIDTH, ClasswiseNNKDetector._share
    classwise.collapse, geometry.CLASS_WIDTH = (lambda *seen: metric), width
    if not shared:
        ClasswiseNNKDetector._share = lambda *seen: None
    try:
        yield
    finally:
        classwise.collapse, geometry.CLASS_WIDTH, ClasswiseNNKDetector._share = before


def line(store, representation, task):
    features = store.features(task, representation)
    X, y = features.train, features.data.train.labels
    blind = NNKDetector(random_state=0)
    values = [measured(features, blind)]
    sigma = blind.dictionary_.bandwidth_
    values.append(measured(features, ClasswiseNNKDetector(0.25, bandwidth=sigma, random_state=0)))
    for width in (geometry.CLASS_WIDTH, 1 / 3):
        with choosing(metric=Collapse.NONE, width=width):
            values.append(measured(features, ClasswiseNNKDetector(0.25, random_state=0)))
    for metric, shared in ((WHOLE, False), (WHOLE, True), (HALF, False), (CROWDED, False)):
        with choosing(metric=metric, shared=shared):
            values.append(measured(features, ClasswiseNNKDetector(random_state=0)))
    default = ClasswiseNNKDetector(random_state=0)
    values.append(measured(features, default))
    kind = f"{len(default.atoms_) / len(X):.0%}"
    if default.metric_ is not None:
        kind = "metric, rows kept" if default.shared_ is None else "metric + shared"
    return (
        f"| {task.dataset} {task.ratio} %, draw {task.seed}, {representation} | {within_share(X, y):.2f} "
        f"| {len(X) / len(np.unique(y)):,.0f} | "
        + " | ".join(f"{value:.2f}" for value in values)
        + f" ({kind}) |"
    )


def lines_of_powers(store, representation, task):
    """Rows kept, up to 2,000 a class, under powers of the metric, with their lengths or without."""
    features = store.features(task, representation)
    membership = np.unique(features.data.train.labels, return_inverse=True)[1]
    # What our users would pick instead: all rows, or the mean of each class.
    others = [
        f"{measured(features, detector):.2f}" for detector in (KNNDetector(), MahalanobisDetector())
    ]
    for normalize in (True, False):
        rows = Rows(features.train, normalize=normalize)
        queries = Rows(features.validation, normalize=normalize).all()
        values, vectors = np.linalg.eigh(geometry.within_metric(rows, membership))
        for power in POWERS:
            metric = (vectors * values**power) @ vectors.T
            seen = features._replace(
                train=(rows.all() @ metric).astype(np.float32),
                validation=(queries @ metric).astype(np.float32),
            )
            found = geometry.measure_geometry(
                Rows(seen.train, normalize=False), np.random.RandomState(0)
            )
            results = [
                measured(
                    seen,
                    ClasswiseNNKDetector(2000, bandwidth=width, normalize=False, random_state=0),
                )
                for width in (found.spread / 2, found.gap / 50)
            ]
            yield (
                f"| {task.dataset} {task.ratio} %, draw {task.seed}, {representation} "
                f"| {'unit' if normalize else 'kept'} | {power:g} | "
                + " | ".join([*(f"{result:.2f}" for result in results), *others])
                + " |"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--representation", help="only tasks of this one")
    parser.add_argument("--dataset", help="only tasks of this one")
    parser.add_argument("--powers", action="store_true", help="powers of the metric instead")
    parser.add_argument("--draw", type=int, help="only this one")
    options = parser.parse_args()
    store = Store(options.store, options.data, DEFAULT, lambda words: None)
    head = ["task", "variance within", "rows a class", "label-blind", "σ of label-blind"]
    head += ["σ = spread / 13", "σ = spread / 3", "metric", "metric + shared"]
    head += ["metric, rows kept, wide", "metric, rows kept, narrow", "**default**"]
    if options.powers:
        head = ["task", "lengths", "power", "σ = spread / 2", "gap / 50", "1-NN", "Mahalanobis"]
    print("| " + " | ".join(head) + " |")
    print("|---" * len(head) + "|")
    for representation, task in TASKS:
        if options.representation not in (None, representation):
            continue
        if options.dataset not in (None, task.dataset):
            continue
        if options.draw not in (None, task.seed):
            continue
        if options.powers:
            for row in lines_of_powers(store, representation, task):
                print(row, flush=True)
            continue
        print(line(store, representation, task), flush=True)

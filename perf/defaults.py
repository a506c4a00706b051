"""The evidence behind the defaults: one change at a time, on development tasks.

No test set is touched (but every other query of the one fine-tuned set there is), and nothing is
tuned on out-of-scope data that a user would not have: each row of the table is one fixed setting.
"""

from __future__ import annotations

import numpy as np
from tasks import banking, clinc, clinc_classes, finetuned_half, newsgroups

from outscope import KMeansDetector, KNNDetector, NNKDetector
from outscope._coder import Coder
from outscope.metrics import auroc

SMALL = 200


def tasks():
    yield "CLINC150", [clinc("val")]
    yield "CLINC150 75 %", [clinc_classes(0.75, 100)]
    yield "fine-tuned", [finetuned_half()]
    yield "Banking77 50 %", [banking(0.5, seed, "val") for seed in (100, 101, 102)]
    yield "Banking77 75 %", [banking(0.75, seed, "val") for seed in (100, 101)]
    yield "20 News. 25 %", [newsgroups(0.25, seed, "val") for seed in (100, 101)]
    yield "20 News. 50 %", [newsgroups(0.5, seed, "val") for seed in (100, 101)]


def variants(task, seed):
    """Name → AUROC of every setting on one task."""
    quarter = min(2000, len(task.X) // 4)

    def fitted(size=quarter, **settings):
        return NNKDetector(size, random_state=seed, **settings).fit(task.X)

    def score(detector):
        return auroc(task.is_ood, detector.ood_score(task.queries))

    default = fitted()
    sigma = default.dictionary_.bandwidth_
    found = {
        "1-NN on all rows": score(KNNDetector(skip_copies=False).fit(task.X)),
        "k-means, a quarter of the rows": score(
            KMeansDetector(quarter, random_state=seed).fit(task.X)
        ),
        "**default**": score(default),
    }
    for factor in (0.25, 0.5, 2, 4):
        found[f"bandwidth x {factor}"] = score(fitted(bandwidth=factor * sigma))
    found["Gaussian, MOD update"] = score(fitted(update="mod"))
    found["cosine, average update"] = score(fitted(kernel="cosine"))
    found["cosine, MOD update (the paper's)"] = score(
        fitted(kernel="cosine", update="mod", n_fit_neighbors=None)
    )
    found["atoms scaled to unit length"] = auroc(
        task.is_ood,
        Coder(unit(default.atoms_), sigma).ood_score(
            task.queries, default.dictionary_.n_neighbors_
        ),
    )
    for k in (1, 3, 20):
        found[f"{k} candidates while learning"] = score(fitted(n_fit_neighbors=k))
    for k in (3, 6, 20):
        found[f"{k} candidates in scoring"] = auroc(
            task.is_ood, default.dictionary_._coder.ood_score(task.queries, k)
        )
    found["atoms of 8 bits a number"] = score(fitted(precision="int8"))
    for epochs in (3, 16):
        found[f"{epochs} epochs"] = score(fitted(n_epochs=epochs))
    found["random first atoms"] = score(fitted(init="random"))
    found[f"{SMALL} atoms: k-means"] = score(KMeansDetector(SMALL, random_state=seed).fit(task.X))
    found[f"{SMALL} atoms: learned at that size"] = score(fitted(SMALL))
    found[f"{SMALL} atoms: **merged from 2,000**"] = score(fitted(2000, max_atoms=SMALL))
    return found


def unit(atoms):
    return atoms / np.linalg.norm(atoms, axis=1, keepdims=True)


if __name__ == "__main__":
    columns = {}
    for name, group in tasks():
        results = [variants(task, seed) for seed, task in enumerate(group)]
        columns[name] = {key: 100 * np.mean([r[key] for r in results]) for key in results[0]}
        print(f"… {name}", flush=True)
    print("| setting | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for key in next(iter(columns.values())):
        print(
            f"| {key} | " + " | ".join(f"{column[key]:.2f}" for column in columns.values()) + " |"
        )

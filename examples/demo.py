"""The main job on data that ships with scikit-learn: digits 0 to 7 are in scope, 8 and 9 are not."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import outscope
from outscope.metrics import evaluate

console = Console(width=100)
X, y = load_digits(return_X_y=True)
inside = y < 8
train, rest, y_train, _ = train_test_split(X[inside], y[inside], test_size=0.5, random_state=0)
calibration, fresh = train_test_split(rest, test_size=0.5, random_state=0)
queries = np.concatenate([fresh, X[~inside]])
truth = np.repeat([0, 1], [len(fresh), int((~inside).sum())])

console.print(
    f"[bold]{len(train)} images of the digits 0 to 7 are in scope; 8 and 9 are strange.\n"
)
table = Table("method", "stored", "AUROC", "AUPR out", "FPR@95", "false alarms", "caught", box=None)
for method in ("nnk-means", "ec-nnk-means", "c-nnk-means", "knn", "kmeans", "mahalanobis"):
    detector = outscope.make_detector(method, **({"max_atoms": 90} if "ec-" in method else {}))
    if "random_state" in detector.get_params():
        detector.set_params(random_state=0)
    detector.fit(train, y_train).calibrate(calibration, fpr=0.05)
    scores = detector.ood_score(queries)
    flagged = detector.is_ood(queries)
    found = evaluate(truth, scores)
    vectors = getattr(detector, "atoms_", getattr(detector, "means_", ()))
    table.add_row(
        method,
        f"{len(vectors)} vectors",
        f"{100 * found.auroc:.2f}",
        f"{100 * found.aupr_out:.2f}",
        f"{100 * found.fpr_at_95:.2f}",
        f"{flagged[truth == 0].mean():.1%}",
        f"{flagged[truth == 1].mean():.1%}",
    )
console.print(table)
console.print(
    f"\nThresholds were set on {len(calibration)} held-out digits so that P(false alarm) ≤ 5 %; in a"
    " sample\nas small as this one, the observed share scatters around that.\n"
)

detector = outscope.ClasswiseNNKDetector(random_state=0).fit(train, y_train).calibrate(calibration)
with tempfile.TemporaryDirectory() as folder:
    detector.save(Path(folder) / "digits")
    detector = outscope.load(Path(folder) / "digits")
shown = Table("image of", "score", "p-value", "decision", "unexplained", "most like", box=None)
for digit in (3, 6, 8, 9):
    row = X[y == digit][-1:]
    why = detector.explain(row)[0]
    shown.add_row(
        str(digit),
        f"{why.ood_score:.3f}",
        f"{detector.p_value(row)[0]:.3f}",
        "out of scope" if why.is_ood else "in scope",
        f"{why.unexplained:.0%}",
        f"{why.label} (training rows {', '.join(map(str, why.evidence[0].rows))})",
    )
console.print(shown)

"""Codes against scipy.optimize.nnls on a real batch; scores across batch sizes and threads."""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls
from tasks import clinc

from outscope import NNKDetector


def coding_error(kernel: str) -> float:
    """Largest difference of any weight, relative to its row's largest similarity."""
    task = clinc()
    detector = NNKDetector(2000, kernel=kernel, n_epochs=2, random_state=0).fit(task.X)
    atoms = detector.atoms_.astype(np.float64)
    sigma = detector.dictionary_.bandwidth_
    rows = task.queries.astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    codes = detector.dictionary_.encode(task.queries)
    worst = 0.0
    for row, chosen, weights in zip(rows, codes.neighbors, codes.weights, strict=True):
        local = atoms[chosen]
        gram, target = local @ local.T, local @ row
        if kernel == "gaussian":
            squares = np.diag(gram)
            gram = np.exp(-(squares[:, None] + squares - 2 * gram) / (2 * sigma))
            target = np.exp(-(squares + 1 - 2 * target) / (2 * sigma))
        scale = target.max()
        values, vectors = np.linalg.eigh(gram)
        root = np.sqrt(np.maximum(values, 1e-15))
        expected, _ = nnls((vectors * root).T, (vectors / root).T @ (target / scale))
        worst = max(worst, float(np.abs(weights / scale - expected).max()))
    return worst


def score_differences() -> tuple[float, bool]:
    """Largest score change across batch sizes and orders; bitwise equality across threads."""
    task = clinc()
    detector = NNKDetector(2000, n_epochs=2, random_state=0).fit(task.X)
    whole = detector.ood_score(task.queries)
    worst = 0.0
    for size in (1, 2, 33, 500):
        parts = [
            detector.ood_score(task.queries[s : s + size])
            for s in range(0, min(len(whole), 300 * size), size)
        ]
        found = np.concatenate(parts)
        worst = max(worst, float(np.abs(found - whole[: len(found)]).max()))
    order = np.random.default_rng(0).permutation(len(whole))
    worst = max(worst, float(np.abs(detector.ood_score(task.queries[order]) - whole[order]).max()))
    equal = all(
        np.array_equal(detector.set_params(n_jobs=jobs).ood_score(task.queries), whole)
        for jobs in (1, 2, 3, 8)
    )
    return worst, equal


if __name__ == "__main__":
    for kernel in ("gaussian", "cosine"):
        print(f"coding error against nnls, {kernel:<9} {coding_error(kernel):.1e}   bar <= 1e-6")
    worst, equal = score_differences()
    print(f"scores over batch sizes and orders   {worst:.1e}   bar <= 1e-6")
    print(f"scores over thread counts            {'bitwise equal' if equal else 'DIFFER'}")

"""Classifier-based methods: how uncertain, or how rough, a trained network is on an input.

They use a classifier's output (logits) or how it gets there (smoothness), not embeddings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import logsumexp

from outscope._parameters import POSITIVE, one_of
from outscope._types import FloatArray, Matrix
from outscope.detectors.base import JUDGED_ROWS, Detector
from outscope.engine.blocks import NonFiniteRowsError


class ConfidenceDetector(Detector):
    """Base of detectors whose score is a formula: fit only sets the threshold."""

    learns = False
    _rows_are = "logits"
    _parts = ()

    def __init__(self, *, contamination: float | str = "auto") -> None:
        self.contamination = contamination

    def _learn(self, X: Matrix, y: Any) -> FloatArray:
        return self._ood_score(X)

    def _held_out_scores(self, X: Matrix, y: Any, scores: FloatArray) -> FloatArray:
        return scores[:: -(-len(scores) // JUDGED_ROWS)]  # a formula learns nothing

    def _ood_score(self, X: Matrix) -> FloatArray:
        rows = np.ascontiguousarray(X, dtype=np.float64)
        if not np.isfinite(rows).all():
            raise NonFiniteRowsError
        return self._formula(rows)

    def _formula(self, rows: FloatArray) -> FloatArray:
        raise NotImplementedError


class MSPDetector(ConfidenceDetector):
    """One minus the largest softmax probability (Hendrycks & Gimpel 2017). X are logits (n, C).

    >>> MSPDetector().fit([[9.0, 0.0], [8.0, 1.0]]).ood_score([[0.0, 0.0]]).tolist()
    [0.5]
    """

    def _formula(self, rows: FloatArray) -> FloatArray:
        # Sum the other classes instead: 1 − p would be 0 for all rows with p above 1 − 1e-16.
        shares = np.exp(rows - rows.max(axis=1, keepdims=True))
        others = np.sort(shares, axis=1)[:, :-1].sum(axis=1)
        return others / (1.0 + others)


class EnergyDetector(ConfidenceDetector):
    """Free energy −T·log Σ exp(logit / T) (Liu et al. 2020). X are logits (n, C)."""

    _rules = {"temperature": POSITIVE}

    def __init__(self, temperature: float = 1.0, *, contamination: float | str = "auto") -> None:
        self.temperature = temperature
        self.contamination = contamination

    def _formula(self, rows: FloatArray) -> FloatArray:
        energy: FloatArray = -self.temperature * logsumexp(rows / self.temperature, axis=1)
        return energy


class D2UDetector(ConfidenceDetector):
    """Minus the Kullback–Leibler distance of the softmax to uniform (Yilmaz & Toraman 2022).

    X are logits (n, C); 0 is a uniform output, −log C a certain one.
    """

    def _formula(self, rows: FloatArray) -> FloatArray:
        shifted = rows - rows.max(axis=1, keepdims=True)
        shares = np.exp(shifted)
        total = shares.sum(axis=1)
        # Entropy = log Σ − Σ p·logit; where p is 0 so is p·logit, however low the logit.
        entropy = np.log(total) - (shares * shifted).sum(axis=1) / total
        return np.asarray(entropy - np.log(rows.shape[1]))


class BLOODDetector(ConfidenceDetector):
    """How rough the network is around an input (Jelenić et al. 2024).

    X are estimates (n, transitions) of the squared Frobenius norms of the Jacobians between layers,
    which a fine-tuned encoder gives as "smoothness". `layers` is "last" (only the one into the
    logits, the only one computed then) or "mean".
    """

    _rules = {"layers": one_of("last", "mean")}

    def __init__(self, layers: str = "last", *, contamination: float | str = "auto") -> None:
        self.layers = layers
        self.contamination = contamination

    @property
    def needs(self) -> str:
        """Smoothness of all transitions, or of the last one only."""
        return "smoothness" if self.layers == "mean" else "last-smoothness"

    def _formula(self, rows: FloatArray) -> FloatArray:
        return rows[:, -1].copy() if self.layers == "last" else rows.mean(axis=1)

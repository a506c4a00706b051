"""How well scores separate in-scope from out-of-scope rows. Higher always means stranger."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from outscope._types import FloatArray
from outscope.errors import InputError


class Metrics(NamedTuple):
    """The paper's measures, as shares between 0 and 1."""

    auroc: float
    aupr_in: float
    aupr_out: float
    fpr_at_95: float


def checked(is_ood: npt.ArrayLike, ood_score: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Truth as 0 and 1, and finite scores, of equal length."""
    truth, scores = np.asarray(is_ood), np.asarray(ood_score, dtype=np.float64)
    if truth.ndim != 1 or truth.shape != scores.shape:
        raise InputError(
            f"is_ood has shape {truth.shape} and ood_score {scores.shape}; "
            "expected two lists of equal length"
        )
    values = set(np.unique(truth).tolist())
    if values != {0, 1}:
        raise InputError(
            f"is_ood holds {sorted(values)[:5]}; expected both 0 (in scope) and 1 (out of scope)"
        )
    if not np.isfinite(scores).all():
        raise InputError("ood_score contains NaN or infinity; score finite rows only")
    return truth.astype(np.float64), scores


def auroc(is_ood: npt.ArrayLike, ood_score: npt.ArrayLike) -> float:
    """Chance that an out-of-scope row scores above an in-scope one.

    >>> auroc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
    0.75
    """
    return float(roc_auc_score(*checked(is_ood, ood_score)))


def aupr_out(is_ood: npt.ArrayLike, ood_score: npt.ArrayLike) -> float:
    """Average precision with out-of-scope as the positive class."""
    # Rounding can push a sum of shares slightly above 1.
    return min(1.0, float(average_precision_score(*checked(is_ood, ood_score))))


def aupr_in(is_ood: npt.ArrayLike, ood_score: npt.ArrayLike) -> float:
    """Average precision with in-scope as the positive class, which is what the paper prints."""
    truth, scores = checked(is_ood, ood_score)
    return min(1.0, float(average_precision_score(1.0 - truth, -scores)))


def fpr_at_tpr(is_ood: npt.ArrayLike, ood_score: npt.ArrayLike, tpr: float = 0.95) -> float:
    """Share of out-of-scope rows let through when `tpr` of the in-scope rows are accepted.

    In-scope is the positive class here, as in the paper's FPR@95.
    """
    if not 0.0 < tpr <= 1.0:
        raise InputError(f"tpr={tpr!r} is not a rate: expected a number above 0, at most 1")
    truth, scores = checked(is_ood, ood_score)
    false_rate, true_rate, _ = roc_curve(1.0 - truth, -scores, drop_intermediate=False)
    return float(false_rate[np.searchsorted(true_rate, tpr - 1e-12)])


def evaluate(is_ood: npt.ArrayLike, ood_score: npt.ArrayLike) -> Metrics:
    """All measures at once.

    >>> evaluate([0, 0, 1, 1], [0.1, 0.2, 0.8, 0.9])
    Metrics(auroc=1.0, aupr_in=1.0, aupr_out=1.0, fpr_at_95=0.0)
    """
    return Metrics(
        auroc(is_ood, ood_score),
        aupr_in(is_ood, ood_score),
        aupr_out(is_ood, ood_score),
        fpr_at_tpr(is_ood, ood_score),
    )

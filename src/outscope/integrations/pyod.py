"""PyOD: any detector of rows as a PyOD detector."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import KFold

from outscope._types import FloatArray
from outscope.detectors.base import Detector
from outscope.detectors.nnk import NNKDetector
from outscope.errors import require

require("pyod", extra="pyod")

from pyod.models.base import BaseDetector  # noqa: E402


class OutscopeOD(BaseDetector):
    """A detector of Outscope under PyOD's interface, for example as `EmbeddingOD(detector=…)`.

    `detector` is an unfitted detector, by default `NNKDetector`; `fit` ignores y, as PyOD's
    detectors do. Each training row is scored by a detector that has not learned from it (`folds`
    fits beside the one that is kept), so that `threshold_` flags about the share `contamination` of
    new rows too.
    """

    def __init__(
        self, detector: Detector | None = None, contamination: float = 0.1, folds: int = 5
    ) -> None:
        super().__init__(contamination=contamination)
        self.detector = detector
        self.folds = folds

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn, and set `decision_scores_`, `threshold_` and `labels_`."""
        self._set_n_classes(y)
        made = NNKDetector(random_state=0) if self.detector is None else clone(self.detector)
        rows = np.asarray(X)
        self.detector_ = clone(made).fit(rows)
        self.decision_scores_ = self.detector_.ood_score(rows)
        folds = min(self.folds, len(rows))
        if folds >= 2:
            for rest, part in KFold(folds, shuffle=True, random_state=0).split(rows):
                other = clone(made).fit(rows[rest])
                self.decision_scores_[part] = other.ood_score(rows[part])
        self._process_decision_scores()
        return self

    def decision_function(self, X: Any) -> FloatArray:
        """How strange each row is; higher = stranger."""
        scores: FloatArray = self.detector_.ood_score(np.asarray(X))
        return scores

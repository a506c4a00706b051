"""Outscope detects inputs unlike anything a system was built for.

Fit a small detector on what is in scope; for every new input, get a score (`ood_score`, higher =
stranger), a decision that says what false-alarm rate it promises, and the reason.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outscope.decisions.threshold import ConformalThreshold, Promise
    from outscope.detectors.base import Detector
    from outscope.detectors.baselines import (
        ClasswiseKMeansDetector,
        KMeansDetector,
        KNNDetector,
        MahalanobisDetector,
    )
    from outscope.detectors.classwise import ClasswiseNNKDetector
    from outscope.detectors.confidence import (
        BLOODDetector,
        D2UDetector,
        EnergyDetector,
        MSPDetector,
    )
    from outscope.detectors.explanation import Evidence, Explanation, Lesson
    from outscope.detectors.methods import make_detector
    from outscope.detectors.nnk import NNKDetector
    from outscope.errors import (
        EncoderError,
        InputError,
        InScopeExampleWarning,
        MissingExtraError,
        ModelFileError,
        NoPromiseWarning,
        OutscopeError,
    )
    from outscope.io.sources import distributed
    from outscope.learning.dictionary import NNKMeans
    from outscope.loading import load
    from outscope.text.choosing import make_encoder
    from outscope.text.pipeline import TextDetector
    from outscope.text.remote import RemoteEncoder
    from outscope.text.verdict import Verdict

__version__ = "0.2.0"

__all__ = [
    "BLOODDetector",
    "ClasswiseKMeansDetector",
    "ClasswiseNNKDetector",
    "ConformalThreshold",
    "D2UDetector",
    "Detector",
    "EncoderError",
    "EnergyDetector",
    "Evidence",
    "Explanation",
    "InScopeExampleWarning",
    "InputError",
    "KMeansDetector",
    "KNNDetector",
    "Lesson",
    "MSPDetector",
    "MahalanobisDetector",
    "MissingExtraError",
    "ModelFileError",
    "NNKDetector",
    "NNKMeans",
    "NoPromiseWarning",
    "OutscopeError",
    "Promise",
    "RemoteEncoder",
    "TextDetector",
    "Verdict",
    "distributed",
    "load",
    "make_detector",
    "make_encoder",
]

# Loaded at first use: scikit-learn and numba take seconds, and a help text does not need them.
_HOMES = {
    "decisions.threshold": "ConformalThreshold Promise",
    "detectors.base": "Detector",
    "detectors.baselines": "ClasswiseKMeansDetector KMeansDetector KNNDetector MahalanobisDetector",
    "detectors.classwise": "ClasswiseNNKDetector",
    "detectors.confidence": "BLOODDetector D2UDetector EnergyDetector MSPDetector",
    "detectors.explanation": "Evidence Explanation Lesson",
    "detectors.methods": "make_detector",
    "detectors.nnk": "NNKDetector",
    "errors": "EncoderError InScopeExampleWarning InputError MissingExtraError ModelFileError "
    "NoPromiseWarning OutscopeError",
    "io.sources": "distributed",
    "learning.dictionary": "NNKMeans",
    "loading": "load",
    "text.choosing": "make_encoder",
    "text.remote": "RemoteEncoder",
    "text.verdict": "Verdict",
    "text.pipeline": "TextDetector",
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names.split():
            return getattr(import_module(f"outscope.{home}"), name)
    raise AttributeError(f"module 'outscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

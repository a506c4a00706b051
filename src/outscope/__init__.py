"""Outscope tells when an input is unlike anything a system was built for.

Fit a small detector on what is in scope; get for every new input a score (`ood_score`, higher =
stranger), a decision with a guaranteed false-alarm rate, and the reason.
"""

from outscope.baselines import (
    ClasswiseKMeansDetector,
    KMeansDetector,
    KNNDetector,
    MahalanobisDetector,
)
from outscope.classwise import ClasswiseNNKDetector
from outscope.confidence import BLOODDetector, D2UDetector, EnergyDetector, MSPDetector
from outscope.detector import Detector
from outscope.dictionary import NNKMeans
from outscope.errors import (
    InputError,
    MissingExtraError,
    ModelFileError,
    NoPromiseWarning,
    OutscopeError,
)
from outscope.explanation import Evidence, Explanation
from outscope.loading import load
from outscope.methods import make_detector
from outscope.nnk import NNKDetector
from outscope.text.encoders import make_encoder
from outscope.text.pipeline import TextDetector, Verdict
from outscope.threshold import ConformalThreshold, Promise

__version__ = "0.1.0"

__all__ = [
    "BLOODDetector",
    "ClasswiseKMeansDetector",
    "ClasswiseNNKDetector",
    "ConformalThreshold",
    "D2UDetector",
    "Detector",
    "EnergyDetector",
    "Evidence",
    "Explanation",
    "InputError",
    "KMeansDetector",
    "KNNDetector",
    "MSPDetector",
    "MahalanobisDetector",
    "MissingExtraError",
    "ModelFileError",
    "NNKDetector",
    "NNKMeans",
    "NoPromiseWarning",
    "OutscopeError",
    "Promise",
    "TextDetector",
    "Verdict",
    "load",
    "make_detector",
    "make_encoder",
]

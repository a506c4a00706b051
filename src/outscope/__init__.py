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
from outscope.detector import Detector
from outscope.dictionary import NNKMeans
from outscope.errors import InputError, MissingExtraError, ModelFileError, OutscopeError
from outscope.explanation import Evidence, Explanation
from outscope.methods import load, make_detector
from outscope.nnk import ClasswiseNNKDetector, NNKDetector
from outscope.threshold import ConformalThreshold

__version__ = "0.1.0"

__all__ = [
    "ClasswiseKMeansDetector",
    "ClasswiseNNKDetector",
    "ConformalThreshold",
    "Detector",
    "Evidence",
    "Explanation",
    "InputError",
    "KMeansDetector",
    "KNNDetector",
    "MahalanobisDetector",
    "MissingExtraError",
    "ModelFileError",
    "NNKDetector",
    "NNKMeans",
    "OutscopeError",
    "load",
    "make_detector",
]

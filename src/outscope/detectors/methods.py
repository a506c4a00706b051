"""The paper's names for the detectors."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, NamedTuple

from outscope.detectors.base import Detector
from outscope.detectors.baselines import (
    ClasswiseKMeansDetector,
    KMeansDetector,
    KNNDetector,
    MahalanobisDetector,
)
from outscope.detectors.classwise import ClasswiseNNKDetector
from outscope.detectors.confidence import BLOODDetector, D2UDetector, EnergyDetector, MSPDetector
from outscope.detectors.nnk import PAPER, NNKDetector
from outscope.detectors.outside import Outside
from outscope.detectors.witnesses import Witnesses
from outscope.errors import InputError
from outscope.learning.dictionary import NNKMeans
from outscope.learning.stream import Stream

# What an entropy-constrained method does if the user sets no size: by default it keeps 200 atoms,
# or half of each class's atoms; with the paper's settings λ decides.
SMALL, SMALL_CLASS = {"max_atoms": 200}, {"max_atoms": 0.5}
PAPER_EC = {**PAPER, "entropy": 0.05, "max_atoms": None}

CLASSES = {
    kind.__name__: kind
    for kind in (
        NNKMeans,
        Stream,
        Outside,
        Witnesses,
        NNKDetector,
        ClasswiseNNKDetector,
        KNNDetector,
        KMeansDetector,
        ClasswiseKMeansDetector,
        MahalanobisDetector,
        MSPDetector,
        EnergyDetector,
        D2UDetector,
        BLOODDetector,
    )
}


class Method(NamedTuple):
    """A named detector with its settings."""

    name: str
    make: Callable[..., Detector]
    labels: str  # "blind", "aware", "classifier"
    summary: str
    settings: dict[str, Any] = {}
    paper: dict[str, Any] = {}


METHODS = {
    method.name: method
    for method in (
        Method("nnk-means", NNKDetector, "blind", "a learned dictionary of atoms", {}, PAPER),
        Method(
            "ec-nnk-means",
            NNKDetector,
            "blind",
            "the same, pruning itself by entropy or to a size",
            SMALL,
            PAPER_EC,
        ),
        Method("c-nnk-means", ClasswiseNNKDetector, "aware", "one dictionary per class", {}, PAPER),
        Method(
            "c-ec-nnk-means",
            ClasswiseNNKDetector,
            "aware",
            "one self-pruning dictionary per class",
            SMALL_CLASS,
            PAPER_EC,
        ),
        Method(
            "knn",
            KNNDetector,
            "blind",
            "distance to the nearest stored row",
            {},
            {"skip_copies": False},
        ),
        Method("kmeans", KMeansDetector, "blind", "distance to the nearest k-means centre"),
        Method("c-kmeans", ClasswiseKMeansDetector, "aware", "k-means centres per class"),
        Method(
            "mahalanobis",
            MahalanobisDetector,
            "aware",
            "Mahalanobis distance to the nearest class mean",
            {},
            {"shrinkage": 0.0},
        ),
        Method("msp", MSPDetector, "classifier", "one minus the largest softmax probability"),
        Method("energy", EnergyDetector, "classifier", "free energy of a classifier's logits"),
        Method("d2u", D2UDetector, "classifier", "closeness of the softmax to uniform"),
        Method("blood", BLOODDetector, "classifier", "roughness of a network around an input"),
    )
}


def make_detector(
    method: str = "nnk-means", *, preset: str = "default", **settings: Any
) -> Detector:
    """A detector by its name in the paper; `preset="paper"` uses the paper's own settings.

    >>> make_detector("ec-nnk-means", max_atoms=100)
    NNKDetector(max_atoms=100)
    """
    if method not in METHODS:
        raise InputError(f"method={method!r} is unknown; choose one of {', '.join(METHODS)}")
    if preset not in ("default", "paper"):
        raise InputError(f"preset={preset!r} is unknown; choose 'default' or 'paper'")
    chosen = METHODS[method]
    # A size or λ from the user replaces the method's own size.
    sized = any(settings.get(name) for name in ("max_atoms", "max_bytes", "entropy"))
    base = {**({} if sized else chosen.settings), **(chosen.paper if preset == "paper" else {})}
    known = sorted(chosen.make().get_params())
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, cutoff=0.8)
            meant = f"did you mean {near[0]}? " if near else ""
            raise InputError(
                f"{method} has no setting {name}; {meant}its settings are {', '.join(known)}"
            )
    return chosen.make(**{**base, **settings})

"""The methods as the paper ran them, with its grids, and as we run them, with no tuning."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from outscope.detectors.base import Detector
from outscope.detectors.methods import METHODS, make_detector

ATOMS = (500, 1000, 2000, 4000)
CLASS_ATOMS = (25, 32, 50, 150, 250, 350)
LAMBDAS = (0.01, 0.03, 0.05, 0.07, 0.1)
PAPER, OURS, SMALL = "paper", "ours", "small"
# "small" takes at most 13 % of the bytes of all rows, as the paper's 2,000 of 15,000 do: half as
# many 8-bit atoms as there are rows, or all rows as 4-bit atoms where "auto" says so.
SMALL_SETTINGS = {"n_atoms": 0.5, "precision": "auto"}

FEATURE = tuple(name for name, method in METHODS.items() if method.labels != "classifier")
CLASSIFIER = tuple(name for name, method in METHODS.items() if method.labels == "classifier")
NNK = tuple(name for name in METHODS if "nnk" in name)
TUNED = tuple(name for name in METHODS if "means" in name)


class Variant(NamedTuple):
    """A method with one of three kinds of settings."""

    method: str
    settings: str

    @property
    def name(self) -> str:
        """A short unique name."""
        return f"{self.method}/{self.settings}"


def variants(representation: str) -> list[Variant]:
    """All methods that a representation allows: the paper's, then ours."""
    paper = FEATURE if representation == "pretrained" else (*FEATURE, *CLASSIFIER)
    return [
        *(Variant(method, PAPER) for method in paper),
        *(Variant(method, OURS) for method in NNK),
        Variant("nnk-means", SMALL),
    ]


def grid(method: str) -> Iterator[tuple[float, ...]]:
    """The paper's grid for a method: (atoms,) or (atoms, λ)."""
    sizes = CLASS_ATOMS if method.startswith("c-") else ATOMS
    return product(sizes, LAMBDAS) if "ec-" in method else product(sizes)


def make(variant: Variant, values: tuple[float, ...], seed: int) -> Detector:
    """The detector of a variant; `values` are the tuned ones, empty for ours."""
    method = variant.method
    settings: dict[str, Any] = {}
    if variant.settings == SMALL:
        settings |= SMALL_SETTINGS
    elif values:
        name = "n_clusters" if "kmeans" in method else "n_atoms"
        settings[name] = int(values[0])
        if len(values) > 1:
            settings["entropy"] = values[1]
    detector = make_detector(
        method, preset="paper" if variant.settings == PAPER else "default", **settings
    )
    if "random_state" in detector.get_params():
        detector.set_params(random_state=seed)
    return detector

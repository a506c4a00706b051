"""The map: in-scope texts, atoms and queries in two dimensions, by principal components."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from outscope._types import FloatArray, Matrix
from outscope.detectors.baselines import KMeansDetector, KNNDetector
from outscope.detectors.coded import DictionaryDetector
from outscope.serve.judging import Model, detector_of
from outscope.text.cache import VectorCache
from outscope.text.pipeline import TextDetector


def in_the_space_of_atoms(model: Model, rows: Matrix) -> Matrix:
    """Rows as the detector compares them with its atoms."""
    detector = detector_of(model)
    if isinstance(detector, DictionaryDetector):
        return detector.beside_atoms(rows)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(lengths, 1e-30), dtype=np.float32)


@dataclass(frozen=True)
class Projection:
    """A plane through the atoms, and what lies on it."""

    centre: FloatArray
    axes: FloatArray  # (d, 2)
    variance: list[float]
    atoms: list[list[float]]
    texts: list[str]
    text_places: list[list[float]]
    text_labels: list[Any] | None

    def place(self, seen: Matrix) -> list[list[float]]:
        """Where rows lie on the map; rows as the detector compares them."""
        return np.round((seen - self.centre) @ self.axes, 4).tolist()

    def as_dict(self) -> dict[str, Any]:
        """Plain values by column, for JSON."""
        return {
            "variance": self.variance,
            "labels": sorted(set(self.text_labels), key=str) if self.text_labels else None,
            "texts": {
                **_columns(self.text_places),
                "label": self.text_labels,
                "text": self.texts,
            },
            "atoms": _columns(self.atoms),
        }


def _columns(places: list[list[float]]) -> dict[str, Any]:
    return {"x": [place[0] for place in places], "y": [place[1] for place in places]}


def can_project(model: Model) -> bool:
    """Whether the detector stores vectors to make a map from."""
    return isinstance(detector_of(model), (DictionaryDetector, KNNDetector, KMeansDetector))


def remembered_texts(model: Model) -> list[str]:
    """The in-scope texts that a model keeps."""
    return list(model.remembered_texts_) if isinstance(model, TextDetector) else []


def remembered_rows(model: TextDetector, texts: list[str]) -> Matrix:
    """Their rows, from the vector cache where they are in it."""
    cache = VectorCache(None) if model.cache is True else None
    return model._checked_encoder().features(texts, model.detector_.needs, cache=cache)


def project(model: Model, texts: list[str], rows: Matrix) -> Projection:
    """The map of a model's atoms and of its remembered texts."""
    detector: Any = detector_of(model)
    atoms = np.asarray(detector.atoms_, dtype=np.float64)
    centre = atoms.mean(axis=0)
    values, axes = np.linalg.eigh((atoms - centre).T @ (atoms - centre))
    axes, kept = axes[:, ::-1][:, :2], values[::-1][:2]
    if axes.shape[1] < 2:  # rows of a single number
        axes, kept = np.column_stack([axes, np.zeros(len(axes))]), np.append(kept, 0.0)
    # The sign of an axis is arbitrary; this one does not depend on the library.
    axes = axes * np.where(axes[np.abs(axes).argmax(axis=0), [0, 1]] < 0, -1.0, 1.0)
    whole = max(float(values.sum()), 1e-30)
    variance = [round(max(0.0, float(value)) / whole, 4) for value in kept]
    plane = Projection(centre, axes, variance, [], [], [], None)
    places = plane.place(in_the_space_of_atoms(model, rows)) if texts else []
    return replace(
        plane,
        atoms=plane.place(atoms),
        texts=texts,
        text_places=places,
        text_labels=_labels(model, rows),
    )


def _labels(model: Model, rows: Matrix) -> list[Any] | None:
    """The class of each remembered text; None without classes."""
    if not isinstance(model, TextDetector) or model.labels_ is None or not len(rows):
        return None
    detector = model.detector_
    found = detector.labels_in(detector.read(rows))
    if found is None:
        found = model.labels_[(rows @ model.class_means_.T).argmax(axis=1)]
    return list(found.tolist())

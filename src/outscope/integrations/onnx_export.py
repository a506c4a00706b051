"""`export_onnx`: a fitted NNK detector as a file that scores rows in any ONNX runtime."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from outscope._sklearn import check_is_fitted
from outscope.detectors.classwise import ClasswiseNNKDetector
from outscope.detectors.coded import DictionaryDetector
from outscope.detectors.thresholded import ESTIMATE
from outscope.errors import InputError
from outscope.integrations.onnx_graph import Graph
from outscope.integrations.onnx_scoring import Classes, dictionary_scores, seen_rows
from outscope.integrations.onnx_told import told_scores
from outscope.io.atomic import whole_file

# A protocol buffer holds at most 2 GB.
LARGEST = 2_000_000_000


def onnx_model(detector: Any) -> Any:
    """A fitted NNK detector as an `onnx.ModelProto`.

    Input `rows`, float32 (n, d); outputs `ood_score`, float64 (n,), and `is_ood`, bool (n,), at the
    current threshold. Of a `TextDetector` this is what comes after its encoder.
    """
    detector = getattr(detector, "detector_", detector)
    if not isinstance(detector, DictionaryDetector):
        raise InputError(
            f"{type(detector).__name__} cannot be exported to ONNX; give a fitted NNKDetector or "
            "ClasswiseNNKDetector, or a TextDetector with one of them"
        )
    check_is_fitted(detector, "offset_")
    if detector.atoms_.nbytes > LARGEST:
        raise InputError(
            f"the atoms take {detector.atoms_.nbytes:,} bytes, but an ONNX file holds at most "
            f"{LARGEST:,}; fit with fewer atoms (max_bytes={LARGEST})"
        )
    graph = Graph()
    coder = detector._coder
    rows, square = seen_rows(graph, "rows", detector._view, normalize=coder.normalize)
    if isinstance(detector, ClasswiseNNKDetector):
        column = Classes(graph, coder, detector._k).scores(rows, square)
    else:
        k = min(detector._k, len(coder))
        column = dictionary_scores(graph, coder, rows, square, k)
    if detector._taught is not None:
        column = told_scores(graph, detector._taught, column, "rows", detector._view)
    score = graph.without_axis(column, 1)
    # Not "greater": a row with NaN is not in scope.
    familiar = graph.op("LessOrEqual", score, graph.number(detector.threshold_))
    notes = {
        "detector": type(detector).__name__,
        "threshold": repr(detector.threshold_),
        "promise": str(detector.promise_ or ESTIMATE),
    }
    return graph.model(
        detector.n_features_in_,
        {"ood_score": (score, "DOUBLE"), "is_ood": (graph.op("Not", familiar), "BOOL")},
        notes,
        "ood_score is higher for stranger rows; is_ood is where it is above the threshold",
    )


def export_onnx(detector: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted NNK detector as an ONNX file; see `onnx_model`."""
    if Path(path).suffix.lower() != ".onnx":
        raise InputError(f"{path}: the name of an ONNX file ends in .onnx")
    model = onnx_model(detector)
    with whole_file(Path(path)) as file:
        file.write(model.SerializeToString())

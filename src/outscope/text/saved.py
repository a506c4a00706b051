"""What a saved `TextDetector` may contain, for `load` to check."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from outscope._parameters import SEED, Rule, between, one_of
from outscope.detectors.base import Detector
from outscope.detectors.methods import METHODS
from outscope.io import schema
from outscope.text.remote import CANARIES
from outscope.text.suspects import SUSPECTED

# Whole numbers, and which of them may be None.
ENCODER_SETTINGS = ("layer", "max_length", "batch_size", "pairs", "seed")
OPTIONAL = ("layer", "max_length", "dimensions")
REMOTE_SETTINGS = {"backend", "model", "dimensions", "batch_size", "canary"}


def _are_settings(value: Any, _: schema.Seen) -> bool:
    found = json.loads(value)
    if found.get("backend") == "remote":
        return _are_remote(found)
    backend = found.pop("backend", "torch")
    return backend in ("torch", "onnx", "onnx-int8") and _are_numbers(found, ENCODER_SETTINGS)


def _are_numbers(found: dict[str, Any], names: tuple[str, ...]) -> bool:
    return found.keys() <= set(names) and all(
        (type(item) is int and abs(item) < 2**32) or (item is None and name in OPTIONAL)
        for name, item in found.items()
    )


def _are_remote(found: dict[str, Any]) -> bool:
    """Whether these are settings of a remote encoder, among which is none of a key."""
    if found.keys() != REMOTE_SETTINGS:
        return False
    canary = np.array(found["canary"], dtype=np.float64)
    model, numbers = found["model"], {n: found[n] for n in ("dimensions", "batch_size")}
    return (
        canary.ndim == 2
        and len(canary) == len(CANARIES)
        and canary.shape[1] > 0
        and bool(np.isfinite(canary).all())
        and (model is None or isinstance(model, str))
        and _are_numbers(numbers, ("dimensions", "batch_size"))
    )


def _are_remembered(value: Any, seen: schema.Seen) -> bool:
    """Whether these are the rows that the detector can point to."""
    rows = schema.integers("r", 0, empty=True).passes(value, seen)
    return rows and np.array_equal(value, np.unique(seen["detector_"].remembered_rows()))


def _are_means(value: Any, seen: schema.Seen) -> bool:
    if value is None or seen["labels_"] is None:
        return value is None and seen["labels_"] is None
    return schema.array("c d", "float32").passes(value, seen)


def _are_classes(value: Any, seen: schema.Seen) -> bool:
    """Whether a classifier's classes are present if the detector uses its logits."""
    if seen["detector_"].needs != "logits":
        return value is None or schema.texts("encoder classes").passes(value, seen)
    return schema.texts("d").passes(value, {"d": seen["detector_"].n_features_in_})


RULES = {
    "encoder": Rule(lambda v: v is None or isinstance(v, str), "a name, an address or None"),
    "detector": one_of(*METHODS) | Rule(lambda v: isinstance(v, Detector), "a detector"),
    "contamination": one_of(None) | between(0, 0.5),
    "holdout": one_of("auto")
    | Rule(lambda v: type(v) in (int, float) and v >= 0, "a share or a number of texts"),
    "cache": one_of(True, False),
    "random_state": SEED,
}

FITTED = {
    "detector_": schema.nested("Detector"),
    "encoder_name_": schema.text(),
    "encoder_fingerprint_": schema.text("[0-9a-f]{64}"),
    "encoder_settings_": schema.Field(_are_settings, "settings of an encoder"),
    "encoder_classes_": schema.Field(_are_classes, "the classes of the encoder"),
    "remembered_rows_": schema.Field(_are_remembered, "the rows the detector points to"),
    "remembered_lines_": schema.integers("r", 0, empty=True),
    "remembered_texts_": schema.texts("r"),
    "labels_": schema.or_none(schema.labels("c")),
    "class_means_": schema.Field(_are_means, "a mean for each label"),
    **SUSPECTED,
}

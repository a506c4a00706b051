"""`load`: the one place that knows every class that can be saved."""

from __future__ import annotations

import os
from typing import Any

from outscope.detectors.base import Detector
from outscope.detectors.methods import CLASSES
from outscope.errors import InputError, ModelFileError
from outscope.io import models
from outscope.text.pipeline import TextDetector


def load(path: str | os.PathLike[str], *, encoder: Any = None) -> Detector | TextDetector:
    """Load a detector written by `save`; its scores are bitwise the same as before.

    `encoder` is for a text detector whose encoder could not be saved with it (your own function) or
    has moved; any encoder other than the one it was fitted with is refused.
    """
    found = models.read(path, {**CLASSES, TextDetector.__name__: TextDetector})
    if isinstance(found, TextDetector):
        return found.after_loading(path, encoder)
    if encoder is not None:
        raise InputError(f"encoder= was given, but {path} holds a detector of rows, not of texts")
    if not isinstance(found, Detector):
        raise ModelFileError(f"{path} holds no detector")
    return found

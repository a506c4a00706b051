"""Lessons for a `TextDetector`: which texts to refuse, which to accept after all."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

from outscope._sklearn import check_is_fitted
from outscope.detectors.outside import ACCEPT, REFUSE, Lesson
from outscope.detectors.teaching import TaughtDetector, warn_of_doubt
from outscope.errors import InputError
from outscope.text.encoders import check_texts

__all__ = ["ACCEPT", "REFUSE", "Lesson", "lesson", "take_back", "taught"]

Taught = TypeVar("Taught", bound=Any)  # a TextDetector, which is made of this
# Lessons of several threads are taken one after the other; embedding their texts is not.
_ONE_AT_A_TIME = threading.Lock()


def taught(model: Any) -> TaughtDetector:
    """The detector behind, if it can be taught."""
    check_is_fitted(model, "detector_")
    if not isinstance(model.detector_, TaughtDetector):
        raise InputError(
            f"a {type(model.detector_).__name__} cannot be taught what to refuse; use one of the "
            "nnk methods"
        )
    return model.detector_


def lesson(model: Taught, verb: str, texts: Any) -> Taught:
    """Teach some texts, in one assignment."""
    taught(model)
    texts = check_texts(texts)
    empty = [i for i, text in enumerate(texts) if not text.strip()]
    if not texts or empty:
        what = f"texts[{empty[0]}] is empty" if empty else "texts has 0 texts"
        raise InputError(f"{what}; give texts to {verb}")
    rows = model.rows_of(texts)
    with _ONE_AT_A_TIME:
        detector = taught(model)
        doubtful = detector.also_in_scope(rows) if verb == REFUSE else []
        model.detector_ = detector.after(verb, rows, texts)
    known = dict(zip(model.remembered_rows_.tolist(), model.remembered_texts_, strict=True))
    warn_of_doubt([(texts[i], known[row]) for i, row in doubtful])
    return model


def take_back(model: Taught) -> Taught:
    """Take back the last lesson, in one assignment."""
    with _ONE_AT_A_TIME:
        model.detector_ = taught(model).before_last_lesson()
    return model

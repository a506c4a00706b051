"""Lessons for a `TextDetector`: which texts to refuse, which to accept after all."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, TypeVar

from outscope._sklearn import check_is_fitted
from outscope._types import Matrix
from outscope.detectors.explanation import Lesson
from outscope.detectors.outside import ACCEPT, REFUSE
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


def lesson(model: Taught, verb: str, texts: Any, in_scope: Sequence[str] = ()) -> Taught:
    """Teach some texts, in one assignment; warn of texts to refuse that look in scope.

    `in_scope` are all texts that are known to be, as far as they are at hand.
    """
    taught(model)
    texts = _some(texts, verb)
    rows = model.rows_of(texts)
    with _ONE_AT_A_TIME:
        detector = taught(model)
        if verb == REFUSE:
            warn_of_doubt(_doubtful(model, detector, rows, texts, in_scope))
        model.detector_ = detector.after(verb, rows, texts)
    return model


def _some(texts: Any, verb: str) -> list[str]:
    texts = check_texts(texts)
    empty = [i for i, text in enumerate(texts) if not text.strip()]
    if not texts or empty:
        what = f"texts[{empty[0]}] is empty" if empty else "texts has 0 texts"
        raise InputError(f"{what}; give texts to {verb}")
    return texts


def _doubtful(
    model: Any, detector: TaughtDetector, rows: Matrix, texts: list[str], in_scope: Sequence[str]
) -> list[tuple[str, str]]:
    """Texts that look in scope, each with the text in scope that it is like or a copy of."""
    behind = dict(zip(model.remembered_rows_.tolist(), model.remembered_texts_, strict=True))
    found = {texts[i]: behind[row] for i, row in detector.also_in_scope(rows)}
    known = {_plain(text): text for text in in_scope or model.remembered_texts_}
    found |= {text: known[_plain(text)] for text in texts if _plain(text) in known}
    return list(found.items())


def _plain(text: str) -> str:
    """The text without case and spacing."""
    return " ".join(text.casefold().split())


def take_back(model: Taught) -> Taught:
    """Take back the last lesson, in one assignment."""
    with _ONE_AT_A_TIME:
        model.detector_ = taught(model).before_last_lesson()
    return model

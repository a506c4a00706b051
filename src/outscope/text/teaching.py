"""Lessons for a `TextDetector`: which texts to refuse, which to accept after all."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Self

from outscope._sklearn import check_is_fitted
from outscope._types import Matrix
from outscope.detectors.explanation import Lesson
from outscope.detectors.outside import ACCEPT, REFUSE
from outscope.detectors.teaching import TaughtDetector, warn_of_doubt
from outscope.errors import InputError
from outscope.text.embedding import EmbedsTexts
from outscope.text.encoders import check_texts

# Lessons of several threads are taken one after the other; embedding their texts is not.
_ONE_AT_A_TIME = threading.Lock()


class TaughtByTexts(EmbedsTexts):
    """`refuse`, `accept` and `undo` for texts.

    Each lesson makes another detector, which takes the place of the present one in a single
    assignment. So other threads may score meanwhile: each verdict is from before or from after.
    """

    detector_: Any
    remembered_rows_: Any
    remembered_texts_: list[str]

    @property
    def lessons_(self) -> tuple[Lesson, ...]:
        """What was taught and not taken back, the oldest first."""
        check_is_fitted(self, "detector_")
        lessons: tuple[Lesson, ...] = self.detector_.lessons_
        return lessons

    def refuse(self, texts: Any, *, in_scope: Sequence[str] = (), vectors: Any = None) -> Self:
        """Texts that are out of scope: texts like them get higher scores from now on.

        It warns of texts that look in scope, or that are among those `in_scope`.
        """
        texts, rows = self._some(texts, REFUSE, vectors)
        with _ONE_AT_A_TIME:
            detector = self._teachable()
            warn_of_doubt(self._doubtful(detector, rows, texts, in_scope))
            self.detector_ = detector.after(REFUSE, rows, texts)
        return self

    def accept(self, texts: Any, *, vectors: Any = None) -> Self:
        """Texts that are in scope after all: texts like them get lower scores from now on."""
        texts, rows = self._some(texts, ACCEPT, vectors)
        with _ONE_AT_A_TIME:
            self.detector_ = self._teachable().after(ACCEPT, rows, texts)
        return self

    def undo(self) -> Self:
        """Take back the last lesson: a call of `refuse` or `accept`, or what `fit` was given."""
        with _ONE_AT_A_TIME:
            self.detector_ = self._teachable().before_last_lesson()
        return self

    def _teachable(self) -> TaughtDetector:
        check_is_fitted(self, "detector_")
        if not isinstance(self.detector_, TaughtDetector):
            raise InputError(
                f"a {type(self.detector_).__name__} cannot be taught what to refuse; use one of "
                "the nnk methods"
            )
        return self.detector_

    def _some(self, texts: Any, verb: str, vectors: Any) -> tuple[list[str], Matrix]:
        self._teachable()
        texts = check_texts(texts)
        empty = [i for i, text in enumerate(texts) if not text.strip()]
        if not texts or empty:
            what = f"texts[{empty[0]}] is empty" if empty else "texts has 0 texts"
            raise InputError(f"{what}; give texts to {verb}")
        return texts, self.rows_of(texts, vectors=vectors)

    def _doubtful(
        self, detector: TaughtDetector, rows: Matrix, texts: list[str], in_scope: Sequence[str]
    ) -> list[tuple[str, str]]:
        """Texts that look in scope, each with the text in scope that it is like or a copy of."""
        behind = dict(zip(self.remembered_rows_.tolist(), self.remembered_texts_, strict=True))
        found = {texts[i]: behind[row] for i, row in detector.also_in_scope(rows)}
        known = {_plain(text): text for text in in_scope or self.remembered_texts_}
        found |= {text: known[_plain(text)] for text in texts if _plain(text) in known}
        return list(found.items())


def _plain(text: str) -> str:
    """The text without case and spacing."""
    return " ".join(text.casefold().split())

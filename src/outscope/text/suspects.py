"""Training texts that do not fit: the detector's suspicious rows, with their texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from outscope._sklearn import check_is_fitted, check_labels
from outscope.detectors.base import Detector
from outscope.detectors.suspects import Suspect
from outscope.errors import InputError
from outscope.io import schema
from outscope.text.embedding import EmbedsTexts
from outscope.text.encoders import check_texts


def _as_many(value: Any, seen: schema.Seen) -> bool:
    """Whether there is a text for each suspicious row."""
    rows = getattr(seen["detector_"], "suspects_", [])
    return schema.texts("suspected").passes(value, {"suspected": len({one[0] for one in rows})})


SUSPECTED = {
    "suspected_texts_": schema.maybe(schema.Field(_as_many, "a text for each suspicious row")),
}


class TextSuspects(EmbedsTexts):
    """Remembers the texts behind suspicious rows."""

    detector_: Detector
    suspected_texts_: list[str]

    def _remember_suspects(self, texts: Sequence[str]) -> None:
        self.__dict__.pop("suspected_texts_", None)
        if "suspects_" in vars(self.detector_):
            self.suspected_texts_ = [texts[row] for row in self._suspected_rows()]

    def _suspected_rows(self) -> list[int]:
        return sorted({one[0] for one in self.detector_.suspects_})

    def suspicious(
        self, n: int = 20, texts: Any = None, labels: Any = None, *, vectors: Any = None
    ) -> list[Suspect]:
        """Training texts that do not fit: n that lie apart and, with labels, n mislabelled ones.

        Rows are numbered as the texts given to `fit`, which remembers a tenth of up to 20,000
        texts; give the training texts, and their labels, where there are more.
        """
        check_is_fitted(self, "detector_")
        if texts is not None:
            texts = check_texts(texts)
            y = None if labels is None else check_labels(labels, len(texts))
            found = self.detector_.suspicious(n, self.rows_of(texts, vectors=vectors), y)
            return [replace(one, text=texts[one.row]) for one in found]
        if "suspected_texts_" not in vars(self):
            raise InputError(
                "this model does not remember which training texts are suspicious; give the "
                "training texts: suspicious(n, texts, labels)"
            )
        known = dict(zip(self._suspected_rows(), self.suspected_texts_, strict=True))
        return [replace(one, text=known[one.row]) for one in self.detector_.suspicious(n)]

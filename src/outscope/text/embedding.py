"""From texts to rows: by the encoder of the fit, or by vectors given beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from outscope._sklearn import check_is_fitted
from outscope._types import Matrix
from outscope.errors import InputError, ModelFileError
from outscope.text.cache import VectorCache
from outscope.text.choosing import recorded_encoder
from outscope.text.encoders import Advance, Encoder, TransformerEncoder, check_texts
from outscope.text.given import GIVEN, GivenVectors, as_vectors


class EmbedsTexts:
    """Turns texts into the rows that its detector takes."""

    detector_: Any
    encoder: Any
    cache: bool | str | Path
    encoder_name_: str
    encoder_fingerprint_: str
    encoder_settings_: str
    _encoder: Encoder

    def rows_of(
        self, texts: Any, advance: Advance = lambda done: None, *, vectors: Any = None
    ) -> Matrix:
        """Rows of texts as the detector takes them; computed once, then cached, if not given."""
        check_is_fitted(self, "detector_")
        texts = check_texts(texts)
        if not texts:
            raise InputError("texts has 0 texts; give at least one")
        if vectors is not None:
            advance(len(texts))
            return as_vectors(vectors, len(texts), width=self.detector_.n_features_in_)
        encoder = self._checked_encoder()
        return encoder.features(texts, self.detector_.needs, cache=self._cache(), advance=advance)

    def _features(self, texts: list[str], vectors: Any, advance: Advance) -> Matrix:
        self.encoder_classes_: Any = None
        if vectors is not None:
            advance(len(texts))
            return as_vectors(vectors, len(texts))
        rows = self._encoder.features(
            texts, self.detector_.needs, cache=self._cache(), advance=advance
        )
        if isinstance(self._encoder, TransformerEncoder) and self._encoder.is_classifier:
            self.encoder_classes_ = self._encoder.classes
        return rows

    def _cache(self) -> VectorCache | None:
        if self.cache is False:
            return None
        folder = None if self.cache is True else Path(self.cache)
        held: VectorCache | None = vars(self).get("_vectors")
        if held is None or held.folder != folder:
            held = VectorCache(folder)
            self._vectors = held
        return held

    def check_encoder(self) -> None:
        """Raise if the encoder is no longer the one used in fit; a remote one is asked now."""
        check_is_fitted(self, "detector_")
        self._checked_encoder().check()

    def _checked_encoder(self) -> Encoder:
        """The encoder, after checking that it is the one used in fit."""
        if not hasattr(self, "_encoder"):
            if self.encoder_fingerprint_ == GIVEN:
                self._encoder = GivenVectors()
                return self._encoder
            if self.encoder is None:
                raise InputError(
                    f"this detector was fitted with the encoder {self.encoder_name_!r}, which is "
                    "not saved with it; load it with outscope.load(path, encoder=…)"
                )
            made = recorded_encoder(self.encoder, json.loads(self.encoder_settings_))
            if made.fingerprint() != self.encoder_fingerprint_:
                raise ModelFileError(
                    f"the encoder {made.name!r} is not the one this detector was fitted with "
                    f"({self.encoder_name_!r}, fingerprint {self.encoder_fingerprint_[:12]}): "
                    "scores would mean nothing; give that one, or fit again"
                )
            self._encoder = made
        return self._encoder

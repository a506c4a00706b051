"""`TextDetector`: encoder + detector + threshold in one object, from texts to decisions."""

from __future__ import annotations

import copy
import json
import logging
import os
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, OutlierMixin, clone

from outscope._sklearn import all_or_nothing, check_is_fitted, check_labels
from outscope._types import BoolArray, FloatArray, Matrix
from outscope.decisions.threshold import Promise, check_rate
from outscope.detectors.base import Detector, Reading
from outscope.detectors.coded import DictionaryDetector
from outscope.detectors.explanation import Explanation
from outscope.detectors.holdout import fit_and_calibrate
from outscope.detectors.methods import make_detector
from outscope.detectors.thresholded import USUAL_RATE
from outscope.errors import InputError, ModelFileError
from outscope.io import models
from outscope.text.choosing import make_encoder
from outscope.text.encoders import Advance, Encoder, check_texts, refuse_empty
from outscope.text.given import GivenVectors
from outscope.text.remote import RemoteEncoder, is_address
from outscope.text.saved import FITTED, RULES
from outscope.text.suspects import TextSuspects
from outscope.text.teaching import TaughtByTexts
from outscope.text.verdict import OUT_OF_SCOPE, Verdict
from outscope.text.weights import DEFAULT, HUB_NAME, check_copied, deciding_files

logger = logging.getLogger("outscope")

NEAREST = 3
# Prefix of a saved encoder's name: its folder is beside the manifest.
BESIDE = "@"


class TextDetector(TaughtByTexts, TextSuspects, OutlierMixin, BaseEstimator):
    """Flags texts that are unlike those it was fitted on.

    `encoder` is a model name, a folder (including one written by `outscope finetune`), a loaded
    SentenceTransformer or any function from texts to rows; `detector` a method name or a detector.
    `holdout` texts (a share, a number, 0 for none) are held out of the fit to set the threshold, so
    that the false-alarm rate `contamination` (None: the detector's own, or 0.05) is a promise:
    P(false alarm) ≤ 5 % on average over calibrations, for texts exchangeable with those held out.
    "auto" holds out a quarter of few texts, a tenth of many, and none that the encoder was trained
    on. `promise_` says what is promised; if nothing can be, `fit` warns.
    """

    _rules, _fitted = RULES, FITTED

    def __init__(
        self,
        encoder: Any = DEFAULT,
        detector: str | Detector = "nnk-means",
        *,
        contamination: float | None = None,
        holdout: float | int | str = "auto",
        cache: bool | str | Path = True,
        random_state: int | None = 0,
    ) -> None:
        self.encoder = encoder
        self.detector = detector
        self.contamination = contamination
        self.holdout = holdout
        self.cache = cache
        self.random_state = random_state

    # ---- learning

    def fit(
        self,
        texts: Any,
        labels: Any = None,
        *,
        vectors: Any = None,
        outside: Any = None,
        outside_vectors: Any = None,
        advance: Advance = lambda done: None,
    ) -> Self:
        """Learn what is in scope and, with labels, the classes.

        `outside` are texts that are out of scope, as for `refuse`; a few are enough. With
        `vectors`, one for each text, no encoder is used, here and later.
        """
        texts = check_texts(texts)
        refuse_empty(texts)
        y = None if labels is None else check_labels(labels, len(texts))
        if y is not None and OUT_OF_SCOPE in y.tolist():
            raise InputError(
                f"labels name a class {OUT_OF_SCOPE!r}, which verdicts use for everything else; "
                "rename it, or leave those texts out of the fit"
            )
        with all_or_nothing(self):
            self.detector_ = self._new_detector()
            self._encoder: Encoder = self._new_encoder(vectors)
            rows = self._features(texts, vectors, advance)
            self.encoder_name_ = self._encoder.name
            self.encoder_fingerprint_ = self._encoder.fingerprint()
            self.encoder_settings_ = json.dumps(self._encoder.settings())
            seen = self._encoder.has_seen(texts)
            fit = fit_and_calibrate(
                self.detector_,
                rows,
                y,
                fpr=self._rate(),
                holdout=self.holdout,
                seen=np.ones(len(texts), dtype=bool) if seen is None else seen,
                random_state=self.random_state,
                noun="texts",
            )
            self._remember(texts, fit)
            self._remember_suspects(texts)
            self._learn_classes(rows, y)
            if outside is not None:
                self.refuse(outside, in_scope=texts, vectors=outside_vectors)
        return self

    def _new_encoder(self, vectors: Any) -> Encoder:
        if vectors is not None:
            return GivenVectors()
        return make_encoder(DEFAULT if self.encoder is None else self.encoder)

    def _new_detector(self) -> Detector:
        if isinstance(self.detector, Detector):
            made: Detector = clone(self.detector)
        else:
            made = make_detector(self.detector)
            if "random_state" in made.get_params():
                made.set_params(random_state=self.random_state)
        check_rate(self._rate(made))
        return made

    def _rate(self, detector: Detector | None = None) -> float:
        """The requested false-alarm rate."""
        given: Any = self.contamination
        if given is None:
            given = (detector or self.detector_).contamination
        return USUAL_RATE if isinstance(given, str) else float(given)

    def _remember(self, texts: list[str], fit: Any) -> None:
        """Keep only the texts that explanations can point to.

        The detector numbers the rows it was fitted on; `remembered_lines_` numbers all texts.
        """
        self.remembered_rows_ = np.unique(self.detector_.remembered_rows())
        self.remembered_lines_ = fit[self.remembered_rows_]
        self.remembered_texts_ = [texts[i] for i in self.remembered_lines_]

    def _learn_classes(self, rows: Matrix, y: Any) -> None:
        self.labels_: Any = None
        self.class_means_: Any = None
        if y is not None:
            self.labels_, member = np.unique(y, return_inverse=True)
            unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
            means = np.stack([unit[member == c].mean(axis=0) for c in range(len(self.labels_))])
            self.class_means_ = means.astype(np.float32)

    def calibrate(
        self,
        texts: Any,
        *,
        fpr: float | None = None,
        confidence: float | None = None,
        vectors: Any = None,
    ) -> Self:
        """Set the threshold from in-scope texts used neither in fit nor in fine-tuning.

        The rate is promised on average over calibrations; with `confidence`, for this one.
        """
        check_is_fitted(self, "detector_")
        texts = check_texts(texts)
        refuse_empty(texts)
        seen = self._checked_encoder().has_seen(texts)
        if seen is not None and seen.any():
            if seen.all():
                raise InputError(
                    f"the encoder was trained on all of these {len(texts)} texts, so they look "
                    "nearer than new ones will; calibrate on others"
                )
            logger.warning(
                "left out %d of %d texts that the encoder was trained on", seen.sum(), len(texts)
            )
            texts = [text for text, known in zip(texts, seen, strict=True) if not known]
            vectors = None if vectors is None else np.asarray(vectors)[~seen]
        rate = self._rate() if fpr is None else fpr
        rows = self.rows_of(texts, vectors=vectors)
        self.detector_.calibrate(rows, fpr=rate, confidence=confidence)
        return self

    def set_threshold(
        self,
        *,
        fpr: float | None = None,
        value: float | None = None,
        confidence: float | None = None,
    ) -> Self:
        """Move the threshold after fit, to a false-alarm rate or to a score."""
        check_is_fitted(self, "detector_")
        self.detector_.set_threshold(fpr=fpr, value=value, confidence=confidence)
        return self

    # ---- using

    @property
    def threshold_(self) -> float:
        """Score above which a text is out of scope."""
        check_is_fitted(self, "detector_")
        return self.detector_.threshold_

    @property
    def promise_(self) -> Promise | None:
        """What the current threshold promises; None if it is an estimate."""
        check_is_fitted(self, "detector_")
        return self.detector_.promise_

    def score_samples(self, texts: Any) -> FloatArray:
        """scikit-learn's sign: higher = more normal."""
        return -self.ood_score(texts)

    def decision_function(self, texts: Any) -> FloatArray:
        """scikit-learn's sign: below 0 = out of scope."""
        return self.score_samples(texts) + self.threshold_

    def ood_score(
        self, texts: Any, *, vectors: Any = None, advance: Advance = lambda done: None
    ) -> FloatArray:
        """How strange each text is; higher = stranger."""
        rows = self.rows_of(texts, advance, vectors=vectors)
        return self.detector_.ood_score(rows)

    def is_ood(self, texts: Any, *, vectors: Any = None) -> BoolArray:
        """True where a text is out of scope at the current threshold."""
        rows = self.rows_of(texts, vectors=vectors)
        return self.detector_.is_ood(rows)

    def p_value(self, texts: Any, *, vectors: Any = None) -> FloatArray:
        """Conformal p-value: the chance of an in-scope text at least this strange."""
        rows = self.rows_of(texts, vectors=vectors)
        return self.detector_.p_value(rows)

    def predict(
        self, texts: Any, *, vectors: Any = None, advance: Advance = lambda done: None
    ) -> list[Verdict]:
        """A verdict on each text."""
        return self.judge(self.rows_of(texts, advance, vectors=vectors))

    def explain(self, texts: Any, *, n_atoms: int = 5, vectors: Any = None) -> list[Explanation]:
        """For each text the atoms that explain it, with the training texts behind them by number.

        Only NNK methods can; `remembered_rows_` and `remembered_texts_` turn numbers into texts.
        """
        rows = self.rows_of(texts, vectors=vectors)
        if not isinstance(self.detector_, DictionaryDetector):
            raise InputError(
                f"a {type(self.detector_).__name__} cannot explain; fit one of the nnk methods"
            )
        return self.detector_.explain(rows, n_atoms=n_atoms)

    def judge(self, rows: Matrix) -> list[Verdict]:
        """A verdict on each row from `rows_of`."""
        check_is_fitted(self, "detector_")
        if not len(rows):
            return []
        detector = self.detector_  # one and the same throughout, should it be taught meanwhile
        reading = detector.read(rows)
        scores, decision = reading.ood_score, detector.decide(reading.ood_score)
        chances = [None] * len(rows) if decision.p_value is None else decision.p_value.tolist()
        classes, refused = self._classes(rows, reading), detector.refused_in(reading)
        return [
            Verdict(
                float(scores[i]),
                chances[i],
                bool(decision.is_ood[i]),
                None if classes is None else OUT_OF_SCOPE if decision.is_ood[i] else classes[i],
                nearest,
                refused[i],
            )
            for i, nearest in enumerate(self._nearest(reading))
        ]

    def _classes(self, rows: Matrix, reading: Reading) -> list[Any] | None:
        if self.labels_ is None or "smoothness" in self.detector_.needs:
            return None  # roughness says nothing about classes
        if self.detector_.needs == "logits":
            names = self.encoder_classes_
            return [names[c] for c in rows.argmax(axis=1)]
        found = self.detector_.labels_in(reading)
        if found is None:
            found = self.labels_[(rows @ self.class_means_.T).argmax(axis=1)]
        return list(found.tolist())

    def _nearest(self, reading: Reading) -> list[tuple[str, ...]]:
        if not len(self.remembered_rows_):
            return [()] * len(reading.ood_score)
        position = {int(row): i for i, row in enumerate(self.remembered_rows_)}
        return [
            tuple(self.remembered_texts_[position[row]] for row in found)
            for found in self.detector_.rows_in(reading, NEAREST)
        ]

    # ---- saving

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one folder; `outscope.load` reads it back. A local encoder is copied into it."""
        check_is_fitted(self, "detector_")
        stored = copy.copy(self)
        stored.encoder, attached = self._encoder_to_save()
        stored.detector = self.detector if isinstance(self.detector, str) else clone(self.detector)
        stored.cache = self.cache if isinstance(self.cache, bool) else True
        notes = {
            **self.detector_._notes(),
            "kind": "text",
            "encoder": self.encoder_name_,
            "encoder_fingerprint": self.encoder_fingerprint_,
        }
        models.write(path, stored, notes, attached)

    def _encoder_to_save(self) -> tuple[str | None, tuple[str, dict[str, Path]] | None]:
        """What to record as the encoder, and its files if it exists only on this machine."""
        if self.encoder is None and not hasattr(self, "_encoder"):
            return None, None  # loaded and saved again without being used
        encoder = self._checked_encoder()
        if encoder.fingerprint() != self.encoder_fingerprint_:
            raise ModelFileError(
                f"the files of the encoder {encoder.name!r} changed since the fit; fit again"
            )
        folder = encoder.folder
        if folder is None:
            return encoder.address, None
        if not encoder.local:
            return encoder.name, None  # a name that anyone can resolve
        name = f"encoder-{self.encoder_fingerprint_[:16]}"
        files = {file.relative_to(folder).as_posix(): file for file in deciding_files(folder)}
        return BESIDE + name, (name, files)

    def after_loading(self, path: str | os.PathLike[str], encoder: Any) -> Self:
        """Find the encoder again; it is checked at first use."""
        if encoder is not None:
            self.encoder = encoder
            self._checked_encoder()
        elif self.encoder is not None and self.encoder.startswith(BESIDE):
            self.encoder = str(check_copied(Path(path), self.encoder.removeprefix(BESIDE)))
        elif self.encoder is not None and is_address(self.encoder):
            self.encoder = RemoteEncoder.recorded(self.encoder, json.loads(self.encoder_settings_))
        elif self.encoder is not None and (
            not HUB_NAME.fullmatch(self.encoder) or Path(self.encoder).exists()
        ):
            raise ModelFileError(
                f"{path} asks for the encoder {self.encoder!r}, which is not a hub name but a path "
                "on this machine; if you trust it, give it: outscope.load(path, encoder=…)"
            )
        return self

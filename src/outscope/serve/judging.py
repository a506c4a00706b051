"""A model and a batch of jobs → answers as plain values. Runs in the scoring thread."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from outscope._types import Matrix
from outscope.detectors.base import Detector
from outscope.detectors.coded import DictionaryDetector
from outscope.detectors.teaching import TaughtDetector
from outscope.engine.kernels.blas import one_thread_each
from outscope.serve.batching import Job
from outscope.text.encoders import check_texts
from outscope.text.pipeline import TextDetector
from outscope.text.verdict import OUT_OF_SCOPE

Model = Detector | TextDetector
Place = Callable[[Matrix], list[list[float]] | None]


class Question(NamedTuple):
    """What a job asks about its items."""

    kind: str  # "texts" or "vectors"
    fpr: float | None = None  # None: at the model's own threshold
    n_atoms: int = 0  # 0: no reasons
    scores_only: bool = False


def detector_of(model: Model) -> Detector:
    """The detector of rows inside a model."""
    return model.detector_ if isinstance(model, TextDetector) else model


def own_copy(model: Model) -> Model:
    """A copy that can be changed without the other noticing; it shares arrays and the encoder."""
    other = copy.copy(model)
    if isinstance(other, TextDetector):
        other.detector_ = copy.copy(other.detector_)
    return other


def at_rate(
    model: Model,
    fpr: float | None = None,
    value: float | None = None,
    confidence: float | None = None,
) -> Model:
    """The same model with another threshold; the given one is left as it is."""
    if fpr is None and value is None:
        return model
    other = own_copy(model)
    other.set_threshold(fpr=fpr, value=value, confidence=confidence)
    return other


def rows_of(model: Model, kind: str, items: Any) -> Matrix:
    """Rows that the detector takes. Texts of callers are not kept in the vector cache."""
    if kind == "vectors":
        return np.asarray(items)
    assert isinstance(model, TextDetector)
    return model._checked_encoder().features(check_texts(items), model.detector_.needs)


def answer(model: Model, jobs: Sequence[Job], place: Place) -> list[Any]:
    """For each job the model that decided and its results, or the exception that it caused."""
    found: dict[Job, Any] = {}
    for kind in ("texts", "vectors"):
        some = [job for job in jobs if job.key.kind == kind]  # type: ignore[attr-defined]
        if some:
            found.update(zip(some, _of_one_kind(model, kind, some, place), strict=True))
    return [found[job] for job in jobs]


def _of_one_kind(model: Model, kind: str, jobs: list[Job], place: Place) -> list[Any]:
    try:
        parts = [rows_of(model, kind, job.items) for job in jobs] if kind == "vectors" else None
        if parts is None:
            all_rows = rows_of(model, kind, [text for job in jobs for text in job.items])
        else:
            all_rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return _by_question(model, jobs, all_rows, place)
    except Exception as error:
        if len(jobs) == 1:
            return [error]
        # One of them is at fault; the others shall not suffer.
        return [_of_one_kind(model, kind, [job], place)[0] for job in jobs]


def _by_question(model: Model, jobs: list[Job], rows: Matrix, place: Place) -> list[Any]:
    ends = np.cumsum([len(job) for job in jobs])
    spans = [slice(int(end) - len(job), int(end)) for job, end in zip(jobs, ends, strict=True)]
    found: list[Any] = [None] * len(jobs)
    for question in dict.fromkeys(job.key for job in jobs):
        same = [i for i, job in enumerate(jobs) if job.key == question]
        chosen = rows if len(same) == len(jobs) else np.concatenate([rows[spans[i]] for i in same])
        told = at_rate(model, question.fpr)  # type: ignore[attr-defined]
        results, start = asked_of(told, chosen, question, place), 0  # type: ignore[arg-type]
        for i in same:
            found[i] = told, results[start : start + len(jobs[i])]
            start += len(jobs[i])
    return found


def asked_of(model: Model, rows: Matrix, question: Question, place: Place) -> Any:
    """A result for each row, or an array of their scores."""
    if question.scores_only:
        with one_thread_each():
            return detector_of(model).ood_score(rows)
    return results_of(model, rows, question.n_atoms, place)


def results_of(model: Model, rows: Matrix, n_atoms: int, place: Place) -> list[dict[str, Any]]:
    """One result for each row."""
    # The BLAS pool waits by spinning: on a busy machine a single row would take 10 ms, not 0.1.
    with one_thread_each():
        results = _decided(model, rows)
        return _explained(model, rows, results, n_atoms, place) if n_atoms else results


def _decided(model: Model, rows: Matrix) -> list[dict[str, Any]]:
    """The fields of a verdict on each row."""
    if isinstance(model, TextDetector):
        return [dict(vars(verdict)) for verdict in model.judge(rows)]
    # Columns and plain dicts: a verdict for each row would cost a tenth of the scoring.
    nothing = [None] * len(rows)
    if _says_more(model):
        reading = model.read(rows)
        scores, classes = reading.ood_score, model.labels_in(reading)
        refused: list[Any] = model.refused_in(reading)
    else:
        scores, classes, refused = model.ood_score(rows), None, nothing
    decision = model.decide(scores)
    chances = nothing if decision.p_value is None else decision.p_value.tolist()
    flags = decision.is_ood.tolist()
    labels: list[Any] = nothing
    if classes is not None:
        labels = np.where(decision.is_ood, OUT_OF_SCOPE, classes.astype(object)).tolist()
    columns = zip(scores.tolist(), chances, flags, labels, refused, strict=True)
    return [
        {
            "ood_score": score,
            "p_value": chance,
            "is_ood": flag,
            "label": label,
            "nearest": (),
            "refused_like": like,
        }
        for score, chance, flag, label, like in columns
    ]


def _says_more(detector: Detector) -> bool:
    """Whether a reading says more than the score: the class, or what a row was refused for."""
    return isinstance(detector, TaughtDetector) and (
        detector._known_labels() is not None or bool(detector.lessons_)
    )


def learns(model: Model) -> bool:
    """Whether it can be taught texts."""
    return isinstance(model, TextDetector) and isinstance(model.detector_, TaughtDetector)


def explains(model: Model) -> bool:
    """Whether the detector gives reasons."""
    return isinstance(detector_of(model), DictionaryDetector)


def _explained(
    model: Model, rows: Matrix, results: list[dict[str, Any]], n_atoms: int, place: Place
) -> list[dict[str, Any]]:
    detector: Any = detector_of(model)
    found = detector.explain(rows, n_atoms=n_atoms) if explains(model) else [None] * len(rows)
    texts: dict[int, str] = {}
    lines: dict[int, int] = {}
    if isinstance(model, TextDetector):
        known = model.remembered_rows_.tolist()
        texts = dict(zip(known, model.remembered_texts_, strict=True))
        lines = dict(zip(known, model.remembered_lines_.tolist(), strict=True))
    places = place(rows)
    for i, (result, one) in enumerate(zip(results, found, strict=True)):
        reasons = [] if one is None else list(one.as_dict()["evidence"])
        for part in reasons:
            part["texts"] = [texts[row] for row in part["rows"] if row in texts]
            part["rows"] = [lines.get(row, row) for row in part["rows"]]
        result["closest"] = None if one is None else one.label
        result["unexplained"] = None if one is None else one.unexplained
        result["evidence"] = reasons
        result["position"] = None if places is None else places[i]
    return results

"""What every guard needs: a text detector, plain verdicts with a reason, the text to judge."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from outscope.detectors.coded import DictionaryDetector
from outscope.detectors.thresholded import ESTIMATE
from outscope.errors import InputError
from outscope.loading import load
from outscope.text.conversations import ends_without_text, judged_text
from outscope.text.pipeline import TextDetector
from outscope.text.verdict import Verdict

# In-scope texts that a reason quotes, and how much of each.
QUOTED, QUOTE = 2, 80
# User turns of a conversation that count.
TURNS = 5


def text_detector(given: TextDetector | str | os.PathLike[str]) -> TextDetector:
    """A fitted `TextDetector`, or the one saved in a folder."""
    found = load(given) if isinstance(given, (str, os.PathLike)) else given
    if not isinstance(found, TextDetector):
        raise InputError(
            f"detector={given!r} judges rows, not texts; give a fitted TextDetector or the folder "
            "of one (outscope fit texts.txt --out FOLDER)"
        )
    # What is not fitted, or has lost its encoder, fails now and not at the first user's text.
    _ = found.threshold_
    found._checked_encoder().features(["a text"], found.detector_.needs)
    return found


def judge(detector: TextDetector, texts: Sequence[str]) -> list[dict[str, Any]]:
    """For each text a verdict in plain values, with the threshold, its promise and a reason."""
    threshold, promise = detector.threshold_, str(detector.promise_ or ESTIMATE)
    return [
        {
            **verdict.as_dict(),
            "nearest": list(verdict.nearest),
            "threshold": threshold,
            "promise": promise,
            "reason": _reason(verdict, threshold),
        }
        for verdict in detector.predict(list(texts))
    ]


def _reason(verdict: Verdict, threshold: float) -> str:
    side, sign = ("out of scope", "above") if verdict.is_ood else ("in scope", "not above")
    told = f"{side}: score {verdict.ood_score:.4g} is {sign} the threshold {threshold:.4g}"
    if verdict.p_value is not None:
        told += f", p-value {verdict.p_value:.3g}"
    if verdict.refused_like is not None:
        told += f"; like what is to be refused: {_quoted(verdict.refused_like)}"
    if not verdict.nearest:
        return told
    return f"{told}; nearest in-scope texts: " + ", ".join(map(_quoted, verdict.nearest[:QUOTED]))


def _quoted(text: str) -> str:
    return repr(text if len(text) <= QUOTE else f"{text[:QUOTE]}…")


def explain(detector: TextDetector, text: str, n_atoms: int) -> dict[str, Any]:
    """Which atoms and in-scope texts explain a text, and how much stays unexplained."""
    own = detector.detector_
    if not isinstance(own, DictionaryDetector):
        raise InputError(
            f"a {type(own).__name__} cannot explain its scores; fit one of the nnk methods"
        )
    if n_atoms < 1:
        raise InputError(f"n_atoms={n_atoms}: expected at least 1")
    found = own.explain(detector.rows_of([text]), n_atoms=n_atoms)[0].as_dict()
    rows = detector.remembered_rows_.tolist()
    known = dict(zip(rows, detector.remembered_texts_, strict=True))
    for evidence in found["evidence"]:
        evidence["texts"] = [known[row] for row in evidence.pop("rows")]
    return {**found, "threshold": detector.threshold_}


def text_to_judge(messages: Any, turns: int) -> str | None:
    """The text itself, or what the last user turns of a conversation are about.

    None if there is no text, or none in the last user turn: an image is not judged by what was
    said before it.
    """
    if isinstance(messages, str):
        return messages if messages.strip() else None
    messages = list(messages)
    return None if ends_without_text(messages) else judged_text(messages, turns)


def check_turns(turns: Any) -> int:
    """How many user turns of a conversation count, at least 1."""
    if isinstance(turns, bool) or not isinstance(turns, int) or turns < 1:
        raise InputError(f"turns={turns!r}: expected a whole number of user turns, at least 1")
    return turns

"""guardrails-ai: a validator, which NeMo Guardrails can load too."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from outscope.errors import require
from outscope.integrations.judging import judge, text_detector
from outscope.text.pipeline import TextDetector

require("guardrails", extra="guardrails")

from guardrails.validator_base import (  # noqa: E402
    FailResult,
    PassResult,
    ValidationResult,
    Validator,
    register_validator,
)

REFUSAL = "Sorry, I cannot help with that here."


@register_validator(name="outscope/in_scope", data_type="string")
class InScope(Validator):
    """Passes texts that are in scope.

    `detector` is a fitted `TextDetector` or the folder of one; `refusal` is what `on_fail="fix"`
    puts in a text's place. The result's metadata is the verdict: score, threshold, reason and more.
    """

    def __init__(
        self,
        detector: TextDetector | str | os.PathLike[str],
        refusal: str = REFUSAL,
        on_fail: str | Callable[..., Any] | None = None,
    ) -> None:
        # What is passed on is shown in traces and must be plain.
        super().__init__(on_fail=on_fail, detector=str(detector), refusal=refusal)
        self._detector, self._refusal = text_detector(detector), refusal

    def _validate(self, value: Any, metadata: dict[str, Any]) -> ValidationResult:
        verdict = judge(self._detector, [value])[0]
        found = {**verdict, "score": verdict["ood_score"]}
        if not verdict["is_ood"]:
            return PassResult(metadata=found)
        return FailResult(error_message=found["reason"], fix_value=self._refusal, metadata=found)

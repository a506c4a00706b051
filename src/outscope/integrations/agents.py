"""OpenAI Agents SDK: an input guardrail that stops an agent before it answers off topic."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from outscope.errors import require
from outscope.integrations.judging import TURNS, check_turns, judge, text_detector, text_to_judge
from outscope.text.pipeline import TextDetector

NOTHING = {"is_ood": True, "reason": "there is no text by a user that could be judged"}


def input_guardrail(
    detector: TextDetector | str | os.PathLike[str],
    *,
    turns: int = TURNS,
    name: str = "in scope",
    run_in_parallel: bool = False,
) -> Any:
    """An `agents.InputGuardrail` that judges what the user says now.

    Of a conversation, the last `turns` user turns count: a short reply is judged with its topic.
    Out of scope trips the wire; `output_info` is the verdict as a dictionary. Input without a
    text trips it too. By default the agent starts after the verdict, so nothing off topic reaches
    the model.
    """
    sdk, found = require("agents", extra="agents"), text_detector(detector)
    check_turns(turns)

    async def in_scope(_context: Any, _agent: Any, given: Any) -> Any:
        text = text_to_judge(given, turns)
        # In a thread: an encoder takes milliseconds in which other requests go on.
        verdict = NOTHING if text is None else (await asyncio.to_thread(judge, found, [text]))[0]
        return sdk.GuardrailFunctionOutput(
            output_info=verdict, tripwire_triggered=verdict["is_ood"]
        )

    return sdk.InputGuardrail(in_scope, name=name, run_in_parallel=run_in_parallel)

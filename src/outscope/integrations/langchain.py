"""LangChain: a runnable from a text or a conversation to a verdict."""

from __future__ import annotations

import os
from typing import Any

from outscope.errors import InputError, require
from outscope.integrations.judging import TURNS, check_turns, judge, text_detector, text_to_judge
from outscope.text.pipeline import TextDetector

require("langchain_core", extra="langchain")

from langchain_core.runnables import Runnable  # noqa: E402
from langchain_core.runnables.config import RunnableConfig  # noqa: E402


class ScopeCheck(Runnable[Any, dict[str, Any]]):
    """Text, prompt or messages → verdict, as a dictionary; many are judged in one pass.

    Of messages, the last `turns` by the user count: a short reply is judged with its topic.
    """

    def __init__(
        self, detector: TextDetector | str | os.PathLike[str], *, turns: int = TURNS
    ) -> None:
        self.detector, self.turns = text_detector(detector), check_turns(turns)

    def invoke(
        self,
        input: Any,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The verdict on one input."""
        return self._call_with_config(lambda given: self._judge([given])[0], input, config)

    def batch(
        self,
        inputs: list[Any],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[dict[str, Any]]:
        """The verdicts on many inputs, from one pass of the encoder."""
        if return_exceptions:  # one by one, so that one bad input does not fail the others
            return super().batch(inputs, config, return_exceptions=True, **kwargs)
        return self._judge(inputs) if inputs else []

    def _judge(self, inputs: list[Any]) -> list[dict[str, Any]]:
        return judge(self.detector, [self._text(given) for given in inputs])

    def _text(self, given: Any) -> str:
        messages = given.to_messages() if hasattr(given, "to_messages") else given
        found = text_to_judge(messages, self.turns)
        if found is None:
            raise InputError(
                "the input has no text by a user; give a text or messages that end with one"
            )
        return found

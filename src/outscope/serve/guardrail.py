"""LiteLLM's Generic Guardrail API: texts of a request come in, NONE or BLOCKED goes out."""

from __future__ import annotations

from typing import Any

import numpy as np
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import Field, ValidationError

from outscope.serve.bodies import check_items, read_json
from outscope.serve.caller import Callers
from outscope.serve.judging import Question
from outscope.serve.models import Registry
from outscope.serve.openapi import described
from outscope.serve.problems import Problem, invalid
from outscope.serve.routes import as_json, check_rate_of
from outscope.serve.settings import Settings
from outscope.serve.shapes import GuardrailAnswer, GuardrailBody, Rate, _Strict
from outscope.text.conversations import judged_text, text_of

PATH = "/beta/litellm_basic_guardrail_api"
REASON = "This question is outside of what this assistant is for."


class Options(_Strict):
    """`additional_provider_specific_params` of the guardrail's configuration in LiteLLM."""

    model: str | None = None
    fpr: Rate | None = None
    turns: int = Field(5, ge=1, le=20)
    reason: str = REASON
    replacement: str | None = None  # given: replace what is out of scope instead of blocking
    responses: bool = False  # judge what the language model says, too


def guardrail_router(registry: Registry, callers: Callers, settings: Settings) -> APIRouter:
    """The one route that LiteLLM calls."""
    router = APIRouter(dependencies=[Depends(callers.user)])

    async def guardrail(request: Request) -> Response:
        """Judge what a user asks a language model (LiteLLM's Generic Guardrail API)."""
        body = await read_json(request, GuardrailBody)
        given = body.additional_provider_specific_params or {}
        try:
            options = Options.model_validate(
                {name: value for name, value in given.items() if name in Options.model_fields}
            )
        except ValidationError as error:
            raise invalid(error) from None
        texts, chosen = _to_judge(body, options)
        if not chosen:
            return as_json({"action": "NONE"})
        served = registry.get(options.model)
        if served.kind != "texts":
            raise Problem(409, "not-supported", f"the model {served.name} takes vectors only")
        judged = check_items([text for text, _ in chosen], settings, settings.items)
        check_rate_of(served, options.fpr)
        served.batcher.admit(len(judged))
        about, results = await served.ask(Question("texts", options.fpr), judged)
        strange = [i for i, result in enumerate(results) if result["is_ood"]]
        scores = [result["ood_score"] for result in results]
        served.metrics.count_scores(served.name, np.array(scores), len(strange), about["threshold"])
        request.state.facts.update(model=served.name, items=len(judged), flagged=len(strange))
        return as_json(_action(options, texts, [chosen[i][1] for i in strange]))

    router.add_api_route(
        PATH, guardrail, methods=["POST"], **described(GuardrailBody, GuardrailAnswer)
    )
    return router


def _to_judge(
    body: GuardrailBody, options: Options
) -> tuple[list[str], list[tuple[str, int | None]]]:
    """All texts, and those to judge, each with its place among them.

    Of a conversation, one text is judged; without messages, every text is the user's.
    """
    texts = body.texts or []
    if body.input_type == "response" and not options.responses:
        return texts, []
    if body.input_type == "request" and body.structured_messages:
        judged = judged_text(body.structured_messages, options.turns)
        said = [text_of(one.content) for one in body.structured_messages if one.role == "user"]
        last = next((text for text in reversed(said) if text.strip()), None)
        places = [i for i, text in enumerate(texts) if text == last]
        return texts, [] if judged is None else [(judged, places[-1] if places else None)]
    return texts, [(text, i) for i, text in enumerate(texts) if text.strip()]


def _action(options: Options, texts: list[str], strange: list[int | None]) -> dict[str, Any]:
    if not strange:
        return {"action": "NONE"}
    if options.replacement is None or None in strange:
        return {"action": "BLOCKED", "blocked_reason": options.reason}
    replaced = [options.replacement if i in strange else text for i, text in enumerate(texts)]
    return {"action": "GUARDRAIL_INTERVENED", "texts": replaced}

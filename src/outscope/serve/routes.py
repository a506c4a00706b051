"""The routes under /v1: score, explain, threshold, feedback, models and maps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import numpy as np
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response, StreamingResponse
from fastapi.routing import APIRoute
from pydantic_core import to_json

from outscope._types import FloatArray
from outscope.errors import InputError, OutscopeError
from outscope.serve.bodies import Asked, check_items, items_of, read_json, read_score
from outscope.serve.caller import Callers
from outscope.serve.judging import Question, at_rate, learns
from outscope.serve.models import Registry, Served
from outscope.serve.openapi import BINARY, NDJSON, described
from outscope.serve.problems import Problem
from outscope.serve.settings import Settings
from outscope.serve.shapes import (
    ExplainAnswer,
    ExplainBody,
    FeedbackAnswer,
    FeedbackBody,
    Map,
    ModelInfo,
    Models,
    ScoreAnswer,
    ScoreBody,
    ThresholdAnswer,
    ThresholdBody,
)


def as_json(value: Any) -> Response:
    """An answer of plain values."""
    return Response(to_json(value), media_type="application/json")


def as_scores(about: dict[str, Any], scores: FloatArray) -> Response:
    """Scores as they are, float64; the headers say which score decides, and of which model."""
    headers = {
        "x-outscope-threshold": repr(about["threshold"]),
        "x-outscope-version": about["version"],
    }
    return Response(scores.astype("<f8").tobytes(), media_type=BINARY, headers=headers)


def plain_route(user: Callable[[Request], Awaitable[None]]) -> type[APIRoute]:
    """A kind of route that hands the request to its handler, once the caller is known.

    Its handlers read and check bodies themselves, so FastAPI's own way of finding arguments, a
    tenth of a millisecond for each call, would find nothing.
    """

    class PlainRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            endpoint: Any = self.endpoint

            async def handle(request: Request) -> Response:
                await user(request)
                return await endpoint(request)

            return handle

    return PlainRoute


class Routes:
    """Handlers, with what they share."""

    def __init__(self, registry: Registry, callers: Callers, settings: Settings) -> None:
        self._registry, self._callers, self._settings = registry, callers, settings

    def router(self) -> APIRouter:
        """All routes under /v1."""
        user = self._callers.user
        router = APIRouter(prefix="/v1", dependencies=[Depends(user)])
        plain = plain_route(user)
        for path, handler, body, answer in (
            ("/score", self.score, ScoreBody, ScoreAnswer),
            ("/explain", self.explain, ExplainBody, ExplainAnswer),
            ("/threshold", self.threshold, ThresholdBody, ThresholdAnswer),
            ("/feedback", self.feedback, FeedbackBody, FeedbackAnswer),
        ):
            about = described(body, answer)
            router.add_api_route(
                path, handler, methods=["POST"], route_class_override=plain, **about
            )
        shown: Any = (
            ("/models", self.models, Models),
            ("/models/{name}", self.model, ModelInfo),
            ("/models/{name}/map", self.map, Map),
        )
        for path, reader, shape in shown:
            router.add_api_route(path, reader, methods=["GET"], **described(None, shape))
        return router

    # ---- scoring

    async def score(self, request: Request) -> Response:
        """Score texts, vectors or conversations."""
        return await self._answer(request, ScoreBody)

    async def explain(self, request: Request) -> Response:
        """Score, and say which in-scope texts speak for it."""
        return await self._answer(request, ExplainBody)

    async def _answer(self, request: Request, shape: type[ScoreBody]) -> Response:
        streams = NDJSON in request.headers.get("accept", "")
        batchers = [one.batcher for one in self._registry.served.values()]
        for batcher in batchers:
            batcher.arriving += 1
        try:
            body = await read_score(request, shape)
        finally:
            for batcher in batchers:
                batcher.arriving -= 1
        served = self._registry.get(body.model)
        most = self._settings.streamed if streams else self._settings.items
        asked = items_of(body, served, self._settings, most=most)
        n_atoms = getattr(body, "n_atoms", 0)
        bare = not streams and not n_atoms and BINARY in request.headers.get("accept", "")
        question = Question(asked.kind, body.fpr, n_atoms, scores_only=bare)
        check_rate_of(served, body.fpr)
        served.batcher.admit(len(asked.items))
        if streams:
            lines = self._stream(served, question, asked, request)
            return StreamingResponse(lines, media_type=NDJSON)
        about, results = await self._ask(served, question, asked, request)
        return as_scores(about, results) if bare else as_json({**about, "results": results})

    async def _ask(
        self, served: Served, question: Question, asked: Asked, request: Request
    ) -> tuple[dict[str, Any], Any]:
        about, results = await served.ask(question, asked.items)
        if question.scores_only:
            self._note(served, about, results, request, asked)
            return about, results
        if asked.conversation:
            for result, text in zip(results, asked.items, strict=True):
                result["text"] = text
        scores = [result["ood_score"] for result in results]
        self._note(served, about, scores, request, asked)
        return about, results

    def _note(
        self, served: Served, about: Any, ood_score: Any, request: Request, asked: Asked
    ) -> None:
        scores = np.asarray(ood_score)
        flagged = int(np.count_nonzero(scores > about["threshold"]))
        served.metrics.count_scores(served.name, scores, flagged, about["threshold"])
        facts = request.state.facts
        facts["model"] = served.name
        facts["items"] = facts.get("items", 0) + len(scores)
        facts["flagged"] = facts.get("flagged", 0) + flagged
        if self._settings.log_texts and asked.kind == "texts":
            facts.setdefault("texts", []).extend(asked.items)

    async def _stream(
        self, served: Served, question: Question, asked: Asked, request: Request
    ) -> AsyncIterator[bytes]:
        """A line for each item, then one about them all. Only one batch at a time is queued."""
        size, done, flagged = self._settings.batch, 0, 0
        about = served.about()
        try:
            for start in range(0, len(asked.items), size):
                some = asked._replace(items=asked.items[start : start + size])
                about, results = await self._ask(served, question, some, request)
                flagged += sum(result["is_ood"] for result in results)
                lines = [
                    to_json({"index": start + i, **result}) for i, result in enumerate(results)
                ]
                done += len(lines)
                yield b"\n".join(lines) + b"\n"
        except (Problem, OutscopeError) as error:
            problem = error if isinstance(error, Problem) else unusable(error)
            told = problem.response(request.state.request_id).body
            yield b'{"problem":' + bytes(told) + b"}\n"
            return
        yield to_json({"summary": {**about, "items": done, "flagged": flagged}}) + b"\n"

    # ---- changing

    async def threshold(self, request: Request) -> Response:
        """View or try a threshold; with `change` and the admin key, set it."""
        body = await read_json(request, ThresholdBody)
        served = self._registry.get(body.model)
        asked = body.model_dump(include={"fpr", "value", "confidence"})
        if body.fpr is not None and body.value is not None:
            raise Problem(422, "invalid-body", "give fpr or value, not both")
        if body.change:
            await self._callers.admin(request)
            if body.fpr is None and body.value is None:
                raise Problem(422, "invalid-body", "change needs fpr or value")
        told = at_rate(served.model, **asked)
        if body.change:
            await served.change(lambda model: model.set_threshold(**asked))
            told = served.model
        facts = {"changed": body.change, "saved": body.change and served.folder is not None}
        return as_json({**served.threshold_about(told), **facts})

    async def feedback(self, request: Request) -> Response:
        """Refuse or accept texts from now on, or undo the last such change (admin key)."""
        await self._callers.admin(request)
        body = await read_json(request, FeedbackBody)
        served = self._registry.get(body.model)
        if not learns(served.model):
            raise Problem(
                409, "not-supported", f"the model {served.name} cannot be taught by texts"
            )
        texts = check_items(body.texts, self._settings, self._settings.items)
        if bool(texts) == (body.action == "undo"):
            raise Problem(422, "invalid-body", "give texts to refuse or accept; none to undo")

        def teach(model: Any) -> None:
            getattr(model, body.action)(*([texts] if texts else []))

        said = await served.change(teach)
        facts = {"action": body.action, "texts": len(texts), "warnings": said}
        return as_json({**served.about(), **facts, "saved": served.folder is not None})

    # ---- describing

    async def models(self) -> Response:
        """The models that are served, the default first."""
        return as_json({"models": [self._info(one) for one in self._registry.served.values()]})

    async def model(self, name: str) -> Response:
        """One model."""
        return as_json(self._info(self._registry.get(name)))

    def _info(self, served: Served) -> dict[str, Any]:
        return {**served.describe(), "default": served is self._registry.default}

    async def map(self, name: str) -> Response:
        """In-scope texts and atoms in two dimensions."""
        served = self._registry.get(name)
        made = await served.the_map()
        if made is None:
            raise Problem(409, "not-supported", f"the model {name} stores no vectors to map")
        about = {"model": served.name, "version": served.version}
        return as_json({**about, **made.as_dict()})


def check_rate_of(served: Served, fpr: float | None) -> None:
    """Refuse a rate that the model cannot promise, before anything is scored."""
    if fpr is not None:
        at_rate(served.model, fpr)


def unusable(error: OutscopeError) -> Problem:
    """422: what a model says about its input."""
    kind = "unusable-input" if isinstance(error, InputError) else "failed"
    return Problem(422, kind, " ".join(str(error).split()))

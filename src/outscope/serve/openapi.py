"""The OpenAPI document, and a page that shows it without a script or an outside request."""

from __future__ import annotations

import html
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from outscope.serve.problems import MEDIA_TYPE, ProblemDetails
from outscope.serve.shapes import (
    ExplainAnswer,
    ExplainBody,
    FeedbackAnswer,
    FeedbackBody,
    GuardrailAnswer,
    GuardrailBody,
    Health,
    Map,
    ModelInfo,
    Models,
    ScoreAnswer,
    ScoreBody,
    ThresholdAnswer,
    ThresholdBody,
)

NDJSON = "application/x-ndjson"
BINARY = "application/octet-stream"
REFERENCE = "#/components/schemas/{model}"
BODIES = (ScoreBody, ExplainBody, ThresholdBody, FeedbackBody, GuardrailBody)
ANSWERS = (
    ScoreAnswer, ExplainAnswer, ThresholdAnswer, FeedbackAnswer, Models, ModelInfo, Map,
    GuardrailAnswer, Health, ProblemDetails,
)  # fmt: skip
ERRORS = {
    400: "the body is not JSON",
    401: "no key, or a wrong one",
    403: "a key that may not do this",
    404: "no such model",
    408: "the body came too slowly",
    409: "the model cannot do this",
    413: "too large",
    415: "not application/json",
    421: "not a Host of this service",
    422: "input that cannot be used",
    429: "busy; Retry-After says for how long",
    500: "a bug",
    503: "not ready, or not done in time",
}


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return {"schema": {"$ref": REFERENCE.format(model=model.__name__)}}


def described(body: type[BaseModel] | None, answer: type[BaseModel]) -> dict[str, Any]:
    """What the document says of a route that checks its own body."""
    problem = {MEDIA_TYPE: _schema(ProblemDetails)}
    good: dict[str, Any] = {"application/json": _schema(answer)}
    if body in (ScoreBody, ExplainBody):
        good[NDJSON] = {"schema": {"type": "string"}}
    if body is ScoreBody:
        good[BINARY] = {"schema": {"type": "string", "format": "binary"}}
    responses: dict[int | str, dict[str, Any]] = {
        200: {"description": answer.__doc__ or "", "content": good},
        **{status: {"description": told, "content": problem} for status, told in ERRORS.items()},
    }
    extra: dict[str, Any] = {}
    if body is not None:
        content = {"application/json": _schema(body)}
        extra["requestBody"] = {"required": True, "content": content}
    return {"responses": responses, "openapi_extra": extra, "response_model": None}


def document(app: FastAPI, *, keys: bool) -> dict[str, Any]:
    """The OpenAPI document of the application."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
        )
        parts: list[Any] = [(model, "validation") for model in BODIES]
        parts += [(model, "serialization") for model in ANSWERS]
        _, schemas = models_json_schema(parts, ref_template=REFERENCE)
        components = made.setdefault("components", {})
        components["schemas"] = schemas["$defs"]
        if keys:
            components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            for path, methods in made["paths"].items():
                if path.startswith(("/v1", "/beta", "/metrics")):
                    for operation in methods.values():
                        operation["security"] = [{"key": []}]
        app.openapi_schema = made
    return app.openapi_schema


def page(schema: dict[str, Any]) -> str:
    """The document as plain HTML."""
    rows = []
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            good = operation["responses"]["200"].get("content", {}).get("application/json", {})
            rows.append(
                f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>"
                f"<p>{html.escape(operation.get('description', ''))}</p>"
                f"<p>{_link('body', body)} {_link('answer', good)}</p>"
            )
    shapes = "".join(
        f'<h3 id="{html.escape(name)}">{html.escape(name)}</h3>'
        f"<p>{html.escape(shape.get('description', ''))}</p>{_table(shape)}"
        for name, shape in sorted(schema["components"]["schemas"].items())
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Outscope: API</title>'
        '<meta name="viewport" content="width=device-width"><main><h1>Outscope: API</h1>'
        '<p>The same as a document for programs: <a href="/openapi.json">openapi.json</a></p>'
        f"{''.join(rows)}<h2>Shapes</h2>{shapes}</main></html>"
    )


def _link(what: str, content: dict[str, Any]) -> str:
    name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    return f'{what}: <a href="#{html.escape(name)}">{html.escape(name)}</a>' if name else ""


def _table(shape: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{html.escape(name)}</code><td>{html.escape(_kind(part))}"
        f"<td>{html.escape(part.get('description', ''))}"
        for name, part in shape.get("properties", {}).items()
    )
    return f"<table>{rows}</table>" if rows else ""


def _kind(part: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in part:
        return str(part["$ref"]).rpartition("/")[2]
    if "anyOf" in part:
        return " or ".join(dict.fromkeys(_kind(one) for one in part["anyOf"]))
    if "enum" in part:
        return " | ".join(map(str, part["enum"]))
    if part.get("type") == "array":
        return f"list of {_kind(part.get('items', {}))}"
    return str(part.get("type", "anything"))

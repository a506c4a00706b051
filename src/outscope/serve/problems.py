"""Errors as problem details (RFC 9457): one shape for everything that goes wrong."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi.responses import Response
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import to_json

MEDIA_TYPE = "application/problem+json"
# At most this many faults of one body are listed.
SHOWN = 5


class Fault(BaseModel):
    """One thing that is wrong with a body."""

    where: str
    why: str


class ProblemDetails(BaseModel):
    """What every error answer holds."""

    type: str = Field(description="what kind of problem; stable, for programs")
    title: str
    status: int
    detail: str = Field(description="what came, what was wanted, and the way out")
    request_id: str
    errors: list[Fault] | None = None


class Problem(Exception):  # noqa: N818 (it is an answer, too)
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        headers: dict[str, str] | None = None,
        errors: list[dict[str, str]] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail = status, kind, detail
        self.headers, self.errors = headers or {}, errors

    def response(self, request_id: str) -> Response:
        """The answer to send."""
        body: dict[str, Any] = {
            "type": f"urn:outscope:problem:{self.kind}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "request_id": request_id,
        }
        if self.errors:
            body["errors"] = self.errors
        return Response(to_json(body), self.status, self.headers, MEDIA_TYPE)


def too_large(what: str, limit: str) -> Problem:
    """413, and no more of the body is read."""
    return Problem(
        413, "too-large", f"{what}; the limit is {limit}", headers={"Connection": "close"}
    )


def busy(seconds: int, why: str) -> Problem:
    """429: come back later."""
    return Problem(
        429,
        "busy",
        f"{why}; try again in {seconds} s",
        headers={"Retry-After": str(seconds)},
    )


def invalid(error: ValidationError) -> Problem:
    """What pydantic found wrong with a body; inputs are not repeated."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    if found[0]["type"] == "json_invalid":
        return Problem(400, "invalid-json", f"the body is not JSON: {found[0]['msg']}")
    faults = [
        {"where": ".".join(map(str, one["loc"])) or "body", "why": one["msg"]}
        for one in found[:SHOWN]
    ]
    told = "; ".join(f"{fault['where']}: {fault['why']}" for fault in faults[:2])
    return Problem(422, "invalid-body", told, errors=faults)

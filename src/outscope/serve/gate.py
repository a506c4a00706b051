"""The gate: what every request passes through, before and after the application.

Request id, Host check, limits on size and time of the body, security headers, one log line and
one count for each request; and no error leaves without becoming problem details.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Callable
from typing import Any

from outscope.serve.metrics import Metrics
from outscope.serve.problems import Problem, too_large
from outscope.serve.settings import Settings

log = logging.getLogger("outscope.serve")

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
POLICY = (
    "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
SCORING = frozenset({"/v1/score", "/v1/explain", "/beta/litellm_basic_guardrail_api"})
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)


class Gate:
    """Outermost ASGI layer."""

    def __init__(
        self, app: Any, settings: Settings, metrics: Metrics, admit: Callable[[], None]
    ) -> None:
        self.app, self._settings, self._metrics, self._admit = app, settings, metrics, admit

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request; anything else goes straight through."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        passage = _Passage(scope, receive, send, self._settings)
        try:
            passage.check()
            if scope["path"] in SCORING:
                self._admit()  # here, because an overload must cost little
            await self.app(scope, passage.receive, passage.send)
        except Problem as problem:
            await passage.fail(problem)
        except Exception:
            log.exception("a bug", extra={"fields": {"request_id": passage.id}})
            await passage.fail(
                Problem(500, "internal", "this is a bug of Outscope; the log has the details")
            )
        finally:
            passage.note(self._metrics)


class _Passage:
    """One request on its way through."""

    def __init__(self, scope: Any, receive: Any, send: Any, settings: Settings) -> None:
        self.scope, self._receive, self._send, self._settings = scope, receive, send, settings
        self.headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        given = self.headers.get(b"x-request-id", "")
        self.id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        self.facts: dict[str, Any] = {}
        scope.setdefault("state", {}).update(request_id=self.id, facts=self.facts)
        self.start = time.perf_counter()
        self.status, self._read, self._whole = 0, 0, False

    def check(self) -> None:
        """Refuse what can be refused by its headers."""
        hosts, host = self._settings.hosts, self.headers.get(b"host", "")
        if hosts and re.sub(r":\d+$", "", host).lower() not in hosts:
            raise Problem(
                421, "unknown-host", "this service does not answer to that Host; see --allow-host"
            )
        length = self.headers.get(b"content-length", "")
        if length.isdigit() and int(length) > self._settings.body_bytes:
            raise self._too_much()

    def _too_much(self) -> Problem:
        return too_large("the body is too large", f"{self._settings.body_bytes:,} bytes")

    async def receive(self) -> Any:
        """The next part of the body, counted and timed."""
        if self._whole:
            return await self._receive()
        left = self.start + self._settings.reading - time.perf_counter()
        try:
            async with asyncio.timeout(max(0.001, left)):
                message = await self._receive()
        except TimeoutError:
            raise Problem(
                408,
                "slow-body",
                f"the body did not arrive within {self._settings.reading:g} s",
                headers={"Connection": "close"},
            ) from None
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            self._whole = not message.get("more_body", False)
            if self._read > self._settings.body_bytes:
                raise self._too_much()
        return message

    async def send(self, message: Any) -> None:
        """Pass an answer on, with our headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            there = {name.lower() for name, _ in message["headers"]}
            own = [*HEADERS, (b"x-request-id", self.id.encode()), (b"cache-control", b"no-store")]
            message["headers"] = [
                *message["headers"],
                *((name, value) for name, value in own if name not in there),
            ]
        await self._send(message)

    async def fail(self, problem: Problem) -> None:
        """Send problem details, unless an answer has already begun."""
        if not self.status:
            await problem.response(self.id)(self.scope, self._receive, self.send)

    def note(self, metrics: Metrics) -> None:
        """Count and log, without texts unless the route put them among the facts."""
        seconds = time.perf_counter() - self.start
        path = self.scope["path"]
        route = getattr(self.scope.get("route"), "path", path if path in SCORING else "other")
        method = self.scope["method"] if self.scope["method"] in METHODS else "other"
        metrics.count_request(route, method, self.status, seconds)
        fields = {
            "request_id": self.id,
            "method": self.scope["method"],
            "path": self.scope["path"],
            "status": self.status,
            "ms": round(1000 * seconds, 2),
            **self.facts,
        }
        log.info("request", extra={"fields": fields})


METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

"""`create_app`: fitted detectors → an application. Nothing global, nothing started before use."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from outscope import __version__
from outscope.errors import OutscopeError
from outscope.loading import load
from outscope.serve.caller import Callers
from outscope.serve.gate import Gate
from outscope.serve.guardrail import guardrail_router
from outscope.serve.judging import Model
from outscope.serve.keys import Keys
from outscope.serve.metrics import Metrics
from outscope.serve.models import Registry
from outscope.serve.openapi import described, document, page
from outscope.serve.problems import Problem
from outscope.serve.routes import Routes, as_json, unusable
from outscope.serve.settings import Settings
from outscope.serve.shapes import Health

KINDS = {404: "not-found", 405: "method-not-allowed"}


def create_app(
    detector: Model | str | Path | Mapping[str, Model | str | Path],
    *,
    settings: Settings | None = None,
    keys: Keys | None = None,
) -> FastAPI:
    """An ASGI application that serves a detector, or several by name (the first is the default).

    A folder written by `save` instead of a detector is loaded, followed when it changes, and
    written to by feedback.
    """
    settings, keys = settings or Settings(), keys or Keys()
    given = detector if isinstance(detector, Mapping) else {"default": detector}
    metrics = Metrics()
    registry = Registry(
        {
            name: (load(one), Path(one)) if isinstance(one, (str, Path)) else (one, None)
            for name, one in given.items()
        },
        settings,
        metrics,
    )

    @contextlib.asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        await registry.warm()
        watching = asyncio.create_task(registry.watch())
        yield
        watching.cancel()
        await registry.close()

    app = FastAPI(
        title="Outscope",
        version=__version__,
        description="Tells you when an input is unlike anything your system was built for.",
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.registry = registry
    callers = Callers(keys, open_admin=settings.open_admin)
    app.include_router(Routes(registry, callers, settings).router())
    app.include_router(guardrail_router(registry, callers, settings))
    _operations(app, registry, metrics, callers, needs_key=keys.needed)
    _errors(app)
    static = files("outscope.serve").joinpath("static")
    app.mount("/", StaticFiles(directory=str(static), html=True), name="page")
    if settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-api-key", "x-request-id"],
        )
    app.add_middleware(Gate, settings=settings, metrics=metrics, admit=registry.admit)
    return app


def _operations(
    app: FastAPI, registry: Registry, metrics: Metrics, callers: Callers, *, needs_key: bool
) -> None:
    """Health, metrics and the API's own description."""

    @app.get("/health/live", **described(None, Health))
    async def live() -> Response:
        """Whether the process answers."""
        return as_json({"status": "live", "models": {}})

    @app.get("/health/ready", **described(None, Health))
    async def ready() -> Response:
        """Whether requests can be scored now."""
        if not registry.ready:
            raise Problem(503, "not-ready", "the service is stopping")
        models = {name: one.version for name, one in registry.served.items()}
        return as_json({"status": "ready", "models": models})

    @app.get("/metrics", include_in_schema=False, dependencies=[Depends(callers.user)])
    async def scraped() -> Response:
        """Counters for Prometheus."""
        text, kind = metrics.text()
        return Response(text, media_type=kind)

    app.openapi = lambda: document(app, keys=needs_key)  # type: ignore[method-assign]

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        """The OpenAPI document."""
        return JSONResponse(app.openapi())

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        """The same, for people."""
        return HTMLResponse(page(app.openapi()))


def _errors(app: FastAPI) -> None:
    """Every error becomes problem details."""

    async def problem(request: Request, error: Any) -> Response:
        return error.response(request.state.request_id)

    async def refused(request: Request, error: Any) -> Response:
        return unusable(error).response(request.state.request_id)

    async def http(request: Request, error: Any) -> Response:
        kind = KINDS.get(error.status_code, "http")
        told = Problem(
            error.status_code, kind, str(error.detail), headers=dict(error.headers or {})
        )
        return told.response(request.state.request_id)

    async def parameters(request: Request, _: Any) -> Response:
        told = Problem(422, "invalid-body", "a parameter of the path or query is not valid")
        return told.response(request.state.request_id)

    app.add_exception_handler(Problem, problem)
    app.add_exception_handler(OutscopeError, refused)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, parameters)

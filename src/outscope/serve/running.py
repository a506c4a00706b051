"""A running service: uvicorn with our limits, and settings that reach every worker process."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from outscope.engine.kernels.parallel import available_cores
from outscope.serve.app import create_app
from outscope.serve.keys import Keys
from outscope.serve.logs import set_up
from outscope.serve.settings import Settings

# How the parts of the service reach the worker processes. It holds hashes of keys, not keys.
VARIABLE = "OUTSCOPE_SERVE"
SECRETS = ("OUTSCOPE_API_KEYS", "OUTSCOPE_ADMIN_KEY")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
# Connections that may wait for the process to accept them.
BACKLOG = 512


@dataclass(frozen=True)
class Service:
    """Everything that a worker needs to know."""

    models: Mapping[str, str]  # name → folder; none: the demo
    settings: Settings
    users: Mapping[str, str] = field(default_factory=dict)
    admins: Mapping[str, str] = field(default_factory=dict)

    def app(self) -> Any:
        """The application of one worker."""
        keys = Keys(self.users, self.admins)
        return create_app(self.models or demo(), settings=self.settings, keys=keys)


def demo() -> dict[str, Any]:
    """A detector of the corpus that ships with the package, by name."""
    from outscope.demo import FALSE_ALARMS, corpus
    from outscope.text.pipeline import TextDetector

    rows = corpus("in_scope")
    detector = TextDetector(contamination=FALSE_ALARMS)
    return {"demo": detector.fit([r["text"] for r in rows], [r["label"] for r in rows])}


def from_environment() -> Any:
    """The application that the parent process described; uvicorn calls this in each worker."""
    told = json.loads(os.environ[VARIABLE])
    settings = told.pop("settings")
    for name in ("hosts", "origins"):
        settings[name] = tuple(settings[name])
    set_up()
    return Service(**told, settings=Settings(**settings)).app()


def serve(service: Service, *, host: str, port: int, workers: int, grace: int) -> None:
    """Answer requests until SIGTERM or SIGINT; what was accepted is finished first."""
    import uvicorn

    for name in SECRETS:
        os.environ.pop(name, None)
    os.environ[VARIABLE] = json.dumps(asdict(service))
    with tempfile.TemporaryDirectory(prefix="outscope-metrics-") as folder:
        if workers > 1:
            if not os.environ.get("OMP_NUM_THREADS"):
                os.environ["OMP_NUM_THREADS"] = str(max(1, available_cores() // workers))
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        uvicorn.run(
            "outscope.serve.running:from_environment",
            factory=True,
            host=host,
            port=port,
            workers=workers,
            backlog=BACKLOG,
            http="outscope.serve.protocol:Protocol",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=grace,
        )

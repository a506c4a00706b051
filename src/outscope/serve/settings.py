"""What an operator can set, in one frozen record."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Limits and habits of the service."""

    latency: float = 5.0  # most milliseconds that a request waits for others to share a batch
    batch: int = 256  # rows scored together
    queue: int = 8192  # rows that may wait for each model
    wait: float = 2.0  # most seconds that an accepted request should have to wait for its turn
    timeout: float = 30.0  # seconds until an accepted request is given up
    reading: float = 10.0  # seconds in which a body must have arrived
    body_bytes: int = 16 << 20
    items: int = 4096  # texts or vectors per request
    streamed: int = 100_000  # the same, when results are streamed
    text_length: int = 100_000  # characters per text
    reload: float = 1.0  # seconds between looks at the model folders
    log_texts: bool = False
    hosts: tuple[str, ...] = ()  # accepted Host headers; none = any
    origins: tuple[str, ...] = ()  # sites whose pages may call (CORS); none = only our own
    open_admin: bool = False  # changes need no key (the demo, where nothing is kept)

"""uvicorn's HTTP/1.1 protocol with a limit on how long a request's head may take.

uvicorn closes connections that are idle between requests; one that never finishes its first line
or its headers would stay open for ever. And with several workers it leaves Nagle's algorithm on,
so that the second part of an answer waits 40 ms for the caller to acknowledge the first.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0


class Protocol(H11Protocol):
    """Closes connections whose next request does not begin in time."""

    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the clock with the connection."""
        super().connection_made(transport)
        _send_at_once(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Start the clock with the first byte of a head; stop it when the head is whole."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._head is None:
            self._wait_for_head()

    def on_response_complete(self) -> None:
        """Start the clock again if the beginning of another head has come already."""
        super().on_response_complete()
        if self.cycle.response_complete and self._head is None and self.conn.trailing_data[0]:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        self._head = self.loop.call_later(HEAD_SECONDS, self._late)

    def _stop(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _late(self) -> None:
        self._head = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def _send_at_once(transport: Any) -> None:
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

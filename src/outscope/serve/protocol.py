"""uvicorn's HTTP/1.1 protocol with limits on how long, and how large, a request's head may be.

uvicorn closes connections that are idle between requests; one that never finishes its first line
or its headers would stay open for ever, and grow. And with several workers asyncio (unlike uvloop)
leaves Nagle's algorithm on, so that the second part of an answer waits 40 ms for the caller to
acknowledge the first.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS, HEAD_BYTES = 10.0, 65_536


class Protocol(HttpToolsProtocol):
    """Closes connections whose next request does not begin in time, or does not end its head."""

    _head: asyncio.TimerHandle | None = None
    _received = 0

    def connection_made(self, transport: Any) -> None:
        """Start the clock with the connection."""
        super().connection_made(transport)
        _send_at_once(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Count what has come of a head that is not whole."""
        super().data_received(data)
        if self._head is not None:
            self._received += len(data)
            if self._received > HEAD_BYTES:
                self._late()

    def on_message_begin(self) -> None:
        """Start the clock with the first byte of a head."""
        if self._head is None:
            self._wait_for_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Stop it when the head is whole."""
        self._stop()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        self._received = 0
        self._head = self.loop.call_later(HEAD_SECONDS, self._late)

    def _stop(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _late(self) -> None:
        self._stop()
        self.transport.close()


def _send_at_once(transport: Any) -> None:
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

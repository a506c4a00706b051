"""One BLAS thread per worker while our own threads are running.

Otherwise every worker's product would wake its own BLAS pool, and the spinning pools take cores
away from the kernels (measured: twice the time on 2 cores).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from threadpoolctl import ThreadpoolController

_lock = threading.Lock()
_users = 0
_libraries: list[Any] | None = None
_before: list[int] = []


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Hold BLAS at one thread; the last of several holders restores the old setting.

    Counting holders makes this safe when many threads score at once: plain nested limits would
    restore in the wrong order and leave BLAS at one thread for good.
    """
    global _users, _libraries
    with _lock:
        if _libraries is None:
            _libraries = ThreadpoolController().select(user_api="blas").lib_controllers
        if _users == 0:
            _before[:] = [library.get_num_threads() for library in _libraries]
            for library in _libraries:
                _set(library, 1)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _restore()


def _set(library: Any, threads: int) -> None:
    # threadpoolctl 3.8 ignores all threads but the first that ever set a number. Holders are
    # counted here, and the last one may be on any thread, so none of them may keep that right.
    let_go = getattr(library, "clear_controlling_thread", lambda *, force: None)
    let_go(force=True)
    library.set_num_threads(threads)
    let_go(force=True)


def _restore() -> None:
    for library, threads in zip(_libraries or [], _before, strict=True):
        _set(library, threads)


def _after_fork() -> None:
    """In a child forked while another thread held the limit, nobody holds it: lift it."""
    global _lock, _users
    _lock = threading.Lock()
    if _users:
        _users = 0
        _restore()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

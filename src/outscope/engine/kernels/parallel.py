"""Distributes row chunks to threads. The only place in the package that starts threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Read = TypeVar("Read")

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_pool_size = 0


def available_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _workers(count: int) -> ThreadPoolExecutor:
    global _pool, _pool_size
    with _lock:
        if _pool is None or _pool_size < count:
            # An outgrown pool finishes its work, then its threads end.
            if _pool is not None:
                _pool.shutdown(wait=False)
            _pool = ThreadPoolExecutor(count, thread_name_prefix="outscope")
            _pool_size = count
        return _pool


def _forget_pool() -> None:
    """After a fork, the child has the pool object but none of its threads: start afresh."""
    global _pool, _pool_size, _lock
    _lock = threading.Lock()
    _pool, _pool_size = None, 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def for_ranges(n: int, n_threads: int, smallest: int, work: Callable[[int, int], None]) -> None:
    """Call `work(start, stop)` on ranges that cover 0 … n, on up to `n_threads` threads.

    The calling thread takes part, so a single range costs no hand-over. `work` must only write to
    its own rows.
    """
    parts = max(1, min(n_threads, n // max(smallest, 1)))
    if parts == 1:
        work(0, n)
        return
    edges = [n * part // parts for part in range(parts + 1)]
    pool = _workers(parts - 1)
    futures = [pool.submit(work, edges[p], edges[p + 1]) for p in range(1, parts)]
    try:
        work(edges[0], edges[1])
    finally:
        for future in futures:
            future.result()


def read_ahead(n: int, read: Callable[[int], Read], *, ahead: bool = True) -> Iterator[Read]:
    """`read(0)` … `read(n − 1)`, each read in another thread while its predecessor is in use."""
    if not ahead or n < 2:
        yield from map(read, range(n))
        return
    with ThreadPoolExecutor(1, thread_name_prefix="outscope-read") as reader:
        coming = reader.submit(read, 0)
        for i in range(n):
            found = coming.result()
            if i + 1 < n:
                coming = reader.submit(read, i + 1)
            yield found
            del found

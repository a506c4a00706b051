"""Row chunks in threads, reading ahead, writing behind: the only place that starts threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_pool_size = 0


def available_cores() -> int:
    """Cores this process may use, or fewer if $OMP_NUM_THREADS says so."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted):
        return min(int(wanted), _cores())
    return _cores()


def _cores() -> int:
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


@contextmanager
def behind(work: Callable[..., None]) -> Iterator[Callable[..., None]]:
    """A function that has a thread do `work`, call after call, while the caller goes on.

    At most one call waits; its error is raised by the next one, or at the end.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="outscope-behind") as pool:
        last: list[Future[None]] = []

        def put(*given: Any) -> None:
            if last:
                last.pop().result()
            last.append(pool.submit(work, *given))

        yield put
        if last:
            last.pop().result()


def ahead(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """`work` on each item in order; while a result is in use, a thread works on the next one.

    At most two results exist at a time, if the caller lets go of one before asking for the next.
    """
    waiting = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="outscope-ahead") as pool:
        # The list is the only holder of a result: what it gives away is not kept here.
        coming = [pool.submit(work, item) for item in islice(waiting, 1)]
        while coming:
            coming[0].exception()  # waits, so that never more than one is being worked on
            coming += [pool.submit(work, item) for item in islice(waiting, 1)]
            yield coming.pop(0).result()

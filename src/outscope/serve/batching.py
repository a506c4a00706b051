"""Micro-batches: requests that arrive together are scored together, and a queue that ends.

A batch starts as soon as the scorer is free, unless other requests are just being read; it waits
for those, but never longer than the latency budget. So a single caller waits for nobody, and
under load the batches grow by themselves.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from outscope.serve.metrics import Metrics
from outscope.serve.problems import Problem, busy
from outscope.serve.settings import Settings

Result = TypeVar("Result")
# Weight of the newest batch in the running mean of the time per row.
NEWEST = 0.2


@dataclass(eq=False)
class Job:
    """Rows or texts that are scored in one batch, and where their answer goes."""

    key: Hashable  # only jobs with the same key can share a pass
    items: Any
    answer: asyncio.Future[Any] = field(repr=False)
    quick: bool = False  # needs no encoder

    def __len__(self) -> int:
        return len(self.items)


class Batcher:
    """One queue and one scoring thread, for one model."""

    def __init__(
        self,
        name: str,
        work: Callable[[Sequence[Job]], list[Any]],
        settings: Settings,
        metrics: Metrics,
        at_work: set[Future[Any]] | None = None,
    ) -> None:
        self._work, self._settings, self._metrics, self.name = work, settings, metrics, name
        self._jobs: deque[Job] = deque()
        self._rows = 0
        self._seconds_per_row = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"outscope-{name}")
        self._task: asyncio.Task[None] | None = None
        # What scoring threads, of this and other models, are doing or have to do.
        self._at_work = set() if at_work is None else at_work
        self.arriving = 0  # requests that are being read and will ask for a batch

    # ---- for requests

    def full(self, rows: int = 1) -> bool:
        """Whether so many more rows would have to wait too long."""
        too_many = self._rows + rows > self._settings.queue
        return bool(self._rows) and (too_many or self._wait() > self._settings.wait)

    def _wait(self) -> float:
        return self._rows * self._seconds_per_row

    def admit(self, rows: int) -> None:
        """Refuse what would have to wait too long, before any work is done."""
        if self.full(rows):
            self._metrics.refused.labels(self.name).inc()
            raise busy(max(1, math.ceil(self._wait() / 2)), f"{self._rows:,} rows are waiting")

    async def submit(self, key: Hashable, items: Any, *, quick: bool = False) -> list[Any]:
        """What the work says about each part of the items, in their order.

        Large requests come in parts, so that small ones get their turn between.
        """
        size = self._settings.batch
        loop = asyncio.get_running_loop()
        jobs = [
            Job(key, items[start : start + size], loop.create_future(), quick)
            for start in range(0, len(items), size)
        ]
        self._start(loop)
        self._jobs.extend(jobs)
        self._count(len(items))
        try:
            async with asyncio.timeout(self._settings.timeout):
                return [await job.answer for job in jobs]
        except TimeoutError:
            raise Problem(
                503,
                "timeout",
                f"not scored within {self._settings.timeout:g} s; send fewer at once",
                headers={"Retry-After": "1"},
            ) from None
        finally:
            self._give_up(jobs)

    def _give_up(self, jobs: list[Job]) -> None:
        """Take jobs that nobody waits for out of the queue, and see to their errors."""
        for job in jobs:
            if not job.answer.done():
                job.answer.cancel()
            elif not job.answer.cancelled():
                job.answer.exception()

    async def alone(self, function: Callable[[], Result]) -> Result:
        """Run something between two batches, so that nothing is scored meanwhile."""
        return await self._in_thread(function)

    def _in_thread(self, function: Callable[..., Result], *given: Any) -> asyncio.Future[Result]:
        # It goes on in the thread even if nobody waits for it any more.
        running = self._thread.submit(function, *given)
        self._at_work.add(running)
        running.add_done_callback(self._at_work.discard)
        return asyncio.wrap_future(running)

    async def close(self) -> None:
        """Finish what was accepted, then stop."""
        if self._task is not None and self._task.get_loop() is asyncio.get_running_loop():
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self._thread.shutdown)

    # ---- the scorer

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the scorer, unless it is at work. It stops when nothing waits."""
        if self._task is not None and not self._task.done() and self._task.get_loop() is loop:
            return
        self._jobs.clear()  # of a loop that has ended, whose callers are gone
        self._count(-self._rows)
        self._task = loop.create_task(self._serve(), name=f"batches of {self.name}")

    def _count(self, rows: int) -> None:
        self._rows += rows
        self._metrics.queue.labels(self.name).set(self._rows)

    async def _serve(self) -> None:
        await asyncio.sleep(0)
        while self._jobs:
            start = time.perf_counter()
            await self._gather()
            batch = self._take()
            if batch:
                await self._score(batch)
                self._learn(time.perf_counter() - start, sum(map(len, batch)))

    def _learn(self, seconds: float, rows: int) -> None:
        """Remember how long a row takes, with the time that gathering and a busy loop add."""
        newest = NEWEST if self._seconds_per_row else 1.0
        self._seconds_per_row += newest * (seconds / rows - self._seconds_per_row)

    async def _gather(self) -> None:
        """Wait for requests that are just being read, within the latency budget."""
        end = time.monotonic() + self._settings.latency / 1000
        await asyncio.sleep(0)
        while self.arriving and self._rows < self._settings.batch and time.monotonic() < end:
            await asyncio.sleep(0.0005)

    def _take(self) -> list[Job]:
        batch: list[Job] = []
        rows = 0
        while self._jobs and (not batch or rows + len(self._jobs[0]) <= self._settings.batch):
            job = self._jobs.popleft()
            if job.answer.cancelled():
                self._count(-len(job))
            else:
                batch.append(job)
                rows += len(job)
        return batch

    def _at_once(self, batch: list[Job], rows: int) -> bool:
        """Whether to score right here: for a short time, that is cheaper than waking a thread.

        It holds up the other requests, but no longer than they may have to wait for a batch. Not
        beside other work: that must not see a change half done, and has the cores.
        """
        seconds = rows * self._seconds_per_row
        idle = not self._at_work and all(job.quick for job in batch)
        return idle and 0 < 1000 * seconds <= self._settings.latency

    async def _score(self, batch: list[Job]) -> None:
        rows = sum(map(len, batch))
        start = time.perf_counter()
        try:
            if self._at_once(batch, rows):
                answers = self._work(batch)
            else:
                answers = await self._in_thread(self._work, batch)
        except Exception as error:
            answers = [error] * len(batch)
        seconds = time.perf_counter() - start
        self._metrics.batch_size.labels(self.name).observe(rows)
        self._metrics.batch_seconds.labels(self.name).observe(seconds)
        self._count(-rows)
        for job, answer in zip(batch, answers, strict=True):
            if job.answer.done():
                continue
            if isinstance(answer, Exception):
                job.answer.set_exception(answer)
            else:
                job.answer.set_result(answer)

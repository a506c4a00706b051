"""Work on the parts of a source by the workers of a Dask cluster, results in the order of parts.

A worker that dies costs time, never a result: whatever a task needs is itself the result of a
task, or comes with it, so that the scheduler can run it again elsewhere.
"""

from __future__ import annotations

import operator
import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from outscope._types import IntArray, Matrix
from outscope.errors import InputError, MissingExtraError, OutscopeError, require
from outscope.io.dask_tables import Convert, DaskSource, block, of_collection
from outscope.io.parts import Part, Source

# Tasks submitted for each thread of the workers: one runs, others wait so that none is idle.
AHEAD = 3
# A task that fails for what may pass, such as a slow disk, is tried again this often.
RETRIES = 2
# How long to wait for workers when there is none, looking every so often.
WAIT_SECONDS, LOOK_SECONDS = 120.0, 5.0
# Dask drops a worker that is not there 15 s after it died, even one that is just starting again.
KEEP_WORKERS = {"distributed.deploy.lost-worker-timeout": "1h"}
AGAIN = "start again (a fit resumes from its checkpoint)"
# The whole package is above this module, and there before it.
VERSION: str = sys.modules["outscope"].__version__

Work = Callable[[Source, int, Any], Any]


class ClusterSource(Source):
    """A source whose parts are read, and worked on, by the workers of a cluster."""

    def __init__(self, source: Source, client: Any) -> None:
        self.source, self._client = source, client
        self.width, self.parts = source.width, source.parts

    def each(
        self,
        work: Work,
        parts: Sequence[int] | None = None,
        told: Callable[[int], Any] = lambda part: None,
    ) -> Iterator[Any]:
        """`work(source, number, told(part))` for all parts, or for some, run by the workers.

        There, a part has this number in this source, which may have no other.
        """
        job = self._given(work)
        partitions: dict[int, Any] = {}
        waiting: deque[tuple[int, Any]] = deque()
        for part in range(len(self.parts)) if parts is None else parts:
            held = self._held(part, partitions)
            where = tuple(self.parts[part])
            waiting.append((part, self._submit(operator.call, job, part, where, held, told(part))))
            del held
            if len(waiting) >= AHEAD * max(2, self._threads()):
                yield self._result(*waiting.popleft())
        while waiting:
            yield self._result(*waiting.popleft())

    def read(self, part: int) -> Matrix:
        """The rows of one part, read by a worker."""
        rows: Matrix = next(self.each(_read, [part]))
        return rows

    def take(self, chosen: IntArray) -> Matrix:
        """Some rows, by rising index; each worker sends those of its parts."""
        edges = np.cumsum([0, *(part.rows for part in self.parts)])
        cuts = np.searchsorted(chosen, edges)
        wanted = [part for part in range(len(self.parts)) if cuts[part] < cuts[part + 1]]

        def within(part: int) -> IntArray:
            return chosen[cuts[part] : cuts[part + 1]] - edges[part]

        found = list(self.each(_take, wanted, within))
        return np.concatenate(found) if found else np.empty((0, self.width), np.float32)

    def place(self, part: int, row: int) -> str:
        """Where a row of a part is, for messages."""
        return self.source.place(part, row)

    def fingerprint(self) -> str:
        """That of the source: where the work is done changes nothing."""
        return self.source.fingerprint()

    def _given(self, work: Work) -> Any:
        """What all tasks share, as the result of a task: a scattered value dies with its workers.

        It travels as bytes, which the scheduler need not understand.
        """
        source = self.source
        convert = source.convert if isinstance(source, DaskSource) else _as_read
        own = isinstance(source, DaskSource) or source.in_memory
        job = _Job(work, None if own else source, convert, self.width, VERSION)
        try:
            sent = require("cloudpickle", extra="dask").dumps(job)
        except Exception as error:  # whatever a user's function holds on to
            raise InputError(
                f"{self.parts[0].name} cannot be sent to the workers ({error}); write its rows to "
                "files that every worker can read"
            ) from error
        # Dask warns of large arguments since each task would carry them; this is sent once.
        with require("dask", extra="dask").config.set(
            {"distributed.admin.large-graph-warning-threshold": "1TB"}
        ):
            return self._submit(pickle.loads, sent)

    def _submit(self, function: Callable[..., Any], *given: Any) -> Any:
        return self._client.submit(function, *given, pure=False, retries=RETRIES)

    def _held(self, part: int, partitions: dict[int, Any]) -> Any:
        """The rows of a part that a task cannot read by itself."""
        if isinstance(self.source, DaskSource):
            home, partition = self.source.partition(part)
            if home not in partitions:  # parts of one partition come one after the other
                partitions.clear()
                partitions[home] = self._client.compute(partition, retries=RETRIES)
            return partitions[home]
        return self.source.read(part) if self.source.in_memory else None

    def _result(self, part: int, future: Any) -> Any:
        distributed = require("distributed", extra="dask")
        self._wait(future)
        try:
            found = future.result()
        except distributed.KilledWorker as error:
            raise OutscopeError(
                f"{self.place(part, 0)}: several workers died while they had this block, most "
                "likely for lack of memory; give workers more of it, or smaller partitions"
            ) from error
        except MissingExtraError:
            raise
        except ImportError as error:
            raise InputError(
                f"a worker cannot import what it needs ({error}); install on all workers what this "
                "process has"
            ) from error
        except distributed.CancelledError as error:
            raise OutscopeError(
                f"the scheduler ended, or dropped the work on block {part + 1:,}; {AGAIN}"
            ) from error
        if isinstance(found, _Refusal):
            raise InputError(found.words)
        return found

    def _wait(self, future: Any) -> None:
        """Wait for a task, as long as there are workers or might be again."""
        wait, alone = require("distributed", extra="dask").wait, 0.0
        while not future.done():
            try:
                wait(future, timeout=LOOK_SECONDS)
            except TimeoutError:
                alone = 0.0 if self._threads() else alone + LOOK_SECONDS
            if alone > WAIT_SECONDS:
                raise OutscopeError(f"no worker is left, and none has come back; {AGAIN}")

    def _threads(self) -> int:
        try:
            return sum(self._client.nthreads().values())
        except OSError as error:
            raise OutscopeError(f"the scheduler does not answer ({error}); {AGAIN}") from error


@dataclass(frozen=True)
class _Refusal:
    """An `InputError` of a worker: it is an answer, which trying again would not change."""

    words: str


@dataclass(frozen=True)
class _Job:
    """What is done with every part; called on the workers."""

    work: Work
    source: Source | None  # None: each part comes with its rows
    convert: Convert
    width: int
    version: str

    def __call__(self, part: int, where: tuple[Any, ...], held: Any, told: Any) -> Any:
        if self.version != VERSION:  # a worker that came after the others were asked
            return _Refusal(_of_another_version("a worker", VERSION, self.version))
        try:
            if self.source is not None:
                return self.work(self.source, part, told)
            source = block(part, Part(*where), self.width, self.convert, held)
            return self.work(source, 0, told)
        except InputError as error:
            if isinstance(error.__cause__, OSError):
                raise InputError(f"{error} (every worker must see it under this name)") from error
            return _Refusal(str(error))


def _read(source: Source, part: int, _: Any) -> Matrix:
    return source.read(part)


def _take(source: Source, part: int, told: IntArray) -> Matrix:
    return source._take(part, told)


def _as_read(held: Any, _: slice) -> Matrix:
    """Rows of one part that were read by the client."""
    matrix: Matrix = held
    return matrix


def on_workers(X: Any, column: str | None) -> Source:
    """A Dask collection, worked on where it is if this process has a client."""
    client = active_client()
    if client is None:
        return of_collection(X, column)
    check_workers(client)
    return ClusterSource(of_collection(X, column), client)


def active_client() -> Any | None:
    """The client of this process, if it has one."""
    distributed: Any = sys.modules.get("distributed")
    if distributed is None:
        return None
    try:
        return distributed.Client.current()
    except ValueError:
        return None


def check_workers(client: Any) -> None:
    """Refuse a cluster without workers, or with one that has not this version of Outscope."""

    def version() -> str:  # a local function travels by its code, so that every worker can run it
        return str(__import__("outscope").__version__)

    try:
        client.wait_for_workers(1, timeout=WAIT_SECONDS)
    except TimeoutError as error:
        raise InputError(
            f"{client.scheduler.address} has had no worker for {WAIT_SECONDS:g} s; start some"
        ) from error
    for worker, found in sorted(client.run(version, on_error="return").items()):
        if isinstance(found, ImportError):
            raise InputError(
                f"worker {worker} cannot import outscope ({found}); run there: pip install "
                f"'outscope[dask]=={VERSION}'"
            )
        if isinstance(found, BaseException):
            raise InputError(f"worker {worker} does not answer: {found}")
        if found != VERSION:
            raise InputError(_of_another_version(f"worker {worker}", found, VERSION))


def _of_another_version(worker: str, theirs: str, ours: str) -> str:
    return (
        f"{worker} has outscope {theirs}, this process {ours}; run there: pip install "
        f"'outscope[dask]=={ours}'"
    )


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """A client of a cluster: "local" starts one with a worker for each core, until the end."""
    distributed = require("distributed", extra="dask")
    started = {"threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with require("dask", extra="dask").config.set(KEEP_WORKERS):
        try:
            client = distributed.Client(**(started if address == "local" else {"address": address}))
        except (OSError, ValueError) as error:
            raise InputError(
                f"no Dask scheduler answers at {address} ({error}); give its address, such as "
                "tcp://host:8786, or 'local' for workers on this machine"
            ) from error
        with client:
            yield client

"""The service measured from a second process, over loopback; records go to results/serve.jsonl.

python perf/serve.py vectors      throughput in batches of 256, against the library in process
python perf/serve.py single       latency of single texts and vectors at half load
python perf/serve.py soak         many requests with reloads and one restart, all answers checked
python perf/serve.py overload     four times what it can do, then rest
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
from records import keep

import outscope
from outscope import NNKDetector, TextDetector
from outscope.demo import corpus

WIDTH, ATOMS, BATCH = 384, 2000, 256
CLIENTS, RELOAD_SECONDS = 32, 5.0
OPEN, PATIENCE = 4000, 30.0
# So many callers fill the batches.
CALLERS = 256
BINARY, JSON = "application/octet-stream", "application/json"


# ---- what is served


def make_vectors(seed: int) -> tuple[NNKDetector, np.ndarray]:
    """A detector with 2,000 atoms, and fresh rows like those it learned from."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(150, WIDTH))
    rows = (
        centres[rng.integers(150, size=11_000)] + 0.8 * rng.normal(size=(11_000, WIDTH))
    ).astype(np.float32)
    detector = NNKDetector(n_atoms=ATOMS, random_state=seed).fit(rows[:8000])
    return detector.calibrate(rows[8000:9000], fpr=0.05), rows[9000:]


def make_texts() -> tuple[TextDetector, list[str]]:
    rows = [row for row in corpus("in_scope") if row["split"] != "test"]
    fresh = [row["text"] for row in corpus("in_scope") if row["split"] == "test"]
    fresh += [row["text"] for row in corpus("out_of_scope")]
    detector = TextDetector(contamination=0.05)
    return detector.fit([r["text"] for r in rows], [r["label"] for r in rows]), fresh


def encoder_of(detector: TextDetector) -> str:
    """Name and kind of the encoder."""
    return f"{detector.encoder}, {type(detector._checked_encoder()).__name__}"


# ---- a client that costs little


def request(body: bytes, kind: str, accept: str = "*/*", path: str = "/v1/score") -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nAccept: {accept}\r\n"
    )
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Client:
    """One connection that is kept, and opened again when it is closed."""

    def __init__(self, port: int) -> None:
        self.port, self.reader, self.writer = port, None, None

    async def ask(self, sent: bytes) -> tuple[int, bytes]:
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            self.writer.write(sent)
            head = await self.reader.readuntil(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            length = next(int(x[15:]) for x in lines if x.startswith(b"content-length:"))
            body = await self.reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            raise
        if b"connection: close" in lines:
            self.close()
        return int(lines[0].split()[1]), body

    def gone(self) -> bool:
        """Whether the service has closed the connection, as it does with idle ones."""
        return self.reader is not None and self.reader.at_eof()

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.writer = None


@contextlib.contextmanager
def served(folder: Path, port: int, *options: str):
    process = start(folder, port, *options)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def start(folder: Path, port: int, *options: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "outscope", "serve", f"m={folder}", "--port", str(port)]
    process = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)
    asyncio.run(until_ready(port))
    return process


async def until_ready(port: int) -> None:
    sent = b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
    while True:
        client = Client(port)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            if (await client.ask(sent))[0] == 200:
                client.close()
                return
        await asyncio.sleep(0.2)


def resident(pid: int) -> float:
    """Memory of a process, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(x for x in lines if x.startswith("VmRSS")).split()[1]) / 1024


def milliseconds(seconds: list[float]) -> dict[str, float]:
    p50, p99 = np.quantile(seconds, (0.5, 0.99))
    return {"p50_ms": round(float(1000 * p50), 2), "p99_ms": round(float(1000 * p99), 2)}


def load() -> float:
    return round(os.getloadavg()[0], 1)


# ---- the measurements


def vectors(port: int, folder: Path) -> None:
    detector, rows = make_vectors(0)
    detector.save(folder)
    parts = [rows[i : i + BATCH] for i in range(0, 2000 - BATCH, BATCH)]
    bodies = {
        "binary both ways": [request(part.tobytes(), BINARY, BINARY) for part in parts],
        "binary": [request(part.tobytes(), BINARY) for part in parts],
        "json": [request(json.dumps({"vectors": part.tolist()}).encode(), JSON) for part in parts],
    }
    detector = outscope.load(folder)

    def in_process(seconds: float) -> float:
        start, done = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            detector.predict(parts[done % len(parts)])
            done += 1
        return done * BATCH / (time.perf_counter() - start)

    async def over_http(kind: str, clients: int, seconds: float) -> float:
        async def one() -> int:
            client, done, end = Client(port), 0, time.perf_counter() + seconds
            while time.perf_counter() < end:
                status, _ = await client.ask(bodies[kind][done % len(parts)])
                assert status == 200
                done += 1
            client.close()
            return done

        start = time.perf_counter()
        done = sum(await asyncio.gather(*(one() for _ in range(clients))))
        return done * BATCH / (time.perf_counter() - start)

    with served(folder, port):
        in_process(2.0)
        both = [("binary both ways", clients) for clients in (1, 2, 3, 4)]
        for kind, clients in (*both, ("binary", 2), ("binary", 4), ("json", 4)):
            # In turns, because the machine may be busy with other things.
            inside, over = [], []
            for _ in range(5):
                inside.append(in_process(2.0))
                over.append(asyncio.run(over_http(kind, clients, 2.0)))
            ratio = float(np.median(np.array(over) / np.array(inside)))
            found = {
                "measure": "vectors",
                "body": kind,
                "clients": clients,
                "in_process_rows_s": round(float(np.median(inside))),
                "served_rows_s": round(float(np.median(over))),
                "ratio": round(ratio, 3),
                "load": load(),
            }
            print(found)
            keep("serve", **found)


def single(port: int, folder: Path) -> None:
    for kind in ("text", "vector"):
        own = folder / kind
        if kind == "text":
            detector, fresh = make_texts()
            detector.save(own)
            detector = outscope.load(own)
            detector.cache = False
            items = [[text] for text in fresh]
            sent = [request(json.dumps({"texts": text}).encode(), JSON) for text in fresh]
        else:
            detector, rows = make_vectors(0)
            detector.save(own)
            items = [row[None] for row in rows]
            sent = [request(row.tobytes(), BINARY) for row in rows]
        inside = []
        with served(own, port):
            for i in range(250):
                start = time.perf_counter()
                detector.predict(items[i % len(items)])
                inside.append(time.perf_counter() - start)
            alone, _ = asyncio.run(paced(port, sent, 0.0, 250))
            gap = 2.0 * float(np.mean(alone))
            half, _ = asyncio.run(paced(port, sent, gap, 600))
            found = {
                "measure": "single",
                "what": kind if kind == "vector" else f"text ({encoder_of(detector)})",
                "in_process_p50_ms": milliseconds(inside[50:])["p50_ms"],
                "alone": milliseconds(alone[50:]),
                "half_load": milliseconds(half[50:]),
                "overhead_p50_ms": round(
                    1000 * float(np.median(alone[50:]) - np.median(inside[50:])), 2
                ),
                "p99_over_p50": round(
                    float(np.quantile(half[50:], 0.99) / np.median(half[50:])), 2
                ),
                "load": load(),
            }
        print(found)
        keep("serve", **found)


async def paced(
    port: int, sent: list[bytes], gap: float, n: int, statuses: Counter | None = None
) -> tuple[list[float], list[float]]:
    """Times of n requests that come `gap` seconds apart on average, at random; 0: one by one.

    At most OPEN are under way: more connections than that would measure the sockets of the
    machine. What comes on top is counted as "not sent", what is not answered as "no answer".
    """
    rng, idle, taken, at = np.random.default_rng(0), [], [], []
    counts = Counter() if statuses is None else statuses
    under_way: set[asyncio.Task] = set()

    async def one(body: bytes) -> None:
        client = idle.pop() if idle else Client(port)
        if client.gone():
            client.close()
        start = time.perf_counter()
        try:
            async with asyncio.timeout(PATIENCE):
                status, _ = await client.ask(body)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            client.close()
            counts[f"no answer: {type(error).__name__}"] += 1
            return
        counts[status] += 1
        if status == 200:
            taken.append(time.perf_counter() - start)
            at.append(start)
        idle.append(client)

    due = time.perf_counter()
    for i in range(n):
        if gap == 0.0:
            await one(sent[i % len(sent)])
            continue
        due += rng.exponential(gap)
        # Also when late, so that answers are read.
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        if len(under_way) >= OPEN:
            counts["not sent"] += 1
            continue
        task = asyncio.create_task(one(sent[i % len(sent)]))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    await asyncio.gather(*under_way)
    for client in idle:
        client.close()
    return taken, at


class Soak:
    """Clients that check every answer while the model changes and the service is restarted."""

    def __init__(self, port: int, folder: Path, n: int) -> None:
        self.port, self.folder, self.n = port, folder, n
        made = [make_vectors(seed) for seed in (0, 1)]
        self.models, rows = [model for model, _ in made], made[0][1]
        self.expected = [model.ood_score(rows).tolist() for model in self.models]
        self.sent = [request(row.tobytes(), BINARY) for row in rows]
        self.which: dict[str, int] = {}  # version → which of the models
        self.next = self.answered = 0
        self.counts: Counter = Counter()
        self.failed: list[tuple[int, int, bytes]] = []
        self.seen: list[tuple[int, str, float]] = []
        self.memory: list[tuple[int, float]] = []
        self.exit: int | None = None

    def save(self, turn: int) -> None:
        self.models[turn % 2].save(self.folder)
        manifest = json.loads((self.folder / "manifest.json").read_text())
        self.which[manifest["checksum"][:12]] = turn % 2

    async def client(self) -> None:
        client = Client(self.port)
        while self.next < self.n:
            i = self.next % len(self.sent)
            self.next += 1
            status, body = await self.until_answered(client, self.sent[i])
            self.answered += 1
            if status == 200:
                told = json.loads(body)
                self.seen.append((i, told["version"], told["results"][0]["ood_score"]))
            else:
                self.failed.append((i, status, body[:200]))
        client.close()

    async def until_answered(self, client: Client, sent: bytes) -> tuple[int, bytes]:
        while True:
            try:
                status, body = await client.ask(sent)
            except (OSError, asyncio.IncompleteReadError):
                self.counts["retried"] += 1
                await asyncio.sleep(0.05)
                continue
            if status != 429:
                return status, body
            self.counts["busy"] += 1
            await asyncio.sleep(0.2)

    async def reloads(self) -> None:
        for turn in range(1, 10_000):
            await asyncio.sleep(RELOAD_SECONDS)
            await asyncio.to_thread(self.save, turn)

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            with contextlib.suppress(OSError, StopIteration):
                self.memory.append((self.answered, resident(self.process.pid)))

    async def restart(self) -> None:
        while self.answered < 0.3 * self.n:
            await asyncio.sleep(0.1)
        self.process.send_signal(signal.SIGTERM)
        self.exit = await asyncio.to_thread(self.process.wait)
        self.process = await asyncio.to_thread(start, self.folder, self.port)
        self.memory.clear()

    async def run(self) -> None:
        beside = [asyncio.create_task(x()) for x in (self.reloads, self.restart, self.watch)]
        await asyncio.gather(*(self.client() for _ in range(CLIENTS)))
        for task in beside:
            task.cancel()

    def record(self) -> dict:
        self.save(0)
        self.process = start(self.folder, self.port)
        begin = time.perf_counter()
        try:
            asyncio.run(self.run())
        finally:
            self.process.terminate()
            self.process.wait()
        wrong = [x for x in self.seen if self.expected[self.which[x[1]]][x[0]] != x[2]]
        warm = [mb for done, mb in self.memory if done >= 0.5 * self.n] or [0.0]
        third = max(1, len(warm) // 3)
        first, last = float(np.mean(warm[:third])), float(np.mean(warm[-third:]))
        return {
            "measure": "soak",
            "requests": self.n,
            "wrong": len(wrong) + len(self.failed),
            "lost": self.n - self.answered,
            "versions": len({version for _, version, _ in self.seen}),
            "connections_retried": self.counts["retried"],
            "busy": self.counts["busy"],
            "exit_code": self.exit,
            "seconds": round(time.perf_counter() - begin),
            "memory_mb": [round(first), round(last), round(max(warm))],
            "growth": round(last / first - 1, 4) if first else None,
            "failed": [list(map(str, one)) for one in self.failed[:3]],
            "load": load(),
        }


def soak(port: int, folder: Path, n: int) -> None:
    found = Soak(port, folder, n).record()
    print(found)
    keep("serve", **found)


def overload(port: int, folder: Path, seconds: float) -> None:
    detector, fresh = make_texts()
    detector.save(folder)
    sent = [request(json.dumps({"texts": text}).encode(), JSON) for text in fresh]

    async def saturated(span: float) -> float:
        async def one(k: int) -> int:
            client, done, end = Client(port), 0, time.perf_counter() + span
            while time.perf_counter() < end:
                await client.ask(sent[(k + done) % len(sent)])
                done += 1
            client.close()
            return done

        return sum(await asyncio.gather(*(one(k) for k in range(CALLERS)))) / span

    with served(folder, port, "--wait", "2") as process:
        asyncio.run(saturated(3.0))
        # Right before, because the machine may be busy with other things.
        capacity = asyncio.run(saturated(10.0))
        rested, _ = asyncio.run(paced(port, sent, 0.0, 60))
        rest = resident(process.pid)
        statuses: Counter = Counter()
        memory: list[float] = []

        async def overloaded() -> tuple[list[float], list[float]]:
            async def watch() -> None:
                while True:
                    await asyncio.sleep(1.0)
                    memory.append(resident(process.pid))

            watching = asyncio.create_task(watch())
            n = int(4 * capacity * seconds)
            found = await paced(port, sent, 1 / (4 * capacity), n, statuses)
            watching.cancel()
            return found

        begin = time.perf_counter()
        taken, _ = asyncio.run(overloaded())
        span = time.perf_counter() - begin
        asked = (sum(statuses.values()) - statuses["not sent"]) / span
        tenth = len(memory) // 10
        warm, last = float(np.mean(memory[tenth : 2 * tenth])), float(np.mean(memory[-tenth:]))
        recovered, _ = asyncio.run(paced(port, sent, 0.0, 60))
        found = {
            "measure": "overload",
            "encoder": encoder_of(detector),
            "capacity_s": round(capacity),
            "asked_s": round(asked),
            "seconds": round(span),
            "statuses": {str(k): v for k, v in statuses.items()},
            "accepted": milliseconds(taken),
            "rested": milliseconds(rested),
            "recovered": milliseconds(recovered),
            "times_capacity": round(asked / capacity, 2),
            "memory_mb": [round(rest), round(warm), round(last), round(resident(process.pid))],
            "growth": round(last / warm - 1, 4),
            "load": load(),
        }
        print(found)
        keep("serve", **found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measure", choices=("vectors", "single", "soak", "overload"))
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there) / "model"
        if options.measure == "single":
            folder.mkdir()
        match options.measure:
            case "vectors":
                vectors(options.port, folder)
            case "single":
                single(options.port, folder)
            case "soak":
                soak(options.port, folder, options.requests)
            case "overload":
                overload(options.port, folder, options.seconds)


if __name__ == "__main__":
    main()

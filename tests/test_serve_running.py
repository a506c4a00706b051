"""`outscope serve` as a process: started, asked, changed, stopped; and what it refuses to start."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest
import uvicorn
from serving import vector_detector

from outscope.cli import main
from outscope.engine.kernels.parallel import available_cores
from outscope.serve import create_app
from outscope.serve.batching import Batcher
from outscope.serve.keys import Keys, hash_key, read_keys
from outscope.serve.metrics import Metrics
from outscope.serve.protocol import Protocol
from outscope.serve.running import VARIABLE, Service, serve
from outscope.serve.settings import Settings


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def test_what_was_accepted_is_finished_and_the_log_is_json(tmp_path):
    detector, fresh = vector_detector()
    detector.save(tmp_path / "model")
    port, log = free_port(), tmp_path / "log"
    command = [sys.executable, "-m", "outscope", "serve", str(tmp_path / "model")]
    environment = {**os.environ, "OUTSCOPE_API_KEYS": "a-key-of-twenty-characters"}
    with log.open("w") as out:
        process = subprocess.Popen([*command, "--port", str(port)], stderr=out, env=environment)
    url, statuses = f"http://127.0.0.1:{port}", []
    try:
        for _ in range(600):
            try:
                if httpx.get(f"{url}/health/ready").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
        body = {"vectors": fresh.tolist() * 20}
        headers = {"x-api-key": "a-key-of-twenty-characters"}

        def ask():
            statuses.append(httpx.post(f"{url}/v1/score", json=body, headers=headers, timeout=60))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for one in threads:
            one.start()
        while "arrived" not in statuses and process.poll() is None:
            queued = httpx.get(f"{url}/metrics", headers=headers, timeout=60).text
            if 'outscope_queue_rows{model="model"} 0.0' not in queued or len(statuses) == 4:
                break
        process.send_signal(signal.SIGTERM)
        for one in threads:
            one.join(60)
        assert process.wait(60) in (0, -signal.SIGTERM)
    finally:
        process.kill()
    assert [answer.status_code for answer in statuses] == [200] * 4
    expected = detector.ood_score(fresh).tolist() * 20
    assert [r["ood_score"] for r in statuses[0].json()["results"]] == expected
    told, *lines = log.read_text().splitlines()
    assert "/docs" in told
    assert any(json.loads(line).get("items") == 2000 for line in lines)
    assert "a-key-of-twenty" not in log.read_text()


def test_answers_are_sent_at_once_on_a_socket_that_workers_share():
    detector, fresh = vector_detector()
    with socket.socket() as shared:  # as uvicorn makes it: without a protocol number
        shared.bind(("127.0.0.1", 0))
        # uvloop sets the option by itself; asyncio only on sockets of its own.
        config = uvicorn.Config(
            create_app(detector), loop="asyncio", http=Protocol, ws="none", log_config=None
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([shared],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        with httpx.Client(base_url=f"http://127.0.0.1:{shared.getsockname()[1]}") as client:
            assert client.post("/v1/score", json={"vectors": fresh[0].tolist()}).is_success
            [connection] = server.server_state.connections
            accepted = connection.transport.get_extra_info("socket")
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        server.should_exit = True
        thread.join(10)


def test_workers_share_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr("uvicorn.run", lambda *_, **__: seen.append(available_cores()))
    monkeypatch.setattr("outscope.engine.kernels.parallel._cores", lambda: 8)
    seen = []
    for workers, given, wanted in (
        (1, None, 8),
        (2, None, 4),
        (16, None, 1),
        (2, "3", 3),
        (2, "", 4),
    ):
        monkeypatch.setenv("OMP_NUM_THREADS", given or "")
        if given is None:
            monkeypatch.delenv("OMP_NUM_THREADS")
        monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
        monkeypatch.setenv(VARIABLE, "")
        serve(Service({}, Settings()), host="localhost", port=0, workers=workers, grace=1)
        assert seen.pop() == wanted


def test_what_is_quick_is_scored_at_once_but_never_during_a_change():
    seen, metrics = [], Metrics()

    def work(batch):
        seen.append(threading.current_thread().name.split("_")[0])
        return [list(job.items) for job in batch]

    async def ask():
        batcher = Batcher("m", work, Settings(), metrics)
        assert await batcher.submit("a key", [1, 2]) == [[1, 2]]  # how long it takes is not known
        batcher._seconds_per_row = 1e-6
        assert await batcher.submit("a key", [3], quick=True) == [[3]]
        assert await batcher.submit("a key", [4]) == [[4]]  # needs an encoder
        batcher._seconds_per_row = 1.0
        assert await batcher.submit("a key", [5], quick=True) == [[5]]  # would take too long
        batcher._seconds_per_row = 1e-6
        change = asyncio.create_task(batcher.alone(lambda: time.sleep(0.2) or seen.append("done")))
        await asyncio.sleep(0.05)
        assert await batcher.submit("a key", [6], quick=True) == [[6]]
        await change
        batcher._seconds_per_row = 1e-6
        assert await batcher.submit("a key", [7], quick=True) == [[7]]
        await batcher.close()

    asyncio.run(ask())
    thread = "outscope-m"
    assert seen == [thread, "MainThread", thread, thread, "done", thread, "MainThread"]


def test_nothing_is_scored_at_once_while_another_model_has_the_cores():
    seen, at_work = [], set()

    def work(batch):
        seen.append(threading.current_thread() is threading.main_thread())
        return [list(job.items) for job in batch]

    async def ask():
        one, other = (Batcher(name, work, Settings(), Metrics(), at_work) for name in "ab")
        one._seconds_per_row = 1e-6
        busy = asyncio.create_task(other.alone(lambda: time.sleep(0.2)))
        await asyncio.sleep(0.05)
        await one.submit("a key", [1], quick=True)
        await busy
        one._seconds_per_row = 1e-6
        await one.submit("a key", [2], quick=True)
        await asyncio.gather(one.close(), other.close())

    asyncio.run(ask())
    assert seen == [False, True]


def test_a_change_that_nobody_waits_for_any_more_still_keeps_others_from_scoring():
    seen, begun, go_on = [], threading.Event(), threading.Event()

    def work(batch):
        seen.append("scored")
        return [list(job.items) for job in batch]

    def change():
        begun.set()
        go_on.wait(10)
        seen.append("changed")

    async def ask():
        batcher = Batcher("m", work, Settings(), Metrics())
        batcher._seconds_per_row = 1e-6
        waiting = asyncio.create_task(batcher.alone(change))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        waiting.cancel()
        asked = asyncio.create_task(batcher.submit("a key", [1], quick=True))
        await asyncio.sleep(0.05)
        go_on.set()
        assert await asked == [[1]]
        await batcher.close()

    asyncio.run(ask())
    assert seen == ["changed", "scored"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "--demo"),
        (["nowhere"], "does not exist"),
        (["--demo", "--workers", "2"], "--workers"),
        (["--demo", "--port", "99999"], "--port"),
        (["--demo", "--latency", "-1"], "--latency"),
        (["--demo", "--keys", "nowhere"], "nowhere"),
        (["a b=x"], "NAME=FOLDER"),
        (["--new-key", "x"], "--keys"),
    ],
)
def test_what_cannot_be_started_is_told_in_a_line(arguments, told, capsys, monkeypatch):
    monkeypatch.setattr("outscope.serve.running.serve", lambda *args, **options: None)
    assert main(["serve", *arguments]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert len(said.splitlines()) == 1


def test_a_port_in_use_is_told_before_the_address_is_shown(tmp_path, capsys):
    detector, _ = vector_detector()
    detector.save(tmp_path / "model")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["serve", str(tmp_path / "model"), "--port", port]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"--port {port}" in told
    assert "http://" not in told


def test_keys_are_kept_as_hashes(tmp_path, capsys):
    file = tmp_path / "keys"
    assert main(["serve", "--new-key", "alice", "--keys", str(file)]) == 0
    user = capsys.readouterr().out.strip()
    assert main(["serve", "--new-key", "boss", "--admin", "--keys", str(file)]) == 0
    admin = capsys.readouterr().out.strip()
    assert file.stat().st_mode & 0o777 == 0o600
    assert user not in file.read_text()
    keys = read_keys(file, {"OUTSCOPE_ADMIN_KEY": "one-from-the-environment"})
    assert keys.user(user) == "alice"
    assert keys.admin(user) is None
    assert keys.user(admin) == keys.admin(admin) == "boss"
    assert keys.admin("one-from-the-environment") == "admin"
    assert keys == Keys(keys.users, {**keys.admins, hash_key(admin): "boss"})
    assert main(["serve", "--new-key", "a b", "--keys", str(file)]) == 2
    file.write_text("alice not-a-hash\n")
    assert main(["serve", "x", "--keys", str(file)]) == 2

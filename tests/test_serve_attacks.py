"""A real server under attack: right statuses, no trace outside, and it goes on."""

from __future__ import annotations

import contextlib
import json
import socket
import time

import httpx
import pytest
from serving import ADMIN, USER, running, text_detector, vector_detector

from outscope.serve import Settings
from outscope.serve.keys import Keys, hash_key

SETTINGS = Settings(
    items=1000, text_length=10_000, body_bytes=1 << 20, reading=1.0, hosts=("localhost",)
)
KEYS = Keys({hash_key(USER): "u"}, {hash_key(ADMIN): "a"})
GOOD = {"texts": "unlock bike"}
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def port():
    models = {"texts": text_detector(), "rows": vector_detector()[0]}
    with running(models, settings=SETTINGS, keys=KEYS) as port:
        yield port


@pytest.fixture(autouse=True)
def goes_on(port):
    """After every attack a good request is answered."""
    yield
    assert call(port, GOOD).status_code == 200


def call(port, body=None, *, path="/v1/score", key=USER, **options):
    headers = {"x-api-key": key} if key else {}
    headers |= options.pop("headers", {})
    if body is not None:
        options["json"] = body
    return httpx.post(f"http://localhost:{port}{path}", headers=headers, timeout=20, **options)


def raw(port, sent, *, wait=5.0):
    """What comes back on a bare connection until it is closed or silent."""
    with socket.create_connection(("localhost", port), timeout=wait) as there:
        there.sendall(sent)
        found = b""
        try:
            while part := there.recv(65536):
                found += part
        except (TimeoutError, ConnectionResetError):
            pass
        return found


def is_problem(answer, status):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    told = answer.json()
    assert told["status"] == status
    assert told["request_id"] == answer.headers["x-request-id"]
    assert "Traceback" not in answer.text
    assert "/src/" not in answer.text
    assert ".py" not in answer.text
    return told


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"{", 400),
        (b"", 400),
        (b"\xff\xfe", 400),
        (b"[" * 100_000, 400),
        (b"[]", 422),
        (b"null", 422),
        (b'{"texts": NaN}', 422),
        (b'{"texts": "a", "texts": {}}', 422),
        (b'{"texts": "\\ud800"}', 400),
        (b'{"model": "rows", "vectors": [NaN, 1, 1, 1, 1, 1, 1, 1]}', 422),
        (b'{"model": "rows", "vectors": [1e999, 1, 1, 1, 1, 1, 1, 1]}', 422),
        (b'{"model": "rows", "vectors": [1e300, 1, 1, 1, 1, 1, 1, 1]}', 422),
        (b'{"model": "rows", "vectors": [1, 2, 3]}', 422),
        (b'{"model": "rows", "vectors": [[1, 2], [3]]}', 422),
        (b'{"model": "rows", "vectors": []}', 422),
        (b'{"texts": []}', 422),
        (b'{"texts": "a", "fpr": 0}', 422),
        (b'{"texts": "a", "surprise": 1}', 422),
        (b'{"texts": "a", "vectors": [1]}', 422),
        (b'{"texts": "a", "model": "../../etc/passwd"}', 404),
        (b'{"messages": [{"role": "assistant", "content": "a"}]}', 422),
    ],
)
def test_bodies_that_are_wrong(port, content, status):
    is_problem(call(port, content=content, headers={"content-type": "application/json"}), status)


def test_rows_that_are_wrong(port):
    import numpy as np

    def binary(content):
        headers = {"content-type": "application/octet-stream"}
        return call(port, path="/v1/score?model=rows", content=content, headers=headers)

    nan = np.full((2, 8), np.nan, np.float32).tobytes()
    for content in (nan, b"\x93NUMPY", b"\x93NUMPY\x01\x00\xff\xff" + b"{" * 500, b"123"):
        is_problem(binary(content), 422)
    # A pickle in an .npy file is not opened.
    import io

    file = io.BytesIO()
    np.save(file, np.array([print], dtype=object), allow_pickle=True)
    is_problem(binary(file.getvalue()), 422)


def test_what_is_too_large(port):
    is_problem(call(port, {"texts": ["a"] * 1001}), 413)
    is_problem(call(port, {"texts": "a" * 10_001}), 413)
    declared = raw(
        port,
        b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 104857600\r\n\r\n",
    )
    assert declared.startswith(b"HTTP/1.1 413")
    sent = 0

    def chunks():
        nonlocal sent
        for _ in range(1600):
            sent += 1 << 16
            yield b"x" * (1 << 16)

    try:  # 100 MB without saying so
        answer = call(port, content=chunks(), headers={"content-type": "application/json"})
        assert answer.status_code == 413
    except httpx.TransportError:
        pass  # closed while we were still sending
    assert sent < 20 << 20


def test_slow_and_silent_connections_are_closed(port, monkeypatch):
    head = (
        f"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {USER}\r\n"
        "Content-Type: application/json\r\nContent-Length: 50\r\n\r\n"
    ).encode()
    start = time.monotonic()
    assert raw(port, head + b'{"texts"').startswith(b"HTTP/1.1 408")
    assert time.monotonic() - start < 4
    monkeypatch.setattr("outscope.serve.protocol.HEAD_SECONDS", 0.5)
    for beginning in (b"", b"POST /v1/sc", b"GET / HTTP/1.1\r\nHost: local"):
        start = time.monotonic()
        assert raw(port, beginning) == b""
        assert time.monotonic() - start < 4
    # A second request on a connection that is kept has no longer time than the first.
    start = time.monotonic()
    again = raw(port, b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea")
    assert time.monotonic() - start < 4
    assert again.count(b"HTTP/1.1 200") == 1
    held = [socket.create_connection(("localhost", port)) for _ in range(100)]
    assert call(port, GOOD).status_code == 200
    for one in held:
        one.close()


@pytest.mark.parametrize(
    "path",
    [
        "/../../../../etc/passwd", "/..%2f..%2fetc/passwd", "/%2e%2e/%2e%2e/app.py", "/static/../app.py",
        "//etc/passwd", "/index.html/../../app.py", "/..\\..\\app.py", "/%00", "/v1/models/..%2fx",
    ],
)  # fmt: skip
def test_paths_lead_nowhere(port, path):
    sent = (
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {USER}\r\nConnection: close\r\n\r\n"
    )
    found = raw(port, sent.encode())
    assert found.split()[1] in (b"400", b"404", b"405"), found[:200]
    assert b"root:" not in found
    assert b"def create_app" not in found


def test_keys(port):
    assert is_problem(call(port, GOOD, key=None), 401)["type"].endswith("no-key")
    assert is_problem(call(port, GOOD, key=USER + "x"), 401)["type"].endswith("wrong-key")
    assert is_problem(call(port, GOOD, key="k" * 60_000), 401)
    change = {"fpr": 0.1, "change": True, "model": "rows"}
    assert is_problem(call(port, change, path="/v1/threshold", key=None), 401)
    assert is_problem(call(port, change, path="/v1/threshold"), 403)
    assert is_problem(call(port, {"action": "undo"}, path="/v1/feedback"), 403)
    for strange in ("Basic dTpw", "Bearer", f"bearer{USER}", "ÿ"):
        headers = {"authorization": strange.encode("latin-1")}
        is_problem(call(port, GOOD, key=None, headers=headers), 401)


def test_headers_cannot_be_injected(port):
    for given in ("a\tb", "x" * 65, SCRIPT, "a b"):
        answer = call(port, GOOD, headers={"x-request-id": given})
        assert answer.headers["x-request-id"] != given
    assert call(port, GOOD, headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    sent = (
        f"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {USER}\r\n"
        "X-Request-ID: a\rSet-Cookie: b\r\nContent-Length: 0\r\n\r\n"
    )
    assert b"set-cookie" not in raw(port, sent.encode(), wait=1.0).lower()


def test_other_sites_cannot_call(port):
    elsewhere = is_problem(call(port, GOOD, headers={"host": "evil.example"}), 421)
    assert elsewhere["type"].endswith("unknown-host")
    # A page of another site may send this without asking first, so it is not taken.
    simple = {"content-type": "text/plain", "origin": "http://evil.example"}
    answer = call(port, content=json.dumps(GOOD), headers=simple)
    is_problem(answer, 415)
    assert "access-control-allow-origin" not in answer.headers
    asked = httpx.options(
        f"http://localhost:{port}/v1/score",
        headers={"origin": "http://evil.example", "access-control-request-method": "POST"},
    )
    assert asked.status_code == 405


def test_scripts_in_texts_stay_texts(port):
    answer = call(port, {"messages": [{"role": "user", "content": SCRIPT}]})
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.json()["results"][0]["text"] == SCRIPT
    for path in ("/", "/docs"):
        page = httpx.get(f"http://localhost:{port}{path}?q={SCRIPT}")
        assert SCRIPT not in page.text
        policy = page.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy


def test_logs_hold_no_texts(port, caplog):
    caplog.set_level("INFO", "outscope.serve")
    call(port, {"texts": "a secret sentence"})
    call(
        port,
        content=b'{"texts": ["a secret sentence", 7]}',
        headers={"content-type": "application/json"},
    )
    records, end = [], time.monotonic() + 10
    while len(records) < 2 and time.monotonic() < end:  # written once the answer is on its way
        time.sleep(0.01)
        records = [r for r in caplog.records if r.name == "outscope.serve"]
    assert [r.fields["status"] for r in records] == [200, 422]
    assert records[0].fields["items"] == 1
    assert "secret" not in str([vars(r) for r in records])
    assert USER not in str([vars(r) for r in records])


def test_a_head_that_never_ends_is_cut_off(port):
    with socket.create_connection(("localhost", port)) as connection:
        connection.settimeout(20)
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        sent = 0
        with contextlib.suppress(OSError):
            while sent < 20 << 20:
                connection.sendall(b"X-More: " + b"a" * 1000 + b"\r\n")
                sent += 1010
            connection.recv(1)
    assert sent < 10 << 20
    assert call(port, GOOD).status_code == 200

"""Remote encoders, against a real server that embeds, and can be told to fail."""

from __future__ import annotations

import json
import logging
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from tiny import labelled_texts

import outscope
from outscope import EncoderError, InputError, ModelFileError, RemoteEncoder, TextDetector
from outscope.cli import main
from outscope.text import endpoint, remote
from outscope.text.cache import VectorCache

KEY = "sk-0123456789-secret"
TEXTS = labelled_texts(48)[0]


def vector(text, seed):
    """A bag of hashed words: near for texts that share words, and different for each seed."""
    found = np.zeros(24)
    for word in text.split() or [text]:
        found += np.random.default_rng([seed, *word.encode()]).normal(size=24)
    return found.tolist()


class Server:
    """An embeddings server on this machine; `trouble` changes its next answers."""

    def __init__(self):
        self.asked, self.keys, self.trouble, self.seed = [], [], [], 0
        handler = type("Handler", (_Handler,), {"server_of": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1/embeddings"

    def close(self):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


class _Handler(BaseHTTPRequestHandler):
    server_of: Server

    def log_message(self, *args):
        pass

    def do_POST(self):
        server = self.server_of
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        texts = asked.get("input", asked.get("inputs"))
        server.asked.append(texts)
        server.keys.append(self.headers.get("Authorization"))
        rows = [vector(text, server.seed) for text in texts]
        answer = rows
        if "input" in asked:
            data = [{"index": i, "embedding": row} for i, row in enumerate(rows)]
            answer = {"data": data[::-1], "model": asked["model"]}  # the order is theirs to choose
        trouble = server.trouble.pop(0) if server.trouble else None
        status, headers, body = 200, {}, json.dumps(answer).encode()
        if trouble is not None:
            status, headers, body = trouble(answer)
        try:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client did not wait


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(endpoint, "FIRST_WAIT", 0.01)
    monkeypatch.delenv(remote.USUAL_KEY, raising=False)
    monkeypatch.delenv(remote.CONFIRMED, raising=False)
    started = Server()
    yield started
    started.close()


def refusing(status, words="", **headers):
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda answer: (status, given, words.encode())


def changed(change):
    def trouble(answer):
        return 200, {}, json.dumps(change(answer)).encode()

    return trouble


def slow(answer):
    time.sleep(0.4)
    return 200, {}, b"[]"


def encoder_for(server, **settings):
    return RemoteEncoder(server.url, **{"model": "m", "retries": 2, **settings})


def test_rows_are_those_of_the_server_in_the_order_of_the_texts(server):
    for encoder in (
        encoder_for(server, batch_size=5),
        RemoteEncoder(server.url.replace("/v1/embeddings", "/embed"), batch_size=5),
        RemoteEncoder(server.url.removesuffix("/embeddings"), model="m"),
    ):
        found = encoder.encode(TEXTS[:12])
        wanted = np.array([vector(text, 0) for text in TEXTS[:12]], np.float32)
        np.testing.assert_array_equal(found, wanted)
    assert max(map(len, server.asked)) == 12
    assert sorted({len(asked) for asked in server.asked[:4]}) == [2, 4, 5]


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ([refusing(500, "boom")] * 3, r"answered 500 .*: boom, in each of 3 attempts"),
        ([refusing(429)] * 3, "answered 429 .too many requests., in each of 3 attempts"),
        ([refusing(429, Retry_After="3600")], "asks to wait 3600 s; try again then"),
        ([slow] * 3, "did not answer within 0.2 s, in each of 3 attempts"),
        ([refusing(401, f"bad key {KEY}")], r"refuses the key in MY_KEY \(401\): bad key \[key\]$"),
        ([refusing(404, "no such model")], "does not know this path or model"),
        ([refusing(302, Location="http://example.com/")], "redirects elsewhere .302."),
        ([refusing(422, "too long")], r"refuses the request \(422\): too long"),
        ([refusing(200, "<html>")], "is not JSON"),
        ([changed(lambda a: {"data": a["data"][:2]})], "answered with 2 vectors for 5 texts"),
        ([changed(lambda a: {"data": a["data"][:4] * 2})], "answered with 8 vectors for 5 texts"),
        (
            [changed(lambda a: {"data": [{**one, "index": 1} for one in a["data"]]})],
            "index does not run from 0 to 4",
        ),
        (
            [changed(lambda a: {"data": [{**d, "embedding": [1.0] * 7} for d in a["data"]]})],
            "vectors of 7 numbers instead of 24",
        ),
        (
            [changed(lambda a: {"data": [{**d, "embedding": [float("nan")]} for d in a["data"]]})],
            "NaN or infinite",
        ),
        (
            [changed(lambda a: {"data": [{**d, "embedding": "x"} for d in a["data"]]})],
            "different lengths, or of no numbers",
        ),
        ([changed(lambda a: {"error": "?"})], "something other than"),
    ],
)
def test_each_failure_is_told_on_one_line_without_the_key(server, monkeypatch, trouble, words):
    monkeypatch.setenv("MY_KEY", KEY)
    encoder = encoder_for(server, key_env="MY_KEY", timeout=0.2 if slow in trouble else 5)
    encoder.encode(TEXTS[:1])
    server.trouble = list(trouble)
    with pytest.raises(EncoderError, match=words) as caught:
        encoder.encode(TEXTS[:5])
    assert KEY not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not server.trouble, "it gave up too early"
    assert encoder.encode(TEXTS[:5]).shape == (5, 24), "the next request works again"


def test_a_passing_failure_is_tried_again_and_what_the_server_asks_is_waited(server):
    encoder = encoder_for(server)
    encoder.encode(TEXTS[:1])
    server.trouble = [refusing(503), refusing(429, Retry_After="1")]
    start = time.monotonic()
    assert encoder.encode(TEXTS[:3]).shape == (3, 24)
    assert 1.0 <= time.monotonic() - start < 5


def test_a_server_that_is_down_is_named(server):
    server.close()
    with pytest.raises(EncoderError, match=r"cannot be reached .*in each of 3 attempts"):
        encoder_for(server).encode(["a"])
    # Another one, for the fixture to close.
    server.http = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.thread = threading.Thread(target=server.http.serve_forever, daemon=True)
    server.thread.start()


def test_what_was_embedded_before_a_failure_is_not_asked_again(server, tmp_path):
    cache, encoder = VectorCache(tmp_path), encoder_for(server, batch_size=4, retries=0)
    server.trouble = [None, None, None, refusing(500)]  # the canaries and two batches pass
    texts = list(dict.fromkeys(TEXTS))[:16]
    with pytest.raises(EncoderError, match="500"):
        encoder.features(texts, cache=cache)
    server.asked.clear()
    again = encoder_for(server, batch_size=4)
    rows = again.features(texts, cache=cache)
    assert [text for asked in server.asked[1:] for text in asked] == texts[8:]
    np.testing.assert_array_equal(rows, np.array([vector(t, 0) for t in texts], np.float32))
    server.seed = 1  # another model behind the same name: nothing of the old one is mixed in
    new = encoder_for(server, batch_size=4).features(texts, cache=cache)
    np.testing.assert_array_equal(new, np.array([vector(t, 1) for t in texts], np.float32))


def test_the_key_is_in_no_file_and_in_no_log(server, monkeypatch, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MY_KEY", KEY)
    server.trouble = [refusing(500, f"key was {KEY}")]
    encoder = encoder_for(server, key_env="MY_KEY")
    detector = TextDetector(encoder, "knn", cache=tmp_path / "cache").fit(TEXTS)
    detector.save(tmp_path / "model")
    assert server.keys[-1] == f"Bearer {KEY}"
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) >= 3
    for file in files:
        assert KEY.encode() not in file.read_bytes(), file
        assert b"MY_KEY" not in file.read_bytes(), file
    assert "500" in caplog.text
    assert KEY not in caplog.text + repr(encoder) + repr(vars(encoder))


def test_a_missing_key_and_one_that_would_travel_in_the_open_are_refused(server, monkeypatch):
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(EncoderError, match="environment variable MY_KEY is not set"):
        encoder_for(server, key_env="MY_KEY").encode(["a"])
    monkeypatch.setenv("MY_KEY", KEY)
    with pytest.raises(EncoderError, match="unencrypted; use https"):
        RemoteEncoder("http://example.com/v1", model="m", key_env="MY_KEY").encode(["a"])
    assert not server.asked
    for url in ("https://user:pw@host/v1", "https://host/v1?api-key=1", "ftp://host", "https://"):
        with pytest.raises(InputError, match=r"holds a user|is not an address"):
            RemoteEncoder(url, model="m")
    with pytest.raises(InputError, match="name the model"):
        RemoteEncoder("https://host/v1")


def test_a_saved_model_asks_nobody_until_its_address_is_confirmed(server, monkeypatch, tmp_path):
    detector = TextDetector(encoder_for(server), "knn", cache=False).fit(TEXTS)
    scores = detector.ood_score(["pay my bill", "how tall is a mountain"])
    detector.save(tmp_path / "model")
    server.asked.clear()
    monkeypatch.setenv(remote.USUAL_KEY, KEY)
    loaded = outscope.load(tmp_path / "model")
    loaded.cache = False
    with pytest.raises(EncoderError, match=f"would send the texts to {server.url}; if you trust"):
        loaded.ood_score(["pay my bill"])
    monkeypatch.setenv(remote.CONFIRMED, "https://example.com/v1/embeddings")
    with pytest.raises(EncoderError, match="would send the texts"):
        loaded.check_encoder()
    assert not server.asked, "something was sent without a confirmation"
    monkeypatch.setenv(remote.CONFIRMED, server.url)
    found = loaded.ood_score(["pay my bill", "how tall is a mountain"])
    np.testing.assert_array_equal(found, scores)
    assert server.keys[-1] == f"Bearer {KEY}"
    loaded.save(tmp_path / "again")
    assert outscope.load(tmp_path / "again").encoder.address == server.url


def test_a_tampered_address_gets_neither_texts_nor_the_key(server, monkeypatch, tmp_path):
    TextDetector(encoder_for(server), "knn", cache=False).fit(TEXTS).save(tmp_path / "model")
    monkeypatch.setenv(remote.CONFIRMED, "https://good.example/v1/embeddings")
    monkeypatch.setenv(remote.USUAL_KEY, KEY)
    server.asked.clear()
    with pytest.raises(EncoderError, match="would send"):
        outscope.load(tmp_path / "model").predict(["a text"])
    assert not server.asked
    manifest = tmp_path / "model" / "manifest.json"
    whole = manifest.read_text()
    for old, new in (
        ('\\"backend\\": \\"remote\\"', '\\"key_env\\": \\"HOME\\", \\"backend\\": \\"remote\\"'),
        ('\\"dimensions\\": null', '\\"dimensions\\": \\"x\\"'),
        ('\\"model\\": \\"m\\"', '\\"model\\": 5'),
        ('\\"backend\\": \\"remote\\"', '\\"backend\\": \\"torch\\"'),
    ):
        assert old in whole
        manifest.write_text(whole.replace(old, new))
        with pytest.raises(ModelFileError):
            outscope.load(tmp_path / "model")


def test_another_model_behind_the_same_name_is_noticed(server, monkeypatch, tmp_path):
    detector = TextDetector(encoder_for(server), "knn", cache=False).fit(TEXTS)
    detector.save(tmp_path / "model")
    server.seed = 1
    loaded = outscope.load(tmp_path / "model", encoder=encoder_for(server))
    for use in (loaded.check_encoder, lambda: loaded.ood_score(["a"]), detector.check_encoder):
        with pytest.raises(EncoderError, match=r"the model m behind .* changed: .* a cosine of"):
            use()
    detector.ood_score(["a"])  # the daily check is not due yet
    monkeypatch.setattr(remote, "CHECK_EVERY", -1)
    with pytest.raises(EncoderError, match="changed"):
        detector.ood_score(["a"])
    with pytest.raises(ModelFileError, match="is not the one this detector was fitted with"):
        outscope.load(tmp_path / "model", encoder=encoder_for(server, model="other"))


def test_a_model_may_move_to_another_address(server, tmp_path):
    detector = TextDetector(encoder_for(server), "knn", cache=False).fit(TEXTS)
    detector.save(tmp_path / "model")
    moved = server.url.replace("127.0.0.1", "localhost")
    loaded = outscope.load(tmp_path / "model", encoder=RemoteEncoder(moved, model="m"))
    loaded.cache = False
    np.testing.assert_array_equal(loaded.ood_score(TEXTS[:3]), detector.ood_score(TEXTS[:3]))


def test_requests_keep_to_the_rate(server):
    encoder = encoder_for(server, batch_size=1, per_minute=600)
    start = time.monotonic()
    encoder.encode(TEXTS[:4])  # and the canaries: five requests, four pauses
    assert time.monotonic() - start >= 0.39


def test_the_command_line_fits_and_scores_with_a_remote_encoder(
    server, monkeypatch, tmp_path, capsys
):
    monkeypatch.setenv("MY_KEY", KEY)
    file, model = tmp_path / "texts.txt", str(tmp_path / "model")
    file.write_text("\n".join(TEXTS))
    fit = ["fit", str(file), "--out", model, "--method", "knn", "--no-cache"]
    remote_options = ["--encoder", server.url, "--encoder-model", "m", "--key-env", "MY_KEY"]
    assert main([*fit, "--key-env", "MY_KEY"]) == 2
    assert "--key-env is for a remote encoder" in capsys.readouterr().err
    assert main([*fit, *remote_options]) == 0
    assert main(["score", model, str(file), "--no-cache"]) == 2
    assert f"set {remote.CONFIRMED}={server.url}" in capsys.readouterr().err
    monkeypatch.setenv(remote.CONFIRMED, server.url)
    assert main(["score", model, str(file), "--no-cache"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(TEXTS)

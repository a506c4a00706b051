"""Detectors and running services for the tests of `outscope serve`."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time

import httpx
import numpy as np
import uvicorn

from outscope import NNKDetector, TextDetector
from outscope.serve import create_app
from outscope.serve.protocol import Protocol

TOPICS = {
    "pay": "pay bill invoice money card charge euro fee",
    "ride": "bike ride lock wheel unlock station brake saddle",
    "account": "login password account email sign code phone profile",
}
ADMIN, USER = "an-admin-key-of-the-tests", "a-user-key-of-the-tests"


def words_to_rows(texts):
    """Bags of words on 24 axes: texts with the same words are the same to it."""
    rows = np.full((len(texts), 24), 1e-3, np.float32)
    for row, text in zip(rows, texts, strict=True):
        for word in text.lower().split():
            row[int(hashlib.sha256(word.encode()).hexdigest(), 16) % 24] += 1.0
    return rows


def text_detector():
    """A calibrated detector of three topics, without a network."""
    rng = np.random.default_rng(0)
    texts, labels = [], []
    for label, words in TOPICS.items():
        for _ in range(60):
            texts.append(" ".join(rng.choice(words.split(), 4)))
            labels.append(label)
    return TextDetector(words_to_rows, contamination=0.05).fit(texts, labels)


def vector_detector():
    """A calibrated detector of rows of 8 numbers, and rows like those it was fitted on."""
    rows = np.random.default_rng(1).normal(2.0, 1.0, (400, 8)).astype(np.float32)
    return NNKDetector(random_state=0).fit(rows[:200]).calibrate(rows[200:300]), rows[300:]


def client_of(app, **headers):
    """A client that calls the application in this process."""
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://localhost", headers=headers
    )


@contextlib.contextmanager
def running(detectors, **options):
    """A real server on a free port, in a thread; gives its port."""
    app = create_app(detectors, **options)
    config = uvicorn.Config(
        app, port=0, http=Protocol, ws="none", log_config=None, timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)

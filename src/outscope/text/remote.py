"""Encoders behind an address: OpenAI-style /v1/embeddings, and /embed of text-embeddings-inference.

A provider may change a model without changing its name. So a few canary texts are embedded at fit,
and again at first use and once a day; their vectors are the identity of the encoder.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from outscope._types import Matrix
from outscope.errors import EncoderError, InputError
from outscope.text.cache import VectorCache
from outscope.text.encoders import Advance, Encoder
from outscope.text.endpoint import Endpoint

CANARIES = (
    "a usual sentence",
    "Zwölf Boxkämpfer jagen Viktor quer über den Sylter Deich",
    "How do I reset the password of my account? 0123 ?! {}",
    "東京の天気はどうですか",
)
# Batching, hardware and 16-bit arithmetic stay well above this; other models far below it.
LEAST_COSINE = 0.999
CHECK_EVERY = 24 * 3600
# Confirmation, by the user, of the address that a saved model names; and the key for it.
CONFIRMED, USUAL_KEY = "OUTSCOPE_ENDPOINT", "OUTSCOPE_API_KEY"


def is_address(name: str) -> bool:
    """Whether an encoder is given by an address."""
    return name.lower().startswith(("http://", "https://"))


class RemoteEncoder(Encoder):
    """Rows from an embeddings endpoint.

    An address that ends in /embed speaks the protocol of text-embeddings-inference, any other that
    of OpenAI (to one that ends in /v1, /embeddings is added). `key_env` names the environment
    variable that holds the key; the key is read for each request and kept nowhere. `per_minute`
    limits requests. `dimensions` asks for shorter vectors, where the model has them.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        key_env: str | None = None,
        batch_size: int = 64,
        timeout: float = 30.0,
        retries: int = 5,
        per_minute: float | None = None,
        dimensions: int | None = None,
        canary: list[list[float]] | None = None,
    ) -> None:
        if url.rstrip("/").endswith("/v1"):
            url = url.rstrip("/") + "/embeddings"
        self.endpoint = Endpoint(url, key_env, timeout, retries)
        self.tei = urllib.parse.urlsplit(url).path.rstrip("/").endswith("/embed")
        if not self.tei and not model:
            raise InputError(f"model=None: name the model that {url} should use")
        if batch_size < 1 or (per_minute is not None and not per_minute > 0):
            raise InputError(
                f"batch_size={batch_size}, per_minute={per_minute}: expected at least 1 text in a "
                "request, and a rate above 0"
            )
        self.name = self.address = url
        self.model, self.dimensions = model, dimensions
        self.at_a_time = self.batch_size = batch_size
        self.per_minute = per_minute
        self.confirmed = True
        self._canary = None if canary is None else np.array(canary, dtype=np.float32)
        self._checked = -math.inf
        self._next_request = -math.inf

    @classmethod
    def recorded(cls, url: str, settings: dict[str, Any]) -> RemoteEncoder:
        """The encoder that a saved model names: nothing is sent to it until the user confirms."""
        known = {name: value for name, value in settings.items() if name != "backend"}
        key_env = USUAL_KEY if os.environ.get(USUAL_KEY) else None
        made = cls(url, key_env=key_env, **known)
        made.confirmed = False
        return made

    def settings(self) -> dict[str, Any]:
        """Settings that recreate this encoder from its address; nothing about the key."""
        return {
            "backend": "remote",
            "model": self.model,
            "dimensions": self.dimensions,
            "batch_size": self.batch_size,
            "canary": self._known_canary().tolist(),
        }

    def adopt(self, settings: Mapping[str, Any]) -> None:
        """Take over the canary vectors of a saved model; they are checked at first use."""
        if self._canary is None and "canary" in settings:
            self._canary = np.array(settings["canary"], dtype=np.float32)

    def fingerprint(self) -> str:
        """Hash of the model's name and of its vectors for the canary texts; the address may move.

        The vectors are those of the fit; `check` compares what the endpoint answers now.
        """
        told = json.dumps(["remote", self.model, self.dimensions]).encode()
        return hashlib.sha256(told + self._known_canary().tobytes()).hexdigest()

    def features(
        self,
        texts: Sequence[str],
        kind: str = "embedding",
        *,
        cache: VectorCache | None = None,
        advance: Advance = lambda done: None,
    ) -> Matrix:
        """Rows of all texts, after a check that the model is still the same."""
        if time.monotonic() - self._checked > CHECK_EVERY:
            self.check(cache)
        return super().features(texts, kind, cache=cache, advance=advance)

    def space(self, kind: str) -> str:
        """Name of the space of rows: the address, the model, and its vectors for the canaries."""
        told = f"{self._home()}:{self.fingerprint()}:{kind}"
        return hashlib.sha256(told.encode()).hexdigest()[:32]

    def _home(self) -> str:
        told = json.dumps([self.address, self.model, self.dimensions])
        return hashlib.sha256(told.encode()).hexdigest()[:32]

    def check(self, cache: VectorCache | None = None) -> None:
        """Embed the canary texts; raise if their vectors are not those of the fit."""
        now = self._ask(CANARIES)
        if self._canary is not None:
            self._compare(now)
        else:
            self._canary = self._as_cached(now, cache)
        self._checked = time.monotonic()

    def _as_cached(self, now: Matrix, cache: VectorCache | None) -> Matrix:
        """The canary vectors as an earlier fit found them, if the model is still the same."""
        if cache is None:
            return now
        known = cache.get(self._home(), CANARIES)
        if len(known) == len(CANARIES):
            before = np.stack([known[i] for i in range(len(CANARIES))])
            if before.shape == now.shape and _cosines(before, now).min() >= LEAST_COSINE:
                return before
        cache.put(self._home(), CANARIES, now)
        return now

    def _known_canary(self) -> Matrix:
        if self._canary is None:
            self.check()
        assert self._canary is not None
        return self._canary

    def _compare(self, now: Matrix) -> None:
        before = self._known_canary()
        told = f"the model {self.model or ''} behind {self.address}".replace("  ", " ")
        if now.shape != before.shape:
            raise EncoderError(
                f"{told} changed: its vectors have {now.shape[1]} numbers, and had "
                f"{before.shape[1]} at fit; scores would mean nothing; fit again"
            )
        cosines = _cosines(before, now)
        if cosines.min() < LEAST_COSINE:
            worst = int(cosines.argmin())
            raise EncoderError(
                f"{told} changed: its vector for {CANARIES[worst]!r} has a cosine of "
                f"{cosines[worst]:.3f} to that at fit; scores would mean nothing; fit again"
            )

    # ---- asking

    def _compute(self, texts: Sequence[str], kind: str, advance: Advance) -> Matrix:
        if kind != "embedding":
            raise InputError(f"{self.name} gives embeddings, not {kind}; see: finetune")
        parts = []
        for start in range(0, len(texts), self.batch_size):
            part = texts[start : start + self.batch_size]
            parts.append(self._ask(part))
            advance(len(part))
        width = self._known_canary().shape[1]
        return np.concatenate(parts) if parts else np.empty((0, width), np.float32)

    def _ask(self, texts: Sequence[str]) -> Matrix:
        """Rows of one batch, in the order of its texts."""
        self._demand_confirmation()
        self._keep_to_rate()
        given = [text if text.strip() else " " for text in texts]  # some refuse an empty text
        question: dict[str, Any] = {"inputs": given, "truncate": True}
        if not self.tei:
            question = {"input": given, "model": self.model, "encoding_format": "float"}
        if self.dimensions is not None:
            question["dimensions"] = self.dimensions
        answer = self.endpoint.ask(question)
        rows = answer if self.tei else self._in_order(answer, len(given))
        return self._checked_rows(rows, len(given))

    def _demand_confirmation(self) -> None:
        if self.confirmed or os.environ.get(CONFIRMED) == self.address:
            return
        raise EncoderError(
            f"this model would send the texts to {self.address}; if you trust that address, set "
            f"{CONFIRMED}={self.address} (and {USUAL_KEY}, if it needs a key), or give the "
            "encoder: outscope.load(path, encoder=RemoteEncoder(…))"
        )

    def _keep_to_rate(self) -> None:
        if self.per_minute is None:
            return
        now = time.monotonic()
        if now < self._next_request:
            time.sleep(self._next_request - now)
        self._next_request = max(now, self._next_request) + 60 / self.per_minute

    def _in_order(self, answer: Any, n: int) -> list[Any]:
        """The vectors of an OpenAI-style answer by their `index`, which must cover all texts."""
        try:
            found = {item["index"]: item["embedding"] for item in answer["data"]}
            given = len(answer["data"])
        except (TypeError, KeyError):
            raise self._nonsense("something other than {data: [{index, embedding}, …]}") from None
        if given != n:
            raise self._nonsense(f"{given} vectors for {n} texts")
        if found.keys() != set(range(n)):
            raise self._nonsense(f"vectors whose index does not run from 0 to {n - 1}")
        return [found[i] for i in range(n)]

    def _checked_rows(self, rows: Any, n: int) -> Matrix:
        if not isinstance(rows, list) or len(rows) != n:
            many = len(rows) if isinstance(rows, list) else "no"
            raise self._nonsense(f"{many} vectors for {n} texts")
        try:
            found = np.array(rows, dtype=np.float32)
        except (ValueError, TypeError):
            raise self._nonsense("vectors of different lengths, or of no numbers") from None
        if found.ndim != 2 or not found.shape[1]:
            raise self._nonsense(f"an array of shape {found.shape}, not a vector for each text")
        if not np.isfinite(found).all():
            raise self._nonsense("vectors with NaN or infinite numbers")
        width = self.dimensions if self._canary is None else self._canary.shape[1]
        # The canaries are compared with their own words.
        if width not in (None, found.shape[1]) and self._checked > -math.inf:
            raise self._nonsense(f"vectors of {found.shape[1]} numbers instead of {width}")
        return found

    def _nonsense(self, what: str) -> EncoderError:
        return EncoderError(f"{self.address} answered with {what}; nothing of it was used")


def _cosines(a: Matrix, b: Matrix) -> Matrix:
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    found: Matrix = (a * b).sum(axis=1) / np.maximum(lengths, 1e-30)
    return found

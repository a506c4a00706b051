"""One JSON request to an endpoint: retried where that helps, and a clear error elsewhere."""

from __future__ import annotations

import datetime as dt
import email.utils
import http.client
import json
import logging
import os
import random
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

from outscope.errors import EncoderError, InputError

logger = logging.getLogger("outscope")

# Answers that another attempt may change.
PASSING = {408, 409, 425, 429, 500, 502, 503, 504}
FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0
LARGEST_ANSWER = 1 << 28
TOLD = 200
LOCAL = ("localhost", "127.0.0.1", "::1")
SECRETS = ("key", "token", "secret", "sig", "password")


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows nothing: a redirect would carry texts and the key elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


_opener = urllib.request.build_opener(_Stay)


@dataclass(frozen=True)
class Endpoint:
    """Where requests go, and how patient they are. The key itself is never kept."""

    url: str
    key_env: str | None = None  # the environment variable that holds the key
    timeout: float = 30.0  # seconds for one attempt
    retries: int = 5  # attempts after the first

    def __post_init__(self) -> None:
        check_address(self.url)
        if not self.timeout > 0 or self.retries < 0:
            raise InputError(
                f"timeout={self.timeout}, retries={self.retries}: expected seconds above 0 and at "
                "least 0 retries"
            )

    def ask(self, question: dict[str, Any]) -> Any:
        """The answer to one question, as parsed JSON."""
        for attempt in range(self.retries + 1):
            try:
                return self._once(question)
            except _PassingError as error:
                if attempt == self.retries:
                    raise EncoderError(f"{error}, in each of {attempt + 1} attempts") from None
                wait = error.wait
                if wait is None:
                    # Spread out, so that many clients do not come back at the same moment.
                    wait = FIRST_WAIT * 2**attempt * random.uniform(0.5, 1.0)
                elif wait > LONGEST_WAIT:
                    raise EncoderError(
                        f"{error} and asks to wait {wait:.0f} s; try again then"
                    ) from None
                logger.info("%s; trying again in %.1f s", error, wait)
                time.sleep(min(wait, LONGEST_WAIT))
        raise AssertionError("unreachable")

    def _once(self, question: dict[str, Any]) -> Any:
        key = self._key()
        request = urllib.request.Request(
            self.url,
            json.dumps(question).encode(),
            {"Content-Type": "application/json", "Accept": "application/json"},
        )
        if key:
            request.add_unredirected_header("Authorization", f"Bearer {key}")
        try:
            with _opener.open(request, timeout=self.timeout) as answer:
                content = answer.read(LARGEST_ANSWER + 1)
        except urllib.error.HTTPError as error:
            raise self._refusal(error, key) from None
        except TimeoutError:
            raise _PassingError(f"{self.url} did not answer within {self.timeout:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None
        return self._parsed(content)

    def _unreachable(self, error: Exception) -> Exception:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            return _PassingError(f"{self.url} did not answer within {self.timeout:g} s")
        return _PassingError(f"{self.url} cannot be reached ({reason or type(error).__name__})")

    def _parsed(self, content: bytes) -> Any:
        if len(content) > LARGEST_ANSWER:
            raise EncoderError(f"{self.url} answered with more than {LARGEST_ANSWER >> 20} MB")
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise EncoderError(
                f"{self.url} answered something that is not JSON; is it the address of an "
                "embeddings endpoint?"
            ) from None

    def _key(self) -> str | None:
        if self.key_env is None:
            return None
        key = os.environ.get(self.key_env, "").strip()
        if not key:
            raise EncoderError(
                f"the environment variable {self.key_env} is not set, and should hold the key for "
                f"{self.url}"
            )
        if not key.isascii() or not key.isprintable():
            raise EncoderError(
                f"the key in the environment variable {self.key_env} has characters that no key has"
            )
        host = urllib.parse.urlsplit(self.url).hostname
        if self.url.startswith("http:") and host not in LOCAL:
            raise EncoderError(f"{self.url} would get the key unencrypted; use https")
        return key

    def _refusal(self, error: urllib.error.HTTPError, key: str | None) -> Exception:
        """What an answer other than 200 means for the user."""
        code, told = error.code, self._words(error, key)
        if code in PASSING:
            words = {429: "too many requests"}.get(code, error.reason)
            return _PassingError(
                f"{self.url} answered {code} ({words}){told}", _wait(error.headers)
            )
        if code in (401, 403):
            held = f"the key in {self.key_env}" if self.key_env else "a request without a key"
            return EncoderError(f"{self.url} refuses {held} ({code}){told}")
        if 300 <= code < 400:
            return EncoderError(f"{self.url} redirects elsewhere ({code}); give the final address")
        if code == 404:
            return EncoderError(
                f"{self.url} does not know this path or model (404){told}; check both"
            )
        return EncoderError(f"{self.url} refuses the request ({code}){told}")

    @staticmethod
    def _words(error: urllib.error.HTTPError, key: str | None) -> str:
        """What the server says, on one line, without the key that it may have repeated."""
        try:
            words = error.read(1 << 16).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            return ""
        if key:
            words = words.replace(key, "[key]")
        words = "".join(c if c.isprintable() else " " for c in words)
        words = " ".join(words.split())[:TOLD]
        return f": {words}" if words else ""


class _PassingError(EncoderError):
    """A failure that another attempt may cure, maybe after a given wait."""

    def __init__(self, words: str, wait: float | None = None) -> None:
        super().__init__(words)
        self.wait = wait


def _wait(headers: Any) -> float | None:
    """Seconds from a Retry-After header, which is a number or a date."""
    given = (headers.get("Retry-After") or "").strip()
    if given.isdigit():
        return float(given)
    try:
        until = email.utils.parsedate_to_datetime(given)
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=dt.UTC)
    return max(0.0, (until - dt.datetime.now(dt.UTC)).total_seconds())


def check_address(url: str) -> None:
    """Refuse an address that cannot be asked, or that holds a secret, which would be saved."""
    try:
        parts = urllib.parse.urlsplit(url)
        parts.port  # noqa: B018 (raises if it is no number)
    except ValueError:
        parts = urllib.parse.urlsplit("")
    plain = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in ("http", "https") or not parts.hostname or not plain:
        raise InputError(f"{url[:80]!r} is not an address; expected https://host/v1/embeddings")
    names = [name.lower() for name, _ in urllib.parse.parse_qsl(parts.query)]
    if parts.username or parts.password or any(s in name for name in names for s in SECRETS):
        raise InputError(
            f"the address of {parts.hostname} holds a user, password or key, which would be saved "
            "with the model; put the key into an environment variable and give its name as key_env"
        )

"""Vectors kept on disk by the hash of text and encoder, so that nothing is computed twice."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from outscope._types import Matrix

logger = logging.getLogger("outscope")

KEYS_AT_A_TIME = 500
FILE = "vectors.sqlite"


def default_folder() -> Path:
    """$OUTSCOPE_CACHE, or outscope in the user's cache folder."""
    if given := os.environ.get("OUTSCOPE_CACHE"):
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "outscope"


class VectorCache:
    """Vectors by (space, text); a space is one encoder with its settings.

    A cache that cannot be read or written is not an error: it is said once, and work goes on.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.path = (folder or default_folder()) / FILE
        self._broken = False

    def get(self, space: str, texts: Sequence[str]) -> dict[int, Matrix]:
        """Vectors of the texts that are known, by position."""
        where: dict[bytes, list[int]] = {}
        for i, text in enumerate(texts):
            where.setdefault(_key(text), []).append(i)
        found: dict[int, Matrix] = {}
        with self._open() as database:
            if database is None:
                return {}
            keys = list(where)
            for start in range(0, len(keys), KEYS_AT_A_TIME):
                part = keys[start : start + KEYS_AT_A_TIME]
                marks = ",".join("?" * len(part))
                query = f"SELECT key, vector FROM vectors WHERE space = ? AND key IN ({marks})"
                for key, blob in database.execute(query, (space, *part)):
                    vector = np.frombuffer(blob, np.float32)
                    found.update(dict.fromkeys(where[key], vector))
        return found

    def put(self, space: str, texts: Sequence[str], vectors: Matrix) -> None:
        """Remember vectors."""
        rows = (
            (space, _key(text), np.ascontiguousarray(vector, np.float32).tobytes())
            for text, vector in zip(texts, vectors, strict=True)
        )
        with self._open() as database:
            if database is not None:
                database.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", rows)

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection | None]:
        """One transaction; None where the cache cannot be used."""
        database = None if self._broken else self._connect()
        try:
            yield database
            if database is not None:
                database.commit()
        except sqlite3.Error as error:
            self._give_up(error)
        finally:
            if database is not None:
                database.close()

    def _connect(self) -> sqlite3.Connection | None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(self.path, timeout=30)
            database.execute(
                "CREATE TABLE IF NOT EXISTS vectors "
                "(space TEXT, key BLOB, vector BLOB, PRIMARY KEY (space, key)) WITHOUT ROWID"
            )
            return database
        except (sqlite3.Error, OSError) as error:
            self._give_up(error)
            return None

    def _give_up(self, error: Exception) -> None:
        self._broken = True
        logger.warning("the cache %s cannot be used (%s); going on without it", self.path, error)


def _key(text: str) -> bytes:
    # Lone surrogates cannot be encoded strictly, but are texts that may come.
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()

"""Vectors cached on disk by hash of text and encoder, so that nothing is computed twice."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outscope._types import Matrix

logger = logging.getLogger("outscope")

# A file of this size is checked as a whole at each write, in less time than its vectors took.
CHECKED_BYTES = 1 << 26
KEYS_AT_A_TIME = 500
FILE, SECRET, BYTES = "vectors.sqlite", "vectors.key", 32
TABLE = (
    "CREATE TABLE sealed (space TEXT, key BLOB, vector BLOB, seal BLOB, "
    "PRIMARY KEY (space, key)) WITHOUT ROWID"
)
# The table of old caches without seals; it is dropped.
OLD_TABLE = "vectors"
# sqlite errors about the machine, not the file: the cache is then left as it is.
NOT_THE_FILE = {
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_READONLY,
}


def default_folder() -> Path:
    """$OUTSCOPE_CACHE, or outscope in the user's cache folder."""
    if given := os.environ.get("OUTSCOPE_CACHE"):
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "outscope"


def _is_private(folder: Path) -> bool:
    """Whether only the user can write to a folder."""
    state = folder.stat()
    return not hasattr(os, "getuid") or (state.st_uid == os.getuid() and not state.st_mode & 0o022)


def _secret(folder: Path) -> bytes:
    """The user's secret, kept beside the cache or, if others can write there, with the settings."""
    if not _is_private(folder):
        base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        folder = Path(base) / "outscope"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / SECRET
    for _ in range(2):
        with contextlib.suppress(FileNotFoundError):
            secret = file.read_bytes()
            if len(secret) == BYTES:
                return secret
        # Linked into place once complete, so that two processes cannot end up with two secrets.
        aside = folder / f"{SECRET}-{os.getpid()}-{os.urandom(4).hex()}"
        with os.fdopen(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as new:
            new.write(os.urandom(BYTES))
        try:
            if file.exists():
                aside.replace(file)  # it was cut off
            else:
                os.link(aside, file)
        except FileExistsError:
            pass
        finally:
            aside.unlink(missing_ok=True)
    return file.read_bytes()


def sealed(folder: Path, content: bytes) -> str:
    """Hash of a content with the user's secret, which others cannot make."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return hashlib.blake2b(content, digest_size=BYTES // 2, key=_secret(folder)).hexdigest()


class VectorCache:
    """Vectors by (space, text); a space is one encoder with its settings.

    Each vector is sealed with the user's secret: vectors damaged, or written by others, count as
    missing and are written again. An unusable cache is not an error: it is reported once and work
    continues.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.path = (folder or default_folder()) / FILE
        self._broken = False
        self._known_secret = b""

    def get(self, space: str, texts: Sequence[str]) -> dict[int, Matrix]:
        """Vectors of the known texts, by position."""
        where: dict[bytes, list[int]] = {}
        found: dict[int, Matrix] = {}

        def read(database: sqlite3.Connection) -> None:
            where.clear()
            for i, text in enumerate(texts):
                where.setdefault(self._key(text), []).append(i)
            for key, blob in self._whole_rows(database, space, list(where)):
                found.update(dict.fromkeys(where.get(key, ()), np.frombuffer(blob, np.float32)))

        self._with_database(read)
        # Vectors of one encoder have the same length; if they do not, none can be trusted.
        return found if len({len(vector) for vector in found.values()}) == 1 else {}

    def put(self, space: str, texts: Sequence[str], vectors: Matrix) -> None:
        """Store vectors, except invalid ones: empty, NaN or infinite."""

        def write(database: sqlite3.Connection) -> None:
            rows = {}
            for text, vector in zip(texts, vectors, strict=True):
                key, blob = self._key(text), np.ascontiguousarray(vector, np.float32).tobytes()
                if blob and np.isfinite(vector).all():
                    rows[key] = (space, key, blob, self._seal(space, key, blob))
            statement = "INSERT OR REPLACE INTO sealed VALUES (?, ?, ?, ?)"
            database.executemany(statement, rows.values())
            # Damage that hides rows only shows here.
            if {key for key, _ in self._whole_rows(database, space, list(rows))} != rows.keys():
                raise sqlite3.DatabaseError("it does not give back what was written")
            # And what it hides of other rows, only here; a large file would take too long.
            small = self.path.stat().st_size <= CHECKED_BYTES
            if small and database.execute("PRAGMA integrity_check(1)").fetchall() != [(b"ok",)]:
                raise sqlite3.DatabaseError("its pages do not hold together")

        self._with_database(write)

    def _whole_rows(
        self, database: sqlite3.Connection, space: str, keys: list[bytes]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys and vectors of the rows found with intact seals."""
        for start in range(0, len(keys), KEYS_AT_A_TIME):
            part = keys[start : start + KEYS_AT_A_TIME]
            marks = ",".join("?" * len(part))
            query = f"SELECT key, vector, seal FROM sealed WHERE space = ? AND key IN ({marks})"
            for key, blob, seal in database.execute(query, (space, *part)):
                if seal and seal == self._seal(space, key, blob):
                    yield key, blob

    def _key(self, text: str) -> bytes:
        # Lone surrogates cannot be encoded strictly but may occur in texts.
        content = text.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(content, digest_size=16, key=self._known_secret).digest()

    def _seal(self, space: str, key: Any, blob: Any) -> bytes | None:
        if not isinstance(key, bytes) or not isinstance(blob, bytes) or not blob or len(blob) % 4:
            return None
        told = b"".join((space.encode(), b"\0", key, blob))
        return hashlib.blake2b(told, digest_size=16, key=self._known_secret).digest()

    def _with_database(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Do some work in one transaction; if the file is damaged, in a new one."""
        for _ in range(2):
            if self._broken:
                return
            try:
                with self._open() as database:
                    work(database)
                return
            except (sqlite3.Error, OSError, UnicodeDecodeError) as error:  # the last in a message
                code = getattr(error, "sqlite_errorcode", None)
                if isinstance(error, OSError) or (code or 0) & 0xFF in NOT_THE_FILE:
                    self._give_up(error)
                else:
                    self._move_aside(error)

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._known_secret = self._known_secret or _secret(self.path.parent)
        database = sqlite3.connect(self.path, timeout=30)
        try:
            database.text_factory = bytes  # damaged text must not fail to decode
            database.execute("PRAGMA trusted_schema = OFF")
            # A power cut may lose vectors; thanks to the seals it does no other harm.
            database.execute("PRAGMA synchronous = OFF")
            self._prepare(database)
            with database:
                yield database
        finally:
            database.close()

    @staticmethod
    def _prepare(database: sqlite3.Connection) -> None:
        """Create the table; a file with anything else in it is not ours."""
        query = "SELECT name, sql FROM sqlite_master"
        there = dict(database.execute(query).fetchall())
        if there == {b"sealed": TABLE.encode()}:
            return
        with database:
            database.execute("BEGIN IMMEDIATE")
            there = dict(database.execute(query).fetchall())
            if there.pop(OLD_TABLE.encode(), None):
                database.execute(f"DROP TABLE {OLD_TABLE}")
            if not there:
                database.execute(TABLE)
            elif there != {b"sealed": TABLE.encode()}:
                raise sqlite3.DatabaseError("it holds other tables")

    def _move_aside(self, error: Exception) -> None:
        aside = self.path.with_suffix(".damaged")
        try:
            self.path.replace(aside)
            for left in ("-journal", "-wal", "-shm"):
                self.path.with_name(FILE + left).unlink(missing_ok=True)
        except OSError as problem:
            self._give_up(problem)
            return
        logger.warning(
            "the cache %s was damaged (%s); it is now %s, and vectors are computed again",
            self.path,
            error,
            aside.name,
        )

    def _give_up(self, error: Exception) -> None:
        self._broken = True
        logger.warning("the cache %s cannot be used (%s); going on without it", self.path, error)

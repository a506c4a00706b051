"""API keys: only their hashes are kept, and comparing takes the same time for any key."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from outscope.errors import InputError

SHORTEST = 16
_LINE = re.compile(r"(?P<name>[\w.-]{1,64})\s+(?P<hash>[0-9a-f]{64})(?P<admin>\s+admin)?")


def hash_key(key: str) -> str:
    """SHA-256 of a key. Keys are long and random, so a slow hash would add nothing."""
    return hashlib.sha256(key.encode()).hexdigest()


@dataclass(frozen=True)
class Keys:
    """Who may call (by hash), and who may change models. No keys: anybody may call."""

    users: Mapping[str, str] = field(default_factory=dict)  # hash → name
    admins: Mapping[str, str] = field(default_factory=dict)

    @property
    def needed(self) -> bool:
        """Whether a call needs a key at all."""
        return bool(self.users)

    def user(self, key: str) -> str | None:
        """Name of the holder of a key; admins may call as well."""
        return _holder({**self.users, **self.admins}, key)

    def admin(self, key: str) -> str | None:
        """Name of the admin who holds a key."""
        return _holder(self.admins, key)


def _holder(known: Mapping[str, str], key: str) -> str | None:
    given, found = hash_key(key), None
    for stored, name in known.items():
        if hmac.compare_digest(stored, given):
            found = name
    return found


def read_keys(file: str | os.PathLike[str] | None, environment: Mapping[str, str]) -> Keys:
    """Keys from a file of hashes and from $OUTSCOPE_API_KEYS and $OUTSCOPE_ADMIN_KEY."""
    users: dict[str, str] = {}
    admins: dict[str, str] = {}
    for name, variable, target in (
        ("environment", "OUTSCOPE_API_KEYS", users),
        ("admin", "OUTSCOPE_ADMIN_KEY", admins),
    ):
        for key in filter(None, map(str.strip, environment.get(variable, "").split(","))):
            if len(key) < SHORTEST:
                raise InputError(
                    f"${variable} holds a key of {len(key)} characters, which can be guessed; "
                    f"expected at least {SHORTEST} (outscope serve --new-key NAME makes one)"
                )
            target[hash_key(key)] = name
    if file is not None:
        _read_file(Path(file), users, admins)
    return Keys(users, admins)


def _read_file(path: Path, users: dict[str, str], admins: dict[str, str]) -> None:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--keys {path}: cannot be read ({error})") from error
    for number, line in enumerate(lines, 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise InputError(
                f"--keys {path}, line {number}: expected NAME HASH or NAME HASH admin; "
                "outscope serve --new-key NAME --keys FILE writes such a line"
            )
        (admins if found["admin"] else users)[found["hash"]] = found["name"]


def new_key(file: str | os.PathLike[str], name: str, *, admin: bool) -> str:
    """Make a key, add its hash to a file that only its owner can read, and return the key."""
    path, mark = Path(file), " admin" if admin else ""
    key = f"outscope-{secrets.token_urlsafe(32)}"
    line = f"{name} {hash_key(key)}{mark}"
    if _LINE.fullmatch(line) is None:
        raise InputError(
            f"--new-key {name!r}: expected up to 64 letters, digits, dots, _ and - as a name"
        )
    if path.exists():
        _read_file(path, {}, {})
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as out:
        out.write(line + "\n")
    return key

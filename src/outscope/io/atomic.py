"""Files and folders that appear under their name complete, or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from outscope.errors import InputError

# Leftovers of a killed writer are removed by the next one once they are this old.
ABANDONED_SECONDS = 3600
_ASIDE = re.compile(r"\.writing-[0-9a-z_]{8,32}")


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a file beside its target; it takes the final name once complete and on disk."""
    with _beside(path) as aside:
        with aside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)


@contextlib.contextmanager
def whole_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Provide an empty folder to write to; it is renamed to `path` when the block succeeds.

    An existing empty folder is replaced; any other only with `replace`. Every file gets the
    permissions set by the umask, whatever the library that wrote it chose.
    """
    with _beside(path) as aside:
        aside.mkdir()
        yield aside
        _publish_to_umask(aside)
        if path.is_dir():
            if replace:
                shutil.rmtree(path)
            else:
                path.rmdir()
        aside.rename(path)


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A name for a file or folder beside its target, cleaned up on failure."""
    aside = path.parent / f".writing-{uuid.uuid4().hex}"
    try:
        _tidy(path.parent)
        yield aside
    except OSError as error:
        _remove(aside)
        raise InputError(f"cannot write to {path}: {error.strerror or error}") from error
    except BaseException:
        _remove(aside)
        raise


def _publish_to_umask(folder: Path) -> None:
    # A new folder reveals the umask without changing it, which other threads would notice.
    mode = folder.stat().st_mode & 0o777
    for path in folder.rglob("*"):
        path.chmod(mode if path.is_dir() else mode & 0o666)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def is_aside(path: Path) -> bool:
    """Whether a name is a writer's temporary one."""
    return _ASIDE.fullmatch(path.name) is not None


def is_abandoned(path: Path) -> bool:
    """Whether a file or folder has not been written to for a long time."""
    try:
        parts = [path, *path.rglob("*")] if path.is_dir() and not path.is_symlink() else [path]
        newest = max(part.lstat().st_mtime for part in parts)
    except OSError:
        return False
    return time.time() - newest > ABANDONED_SECONDS


def _tidy(folder: Path) -> None:
    """Remove what killed writers left in a folder."""
    for path in folder.glob(".writing-*"):
        if is_aside(path) and is_abandoned(path):
            _remove(path)


def check_folder_writable(
    path: str | os.PathLike[str], *, ours: Callable[[Path], bool] = lambda folder: False
) -> None:
    """Refuse a folder that cannot be written to, before any work is done.

    It may be new, empty, or one of `ours`; its parent must allow creating a folder.
    """
    folder = Path(path)
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file; give the name of a folder to write to")
        if folder.is_dir() and any(folder.iterdir()) and not ours(folder):
            raise InputError(f"{folder} holds other files; give a new folder to write to")
        there = next(up for up in (folder, *folder.absolute().parents) if up.exists())
        # Permissions do not reveal read-only disks, and mean little for an administrator.
        probe = there / f".writing-{uuid.uuid4().hex}"
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        raise InputError(
            f"cannot write to {folder}: {error.strerror or error}; choose another place"
        ) from error

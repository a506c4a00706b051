"""The files that a name stands for: itself, those in a folder, or those that a pattern finds."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

from outscope.errors import InputError


def split(source: str) -> tuple[str, str | None]:
    """`place:column` → the place and the column; a place that exists may have a colon."""
    if ":" not in source or Path(source).exists() or (is_pattern(source) and found_by(source)):
        return source, None
    head, column = source.rsplit(":", 1)
    return head, column


def is_pattern(place: str) -> bool:
    """Whether a place is a pattern such as big/*.npy, and not the name of a file."""
    return glob.has_magic(place) and not Path(place).exists()


def is_several(source: str) -> bool:
    """Whether a source is a folder or a pattern."""
    place = split(source)[0]
    return Path(place).is_dir() or is_pattern(place)


def found_by(pattern: str) -> list[Path]:
    """The files that a pattern finds, sorted by name."""
    found = glob.glob(pattern, recursive=True)  # noqa: PTH207 (Path.glob takes no absolute ones)
    return sorted(path for path in map(Path, found) if path.is_file())


def files_of(place: str, kinds: Sequence[str]) -> list[Path]:
    """The files of a place, sorted by name: of a folder, those of these kinds, but no hidden ones.

    Names that begin with "_" are hidden too: they are what programs leave beside data.
    """
    if not Path(place).is_dir():
        files = found_by(place) if is_pattern(place) else [Path(place)]
        if not files:
            raise InputError(f"{place} finds no file; check the pattern")
    else:
        there = sorted(path for path in Path(place).iterdir() if path.name[0] not in "._")
        files = [path for path in there if path.suffix.lower() in kinds and path.is_file()]
        if not files:
            deeper = f"; for files in its folders, give '{place}/**/*{kinds[0]}'"
            raise InputError(
                f"{place} holds no {', '.join(kinds)} file"
                + (deeper if any(path.is_dir() for path in there) else "")
            )
    for path in files:
        if path.is_file() and path.stat().st_size == 0:
            raise InputError(f"{path} is empty (0 bytes); was it written completely?")
    return files

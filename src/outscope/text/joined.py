"""Several encoders as one: their rows of the same text, side by side."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outscope._types import BoolArray, Matrix
from outscope.errors import InputError
from outscope.text.cache import VectorCache
from outscope.text.encoders import Advance, Encoder


class JoinedEncoder(Encoder):
    """Rows of several encoders side by side, each of length 1, so that each counts the same.

    A pre-trained encoder and one fine-tuned from it tell more together than either alone.
    """

    cacheable = False  # its parts are

    def __init__(self, parts: Sequence[Encoder]) -> None:
        if len(parts) < 2:
            raise InputError(f"encoder has {len(parts)} encoders to join; give at least two")
        if one := next((part for part in parts if part.address is not None), None):
            raise InputError(
                f"encoder {one.name!r} is remote and cannot be joined; get its vectors first, and "
                "give all side by side: fit(texts, vectors=…)"
            )
        if any(isinstance(part, JoinedEncoder) for part in parts):
            raise InputError("encoder has encoders that are joined already; give all in one list")
        prints = [part.fingerprint() for part in parts]
        if len(set(prints)) < len(prints):
            twice = next(i for i, one in enumerate(prints) if one in prints[:i])
            raise InputError(f"encoder {parts[twice].name!r} is given twice; join different ones")
        self.parts = list(parts)
        self.name = " + ".join(part.name for part in parts)

    def fingerprint(self) -> str:
        """Hash of the fingerprints of the parts, in their order."""
        told = ":".join(part.fingerprint() for part in self.parts)
        return hashlib.sha256(f"joined:{told}".encode()).hexdigest()

    def settings(self) -> dict[str, Any]:
        """Settings that recreate the parts from their names or folders."""
        return {"backend": "joined", "parts": [part.settings() for part in self.parts]}

    def check(self) -> None:
        """Raise if one of the models changed since it was made."""
        for part in self.parts:
            part.check()

    def has_seen(self, texts: Sequence[str]) -> BoolArray | None:
        """Whether any of the encoders was trained on each text; None if unknown of one."""
        known = [part.has_seen(texts) for part in self.parts]
        sure = [seen for seen in known if seen is not None]
        return np.any(sure, axis=0) if len(sure) == len(known) else None

    def to_save(self, copied: str) -> tuple[list[str] | None, dict[str, Path]]:
        """The names to record, and files for `copied`, where each local part has a folder."""
        names: list[str] = []
        files: dict[str, Path] = {}
        for i, part in enumerate(self.parts):
            name, own = part.to_save(f"{copied}/{i}")
            if not isinstance(name, str):
                return None, {}  # a function or a loaded model, which only the user has
            names.append(name)
            files.update({f"{i}/{file}": source for file, source in own.items()})
        return names, files

    def features(
        self,
        texts: Sequence[str],
        kind: str = "embedding",
        *,
        cache: VectorCache | None = None,
        advance: Advance = lambda done: None,
    ) -> Matrix:
        """Embeddings for all texts, float32; each part's come from the cache if they can."""
        if kind != "embedding":
            raise InputError(f"joined encoders give embeddings, not {kind}; name one encoder only")
        done = 0

        def share(count: int) -> None:
            """A text is done once all parts have seen it."""
            nonlocal done
            before, done = done, done + count
            advance(done // len(self.parts) - before // len(self.parts))

        rows = [part.features(texts, cache=cache, advance=share) for part in self.parts]
        return np.hstack([_unit(part) for part in rows])

    def _compute(self, texts: Sequence[str], kind: str, advance: Advance) -> Matrix:
        return self.features(texts, kind, advance=advance)


def _unit(rows: Matrix) -> Matrix:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Matrix = (rows / np.maximum(lengths, 1e-30)).astype(np.float32)
    return unit

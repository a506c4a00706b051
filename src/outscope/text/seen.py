"""Which texts an encoder was trained on, as hashes, and which to keep out of training."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from outscope._types import BoolArray
from outscope.decisions.threshold import holdout_size
from outscope.errors import InputError, ModelFileError

FILE = "seen.safetensors"
FPR = 0.05  # the false-alarm rate that "auto" sets aside enough texts for

Hashes = npt.NDArray[np.uint64]


def hashes(texts: Sequence[str]) -> Hashes:
    """A hash of each text, ignoring case and white space."""
    plain = (" ".join(text.casefold().split()).encode("utf-8", "surrogatepass") for text in texts)
    told = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in plain)
    return np.frombuffer(told, "<u8").astype(np.uint64)


def read_seen(folder: Path | None) -> Hashes | None:
    """Hashes of the texts that an encoder was fine-tuned on; None if there is no record."""
    if folder is None or not (folder / "classifier.json").is_file():
        return np.empty(0, np.uint64)  # nothing was fine-tuned here
    if not (folder / FILE).is_file():
        return None  # written before there was a record
    try:
        found: Hashes = safetensors.numpy.load_file(folder / FILE)["hashes"]
    except (OSError, KeyError, safetensors.SafetensorError) as error:
        raise ModelFileError(
            f"{folder / FILE} cannot be read ({error}); fine-tune again"
        ) from error
    return found


def set_aside(
    texts: Sequence[str], size: int | float | str, seed: int, seen: Hashes | None
) -> BoolArray:
    """True for texts to keep out of training, drawn regardless of class.

    Drawing by class would leave out rare classes, whose new texts would then be false alarms more
    often than promised. Copies of a text stay together; texts seen before are not drawn.
    """
    n = len(texts)
    wanted = size
    if size == "auto":
        # If there are too few texts for a promise, some are used to estimate the threshold.
        wanted = 0 if seen is None else holdout_size(n, FPR) or n // 3
    if isinstance(wanted, bool) or not isinstance(wanted, (int, float)) or not 0 <= wanted < n:
        raise InputError(
            f"holdout={size!r} of {n} texts: expected 'auto', a share below 1 or a number of texts "
            "smaller than all"
        )
    count = int(wanted if wanted >= 1 else round(wanted * n))
    copies: dict[int, list[int]] = {}
    for i, key in enumerate(hashes(texts).tolist()):
        copies.setdefault(key, []).append(i)
    for key in () if seen is None else seen.tolist():
        copies.pop(key, None)
    chosen, groups = np.zeros(n, dtype=np.bool_), list(copies.values())
    # One draw for all copies of a text, so that every distinct text has the same chance.
    for i in np.random.default_rng([seed, n]).permutation(len(groups)):
        if len(groups[i]) <= count:
            chosen[groups[i]] = True
            count -= len(groups[i])
    return chosen

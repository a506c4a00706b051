"""What a killed fit leaves behind: one file with the atoms after the last whole epoch."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from outscope.errors import InputError
from outscope.io.atomic import whole_file
from outscope.learning.loop import Learner

FORMAT = "outscope checkpoint 1"


class Checkpoint:
    """A file that is written whole after every epoch and removed when learning has ended.

    `about` says what is being learned from what; a file about anything else is refused.
    """

    def __init__(self, path: str | os.PathLike[str], about: Any) -> None:
        self.path = Path(path)
        self._about = hashlib.blake2b(repr(about).encode(), digest_size=16).hexdigest()
        self.seed: int | None = None
        self.epoch = 0
        self._arrays: dict[str, Any] = {}
        if self.path.exists():
            self._read()

    def seeded(self, seed: int) -> int:
        """The seed of all draws: the remembered one or, in a new fit, the one given."""
        self.seed = seed if self.seed is None else self.seed
        return self.seed

    def restore(self, learners: Sequence[Learner]) -> int:
        """Set the learners back to where they were; return the number of epochs they have had."""
        if self._arrays:
            for c, learner in enumerate(learners):
                learner.atoms = self._arrays[f"{c}.atoms"]
                learner.probability = self._arrays[f"{c}.probability"]
                learner.losses = self._arrays[f"{c}.losses"].tolist()
                learner.n_start = int(self._arrays[f"{c}.n_start"][0])
            self._arrays = {}
        return self.epoch

    def write(self, epoch: int, learners: Sequence[Learner]) -> None:
        """Keep the learners as they are after an epoch."""
        arrays = {}
        for c, learner in enumerate(learners):
            arrays[f"{c}.atoms"] = np.ascontiguousarray(learner.atoms)
            arrays[f"{c}.probability"] = np.ascontiguousarray(learner.probability)
            arrays[f"{c}.losses"] = np.array(learner.losses, np.float64)
            arrays[f"{c}.n_start"] = np.array([learner.n_start])
        note = {"format": FORMAT, "about": self._about, "seed": self.seed, "epoch": epoch}
        with whole_file(self.path) as file:
            file.write(save(arrays, {"outscope": json.dumps(note)}))

    def remove(self) -> None:
        """Learning has ended; nothing is left to resume."""
        self.path.unlink(missing_ok=True)

    def _read(self) -> None:
        again = f"delete {self.path} to start again"
        try:
            with safe_open(self.path, "numpy") as file:
                note = json.loads((file.metadata() or {})["outscope"])
                self._arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            known, self.seed, self.epoch = note["about"], int(note["seed"]), int(note["epoch"])
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror or error}") from error
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{self.path} is not a checkpoint of this version, or was cut short; {again}"
            ) from error
        if note.get("format") != FORMAT or known != self._about:
            raise InputError(
                f"{self.path} belongs to a fit of other rows or with other settings; {again}, or "
                "give another checkpoint"
            )

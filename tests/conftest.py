"""Shared fixtures: every public detector, found by itself, and small data."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

import numpy as np
import pytest

import outscope

ROOT = Path(__file__).parents[1]
EMBEDDINGS = Path(os.environ.get("OUTSCOPE_EMBEDDINGS", ROOT.parent / "shared" / "embeddings"))


def public_detectors():
    """Every public detector class; a new one is tested without anybody remembering it."""
    found = [getattr(outscope, name) for name in outscope.__all__]
    return [
        kind
        for kind in found
        if inspect.isclass(kind)
        and issubclass(kind, outscope.Detector)
        and kind.__name__ != "Detector"
    ]


@pytest.fixture(params=public_detectors(), ids=lambda kind: kind.__name__)
def detector(request):
    """An unfitted detector of each public class, with a fixed seed where it draws."""
    made = request.param()
    if "random_state" in made.get_params():
        made.set_params(random_state=0)
    return made


@pytest.fixture(scope="session")
def blobs():
    """Three in-scope clusters on the sphere with labels, fresh rows of them, and far rows.

    As logits, in-scope rows are sure of one column and far ones of none; as smoothness, far rows
    are rougher in the last column. So one set of rows serves every kind of detector.
    """
    rng = np.random.default_rng(7)
    centres = 8.0 * np.eye(3, 24)
    labels = np.repeat(["pay", "send", "block"], 60)
    train = np.repeat(centres, 60, axis=0) + 0.35 * rng.normal(size=(180, 24))
    fresh = np.repeat(centres, 20, axis=0) + 0.35 * rng.normal(size=(60, 24))
    far = 3.0 * np.eye(24)[-1] + 0.35 * rng.normal(size=(40, 24))
    return train.astype(np.float32), labels, fresh.astype(np.float32), far.astype(np.float32)


@pytest.fixture(scope="session")
def embeddings():
    """Loader of stored embeddings, or a skip that says why."""

    def load(name):
        file = EMBEDDINGS / f"{name}.npz"
        if not file.exists():
            pytest.skip(
                f"{name}.npz is not here; set OUTSCOPE_EMBEDDINGS to the folder that has it"
            )
        return np.load(file)

    return load

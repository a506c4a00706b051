"""The paper's detection tasks on stored embeddings: rows to fit, rows to score, ground truth."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from outscope.paper.tasks import VALIDATION_SHARE, classes_in_scope, cut, pooled_split

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("OUTSCOPE_DATA", ROOT.parent / "shared" / "data"))
EMBEDDINGS = Path(os.environ.get("OUTSCOPE_EMBEDDINGS", ROOT.parent / "shared" / "embeddings"))


class Task(NamedTuple):
    """In-scope rows with labels, queries, and 1 for each out-of-scope query."""

    name: str
    X: np.ndarray
    y: np.ndarray
    queries: np.ndarray
    is_ood: np.ndarray


@cache
def stored(name: str) -> dict[str, np.ndarray]:
    """Arrays of one embeddings file, with half precision widened."""
    with np.load(EMBEDDINGS / f"{name}.npz") as file:
        return {
            key: file[key].astype(np.float32) if file[key].dtype == np.float16 else file[key]
            for key in file.files
        }


def clinc(split: str = "test", name: str = "clinc150") -> Task:
    """CLINC150 with its own out-of-scope queries; "val" joins both small out-of-scope sets."""
    data = stored(name)
    outside = ["oos_test_x"] if split == "test" else ["oos_val_x", "oos_train_x"]
    inside = data[f"{split}_x"]
    ood = np.concatenate([data[key] for key in outside])
    truth = np.r_[np.zeros(len(inside)), np.ones(len(ood))]
    return Task(name, data["train_x"], data["train_y"], np.concatenate([inside, ood]), truth)


def clinc_classes(share: float, seed: int) -> Task:
    """A development task: CLINC150's validation queries with a share of its classes in scope."""
    data = stored("clinc150")
    return _by_class(
        "clinc150", data["train_x"], data["train_y"], data["val_x"], data["val_y"], share, seed
    )


def finetuned_half() -> Task:
    """A development task: every other query of the fine-tuned CLINC150 embeddings."""
    task = clinc(name="clinc150_finetuned")
    return task._replace(queries=task.queries[::2], is_ood=task.is_ood[::2])


def _by_class(name, X, y, queries, labels, share, seed) -> Task:
    chosen = classes_in_scope(y, 100 * share, seed)
    inside = np.isin(y, chosen)
    truth = (~np.isin(labels, chosen)).astype(float)
    return Task(f"{name}-{round(100 * share)}", X[inside], y[inside], queries, truth)


def banking(share: float, seed: int, split: str = "test") -> Task:
    """Banking77 with a share of the classes in scope; a tenth of train is the validation set."""
    data = stored("banking77")
    X, y = data["train_x"], data["train_y"]
    fit, held = cut(y, VALIDATION_SHARE["banking77"], seed)
    queries, labels = (data["test_x"], data["test_y"]) if split == "test" else (X[held], y[held])
    return _by_class("banking77", X[fit], y[fit], queries, labels, share, seed)


def newsgroups(share: float, seed: int, split: str = "test") -> Task:
    """20 Newsgroups, pooled and split 80/10/10 by class, with a share of the classes in scope."""
    data = stored("20newsgroups")
    X = np.concatenate([data["train_x"], data["test_x"]])
    y = np.concatenate([data["train_y"], data["test_y"]])
    fit, held, test = pooled_split(y, seed)
    pick = test if split == "test" else held
    return _by_class("20newsgroups", X[fit], y[fit], X[pick], y[pick], share, seed)

"""The paper's detection tasks as data: texts to fit on, texts to test on, ground truth."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.model_selection import train_test_split

from outscope.errors import InputError, require

# Percent of the classes that are in scope; CLINC150 brings its own out-of-scope texts.
RATIOS = {
    "20newsgroups": (25, 50, 75),
    "banking77": (25, 50, 75),
    "clinc150": (100,),
    "ag_news": (50, 75),
}
# Rows of train, validation and test before classes are drawn (the paper's dataset table).
PUBLISHED_COUNTS = {
    "20newsgroups": (15076, 1885, 1885),
    "banking77": (9002, 1001, 3080),
    "clinc150": (15000, 3100, 5500),
    "ag_news": (112800, 7200, 7600),
}
# Of the training file, where there is no validation file.
VALIDATION_SHARE = {"banking77": 0.1, "ag_news": 0.06}
OOS = "oos"
# If a split of AG News comes from several collections, use the balanced one.
AG_SOURCE = "jatin20k"


class Task(NamedTuple):
    """One detection task: a dataset, the share of its classes in scope, a draw."""

    dataset: str
    ratio: int
    seed: int

    @property
    def name(self) -> str:
        """Short and unique."""
        return f"{self.dataset}-{self.ratio}-{self.seed}"


class Part(NamedTuple):
    """Texts with labels, and which are out of scope."""

    texts: list[str]
    labels: np.ndarray[Any, Any]
    is_ood: np.ndarray[Any, Any]


class TaskData(NamedTuple):
    """Texts to fit, tune and test on; `train` holds in-scope texts only."""

    train: Part
    validation: Part
    test: Part
    counts: tuple[int, int, int]


class _Table(NamedTuple):
    texts: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]


def load_task(task: Task, data: Path | None) -> TaskData:
    """Split and draw as in the paper's Appendix B; the seed decides both."""
    if task.dataset not in RATIOS:
        raise InputError(f"dataset {task.dataset!r} is unknown; choose one of {', '.join(RATIOS)}")
    if task.ratio not in RATIOS[task.dataset]:
        known = ", ".join(map(str, RATIOS[task.dataset]))
        raise InputError(f"{task.dataset} has no ratio {task.ratio}; choose one of {known}")
    train, validation, test = _splits(task.dataset, task.seed, data)
    counts = (len(train.texts), len(validation.texts), len(test.texts))
    chosen = classes_in_scope(train.labels, task.ratio, task.seed)
    parts = [_part(table, chosen) for table in (train, validation, test)]
    fitted = _rows(train, ~parts[0].is_ood)
    return TaskData(_part(fitted, chosen), parts[1], parts[2], counts)


def classes_in_scope(
    labels: np.ndarray[Any, Any], percent: float, seed: int
) -> np.ndarray[Any, Any]:
    """A draw of so many percent of the classes; all of them for 100."""
    classes = np.unique(labels)
    if percent >= 100:
        return classes
    size = round(percent / 100 * len(classes))
    return np.random.default_rng(seed).choice(classes, size, replace=False)


def cut(labels: np.ndarray[Any, Any], share: float, seed: int) -> list[np.ndarray[Any, Any]]:
    """Indices of the rest and of a share of the rows, drawn class by class."""
    return train_test_split(
        np.arange(len(labels)), test_size=share, random_state=seed, stratify=labels
    )


def pooled_split(labels: np.ndarray[Any, Any], seed: int) -> list[np.ndarray[Any, Any]]:
    """Indices of training, validation and test rows of a dataset that comes in one piece."""
    train, rest = cut(labels, 0.2, seed)
    return [train, *(rest[part] for part in cut(labels[rest], 0.5, seed))]


def _part(table: _Table, chosen: np.ndarray[Any, Any]) -> Part:
    return Part(table.texts.tolist(), table.labels, ~np.isin(table.labels, chosen))


def _splits(dataset: str, seed: int, data: Path | None) -> tuple[_Table, _Table, _Table]:
    if dataset == "clinc150":
        return tuple(
            _joined([_read(dataset, split, data), _read(dataset, f"oos_{split}", data)])
            if split != "train"
            else _read(dataset, split, data)
            for split in ("train", "val", "test")
        )  # type: ignore[return-value]
    if dataset == "20newsgroups":
        whole = _joined([_read(dataset, split, data) for split in ("train", "test")])
        return tuple(_rows(whole, part) for part in pooled_split(whole.labels, seed))  # type: ignore[return-value]
    given = _read(dataset, "train", data)
    train, validation = cut(given.labels, VALIDATION_SHARE[dataset], seed)
    return _rows(given, train), _rows(given, validation), _read(dataset, "test", data)


def _joined(tables: list[_Table]) -> _Table:
    return _Table(*(np.concatenate(column) for column in zip(*tables, strict=True)))


def _rows(table: _Table, chosen: np.ndarray[Any, Any]) -> _Table:
    return _Table(table.texts[chosen], table.labels[chosen])


@lru_cache
def _read(dataset: str, split: str, data: Path | None) -> _Table:
    """A split from a data directory, or from its public source."""
    if data is None:
        return _public(dataset, split)
    file = data / dataset / f"{split}.parquet"
    if not file.is_file():
        raise InputError(f"{file} does not exist; give --data the folder that holds {dataset}/")
    table = require("pyarrow.parquet", extra="parquet").read_table(file).to_pydict()
    texts, labels = np.array(table["text"], dtype=object), np.array(table["label"], dtype=str)
    if dataset == "ag_news" and "source" in table:
        kept = np.array(table["source"]) == AG_SOURCE
        if kept.any():
            texts, labels = texts[kept], labels[kept]
    return _Table(texts, labels)


def _public(dataset: str, split: str) -> _Table:
    if dataset == "20newsgroups":
        from sklearn.datasets import fetch_20newsgroups

        bunch = fetch_20newsgroups(subset=split, remove=("headers", "footers", "quotes"))
        names = np.array(bunch.target_names)
        return _Table(np.array(bunch.data, dtype=object), names[bunch.target])
    hub = require("datasets", extra="paper")
    sources = {
        "banking77": ("PolyAI/banking77", None),
        "ag_news": ("fancyzhx/ag_news", None),
        "clinc150": ("clinc/clinc_oos", "plus"),
    }
    wanted = {"val": "validation"}.get(split.removeprefix("oos_"), split.removeprefix("oos_"))
    found = hub.load_dataset(*sources[dataset], split=wanted)
    column = "intent" if dataset == "clinc150" else "label"
    labels = np.array(found.features[column].int2str(found[column]))
    texts = np.array(found["text"], dtype=object)
    if dataset == "clinc150":
        outside = labels == OOS
        kept = outside if split.startswith("oos_") else ~outside
        return _Table(texts[kept], labels[kept])
    return _Table(texts, labels)

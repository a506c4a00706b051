"""Records → the paper's tables: ours, published and the difference, in the paper's layout."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from outscope.paper.published import printed, published
from outscope.paper.records import Record
from outscope.paper.settings import CLASSIFIER, NNK, OURS, PAPER, SMALL
from outscope.paper.tasks import RATIOS

TITLES = {
    "20newsgroups": "20 Newsgroups",
    "banking77": "Banking77",
    "clinc150": "CLINC150",
    "ag_news": "AG News",
}
REPRESENTED = {
    "pretrained": "pre-trained",
    "finetuned": "fine-tuned",
    "contrastive": "margin-contrastive",
}
NOTE = (
    "mean ± standard deviation over draws; in brackets the paper's number and the difference. "
    "“ours”: our defaults, nothing tuned; “small”: ours in at most 13 % of KNN's bytes (half as "
    "many 8-bit atoms as rows or, for isolated rows, all rows as 4-bit atoms)."
)
MEASURES = {"auroc": "AUROC ↑", "aupr_in": "AUPR (ID positive) ↑", "fpr_at_95": "FPR@95 ↓"}
BLIND = ("knn", "kmeans", "nnk-means", "ec-nnk-means")
AWARE = (
    "msp",
    "energy",
    "d2u",
    "blood",
    "mahalanobis",
    "c-kmeans",
    "c-nnk-means",
    "c-ec-nnk-means",
)
NAMES = {
    "knn": "KNN", "kmeans": "kMeans", "nnk-means": "NNK-Means", "ec-nnk-means": "EC-NNK-Means",
    "msp": "MSP", "energy": "Energy", "d2u": "D2U", "blood": "BLOOD", "mahalanobis": "Mahalanobis",
    "c-kmeans": "C-kMeans", "c-nnk-means": "C-NNK-Means", "c-ec-nnk-means": "C-EC-NNK-Means",
}  # fmt: skip


class Setting(NamedTuple):
    """A column: a dataset at a ratio."""

    dataset: str
    ratio: int

    @property
    def title(self) -> str:
        """For a table header."""
        ratio = "" if self.dataset == "clinc150" else f" {self.ratio} %"
        return TITLES[self.dataset] + ratio


class Cell(NamedTuple):
    """Mean and spread over draws, the paper's number, and whether it is best in its group."""

    mean: float
    spread: float
    draws: int
    printed: float | None
    best: bool = False


class Row(NamedTuple):
    """One method with one kind of settings."""

    group: str
    name: str
    cells: dict[str, Cell | None]


class Table(NamedTuple):
    """A table in the paper's layout."""

    title: str
    note: str
    columns: list[str]
    rows: list[Row]
    digits: int = 2


SETTINGS = [Setting(dataset, ratio) for dataset, ratios in RATIOS.items() for ratio in ratios]


def latest(records: list[Record]) -> list[Record]:
    """Measured records of the draws that count; tuned ones come before the paper's choice."""
    kept: dict[Any, Record] = {}
    for record in records:
        if record["status"] == "done" and record.get("kind") != "choice":
            place = tuple(
                record[n]
                for n in (
                    "dataset",
                    "ratio",
                    "seed",
                    "representation",
                    "encoder",
                    "method",
                    "settings",
                )
            )
            if place not in kept or record["key"].endswith("/tuned"):
                kept[place] = record
    return _common_draws(list(kept.values()))


def _common_draws(records: list[Record]) -> list[Record]:
    """For each setting, the draws that every method there has run, so that means are comparable.

    A draw decides which classes are in scope, which moves all methods by points. If no draw is
    complete, all draws.
    """
    ran: dict[Any, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for record in records:
        ran[_place(record)][record["seed"]].add(f"{record['method']}/{record['settings']}")
    complete = {}
    for place, draws in ran.items():
        every = set().union(*draws.values())
        complete[place] = {seed for seed, seen in draws.items() if seen == every} or set(draws)
    return [record for record in records if record["seed"] in complete[_place(record)]]


def _place(record: Record) -> tuple[Any, ...]:
    return tuple(record[n] for n in ("dataset", "ratio", "representation", "encoder"))


def means(
    records: list[Record], measure: str, representation: str, encoder: str
) -> dict[tuple[str, str, Setting], tuple[float, float, int]]:
    """(method, settings, setting) → mean, standard deviation and number of draws."""
    groups = defaultdict(list)
    for record in latest(records):
        if (record["representation"], record["encoder"]) == (representation, encoder):
            value = (
                record["seconds"]["score"]
                if measure == "seconds"
                else 100 * record["metrics"][measure]
            )
            setting = Setting(record["dataset"], record["ratio"])
            groups[record["method"], record["settings"], setting].append(value)
    return {
        key: (float(np.mean(values)), float(np.std(values)), len(values))
        for key, values in groups.items()
    }


def measure_table(
    records: list[Record], measure: str, representation: str, encoder: str, settings: list[Setting]
) -> Table | None:
    """AUROC, AUPR or FPR@95 of every method; None if nothing was run."""
    found = means(records, measure, representation, encoder)
    settings = [s for s in settings if any(key[2] == s for key in found)]
    if not settings:
        return None
    rows = []
    for group, methods in (("label-blind", BLIND), ("label-aware", AWARE)):
        for method in methods:
            if representation == "pretrained" and method in CLASSIFIER:
                continue
            rows.append(_row(group, method, PAPER, found, settings, measure, representation))
            if method in NNK:
                rows.append(_row(group, method, OURS, found, settings, measure, representation))
        if group == "label-blind":
            rows.append(_row(group, "nnk-means", SMALL, found, settings, measure, representation))
    rows = [row for row in rows if any(row.cells.values())]
    return Table(
        f"{MEASURES[measure]}, {REPRESENTED[representation]} {encoder}",
        NOTE,
        [setting.title for setting in settings],
        _with_best(rows, lower=measure == "fpr_at_95"),
    )


def _row(
    group: str, method: str, kind: str, found: Any, settings: list[Setting], measure: str, rep: str
) -> Row:
    name = NAMES[method] + {PAPER: "", OURS: " (ours)", SMALL: " (ours, small)"}[kind]
    cells: dict[str, Cell | None] = {}
    for setting in settings:
        values = found.get((method, kind, setting))
        told = printed(method, *setting, rep, measure) if kind == PAPER else None
        if values is None:
            cells[setting.title] = None
        else:
            mean, spread, draws = values
            cells[setting.title] = Cell(mean, spread, draws, told)
    return Row(group, name, cells)


def _with_best(rows: list[Row], *, lower: bool) -> list[Row]:
    pick = min if lower else max
    best: dict[tuple[str, str], float] = {}
    for row in rows:
        for column, cell in row.cells.items():
            if cell is not None:
                place = row.group, column
                best[place] = pick(best.get(place, cell.mean), cell.mean)
    return [
        row._replace(
            cells={
                column: None
                if cell is None
                else cell._replace(best=round(cell.mean, 2) == round(best[row.group, column], 2))
                for column, cell in row.cells.items()
            }
        )
        for row in rows
    ]


def time_table(records: list[Record], representation: str, encoder: str) -> Table | None:
    """Seconds to score the test set, over all ratios of a dataset."""
    found = means(records, "seconds", representation, encoder)
    datasets = [name for name in RATIOS if any(key[2].dataset == name for key in found)]
    if not datasets:
        return None
    rows = []
    for group, methods in (("label-blind", BLIND), ("label-aware", AWARE)):
        for method in methods:
            for kind in (PAPER, OURS):
                cells: dict[str, Cell | None] = {}
                for dataset in datasets:
                    values = [
                        value
                        for key, value in found.items()
                        if key[:2] == (method, kind) and key[2].dataset == dataset
                    ]
                    told = printed(method, dataset, 0, "finetuned", "seconds")
                    cells[TITLES[dataset]] = (
                        Cell(
                            float(np.mean([v[0] for v in values])),
                            float(np.std([v[0] for v in values])),
                            sum(v[2] for v in values),
                            told if kind == PAPER else None,
                        )
                        if values and method not in CLASSIFIER
                        else None
                    )
                name = NAMES[method] + (" (ours)" if kind == OURS else "")
                rows.append(Row(group, name, cells))
    rows = [row for row in rows if any(row.cells.values())]
    return Table(
        f"Inference time in seconds ↓, {REPRESENTED[representation]} {encoder}",
        "to score the test set after embedding, on 2 CPU cores (the paper: one V100 GPU; its KNN "
        "asked for 10,000 neighbours of each query, ours is an honest 1-NN); best of three, and "
        "other runs may have shared the machine: perf/speed.py measures side by side",
        [TITLES[name] for name in datasets],
        _with_best(rows, lower=True),
        digits=3,
    )


def contrast_table(records: list[Record], encoder: str) -> Table | None:
    """AUROC with pre-trained and margin-contrastive vectors side by side, where both were run."""
    kinds = ("pretrained", "contrastive")
    made = (measure_table(records, "auroc", kind, encoder, SETTINGS) for kind in kinds)
    tables = [table for table in made if table is not None]
    shared = [c for c in tables[0].columns if c in tables[-1].columns] if len(tables) == 2 else []
    if not shared:
        return None
    found: dict[tuple[str, str], dict[str, Cell | None]] = {}
    for kind, table in zip(kinds, tables, strict=True):
        for row in table.rows:
            cells = found.setdefault((row.group, row.name), {})
            cells |= {f"{c}, {REPRESENTED[kind]}": row.cells.get(c) for c in shared}
    return Table(
        f"AUROC ↑, pre-trained against margin-contrastive {encoder}",
        NOTE,
        [f"{column}, {REPRESENTED[kind]}" for column in shared for kind in kinds],
        [Row(*place, cells) for place, cells in found.items() if len(cells) == 2 * len(shared)],
    )


def choice_table(records: list[Record]) -> list[list[str]]:
    """Hyper-parameters used with the paper's settings, and the paper's own: rows of text."""
    told = {
        (o.method, o.dataset, o.ratio, o.representation): o.value
        for o in published()
        if o.measure == "hyper_parameters"
    }
    out = {}
    for record in latest(records):
        if record["settings"] == PAPER and record["hyper_parameters"]:
            place = record["method"], record["dataset"], record["ratio"], record["representation"]
            here = " ".join(f"{value:g}" for value in record["hyper_parameters"])
            how = "tuned here" if record["key"].endswith("/tuned") else "the paper's"
            setting = Setting(record["dataset"], record["ratio"])
            out[place] = [
                setting.title,
                REPRESENTED[record["representation"]],
                NAMES[record["method"]],
                f"{here} ({how})",
                told.get(place, "–"),
            ]
    return [out[place] for place in sorted(out, key=lambda p: (p[1], p[2], p[3], p[0]))]


def training_table(records: list[Record]) -> list[list[str]]:
    """How the encoders behind the records were fine-tuned: rows of text."""
    out = {}
    for r in latest(records):
        if told := r["training"]:
            rows = "all" if told["most_rows"] is None else f"at most {told['most_rows']:,}"
            out[r["dataset"], r["representation"]] = [
                TITLES[r["dataset"]],
                REPRESENTED[r["representation"]],
                rows,
                str(told["epochs"]),
                str(told["batch_size"]),
                f"{told['learning_rate']:g}",
                str(told["max_length"]),
            ]
    return [out[place] for place in sorted(out)]

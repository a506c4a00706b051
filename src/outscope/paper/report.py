"""From records to a report: its tables and the text above them."""

from __future__ import annotations

from typing import Any

import numpy as np

from outscope import __version__
from outscope.paper import figures
from outscope.paper.claims import NEARLY, claims, scopes
from outscope.paper.features import Store
from outscope.paper.records import Record
from outscope.paper.rendering import Report
from outscope.paper.tables import (
    MEASURES,
    SETTINGS,
    TITLES,
    choice_table,
    contrast_table,
    latest,
    measure_table,
    time_table,
    training_table,
)
from outscope.paper.tasks import PUBLISHED_COUNTS, Task

PICTURED = Task("20newsgroups", 25, 0)
EXAMPLES = 4


def build_report(
    records: list[Record], *, with_figures: bool = True, store: Store | None = None
) -> Report:
    """Everything the records can show; with a data store, also figures and example texts."""
    tables = []
    for scope in scopes(records):
        for measure in MEASURES:
            tables.append(measure_table(records, measure, *scope, SETTINGS))
        tables.append(time_table(records, *scope))
    encoders = sorted({scope.encoder for scope in scopes(records)})
    tables += [contrast_table(records, encoder) for encoder in encoders]
    texts = []
    if chosen := choice_table(records):
        head = ["setting", "representation", "method", "used here", "printed in the paper"]
        texts.append(("Hyper-parameters (atoms, λ)", head, chosen))
    if trained := training_table(records):
        head = ["dataset", "representation", "rows", "epochs", "batch", "rate", "tokens"]
        texts.append(("How the encoders were fine-tuned", head, trained))
    texts.append(("Rows of each dataset", ["dataset", "here", "in the paper"], _counts(records)))
    drawn: list[Any] = []
    if with_figures:
        drawn += [figures.by_representation(records, encoder) for encoder in encoders]
        drawn += [figures.size_and_auroc(records), figures.ablation(records)]
        if store is not None:
            figure, tables_of_texts = _pictured(store, task_to_picture(records))
            drawn.append(figure)
            texts += tables_of_texts
    done = latest(records)
    failed = [r for r in records if r["status"] == "failed"]
    intro = [
        f"{len(done)} measured results, {len(failed)} failed. “paper”: the paper's own settings "
        "(cosine kernel, its update, its score), hyper-parameters tuned on validation texts as in "
        "its Appendix F or, where that was not run, those it printed.",
        "Why numbers differ from the paper's: its encoder, all-distilroberta-v1 (82 M parameters), "
        "is on no package index, so all-MiniLM-L6-v2 (23 M) and all-mpnet-base-v2 (110 M) stand "
        "in; the in-scope classes are drawn anew, and a draw moves all methods by points; "
        "fewer draws, rows, tokens and epochs where a table below says so; the last layer's mean, "
        "not the penultimate one's; times are for 2 CPU cores, not a GPU. Compare the order of "
        "methods within a column.",
        f"“Nearly holds”: within {100 * NEARLY:g} points of the share that the paper prints.",
        *_older(done),
    ]
    return Report(
        "NNK-Means for out-of-distribution detection, reproduced",
        intro,
        claims(records),
        [table for table in tables if table is not None],
        texts,
        [figure for figure in drawn if figure is not None],
    )


def _older(done: list[Record]) -> list[str]:
    """A warning where results with our own settings come from another version's defaults."""
    ours = [r["versions"]["outscope"] for r in done if r["settings"] in ("ours", "small")]
    older = [found for found in ours if found != __version__]
    if not older:
        return []
    return [
        f"{len(older)} of {len(ours)} results with our own settings were made with the defaults of "
        f"Outscope {', '.join(sorted(set(older)))}. This is {__version__}, whose defaults differ."
    ]


def _counts(records: list[Record]) -> list[list[str]]:
    here = {r["dataset"]: r["counts"] for r in latest(records)}
    return [
        [TITLES[name], *(" / ".join(f"{n:,}" for n in counts) for counts in (here[name], told))]
        for name, told in PUBLISHED_COUNTS.items()
        if name in here
    ]


def task_to_picture(records: list[Record]) -> Task:
    """The paper's encoder or, if that was not run, the smallest one run: its vectors exist."""
    done = [r for r in latest(records) if r["representation"] == "pretrained"]
    tasks = {Task(r["dataset"], r["ratio"], r["seed"]): r["train_rows"] for r in done}
    if PICTURED in tasks or not tasks:
        return PICTURED
    return min(tasks, key=lambda task: (tasks[task], task))


def _pictured(store: Store, task: Task) -> tuple[Any, list[tuple[str, list[str], list[list[str]]]]]:
    """The 2-d map of atoms and out-of-scope texts, and example texts with their errors."""
    from outscope.paper.published import chosen
    from outscope.paper.settings import PAPER, Variant, make

    features = store.features(task, "pretrained")
    part = features.data.validation
    values = chosen("nnk-means", task.dataset, task.ratio, "pretrained")
    detector: Any = make(Variant("nnk-means", PAPER), values, task.seed)
    detector.fit(features.train)
    errors = detector.ood_score(features.validation)
    figure = figures.picture(
        features.validation,
        part.labels,
        part.is_ood,
        detector.atoms_,
        part.texts,
        errors,
        f"{TITLES[task.dataset]} {task.ratio} %",
    )

    def rows(chosen: Any) -> list[list[str]]:
        return [
            [" ".join(part.texts[i].split())[:400], str(part.labels[i]), f"{errors[i]:.2f}"]
            for i in chosen
        ]

    order = np.argsort(errors)
    readable = [i for i in order if 60 < len(part.texts[i]) < 900]
    inside = [i for i in readable if not part.is_ood[i]]
    outside = [i for i in readable if part.is_ood[i]]
    head = ["text", "label", "error"]
    return figure, [
        ("In-scope texts that the dictionary explains best", head, rows(inside[:EXAMPLES])),
        ("In-scope texts that it explains worst", head, rows(inside[-EXAMPLES:])),
        ("Out-of-scope texts that look in scope", head, rows(outside[:EXAMPLES])),
    ]

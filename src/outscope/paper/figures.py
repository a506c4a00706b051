"""Interactive figures of the records, for the page. Needs plotly."""

from __future__ import annotations

from typing import Any

import numpy as np

from outscope._types import Matrix
from outscope.errors import require
from outscope.paper.records import Record
from outscope.paper.settings import NNK, OURS, PAPER
from outscope.paper.tables import AWARE, BLIND, NAMES, REPRESENTED, Setting, latest, means

COLOURS = ("#4c6ef5", "#f76707", "#2b8a3e", "#ae3ec9", "#1098ad", "#e03131", "#868e96", "#f59f00")
# Titles go to `meta`: the page prints them above, where they can wrap; legends go below.
LAYOUT = {
    "template": "plotly_white",
    "height": 500,
    "margin": {"l": 60, "r": 20, "t": 40, "b": 20},
    "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom"},
}


def _plotly() -> Any:
    return require("plotly.graph_objects", extra="paper")


def by_representation(records: list[Record], encoder: str) -> Any | None:
    """AUROC of each method under each representation, one setting at a time."""
    go = _plotly()
    tables = {rep: means(records, "auroc", rep, encoder) for rep in REPRESENTED}
    settings = sorted({key[2] for found in tables.values() for key in found})
    if not settings:
        return None
    figure = go.Figure()
    rows = [(m, PAPER) for m in (*BLIND, *AWARE)] + [(m, OURS) for m in NNK]
    for place, setting in enumerate(settings):
        for colour, (rep, found) in zip(COLOURS, tables.items(), strict=False):
            there = [(m, k) for m, k in rows if (m, k, setting) in found]
            figure.add_bar(
                x=[NAMES[m] + (" (ours)" if k == OURS else "") for m, k in there],
                y=[found[m, k, setting][0] for m, k in there],
                error_y={"array": [found[m, k, setting][1] for m, k in there]},
                name=REPRESENTED[rep],
                marker_color=colour,
                visible=place == 0,
            )
    buttons = [
        {
            "label": setting.title,
            "method": "update",
            "args": [
                {"visible": [i // len(tables) == place for i in range(len(settings) * len(tables))]}
            ],
        }
        for place, setting in enumerate(settings)
    ]
    values = [value[0] for found in tables.values() for value in found.values()]
    figure.update_layout(
        **LAYOUT,
        meta=f"AUROC by method and representation, {encoder}",
        yaxis={"title": "AUROC", "range": [max(0.0, min(values) - 3), 100]},
        updatemenus=[{"buttons": buttons, "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom"}],
    )
    return figure


def size_and_auroc(records: list[Record]) -> Any | None:
    """What each method stores against the AUROC it reaches."""
    go = _plotly()
    figure = go.Figure()
    points: dict[str, list[tuple[float, float, str]]] = {}
    for r in latest(records):
        if r["stored_vectors"]:
            name = NAMES[r["method"]] + ("" if r["settings"] == PAPER else f" ({r['settings']})")
            setting = Setting(r["dataset"], r["ratio"])
            words = f"{setting.title}, {r['representation']}, draw {r['seed']}"
            points.setdefault(name, []).append(
                (r["stored_bytes"] / 1e6, 100 * r["metrics"]["auroc"], words)
            )
    if not points:
        return None
    for i, (name, found) in enumerate(sorted(points.items())):
        x, y, told = zip(*found, strict=True)
        figure.add_scatter(
            x=x, y=y, text=told, name=name, mode="markers",
            marker={"color": COLOURS[i % len(COLOURS)], "symbol": i % 20, "size": 8},
        )  # fmt: skip
    figure.update_layout(
        **{**LAYOUT, "height": 680},
        meta="Storage and AUROC (click names to hide them)",
        xaxis={"title": "MB stored", "type": "log"},
        yaxis={"title": "AUROC"},
    )
    return figure


def ablation(records: list[Record]) -> Any | None:
    """Final atoms and validation AUROC over λ and the initial number of atoms."""
    go = _plotly()
    tried = [
        r for r in records if r.get("kind") == "choice" and r["method"] == "ec-nnk-means"
        and (r["dataset"], r["ratio"]) == ("20newsgroups", 25)
    ]  # fmt: skip
    plain = {
        r["representation"]: r
        for r in records
        if r.get("kind") == "choice" and r["method"] == "nnk-means"
        and (r["dataset"], r["ratio"]) == ("20newsgroups", 25)
    }  # fmt: skip
    if not tried:
        return None
    record = tried[-1]
    points = [(*one["values"], one["vectors"], 100 * one["auroc"]) for one in record["tried"]]
    if record["representation"] in plain:
        points += [
            (one["values"][0], 0.0, one["vectors"], 100 * one["auroc"])
            for one in plain[record["representation"]]["tried"]
        ]
    figure = go.Figure()
    for colour, atoms in zip(COLOURS, sorted({p[0] for p in points}), strict=False):
        line = sorted(p for p in points if p[0] == atoms)
        figure.add_scatter(
            x=[p[1] for p in line], y=[p[3] for p in line], mode="lines+markers+text",
            text=[f"{p[2]:,}" for p in line], textposition="top center",
            name=f"{atoms:,.0f} at the start", line={"color": colour},
        )  # fmt: skip
    figure.update_layout(
        **LAYOUT,
        meta=f"EC-NNK-Means on 20 Newsgroups 25 %, {record['representation']}: "
        "AUROC on validation texts, numbers are atoms left",
        xaxis={"title": "λ"},
        yaxis={"title": "AUROC"},
    )
    return figure


def picture(
    points: Matrix,
    labels: Any,
    is_ood: Any,
    atoms: Matrix,
    texts: list[str],
    errors: Any,
    setting: str,
) -> Any:
    """Validation texts and learned atoms in the plane (UMAP)."""
    go = _plotly()
    umap = require("umap", extra="paper")
    plane = umap.UMAP(metric="cosine", random_state=0, n_jobs=1)
    placed = plane.fit_transform(np.concatenate([points, atoms]))
    figure = go.Figure()
    where = placed[: len(points)]
    names = np.where(is_ood, "out of scope", labels)
    kinds = [*sorted(set(names) - {"out of scope"}), "out of scope"]
    for colour, kind in zip((*COLOURS, "#adb5bd") * 4, kinds, strict=False):
        mine = np.flatnonzero(names == kind)
        figure.add_scattergl(
            x=where[mine, 0], y=where[mine, 1], mode="markers", name=kind,
            marker={"size": 5, "color": "#adb5bd" if kind == "out of scope" else colour},
            text=[f"{labels[i]}, error {errors[i]:.2f}<br>{texts[i][:120]}" for i in mine],
            hoverinfo="text",
        )  # fmt: skip
    figure.add_scattergl(
        x=placed[len(points) :, 0], y=placed[len(points) :, 1], mode="markers", name="atoms",
        marker={"size": 4, "symbol": "x", "color": "black"},
    )  # fmt: skip
    figure.update_layout(
        **{**LAYOUT, "height": 640}, meta=f"Validation texts and atoms, {setting} (UMAP)"
    )
    return figure

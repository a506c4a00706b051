"""Tables, claims and figures as Markdown and as one self-contained page."""

from __future__ import annotations

import html
from typing import Any, NamedTuple

from outscope.paper.claims import Claim
from outscope.paper.tables import Cell, Table

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#212529}
body{max-width:1200px;margin:2rem auto;padding:0 1rem;overflow-wrap:break-word}
.wide{overflow-x:auto;margin:.6rem 0 1.6rem}
.cut::before{content:"scroll sideways for all columns →";position:sticky;left:0}
.cut::before{font-size:13px;color:#1864ab}
table{border-collapse:collapse;font-size:13px}
th,td{padding:.28rem .6rem;border-bottom:1px solid #e9ecef;text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:#fff}
tr.group td{font-weight:600;background:#f8f9fa;text-align:left}small{color:#868e96}
td.words,th.words{text-align:left;white-space:normal}tr:hover td{background:#f1f3f5}
.good{color:#2b8a3e}.part{color:#a85800}.bad{color:#c92a2a}h2{margin-top:2.4rem}
@media(max-width:700px){.claims th{display:none}.claims td{display:block;border:0;padding:.1rem 0}
.claims tr{display:block;padding:.6rem 0;border-bottom:1px solid #ced4da}
td:first-child{white-space:normal;min-width:6.5rem}h1{font-size:1.5rem}h2{font-size:1.2rem}}
"""
# Adds a hint above tables wider than the page and makes them reachable by keyboard.
SCRIPT = """
const look=()=>document.querySelectorAll(".wide").forEach(e=>{
const cut=e.scrollWidth>e.clientWidth;e.classList.toggle("cut",cut);if(cut)e.tabIndex=0});
addEventListener("load",look);addEventListener("resize",look);
"""
# Page width, and no toolbar, which would cover titles.
PLOTLY = {"displayModeBar": False, "responsive": True}


class Report(NamedTuple):
    """Everything shown, in order."""

    title: str
    intro: list[str]
    claims: list[Claim]
    tables: list[Table]
    texts: list[tuple[str, list[str], list[list[str]]]]  # title, head, rows
    figures: list[Any]


def _numbers(cell: Cell, digits: int) -> tuple[str, str]:
    main = f"{cell.mean:.{digits}f}"
    if cell.draws > 1:
        main += f" ± {cell.spread:.{digits}f}"
    told = ""
    if cell.printed is not None:
        told = f"({cell.printed:g}, {cell.mean - cell.printed:+.{digits}f})"
    return main, told


def markdown(report: Report) -> str:
    """The report as Markdown, without figures."""
    out = [f"# {report.title}", "", "\n\n".join(report.intro), ""]
    if report.claims:
        out += ["## The claims", "", "| claim | here | numbers |", "|---|---|---|"]
        out += [f"| {c.claim} | **{c.verdict}** | {c.numbers} |" for c in report.claims]
        out.append("")
    for table in report.tables:
        out += [f"## {table.title}", "", table.note, ""]
        out += [
            "| method | " + " | ".join(table.columns) + " |",
            "|---" * (len(table.columns) + 1) + "|",
        ]
        group = None
        for row in table.rows:
            if row.group != group:
                group = row.group
                out.append(f"| *{group}* |" + " |" * len(table.columns))
            cells = []
            for column in table.columns:
                cell = row.cells.get(column)
                if cell is None:
                    cells.append("–")
                    continue
                main, told = _numbers(cell, table.digits)
                cells.append(
                    f"**{main}** {told}".strip() if cell.best else f"{main} {told}".strip()
                )
            out.append(f"| {row.name} | " + " | ".join(cells) + " |")
        out.append("")
    for title, head, rows in report.texts:
        out += [f"## {title}", "", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        out += ["| " + " | ".join(row) + " |" for row in rows]
        out.append("")
    return "\n".join(out)


def page(report: Report) -> str:
    """The report as one HTML page that needs no network."""
    escape = html.escape
    out = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width,initial-scale=1'>",
        f"<title>{escape(report.title)}</title><style>{STYLE}</style><script>{SCRIPT}</script>",
        f"<h1>{escape(report.title)}</h1>",
        *(f"<p>{escape(line)}</p>" for line in report.intro if line),
    ]
    if report.claims:
        out.append("<h2>The claims</h2><div class=wide><table class=claims>")
        out.append("<tr><th class=words>claim<th class=words>here<th class=words>numbers</tr>")
        for claim in report.claims:
            kind = {"holds here": "good", "does not hold here": "bad"}.get(claim.verdict, "part")
            out.append(
                f"<tr><td class=words>{escape(claim.claim)}"
                f"<td class='words {kind}'><b>{escape(claim.verdict)}</b>"
                f"<td class=words>{escape(claim.numbers)}</tr>"
            )
        out.append("</table></div>")
    for i, figure in enumerate(report.figures):
        drawn = figure.to_html(
            full_html=False, include_plotlyjs="inline" if i == 0 else False, config=PLOTLY
        )
        out.append(f"<h2>{escape(figure.layout.meta or '')}</h2>{drawn}")
    out += [_html_table(table) for table in report.tables]
    for title, head, rows in report.texts:
        cells = "".join(f"<th class=words>{escape(name)}" for name in head)
        body = "".join(
            "<tr>" + "".join(f"<td class=words>{escape(value)}" for value in row) + "</tr>"
            for row in rows
        )
        out.append(
            f"<h2>{escape(title)}</h2><div class=wide><table><tr>{cells}</tr>{body}</table></div>"
        )
    return "\n".join(out) + "</html>\n"


def _html_table(table: Table) -> str:
    escape = html.escape
    out = [f"<h2>{escape(table.title)}</h2><p><small>{escape(table.note)}</small></p>"]
    out.append(
        "<div class=wide><table><tr><th>method"
        + "".join(f"<th>{escape(c)}" for c in table.columns)
        + "</tr>"
    )
    group = None
    for row in table.rows:
        if row.group != group:
            group = row.group
            out.append(f"<tr class=group><td colspan={len(table.columns) + 1}>{escape(group)}</tr>")
        out.append(f"<tr><td>{escape(row.name)}")
        for column in table.columns:
            cell = row.cells.get(column)
            if cell is None:
                out.append("<td>–")
                continue
            main, told = _numbers(cell, table.digits)
            main = f"<b>{main}</b>" if cell.best else main
            out.append(f"<td title='{cell.draws} draws'>{main} <small>{told}</small>")
        out.append("</tr>")
    return "".join(out) + "</table></div>"

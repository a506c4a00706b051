"""docs/performance.md from the records in results/: ratios, and how cost grows, with plots.

`python page.py` prints the page and writes it; `make perf` runs the benchmarks first.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from records import latest

DOCS = Path(__file__).parents[1] / "docs"
UNITS = {"rows": "rows", "atoms": "atoms", "columns": "columns"}
WIDTH, HEIGHT, EDGE = 420, 260, 48
HEAD = """# Performance

Written by `perf/page.py` from the records in `perf/results`; `make perf` measures all of it again. Both sides of a
ratio ran in one process or in turns, with the same number of threads, and the best of several turns counts.

Machine: {machine}; BLAS kernels: {blas}. Measured up to {date}.

## Ratios

| what | ratio | bar | goal | in seconds, or where |
|---|---|---|---|---|
"""
SEARCH = """
## Large dictionaries

`search="faiss"` against exact search: generated rows, 384 columns, 10 neighbours; half of the queries lie between two rows.

| atoms | µs of processor per row, exact / index | first call with index, s | recall | of strange rows | AUROC, exact / index |
|---|---|---|---|---|---|
"""
GROWTH = """
## How cost grows

A fit of every row of float16 files with `memory="400MB"` (one epoch, after facts and first atoms from a sample). "Grows as" is the exponent
that fits the points: 1 is proportional. Fixed costs (sample, first atoms) are in it, and pull it below 1.

| with | grows as (time) | grows as (processor time) | peak memory, MB |
|---|---|---|---|
"""


def exponent(points: list[dict], name: str) -> float:
    """The slope of a straight line through the points in logarithms."""
    x, y = (np.log([p[key] for p in points]) for key in ("value", name))
    return float(np.polyfit(x, y, 1)[0])


def plot(points: list[dict], what: str, slope: float) -> str:
    """Seconds against what grows, both in logarithms, as SVG."""
    x, y = (np.log10([p[key] for p in points]) for key in ("value", "seconds"))

    def place(values, low, high, size):
        return EDGE + (values - low) / (high - low) * (size - 2 * EDGE)

    low, high = y.min() - 0.1, y.max() + 0.1
    px, py = place(x, x.min(), x.max(), WIDTH), HEIGHT - place(y, low, high, HEIGHT)
    dots = "".join(
        f'<circle cx="{a:.0f}" cy="{b:.0f}" r="4"/>' for a, b in zip(px, py, strict=True)
    )
    line = " ".join(f"{a:.0f},{b:.0f}" for a, b in zip(px, py, strict=True))
    ticks = "".join(
        f'<text x="{a:.0f}" y="{HEIGHT - EDGE + 18}" text-anchor="middle">{p["value"]:,}</text>'
        f'<text x="{a + 6:.0f}" y="{b - 8:.0f}">{p["seconds"]:.3g} s</text>'
        for a, b, p in zip(px, py, points, strict=True)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="11" fill="#4477aa">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
        f'<polyline points="{line}" fill="none" stroke="#4477aa" stroke-width="2"/>{dots}'
        f'<g fill="#333333">{ticks}<text x="{EDGE}" y="20" font-size="13">seconds by {what}, '
        f"exponent {slope:.2f}</text></g></svg>\n"
    )


def on_many(points: list[dict]) -> str:
    """What a thousand million rows would cost, from the rate of the largest measured fit."""
    most = max(points, key=lambda p: p["value"])
    rate = most["value"] / most["cpu"]
    hours = 1e9 / rate / 3600
    return f"""
## On paper: 10⁹ rows on 64 workers

The largest fit above coded {rate:,.0f} rows per second of one core ({most["value"]:,} rows, 250 atoms of 384 numbers). At
that rate an epoch over 10⁹ rows takes {hours:.1f} hours of one core, and {60 * hours / 64:.1f} minutes of 64 if reading
keeps up: each worker then reads {768 * rate / 1e6:.0f} MB per second of float16 rows. With 2,000 atoms the products cost
eight times as much. A part of 32,768 rows sends back 0.8 MB of sums for 250 atoms (6 MB for 2,000); 10⁹ rows are 30,518
parts, so the process that merges them takes in {30518 * 0.8 / 1000:.0f} GB per epoch ({30518 * 6.2 / 1000:.0f} GB for
2,000 atoms), which is the first thing to become tight. None of this has been run.
"""


def blas_kernels() -> str:
    """The instruction set that numpy's matrix products use, as its library names it."""
    from threadpoolctl import threadpool_info

    found = {str(one.get("architecture", "?")) for one in threadpool_info()}
    return ", ".join(sorted(found)) or "unknown"


def searches() -> str:
    """Exact search against an index, by the number of atoms."""
    text = SEARCH
    for r in sorted(latest("search", "atoms"), key=lambda r: r["atoms"]):
        text += f"| {r['atoms']:,} | {r['exact_cpu_us']:.0f} / {r['faiss_cpu_us']:.0f} "
        text += f"| {r['faiss_first_s']:.1f} | {r['recall']:.3f} | {r['recall_strange']:.3f} "
        text += f"| {r['exact_auroc']:.2f} / {r['faiss_auroc']:.2f} |\n"
    return text


def by_workers(points: list[dict]) -> str:
    """Seconds and memory by the number of worker processes."""
    told = [
        f"{p['value']} worker{'s' * (p['value'] > 1)} {p['seconds']:.1f} s (processor "
        f"{p['cpu']:.1f} s, {p['largest']:,.0f} MB in the largest)"
        for p in sorted(points, key=lambda p: p["value"])
    ]
    if len(told) < 2:
        return ""
    faster = points[0]["seconds"] / points[-1]["seconds"]
    return (
        "\nWorkers: a fit of 1,000,000 rows, 1,000 atoms and 2 epochs on Dask, with one thread per "
        f"worker, took {'; '.join(told)}: {faster:.2f} times as fast. With more workers than the 2 "
        "cores of this machine nothing was measured.\n"
    )


def page() -> str:
    ratios, growth = latest("performance", "name"), latest("growth", "what", "value")
    newest = max(ratios, key=lambda r: r["date"])
    text = HEAD.format(machine=newest["machine"], date=newest["date"], blas=blas_kernels())
    for r in ratios:
        bar, goal = r["bar"] or "–", r["goal"] or "–"
        text += f"| {r['name']} | {r['ratio']:.2f} | {bar} | {goal} | {r['detail']} |\n"
    text += GROWTH
    plots = ""
    for what in UNITS:
        points = sorted((p for p in growth if p["what"] == what), key=lambda p: p["value"])
        if len(points) < 3:
            continue
        slopes = exponent(points, "seconds"), exponent(points, "cpu")
        peaks = [p["peak"] for p in points]
        first, last = points[0]["value"], points[-1]["value"]
        text += f"| {what}, {first:,} to {last:,} | {slopes[0]:.2f} | {slopes[1]:.2f} | "
        text += f"{min(peaks):,.0f} to {max(peaks):,.0f} |\n"
        (DOCS / f"growth-{what}.svg").write_text(plot(points, what, slopes[0]))
        plots += f"![seconds by {what}](growth-{what}.svg) "
    text += f"\n{plots}\n" if plots else ""
    text += by_workers([p for p in growth if p["what"] == "workers"])
    text += searches()
    rows = [p for p in growth if p["what"] == "rows"]
    return text + (on_many(rows) if rows else "")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, epilog="example: python page.py").parse_args()
    told = page()
    (DOCS / "performance.md").write_text(told)
    print(told)

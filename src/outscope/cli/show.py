"""How results look: tables and progress, as a bar on a terminal and as few lines elsewhere."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from outscope.errors import InScopeExampleWarning, NoPromiseWarning

TABLE_ROWS = 20
WIDE = 150
# Where there is no terminal, a line about progress at most this often.
SECONDS_BETWEEN_LINES = 30.0
# Characters of the longest bar of a plot.
BAR = 30


def say(text: str) -> None:
    """Messages go to standard error; standard output is for data only."""
    print(text, file=sys.stderr)


def table(header: list[str], rows: list[list[Any]]) -> None:
    """A human-readable table."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(*header, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        # Literally: square brackets in a text are not markup.
        shown.add_row(*(Text(f"{v:.4f}" if isinstance(v, float) else str(v)) for v in row))
    # A pipe or a log has no width; one that tables fit into is better than 80.
    Console(width=None if sys.stdout.isatty() else WIDE).print(shown)


def flat(value: Any) -> str:
    """A nested value on one line."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {flat(item)}" for name, item in value.items())
    return str(value)


def size(detector: Any, folder: str) -> str:
    """How much a detector stores, and the size of its folder."""
    own = getattr(detector, "detector_", detector)
    vectors: Any = getattr(own, "atoms_", getattr(own, "means_", ()))
    disk = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    found = "a threshold alone"
    if len(vectors):
        stored: int = getattr(own, "stored_bytes_", vectors.nbytes)
        found = (
            f"{len(vectors):,} vectors of {own.n_features_in_} numbers, {stored / 1000:,.0f} kB "
            f"of {'atoms' if hasattr(own, 'atoms_') else 'means'}"
        )
    return f"{found}, {disk / 1000:,.0f} kB on disk"


def sample_told(detector: Any) -> list[str]:
    """For a detector that learned from a sample: what more rows would gain, as a small plot."""
    own = getattr(detector, "detector_", detector)
    sampled, curve = getattr(own, "sampled_", None), getattr(own, "curve_", None)
    if sampled is None or curve is None:
        return []
    from outscope.detectors.gain import expected_error

    learned, rows = sampled
    told = [(f"{int(n):,}", error, "") for n, error in curve.tolist()]
    told.append((f"{rows:,}", expected_error(curve, rows), "  expected with --rows all"))
    errors = [error for _, error, _ in told]
    low, high = min(errors), max(errors)
    lines = [
        f"learned from {learned:,} of {rows:,} rows; the error on rows held out, by rows used:"
    ]
    for name, error, note in told:
        full = round(BAR * (error - low) / (high - low)) if high > low else 0
        lines.append(f"{name:>15}  {error:.4f}  {'█' * (1 + full)}{note}")
    return lines


def told(model: Any) -> str:
    """What the threshold promises, or that it is only an estimate."""
    above = f"out of scope above {model.threshold_:.4g}"
    if model.promise_ is not None:
        return f"{above}: {model.promise_}"
    rate = getattr(getattr(model, "detector_", model), "rate_", None)
    if rate is None:
        return f"{above}, a score that was given, an estimate; nothing is promised"
    from outscope.decisions.threshold import rows_needed

    return (
        f"{above}, an estimate: about {100 * rate:.4g} % false alarms are expected. A promise "
        f"takes {rows_needed(rate)} in-scope items that fit has not seen (--calibrate FILE)"
    )


class _Warnings(logging.Handler):
    """The package's warnings in plain words."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            say(f"outscope: {record.getMessage()}")


@contextlib.contextmanager
def warnings_said() -> Iterator[None]:
    """Send the package's warnings to standard error."""
    handler = _Warnings()
    logging.getLogger("outscope").addHandler(handler)
    try:
        with warnings.catch_warnings():
            usual = warnings.showwarning

            def show(message: Any, category: type[Warning], *rest: Any) -> None:
                if issubclass(category, (NoPromiseWarning, InScopeExampleWarning)):
                    say(f"outscope: {message}")
                else:
                    usual(message, category, *rest)

            warnings.showwarning = show  # type: ignore[assignment]
            warnings.simplefilter("always", NoPromiseWarning)
            warnings.simplefilter("always", InScopeExampleWarning)
            yield
    finally:
        logging.getLogger("outscope").removeHandler(handler)


class _Pace:
    """How much is done, how fast that went and how long the rest will take."""

    def __init__(self, total: int | None) -> None:
        self.start, self.done, self.total = time.monotonic(), 0, total

    def __str__(self) -> str:
        seconds = time.monotonic() - self.start
        if not self.done or seconds <= 0:
            return ""
        speed = self.done / seconds
        told = f"{speed:,.0f} per second" if speed >= 10 else f"{speed:.2g} per second"
        if self.total is None:
            return f"{self.done:,}, {told}"
        left = span(max(0, self.total - self.done) / speed)
        return f"{self.done:,} ({self.done / self.total:.0%}), {told}, {left} left"


def span(seconds: float) -> str:
    """A time in words, as exact as one wants to know it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@contextlib.contextmanager
def progress(title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, a line now and then elsewhere. Epochs come from the package's logger."""
    pace, logger = _Pace(total), logging.getLogger("outscope")
    with _bar(title, pace) if sys.stderr.isatty() else _lines(title, pace) as show:

        class Listener(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if record.levelno < logging.WARNING:
                    show(record.getMessage())

        def advance(done: int) -> None:
            pace.done += done
            show("")

        listener, level = Listener(), logger.level
        logger.addHandler(listener)
        logger.setLevel(logging.INFO)
        try:
            yield advance
        finally:
            logger.removeHandler(listener)
            logger.setLevel(level)


@contextlib.contextmanager
def _bar(title: str, pace: _Pace) -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[pace]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=pace.total, pace="")

        def show(message: str) -> None:
            bar.update(task, completed=pace.done, pace=str(pace))
            if message:
                bar.update(task, description=f"{title}: {message}")

        yield show


@contextlib.contextmanager
def _lines(title: str, pace: _Pace) -> Iterator[Callable[[str], None]]:
    last = pace.start

    def show(message: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES:
            last = now
            say(f"{title}: {', '.join(filter(None, (str(pace), message)))}")

    yield show

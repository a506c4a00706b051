"""The plan: every decision behind learning, each with its reason. Pure functions of facts.

What the user sets is taken as it is; what is left "auto" is decided here and nowhere else. Seven
decisions look at the data (`DECISIONS`); docs/plan.md says how each was found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from outscope.errors import InputError
from outscope.learning.bits import atom_bytes
from outscope.learning.geometry import ONE_CLASS, Geometry, Grouping
from outscope.learning.rows import FEW_ROWS, size_for

# σ without labels: an eighth of the gap (anything from a sixth to a twelfth is as good). Neighbours
# nearer than a tenth of the spread mean collapsed classes, which need a wider kernel.
GAP_SHARE, COLLAPSED, WIDEST = 1 / 8, 1 / 10, 1 / 2
# Atoms are learned with a narrower kernel than rows are scored with.
LEARNED_NARROWER = 3.0
# σ with one dictionary per class: no other class can mix in, so it is wider.
CLASS_SPREAD = 1 / 13
# Candidate atoms per row.
CANDIDATES, CLASS_CANDIDATES = 10, 20
# At most half of the inverse within-class scatter: all of it does worse on most encoders.
STRONGEST = 1 / 2
# Half of the mean's share of energy is discounted, less where neighbours are nearer than an eighth
# of the spread.
COMMON_SHARE, COMMON_FADES = 1 / 2, 8.0
# Beyond this gap, relative to the spread, every row carries its own information: twice as many
# 4-bit atoms keep more of it than 8-bit atoms do.
ISOLATED = 0.3

LEAST_WHITENING, LEAST_COMMON = 0.02, 1e-3

DECISIONS = (
    "n_atoms",
    "bandwidth without labels",
    "bandwidth for classes",
    "whitening",
    "lengths",
    "common",
    "precision",
)


@dataclass(frozen=True)
class Plan:
    """Everything that decides what is learned from given rows, except random draws."""

    n_atoms: int | float | str  # of one dictionary; with classes, a share is of the class's rows
    bandwidth: float  # σ of scoring; 0 for the cosine kernel
    learning_bandwidth: float
    n_neighbors: int
    n_fit_neighbors: int
    whitening: float
    lengths: float
    common: float
    precision: str
    update: str
    entropy: float
    n_epochs: int
    n_plain_epochs: int
    reasons: Mapping[str, str] = field(default_factory=dict, compare=False)

    def of_size(self, n_atoms: int) -> Plan:
        """The same plan for a dictionary of another size."""
        return replace(self, n_atoms=n_atoms)

    def rows(self) -> list[list[Any]]:
        """Name, value and reason of each decision, for saving or display."""
        return [
            [f.name, getattr(self, f.name), self.reasons.get(f.name, "as asked for")]
            for f in fields(self)
            if f.name != "reasons"
        ]

    @classmethod
    def from_rows(cls, rows: list[list[Any]]) -> Plan:
        """The plan that `rows` described."""
        return cls(
            **{name: value for name, value, _ in rows}, reasons={name: why for name, _, why in rows}
        )


@dataclass(frozen=True)
class ViewPlan:
    """How rows are seen; decided before their geometry is measured."""

    whitening: float
    lengths: float
    reasons: Mapping[str, str]


def plan_view(asked: Mapping[str, Any], rows: int, width: int, grouping: Grouping) -> ViewPlan:
    """Whitening and lengths, decided from how rows fall into classes."""
    reasons = {}
    strength, lengths = asked.get("whitening", 0.0), asked.get("lengths", 0.0)
    # Unnormalised rows, and the cosine kernel, are the user's own choice of metric.
    free = asked["kernel"] == "gaussian" and asked["normalize"]
    w, c = grouping.within, grouping.classes
    if strength == "auto":
        affordable = affords(asked, 4 * width**2, width, c)
        strength = 0.0
        reasons["whitening"] = "no whitening without classes to whiten within"
        if free and c > 1 and rows <= FEW_ROWS:
            reasons["whitening"] = f"{rows} rows are too few to learn a metric from"
        elif free and c > 1 and not affordable:
            reasons["whitening"] = "max_bytes has no room for the matrix"
        elif free and c > 1:
            strength = min(STRONGEST, (2.0 * w - 1.0) ** 2) * (1.0 - 2.0 / c)
            strength = _or_none(strength, LEAST_WHITENING)
            reasons["whitening"] = f"{c} classes hold {w:.0%} of the variance within them"
    if lengths == "auto":
        lengths = max(0.0, 1.0 - 2.0 * w) if free and rows > FEW_ROWS else 0.0
        if strength > 0.0 and not asked["normalize"]:
            lengths = 1.0
        reasons["lengths"] = "unit length" if asked["normalize"] else "rows keep their lengths"
        if 0.0 < lengths < 1.0:
            reasons["lengths"] = f"classes have collapsed to {w:.0%} of the variance"
    return ViewPlan(float(strength), float(lengths), reasons)


def make_plan(
    asked: Mapping[str, Any],
    geometry: Geometry,
    grouping: Grouping = ONE_CLASS,
    view: ViewPlan | None = None,
) -> Plan:
    """Decide what was left open, from the settings given and the facts."""
    reasons = dict(view.reasons) if view is not None else {}
    by_class = grouping.classes > 1
    gap, spread = geometry.gap, max(geometry.spread, geometry.gap)
    n_atoms = asked["n_atoms"]
    if n_atoms == "auto":
        share = "of each class" if by_class else "of the rows"
        reasons["n_atoms"] = f"a quarter {share}, at most 2,000; all of up to {FEW_ROWS} rows"
    precision = asked["precision"]
    if precision == "auto":
        isolated = gap > ISOLATED * spread
        precision = "int4" if isolated else "int8"
        reasons["precision"] = f"the gap is {gap / spread if spread else 0.0:.2f} of the spread"
        if isolated:
            n_atoms = _twice(n_atoms, geometry.rows, by_class=by_class)
    if not by_class:
        n_atoms = size_for(n_atoms, geometry.rows)
    sigma = asked["bandwidth"]
    if asked["kernel"] == "cosine":
        sigma = 0.0
        reasons["bandwidth"] = "the cosine kernel has none"
    elif sigma == "auto":
        sigma, reasons["bandwidth"] = bandwidth(gap, spread, by_class=by_class)
    neighbors = asked["n_neighbors"]
    if neighbors == "auto":
        neighbors = CLASS_CANDIDATES if by_class or sigma == 0.0 else CANDIDATES
        reasons["n_neighbors"] = "more would take time and go unused"
    common = asked.get("common", 0.0)
    if common == "auto":
        common = 0.0
        reasons["common"] = "not with these settings"
        width = geometry.width
        beside = 4 * width * (1 + (width if view is not None and view.whitening > 0.0 else 0))
        room = affords(asked, beside, width, grouping.classes)
        if asked["kernel"] == "gaussian" and asked["normalize"] and room and spread > 0.0:
            fades = min(1.0, (COMMON_FADES * gap / spread) ** 2)
            common = _or_none(COMMON_SHARE * geometry.common * fades, LEAST_COMMON)
            reasons["common"] = f"their mean holds {geometry.common:.0%} of the rows' energy"
    epochs = int(asked["n_epochs"])
    return Plan(
        n_atoms=n_atoms,
        bandwidth=float(sigma),
        learning_bandwidth=float(sigma) / (1.0 if by_class else LEARNED_NARROWER),
        n_neighbors=int(neighbors),
        n_fit_neighbors=min(asked["n_fit_neighbors"] or int(neighbors), int(neighbors)),
        whitening=0.0 if view is None else view.whitening,
        lengths=0.0 if view is None else view.lengths,
        common=float(common),
        precision=precision,
        update=asked["update"],
        entropy=float(asked["entropy"]),
        n_epochs=epochs,
        n_plain_epochs=min(int(asked["n_plain_epochs"]), max(0, epochs - 1)),
        reasons=reasons,
    )


def bandwidth(gap: float, spread: float, *, by_class: bool) -> tuple[float, str]:
    """σ of the Gaussian kernel and its reason; 1 where all rows are equal."""
    if gap <= 0.0:
        return 1.0, "all rows are equal"
    if by_class:
        return CLASS_SPREAD * spread, "a thirteenth of the distance between rows"
    collapsed = (COLLAPSED * spread / gap) ** 2
    sigma = min(GAP_SHARE * gap * (1.0 + collapsed), WIDEST * spread)
    return sigma, f"neighbours lie at {gap:.3g}, rows at {spread:.3g}"


def _or_none(strength: float, least: float) -> float:
    """A strength, or 0 where it would cost bytes and time but change nothing."""
    return strength if strength >= least else 0.0


def affords(asked: Mapping[str, Any], extra: int, width: int, classes: int) -> bool:
    """Whether `extra` bytes are at most half of `max_bytes` and leave an atom for each class."""
    budget = asked.get("max_bytes")
    least = classes * largest_atom(width, asked["precision"])
    return budget is None or max(2 * extra, extra + least) <= budget


def largest_atom(width: int, precision: str) -> int:
    """Most bytes an atom can take, if the precision is yet to be chosen."""
    return atom_bytes(width, "int8" if precision == "auto" else precision)


def refuse_small(max_bytes: int, least: int, what: str) -> None:
    """Raise if a byte budget is too small for what it must hold."""
    if max_bytes < least:
        raise InputError(
            f"max_bytes={max_bytes} is too small: {what} takes {least} bytes; give "
            f"max_bytes={least} or more, or a coarser precision"
        )


def _twice(n_atoms: int | float | str, rows: int, *, by_class: bool) -> int | float:
    if not by_class:
        return min(rows, 2 * size_for(n_atoms, rows))
    share = 1 / 4 if isinstance(n_atoms, str) else n_atoms
    return min(2 * share, 1.0 - 1e-9) if share < 1 else 2 * int(share)

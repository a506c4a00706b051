"""A few examples of what to refuse: what they gain, what they cost, and whether the promise holds.

Half of the classes are in scope, as in suite.py. Of the others, half give examples (from the train
file); test texts of these are "seen", test texts of the rest "unseen". The promise is measured
on other rows of the train and test files together. A single lesson is one example; measured is how
many other texts out of scope are caught at 5 % before and after it. Records go to
results/outside.jsonl; existing ones are not made again.
"""

from __future__ import annotations

import argparse
import json
import warnings

import numpy as np
from records import RESULTS, keep
from suite import ENCODERS, QUERIES, ROWS, SHARES, vectors

from outscope import ClasswiseNNKDetector, NNKDetector, NoPromiseWarning
from outscope.decisions.metrics import auroc
from outscope.detectors.holdout import fit_and_calibrate
from outscope.errors import InScopeExampleWarning

METHODS = {"NNK": NNKDetector, "C-NNK": ClasswiseNNKDetector}
GIVEN = (20, 200)
FPR, MINE, NEW, SINGLE = 0.05, 500, 2000, 20


def parts(y, rng):
    """Classes in scope, those that give examples, and those that give none."""
    classes = np.unique(y)
    inside = rng.choice(classes, round(len(classes) / 2), replace=False)
    others = rng.permutation(np.setdiff1d(classes, inside))
    return inside, others[: len(others) // 2], others[len(others) // 2 :]


def picked(rng, y, classes, most):
    return np.sort(rng.permutation(np.flatnonzero(np.isin(y, classes)))[:most])


def gains(encoder, dataset, draw, method):
    """AUROC on seen and unseen classes, without and with examples."""
    X, y = vectors(encoder, dataset, "train")
    queries, labels = vectors(encoder, dataset, "test")
    rng = np.random.default_rng(draw)
    inside, giving, silent = parts(y, rng)
    rows = picked(rng, y, inside, ROWS)
    asked = [picked(rng, labels, group, QUERIES) for group in (inside, giving, silent)]
    examples = rng.permutation(np.flatnonzero(np.isin(y, giving)))
    detector = METHODS[method](random_state=draw).fit(X[rows], y[rows])

    def measured():
        own, seen, unseen = (detector.ood_score(queries[part]) for part in asked)
        return [
            round(100 * auroc(np.repeat([0, 1], [len(own), len(s)]), np.concatenate([own, s])), 3)
            for s in (seen, unseen)
        ]

    found = [{"given": 0, "seen": (base := measured())[0], "unseen": base[1]}]
    bytes_before = detector.stored_bytes_
    for n in GIVEN:
        detector.refuse(X[examples[:n]])
        seen, unseen = measured()
        added = detector.stored_bytes_ - bytes_before
        found.append({"given": n, "seen": seen, "unseen": unseen, "bytes_added": added})
        detector.undo()
    return found


def alarms(encoder, dataset, draw, method):
    """False alarms on new rows under a promise of 5 %, before and after lessons."""
    both = [vectors(encoder, dataset, split) for split in ("train", "test")]
    X, y = (np.concatenate(side) for side in zip(*both, strict=True))
    rng = np.random.default_rng([draw, 1])
    inside, giving, _ = parts(y, rng)
    order = rng.permutation(np.flatnonzero(np.isin(y, inside)))
    mine, new = order[:MINE], order[MINE : MINE + NEW]
    examples = rng.permutation(np.flatnonzero(np.isin(y, giving)))
    detector = METHODS[method](random_state=draw)
    fit_and_calibrate(detector, X[mine], y[mine], fpr=FPR, random_state=draw)
    record = {"before": float(detector.is_ood(X[new]).mean())}
    for n in GIVEN:
        detector.refuse(X[examples[:n]])
        record[f"after {n}"] = float(detector.is_ood(X[new]).mean())
        detector.undo()
    # Operators accept what is new: texts of classes that no one had learned.
    detector.refuse(X[examples[:20]]).accept(X[examples[-5:]])
    record["refused and accepted"] = float(detector.is_ood(X[new]).mean())
    return [record | {"promised": detector.promise_ is not None}]


def singles(encoder, dataset, draw, method):
    """Shares caught of classes that gave an example and of others, after each of some lessons."""
    X, y = vectors(encoder, dataset, "train")
    queries, labels = vectors(encoder, dataset, "test")
    rng = np.random.default_rng([draw, 2])
    inside, giving, silent = parts(y, rng)
    rows = picked(rng, y, inside, ROWS)
    asked = [queries[picked(rng, labels, group, QUERIES)] for group in (giving, silent)]
    examples = rng.permutation(np.flatnonzero(np.isin(y, giving)))[:SINGLE]
    detector = METHODS[method](random_state=draw)
    fit_and_calibrate(detector, X[rows], y[rows], fpr=FPR, random_state=draw)

    def caught(one):
        return [round(100 * float(one.is_ood(part).mean()), 2) for part in asked]

    lessons = [caught(detector.after("refuse", X[[i]])) for i in examples]
    seen, unseen = zip(*lessons, strict=True)
    before = dict(zip(("seen before", "unseen before"), caught(detector), strict=True))
    return [before | {"seen": seen, "unseen": unseen}]


KINDS = {"gain": gains, "alarms": alarms, "single": singles}


def read():
    path = RESULTS / "outside.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def run(kind, encoders, datasets, draws, methods):
    done = {(r["what"], r["encoder"], r["dataset"], r["draw"], r["method"]) for r in read()}
    for encoder in encoders:
        for dataset in datasets:
            for draw in draws:
                for method in methods:
                    if (kind, encoder, dataset, draw, method) in done:
                        continue
                    where = {"encoder": encoder, "dataset": dataset, "draw": draw, "method": method}
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", NoPromiseWarning)
                        warnings.simplefilter("ignore", InScopeExampleWarning)
                        for found in KINDS[kind](encoder, dataset, draw, method):
                            keep("outside", what=kind, **where, **found)
            print(kind, encoder, dataset, flush=True)


def table():
    records = read()
    lines = ["| encoder, method, examples | dataset | seen | unseen | gain seen | gain unseen |"]
    lines.append("|---" * 6 + "|")
    found = {}
    for r in (r for r in records if r["what"] == "gain"):
        place = found.setdefault((r["encoder"], r["method"], r["dataset"]), {})
        place.setdefault(r["given"], []).append((r["seen"], r["unseen"]))
    for encoder, method in sorted({key[:2] for key in found}):
        for n in GIVEN:
            gained = []
            for dataset in SHARES:
                if cells := found.get((encoder, method, dataset)):
                    before, after = np.mean(cells[0], axis=0), np.mean(cells[n], axis=0)
                    gained.append(after - before)
                    cell = " | ".join(
                        f"{b:.1f} → {a:.1f}" for b, a in zip(before, after, strict=True)
                    )
                    ups = " | ".join(f"{g:+.2f}" for g in gained[-1])
                    lines.append(f"| {encoder}, {method}, {n} | {dataset} | {cell} | {ups} |")
            mean, least = np.mean(gained, axis=0), np.min(gained, axis=0)
            lines.append(
                f"| {encoder}, {method}, {n} | mean (least) | | | "
                + " | ".join(f"{m:+.2f} ({w:+.2f})" for m, w in zip(mean, least, strict=True))
                + " |"
            )
    for name in ("before", "after 20", "after 200", "refused and accepted"):
        for method in METHODS:
            rates = [r[name] for r in records if r["what"] == "alarms" and r["method"] == method]
            if rates:
                error = np.std(rates, ddof=1) / len(rates) ** 0.5
                lines.append(
                    f"\n{method}, {name}: {np.mean(rates):.2%} false alarms over {len(rates)} splits, "
                    f"standard error {error:.2%}"
                )
    return "\n".join([*lines, *single_lines(records)])


def single_lines(records):
    """What one example changes in the share caught, over datasets and over lessons."""
    lines = []
    for method in METHODS:
        mine = [r for r in records if r["what"] == "single" and r["method"] == method]
        for group in ("seen", "unseen") if mine else ():
            moved = [np.subtract(r[group], r[f"{group} before"]) for r in mine]
            every = np.concatenate(moved)
            means = {
                d: [m for m, r in zip(moved, mine, strict=True) if r["dataset"] == d]
                for d in SHARES
            }
            least = min(np.mean(found) for found in means.values() if found)
            lines.append(
                f"\n{method}, one example: {every.mean():+.2f} points of {group} classes caught, least of a "
                f"dataset {least:+.2f}; {np.mean(every < -2):.0%} of {len(every)} lessons lose more than 2"
            )
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: python outside.py --kind gain --draws 3"
    )
    parser.add_argument("--kind", choices=list(KINDS), action="append")
    parser.add_argument("--encoder", choices=list(ENCODERS), action="append")
    parser.add_argument("--dataset", choices=list(SHARES), action="append")
    parser.add_argument("--method", choices=list(METHODS), action="append")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--table", action="store_true", help="only print the table of the records")
    given = parser.parse_args()
    if not given.table:
        for kind in given.kind or KINDS:
            run(
                kind,
                given.encoder or list(ENCODERS),
                given.dataset or list(SHARES),
                range(given.draws),
                given.method or list(METHODS),
            )
    print(table())

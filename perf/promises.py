"""False alarms on unseen texts under a promise of 5 %, and where no promise is possible.

The texts of the train and test files are pooled and shuffled: the first n are all the user has,
the next ones are new. With "finetuned" the user runs `finetune`, then `fit`, on the same n texts.
Records go to results/promises.jsonl, one per draw and method; existing ones are not rerun.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import warnings
from pathlib import Path

import numpy as np
from tasks import DATA, stored

from outscope import NoPromiseWarning, make_detector
from outscope.detectors.holdout import fit_and_calibrate
from outscope.io.texts import read_texts

RECORDS = Path(__file__).parent / "results" / "promises.jsonl"
SIZES = (20, 50, 100, 200, 390, 450, 2000)
DRAWS = 50
FPR = 0.05
NEW_ROWS, NEW_TEXTS = 2000, 400
METHODS = ("nnk-means", "c-nnk-means")
WITH_LOGITS = ("energy", "msp")
# Enough for the training texts to look nearer than new ones; the last two blocks and the head.
PLAN = {"epochs": 3, "batch_size": 16, "learning_rate": 5e-4, "frozen": 5, "max_length": 48}


def all_rows(name):
    data = stored(name)
    return (np.concatenate([data[f"{s}_{part}"] for s in ("train", "test")]) for part in "xy")


def all_texts(name):
    parts = [read_texts(str(DATA / name / f"{s}.parquet")) for s in ("train", "test")]
    return [t for p in parts for t in p.texts], np.array([y for p in parts for y in p.labels])


def outcome(method, X, y, new, seen=None, seed=0):
    detector = make_detector(method)
    if "random_state" in detector.get_params():
        detector.set_params(random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoPromiseWarning)
        fit_and_calibrate(detector, X, y, fpr=FPR, seen=seen, random_state=seed)
    return {
        "method": method,
        "promised": detector.promise_ is not None,
        "rate": round(float(detector.is_ood(new).mean()), 5),
    }


def pretrained(name, n, draw):
    X, y = all_rows(name)
    order = np.random.default_rng([draw, n]).permutation(len(X))
    mine, new = order[:n], order[n : n + NEW_ROWS]
    return [outcome(method, X[mine], y[mine], X[new], seed=draw) for method in METHODS]


def finetuned(name, n, draw):
    import torch

    from outscope.text.encoders import TransformerEncoder
    from outscope.text.training import Plan, train
    from outscope.text.weights import find_encoder

    torch.set_num_threads(1)
    texts, labels = all_texts(name)
    order = np.random.default_rng([draw, n]).permutation(len(texts))
    mine = [texts[i] for i in order[:n]]
    new = [texts[i] for i in order[n : n + NEW_TEXTS]]
    y = labels[order[:n]]
    folder = Path(tempfile.mkdtemp())
    try:
        train(
            find_encoder("all-MiniLM-L6-v2"),
            mine,
            y.tolist(),
            folder / "encoder",
            plan=Plan(**PLAN, seed=draw),
        )
        encoder = TransformerEncoder(folder / "encoder")
        X, fresh = (encoder.features(part) for part in (mine, new))
        seen = encoder.has_seen(mine)
        found = [outcome(method, X, y, fresh, seen, draw) for method in METHODS]
        X, fresh = encoder.logits_of(X), encoder.logits_of(fresh)
        return found + [outcome(method, X, y, fresh, seen, draw) for method in WITH_LOGITS]
    finally:
        shutil.rmtree(folder)


def read() -> list[dict]:
    return (
        [json.loads(line) for line in RECORDS.read_text().splitlines()] if RECORDS.exists() else []
    )


def run(kinds, sizes, draws) -> None:
    done = {(r["encoder"], r["data"], r["n"], r["draw"]) for r in read()}
    for draw in range(draws):
        for kind in kinds:
            for name in ("clinc150", "banking77"):
                for n in sizes:
                    if (kind, name, n, draw) in done:
                        continue
                    for found in {"pretrained": pretrained, "finetuned": finetuned}[kind](
                        name, n, draw
                    ):
                        record = {"encoder": kind, "data": name, "n": n, "draw": draw, **found}
                        with RECORDS.open("a") as file:
                            file.write(json.dumps(record) + "\n")
        print(f"draw {draw} done", flush=True)


def table() -> str:
    groups: dict[tuple, list[dict]] = {}
    for r in read():
        groups.setdefault((r["encoder"], r["data"], r["method"]), []).append(r)
    lines = ["| encoder | data | method | " + " | ".join(map(str, SIZES)) + " |"]
    lines.append("|---" * (3 + len(SIZES)) + "|")
    for key, rows in groups.items():
        cells = []
        for n in SIZES:
            for promised, mark in ((True, ""), (False, " (est.)")):
                rates = [100 * r["rate"] for r in rows if r["n"] == n and r["promised"] is promised]
                if rates:
                    error = np.std(rates) / len(rates) ** 0.5
                    cells.append(f"{np.mean(rates):.1f} ± {error:.1f}{mark}")
                    break
            else:
                cells.append("–")
        lines.append("| " + " | ".join([*key, *cells]) + " |")
    return "\n".join(lines)


def with_confidence(draws: int = 500, n: int = 200, confidence: float = 0.95) -> float:
    """Share of calibrations whose actual rate is above the promised one."""
    above = []
    X, y = all_rows("clinc150")
    detector = make_detector("nnk-means").fit(X[::5], y[::5])
    scores = detector.ood_score(np.delete(X, np.s_[::5], axis=0))
    from outscope import ConformalThreshold

    for draw in range(draws):
        shuffled = np.random.default_rng(draw).permutation(scores)
        cut = ConformalThreshold(shuffled[:n]).cut(FPR, confidence)
        above.append((shuffled[n:] > cut).mean() > FPR)
    return float(np.mean(above))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: python promises.py --kind finetuned --draws 10"
    )
    parser.add_argument("--kind", choices=("pretrained", "finetuned"), action="append")
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--table", action="store_true", help="only print the table of the records")
    given = parser.parse_args()
    if not given.table:
        run(given.kind or ("pretrained", "finetuned"), given.sizes, given.draws)
    print(table())
    print(f"\nconfidence=0.95: {with_confidence():.1%} of 500 calibrations are above 5 %")

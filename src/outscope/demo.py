"""The main task on a small corpus of our own: support for a bike-sharing app, twelve intents."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from outscope._types import FloatArray
from outscope.decisions.metrics import auroc
from outscope.decisions.threshold import ConformalThreshold
from outscope.text.encoders import Advance
from outscope.text.pipeline import TextDetector
from outscope.text.verdict import Verdict
from outscope.text.weights import DEFAULT

FALSE_ALARMS = 0.05
SHOWN = 4  # of each kind of sentence
SPLITS = 1000


class Sentence(NamedTuple):
    """A sentence of the corpus, what it is, and what the detector says."""

    text: str
    truth: str  # a class, "near" or "far"
    verdict: Verdict


class MethodRow(NamedTuple):
    """One method in the comparison."""

    method: str
    stored: str
    kilobytes: str
    far: str
    near: str
    false_alarms: str
    caught: str


class Outcome(NamedTuple):
    """Everything the demo shows."""

    sentences: list[Sentence]
    methods: list[MethodRow]
    far: float
    near: float
    words: str

    def choice(self) -> list[Sentence]:
        """A few sentences of each kind, spread over the corpus."""
        kinds = [
            [s for s in self.sentences if s.truth not in ("near", "far")],
            [s for s in self.sentences if s.truth == "near"],
            [s for s in self.sentences if s.truth == "far"],
        ]
        return [kind[i] for kind in kinds for i in range(0, len(kind), -(-len(kind) // SHOWN))]


def corpus(name: str) -> list[dict[str, Any]]:
    """Rows of a corpus file: "in_scope" or "out_of_scope"."""
    text = files("outscope").joinpath("corpus", f"{name}.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def run_demo(encoder: Any = None, advance: Advance = lambda done: None) -> Outcome:
    """Fit on the training sentences, calibrate on others, evaluate on the rest."""
    inside, outside = corpus("in_scope"), corpus("out_of_scope")
    part = {
        split: [row for row in inside if row["split"] == split]
        for split in ("train", "calibration", "test")
    }
    fresh = [row["text"] for row in (*part["calibration"], *part["test"])]
    queries = [*part["test"], *outside]
    texts = [row["text"] for row in queries]
    kinds = np.array([row.get("kind", "in") for row in queries])

    def fitted(method: str) -> TextDetector:
        detector = TextDetector(encoder or DEFAULT, method, contamination=FALSE_ALARMS, holdout=0)
        train = part["train"]
        detector.fit([r["text"] for r in train], [r["label"] for r in train], advance=advance)
        return detector.calibrate(fresh[: len(part["calibration"])])

    def measured(method: str, detector: TextDetector) -> tuple[MethodRow, FloatArray]:
        alarms, caught = over_splits(
            detector.ood_score(fresh),
            len(part["calibration"]),
            detector.ood_score([row["text"] for row in outside]),
        )
        scores = detector.ood_score(texts)
        vectors = detector.detector_.atoms_
        return MethodRow(
            method,
            f"{len(vectors)} vectors",
            f"{vectors.nbytes / 1000:.0f}",
            f"{_auroc(scores, kinds, 'far'):.3f}",
            f"{_auroc(scores, kinds, 'near'):.3f}",
            f"{alarms.mean():.1%}",
            f"{caught.mean():.1%}",
        ), alarms

    main = fitted("nnk-means")
    sentences = [
        Sentence(row["text"], row.get("label") or row["kind"], verdict)
        for row, verdict in zip(queries, main.predict(texts), strict=True)
    ]
    row, alarms = measured("nnk-means", main)
    rows = [row, *(measured(method, fitted(method))[0] for method in ("c-nnk-means", "knn"))]
    low, high = np.quantile(alarms, (0.05, 0.95))
    words = (
        f"\n{len(part['train'])} sentences of 12 intents are in scope. The promise: "
        f"{main.promise_}.\nThat is a statement about many calibrations, and here they are: "
        f"{len(fresh)} other in-scope sentences, split {SPLITS:,} times at random into\n"
        f"{len(part['calibration'])} to calibrate on and {len(part['test'])} to test. False "
        f"alarms were {alarms.mean():.1%} on average, and between {low:.1%} and {high:.1%} in nine "
        "out of ten splits.\nnear: about bikes or the company, but none of the intents; far: about "
        "something else. knn is 1-NN, which keeps every sentence."
    )
    scores = main.ood_score(texts)
    return Outcome(
        sentences, rows, _auroc(scores, kinds, "far"), _auroc(scores, kinds, "near"), words
    )


def over_splits(
    inside: FloatArray, n_calibration: int, outside: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """False alarms and detections over many random splits of the in-scope scores in two."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(SPLITS):
        shuffled = rng.permutation(inside)
        cut = ConformalThreshold(shuffled[:n_calibration]).cut(FALSE_ALARMS)
        found.append([(shuffled[n_calibration:] > cut).mean(), (outside > cut).mean()])
    alarms, caught = np.array(found).T
    return alarms, caught


def _auroc(scores: FloatArray, kinds: Any, kind: str) -> float:
    looked_at = np.isin(kinds, ["in", kind])
    return auroc((kinds[looked_at] == kind).astype(int), scores[looked_at])

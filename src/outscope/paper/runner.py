"""One record per task × representation × method; only missing ones are run."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from outscope._types import FloatArray, Matrix
from outscope.decisions.metrics import auroc, evaluate
from outscope.detectors.base import Detector
from outscope.errors import InputError
from outscope.paper.features import REPRESENTATIONS, Features, Store, training_told
from outscope.paper.published import chosen
from outscope.paper.records import Record, Records
from outscope.paper.settings import PAPER, TUNED, Variant, grid, make, variants
from outscope.paper.tasks import PUBLISHED_COUNTS, RATIOS, Task

LIBRARIES = ("outscope", "numpy", "scikit-learn", "numba")
# The draw whose validation texts set the paper's hyper-parameters for a setting.
TUNING_SEED = 0


class Job(NamedTuple):
    """One record to produce."""

    task: Task
    representation: str
    encoder: str
    variant: Variant
    tuned: bool

    @property
    def key(self) -> str:
        """Unique name of the record."""
        how = ("tuned" if self.tuned else "chosen") if self.variant.settings == PAPER else "fixed"
        encoder = Path(self.encoder).name
        return f"{self.task.name}/{self.representation}/{encoder}/{self.variant.name}/{how}"


class Choice(NamedTuple):
    """What to run."""

    datasets: tuple[str, ...]
    ratios: tuple[int, ...] | None
    representations: tuple[str, ...]
    methods: tuple[str, ...] | None
    seeds: tuple[int, ...]
    encoder: str
    tuned: bool


def plan(choice: Choice) -> list[Job]:
    """Jobs, ordered so that everything is embedded and trained once."""
    for name in choice.representations:
        if name not in REPRESENTATIONS:
            known = ", ".join(REPRESENTATIONS)
            raise InputError(f"--representation {name} is unknown; choose one of {known}")
    jobs = []
    for dataset in choice.datasets:
        if dataset not in RATIOS:
            raise InputError(f"--dataset {dataset} is unknown; choose one of {', '.join(RATIOS)}")
        for representation in choice.representations:
            wanted = [
                v
                for v in variants(representation)
                if choice.methods is None or v.method in choice.methods
            ]
            for ratio in RATIOS[dataset]:
                if choice.ratios is None or ratio in choice.ratios or dataset == "clinc150":
                    for seed in choice.seeds:
                        task = Task(dataset, ratio, seed)
                        jobs += [
                            Job(task, representation, choice.encoder, variant, choice.tuned)
                            for variant in wanted
                        ]
    if not jobs:
        raise InputError("nothing to run: no method or ratio chosen exists there")
    return jobs


def run(
    jobs: Iterable[Job],
    store: Store,
    records: Records,
    *,
    done: Callable[[Job, Record], None] = lambda job, record: None,
) -> None:
    """Run what is missing; a failed job is recorded and does not stop the rest."""
    for job in jobs:
        if job.key in records:
            continue
        start = time.perf_counter()
        record: Record = {
            "key": job.key,
            **job.task._asdict(),
            "representation": job.representation,
            "encoder": Path(job.encoder).name,
            "method": job.variant.method,
            "settings": job.variant.settings,
        }
        try:
            record.update(_measure(job, store, records), status="done")
        except KeyboardInterrupt:
            raise
        except Exception as error:  # any error of a job goes into its record
            record.update(status="failed", error=f"{type(error).__name__}: {error}"[:500])
        record["seconds_in_all"] = round(time.perf_counter() - start, 3)
        record["versions"] = {name: version(name) for name in LIBRARIES}
        record["python"] = platform.python_version()
        records.add(record)
        done(job, record)


def _measure(job: Job, store: Store, records: Records) -> Record:
    features = store.features(job.task, job.representation)
    values = _values(job, store, records)
    rows = len(features.train)
    detector = make(job.variant, values, job.task.seed)
    train, test = _rows_for(detector, job, features, store)
    begin = time.perf_counter()
    detector.fit(train, features.data.train.labels[: len(train)])
    fitted = time.perf_counter() - begin
    scores, seconds = _scored(detector, test)
    metrics = evaluate(features.data.test.is_ood.astype(int), scores)._asdict()
    vectors = getattr(detector, "atoms_", getattr(detector, "means_", None))
    return {
        "metrics": {name: round(float(value), 6) for name, value in metrics.items()},
        "seconds": {
            "fit": round(fitted, 4),
            "score": round(seconds, 5),
            "per_query": round(seconds / len(test), 9),
        },
        "stored_vectors": 0 if vectors is None else len(vectors),
        "stored_bytes": _stored_bytes(detector),
        "hyper_parameters": list(values),
        "train_rows": rows,
        "test_rows": len(test),
        "dimension": int(train.shape[1]),
        "counts": list(features.data.counts),
        "shortfall": max(0, PUBLISHED_COUNTS[job.task.dataset][0] - features.data.counts[0]),
        "training": training_told(job.task, job.representation),
    }


def _rows_for(
    detector: Detector, job: Job, features: Features, store: Store
) -> tuple[Matrix, Matrix]:
    if detector.needs == "logits":
        assert features.logits is not None
        return features.logits
    if detector.needs == "last-smoothness":
        # Its fit only sets a threshold, which no metric here uses.
        test = store.smoothness(job.task, job.representation)
        return test, test
    return features.train, features.test


def _scored(detector: Detector, rows: Matrix) -> tuple[FloatArray, float]:
    """Scores, and the best of three timings."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        scores = detector.ood_score(rows)
        times.append(time.perf_counter() - begin)
    return scores, min(times)


def _stored_bytes(detector: Detector) -> int:
    """Bytes of the vectors that scoring needs: as saved, or as float32."""
    if hasattr(detector, "stored_bytes_"):
        return int(detector.stored_bytes_)
    kept = (getattr(detector, n, None) for n in ("atoms_", "means_", "whitening_"))
    return sum(4 * np.asarray(one).size for one in kept if one is not None)


def _values(job: Job, store: Store, records: Records) -> tuple[float, ...]:
    """Hyper-parameters: tuned on validation texts, the paper's, or none for our defaults."""
    method = job.variant.method
    if job.variant.settings != PAPER or method not in TUNED:
        return ()
    if not job.tuned:
        return chosen(method, job.task.dataset, job.task.ratio, job.representation)
    name = f"{job.task.dataset}-{job.task.ratio}/{job.representation}"
    key = f"choice/{name}/{Path(job.encoder).name}/{method}"
    if key not in records:
        records.add(_tune(job, store, key))
    (found,) = records.find(key=key)
    return tuple(found["chosen"])


def _tune(job: Job, store: Store, key: str) -> Record:
    """The best of the paper's grid on one draw's validation texts, as in its Appendix F."""
    features = store.features(job.task._replace(seed=TUNING_SEED), job.representation)
    tried: list[dict[str, Any]] = []
    for values in grid(job.variant.method):
        store.tell(f"tuning {job.variant.method}: {values}")
        detector: Any = make(job.variant, values, TUNING_SEED)
        detector.fit(features.train, features.data.train.labels)
        truth = features.data.validation.is_ood.astype(int)
        found = auroc(truth, detector.ood_score(features.validation))
        tried.append(
            {
                "values": list(values),
                "auroc": round(float(found), 6),
                "vectors": len(detector.atoms_),
            }
        )
    best = max(tried, key=lambda one: one["auroc"])
    return {
        "key": key,
        "status": "done",
        "kind": "choice",
        "dataset": job.task.dataset,
        "ratio": job.task.ratio,
        "representation": job.representation,
        "encoder": Path(job.encoder).name,
        "method": job.variant.method,
        "chosen": best["values"],
        "tried": tried,
    }

"""What is counted, for Prometheus. Nothing counted here holds a text."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from outscope._types import FloatArray
from outscope.errors import require

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SCORES = (*(i / 10 for i in range(21)), 3, 5, 10)


class Metrics:
    """Counters of one application."""

    def __init__(self) -> None:
        client: Any = require("prometheus_client", extra="serve")
        self._client = client
        self.registry = made = client.CollectorRegistry()
        self._several = "PROMETHEUS_MULTIPROC_DIR" in os.environ

        def counter(name: str, told: str, *labels: str) -> Any:
            return client.Counter(f"outscope_{name}", told, labels, registry=made)

        def histogram(name: str, told: str, labels: tuple[str, ...], buckets: Any) -> Any:
            return client.Histogram(
                f"outscope_{name}", told, labels, registry=made, buckets=buckets
            )

        self.requests = counter("requests", "requests answered", "route", "method", "status")
        self.seconds = histogram("request_seconds", "time to answer", ("route",), SECONDS)
        self.items = counter("items", "texts and vectors scored", "model")
        self.flagged = counter("flagged", "of those, out of scope", "model")
        self.scores = histogram(
            "score_to_threshold", "score as a multiple of the threshold", ("model",), SCORES
        )
        self.batch_size = histogram("batch_size", "rows scored together", ("model",), SIZES)
        self.batch_seconds = histogram(
            "batch_seconds", "time to score a batch", ("model",), SECONDS
        )
        self.refused = counter("refused", "requests answered with 429", "model")
        self.reloads = counter("reloads", "models loaded again", "model", "outcome")
        self.queue = client.Gauge(
            "outscope_queue_rows",
            "rows waiting",
            ("model",),
            registry=made,
            multiprocess_mode="livesum",
        )

    def count_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """One answered request."""
        self.requests.labels(route, method, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def count_scores(self, model: str, scores: FloatArray, flagged: int, cut: float) -> None:
        """Scores given out. The histogram is relative to the threshold, so that models compare."""
        self.items.labels(model).inc(len(scores))
        self.flagged.labels(model).inc(flagged)
        if cut > 0:
            self._observe(self.scores.labels(model), scores / cut)

    @staticmethod
    def _observe(histogram: Any, values: FloatArray) -> None:
        """Many values at once: `observe` takes a microsecond for each, which adds up."""
        places = np.searchsorted(histogram._upper_bounds, values)
        counts = np.bincount(places, minlength=len(histogram._buckets))
        for bucket, count in zip(histogram._buckets, counts.tolist(), strict=True):
            if count:
                bucket.inc(count)
        histogram._sum.inc(float(values.sum()))

    def text(self) -> tuple[bytes, str]:
        """Everything counted, and its media type; of all workers, if there are several."""
        source = self.registry
        if self._several:
            require("prometheus_client.multiprocess", extra="serve")
            source = self._client.CollectorRegistry()
            self._client.multiprocess.MultiProcessCollector(source)
        return self._client.generate_latest(source), self._client.CONTENT_TYPE_LATEST

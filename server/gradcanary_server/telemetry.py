"""Prometheus counters of this process; the metrics of the store are in ``ops.store_metrics``."""

import time
from types import TracebackType
from typing import Literal, Self

from prometheus_client import Counter, Gauge, Histogram

from gradcanary_server.errors import RequestError

# Without a registry: each app registers them with its own.
BATCHES = Counter(
    "gradcanary_ingest_batches",
    "Batches by what became of them: stored, duplicate, refused (4xx), failed (5xx).",
    ["outcome"],
    registry=None,
)
POINTS = Counter("gradcanary_ingest_points", "Numbers of stats and metrics that were stored.", registry=None)
SECONDS = Histogram(
    "gradcanary_ingest_seconds",
    "From the headers of a batch to its acknowledgement.",
    buckets=(0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    registry=None,
)
ATTEMPTS = Counter(
    "gradcanary_delivery_attempts", "Attempts to deliver a message: delivered, failed.", ["outcome"], registry=None
)
SPACING = Gauge(
    "gradcanary_ingest_spacing_seconds",
    "What trainings are asked to leave between two batches, 0: the half second of their own.",
    registry=None,
)
METERS = (BATCHES, POINTS, SECONDS, ATTEMPTS, SPACING)

for outcome in ("stored", "duplicate", "refused", "failed"):
    BATCHES.labels(outcome)  # there from the start, at 0: the first one is a rise
for outcome in ("delivered", "failed"):
    ATTEMPTS.labels(outcome)


class BatchTimer:
    """Counts and times a batch; it counts as failed unless ``outcome`` is set."""

    def __enter__(self) -> Self:
        self.outcome = "failed"
        self._begun = time.perf_counter()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> Literal[False]:
        SECONDS.observe(time.perf_counter() - self._begun)
        is_refused = isinstance(error, RequestError) and error.status < 500
        BATCHES.labels("refused" if is_refused else self.outcome).inc()
        return False

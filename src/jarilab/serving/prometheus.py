"""Counters and histograms of the prediction server, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
SECONDS_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Metrics of one server.

    queue_length: returns the number of requests that wait or run now.
    """

    def __init__(self, queue_length: Callable[[], float]):
        # Not Prometheus' global registry: a process may hold several servers.
        self._registry = registry = CollectorRegistry()
        self._requests = Counter("jarilab_requests", "Requests that ended.", registry=registry)
        self._answers = Counter(
            "jarilab_answers",
            "Requests that ended, by status; 499: the client disconnected.",
            ["status"],
            registry=registry,
        )
        queue = Gauge("jarilab_queue_length", "Requests that wait or run now.", registry=registry)
        queue.set_function(queue_length)
        self._batch_size = Histogram(
            "jarilab_batch_size", "Inputs of a batch.", buckets=BATCH_BUCKETS, registry=registry
        )
        self._seconds = Histogram(
            "jarilab_request_seconds",
            "Seconds from a request to its end.",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )

    def observe_request(self, status: int, seconds: float) -> None:
        """Count a request that ended. status: 499 if its client disconnected."""
        self._requests.inc()
        self._answers.labels(str(status)).inc()
        self._seconds.observe(seconds)

    def observe_batch(self, size: int) -> None:
        """Count a batch of `size` inputs."""
        self._batch_size.observe(size)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format 0.0.4."""
        return generate_latest(self._registry)

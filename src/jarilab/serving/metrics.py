"""What a server has done, as Prometheus reads it (text format 0.0.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
CONTENT = "text/plain; version=0.0.4"


class Histogram:
    """How many values are at most each of some bounds."""

    def __init__(self, bounds: Sequence[int | float]):
        self._counts = dict.fromkeys(bounds, 0)
        self._count, self._sum = 0, 0.0

    def add(self, value: int | float) -> None:
        """One value more."""
        self._count += 1
        self._sum += value
        for bound in self._counts:
            self._counts[bound] += value <= bound

    def lines(self, name: str, help: str) -> Iterator[str]:
        """As Prometheus reads it."""
        yield from _title(name, "histogram", help)
        for bound, count in self._counts.items():
            yield f'{name}_bucket{{le="{bound:g}"}} {count}'
        yield f'{name}_bucket{{le="+Inf"}} {self._count}'
        yield f"{name}_sum {self._sum:.6f}"
        yield f"{name}_count {self._count}"


class Metrics:
    """Requests that were answered, their seconds, and the inputs of batches."""

    def __init__(self) -> None:
        self._answers: Counter[int] = Counter()
        self._seconds, self._sizes = Histogram(SECONDS), Histogram(SIZES)

    def answered(self, status: int, seconds: float) -> None:
        """A request has ended. status: 499 where its client left before."""
        self._answers[status] += 1
        self._seconds.add(seconds)

    def batch(self, size: int) -> None:
        """So many inputs are answered together."""
        self._sizes.add(size)

    def text(self, queue: int) -> str:
        """All of it. queue: requests that wait or are answered now."""
        lines = list(_title("jarilab_requests_total", "counter", "Requests that have ended."))
        lines.append(f"jarilab_requests_total {self._answers.total()}")
        lines += _title(
            "jarilab_answers_total", "counter", "The same by status; 499: the client left."
        )
        for status, count in sorted(self._answers.items()):
            lines.append(f'jarilab_answers_total{{status="{status}"}} {count}')
        lines += _title("jarilab_queue_length", "gauge", "Requests that wait or are answered now.")
        lines.append(f"jarilab_queue_length {queue}")
        lines += self._sizes.lines("jarilab_batch_size", "Inputs that were answered together.")
        lines += self._seconds.lines("jarilab_request_seconds", "From a request to its end.")
        return "".join(f"{line}\n" for line in lines)


def _title(name: str, kind: str, help: str) -> tuple[str, str]:
    return f"# HELP {name} {help}", f"# TYPE {name} {kind}"

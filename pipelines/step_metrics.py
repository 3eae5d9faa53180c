"""What the feature job's Python steps count, as Flink metrics; Flink's own Prometheus reporter shows them.

Names begin with `flink_taskmanager_job_task_operator_hailstream_`, labels are `source`, `group`, `fate`, `le`:

    source_records_decoded, source_fate_records       of each delivery: a restart reads again and counts again
    source_group_records_used                         exact, whatever is read again: the store's own count
    source_group_applied_through_ms, …_store_retries, …_rows_written, …_rows_ignored
    source_group_write_seconds_bucket/_sum_ms/_count  histogram of one batch's write, Redis included
    source_group_batch_rows_bucket/_sum/_count        … of the rows in it

Histograms are counters of ours: Flink's reporter has no Prometheus histograms, and drops PyFlink's distributions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Final

WRITE_MS: Final = (2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 30_000)
ROWS: Final = (1, 10, 100, 1_000, 5_000, 10_000)


class Histogram:
    """Cumulative buckets, as Prometheus wants them: `le` is an upper edge, the last one has none."""

    def __init__(self, metrics: Any, name: str, edges: Sequence[int], labels: Sequence[str], *, sum_name: str) -> None:
        self._edges = edges
        self._buckets = [metrics.add_group("le", label).counter(f"{name}_bucket") for label in (*labels, "+Inf")]
        self._sum, self._count = metrics.counter(sum_name), metrics.counter(f"{name}_count")

    def observe(self, value: int) -> None:
        for bucket in self._buckets[bisect_left(self._edges, value) :]:
            bucket.inc()
        self._sum.inc(value)
        self._count.inc()


class WriteMetrics:
    """Of one write step."""

    def __init__(self, context: Any, source: str, group: str, through_ms: Callable[[], int]) -> None:
        metrics = _ours(context, source).add_group("group", group)
        self.retries = metrics.counter("store_retries")
        self._written, self._ignored = metrics.counter("rows_written"), metrics.counter("rows_ignored")
        seconds = [f"{edge / 1000:g}" for edge in WRITE_MS]
        self._write_ms = Histogram(metrics, "write_seconds", WRITE_MS, seconds, sum_name="write_seconds_sum_ms")
        self._rows = Histogram(metrics, "batch_rows", ROWS, [str(edge) for edge in ROWS], sum_name="batch_rows_sum")
        self.used = 0
        metrics.gauge("records_used", lambda: self.used)
        metrics.gauge("applied_through_ms", through_ms)

    def batch(self, *, rows: int, ignored: int, write_s: float) -> None:
        """One batch that is written."""
        self._written.inc(rows - ignored)
        self._ignored.inc(ignored)
        self._write_ms.observe(round(write_s * 1000))
        self._rows.observe(rows)


class FateMetrics:
    """Records of one source that are decoded, or that ended elsewhere than in the store."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._counters: dict[tuple[str, str | None], Any] = {}

    def count(self, source: str, number: int, fate: str | None = None) -> None:
        """`fate` None counts the records that were decoded."""
        counter = self._counters.get((source, fate))
        if counter is None:
            metrics = _ours(self._context, source)
            counter = (
                metrics.counter("records_decoded")
                if fate is None
                else metrics.add_group("fate", fate).counter("records")
            )
            self._counters[source, fate] = counter
        counter.inc(number)


class _Nothing:
    """Outside Flink nothing is counted."""

    def add_group(self, name: str, extra: str | None = None) -> _Nothing:
        return self

    def counter(self, name: str) -> _Nothing:
        return self

    def gauge(self, name: str, value: Callable[[], int]) -> None:
        return None

    def inc(self, number: int = 1) -> None:
        return None


def _ours(context: Any, source: str) -> Any:
    metrics = _Nothing() if context is None else context.get_metric_group()
    return metrics.add_group("hailstream").add_group("source", source)

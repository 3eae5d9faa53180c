"""The Python steps of the feature job: decode a batch of records, write a batch of results, say what was left out.

All are vectorised (pandas in, pandas out) and run in Flink's Python workers, in process mode. Each is a plain class
that `jobs/features.py` registers under the name that `pipelines/sql.py` calls; `decode_columns` does the reading and is
free of frames. Decode and write steps run on different threads of one worker, so a connection belongs to a thread: two
threads on one connection hung a job without an error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
from pyflink.table import DataTypes
from pyflink.table.udf import ScalarFunction, udf

from features.records import RECORD_OF_TOPIC, RecordError, decode
from features.redis_store import TileWriter
from features.spec import PROJECT, Key, LastGroup, TileGroup
from features.store import GenerationLost, StoreError
from pipelines.dead_letter import dead_letter_bytes, ledger_bytes
from pipelines.jobs.options import BATCH_ROWS
from pipelines.progress import Place, Progress, follow, said_through
from pipelines.sql import DecodeFunction, WriteFunction
from pipelines.step_metrics import FateMetrics, WriteMetrics

FIRST_RETRY_S: Final = 0.05
LONGEST_RETRY_S: Final = 2.0
TYPES: Final = {
    "int": DataTypes.BIGINT(),
    "double": DataTypes.DOUBLE(),
    "bool": DataTypes.BOOLEAN(),
    "string": DataTypes.STRING(),
}
log = logging.getLogger(__name__)


def decode_columns(raws: Sequence[bytes | None], topic: str, names: Sequence[str]) -> dict[str, list[Any]]:
    """Decode N messages into columns `reason`, `path` and `names`, each a list of N.

    A good record has reason and path None; a bad one has a reason, a path and None in every other column. One bad
    record says nothing about its neighbours. A message without a value is malformed: no topic here is compacted.
    """
    record_type = RECORD_OF_TOPIC[topic]
    reasons: list[str | None] = []
    paths: list[str | None] = []
    rows: list[Sequence[Any]] = []
    nothing = (None,) * len(names)
    for raw in raws:
        try:
            if raw is None:
                raise RecordError("the message has no value")
            record = decode(raw, record_type)
        except RecordError as error:
            reasons.append(error.reason)
            paths.append(error.path)
            rows.append(nothing)
        else:
            reasons.append(None)
            paths.append(None)
            rows.append([getattr(record, name) for name in names])
    columns = zip(*rows, strict=True) if rows else ([] for _ in names)
    return {
        "reason": reasons,
        "path": paths,
        **{name: list(column) for name, column in zip(names, columns, strict=True)},
    }


class DecodeRecords(ScalarFunction):
    """bytes → ROW<reason, path, columns>. Deterministic, and called once a record (the plan test counts the calls)."""

    def __init__(self, function: DecodeFunction) -> None:
        self.topic = function.topic
        self.names = [column for column, _ in function.columns]
        self._metrics = FateMetrics(None)

    def open(self, function_context: Any) -> None:
        self._metrics = FateMetrics(function_context)

    def eval(self, raw: pd.Series) -> pd.DataFrame:
        self._metrics.count(self.topic, len(raw))
        columns = decode_columns(raw.tolist(), self.topic, self.names)
        # object: a nullable integer column of pandas does not pass into Arrow here
        return pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})


class DeadLetters(ScalarFunction):
    """A malformed record → the bytes of its dead letter."""

    def __init__(self) -> None:
        self._metrics = FateMetrics(None)

    def open(self, function_context: Any) -> None:
        self._metrics = FateMetrics(function_context)

    def eval(
        self, topic: Any, partition: pd.Series, offset: pd.Series, reason: pd.Series, path: pd.Series, raw: pd.Series
    ) -> pd.Series:
        topics = _repeated(topic, len(raw))
        for source, number in Counter(topics).items():
            self._metrics.count(source, number, "malformed")
        rows = zip(topics, partition, offset, reason, path, raw, strict=True)
        return pd.Series(
            [dead_letter_bytes(t, int(p), int(o), r, at, value) for t, p, o, r, at, value in rows], dtype=object
        )


class LedgerEntries(ScalarFunction):
    """A good record that was not used → the bytes of its ledger entry."""

    def __init__(self) -> None:
        self._metrics = FateMetrics(None)

    def open(self, function_context: Any) -> None:
        self._metrics = FateMetrics(function_context)

    def eval(
        self,
        topic: Any,
        partition: pd.Series,
        offset: pd.Series,
        fate: pd.Series,
        key: pd.Series,
        event_id: pd.Series,
        lateness_ms: pd.Series,
        effect: pd.Series,
    ) -> pd.Series:
        topics = _repeated(topic, len(fate))
        for (source, kind), number in Counter(zip(topics, fate, strict=True)).items():
            self._metrics.count(source, number, kind)
        rows = zip(topics, partition, offset, fate, key, event_id, lateness_ms, effect, strict=True)
        return pd.Series(
            [ledger_bytes(t, int(p), int(o), f, k, i, int(late), e) for t, p, o, f, k, i, late, e in rows], dtype=object
        )


class _Writer(ScalarFunction):
    """Writes batches of one group, one connection a thread; waits for Redis as long as it takes.

    While it waits the bundle stays open, so Flink holds back the topic: nothing is lost and nothing is acknowledged.
    The write is idempotent, so a batch whose answer was lost is sent again whole. A Redis that answers, but has lost the
    generation, fails the batch and with it the job: waiting would hide it, and its error is what an operator has to see.
    """

    def __init__(
        self,
        group: TileGroup | LastGroup,
        redis_url: str,
        generation: int,
        project: str = PROJECT,
        life: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        # `life` is that of when the job was submitted: a restart must not take another one for it
        self.place = Place(redis_url=redis_url, project=project, group=group, generation=generation, life=life)
        self.group = group
        self.generation = generation
        self.progress = progress

    def open(self, function_context: Any) -> None:
        self._mine = threading.local()
        self._unfollow = None if self.progress is None else follow(self.progress, self.place)
        self._through_ms_said = 0
        self._metrics = WriteMetrics(function_context, self.group.source.topic, self.group.name, self._said_through)

    def _said_through(self) -> int:
        if self.progress is None:
            return self._through_ms_said
        return said_through(self.progress, self.group) or 0

    def close(self) -> None:
        if self._unfollow is not None:
            self._unfollow()

    def is_deterministic(self) -> bool:
        return False  # a deterministic one may be dropped or run twice

    def _write(self, write: Callable[[TileWriter], np.ndarray]) -> pd.Series:
        wait_s, started = FIRST_RETRY_S, time.perf_counter()
        while True:
            try:
                writer = self._connection()
                status = write(writer)
                break
            except GenerationLost:
                self._disconnect()
                raise
            except StoreError as error:
                log.warning("%s: %s; trying again in %.2f s", self.group.name, error, wait_s)
                self._metrics.retries.inc()
                self._disconnect()
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, LONGEST_RETRY_S)
        ignored = int(np.count_nonzero(status == 0))
        self._metrics.batch(rows=len(status), ignored=ignored, write_s=time.perf_counter() - started)
        self._metrics.used = writer.used.get(self.group.name, 0)
        self._through_ms_said = writer.through_ms.get(self.group.name, 0)
        return pd.Series(status.astype(np.int8))

    def _connection(self) -> TileWriter:
        writer: TileWriter | None = getattr(self._mine, "writer", None)
        if writer is None:
            writer = self._mine.writer = self.place.writer()
        return writer

    def _disconnect(self) -> None:
        writer: TileWriter | None = getattr(self._mine, "writer", None)
        self._mine.writer = None
        if writer is not None:
            writer.close()


class WriteTiles(_Writer):
    """(key columns…, tile, num_events, applied_through_ms, appended_ms, partials…) → status of each row."""

    group: TileGroup
    _seen_ms: int | None = None  # the highest ingest time of any row so far
    _through_ms: int | None = None  # … of the rows that are known to be complete

    def eval(self, *columns: pd.Series) -> pd.Series:
        keys, (tile, num_events, through_ms, appended_ms, *partials) = _split_keys(self.group, columns)
        dtypes = [np.int64 if p.type == "int" else np.float64 for p in self.group.partials]
        applied_through_ms = None if self.progress is not None else self._complete_through(through_ms)
        arrays = [column.to_numpy(dtype=dtype) for column, dtype in zip(partials, dtypes, strict=True)]
        return self._write(
            lambda writer: writer.write_tiles(
                self.group,
                self.generation,
                keys,
                tile.to_numpy(dtype=np.int64),
                num_events.to_numpy(dtype=np.int64),
                arrays,
                applied_through_ms=applied_through_ms,
                appended_ms=appended_ms.to_numpy(dtype=np.int64),
            ),
        )

    def _complete_through(self, through_ms: pd.Series) -> int:
        """The heartbeat that this batch may show, in a job of one task.

        The aggregates of one mini-batch come in no order of time, and only a full batch can cut them in two: then the
        heartbeat stays where it was until the rest has followed, or it would promise rows that are not written yet.
        """
        newest = int(through_ms.max())
        self._seen_ms = newest if self._seen_ms is None else max(newest, self._seen_ms)
        if len(through_ms) < BATCH_ROWS:
            self._through_ms = self._seen_ms
        return int(through_ms.min()) if self._through_ms is None else self._through_ms


class WriteLast(_Writer):
    """(key columns…, event_time_ms, event_id, partition, offset, ingest_time_ms, appended_ms, values…) → status of each row."""

    group: LastGroup

    def eval(self, *columns: pd.Series) -> pd.Series:
        keys, rest = _split_keys(self.group, columns)
        event_time_ms, event_id, partition, offset, ingest_time_ms, appended_ms, *values = rest
        named = {f.name: _plain(column, f.type) for f, column in zip(self.group.fields, values, strict=True)}
        return self._write(
            lambda writer: writer.write_last(
                self.group,
                self.generation,
                keys,
                event_time_ms.to_numpy(dtype=np.int64),
                event_id.tolist(),
                named,
                applied_through_ms=None if self.progress is not None else int(ingest_time_ms.max()),
                positions=(partition.tolist(), offset.tolist()),
                appended_ms=appended_ms.to_numpy(dtype=np.int64),
            ),
        )


def decode_udf(function: DecodeFunction) -> Any:
    """The decode step of one source as Flink takes it."""
    fields = [DataTypes.FIELD(name, TYPES["string"]) for name in ("reason", "path")]
    fields += [DataTypes.FIELD(column, TYPES[kind]) for column, kind in function.columns]
    return udf(DecodeRecords(function), result_type=DataTypes.ROW(fields), func_type="pandas")


def dead_letter_udf() -> Any:
    """The step that writes dead letters as bytes."""
    return udf(DeadLetters(), result_type=DataTypes.BYTES(), func_type="pandas")


def ledger_udf() -> Any:
    """The step that writes ledger entries as bytes."""
    return udf(LedgerEntries(), result_type=DataTypes.BYTES(), func_type="pandas")


def write_udf(function: WriteFunction, redis_url: str, project: str = PROJECT) -> Any:
    """The sink step of one group."""
    group, rest = function.group, (redis_url, function.generation, project, function.life, function.progress)
    step: ScalarFunction = WriteTiles(group, *rest) if isinstance(group, TileGroup) else WriteLast(group, *rest)
    return udf(step, result_type=DataTypes.TINYINT(), func_type="pandas", deterministic=False)


def _split_keys(group: TileGroup | LastGroup, columns: Sequence[pd.Series]) -> tuple[list[Key], Sequence[pd.Series]]:
    """The rows' keys, and the columns behind those of the key."""
    num_keys = len(group.key_fields)
    keys = [column.tolist() for column in columns[:num_keys]]
    return (keys[0] if num_keys == 1 else list(zip(*keys, strict=True))), columns[num_keys:]


def _repeated(literal: Any, count: int) -> list[Any]:
    """A literal argument arrives as a scalar, or as a column of it."""
    return list(literal) if isinstance(literal, pd.Series) else [literal] * count


def _plain(column: pd.Series, kind: str) -> list[Any]:
    """A column as Python values, None for null. Ints that can be null come as text (`sql._last_value`)."""
    python: Callable[[Any], Any] = {"int": int, "double": float, "bool": bool, "string": str}[kind]
    return [None if value is None or value != value else python(value) for value in column.tolist()]

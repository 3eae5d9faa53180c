"""A source's topic → Parquet: the history that `features/history.py` and `features/backfill.py` read.

Blocks of fixed offsets, as the sample log has them (pipelines/sample_log.py), so writing again gives the same bytes and a
killed writer leaves whole files. A row is the record's columns as the source's schema declares them, and where it came from:
`kafka_partition`, `kafka_offset`, `kafka_appended_ms`. Messages that are no records are named in the block's manifest:
the job sent them to `dead_letters`.

    <folder>/partition=0000/block-000000000000-000000050000.parquet  …      history: <folder>/*/block-*.parquet
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from features.parquet import APPENDED, OFFSET, PARTITION
from features.records import RECORD_OF_TOPIC, decode
from features.spec import Source
from features.topics import Message
from pipelines.sample_log import KafkaSource, RowFormat, SampleLogWriter, SampleSource, WriteReport

BLOCK_OFFSETS: Final = 50_000
GLOB: Final = "*/block-*.parquet"  # of an archive's folder, as a source's `history`
_TYPES: Final = {"int": pa.int64(), "double": pa.float64(), "bool": pa.bool_(), "string": pa.string()}


def archive_topic(
    bootstrap: str, source: Source, folder: Path | str, *, end: Mapping[int, int] | None = None, rewrite: bool = False
) -> WriteReport:
    """Write what the source's topic holds now (or up to `end`, offsets per partition), from where the archive ends.

    Raises: ValueError for a topic without records; SampleLogError where another writer holds the folder; TopicError.
    """
    with archive_writer(KafkaSource(bootstrap, source.topic), source, folder, rewrite=rewrite) as writer:
        return writer.catch_up(end)


def archive_writer(
    topic: SampleSource,
    source: Source,
    folder: Path | str,
    *,
    block_offsets: int = BLOCK_OFFSETS,
    rewrite: bool = False,
) -> SampleLogWriter:
    """The writer behind `archive_topic`, for whoever follows a topic. Raises: as that."""
    record = RECORD_OF_TOPIC.get(source.topic)
    if record is None:
        raise ValueError(
            f"source {source.name}: topic {source.topic!r} has no record; known are {sorted(RECORD_OF_TOPIC)}"
        )
    fields = {field.name for field in msgspec.structs.fields(record)}
    unknown = sorted(set(source.schema) - fields)
    if unknown:
        raise ValueError(f"source {source.name}: {record.__name__} (features/records.py) has no {unknown}")

    def row_of(message: Message) -> dict[str, Any]:
        found = decode(message.value, record)
        row = {name: getattr(found, name) for name in source.schema}
        return {**row, OFFSET: message.offset, APPENDED: message.timestamp_ms}

    def parquet_of(partition: int, rows: Sequence[tuple[int, dict[str, Any]]]) -> bytes:
        columns = {PARTITION: pa.array([partition] * len(rows), pa.int32())}
        columns |= {name: pa.array([row[name] for _, row in rows], pa.int64()) for name in (OFFSET, APPENDED)}
        for name, declared in source.schema.items():
            columns[name] = pa.array([row[name] for _, row in rows], _TYPES[declared.removesuffix("?")])
        sink = io.BytesIO()
        pq.write_table(pa.table(columns), sink, compression="zstd", row_group_size=1 << 20)
        return sink.getvalue()

    return SampleLogWriter(
        topic, folder, block_offsets=block_offsets, rewrite=rewrite, rows=RowFormat(row_of, parquet_of)
    )

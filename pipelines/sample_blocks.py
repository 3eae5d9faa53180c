"""The files of a sample log: blocks of rows in Parquet, and the manifests that name them.

```
<log_dir>/partition=0003/
    block-000000000000-000000010000.parquet     offsets [0, 10000): complete, never written again
    block-000000010000-000000010731.parquet     the open block: its first 731 offsets
    block-000000000000.json  block-000000010000.json    manifests: which file holds the block, its hash, what it covers
```

A manifest is renamed into place after its file is on disk, so a kill leaves the old block or the new one, never half of one.
`sample_log.py` fills the blocks from the topic and folds them.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from features.files import write_whole
from features.records import Sample

FORMAT: Final = 1
LABEL: Final = "label:"  # column prefixes inside the log; a label may be called anything
TIME: Final = "time:"


_HEAL: Final = "Write the log again from the topic: python -m pipelines.sample_log --rewrite"
_ATTEMPTS: Final = 5  # a writer may replace the open block while it is read


class SampleLogError(RuntimeError):
    """A log that cannot be trusted: which file, why, and what to do."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One block. It covers the offsets [base, end); `full` when end is the block's last possible one."""

    format: int
    partition: int
    base: int
    end: int
    full: bool
    file: str
    sha256: str
    num_rows: int
    missing: int  # offsets in [base, end) that the topic did not show
    rejected: list[tuple[int, str]]  # (offset, reason) of messages that are no Samples


def write_block(folder: Path, manifest: Manifest, data: bytes) -> None:
    """Data first, then the manifest that names it: each appears whole or not at all."""
    folder.mkdir(exist_ok=True)
    write_whole(folder / manifest.file, data)
    write_whole(folder / f"block-{manifest.base:012d}.json", msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
    for old in folder.glob(f"block-{manifest.base:012d}-*.parquet"):
        if old.name != manifest.file:
            old.unlink()


def read_manifests(folder: Path) -> list[Manifest]:
    """The manifests of one partition, by base. Raises: SampleLogError when one is unreadable or blocks do not join up."""
    manifests: list[Manifest] = []
    for path in sorted(folder.glob("block-*.json")):
        try:
            manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SampleLogError(f"{path}: not a manifest: {error}. {_HEAL}") from None
        if manifest.format != FORMAT:
            raise SampleLogError(f"{path}: format {manifest.format} is not readable here (this reader knows {FORMAT})")
        expected = manifests[-1].end if manifests else 0
        if manifest.base != expected or (manifests and not manifests[-1].full):
            raise SampleLogError(
                f"{path}: starts at offset {manifest.base}, but the block before it ends at {expected}. {_HEAL}"
            )
        manifests.append(manifest)
    return manifests


def table_of(partition: int, rows: Sequence[tuple[int, Sample]]) -> pa.Table:
    samples = [sample for _, sample in rows]
    columns: dict[str, pa.Array] = {
        "partition": pa.array([partition] * len(rows), pa.int32()),
        "offset": pa.array([offset for offset, _ in rows], pa.int64()),
        "sample_id": pa.array([s.sample_id for s in samples], pa.string()),
        "version": pa.array([s.version for s in samples], pa.int32()),
        "kind": pa.array([s.kind for s in samples], pa.string()),
        "closed": pa.array([s.closed for s in samples], pa.bool_()),
        "order_id": pa.array([s.order_id for s in samples], pa.string()),
        "strategy": pa.array([s.strategy for s in samples], pa.string()),
        "event_time_ms": pa.array([s.event_time_ms for s in samples], pa.int64()),
        "ingest_time_ms": pa.array([s.ingest_time_ms for s in samples], pa.int64()),
        "propensity_valid": pa.array([s.propensity_valid for s in samples], pa.bool_()),
    }
    for name in sorted({name for sample in samples for name in sample.labels}):
        columns[LABEL + name] = pa.array([s.labels.get(name) for s in samples], pa.int8())
        columns[TIME + name] = pa.array([s.label_times_ms.get(name) for s in samples], pa.int64())
    columns["decision"] = pa.array(
        [None if s.decision is msgspec.UNSET else bytes(s.decision) for s in samples], pa.large_binary()
    )
    return pa.table(columns)


def parquet_of(partition: int, rows: Sequence[tuple[int, Sample]]) -> bytes:
    """The same rows give the same bytes: nothing in it depends on time or on how often the block was written."""
    sink = io.BytesIO()
    table = table_of(partition, rows)
    names = [name for name in table.column_names if name != "decision"]
    pq.write_table(
        table, sink, compression="zstd", use_dictionary=names, write_statistics=names, row_group_size=1 << 20
    )
    return sink.getvalue()


def all_manifests(log_dir: Path) -> list[Manifest]:
    if not log_dir.is_dir():
        raise SampleLogError(f"no sample log at {log_dir}")
    return [manifest for folder in sorted(log_dir.glob("partition=*")) for manifest in read_manifests(folder)]


def all_but_decision(names: list[str]) -> list[str]:
    return [name for name in names if name != "decision"]


def read_blocks(
    log_dir: Path, columns: list[str] | Callable[[list[str]], list[str]] | None
) -> list[tuple[Manifest, pa.Table]]:
    """Every block with the chosen columns, its bytes checked against the manifest."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return [
                (m, _read_block(log_dir / f"partition={m.partition:04d}", m, columns)) for m in all_manifests(log_dir)
            ]
        except FileNotFoundError as error:
            if attempt == _ATTEMPTS:
                raise SampleLogError(f"{error.filename}: named by its manifest, but missing. {_HEAL}") from None
    raise AssertionError("unreachable")


def _read_block(
    folder: Path, manifest: Manifest, columns: list[str] | Callable[[list[str]], list[str]] | None
) -> pa.Table:
    path = folder / manifest.file
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != manifest.sha256:
        raise SampleLogError(
            f"{path}: {len(data)} bytes that are not the ones its manifest names (half-written or changed). {_HEAL}"
        )
    file = pq.ParquetFile(io.BytesIO(data))
    names = columns(file.schema_arrow.names) if callable(columns) else columns
    table = file.read(columns=names)
    if (
        table.num_rows != manifest.num_rows
        or table.num_rows + manifest.missing + len(manifest.rejected) != manifest.end - manifest.base
    ):
        raise SampleLogError(f"{path}: {table.num_rows} rows do not cover the offsets of its manifest. {_HEAL}")
    return table

"""The `samples` topic -> Parquet, and the fold over versions: from a log of versions to one row per sample.

Blocks are [kN, (k+1)N) offsets per partition, so what a file holds depends on the topic alone: writing again gives the
same bytes; the open block is rewritten until it is full. Every offset that the topic showed is a row or is named in `rejected`;
the job that writes the topic uses no transactions, so an offset that was not shown is a loss, and `check_log` says so.
The files: `sample_blocks.py`. What the versions mean: `joiner.py`.

    python -m pipelines.sample_log --bootstrap HOST:PORT --out DIR [--follow SECONDS] [--rewrite]
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from features.records import SAMPLES, RecordError, Sample, decode
from features.topics import Message, end_offsets, read_all
from pipelines.sample_blocks import (
    FORMAT,
    Manifest,
    SampleLogError,
    all_manifests,
    parquet_of,
    read_blocks,
    read_manifests,
    write_block,
)
from pipelines.sample_fold import count_kinds, fold

__all__ = [
    "KafkaSource",
    "LogCheck",
    "SampleLogError",
    "SampleLogWriter",
    "SampleSource",
    "WriteReport",
    "check_log",
    "count_kinds",
    "fold",
    "write_log",
]

BLOCK_OFFSETS: Final = 10_000


class SampleSource(Protocol):
    """Where the versions come from. Offsets of a partition rise from 0."""

    def end_offsets(self) -> dict[int, int]: ...

    def read(self, start: Mapping[int, int]) -> Iterable[Message]: ...


class KafkaSource:
    """The samples topic of a broker."""

    def __init__(self, bootstrap: str, topic: str = SAMPLES) -> None:
        self.bootstrap, self.topic = bootstrap, topic

    def end_offsets(self) -> dict[int, int]:
        return end_offsets(self.bootstrap, self.topic)

    def read(self, start: Mapping[int, int]) -> Iterable[Message]:
        return read_all(self.bootstrap, self.topic, start=start)


@dataclass(frozen=True, kw_only=True)
class WriteReport:
    """What one `write_log` did. `next_offsets` is where the log now ends, per partition."""

    rows: int
    blocks_written: int
    rejected: int
    missing: int
    next_offsets: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LogCheck:
    """Conservation by (partition, offset): every offset of the topic is a row or a rejected message."""

    offsets: int
    rows: int
    rejected: int
    missing: int
    unread: int  # offsets of the topic behind the end of the log

    @property
    def holds(self) -> bool:
        return self.missing == 0 and self.unread == 0 and self.offsets == self.rows + self.rejected


@dataclass(frozen=True)
class RowFormat:
    """What a block's rows are: `row_of` makes one of a message (RecordError rejects it), `parquet_of` a file of them."""

    row_of: Callable[[Message], Any]
    parquet_of: Callable[[int, Sequence[tuple[int, Any]]], bytes]


SAMPLE_ROWS: Final = RowFormat(lambda message: decode(message.value, Sample), parquet_of)


class SampleLogWriter:
    """Writes the topic into `log_dir`, from where the log ends. One writer a folder; `close` it, or use `with`.

    `rewrite` starts over from the topic's first offset: for a log whose files were damaged. `rows`: what is written of
    each message; pipelines/archive.py writes other topics in the same blocks.
    Raises: SampleLogError when another writer holds the folder or a manifest cannot be read.
    """

    def __init__(
        self,
        source: SampleSource,
        log_dir: Path | str,
        *,
        block_offsets: int = BLOCK_OFFSETS,
        rewrite: bool = False,
        rows: RowFormat = SAMPLE_ROWS,
    ) -> None:
        if block_offsets <= 0:
            raise ValueError(f"block_offsets must be positive, got {block_offsets}")
        self.rows = rows
        self.source, self.block_offsets = source, block_offsets
        self.log_dir = Path(log_dir)
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.log_dir)
        self._open: dict[int, _OpenBlock] = {}
        if rewrite:
            for path in self.log_dir.glob("partition=*/*"):
                path.unlink()
        else:
            self._resume()

    def __enter__(self) -> SampleLogWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._lock.close()

    def catch_up(self, end: Mapping[int, int] | None = None) -> WriteReport:
        """Write what the topic holds now, up to `end` (offsets per partition; default: its end at this moment).

        Raises: TopicError.
        """
        ends = dict(end) if end is not None else self.source.end_offsets()
        start = {p: self._block(p).next_offset for p in ends}
        report = _Totals()
        if any(start[p] < ends[p] for p in ends):
            for message in self.source.read(start):
                if message.offset < ends.get(message.partition, 0):
                    self._add(message, report)
        for partition, last in ends.items():
            self._reach(partition, last, report)
            block = self._block(partition)
            if block.dirty:
                self._write(block, report)
        return WriteReport(
            rows=report.rows,
            blocks_written=report.blocks_written,
            rejected=report.rejected,
            missing=report.missing,
            next_offsets={p: block.next_offset for p, block in sorted(self._open.items())},
        )

    def follow(
        self,
        *,
        quiet_s: float,
        timeout_s: float,
        until: Callable[[], bool] | None = None,
        poll_s: float = 0.25,
    ) -> WriteReport:
        """Catch up again and again until the topic's end has not moved for `quiet_s`, and `until` (if given) agrees.

        Raises: SampleLogError after `timeout_s`; TopicError.
        """
        deadline = time.monotonic() + timeout_s
        total = _Totals()
        last: dict[int, int] = {}
        quiet_since = time.monotonic()
        while True:
            report = self.catch_up()
            total.add(report)
            if report.next_offsets != last:
                last, quiet_since = report.next_offsets, time.monotonic()
            elif time.monotonic() - quiet_since >= quiet_s and (until is None or until()):
                return WriteReport(
                    rows=total.rows,
                    blocks_written=total.blocks_written,
                    rejected=total.rejected,
                    missing=total.missing,
                    next_offsets=last,
                )
            if time.monotonic() > deadline:
                raise SampleLogError(
                    f"the samples topic has not come to rest within {timeout_s:g} s; the log ends at {last}"
                )
            time.sleep(poll_s)

    def _resume(self) -> None:
        for folder in sorted(self.log_dir.glob("partition=*")):
            for leftover in folder.glob(".tmp-*"):  # of a writer that was killed; nothing names it
                leftover.unlink()
            manifests = read_manifests(folder)
            if not manifests:
                continue
            last = manifests[-1]
            sizes = {m.end - m.base for m in manifests if m.full}
            if sizes - {self.block_offsets} or last.end - last.base > self.block_offsets:
                raise SampleLogError(
                    f"{folder} was written with another block size than {self.block_offsets}: use that one, or another folder"
                )
            base = last.end if last.full else last.base
            self._open[last.partition] = _OpenBlock(last.partition, base)

    def _block(self, partition: int) -> _OpenBlock:
        return self._open.setdefault(partition, _OpenBlock(partition, 0))

    def _add(self, message: Message, report: _Totals) -> None:
        self._reach(message.partition, message.offset, report)
        block = self._block(message.partition)
        try:
            block.rows.append((message.offset, self.rows.row_of(message)))
            report.rows += 1
        except RecordError as error:
            block.rejected.append((message.offset, str(error)))
            report.rejected += 1
        block.next_offset, block.dirty = message.offset + 1, True
        if block.next_offset == block.base + self.block_offsets:
            self._write(block, report)

    def _reach(self, partition: int, offset: int, report: _Totals) -> None:
        """The topic showed nothing between the last offset and `offset`: count it, block by block."""
        while (block := self._block(partition)).next_offset < offset:
            step = min(offset, block.base + self.block_offsets)
            block.missing += step - block.next_offset
            report.missing += step - block.next_offset
            block.next_offset, block.dirty = step, True
            if step == block.base + self.block_offsets:
                self._write(block, report)

    def _write(self, block: _OpenBlock, report: _Totals) -> None:
        full = block.next_offset == block.base + self.block_offsets
        data = self.rows.parquet_of(block.partition, block.rows)
        manifest = Manifest(
            format=FORMAT,
            partition=block.partition,
            base=block.base,
            end=block.next_offset,
            full=full,
            file=f"block-{block.base:012d}-{block.next_offset:012d}.parquet",
            sha256=hashlib.sha256(data).hexdigest(),
            num_rows=len(block.rows),
            missing=block.missing,
            rejected=block.rejected,
        )
        write_block(self.log_dir / f"partition={block.partition:04d}", manifest, data)
        report.blocks_written += 1
        block.dirty = False
        if full:
            self._open[block.partition] = _OpenBlock(block.partition, block.next_offset)


def write_log(
    bootstrap: str, log_dir: Path | str, *, topic: str = SAMPLES, end: Mapping[int, int] | None = None
) -> WriteReport:
    """Write what the topic holds now (or up to `end`). Raises: SampleLogError, TopicError."""
    with SampleLogWriter(KafkaSource(bootstrap, topic), log_dir) as writer:
        return writer.catch_up(end)


def check_log(log_dir: Path | str, ends: Mapping[int, int]) -> LogCheck:
    """Is every offset below the topic's `ends` in the log? Raises: SampleLogError for damaged files."""
    rows = rejected = missing = unread = 0
    blocks = {m.partition: 0 for m in all_manifests(Path(log_dir))}
    for manifest, table in read_blocks(Path(log_dir), ["offset"]):
        rows += table.num_rows
        rejected += len(manifest.rejected)
        missing += manifest.missing
        blocks[manifest.partition] = max(blocks[manifest.partition], manifest.end)
    unread = sum(max(0, end - blocks.get(partition, 0)) for partition, end in ends.items())
    return LogCheck(offsets=sum(ends.values()), rows=rows, rejected=rejected, missing=missing, unread=unread)


class _OpenBlock:
    """The block of a partition that is being filled."""

    def __init__(self, partition: int, base: int) -> None:
        self.partition, self.base, self.next_offset = partition, base, base
        self.rows: list[tuple[int, Any]] = []
        self.rejected: list[tuple[int, str]] = []
        self.missing = 0
        self.dirty = False


@dataclass
class _Totals:
    rows: int = 0
    blocks_written: int = 0
    rejected: int = 0
    missing: int = 0

    def add(self, report: WriteReport) -> None:
        self.rows += report.rows
        self.blocks_written += report.blocks_written
        self.rejected += report.rejected
        self.missing += report.missing


def _lock(log_dir: Path) -> Any:
    file = (log_dir / ".lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise SampleLogError(f"another writer holds {log_dir}: stop it, or write to another folder") from None
    return file


def main(argv: Sequence[str] | None = None) -> None:
    """Write the log from the command line; prints one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.sample_log", description="The samples topic -> Parquet.")
    parser.add_argument("--bootstrap", required=True, help="Kafka, HOST:PORT")
    parser.add_argument("--out", required=True, type=Path, help="folder of the log")
    parser.add_argument("--follow", type=float, metavar="SECONDS", help="go on until the topic was quiet for so long")
    parser.add_argument("--timeout", type=float, default=600.0, help="give up following after so many seconds")
    parser.add_argument("--rewrite", action="store_true", help="start over from the topic's first offset")
    options = parser.parse_args(argv)
    with SampleLogWriter(KafkaSource(options.bootstrap), options.out, rewrite=options.rewrite) as writer:
        if options.follow is None:
            report = writer.catch_up()
        else:
            report = writer.follow(quiet_s=options.follow, timeout_s=options.timeout)
    print(msgspec.json.encode(report).decode())


if __name__ == "__main__":
    main()

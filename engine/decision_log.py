"""Decisions to their topic, off the request path: nothing that was answered is lost silently.

`append` writes the record to a spill file before the answer leaves, which takes microseconds and survives the death
of the process. One background thread tails these files, sends to the broker, and deletes a file when all of it is
acknowledged. A restart finds what is left and sends it again, so a record may arrive twice: consumers fold by
`decision_id`. Broker down means files that grow, and `backlog` says by how much.

    append ──► 000000000007.spill ──► thread ──► topic
                (closed, unlinked when every record of it is acknowledged)
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, Protocol

from features.records import DECISIONS

logger = logging.getLogger(__name__)

_HEADER: Final = struct.Struct("<III")  # length of key, length of value, CRC-32 of both


class MessageSender(Protocol):
    """What the log needs of `features.topics.Producer`."""

    def send(
        self, topic: str, key: str | bytes, value: bytes, *, on_delivery: Callable[[str | None], None] | None = None
    ) -> None: ...

    def poll(self, timeout_s: float = 0.0) -> None: ...


@dataclass(frozen=True, kw_only=True)
class DecisionLogConfig:
    """How the log spills and sends."""

    directory: Path
    """Folder of the spill files; one engine at a time owns it."""
    topic: str = DECISIONS
    segment_bytes: int = 4 << 20
    """A file is closed at this size: what a restart sends again is below it, give or take the messages in flight."""
    max_in_flight: int = 2_000
    """Unacknowledged messages handed to the client: bounds memory while the broker is away."""

    def __post_init__(self) -> None:
        if self.segment_bytes <= 0 or self.max_in_flight <= 0:
            raise ValueError("segment_bytes and max_in_flight must be positive")


@dataclass
class _Segment:
    """One spill file and how far it got. Fields after `closed` belong to the sending thread."""

    path: Path
    size: int = 0
    num_records: int = 0
    closed: bool = False
    reader: IO[bytes] | None = None
    read_at: int = 0
    num_read: int = 0
    num_acknowledged: int = 0
    again: list[tuple[bytes, bytes]] = field(default_factory=list)


class DecisionLog:
    """The spill files of one engine and the thread that empties them.

    `appended`, `acknowledged`, `resent`, `failed_deliveries` and `torn` are counters since the start.
    """

    def __init__(self, config: DecisionLogConfig, connect: Callable[[], MessageSender]) -> None:
        """Take the folder over and start sending, what an earlier process left there first.

        Raises: RuntimeError when another process owns the folder.
        """
        self.config = config
        self.appended = self.acknowledged = self.resent = self.failed_deliveries = self.torn = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._in_flight = 0
        config.directory.mkdir(parents=True, exist_ok=True)
        self._owner = _own(config.directory)
        self._segments: list[_Segment] = [self._left_over(path) for path in sorted(config.directory.glob("*.spill"))]
        last = int(self._segments[-1].path.stem) if self._segments else 0
        self._writer, current = _open_segment(config.directory, last + 1)
        self._segments.append(current)
        self._sender = connect()
        self._thread = threading.Thread(target=self._run, name="decision-log", daemon=True)
        self._thread.start()

    @property
    def backlog(self) -> int:
        """Records not yet acknowledged by the broker, those of an earlier process included."""
        return self.appended + self.resent - self.acknowledged

    def append(self, key: str, value: bytes) -> None:
        """Keep one record; returns when it is in the file. Thread-safe.

        Raises: OSError when the file cannot be written: the caller then must not answer as if it were kept.
        """
        raw_key = key.encode()
        header = _HEADER.pack(len(raw_key), len(value), zlib.crc32(value, zlib.crc32(raw_key)))
        with self._lock:
            current = self._segments[-1]
            if current.closed:
                raise OSError("the decision log is closed")
            written = os.write(self._writer, header + raw_key + value)
            if written != _HEADER.size + len(raw_key) + len(value):
                os.ftruncate(self._writer, current.size)  # half a record would hide the ones after it
                raise OSError(f"only {written} bytes of a decision could be written to {current.path}: disk full?")
            current.size += written
            current.num_records += 1
            self.appended += 1
            if current.size >= self.config.segment_bytes:
                self._roll()
        self._wake.set()

    def close(self, timeout_s: float = 10.0) -> int:
        """Send what is left and stop; returns how many records stay in files for the next start."""
        with self._lock:
            self._segments[-1].closed = True
            os.close(self._writer)
        deadline = time.monotonic() + timeout_s
        while self.backlog > 0 and time.monotonic() < deadline and self._thread.is_alive():
            self._wake.set()
            self._thread.join(0.01)
        self._stopping = True
        self._wake.set()
        self._thread.join(5.0)
        self._owner.close()
        if self.backlog:
            logger.warning("%d decisions stay in %s: the next start sends them", self.backlog, self.config.directory)
        return self.backlog

    def _roll(self) -> None:
        """Close the current file and open the next. Called with the lock held."""
        current = self._segments[-1]
        os.close(self._writer)
        self._writer, following = _open_segment(self.config.directory, int(current.path.stem) + 1)
        self._segments.append(following)
        current.closed = True

    def _left_over(self, path: Path) -> _Segment:
        """A file of an earlier process: counted, a torn last record cut off."""
        raw = path.read_bytes()
        num_records = 0
        end = 0
        for _key, _value, record_end in _records(raw):
            num_records += 1
            end = record_end
        if end < len(raw):
            self.torn += 1
            logger.warning("%s: %d bytes of a torn record at offset %d were left out", path, len(raw) - end, end)
        self.resent += num_records
        return _Segment(path=path, size=end, num_records=num_records, closed=True)

    def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                self._send_all()
            except Exception:  # the thread must outlive any client error: the files keep the records
                logger.exception("sending decisions failed, trying again")
                time.sleep(0.5)
            if self._stopping:
                for segment in self._segments:
                    if segment.reader is not None:
                        segment.reader.close()
                return
            # Acknowledgements arrive by poll only, so never sleep long while some are due.
            self._wake.wait(0.005 if self._in_flight else 0.1)
            self._sender.poll(0)

    def _send_all(self) -> None:
        """Send every record that is in the files and not yet sent; unlink the files that are done."""
        with self._lock:
            segments = list(self._segments)
        for segment in segments:
            again, segment.again = segment.again, []
            for key, value in again:
                self._send(segment, key, value)
            for key, value in _unread(segment):
                self._send(segment, key, value)
                if self._stopping:
                    return
        self._sender.poll(0)
        for segment in segments:
            if segment.closed and segment.num_acknowledged == segment.num_records:
                if segment.reader is not None:
                    segment.reader.close()
                    segment.reader = None
                segment.path.unlink(missing_ok=True)
                with self._lock:
                    if len(self._segments) > 1:  # the last one stays as the mark that the log is closed
                        self._segments.remove(segment)

    def _send(self, segment: _Segment, key: bytes, value: bytes) -> None:
        def delivered(error: str | None) -> None:
            self._in_flight -= 1
            if error is None:
                segment.num_acknowledged += 1
                self.acknowledged += 1
                return
            self.failed_deliveries += 1
            logger.warning("a decision was not delivered and is sent again: %s", error)
            segment.again.append((key, value))

        while self._in_flight >= self.config.max_in_flight and not self._stopping:
            self._sender.poll(0.05)
        self._in_flight += 1
        self._sender.send(self.config.topic, key, value, on_delivery=delivered)


def read_spilled(directory: Path) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of every whole record in the spill files of a folder, oldest first; for tools and tests."""
    for path in sorted(directory.glob("*.spill")):
        for key, value, _end in _records(path.read_bytes()):
            yield key, value


def _own(directory: Path) -> IO[str]:
    owner = (directory / "owner.lock").open("w")
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        owner.close()
        raise RuntimeError(
            f"another engine owns the decision log in {directory}: stop it, or give this one a folder of its own"
        ) from None
    return owner


def _open_segment(directory: Path, number: int) -> tuple[int, _Segment]:
    path = directory / f"{number:012d}.spill"
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o600), _Segment(path=path)


def _records(raw: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """Key, value and end offset of each whole record; stops at the first that is not."""
    at = 0
    while at + _HEADER.size <= len(raw):
        num_key, num_value, crc = _HEADER.unpack_from(raw, at)
        start, middle = at + _HEADER.size, at + _HEADER.size + num_key
        at = middle + num_value
        if at > len(raw):
            return
        key, value = raw[start:middle], raw[middle:at]
        if zlib.crc32(value, zlib.crc32(key)) != crc:
            return
        yield key, value, at


def _unread(segment: _Segment) -> Iterator[tuple[bytes, bytes]]:
    """The records of a file that were not read yet, up to the size the writer has published."""
    size = segment.size
    if segment.read_at >= size:
        return
    if segment.reader is None:
        segment.reader = segment.path.open("rb", buffering=0)
    segment.reader.seek(segment.read_at)
    raw = segment.reader.read(size - segment.read_at)
    base = segment.read_at
    for key, value, end in _records(raw):
        segment.read_at = base + end
        segment.num_read += 1
        yield key, value

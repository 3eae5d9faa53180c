"""Decisions to their topic, off the request path: nothing that was answered is lost silently.

`append` writes the record to a spill file before the answer leaves, which takes microseconds and survives the death
of the process. One background thread tails these files, sends to the broker, and deletes a file when all of it is
acknowledged. A restart finds what is left and sends it again, so a record may arrive twice: consumers fold by
`decision_id`. Broker down means files that grow, and `backlog` says by how much.

    append ──► 000000000007.spill ──► thread ──► topic
                (closed, unlinked      │
                 when every record     └──► 9f3c….refused: a record that can never be sent, kept and counted
                 of it is settled)

A record that the client or the broker refuses for what it is (too large) is moved aside and holds nobody up. Whatever
else `send` or `poll` raises is the connection's fault: a new one is made, and all that is unacknowledged is sent again.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from engine.spill import Segment, framed, left_over, open_segment, own, set_aside, unread
from features.records import DECISIONS

logger = logging.getLogger(__name__)

# Kafka's names of errors that lie in the record, as the client's messages carry them: sending it again cannot help.
_NEVER: Final = ("MSG_SIZE_TOO_LARGE", "INVALID_RECORD", "INVALID_MSG_SIZE")
_PAUSE_S: Final = 0.2  # before a new connection is made


class MessageSender(Protocol):
    """What the log needs of `features.topics.Producer`. Both may raise; a failed delivery is `on_delivery(text)`."""

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


@dataclass(frozen=True)
class _Record:
    segment: Segment
    key: bytes
    value: bytes


class DecisionLog:
    """The spill files of one engine and the thread that empties them.

    `appended`, `acknowledged`, `refused` (moved aside), `resent` (left by an earlier process), `failed_deliveries`,
    `reconnects` and `torn` are counters since the start.
    """

    def __init__(self, config: DecisionLogConfig, connect: Callable[[], MessageSender]) -> None:
        """Take the folder over and start sending, what an earlier process left there first.

        Raises: RuntimeError when another process owns the folder.
        """
        self.config = config
        self.appended = self.acknowledged = self.refused = 0
        self.failed_deliveries = self.reconnects = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        # A record that was read from its file is in one of these two until it is settled. The numbers are never used
        # twice, so what an abandoned connection still says of its messages meets nothing here.
        self._flying: dict[int, _Record] = {}
        self._again: deque[_Record] = deque()
        self._numbers = itertools.count()
        config.directory.mkdir(parents=True, exist_ok=True)
        self._owner = own(config.directory)
        self._segments: list[Segment] = [left_over(path) for path in sorted(config.directory.glob("*.spill"))]
        self.torn = sum(segment.torn for segment in self._segments)
        self.resent = sum(segment.num_records for segment in self._segments)
        last = int(self._segments[-1].path.stem) if self._segments else 0
        self._writer, current = open_segment(config.directory, last + 1)
        self._segments.append(current)
        self._connect = connect
        self._sender = connect()
        self._thread = threading.Thread(target=self._run, name="decision-log", daemon=True)
        self._thread.start()

    @property
    def backlog(self) -> int:
        """Records not yet acknowledged or moved aside, those of an earlier process included."""
        return self.appended + self.resent - self.acknowledged - self.refused

    def append(self, key: str, value: bytes) -> None:
        """Keep one record; returns when it is in the file. Thread-safe.

        Raises: OSError when the file cannot be written: the caller then must not answer as if it were kept.
        """
        raw = framed(key.encode(), value)
        with self._lock:
            current = self._segments[-1]
            if current.closed:
                raise OSError("the decision log is closed")
            written = os.write(self._writer, raw)
            if written != len(raw):
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
        self._writer, following = open_segment(self.config.directory, int(current.path.stem) + 1)
        self._segments.append(following)
        current.closed = True

    def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                self._send_all()
            except Exception:  # whatever it is, the files keep the records
                logger.exception("sending decisions failed, connecting again")
                self._connect_again()
            if self._stopping:
                for segment in self._segments:
                    if segment.reader is not None:
                        segment.reader.close()
                return
            # Acknowledgements arrive by poll only, so never sleep long while some are due.
            self._wake.wait(0.005 if self._flying else 0.1)

    def _send_all(self) -> None:
        """Send every record that is in the files and not yet sent; unlink the files that are done."""
        self._sender.poll(0)
        for _ in range(len(self._again)):  # what fails anew waits for the next round, behind what is unread
            self._send(self._again.popleft())
        with self._lock:
            segments = list(self._segments)
        for segment in segments:
            for key, value in unread(segment):
                self._send(_Record(segment, key, value))
                if self._stopping:
                    return
        self._sender.poll(0)
        for segment in segments:
            if segment.closed and segment.num_settled == segment.num_records:
                if segment.reader is not None:
                    segment.reader.close()
                    segment.reader = None
                segment.path.unlink(missing_ok=True)
                with self._lock:
                    if len(self._segments) > 1:  # the last one stays as the mark that the log is closed
                        self._segments.remove(segment)

    def _send(self, record: _Record) -> None:
        """Hand one record to the client. It counts as flying before anything here can raise, so that it is not lost."""
        number = next(self._numbers)
        self._flying[number] = record
        while len(self._flying) > self.config.max_in_flight and not self._stopping:
            self._sender.poll(0.05)
        try:
            self._sender.send(self.config.topic, record.key, record.value, on_delivery=partial(self._delivered, number))
        except Exception as error:
            if not _lies_in_record(str(error)):
                raise
            self._settle(number, str(error))

    def _delivered(self, number: int, error: str | None) -> None:
        if number not in self._flying:
            return  # of a connection that was given up: it was sent again
        if error is None or _lies_in_record(error):
            self._settle(number, error)
            return
        self.failed_deliveries += 1
        logger.warning("a decision was not delivered and is sent again: %s", error)
        self._again.append(self._flying.pop(number))

    def _settle(self, number: int, refusal: str | None) -> None:
        """Be done with a record: it was acknowledged, or it is moved aside because it can never be."""
        record = self._flying[number]
        if refusal is None:
            self.acknowledged += 1
        else:
            path = set_aside(self.config.directory, record.key, record.value)
            self.refused += 1
            logger.error(
                "decision %s (%d bytes) can never be sent and is kept in %s: %s",
                record.key.decode(errors="replace"),
                len(record.value),
                path,
                refusal,
            )
        record.segment.num_settled += 1
        del self._flying[number]

    def _connect_again(self) -> None:
        """Give the connection up, with all that it has not acknowledged to be sent again, in order."""
        time.sleep(_PAUSE_S)
        self._again.extendleft(reversed(self._flying.values()))
        self._flying.clear()
        try:
            self._sender = self._connect()
            self.reconnects += 1
        except Exception:  # the old one stays, raises again, and leads here again
            logger.exception("no new connection for decisions yet")


def _lies_in_record(error: str) -> bool:
    return any(name in error for name in _NEVER)

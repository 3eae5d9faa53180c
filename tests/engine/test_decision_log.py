"""Nothing that was appended is lost: over failed deliveries, restarts, kills and torn files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.decision_log import DecisionLog, DecisionLogConfig
from engine.spill import read_refused, read_spilled
from features.topics import Producer
from infra.local.stack import free_ports

TOO_LARGE = 'KafkaError{code=MSG_SIZE_TOO_LARGE,val=10,str="Unable to produce message: Broker: Message size too large"}'
FATAL = 'KafkaError{code=_FATAL,val=-150,str="Unable to produce message: Local: Fatal error"}'


class ClientError(Exception):
    """Stands for the client's KafkaException, which derives from Exception only."""


class Broker:
    """A broker in memory: acknowledges on poll, fails the first `fail` deliveries, may be away.

    What is longer than `limit` is refused by `send`, as the client does, and what is longer than `topic_limit` by the
    delivery, as a broker does. After `dies_after` messages each `send` raises: a fatal error, only a new one helps.
    """

    def __init__(
        self,
        *,
        fail: int = 0,
        away: bool = False,
        limit: int = 1 << 20,
        topic_limit: int = 1 << 20,
        dies_after: int = 1 << 20,
    ) -> None:
        self.fail, self.away = fail, away
        self.limit, self.topic_limit, self.dies_after = limit, topic_limit, dies_after
        self.kept: list[tuple[bytes, bytes]] = []
        self.waiting: list[tuple[bytes, bytes, Callable[[str | None], None]]] = []
        self.most_in_flight = 0

    def send(
        self, topic: str, key: str | bytes, value: bytes, *, on_delivery: Callable[[str | None], None] | None = None
    ) -> None:
        assert topic == "decisions" and isinstance(key, bytes) and on_delivery is not None
        if len(value) > self.limit:
            raise ClientError(TOO_LARGE)
        if self.dies_after == 0:
            raise ClientError(FATAL)
        self.dies_after -= 1
        self.waiting.append((key, value, on_delivery))
        self.most_in_flight = max(self.most_in_flight, len(self.waiting))

    def poll(self, timeout_s: float = 0.0) -> None:
        if self.away:
            return
        waiting, self.waiting = self.waiting, []
        for key, value, delivered in waiting:
            if self.fail > 0:
                self.fail -= 1
                delivered("the leader moved")
                continue
            if len(value) > self.topic_limit:
                delivered(TOO_LARGE)
                continue
            self.kept.append((key, value))
            delivered(None)


def open_log(folder: Path, broker: Broker, **options: int) -> DecisionLog:
    return DecisionLog(DecisionLogConfig(directory=folder, **options), lambda: broker)  # type: ignore[arg-type]


def records(count: int, start: int = 0) -> list[tuple[bytes, bytes]]:
    return [(f"o-{n}".encode(), b"{%d}" % n * (n % 50 + 1)) for n in range(start, start + count)]


def append_all(log: DecisionLog, rows: list[tuple[bytes, bytes]]) -> None:
    for key, value in rows:
        log.append(key.decode(), value)


def test_every_record_arrives_in_order_and_its_files_go(tmp_path: Path) -> None:
    broker = Broker()
    log = open_log(tmp_path, broker, segment_bytes=2_000)
    append_all(log, records(500))
    assert log.close() == 0
    assert broker.kept == records(500)
    assert list(tmp_path.glob("*.spill")) == []
    assert (log.appended, log.acknowledged, log.failed_deliveries) == (500, 500, 0)


def test_record_is_in_the_file_before_append_returns(tmp_path: Path) -> None:
    log = open_log(tmp_path, Broker(away=True))
    log.append("o-1", b"one")
    assert list(read_spilled(tmp_path)) == [(b"o-1", b"one")]
    assert log.backlog == 1
    assert log.close(timeout_s=0.05) == 1


def test_failed_delivery_is_sent_again(tmp_path: Path) -> None:
    broker = Broker(fail=7)
    log = open_log(tmp_path, broker)
    append_all(log, records(50))
    assert log.close() == 0
    assert sorted(broker.kept) == sorted(records(50))
    assert log.failed_deliveries == 7


@pytest.mark.parametrize("refusing", ["limit", "topic_limit"])
def test_record_that_can_never_be_sent_is_moved_aside_and_the_others_arrive(tmp_path: Path, refusing: str) -> None:
    """More of them than may be in flight: each one that leaked would take a place for good."""
    large = [(f"big-{n}".encode(), b"x" * (200 + n)) for n in range(25)]
    small = [(f"o-{n}".encode(), b"y" * 20) for n in range(100)]
    mixed = [row for n in range(25) for row in (large[n], *small[4 * n : 4 * n + 4])]
    broker = Broker(**{refusing: 100})
    log = open_log(tmp_path, broker, max_in_flight=10, segment_bytes=2_000)
    append_all(log, mixed)
    assert log.close() == 0
    assert broker.kept == small
    assert sorted(read_refused(tmp_path)) == sorted(large)
    assert (log.appended, log.acknowledged, log.refused, log.reconnects) == (125, 100, 25, 0)
    assert list(tmp_path.glob("*.spill")) == []


def test_refused_record_is_the_same_file_after_a_restart_and_is_sent_when_renamed(tmp_path: Path) -> None:
    for _ in range(2):  # as if the first process died between moving it aside and being done with its file
        log = open_log(tmp_path, Broker(limit=3))
        log.append("big", b"too large")
        assert log.close() == 0
    (path,) = tmp_path.glob("*.refused")
    path.rename(tmp_path / "000000000099.spill")
    broker = Broker()
    assert open_log(tmp_path, broker).close() == 0
    assert broker.kept == [(b"big", b"too large")]


def test_real_client_refuses_a_large_decision_and_the_log_goes_on(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    log = DecisionLog(DecisionLogConfig(directory=tmp_path), lambda: Producer(f"127.0.0.1:{port}"))
    log.append("big", b"x" * 1_100_000)
    log.append("small", b"x")
    wait_until(lambda: log.refused == 1 and log.backlog == 1)
    assert log.reconnects == 0
    assert log.close(timeout_s=0.05) == 1
    assert [key for key, _ in read_refused(tmp_path)] == [b"big"]


def test_fatal_error_leads_to_a_new_connection_that_gets_all_that_is_unacknowledged(tmp_path: Path) -> None:
    """The first connection takes 30 messages, acknowledges none of them, and is dead from then on."""
    dead, good = Broker(away=True, dies_after=30), Broker()
    connections = [dead, good]
    log = DecisionLog(DecisionLogConfig(directory=tmp_path, max_in_flight=50), lambda: connections.pop(0))
    append_all(log, records(100))
    wait_until(lambda: log.reconnects == 1)
    dead.away = False
    dead.poll()  # what the abandoned connection still says counts for nothing
    assert log.close() == 0
    assert good.kept == records(100)
    assert (log.acknowledged, log.refused, log.reconnects) == (100, 0, 1)
    assert list(tmp_path.glob("*.spill")) == []


def test_connection_that_cannot_be_made_yet_is_tried_again(tmp_path: Path) -> None:
    good = Broker()
    tries: list[Broker | None] = [Broker(dies_after=0), None, good]

    def connect() -> Broker:
        made = tries.pop(0)
        if made is None:
            raise RuntimeError("no brokers")
        return made

    log = DecisionLog(DecisionLogConfig(directory=tmp_path), connect)
    append_all(log, records(10))
    assert log.close() == 0
    assert (good.kept, log.reconnects) == (records(10), 1)


def test_restart_sends_what_an_earlier_process_left(tmp_path: Path) -> None:
    first = open_log(tmp_path, Broker(away=True), segment_bytes=1_000)
    append_all(first, records(100))
    assert first.close(timeout_s=0.05) == 100
    broker = Broker()
    second = open_log(tmp_path, broker)
    append_all(second, records(10, start=100))
    assert second.close() == 0
    assert broker.kept == records(110)
    assert second.resent == 100
    assert list(tmp_path.glob("*.spill")) == []


def test_torn_last_record_is_counted_and_the_ones_before_it_arrive(tmp_path: Path) -> None:
    first = open_log(tmp_path, Broker(away=True))
    append_all(first, records(20))
    first.close(timeout_s=0.05)
    (path,) = tmp_path.glob("*.spill")
    path.write_bytes(path.read_bytes()[:-3])
    broker = Broker()
    second = open_log(tmp_path, broker)
    assert second.close() == 0
    assert broker.kept == records(19)
    assert second.torn == 1


def test_messages_in_flight_are_bounded_while_the_broker_is_away(tmp_path: Path) -> None:
    broker = Broker(away=True)
    log = open_log(tmp_path, broker, max_in_flight=10)
    append_all(log, records(200))
    wait_until(lambda: broker.most_in_flight == 10)
    assert log.backlog == 200
    broker.away = False
    assert log.close() == 0
    assert broker.kept == records(200)
    assert broker.most_in_flight == 10


def test_one_folder_has_one_owner(tmp_path: Path) -> None:
    log = open_log(tmp_path, Broker())
    with pytest.raises(RuntimeError, match="another engine owns"):
        open_log(tmp_path, Broker())
    log.close()
    open_log(tmp_path, Broker()).close()


def test_closed_log_refuses_records(tmp_path: Path) -> None:
    log = open_log(tmp_path, Broker())
    log.close()
    with pytest.raises(OSError, match="closed"):
        log.append("o-1", b"x")


def test_kill_9_loses_nothing_that_was_appended(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from tests.engine.test_decision_log import Broker, open_log, records
log = open_log(Path(sys.argv[1]), Broker(away=True), segment_bytes=3_000)
for number, (key, value) in enumerate(records(100_000)):
    log.append(key.decode(), value)
    print(number, flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    seen = -1
    while seen < 500:
        seen = int(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    for line in process.stdout:
        if line.endswith("\n"):
            seen = int(line)
    process.wait()
    broker = Broker()
    log = open_log(tmp_path, broker)
    assert log.close() == 0
    assert broker.kept[: seen + 1] == records(seen + 1)
    assert len(broker.kept) <= seen + 2  # one more may have been appended and not yet printed


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)

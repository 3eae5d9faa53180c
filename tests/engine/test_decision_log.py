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

from engine.decision_log import DecisionLog, DecisionLogConfig, read_spilled


class Broker:
    """A broker in memory: acknowledges on poll, fails the first `fail` deliveries, may be away."""

    def __init__(self, *, fail: int = 0, away: bool = False) -> None:
        self.fail, self.away = fail, away
        self.kept: list[tuple[bytes, bytes]] = []
        self.waiting: list[tuple[bytes, bytes, Callable[[str | None], None]]] = []
        self.most_in_flight = 0

    def send(
        self, topic: str, key: str | bytes, value: bytes, *, on_delivery: Callable[[str | None], None] | None = None
    ) -> None:
        assert topic == "decisions" and isinstance(key, bytes) and on_delivery is not None
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

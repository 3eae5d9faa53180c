"""The local stack: idempotent, survives a crash of its parts, leaves nothing running."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from features.records import TOPICS
from features.topics import Producer, TopicError, create_topics, end_offsets, read_all
from infra.local.flink import prepare_flink
from infra.local.process import marked, tree_memory
from infra.local.programs import StackError
from infra.local.stack import DATA, Stack


@pytest.mark.services
def test_a_second_up_changes_nothing(stack: Stack) -> None:
    before = stack.state
    stack.up()
    assert stack.state == before
    assert all(part["running"] and part["answers"] for part in stack.status().values())


@pytest.mark.services
def test_the_whole_stack_stays_under_4_gib(stack: Stack) -> None:
    assert tree_memory(stack.state.stack_id) < 4 * 2**30


@pytest.mark.services
def test_every_topic_of_the_design_exists_and_keeps_what_it_is_given(stack: Stack) -> None:
    assert create_topics(stack.kafka) == []
    for topic in TOPICS:
        assert end_offsets(stack.kafka, topic), topic
    create_topics(stack.kafka, {"stack_test": 3})
    producer = Producer(stack.kafka)
    for i in range(1000):
        producer.send("stack_test", f"k{i % 7}", str(i).encode())
    producer.flush()
    messages = list(read_all(stack.kafka, "stack_test"))
    assert sorted(int(m.value) for m in messages) == list(range(1000))
    assert sum(end_offsets(stack.kafka, "stack_test").values()) == 1000
    by_key: dict[bytes | None, list[int]] = {}
    for m in messages:
        by_key.setdefault(m.key, []).append(int(m.value))
    assert all(values == sorted(values) for values in by_key.values())


def test_an_absent_broker_is_named_with_its_address() -> None:
    with pytest.raises(TopicError, match=r"127\.0\.0\.1:1"):
        create_topics("127.0.0.1:1")


def test_a_stack_that_was_never_started_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="hailstream up"):
        Stack(tmp_path).status()
    assert Stack(tmp_path / "nothing").down() == []


def test_a_path_that_flinks_scripts_cannot_take_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="HAILSTREAM_HOME"):
        prepare_flink(tmp_path / "a b", rest_port=1, rpc_port=2)


def test_clean_removes_what_the_stack_wrote_and_nothing_else(tmp_path: Path) -> None:
    for name in (*DATA, "jars", "my notes"):
        (tmp_path / name).mkdir()
    (tmp_path / "stack.json").rmdir()
    (tmp_path / "stack.json").write_text("{torn")
    own = Stack(tmp_path)
    with pytest.raises(StackError, match="down --clean"):
        own.down()
    own.down(clean=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["jars", "lock", "my notes"]


@pytest.mark.services
@pytest.mark.slow
def test_killed_parts_come_back_and_down_leaves_nothing(tmp_path: Path) -> None:
    own = Stack(tmp_path)
    own.up()
    stack_id = own.state.stack_id
    try:
        for victim in ("taskmanager", "kafka", "redis", "jobmanager"):
            running = own.state.programs[victim]
            os.kill(running.pid, signal.SIGKILL)
            while running.alive:
                time.sleep(0.01)
            own.up()
            assert all(part["running"] and part["answers"] for part in own.status().values()), victim
    finally:
        own.down()
    assert list(marked(stack_id)) == []

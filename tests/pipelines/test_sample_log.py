"""The sample log on disk and its fold, from a topic held in memory."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import pytest

from features.records import Sample, encode
from features.topics import Message
from pipelines.joiner import SampleJoiner
from pipelines.labels.loader import load_labels
from pipelines.sample_log import SampleLogError, SampleLogWriter, check_log, count_kinds, fold
from tests.naive_join import join
from tests.sample_streams import BASE_MS, HOUR_MS, Streams, make_decision, make_event, make_streams


class Topic:
    """A topic of two partitions in memory."""

    def __init__(self) -> None:
        self.messages: dict[int, list[Message]] = {0: [], 1: []}
        self.hidden: set[tuple[int, int]] = set()

    def append(self, key: str, value: bytes) -> None:
        partition = hashlib.md5(key.encode()).digest()[0] % 2
        offset = len(self.messages[partition])
        self.messages[partition].append(Message("samples", partition, offset, key.encode(), value, 0))

    def end_offsets(self) -> dict[int, int]:
        return {p: len(messages) for p, messages in self.messages.items()}

    def read(self, start: Mapping[int, int]) -> Iterable[Message]:
        for partition, messages in self.messages.items():
            yield from (m for m in messages[start[partition] :] if (partition, m.offset) not in self.hidden)


def filled(seed: int = 1, num_orders: int = 40) -> tuple[Topic, Streams]:
    print(f"seed {seed}")
    rng = random.Random(seed)
    streams = make_streams(rng, num_orders)
    joiner, topic = SampleJoiner(load_labels()), Topic()
    out = [r for d in streams.decisions for r in joiner.add_decision(encode(d), key=d.order_id)]
    out += [r for e in streams.events for r in joiner.add_event(encode(e))]
    out += joiner.advance(BASE_MS + 1000 * HOUR_MS)
    for record in out:
        if isinstance(record, Sample):
            topic.append(record.sample_id, encode(record))
    return topic, streams


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("block-*")}


def write(topic: Topic, folder: Path, block_offsets: int = 50) -> None:
    with SampleLogWriter(topic, folder, block_offsets=block_offsets) as writer:
        writer.catch_up()


def test_the_fold_is_the_batch_join(tmp_path: Path) -> None:
    topic, streams = filled()
    write(topic, tmp_path)
    rows, _ = join(streams.decisions, streams.events)
    table = fold(tmp_path)
    assert table.num_rows == len(rows)
    payloads = {d.decision_id: encode(d) for d in reversed(streams.decisions)}
    for row in table.to_pylist():
        expected = rows[row["sample_id"]]
        assert row["decision"] == payloads[row["sample_id"]]
        assert (row["kind"], row["closed"], row["propensity_valid"]) == (
            expected["kind"],
            expected["closed"],
            expected["propensity_valid"],
        )
        for name in ("accepted", "completed"):
            assert row[name] == expected["labels"].get(name)
            assert row[f"{name}_time_ms"] == expected["times"].get(name)
    assert sum(count_kinds(table).values()) == len(rows)
    assert fold(tmp_path, payload=False).equals(table.drop_columns(["decision"]))
    assert table["event_time_ms"].to_pylist() == sorted(table["event_time_ms"].to_pylist())


def test_writing_in_any_number_of_steps_gives_the_same_bytes(tmp_path: Path) -> None:
    topic, _ = filled()
    write(topic, tmp_path / "once")
    rng = random.Random(7)
    end = topic.end_offsets()
    at = dict.fromkeys(end, 0)
    while at != end:
        at = {p: min(end[p], at[p] + rng.randrange(40)) for p in end}
        with SampleLogWriter(topic, tmp_path / "steps", block_offsets=50) as writer:
            writer.catch_up(at)
        assert check_log(tmp_path / "steps", at).holds
    assert files_of(tmp_path / "steps") == files_of(tmp_path / "once")
    with SampleLogWriter(topic, tmp_path / "once", block_offsets=50, rewrite=True) as writer:
        writer.catch_up()
    assert files_of(tmp_path / "steps") == files_of(tmp_path / "once")


def test_a_full_block_is_never_written_again(tmp_path: Path) -> None:
    topic, _ = filled()
    write(topic, tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("block-000000000000*")}
    topic.append("x", encode(joined_once()))
    write(topic, tmp_path)
    assert before == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("block-000000000000*")}


def joined_once() -> Sample:
    (sample,) = SampleJoiner(load_labels()).add_decision(encode(make_decision("x", "o", BASE_MS)), key="o")
    assert isinstance(sample, Sample)
    return sample


def test_a_message_that_is_no_sample_is_named_and_counted(tmp_path: Path) -> None:
    topic, _ = filled(num_orders=3)
    topic.append("x", b"{")
    write(topic, tmp_path)
    check = check_log(tmp_path, topic.end_offsets())
    assert check.holds and check.rejected == 1 and check.rows == check.offsets - 1


def test_an_offset_that_the_topic_does_not_show_breaks_conservation(tmp_path: Path) -> None:
    topic, _ = filled()
    topic.hidden = {(0, 3), (0, len(topic.messages[0]) - 1)}
    write(topic, tmp_path)
    check = check_log(tmp_path, topic.end_offsets())
    assert check.missing == 2 and not check.holds


def test_what_the_log_has_not_read_yet_is_unread(tmp_path: Path) -> None:
    topic, _ = filled(num_orders=3)
    write(topic, tmp_path)
    topic.append("x", encode(joined_once()))
    check = check_log(tmp_path, topic.end_offsets())
    assert check.unread == 1 and not check.holds


@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "manifest", "manifest gone"])
def test_a_damaged_log_is_refused_and_can_be_written_again(tmp_path: Path, damage: str) -> None:
    topic, _ = filled()
    write(topic, tmp_path)
    good = fold(tmp_path)
    data = sorted(tmp_path.rglob("*.parquet"))[0]
    manifest = sorted(tmp_path.rglob("*.json"))[0]
    if damage == "cut":
        data.write_bytes(data.read_bytes()[:-100])
    elif damage == "flip":
        raw = bytearray(data.read_bytes())
        raw[len(raw) // 2] ^= 1
        data.write_bytes(bytes(raw))
    elif damage == "gone":
        data.unlink()
    elif damage == "manifest":
        manifest.write_bytes(manifest.read_bytes()[:-20])
    else:
        manifest.unlink()
    with pytest.raises(SampleLogError, match=r"block-.*--rewrite"):
        fold(tmp_path)
    with SampleLogWriter(topic, tmp_path, block_offsets=50, rewrite=True) as writer:
        writer.catch_up()
    assert fold(tmp_path).equals(good)


def test_a_kill_between_data_and_manifest_leaves_the_old_block(tmp_path: Path) -> None:
    topic, _ = filled(num_orders=3)
    write(topic, tmp_path, block_offsets=1000)
    good = fold(tmp_path)
    folder = tmp_path / "partition=0000"
    (folder / ".tmp-block-000000000000-000000000999.parquet").write_bytes(b"half")
    (folder / "block-000000000000-000000000999.parquet").write_bytes(b"whole, but not named yet")
    assert fold(tmp_path).equals(good)
    topic.append("x", encode(joined_once()))
    write(topic, tmp_path, block_offsets=1000)
    assert fold(tmp_path).num_rows == good.num_rows + 1
    assert not list(folder.glob(".tmp-*"))


def test_a_sample_without_its_version_1_is_refused(tmp_path: Path) -> None:
    topic = Topic()
    topic.append("x", encode(msgspec.structs.replace(joined_once(), version=2, decision=msgspec.UNSET)))
    write(topic, tmp_path)
    with pytest.raises(SampleLogError, match="1 samples have no version 1"):
        fold(tmp_path)
    assert fold(tmp_path, payload=False).num_rows == 1


def test_a_run_repeated_from_the_start_does_not_take_a_positive_back(tmp_path: Path) -> None:
    """Behind the first run's positive stands version 1 of a second run that has not got so far yet."""
    joiner, topic = SampleJoiner(load_labels()), Topic()
    out = joiner.add_decision(encode(make_decision("x", "o", BASE_MS)), key="o")
    event = make_event("e", "accepted", "o", BASE_MS + 5, decision_id="x", offer_id="f", driver_id="d-0")
    out += joiner.add_event(encode(event))
    for record in [*out, joined_once()]:
        assert isinstance(record, Sample)
        topic.append(record.sample_id, encode(record))
    write(topic, tmp_path)
    (row,) = fold(tmp_path).to_pylist()
    assert (row["accepted"], row["kind"], row["version"]) == (1, "positive", 2)


def test_two_writers_of_one_folder_are_refused(tmp_path: Path) -> None:
    topic, _ = filled(num_orders=1)
    with SampleLogWriter(topic, tmp_path), pytest.raises(SampleLogError, match="another writer"):
        SampleLogWriter(topic, tmp_path)


def test_another_block_size_is_refused(tmp_path: Path) -> None:
    topic, _ = filled()
    write(topic, tmp_path, block_offsets=50)
    with pytest.raises(SampleLogError, match="another block size"):
        SampleLogWriter(topic, tmp_path, block_offsets=60)


def test_following_ends_when_the_topic_is_quiet_and_the_caller_agrees(tmp_path: Path) -> None:
    topic, _ = filled(num_orders=3)
    asked: list[int] = []

    def until() -> bool:
        asked.append(1)
        if len(asked) == 1:
            topic.append("x", encode(joined_once()))
            return False
        return len(asked) > 1

    with SampleLogWriter(topic, tmp_path) as writer:
        report = writer.follow(quiet_s=0.02, timeout_s=10, until=until, poll_s=0.005)
    assert report.next_offsets == topic.end_offsets() and report.rows == sum(topic.end_offsets().values())
    with (
        SampleLogWriter(topic, tmp_path) as writer,
        pytest.raises(SampleLogError, match="not come to rest"),
    ):
        writer.follow(quiet_s=0.0, timeout_s=0.05, until=lambda: False, poll_s=0.005)


def test_an_empty_topic_folds_to_no_rows(tmp_path: Path) -> None:
    write(Topic(), tmp_path)
    assert fold(tmp_path).num_rows == 0 and check_log(tmp_path, {0: 0, 1: 0}).holds
    with pytest.raises(SampleLogError, match="no sample log"):
        fold(tmp_path / "nowhere")

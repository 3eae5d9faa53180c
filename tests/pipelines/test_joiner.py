"""The joiner against the batch join of tests/naive_join.py, and each rule on its own."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from features.records import DeadLetter, Decision, LedgerEntry, Sample, TripEvent, encode
from pipelines.dead_letter import MAX_MESSAGE_BYTES, MAX_RAW_BYTES
from pipelines.joiner import MAX_DECISIONS, MAX_OUTCOMES, Output, SampleJoiner
from pipelines.labels.loader import load_labels
from tests.naive_join import MINUTE_MS, SHIPPED, SHIPPED_RETENTION_MS, Rule, join
from tests.sample_streams import BASE_MS, HOUR_MS, SECOND_MS, Streams, make_decision, make_event, make_streams

LABELS = load_labels()
FOREVER_MS = BASE_MS + 1000 * HOUR_MS
NUM_SEEDS = 300

Record = Decision | TripEvent


def feed(joiner: SampleJoiner, record: Record, offset: int = 0) -> list[Output]:
    if isinstance(record, Decision):
        return joiner.add_decision(encode(record), key=record.order_id, offset=offset)
    return joiner.add_event(encode(record), offset=offset)


def samples_of(out: list[Output]) -> dict[str, list[Sample]]:
    versions = defaultdict(list)
    for record in out:
        if isinstance(record, Sample):
            versions[record.sample_id].append(record)
    return dict(versions)


def folded(out: list[Output]) -> dict[str, dict[str, Any]]:
    """One row per sample, after checking what must hold for every sequence of versions."""
    rows = {}
    for sample_id, versions in samples_of(out).items():
        assert [s.version for s in versions] == list(range(1, len(versions) + 1)), sample_id
        assert [s.decision is not msgspec.UNSET for s in versions] == [True] + [False] * (len(versions) - 1)
        for before, after in pairwise(versions):
            taken_back = [name for name, value in before.labels.items() if value == 1 and after.labels[name] != 1]
            assert not taken_back, (before, after)
            assert (before.kind, before.labels, before.closed) != (after.kind, after.labels, after.closed) or (
                before.label_times_ms,
                before.propensity_valid,
                before.ingest_time_ms,
            ) != (after.label_times_ms, after.propensity_valid, after.ingest_time_ms), "a version that says nothing new"
        last = versions[-1]
        rows[sample_id] = {
            "strategy": last.strategy,
            "order_id": last.order_id,
            "event_time_ms": last.event_time_ms,
            "kind": last.kind,
            "closed": last.closed,
            "labels": last.labels,
            "times": last.label_times_ms,
            "propensity_valid": last.propensity_valid,
        }
    return rows


def unmatched(out: list[Output]) -> list[str]:
    return sorted(r.event_id for r in out if isinstance(r, LedgerEntry) and r.reason == "unmatched")


def num_duplicates(out: list[Output]) -> int:
    return sum(isinstance(r, LedgerEntry) and r.reason == "duplicate" for r in out)


def check_against_oracle(out: list[Output], streams: Streams, rules: Any = SHIPPED) -> None:
    rows, lost = join(streams.decisions, streams.events, rules)
    assert folded(out) == rows
    assert unmatched(out) == sorted(lost)
    assert num_duplicates(out) == len(streams.decisions) - len(rows)


@pytest.mark.parametrize("block", range(10))
def test_any_interleaving_folds_to_the_batch_join(block: int) -> None:
    """300 seeds: both topics shuffled into each other, the clock anywhere, the process restarted at random."""
    for seed in range(block * NUM_SEEDS // 10, (block + 1) * NUM_SEEDS // 10):
        print(f"seed {seed}")
        rng = random.Random(seed)
        streams = make_streams(rng, num_orders=8)
        records: list[Record] = [*streams.decisions, *streams.events]
        rng.shuffle(records)
        joiner = SampleJoiner(LABELS)
        out: list[Output] = []
        for offset, record in enumerate(records):
            if rng.random() < 0.15:  # waits and windows end early, but nothing is forgotten yet
                out += joiner.advance(max(joiner.now_ms, BASE_MS + rng.randrange(SHIPPED_RETENTION_MS - HOUR_MS)))
            if rng.random() < 0.02:
                joiner = SampleJoiner.restore(LABELS, joiner.save())
            out += feed(joiner, record, offset)
        out += joiner.advance(FOREVER_MS)
        check_against_oracle(out, streams)
        assert joiner.orders == {}, "everything is forgotten in the end"


def known_ms(record: Record) -> int:
    return record.event_time_ms if isinstance(record, Decision) else record.ingest_time_ms


@pytest.mark.parametrize("seed", range(30))
def test_a_true_watermark_gives_the_batch_join_and_bounded_state(seed: int) -> None:
    """Records in order of ingest time over 40 hours: state is forgotten on the way, and that changes nothing."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    streams = make_streams(rng, num_orders=60, span_ms=40 * HOUR_MS)
    records: list[Record] = [*streams.decisions, *streams.events]
    rng.shuffle(records)  # the order of ties
    joiner = SampleJoiner(LABELS)
    out: list[Output] = []
    most = 0
    for record in sorted(records, key=known_ms):
        out += joiner.advance(known_ms(record) - 1)
        out += feed(joiner, record)
        most = max(most, len(joiner.orders))
    out += joiner.advance(FOREVER_MS)
    check_against_oracle(out, streams)
    assert most < 60 and joiner.orders == {}


@pytest.mark.parametrize("seed", range(20))
def test_waits_shorter_than_the_window_give_corrected_positives(seed: int, tmp_path: Path) -> None:
    print(f"seed {seed}")
    (tmp_path / "d.yaml").write_text(
        """
strategy: express_dispatch
labels:
  accepted: {joined_by: decision, positive_when: "event_type == 'accepted'", wait: 8s, window: 10m}
"""
    )
    rule = Rule(
        by="decision", yes=frozenset({"accepted"}), no=frozenset(), wait_ms=8 * SECOND_MS, window_ms=10 * MINUTE_MS
    )
    rng = random.Random(seed)
    streams = make_streams(rng, num_orders=30)
    streams.decisions = [d for d in streams.decisions if d.strategy == "express_dispatch"]
    records: list[Record] = [*streams.decisions, *streams.events]
    rng.shuffle(records)
    joiner = SampleJoiner(load_labels(tmp_path))
    out: list[Output] = []
    for record in records:
        out += feed(joiner, record)
    out += joiner.advance(FOREVER_MS)
    check_against_oracle(out, streams, {"express_dispatch": {"accepted": rule}})
    assert {"corrected", "positive", "negative"} <= {row["kind"] for row in folded(out).values()}


@pytest.mark.parametrize("seed", range(20))
def test_a_restart_from_older_state_that_repeats_output_still_folds_to_the_batch_join(seed: int) -> None:
    """At-least-once: after a kill the job resumes from its checkpoint and writes again behind what it wrote since.

    Versions are numbered by arrival, which may differ in the second run; the fold takes the last record that has the most positives.
    """
    print(f"seed {seed}")
    rng = random.Random(seed)
    streams = make_streams(rng, num_orders=8)
    before: list[Record] = [*streams.decisions, *streams.events]
    rng.shuffle(before)
    cut = len(before) // 3
    joiner = SampleJoiner(LABELS)
    out: list[Output] = []
    for record in before[:cut]:
        out += feed(joiner, record)
    checkpoint = joiner.save()
    for record in before[cut : 2 * cut]:  # written, then the process is killed
        out += feed(joiner, record)
    joiner = SampleJoiner.restore(LABELS, checkpoint)
    again = before[cut:]
    rng.shuffle(again)  # the two topics interleave differently the second time
    for record in again:
        out += feed(joiner, record)
    out += joiner.advance(FOREVER_MS)
    rows, _ = join(streams.decisions, streams.events)
    for sample_id, versions in samples_of(out).items():
        last = max(enumerate(versions), key=lambda at: (list(at[1].labels.values()).count(1), at[0]))[1]
        row = rows.pop(sample_id)
        assert (last.labels, last.kind, last.closed) == (row["labels"], row["kind"], row["closed"])
    assert rows == {}


#            decision      offered   accepted                completed
#  ─────────────┼─────────────┼─────────┼──────────────────────────┼──────►  event time
#  version      1             2         3                          4


def test_versions_follow_the_life_of_an_order() -> None:
    joiner = SampleJoiner(LABELS)
    of_offer = {"decision_id": "x", "offer_id": "f", "driver_id": "d-0"}
    out = feed(joiner, make_decision("x", "o", BASE_MS))
    assert [(s.version, s.kind, s.closed) for s in out if isinstance(s, Sample)] == [(1, "provisional", False)]
    out += feed(joiner, make_event("e1", "offered", "o", BASE_MS + 100, **of_offer))
    out += feed(joiner, make_event("e2", "accepted", "o", BASE_MS + 200, **of_offer))
    out += feed(joiner, make_event("e3", "completed", "o", BASE_MS + 300, driver_id="d-0"))
    versions = samples_of(out)["x"]
    assert [(s.kind, s.closed, s.labels, s.propensity_valid) for s in versions] == [
        ("provisional", False, {"accepted": None, "completed": None}, None),
        ("provisional", False, {"accepted": None, "completed": None}, True),
        ("positive", False, {"accepted": 1, "completed": None}, True),
        ("positive", True, {"accepted": 1, "completed": 1}, True),
    ]
    assert versions[-1].label_times_ms == {"accepted": BASE_MS + 200, "completed": BASE_MS + 300}


def test_version_1_carries_the_bytes_of_the_decision_and_later_ones_none() -> None:
    joiner = SampleJoiner(LABELS)
    raw = b"  " + encode(make_decision("x", "o", BASE_MS)).replace(b'{"decision_id"', b'{ "decision_id"', 1)
    out = joiner.add_decision(raw, key="o") + joiner.advance(BASE_MS + 5 * HOUR_MS)
    first, *later = samples_of(out)["x"]
    assert first.decision is not msgspec.UNSET and bytes(first.decision) == raw
    assert later and all(b'"decision":' not in encode(s) for s in later)


def test_outcomes_that_came_first_give_version_2_at_once() -> None:
    joiner = SampleJoiner(LABELS)
    assert (
        feed(joiner, make_event("e", "declined", "o", BASE_MS + 9, decision_id="x", offer_id="f", driver_id="d-0"))
        == []
    )
    out = feed(joiner, make_decision("x", "o", BASE_MS))
    assert [(s.version, s.kind, s.closed) for s in out if isinstance(s, Sample)] == [
        (1, "provisional", False),
        (2, "negative", True),
    ]


@pytest.mark.parametrize("answer", ["declined", "timed_out"])
def test_a_refusal_is_a_no_to_both_labels_and_closes(answer: Any) -> None:
    joiner = SampleJoiner(LABELS)
    out = feed(joiner, make_decision("x", "o", BASE_MS))
    out += feed(joiner, make_event("e", answer, "o", BASE_MS + 5, decision_id="x", offer_id="f", driver_id="d-0"))
    last = samples_of(out)["x"][-1]
    assert (last.labels, last.closed, last.kind) == ({"accepted": 0, "completed": 0}, True, "negative")


def test_a_cancel_closes_every_open_decision_of_the_order() -> None:
    joiner = SampleJoiner(LABELS)
    out = feed(joiner, make_decision("x", "o", BASE_MS))
    out += feed(joiner, make_decision("c", "o", BASE_MS, strategy="rider_coupon"))
    out += feed(joiner, make_event("a", "accepted", "o", BASE_MS + 5, decision_id="x", offer_id="f", driver_id="d-0"))
    out += feed(joiner, make_event("e", "cancelled", "o", BASE_MS + 9))
    last = {name: versions[-1] for name, versions in samples_of(out).items()}
    assert (last["x"].labels, last["x"].closed) == ({"accepted": 1, "completed": 0}, True)
    assert (last["c"].labels, last["c"].closed) == ({"completed": 0}, True)


def test_a_cancel_before_the_answer_leaves_accepted_null_for_it_says_neither() -> None:
    joiner = SampleJoiner(LABELS)
    out = feed(joiner, make_decision("x", "o", BASE_MS)) + feed(joiner, make_event("e", "cancelled", "o", BASE_MS + 9))
    last = samples_of(out + joiner.advance(FOREVER_MS))["x"][-1]
    assert (last.labels, last.closed) == ({"accepted": None, "completed": 0}, True)


def test_a_decision_that_chose_nothing_closes_at_once_with_labels_null() -> None:
    joiner = SampleJoiner(LABELS)
    out = feed(joiner, make_decision("x", "o", BASE_MS, chosen=None))
    out += feed(joiner, make_event("e", "cancelled", "o", BASE_MS + 9)) + joiner.advance(FOREVER_MS)
    (only,) = samples_of(out)["x"]
    assert (only.closed, only.kind, only.labels) == (True, "provisional", {"accepted": None, "completed": None})


def test_silence_is_a_final_no_when_the_windows_have_passed() -> None:
    joiner = SampleJoiner(LABELS)
    out = feed(joiner, make_decision("x", "o", BASE_MS))
    assert joiner.advance(BASE_MS + 10 * MINUTE_MS - 1) == []
    out += joiner.advance(BASE_MS + 10 * MINUTE_MS)
    out += joiner.advance(BASE_MS + 3 * HOUR_MS)
    assert [(s.labels, s.closed) for s in samples_of(out)["x"][1:]] == [
        ({"accepted": 0, "completed": None}, False),
        ({"accepted": 0, "completed": 0}, True),
    ]


def test_a_positive_after_the_window_is_a_late_positive() -> None:
    joiner = SampleJoiner(LABELS)
    out = feed(joiner, make_decision("x", "o", BASE_MS)) + joiner.advance(BASE_MS + 11 * MINUTE_MS)
    late = make_event(
        "e", "accepted", "o", BASE_MS + 5, delay_ms=11 * MINUTE_MS, decision_id="x", offer_id="f", driver_id="d-0"
    )
    out += feed(joiner, late)
    assert [s.kind for s in samples_of(out)["x"]] == ["provisional", "negative", "late_positive"]


def test_completed_belongs_to_the_decision_whose_driver_accepted_it() -> None:
    joiner = SampleJoiner(LABELS)
    out: list[Output] = []
    for name, driver, at in (("x", "d-0", 0), ("y", "d-1", 60)):
        at_ms = BASE_MS + at * SECOND_MS
        out += feed(joiner, make_decision(name, "o", at_ms, chosen=int(driver[-1])))
        out += feed(
            joiner,
            make_event(f"a{name}", "accepted", "o", at_ms + 9, decision_id=name, offer_id=name, driver_id=driver),
        )
    out += feed(joiner, make_event("e", "completed", "o", BASE_MS + 20 * MINUTE_MS, driver_id="d-1"))
    last = {name: versions[-1].labels for name, versions in samples_of(out).items()}
    assert last == {"x": {"accepted": 1, "completed": 0}, "y": {"accepted": 1, "completed": 1}}


def test_an_offer_to_somebody_else_makes_the_propensity_invalid() -> None:
    joiner = SampleJoiner(LABELS)
    out = feed(joiner, make_decision("x", "o", BASE_MS, chosen=1))
    out += feed(joiner, make_event("e", "offered", "o", BASE_MS + 5, decision_id="x", offer_id="f", driver_id="d-0"))
    assert samples_of(out)["x"][-1].propensity_valid is False


def test_an_outcome_without_a_decision_is_ledgered_when_its_retention_has_passed() -> None:
    joiner = SampleJoiner(LABELS)
    event = make_event("e", "completed", "o", BASE_MS, delay_ms=40, driver_id="d-0")
    assert joiner.add_event(encode(event), partition=1, offset=17) == []
    assert joiner.advance(BASE_MS + 40 + SHIPPED_RETENTION_MS - 1) == []
    (entry,) = joiner.advance(BASE_MS + 40 + SHIPPED_RETENTION_MS)
    assert isinstance(entry, LedgerEntry)
    assert (entry.topic, entry.partition, entry.offset, entry.reason, entry.lateness_ms) == (
        "trip_events",
        1,
        17,
        "unmatched",
        40,
    )
    assert joiner.orders == {}


def test_an_event_under_the_key_of_another_order_labels_nobody() -> None:
    """The key chooses the state: `o`'s event in the state of `p` would label p's decision."""
    joiner = SampleJoiner(LABELS)
    for name, order in (("x", "o"), ("y", "p")):
        feed(joiner, make_decision(name, order, BASE_MS))
    event = make_event("e", "completed", "o", BASE_MS + 5, driver_id="d-0")
    (entry,) = joiner.add_event(encode(event), partition=1, offset=17, key="p")
    assert isinstance(entry, LedgerEntry)
    assert (entry.partition, entry.offset, entry.reason, entry.key) == (1, 17, "unmatched", "o")
    assert entry.effect.endswith("; the message's key 'p' is another order")
    assert joiner.counts["event_unmatched"] == 1
    later = [record for record in joiner.advance(FOREVER_MS) if isinstance(record, Sample)]
    assert {sample.sample_id for sample in later} == {"x", "y"}
    assert all(sample.labels["completed"] != 1 for sample in later)
    arrived = encode(make_event("a", "arrived", "o", BASE_MS))
    assert joiner.add_event(arrived, key="p") == [] and joiner.counts["event_no_outcome"] == 1


def test_events_that_no_label_reads_keep_no_state() -> None:
    joiner = SampleJoiner(LABELS)
    for number, event_type in enumerate(("requested", "arrived", "picked_up")):
        assert feed(joiner, make_event(f"e{number}", event_type, "o", BASE_MS)) == []  # type: ignore[arg-type]
    assert joiner.orders == {} and joiner.counts["event_no_outcome"] == 3


def test_a_malformed_trip_event_is_counted_and_left_to_the_feature_job() -> None:
    joiner = SampleJoiner(LABELS)
    assert joiner.add_event(b"{") == [] and joiner.counts["event_malformed"] == 1


def faulty(**changes: Any) -> bytes:
    return encode(make_decision("x", "o", BASE_MS, **changes))


@pytest.mark.parametrize(
    ("raw", "path", "reason"),
    [
        (b"", "$", "not JSON"),
        (b"\xff\xfe", "$", "not JSON"),
        (b"null", "$", "Expected `object`"),
        (b'{"decision_id": "x"}', "$.order_id", "missing required field"),
        (faulty(candidate_ids=[], propensities=[], chosen=None), "$.candidate_ids", "no candidates"),
        (faulty(propensities=[0.5, 0.2, 0.2]), "$.propensities", "sum to 0.9, not to 1"),
        (faulty(propensities=[1.5, -0.5, 0.0]), "$.propensities[0]", "is not a probability"),
        (faulty(propensities=[0.0, 1.0, 0.0]), "$.propensities[0]", "0 for the candidate that was chosen"),
        (faulty(survivors=[True, False, True], propensities=[0.5, 0.5, 0.0]), "$.propensities[1]", "was dropped"),
        (faulty(propensities=[1.0]), "$.propensities", "1 values for 3 candidates"),
        (faulty(candidates={"eta_s": [1.0]}), "$.candidates.eta_s", "1 values for 3 candidates"),
        (
            faulty(chosen=None, propensities=[1.0, 0, 0], survivors=[True] * 3),
            "$.propensities",
            "although nothing was chosen",
        ),
        (
            faulty(strategy="nobody"),
            "$.strategy",
            "no labels are declared for strategy 'nobody' (declared: express_dispatch, rider_coupon): add "
            "pipelines/labels/nobody.yaml and submit the sample job with --labels FOLDER",
        ),
        (faulty(strategy="s" * 201), "$.strategy", "has 1 to 200 characters"),
        (faulty(strategy=""), "$.strategy", "has 1 to 200 characters"),
        (encode(make_decision("x" * 201, "o", BASE_MS)), "$.decision_id", "<= 200"),
        (faulty(params={"p": "a" * 1_000_000}), "$", "bytes are more than a sample carries (1,000,000)"),
        (encode(make_decision("x", "other", BASE_MS)), "$.order_id", "is another order"),
    ],
)
def test_a_decision_that_cannot_be_a_sample_is_quarantined_whole_with_reason_and_path(
    raw: bytes, path: str, reason: str
) -> None:
    joiner = SampleJoiner(LABELS)
    (letter,) = joiner.add_decision(raw, partition=1, offset=5, key="o")
    assert isinstance(letter, DeadLetter)
    assert (letter.topic, letter.partition, letter.offset, letter.raw) == ("decisions", 1, 5, raw)
    assert letter.path == path and reason in letter.reason
    assert joiner.orders == {}, "a bad record leaves no state"


def test_a_huge_bad_decision_leaves_a_dead_letter_that_its_topic_takes() -> None:
    (letter,) = SampleJoiner(LABELS).add_decision(b"a" * (3 << 20), key="o")
    assert isinstance(letter, DeadLetter) and letter.raw == b"a" * MAX_RAW_BYTES
    assert len(encode(letter)) < MAX_MESSAGE_BYTES


def test_an_index_out_of_range_is_quarantined() -> None:
    raw = encode(make_decision("x", "o", BASE_MS)).replace(b'"chosen":0', b'"chosen":3')
    (letter,) = SampleJoiner(LABELS).add_decision(raw, key="o")
    assert isinstance(letter, DeadLetter) and letter.path == "$.chosen"


def test_one_order_cannot_grow_without_end() -> None:
    joiner = SampleJoiner(LABELS)
    out: list[Output] = []
    for number in range(MAX_DECISIONS + 1):
        out += feed(joiner, make_decision(f"x{number}", "o", BASE_MS + number))
    assert sum(isinstance(r, DeadLetter) for r in out) == 1
    joiner = SampleJoiner(LABELS)
    out = []
    for number in range(MAX_OUTCOMES + 3):
        out += feed(joiner, make_event(f"e{number}", "completed", "o", BASE_MS))
    assert unmatched(out) == [f"e{MAX_OUTCOMES + n}" for n in range(3)]


def test_an_outcome_older_than_its_decision_is_kept_as_long_as_the_decision() -> None:
    """Clocks differ: the answer is stamped before the decision. Its own retention ends first; the label must stay."""
    joiner = SampleJoiner(LABELS)
    out = feed(joiner, make_event("a", "accepted", "o", BASE_MS - 50, decision_id="x", offer_id="f", driver_id="d-0"))
    out += feed(joiner, make_decision("x", "o", BASE_MS)) + joiner.advance(BASE_MS + SHIPPED_RETENTION_MS - 10)
    out += feed(joiner, make_event("e", "cancelled", "o", BASE_MS + 9)) + joiner.advance(FOREVER_MS)
    assert folded(out)["x"]["labels"] == {"accepted": 1, "completed": 0}
    assert unmatched(out) == [] and joiner.orders == {}


def test_a_window_ends_in_time_although_an_earlier_record_asked_for_a_later_timer() -> None:
    joiner = SampleJoiner(LABELS)
    feed(joiner, make_event("e", "completed", "o", BASE_MS - 10, driver_id="d-9"))  # to be forgotten in 6 h
    feed(joiner, make_decision("x", "o", BASE_MS))
    (sample,) = joiner.advance(BASE_MS + 10 * MINUTE_MS)
    assert isinstance(sample, Sample) and sample.labels["accepted"] == 0

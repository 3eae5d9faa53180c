"""The sums that must hold after a run: nothing lost, nothing doubled. Each is a check that can fail.

What was published is counted by the publisher, what a topic holds is read from the topic, what was used is counted by
the guarded writes in Redis, and what was not used lies in the ledger and in the dead letters by (topic, partition,
offset). No figure is derived from another one that it is compared with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from features.records import (
    DEAD_LETTERS,
    DECISIONS,
    DRIVER_EVENTS,
    LEDGER,
    SAMPLES,
    TRIP_EVENTS,
    DeadLetter,
    Decision,
    LedgerEntry,
    decode,
)
from features.registry import Registry
from features.spec import TileGroup
from features.store import GroupStats
from features.topics import end_offsets, read_all
from pipelines.sample_log import check_log
from pipelines.sim.account import Account
from pipelines.sim.truth import TruthRecord
from pipelines.trips.replay import ReplayReport
from pipelines.trips.rows import RowReport

FATES = ("duplicate", "future", "late")


@dataclass(frozen=True, kw_only=True)
class Check:
    """Two figures that were counted apart and must be equal."""

    name: str
    left: str
    right: str
    left_count: int
    right_count: int

    @property
    def holds(self) -> bool:
        return self.left_count == self.right_count


@dataclass(frozen=True, kw_only=True)
class TopicFates:
    """What became of the records of one source topic. `used` comes from the store, the rest from ledger and dead letters."""

    topic: str
    records: int
    used: int
    duplicate: int
    future: int
    late: int
    malformed: int

    @property
    def ended(self) -> int:
        return self.used + self.duplicate + self.future + self.late + self.malformed


def topic_fates(kafka: str, registry: Registry, stats: Mapping[str, GroupStats]) -> list[TopicFates]:
    """The fates of both source topics, folded by (topic, partition, offset)."""
    unused: dict[tuple[str, int, int], str] = {}
    for message in read_all(kafka, LEDGER):
        entry = decode(message.value, LedgerEntry)
        if entry.reason in FATES:  # `unmatched` is the joiner's word on records that the feature job used
            unused[(entry.topic, entry.partition, entry.offset)] = entry.reason
    for message in read_all(kafka, DEAD_LETTERS):
        letter = decode(message.value, DeadLetter)
        unused[(letter.topic, letter.partition, letter.offset)] = "malformed"
    counts = Counter((topic, fate) for (topic, _, _), fate in unused.items())
    return [
        TopicFates(
            topic=topic,
            records=sum(end_offsets(kafka, topic).values()),
            used=stats[_counting_group(registry, topic)].used,
            duplicate=counts[topic, "duplicate"],
            future=counts[topic, "future"],
            late=counts[topic, "late"],
            malformed=counts[topic, "malformed"],
        )
        for topic in (TRIP_EVENTS, DRIVER_EVENTS)
    ]


def file_checks(kafka: str, reports: list[RowReport], broken: list[str]) -> list[Check]:
    """Every row of a file has one fate, refused ones lie in the dead letters, and the replay's own sums hold.

    `broken` are the sentences of the replay and of the simulation about sums of theirs that do not hold.
    """
    letters = {
        (letter.topic, letter.offset)
        for message in read_all(kafka, DEAD_LETTERS)
        if (letter := decode(message.value, DeadLetter)).topic.startswith("file:")
    }
    checks = [
        Check(
            name=f"{report.file}: rows in = used + dead letters + set aside",
            left="rows",
            right="fates",
            left_count=report.rows_in,
            right_count=report.used + report.dead.total() + report.set_aside.total(),
        )
        for report in reports
    ]
    return [
        *checks,
        Check(
            name="every refused row of a file lies in the dead letters",
            left="rows refused",
            right="found",
            left_count=sum(report.dead.total() for report in reports),
            right_count=len(letters),
        ),
        Check(
            name="; ".join(["the replay's own sums", *broken]),
            left="broken",
            right="allowed",
            left_count=len(broken),
            right_count=0,
        ),
    ]


def fate_checks(fates: Iterable[TopicFates], history: ReplayReport, account: Account) -> list[Check]:
    """Every published record has one fate, and it is the one that its times and copies say."""
    published = Counter(
        name.split(":")[0] for counts in (history.published, account.messages) for name in counts.elements()
    )
    foreseen = history.fates + account.fates
    checks = []
    for topic in fates:
        checks += [
            Check(
                name=f"{topic.topic}: published = in the topic",
                left="published",
                right="offsets",
                left_count=published[topic.topic],
                right_count=topic.records,
            ),
            Check(
                name=f"{topic.topic}: in the topic = used + ledger + dead letters",
                left="offsets",
                right="fates",
                left_count=topic.records,
                right_count=topic.ended,
            ),
        ]
        checks += [
            Check(
                name=f"{topic.topic}: {fate} as foreseen by the replay",
                left="foreseen",
                right="counted",
                left_count=foreseen[f"{topic.topic}:{fate}"],
                right_count=getattr(topic, fate),
            )
            for fate in ("used", "duplicate", "late")
        ]
    return checks


def decision_checks(kafka: str, answered: Mapping[str, str], samples: pa.Table) -> tuple[list[Check], list[Decision]]:
    """Each answer is one Decision on the topic, and each Decision is one sample."""
    decisions = {}
    for message in read_all(kafka, DECISIONS):
        decision = decode(message.value, Decision)
        decisions[decision.decision_id] = decision  # sent again after a restart: fold by id
    sampled = samples["sample_id"].to_pylist()
    checks = [
        Check(
            name="every answer is a Decision on the topic",
            left="answers",
            right="of them on the topic",
            left_count=len(answered),
            right_count=len(answered.keys() & decisions.keys()),
        ),
        Check(
            name="no Decision on the topic without an answer",
            left="decisions",
            right="answers",
            left_count=len(decisions),
            right_count=len(answered),
        ),
        Check(
            name="every Decision is one sample",
            left="decisions",
            right="of them sampled",
            left_count=len(decisions),
            right_count=len(decisions.keys() & set(sampled)),
        ),
        Check(
            name="every sample is closed at the end",
            left="samples",
            right="closed",
            left_count=len(sampled),
            right_count=sum(samples["closed"].to_pylist()),
        ),
        Check(
            name="no sample without a Decision",
            left="samples",
            right="of them decided",
            left_count=len(sampled),
            right_count=sum(sample_id in decisions for sample_id in sampled),
        ),
    ]
    return checks, list(decisions.values())


def label_check(samples: pa.Table, truth: Iterable[TruthRecord], strategy: str) -> Check:
    """The label `accepted` of each offered decision is the answer that was given."""
    answers = {record.decision_id: int(record.answer == "accepted") for record in truth if record.chosen is not None}
    labels: dict[str, Any] = {
        row["sample_id"]: row["accepted"]
        for row in samples.select(["sample_id", "strategy", "accepted"]).to_pylist()
        if row["strategy"] == strategy
    }
    return Check(
        name="every offer's label is the answer that was given",
        left="offers answered",
        right="labels equal",
        left_count=len(answers),
        right_count=sum(labels.get(decision_id) == answer for decision_id, answer in answers.items()),
    )


def log_check(kafka: str, log_dir: Path) -> Check:
    """The sample log holds every record of its topic, by (partition, offset)."""
    log = check_log(log_dir, end_offsets(kafka, SAMPLES))
    return Check(
        name="the sample log holds every record of its topic",
        left="offsets",
        right="rows",
        left_count=log.offsets,
        right_count=log.rows,
    )


def _counting_group(registry: Registry, topic: str) -> str:
    """A group of this topic that every record feeds: its key is never null, so its `used` is the topic's."""
    candidates = [
        group
        for group in registry.catalogue.groups()
        if group.source.topic == topic
        and not any(group.source.schema[field].endswith("?") for field in group.key_fields)
    ]
    if not candidates:
        raise ValueError(f"no group of {topic} has a key in every record, so its used records cannot be counted")
    tiles = [group for group in candidates if isinstance(group, TileGroup)]
    return (tiles or candidates)[0].name

"""Label YAML -> labels: what the shipped files say, and every mistake with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from features.yaml_source import Mistakes
from pipelines.labels.loader import SHIPPED, load_labels
from pipelines.labels.spec import MAX_CACHED_ANSWERS, Bits, JoinedBy
from tests.naive_join import HOUR_MS, MINUTE_MS
from tests.sample_streams import BASE_MS, make_event


def test_the_shipped_labels() -> None:
    labels = load_labels()
    dispatch, coupon = labels.strategies["express_dispatch"], labels.strategies["rider_coupon"]
    assert [(x.name, x.joined_by, x.wait_ms, x.window_ms) for x in dispatch.labels] == [
        ("accepted", JoinedBy.DECISION, 10 * MINUTE_MS, 10 * MINUTE_MS),
        ("completed", JoinedBy.ACCEPTED_OFFER, 3 * HOUR_MS, 3 * HOUR_MS),
    ]
    assert [(x.name, x.joined_by) for x in coupon.labels] == [("completed", JoinedBy.ORDER)]
    assert labels.max_retention_ms == 6 * HOUR_MS


def test_an_outcome_answers_every_label_of_every_strategy_at_once() -> None:
    labels = load_labels()
    accepted, completed = labels.strategies["express_dispatch"].labels
    (coupon,) = labels.strategies["rider_coupon"].labels
    bits = labels.bits(make_event("e", "cancelled", "o", BASE_MS))
    assert bits == Bits.CLOSED << accepted.bit | Bits.NEGATIVE << completed.bit | Bits.NEGATIVE << coupon.bit
    assert labels.bits(make_event("e", "arrived", "o", BASE_MS)) == 0


def test_an_unknown_condition_does_not_hold_and_the_cache_stays_bounded(tmp_path: Path) -> None:
    """Null in a condition that reads a nullable field is 'no'; a condition over numbers has many inputs."""
    write(tmp_path, "a.yaml", "positive_when: \"(fare_cents ?? 0) > 500 && event_type == 'completed'\"")
    (label,) = load_labels(tmp_path).strategies["s"].labels
    condition = label.positive_when
    assert condition.holds(make_event("e", "completed", "o", BASE_MS, fare_cents=501))
    assert not condition.holds(make_event("e", "completed", "o", BASE_MS))
    for fare in range(MAX_CACHED_ANSWERS + 10):
        assert condition.holds(make_event("e", "completed", "o", BASE_MS, fare_cents=fare)) is (fare > 500)
    assert len(condition._answers) <= MAX_CACHED_ANSWERS


def write(folder: Path, name: str, label: str, strategy: str = "s") -> Path:
    path = folder / name
    path.write_text(f"strategy: {strategy}\nlabels:\n  l:\n    joined_by: order\n    window: 1h\n    {label}\n")
    return path


@pytest.mark.parametrize(
    ("line", "place", "message", "hint"),
    [
        ("positive_when: \"event_typ == 'completed'\"", "6:21", "event_typ", "did you mean 'event_type'?"),
        ('positive_when: "fare_cents > 3"', "6:21", "", ""),
        ('positive_when: "pickup_zone"', "6:21", "", ""),
        ("positive_when: true", "6:20", "must be an expression", ""),
        ("positive_wen: \"event_type == 'x'\"", "6:5", "unknown key 'positive_wen'", "did you mean 'positive_when'?"),
        ("positive_when: \"event_type == 'completed'\"\n    wait: 2h", "7:11", "`wait` is longer than `window`", ""),
        ("positive_when: \"event_type == 'completed'\"\n    wait: soon", "7:11", "`wait`", ""),
        ("positive_when: \"event_type == 'completed'\"\n    redispatch: maybe", "7:17", "cannot be 'maybe'", "ignore"),
        ("positive_when: \"event_type == 'completed'\"\n    window: 2h", "7:5", "duplicate key 'window'", ""),
        ("negative_when: \"event_type == 'cancelled'\"", "3:3", "has no `positive_when`", ""),
    ],
)
def test_a_mistake_is_reported_with_place_and_fix(
    tmp_path: Path, line: str, place: str, message: str, hint: str
) -> None:
    path = write(tmp_path, "a.yaml", line)
    with pytest.raises(Mistakes) as caught:
        load_labels(tmp_path)
    text = str(caught.value)
    assert f"{path}:{place}: " in text and message in text and hint in text, text


def test_the_mistakes_of_all_files_come_together(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", 'positive_when: "nope"')
    write(tmp_path, "b.yaml", 'positive_when: "event_type =="', strategy="t")
    (tmp_path / "c.yaml").write_text("- a list\n")
    (tmp_path / "d.yaml").write_text("strategy: u\nretention: 10m\nlabels: {}\n")
    write(tmp_path, "e.yaml", "positive_when: \"event_type == 'completed'\"", strategy="v")
    write(tmp_path, "f.yaml", "positive_when: \"event_type == 'completed'\"", strategy="v")
    with pytest.raises(Mistakes) as caught:
        load_labels(tmp_path)
    assert {Path(item.file).name for item in caught.value.items} == {"a.yaml", "b.yaml", "c.yaml", "d.yaml", "f.yaml"}


def test_a_window_longer_than_the_retention_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "a.yaml", "positive_when: \"event_type == 'completed'\"")
    path.write_text("retention: 10m\n" + path.read_text())
    with pytest.raises(Mistakes, match="longer than the file's retention"):
        load_labels(tmp_path)


def test_more_labels_than_an_outcome_can_answer_are_refused_where_the_first_is_too_many(tmp_path: Path) -> None:
    """21 labels x 3 answers = 63 bits of an int64; the 22nd in all files together has no room."""

    def label_file(strategy: str, num_labels: int) -> Path:
        path = tmp_path / f"{strategy}.yaml"
        label = "{joined_by: order, window: 1h, positive_when: \"event_type == 'completed'\"}"
        lines = [f"strategy: {strategy}", "labels:", *(f"  l{number}: {label}" for number in range(num_labels))]
        path.write_text("\n".join(lines) + "\n")
        return path

    label_file("a", 12)
    label_file("b", 9)
    labels = load_labels(tmp_path)
    bits = labels.bits(make_event("e", "completed", "o", BASE_MS))
    assert bits == sum(1 << 3 * rank for rank in range(21)) < 2**63
    path = label_file("b", 11)
    with pytest.raises(Mistakes) as caught:
        load_labels(tmp_path)
    (item,) = caught.value.items
    assert (item.file, item.line, item.col) == (str(path), 3 + 9, 3)
    assert "'l9' is one too many: there is room for 21 labels in all files together" in item.message


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no label files"):
        load_labels(tmp_path)


def test_the_fingerprint_follows_the_meaning(tmp_path: Path) -> None:
    for path in SHIPPED.glob("*.yaml"):
        (tmp_path / path.name).write_text("# a comment more\n" + path.read_text())
    assert load_labels(tmp_path).fingerprint == load_labels().fingerprint
    changed = tmp_path / "express_dispatch.yaml"
    changed.write_text(changed.read_text().replace("window: 10m", "window: 11m"))
    assert load_labels(tmp_path).fingerprint != load_labels().fingerprint

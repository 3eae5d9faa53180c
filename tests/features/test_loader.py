"""Definitions: all mistakes of all files at once, each at its place with a way out; what the shipped ones declare."""

from __future__ import annotations

import shutil
import typing
from pathlib import Path

import msgspec
import pytest

from features import verbs
from features.expr import Mistakes
from features.loader import SHIPPED, load_catalogue, load_texts
from features.records import RECORD_OF_TOPIC

ENTITIES = "driver: {join_key: driver_id, type: string}\nzone: {join_key: zone, type: int}\n"
SOURCES = """\
trips:
  topic: trip_events
  event_time: event_time_ms
  ingest_time: ingest_time_ms
  event_id: event_id
  disorder: 10m
  future: 90s
  schema:
    event_id: string
    kind: string
    driver_id: string?
    zone: int
    cents: int?
    event_time_ms: int
    ingest_time_ms: int
"""
VIEW = """\
view: v
entity: driver
source: trips
max_age: 1d
features:
  n_5m: {aggregate: count, window: 5m, hop: 1m}
"""


def write(folder: Path, **files: str) -> Path:
    """entities, sources and one or more views by name."""
    (folder / "views").mkdir(parents=True)
    (folder / "entities.yaml").write_text(files.pop("entities", ENTITIES))
    (folder / "sources.yaml").write_text(files.pop("sources", SOURCES))
    for name, text in files.items():
        (folder / "views" / f"{name}.yaml").write_text(text)
    return folder


def mistakes(folder: Path) -> list[str]:
    """file:line:col: message (hint), with the file's name alone."""
    return [f"{Path(m.file).name}:{m.line}:{m.col}: {m.message} ({m.hint})" for m in verbs.validate(folder)]


def test_the_shipped_catalogue_is_right_and_its_tests_pass_quickly() -> None:
    assert verbs.validate(SHIPPED) == []
    results = verbs.test(SHIPPED)
    assert len(results) >= 10
    assert {result.case.view for result in results} == {"driver_activity", "zone_demand", "driver_state"}
    assert [failure.format() for result in results for failure in result.failures] == []
    assert max(result.seconds for result in results) < 0.1


def test_source_columns_are_those_of_the_records() -> None:
    for source in load_catalogue(SHIPPED).sources.values():
        hints = typing.get_type_hints(RECORD_OF_TOPIC[source.topic])
        for name, text in source.schema.items():
            assert name in hints, f"{source.name}.{name} is no field of the record"
            field = next(f for f in msgspec.structs.fields(RECORD_OF_TOPIC[source.topic]) if f.name == name)
            nullable = type(None) in typing.get_args(field.type)
            assert nullable == text.endswith("?"), (source.name, name)


def test_groups_share_partials_and_keep_the_longest_window() -> None:
    catalogue = load_catalogue(SHIPPED)
    names = [group.name for group in catalogue.groups()]
    assert names == [
        "driver.trip_events.60000",
        "driver.trip_events.900000",
        "zone.trip_events.60000.pickup_zone",
        "zone.trip_events.300000.pickup_zone",
        "driver.driver_events.last",
        "driver.trip_events.last",
    ]
    minute = catalogue.tile_groups()[0]
    assert len(minute.partials) == 3, "two windows of completed trips read one partial"
    assert minute.retain_tiles == 60 + 1 + 1, "an hour of minutes, the current one, and a minute of future bound"
    assert [g.name for g in catalogue.groups_of("driver_events")] == ["driver.driver_events.last"]


def test_the_order_of_lines_does_not_change_a_groups_fingerprint() -> None:
    files = dict(load_catalogue(SHIPPED).files)
    before = load_texts(files).tile_groups()[1]
    lines = files["views/driver_activity.yaml"].splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if "offers_24h:" in line)
    lines[first], lines[first + 1] = lines[first + 1], lines[first]
    after = load_texts({**files, "views/driver_activity.yaml": "".join(lines)}).tile_groups()[1]
    assert before.fingerprint == after.fingerprint
    other = load_texts({**files, "views/driver_activity.yaml": "".join(lines).replace("'accepted'", "'declined'")})
    assert other.tile_groups()[1].fingerprint != before.fingerprint


def test_all_mistakes_of_all_files_come_together_sorted_by_place(tmp_path: Path) -> None:
    write(
        tmp_path / "c",
        entities=ENTITIES + "rider: {join_key: driver_id, type: text}\n",
        a="""\
view: a
entity: drivr
source: trips
max_age: 1 day
features:
  wrong_window: {aggregate: count, window: 90s, hop: 1m}
  wrong_column: {aggregate: sum, of: cent, window: 5m, hop: 1m}
  wrong_name: {aggregate: percentile, of: cents, window: 5m, hop: 1m}
""",
        b=VIEW.replace("view: v", "view: b")
        + "  rate: {expr: 'n_5n > 0 ? 1.0 : null'}\n  unit: {aggregate: count, window: 5m, hop: 1m, unit: centss}\n",
    )
    found = mistakes(tmp_path / "c")
    wanted = [
        ("a.yaml:2:9", "unknown entity 'drivr'", "did you mean 'driver'"),
        ("a.yaml:4:10", "'1 day' is not a duration", "15m"),
        ("a.yaml:6:44", "window 90s is not a multiple of hop 1m", "1m and 2m"),
        ("a.yaml:7:38", "cent", "did you mean 'cents'"),
        ("a.yaml:8:27", "unknown aggregate 'percentile'", "known here: avg, count"),
        ("b.yaml:7:17", "n_5n", "did you mean 'n_5m'"),
        ("b.yaml:8:55", "unknown unit 'centss'", "did you mean 'cents'"),
        ("entities.yaml:3:36", "unknown type 'text'", "int, int32, string"),
    ]
    for place, message, hint in wanted:
        hits = [line for line in found if line.startswith(place + ":")]
        assert len(hits) == 1 and message in hits[0] and hint in hits[0], (place, found)
    places = [(m.file, m.line, m.col) for m in verbs.validate(tmp_path / "c")]
    assert places == sorted(places) and len(places) == len(found)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("  x: {aggregate: sum, window: 5m, hop: 1m}", "sum needs 'of'"),
        ("  x: {aggregate: sum, of: kind, window: 5m, hop: 1m}", "sum takes numbers, this is string"),
        ("  x: {aggregate: last, of: kind, window: 5m, hop: 1m}", "'window' does not go with last"),
        ("  x: {aggregate: count, hop: 1m}", "needs 'window'"),
        ("  x: {aggregate: count, window: 5m}", "needs 'hop'"),
        ("  x: {aggregate: count, window: 29d, hop: 1d}", "window 29d is not within"),
        ("  x: {aggregate: count, window: 5s, hop: 100ms}", "hop 100ms is not within"),
        ("  x: {window: 5m, hop: 1m}", "needs either 'aggregate' or 'expr'"),
        ("  x: {expr: n_5m, aggregate: count}", "needs either 'aggregate' or 'expr'"),
        ("  x: {expr: n_5m, where: 'true'}", "'where' does not go with 'expr'"),
        ("  x: {expr: x + 1}", "'x' depends on itself"),
        ("  x: {expr: y}\n  y: {expr: x}", "depends on itself through x, y"),
        ("  x: {expr: n_5m, default: many}", "default many is not of the feature's type, int"),
        ("  x: {expr: double(n_5m), default: .nan}", "default .nan is not a finite number"),
        ("  x: {expr: n_5m, default: 1.5}", "default 1.5 is not of the feature's type, int"),
        ("  x: {expr: n_5m, type: double}", "declared as double, but the value is int"),
        (
            "  x: {expr: fare + 1, unit: m}\n  fare: {aggregate: sum, of: cents, window: 5m, hop: 1m, unit: cents}",
            "declared in m, but the value is in cents",
        ),
        (
            "  x: {expr: fare > far}\n  fare: {aggregate: sum, of: cents, window: 5m, hop: 1m, unit: cents}\n"
            "  far: {aggregate: sum, of: zone, window: 5m, hop: 1m, unit: m}",
            "'fare' is in cents and 'far' in m: they cannot be compared",
        ),
        ("  x: {expr: 'div(5, min(n_5m, 0))'}", "the divisor 'min(n_5m, 0)' is always zero"),
        ("  x: {aggregate: count, window: 5m, hop: 1m, wher: 'true'}", "has no field 'wher'"),
        ("  x: {aggregate: count, where: cents > 5, window: 5m, hop: 1m}", "null"),
        ("  x: {aggregate: count, where: zone, window: 5m, hop: 1m}", "bool"),
        ("  n_5m: {aggregate: count, window: 5m, hop: 1m}", "duplicate key 'n_5m'"),
        ("  N: {aggregate: count, window: 5m, hop: 1m}", "'N' is not a name"),
    ],
)
def test_each_mistake_of_a_feature_is_named_at_its_line(tmp_path: Path, line: str, message: str) -> None:
    found = mistakes(write(tmp_path / "c", v=VIEW + line + "\n"))
    assert any(message in item and item.startswith("v.yaml:7:") for item in found), found


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("source: trips", "source: trip", "unknown source 'trip'"),
        ("entity: driver", "entity: driver\nkey: {driver_id: drver_id}", "no column 'drver_id'"),
        ("entity: driver", "entity: driver\nkey: {zone: zone}", "the key of entity 'driver' is 'driver_id' alone"),
        (
            "entity: driver",
            "entity: zone\nkey: {zone: driver_id}",
            "column 'driver_id' is string?, the key of entity 'zone' is int",
        ),
        ("max_age: 1d", "owner: x", "a view needs 'max_age'"),
        ("features:", "fetures: {}\nfeatures:", "has no field 'fetures'"),
        ("max_age: 1d", "max_age: 1d\ntests: tests/none.yaml", "no such file"),
    ],
)
def test_each_mistake_of_a_view_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    found = mistakes(write(tmp_path / "c", v=VIEW.replace(old, new)))
    assert any(message in item for item in found), found


def test_two_views_of_one_name_are_refused_with_the_other_place(tmp_path: Path) -> None:
    found = mistakes(write(tmp_path / "c", a=VIEW, b=VIEW))
    assert len(found) == 1 and found[0].startswith("b.yaml:1:7: duplicate view 'v'") and "a.yaml:1" in found[0]


def test_a_broken_feature_is_reported_once_and_not_by_those_that_read_it(tmp_path: Path) -> None:
    text = VIEW + "  bad: {aggregate: count, window: 5x, hop: 1m}\n  rate: {expr: bad + 1}\n  rate2: {expr: rate + 1}\n"
    assert len(mistakes(write(tmp_path / "c", v=text))) == 1


def test_the_error_shows_the_line_with_a_caret(tmp_path: Path) -> None:
    write(tmp_path / "c", v=VIEW + "  rate: {expr: n_5n + 1}\n")
    with pytest.raises(Mistakes) as caught:
        load_catalogue(tmp_path / "c")
    text = str(caught.value)
    assert "v.yaml:7:16: " in text and "rate: {expr: n_5n + 1}" in text and "^^^^" in text and "n_5m" in text


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"entities\.yaml is missing: a catalogue has"):
        verbs.validate(tmp_path)


def test_a_failing_case_says_what_came_instead_and_where(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED, tmp_path / "c")
    path = tmp_path / "c" / "tests" / "driver_state.yaml"
    path.write_text(path.read_text().replace("last_zone: 10", "last_zone: 11"))
    (failed,) = [result for result in verbs.test(tmp_path / "c") if not result.passed]
    (failure,) = failed.failures
    assert failure.message == "last_zone is 10, expected 11"
    assert (Path(failure.file).name, failure.line) == ("driver_state.yaml", 8)


def test_mistakes_in_test_files_join_the_others(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED, tmp_path / "c")
    (tmp_path / "c" / "tests" / "driver_state.yaml").write_text("""\
view: driver_state
cases:
  - name: wrong
    events:
      - {at: "8:00", driver_id: 5, statsu: idle}
    expect:
      - {key: d-1, as_of: "08:00", values: {last_zon: 1}, statuses: {last_zone: presnt}}
""")
    view = tmp_path / "c" / "views" / "zone_demand.yaml"
    view.write_text(view.read_text().replace("hop: 5m", "hop: 7m"))
    found = mistakes(tmp_path / "c")
    for message in (
        "'8:00' is not a time",
        "'driver_id' is string, not 5",
        "has no field 'statsu'",
        "has no feature 'last_zon'",
        "unknown status 'presnt'",
        "not a multiple of hop 7m",
    ):
        assert any(message in item for item in found), (message, found)

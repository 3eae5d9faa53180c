"""The point-in-time join: equal to what the store would have served, and one row out per row in."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from features.history import STATUS, Role, history, history_batches, history_to_parquet
from features.loader import load_texts
from features.parquet import HistoryError, Limits
from features.spec import Catalogue
from tests.features import aggregate_cases
from tests.features.history_cases import online_rows, with_history, write_events

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def assert_rows_are_online(
    got: pa.Table, view: str, wanted: list[tuple[dict[str, Any], dict[str, str]]], seed: int
) -> int:
    """Every value and status; returns how many values were not null."""
    known = 0
    rows = got.to_pylist()
    assert len(rows) == len(wanted)
    for row, (values, statuses) in zip(rows, wanted, strict=True):
        for name, value in values.items():
            place = (name, row["as_of_ms"], f"seed {seed}")
            assert row[f"{view}.{name}"] == value, (*place, row[f"{view}.{name}"], value)
            assert row[f"{view}.{name}{STATUS}"] == statuses[name], (
                *place,
                row[f"{view}.{name}{STATUS}"],
                statuses[name],
            )
            known += value is not None
    return known


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 30))])
def test_every_aggregate_is_what_the_store_would_have_served(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    declared = aggregate_cases.catalogue()
    source = declared.sources["things"]
    events = aggregate_cases.random_stream(rng, 160)
    declared = with_history(declared, things=write_events(source, events, tmp_path, files=3, rng=rng))
    times = [
        event["ingest_time_ms"] + rng.choice([0, 1, rng.randrange(2 * MINUTE)]) for event in rng.sample(events, 10)
    ]
    times += [0, 10_000, -MINUTE, events[0]["ingest_time_ms"], events[-1]["ingest_time_ms"] + 3 * DAY]
    asked = [(rng.choice([*aggregate_cases.KEYS, "never", None]), rng.choice(times)) for _ in range(60)]
    frame = pa.table({"label": list(range(60)), "thing": [key for key, _ in asked], "as_of_ms": [t for _, t in asked]})
    parts = history_batches(declared, frame, ["things.*"], statuses=True, chunk_rows=rng.choice([7, 1000]))
    got = pa.concat_tables(parts)
    assert got.column("label").to_pylist() == list(range(60))
    wanted = online_rows(declared, "things", source, events, asked)
    assert assert_rows_are_online(got, "things", wanted, seed) > 500


def test_values_are_brute_forces(tmp_path: Path) -> None:
    """The same against tests/naive.py, which knows neither tiles nor stores."""
    rng = random.Random(11)
    declared = aggregate_cases.catalogue()
    events = aggregate_cases.random_stream(rng, 200)
    pattern = write_events(declared.sources["things"], events, tmp_path, files=2, rng=rng)
    view = declared.views["things"]
    used, compared = aggregate_cases.used_events(events, view), 0
    asked = [(rng.choice(aggregate_cases.KEYS), rng.choice(events)["ingest_time_ms"] + 1) for _ in range(25)]
    frame = pa.table({"thing": [key for key, _ in asked], "as_of_ms": [t for _, t in asked]})
    for row in history(with_history(declared, things=pattern), frame, ["things.*"]).to_pylist():
        for name, feature in aggregate_cases.FEATURES.items():
            want, tolerance = aggregate_cases.brute_force(feature, used, row["thing"], row["as_of_ms"])
            got = row[f"things.{name}"]
            same = got == want or (None not in (got, want) and tolerance > 0 and abs(got - want) <= tolerance)
            assert same, (name, row["thing"], row["as_of_ms"], got, want)
            compared += want is not None
    assert compared > 500


def stream_catalogue(pattern: str) -> Catalogue:
    return with_history(load_texts(STREAM), trips=pattern)


STREAM: Mapping[str, str] = {
    "entities.yaml": "zone: {join_key: zone, type: int}\n",
    "sources.yaml": """
trips:
  topic: trip_events
  event_time: event_time_ms
  ingest_time: ingest_time_ms
  event_id: event_id
  disorder: 10m
  future: 1m
  dedup: {by: event_id, horizon: 1h}
  schema: {event_id: string, pickup_zone: "int?", fare_cents: "int?", event_time_ms: int, ingest_time_ms: int}
""",
    "views/demand.yaml": """
view: demand
entity: zone
source: trips
key: {zone: pickup_zone}
max_age: 2h
request: {surge: double}
features:
  trips_15m: {aggregate: count, window: 15m, hop: 5m}
  max_fare_15m: {aggregate: max, of: fare_cents, window: 15m, hop: 5m}
  last_fare: {aggregate: last, of: fare_cents, default: -1}
  pressure: {expr: "double(trips_15m) * surge"}
""",
}


def trip(
    event_id: str, zone: int | None, event_ms: int, *, ingest_ms: int | None = None, fare: int | None = 100
) -> dict[str, Any]:
    arrived = event_ms if ingest_ms is None else ingest_ms
    return {
        "event_id": event_id, "pickup_zone": zone, "fare_cents": fare, "event_time_ms": event_ms, "ingest_time_ms": arrived,
    }  # fmt: skip


def written(events: list[dict[str, Any]], folder: Path) -> Catalogue:
    source = load_texts(STREAM).sources["trips"]
    return stream_catalogue(write_events(source, events, folder, files=1, rng=random.Random(0)))


def test_one_view_under_two_names_serves_both_ends_of_a_trip_also_in_one_zone(tmp_path: Path) -> None:
    declared = written([trip("a", 7, 1_000), trip("b", 7, 2_000), trip("c", 8, 3_000)], tmp_path)
    frame = pa.table({"pickup": [7, 7, None], "dropoff": [8, 7, 7], "as_of_ms": [5_000] * 3, "surge": [1.5, 2.0, None]})
    roles: dict[str, Role | str] = {"pickup": "demand", "there": Role(view="demand", keys={"zone": "dropoff"})}
    got = history(declared, frame, ["pickup.trips_15m", "there.trips_15m", "pickup.pressure"], roles=roles)
    assert got.column("pickup.trips_15m").to_pylist() == [2, 2, None]
    assert got.column("there.trips_15m").to_pylist() == [1, 2, 2]
    assert got.column("pickup.pressure").to_pylist() == [3.0, 4.0, None]


def test_two_roles_of_one_view_may_ask_for_different_spans(tmp_path: Path) -> None:
    """The last value needs all of the past, the window beside it a quarter of an hour: neither cuts the other's short."""
    hour = 3_600_000
    declared = written([trip("a", 7, 0, fare=5), trip("b", 7, hour), trip("c", 8, hour)], tmp_path)
    frame = pa.table({"zone": [7, 7], "x": [8, 8], "as_of_ms": [1_000, hour + 1_000]})
    roles: dict[str, Role | str] = {"x": "demand"}
    for features in (["demand.max_fare_15m", "x.trips_15m"], ["x.trips_15m", "demand.max_fare_15m"]):
        got = history(declared, frame, [*features, "demand.last_fare"], roles=roles)
        assert got.column("demand.max_fare_15m").to_pylist() == [5, 100]
        assert got.column("x.trips_15m").to_pylist() == [0, 1]
        assert got.column("demand.last_fare").to_pylist() == [5, 100]


def test_rows_equal_in_key_and_time_stay_apart_and_in_order(tmp_path: Path) -> None:
    """feast#6787: three rows in, two of them equal in key and time; all three come out, with their labels."""
    declared = written([trip("a", 7, 1_000)], tmp_path)
    frame = pa.table({"label": ["b", "a", "c"], "zone": [7, 7, 8], "as_of_ms": [5_000, 5_000, 4_000]})
    got = history(declared, frame, ["demand.last_fare"])
    assert got.to_pydict() == {**frame.to_pydict(), "demand.last_fare": [100, 100, -1]}


def test_what_arrives_at_the_asked_time_or_later_is_not_known(tmp_path: Path) -> None:
    declared = written([trip("a", 7, 1_000, ingest_ms=61_000)], tmp_path)
    frame = pa.table({"zone": [7] * 4, "as_of_ms": [1_000, 1_001, 61_000, 61_001]})
    assert history(declared, frame, ["demand.trips_15m"]).column(2).to_pylist() == [None, None, None, 1]
    by_event = history(declared, frame, ["demand.trips_15m"], event_time_only=True)
    assert by_event.column(2).to_pylist() == [None, 1, 1, 1]


def test_a_source_that_fell_silent_makes_windows_stale_and_keys_do_not(tmp_path: Path) -> None:
    declared = written([trip("a", 7, 0), trip("b", 8, 3_600_000)], tmp_path)
    hour = 3_600_000
    frame = pa.table({"zone": [7] * 4, "as_of_ms": [0, hour, 3 * hour, 3 * hour + 1]})
    got = history(declared, frame, ["demand.trips_15m", "demand.last_fare"], statuses=True)
    assert got.column("demand.trips_15m__status").to_pylist() == ["missing", "present", "present", "stale"]
    assert got.column("demand.last_fare__status").to_pylist() == ["default", "present", "default", "default"]


def test_copies_beyond_the_horizon_start_over(tmp_path: Path) -> None:
    hour = 3_600_000
    copies = [
        trip("a", 7, at, ingest_ms=at) for at in (0, hour // 2, hour, hour + 1, 2 * hour, 2 * hour + 1, 2 * hour + 2)
    ]
    declared = written(copies, tmp_path)
    frame = pa.table({"zone": [7], "as_of_ms": [3 * hour]})
    first = replace(
        declared.views["demand"], features=(replace(declared.views["demand"].feature("trips_15m"), window_ms=8 * hour),)
    )
    got = history(replace(declared, views={"demand": first}), frame, ["demand.trips_15m"])
    assert got.column(2).to_pylist() == [3]  # 0, hour + 1, and 2 * hour + 2


@pytest.mark.parametrize("frame", [pa.table({"zone": pa.array([], pa.int64()), "as_of_ms": pa.array([], pa.int64())})])
def test_an_empty_frame_gives_an_empty_answer_with_its_columns(frame: pa.Table, tmp_path: Path) -> None:
    got = history(written([trip("a", 7, 0)], tmp_path), frame, ["demand.last_fare"])
    assert (got.num_rows, got.column_names) == (0, ["zone", "as_of_ms", "demand.last_fare"])
    assert (
        history_to_parquet(written([trip("a", 7, 0)], tmp_path), frame, tmp_path / "out.pq", ["demand.last_fare"]) == 0
    )
    assert pq.read_table(tmp_path / "out.pq").schema == got.schema


@pytest.mark.parametrize(
    ("columns", "features", "message"),
    [
        ({"zone": [1.5], "as_of_ms": [0]}, ["demand.trips_15m"], "column 'zone' is double, wanted int, key 'zone'"),
        ({"zonee": [1], "as_of_ms": [0]}, ["demand.trips_15m"], "no column 'zone' .*; did you mean 'zonee'?"),
        ({"zone": [1]}, ["demand.trips_15m"], "no column 'as_of_ms'"),
        ({"zone": [1], "as_of_ms": [None]}, ["demand.trips_15m"], r"row 0 \(from 0\) has no 'as_of_ms'"),
        ({"zone": [1], "as_of_ms": [0]}, ["demand.pressure"], "no column 'surge' .*request field of view demand"),
        ({"zone": [1], "as_of_ms": [0]}, ["demand.trips_15"], "no feature 'trips_15'; did you mean 'trips_15m'?"),
        ({"zone": [1], "as_of_ms": [0]}, ["demnd.trips_15m"], "did you mean 'demand.trips_15m'?"),
        ({"zone": [1], "as_of_ms": [0]}, [], "no feature is asked for"),
        ({"zone": [1], "as_of_ms": [0], "demand.last_fare": [1]}, ["demand.last_fare"], "already has a column"),
    ],
)
def test_mistakes_of_a_frame_are_named(
    columns: dict[str, Any], features: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(HistoryError, match=message):
        history(written([trip("a", 7, 0)], tmp_path), pa.table(columns), features)


def test_files_that_do_not_fit_are_named(tmp_path: Path) -> None:
    frame = pa.table({"zone": [7], "as_of_ms": [1]})
    with pytest.raises(HistoryError, match=r"no file matches .*/nothing/.*parquet"):
        history(stream_catalogue(str(tmp_path / "nothing" / "*.parquet")), frame, ["demand.last_fare"])
    with pytest.raises(HistoryError, match="source trips has no history"):
        history(load_texts(STREAM), frame, ["demand.last_fare"])
    good = pa.Table.from_pylist([trip("a", 7, 0)])
    pq.write_table(good, tmp_path / "a.parquet")
    pq.write_table(good.set_column(2, "fare_cents", pa.array(["1"])), tmp_path / "b.parquet")
    with pytest.raises(HistoryError, match=r"column 'fare_cents' is declared int\?, but .*\.parquet holds VARCHAR"):
        history(stream_catalogue(str(tmp_path / "[ab].parquet")), frame, ["demand.last_fare"])
    pq.write_table(good.drop_columns(["fare_cents"]), tmp_path / "c.parquet")
    with pytest.raises(HistoryError, match=r"c\.parquet has no column 'fare_cents'"):
        history(stream_catalogue(str(tmp_path / "c.parquet")), frame, ["demand.last_fare"])
    (tmp_path / "d.parquet").write_bytes(b"not parquet")
    with pytest.raises(HistoryError, match=r"d\.parquet"):
        history(stream_catalogue(str(tmp_path / "d.parquet")), frame, ["demand.last_fare"])


def test_a_join_beyond_its_memory_spills_and_stays_right(tmp_path: Path) -> None:
    """120,000 rows of 12 MB a column within 64 MB of DuckDB's: the answer is that of a roomy one."""
    rng = random.Random(4)
    events = [trip(f"e{i}", rng.randrange(200), 1000 * i, fare=i) for i in range(60_000)]
    declared = written(events, tmp_path)
    frame = pa.table(
        {
            "zone": [rng.randrange(200) for _ in range(60_000)],
            "as_of_ms": [rng.randrange(60_000_000) for _ in range(60_000)],
        }
    )
    tight, roomy = (
        history(declared, frame, ["demand.trips_15m", "demand.last_fare"], limits=Limits(memory_mb=mb, threads=1))
        for mb in (80, 1024)
    )
    assert tight.equals(roomy)
    assert sum(value or 0 for value in tight.column(2).to_pylist()) > 60_000

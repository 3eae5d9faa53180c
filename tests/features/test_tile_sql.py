"""The SQL of tiles, run by DuckDB, equals the algebra on random events; Flink runs the same in tests/pipelines."""

from __future__ import annotations

import math
import random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from features.aggregate import State
from features.spec import TileGroup
from features.tile_sql import TileSql
from tests.features.aggregate_cases import Event, assert_same_tiles, by_algebra, catalogue, random_stream

CATALOGUE = catalogue()
TYPES = {
    "i": pa.int64(),
    "d": pa.float64(),
    "ok": pa.bool_(),
    "event_time_ms": pa.int64(),
    "ingest_time_ms": pa.int64(),
}


def by_duckdb(group: TileGroup, events: list[Event]) -> dict[tuple[str, int], State]:
    sql = TileSql(group, "duckdb")
    rows = sql.rows("events", ['"thing"'], '"thing" IS NOT NULL')
    aggregates = "".join(f", {aggregate}" for aggregate in sql.partials())
    names = list(events[0])
    table = pa.table({name: pa.array([e[name] for e in events], type=TYPES.get(name, pa.string())) for name in names})
    with duckdb.connect() as db:
        db.execute("SET threads = 1")
        db.register("events", table)
        found = db.sql(
            f'SELECT "thing", "tile", COUNT(*){aggregates} FROM ({rows}) GROUP BY "thing", "tile"'
        ).fetchall()
    return {(key, tile): list(state) for key, tile, *state in found}


@pytest.mark.parametrize("seed", [1, 2])
def test_duckdbs_tiles_are_the_algebras(seed: int) -> None:
    events = random_stream(random.Random(seed), 400)
    kinds: set[Any] = set()
    for group in CATALOGUE.tile_groups():
        assert_same_tiles(group, by_duckdb(group, events), events)
        kinds |= {"buckets"} if group.buckets is not None else {p.function for p in group.partials}
    assert kinds == {
        "buckets",
        "count",
        "sum",
        "min",
        "max",
        "moment_n",
        "moment_q",
        "moment_aa",
        "moment_ab",
        "moment_bb",
    }


def test_sums_of_ints_wrap_in_duckdb_as_they_do_in_flink() -> None:
    event = random_stream(random.Random(1), 1)[0] | {"thing": "a", "event_time_ms": 0, "ok": True}
    group = next(g for g in CATALOGUE.tile_groups() if g.hop_ms == 60_000 and g.buckets is None)
    for values in ([2**63 - 1, 1], [-(2**63), -1], [2**63 - 1] * 5, [-(2**63)] * 4, [2**63 - 1, -(2**63)]):
        events: list[Event] = [{**event, "i": value} for value in values]
        assert_same_tiles(group, by_duckdb(group, events), events)


def test_an_unknown_dialect_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown dialect 'ansi'; known: flink, duckdb"):
        TileSql(CATALOGUE.tile_groups()[0], "ansi")  # type: ignore[arg-type]


def test_a_sum_that_leaves_the_doubles_is_infinite_in_duckdb_too() -> None:
    event = random_stream(random.Random(1), 1)[0] | {"thing": "a", "event_time_ms": 0, "ok": True, "i": None}
    group = next(g for g in CATALOGUE.tile_groups() if g.hop_ms == 60_000 and g.buckets is None)
    sums = [1 + p for p, partial in enumerate(group.partials) if partial.key == ("sum", "d", "")]
    for values in ([1.7e308, 1.7e308], [-1.7e308] * 3, [1.7e308, 1.7e308, -1.7e308]):
        events: list[Event] = [{**event, "d": value} for value in values]
        for states in (by_duckdb(group, events), by_algebra(group, events)):
            assert [states["a", 0][p] for p in sums] == [math.copysign(math.inf, values[0])]

"""One Flink session without a cluster, in a process of its own, for the quick tests: `python -m tests.pipelines.flink_session`.

Prints one line of JSON: the plan of the shipped job, the refusal of a session in another zone, what Flink's own SQL
gives for a fixed set of expressions over edge values, and the tiles that it makes of random events. One JVM for all of it: its start takes longer than the answers.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from pyflink.common import RowKind
from pyflink.table import DataTypes, EnvironmentSettings, TableEnvironment

from features.expr import SourceText, compile_expr, to_sql
from features.loader import SHIPPED, load_catalogue
from features.registry import local_registry
from features.tile_sql import TileSql
from pipelines.jobs.features import assert_utc, explain, table_environment
from pipelines.jobs.options import JobOptions, feature_settings
from pipelines.jobs.submit import JobError
from pipelines.sql import SQL_TYPES, render_feature_job
from tests.pipelines.expressions import EXPRESSIONS, names_of, rows_of
from tests.pipelines.flink_tiles import TILE_COLUMNS, tile_catalogue, tile_events


def answers(env: TableEnvironment, kind: str) -> list[list[Any]]:
    """Flink's value of each expression in each row."""
    names, rows = names_of(kind), rows_of(kind)
    of = {name: getattr(DataTypes, SQL_TYPES[kind])() for name in names}
    fields = [DataTypes.FIELD("row_no", DataTypes.BIGINT()), *(DataTypes.FIELD(n, t) for n, t in of.items())]
    table = env.from_elements([(n, row["i"], row["j"]) for n, row in enumerate(rows)], DataTypes.ROW(fields))
    columns = ", ".join(
        to_sql(compile_expr(SourceText(text), names), "flink", lambda name: f"`{name}`") for text in EXPRESSIONS[kind]
    )
    found = sorted(list(row) for row in env.execute_sql(f"SELECT row_no, {columns} FROM {table}").collect())
    return [row[1:] for row in found]


def tiles() -> dict[str, list[list[Any]]]:
    """Each tile group's rows (key, number, count, partials…) as a stream's last updates, with the job's mini-batches."""
    env = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    settings = feature_settings("tiles", 0, JobOptions(kafka="127.0.0.1:9092"))
    for key, value in settings.items():
        if key.startswith(("table.", "parallelism.")):
            env.get_config().set(key, value)
    fields = [DataTypes.FIELD(name, getattr(DataTypes, SQL_TYPES[kind])()) for name, kind in TILE_COLUMNS.items()]
    rows = [tuple(event[name] for name in TILE_COLUMNS) for event in tile_events()]
    env.create_temporary_view("events", env.from_elements(rows, DataTypes.ROW(fields)))
    out: dict[str, list[list[Any]]] = {}
    for group in tile_catalogue().tile_groups():
        sql = TileSql(group, "flink")
        aggregates = "".join(f", {aggregate}" for aggregate in sql.partials())
        inner = sql.rows("`events`", ["`thing`"], "`thing` IS NOT NULL")
        found: dict[tuple[str, int], list[Any]] = {}
        query = f"SELECT `thing`, `tile`, COUNT(*){aggregates} FROM ({inner}) GROUP BY `thing`, `tile`"
        for row in env.execute_sql(query).collect():
            if row.get_row_kind() in (RowKind.INSERT, RowKind.UPDATE_AFTER):
                found[row[0], row[1]] = list(row)
        out[group.name] = list(found.values())
    return out


def shipped_plan() -> str:
    catalogue = load_catalogue(SHIPPED)
    sql = render_feature_job(catalogue, local_registry(catalogue).generations(), JobOptions(kafka="127.0.0.1:9092"))
    return explain(sql, "redis://127.0.0.1:6379/0")


def other_zone() -> str | None:
    assert_utc(table_environment({"table.local-time-zone": "UTC"}))
    try:
        assert_utc(table_environment({"table.local-time-zone": "Asia/Shanghai"}))
    except JobError as error:
        return str(error)
    return None


def main() -> None:
    started = time.monotonic()

    def lap(what: str) -> None:
        print(f"{what}: {time.monotonic() - started:.1f} s", file=sys.stderr)

    plan, zone = shipped_plan(), other_zone()
    lap("plan")
    env = TableEnvironment.create(EnvironmentSettings.in_batch_mode())
    env.get_config().set("parallelism.default", "1")
    env.get_config().set("table.local-time-zone", "UTC")
    values = {kind: answers(env, kind) for kind in EXPRESSIONS}
    lap("answers")
    rows = tiles()
    lap("tiles")
    json.dump(
        {"plan": plan, "other_zone": zone, "answers": values, "tiles": rows}, sys.stdout
    )  # inf as Infinity: Python reads it back


if __name__ == "__main__":
    main()

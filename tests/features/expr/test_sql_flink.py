"""Flink itself runs the SQL text of every operation on every pair of edge values, and of random expressions.

Columns hold no NaN here, as in a job: records are JSON. `test_sql.py` has the quick tests and the golden text.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as fixed_seed

from features.expr import Mistakes, Program, SourceText, compile_expr, interpret, parse_type, to_sql
from tests.features.expr import typed_expressions as typed
from tests.features.expr.test_sql import OPERATIONS, SQL_EXPRESSION, equal

table = pytest.importorskip("pyflink.table", reason="extra 'flink' (apache-flink)")
Py4JJavaError = pytest.importorskip("py4j.protocol").Py4JJavaError
pytestmark = pytest.mark.slow

PER_QUERY = 12  # Flink compiles a query into one Java class, and a class has a size limit
MAX_SQL = 9_000


@pytest.fixture(scope="module")
def flink() -> Any:
    env = table.TableEnvironment.create(table.EnvironmentSettings.in_batch_mode())
    env.get_config().set("parallelism.default", "1")
    env.get_config().set("table.local-time-zone", "UTC")
    return env


def compare(env: Any, names: dict[str, Any], rows: list[dict[str, Any]], texts: list[str]) -> int:
    """Run the texts over the rows; the number of texts that Flink ran."""
    of = {"int": "BIGINT", "double": "DOUBLE", "string": "STRING", "bool": "BOOLEAN"}
    of |= {"timestamp": "BIGINT", "duration": "BIGINT"}
    fields = [table.DataTypes.FIELD(name, getattr(table.DataTypes, of[kind.kind])()) for name, kind in names.items()]
    schema = table.DataTypes.ROW([table.DataTypes.FIELD("row_no", table.DataTypes.BIGINT()), *fields])
    data = [(number, *(row[name] for name in names)) for number, row in enumerate(rows)]
    given_rows = env.from_elements(data, schema)
    programs = [compile_expr(SourceText(text), names) for text in texts]
    ready = []
    for program in programs:
        try:
            sql = to_sql(program, "flink", lambda name: f"`{name}`")
        except Mistakes:
            continue  # too long, or the character U+0000
        if len(sql) <= MAX_SQL:
            ready.append((program, sql))
    unplanned: list[str] = []
    for first in range(0, len(ready), PER_QUERY):
        chunk = ready[first : first + PER_QUERY]
        try:
            compare_chunk(env, given_rows, rows, chunk)
        except Py4JJavaError:  # one text that the planner refuses fails the query: find it, and still check the others
            for one in chunk:
                try:
                    compare_chunk(env, given_rows, rows, [one])
                except Py4JJavaError as error:
                    print(f"not planned: {one[0].source.text}\n{one[1]}\n{str(error)[:300]}")
                    unplanned.append(one[0].source.text)
    # Flink 2.2's folding of constants fails on rare texts; such a job is refused when submitted and never runs wrong.
    assert len(unplanned) <= len(ready) // 30, unplanned
    return len(ready) - len(unplanned)


def compare_chunk(env: Any, given_rows: Any, rows: list[dict[str, Any]], chunk: list[tuple[Program, str]]) -> None:
    """Run some texts in one query, and hold every value against the interpreter."""
    columns = ", ".join(f"{sql} AS c{number}" for number, (_, sql) in enumerate(chunk))
    query = f"SELECT row_no, {columns} FROM {given_rows}"
    got = sorted((tuple(row) for row in env.execute_sql(query).collect()), key=lambda row: row[0])
    for number, (program, sql) in enumerate(chunk):
        for row, values in zip(rows, got, strict=True):
            expected = interpret(program, row)
            assert equal(values[1 + number], expected), f"{row}: Flink {values[1 + number]!r}, rows {expected!r}\n{sql}"


@pytest.mark.parametrize("kind", OPERATIONS)
def test_flink_agrees_on_every_pair_of_edge_values(flink: Any, kind: str) -> None:
    names = {"i": parse_type(kind), "j": parse_type(kind)}
    edges = [value for value in typed.EDGES[kind] if not (isinstance(value, float) and math.isnan(value))]
    rows = [{"i": a, "j": b} for a in edges for b in edges]
    assert compare(flink, names, rows, OPERATIONS[kind]) == len(OPERATIONS[kind])


def test_flink_agrees_on_random_expressions(flink: Any) -> None:
    texts: list[str] = []

    @fixed_seed(20260807)
    @settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(text=SQL_EXPRESSION)
    def draw(text: str) -> None:
        texts.append(text)

    draw()
    rows = typed.random_rows(20260807, 60, typed.SQL_NAMES)
    for row in rows:
        for name, value in row.items():
            row[name] = 0.25 if isinstance(value, float) and math.isnan(value) else value
    assert compare(flink, typed.SQL_NAMES, rows, sorted(set(texts))) > 60

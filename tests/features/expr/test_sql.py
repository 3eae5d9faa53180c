"""SQL text means what the interpreter means: DuckDB runs it on random rows; Flink's text is golden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from features.expr import Mistakes, Program, SourceText, compile_expr, interpret, parse_type, to_sql
from features.expr.times import FIELDS
from tests.features.expr import typed_expressions as typed

duckdb = pytest.importorskip("duckdb", reason="extra 'flink' or 'train' (duckdb)")
pa = pytest.importorskip("pyarrow")

GOLDEN = Path(__file__).parents[2] / "golden" / "expr"
ARROW = {
    "int": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "bool": pa.bool_(),
    "timestamp": pa.int64(),
    "duration": pa.int64(),
}
SQL_EXPRESSION = st.one_of(*typed.typed_expressions(sql=True, wide=True).values())


def quoted(name: str) -> str:
    return f'"{name}"'


def table_of(rows: list[dict[str, Any]], names: dict[str, Any]) -> Any:
    """The rows as an Arrow table with their number, for a stable order."""
    columns = {name: pa.array([row[name] for row in rows], ARROW[kind.kind]) for name, kind in names.items()}
    return pa.table({"row_number": pa.array(range(len(rows)), pa.int64()), **columns})


@pytest.fixture(scope="module")
def connection() -> Any:
    connection = duckdb.connect(":memory:")
    connection.execute("SET threads = 1").fetchall()
    yield connection
    connection.close()


def run(connection: Any, sql: str) -> list[Any]:
    return [row[0] for row in connection.execute(f"SELECT {sql} FROM given ORDER BY row_number").fetchall()]


def equal(a: Any, b: Any) -> bool:
    """As the interpreter's value; SQL does not promise the sign of a zero."""
    return typed.same(a, b) or (isinstance(a, float) and a == b == 0.0)


def assert_same(connection: Any, program: Program, rows: list[dict[str, Any]]) -> None:
    sql = to_sql(program, "duckdb", quoted)
    expected = [interpret(program, row) for row in rows]
    for row, got, value in zip(rows, run(connection, sql), expected, strict=True):
        assert equal(got, value), f"{row}: DuckDB {got!r}, rows {value!r}\n{program}\n{sql}"


@seed(20260804)
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(text=SQL_EXPRESSION, row_seed=st.integers(0, 2**32))
def test_duckdb_agrees_with_the_interpreter_on_random_expressions(connection: Any, text: str, row_seed: int) -> None:
    program = compile_expr(SourceText(text), typed.SQL_NAMES)
    rows = typed.random_rows(row_seed, 40, typed.SQL_NAMES)
    connection.register("given", table_of(rows, typed.SQL_NAMES))
    try:
        assert_same(connection, program, rows)
    except Mistakes as error:
        assert [item.kind for item in error.items] == ["limit"], text


OPERATIONS = {
    "int": ["i + j", "i - j", "i * j", "i % j", "div(i, j)", "-i", "math.abs(i)", "double(i)", "string(i)", "min(i, j)",
            "max(i, j, 3)", "math.sign(i)", "timestamp(i)", "i < j", "i == j", "i != j", "i in [0, -7]", "(i % j == 0 ? null : i) == null", "(i % j == 1 ? 1 : null) ?? 5"],
    "double": ["i + j", "i - j", "i * j", "i / j", "-i", "i < j", "i <= j", "i > j", "i >= j", "i == j", "i != j", "int(i)",
               "min(i, j)", "max(i, j)", "math.floor(i)", "math.ceil(i)", "math.round(i)", "math.abs(i)", "i in [0, 0.5]",
               "math.sign(i)", "math.trunc(i)", "math.isNaN(i / j)", "math.isInf(i * j)", "math.isFinite(i - j)", "!math.isFinite(i / j)",
               "double(int(i)) < j", "double(int(i)) != j", "i > 1.5", "i < 1.5", "i == 0.5", "i != 0.5", "1.5 > i", "0 < i"],
    "string": ["i + j", "i < j", "i >= j", "i == j", "i != j", "size(i)", "i.startsWith(j)", "i.endsWith(j)", "i.contains(j)",
               "int(i)", "double(i)", "i in ['a', 'it\\'s']", "i == 'πέντε'"],
    "timestamp": ["i - j", "i < j", "i >= j", "i == j", "i != j", "int(i)", "i in [timestamp(0)]", "i + (j - timestamp(0))",
                  *(f"i.{field}()" for field in FIELDS)],
    "duration": ["i + j", "i - j", "i < j", "i == j", "timestamp(0) + i", "i + timestamp('2024-02-29T00:00:00Z')", "timestamp(0) - i",
                 *(f"i.{field}()" for field in FIELDS[-4:])],
    "bool": ["i && j", "i || j", "!i", "i == j", "i != j", "string(i)", "i ? j : !j"],
}  # fmt: skip


@pytest.mark.parametrize("kind", OPERATIONS)
def test_duckdb_agrees_on_every_pair_of_edge_values(connection: Any, kind: str) -> None:
    names = {"i": parse_type(kind), "j": parse_type(kind)}
    rows = [{"i": a, "j": b} for a in typed.EDGES[kind] for b in typed.EDGES[kind]]
    connection.register("given", table_of(rows, names))
    for text in OPERATIONS[kind]:
        assert_same(connection, compile_expr(SourceText(text), names), rows)


def test_filter_and_sum_count_what_the_interpreter_counts(connection: Any) -> None:
    """As the feature job uses it: SUM(of) FILTER (WHERE where); a null or failed condition is not true."""
    rows = typed.random_rows(11, 500)
    for row in rows:
        row["i"] = row["i"] if abs(row["i"]) < 2**40 else 1  # the database's own SUM may overflow
    connection.register("given", table_of(rows, typed.NAMES))
    for where_text in (
        "f && s != 'a'",
        "f || i % req.j == 1",
        "n != null && n > 1",
        "t != null && t in ['a', 'b', 'it\\'s']",
    ):
        where, of = (compile_expr(SourceText(text), typed.NAMES) for text in (where_text, "i"))
        sql = f"SUM({to_sql(of, 'duckdb', quoted)}) FILTER (WHERE {to_sql(where, 'duckdb', quoted)})"
        chosen = [row for row in rows if interpret(where, row) is True]
        assert 0 < len(chosen) < len(rows)
        (got,) = connection.execute(
            f"SELECT {sql}, COUNT(*) FILTER (WHERE {to_sql(where, 'duckdb', quoted)}) FROM given"
        ).fetchall()
        assert (int(got[0]), got[1]) == (sum(interpret(of, row) for row in chosen), len(chosen))


def test_strings_are_escaped(connection: Any) -> None:
    names = {"s": parse_type("string")}
    hostile = ["'; DROP TABLE t; --", "it''s", "\\", "\n", '"', "%_", "é🐱"]
    rows = [{"s": text} for text in hostile]
    connection.register("given", table_of(rows, names))
    for text in hostile:
        literal = '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
        program = compile_expr(SourceText(f"s == {literal}"), names)
        assert run(connection, to_sql(program, "duckdb", quoted)) == [other == text for other in hostile]


def test_what_sql_cannot_carry_is_refused_with_its_place() -> None:
    program = compile_expr(SourceText("x > math.exp(x)", "views/a.yaml", 7, 12), {"x": parse_type("double")})
    with pytest.raises(Mistakes, match=r"views/a.yaml:7:16: math.exp has no exact form in SQL"):
        to_sql(program, "flink", quoted)
    with pytest.raises(ValueError, match="unknown dialect"):
        to_sql(program, "mysql", quoted)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "at", "what"),
    [
        ("i > 0 && s.matches('^a')", 10, "a regular expression has no exact form"),
        ("i > 0 && as_of.getHours('UTC') > 3", 10, "a calendar field in a time zone has no exact form"),
        ("as_of < timestamp(s)", 9, "timestamp of a text has no exact form"),
        ("'a' in tags", 1, "SQL has no lists"),
        ("i > 0 && tags.exists(t, t == s)", 10, "SQL has no lists"),
        ("size(tags) > 0", 6, "SQL has no lists"),
        ("hash01('salt', s) < 0.5", 1, "hash01 has no exact form"),
        ("math.pow(x, 2.0) > 3.0", 1, "math.pow has no exact form"),
        ("string(as_of) == s", 1, "the text of a timestamp has no exact form"),
    ],
)
@pytest.mark.parametrize("dialect", ["flink", "duckdb"])
def test_each_refusal_names_its_place_and_where_to_go(text: str, at: int, what: str, dialect: Any) -> None:
    with pytest.raises(Mistakes) as caught:
        to_sql(compile_expr(SourceText(text), typed.WIDE), dialect, quoted)
    (mistake,) = caught.value.items
    assert mistake.col == at and mistake.kind == "sql" and what in mistake.message
    assert mistake.hint == "compute it in an expr of the view or strategy instead"


def test_a_text_that_grows_without_end_is_refused() -> None:
    text = "i"
    for _ in range(9):
        text = f"div({text}, {text})"
    program = compile_expr(SourceText(text), {"i": parse_type("int")})
    with pytest.raises(Mistakes, match="characters of SQL"):
        to_sql(program, "flink", quoted)


def test_flink_text_is_golden() -> None:
    """One line an expression, then its SQL. A change here changes running jobs: read it before accepting it."""
    texts = (GOLDEN / "flink.txt").read_text(encoding="utf-8").split("\n\n")
    assert len(texts) > 15
    for block in texts:
        source, _, expected = block.strip().partition("\n")
        program = compile_expr(SourceText(source), typed.SQL_NAMES)
        assert to_sql(program, "flink", lambda name: f"`{name.rpartition('.')[2]}`") == expected, source

"""Decision tables: the fast lookup is the slow one, whatever cells and values; a CSV's mistakes have their places."""

from __future__ import annotations

import math
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.strategy import COLLECTS, Cell, Table, TableRow
from engine.table import CompiledTable, compile_table, look_up_row, match_rows
from engine.table_csv import read_cell, read_csv
from features.expr import ROW_ERROR, Column, Mistakes, Type
from tests.engine.support import catalogue_registry, compile_text

INT64 = [-(2**63), -(2**63) + 1, 2**63 - 2, 2**63 - 1]
POOL: dict[str, list[Any]] = {
    "int": [*range(-6, 7), 1000, 10**6, *INT64],
    "double": [-math.inf, math.inf, -0.0, 0.0, 0.5, 1.0, 1.5, 2.0, 5e-324, 1e308, *np.linspace(-3, 3, 13).tolist()],
    "string": ["", "gold", "silver", "ß", "🐱", "a | b", "Gold"],
    "bool": [False, True],
    "timestamp": [0, 1_700_000_000_000_000, 1_700_000_000_000_001, -5],
    "duration": [0, 60_000_000, -60_000_000, 1],
}
DTYPES = {"double": np.float64, "string": object, "bool": bool}


def random_cell(rng: random.Random, kind: str) -> Cell:
    shape = rng.choice(["any", "null", "values", "values", "range", "range"])
    if shape == "range" and kind in ("string", "bool"):
        shape = "values"
    if shape == "values":
        return Cell(kind="values", values=tuple(rng.choice(POOL[kind]) for _ in range(rng.randrange(1, 4))))
    if shape != "range":
        return Cell(kind=shape)
    low, high = sorted(rng.choices(POOL[kind], k=2))
    bounds = [bound if rng.random() < 0.8 else None for bound in (low, high)]
    if bounds == [None, None]:
        bounds[0] = low
    opens = [rng.random() < 0.5 for _ in bounds]
    if low == high:
        opens = [False, False]
    return Cell(kind="range", low=bounds[0], high=bounds[1], low_open=opens[0], high_open=opens[1])


def random_table(rng: random.Random, *, num_rows: int, hit: str) -> tuple[Table, list[str]]:
    kinds = [rng.choice(list(POOL)) for _ in range(rng.randrange(1, 5))]
    collect = rng.choice(COLLECTS)
    out_kinds = [rng.choice(["int", "double", "duration"] + (["string", "bool"] if hit != "collect" else []))
                 for _ in range(rng.randrange(1, 4))]  # fmt: skip
    result = ["int" if hit == "collect" and collect == "count" else kind for kind in out_kinds]
    rows = tuple(
        TableRow(
            cells=tuple(random_cell(rng, kind) for kind in kinds),
            outputs=tuple(None if rng.random() < 0.2 else rng.choice(POOL[kind]) for kind in out_kinds),
            line=at + 2,
        )
        for at in range(num_rows)
    )
    on_gap = rng.choice(["error", "null", "default"])
    outputs = {f"o{at}": Type(kind, True) for at, kind in enumerate(result)}
    table = Table(
        name="t", hit=hit, on_gap=on_gap, collect=collect, inputs=tuple(f"c{at}" for at in range(len(kinds))),
        outputs=outputs, rows=rows, file="t.csv",
        gap_values={name: rng.choice([*POOL[kind.kind], None]) for name, kind in outputs.items()},
    )  # fmt: skip
    return table, kinds


def random_column(rng: random.Random, kind: str, num: int) -> tuple[Column, list[Any]]:
    """A column, and the same as values: null, row errors and (for doubles) NaN among them."""
    values = [rng.choice(POOL[kind]) for _ in range(num)]
    if kind == "double":
        values = [math.nan if rng.random() < 0.1 else value for value in values]
    valid = np.array([rng.random() < 0.85 for _ in range(num)], dtype=bool)
    error = np.array([rng.random() < 0.05 for _ in range(num)], dtype=bool) if rng.random() < 0.5 else None
    if error is not None:
        valid &= ~error
    array = np.empty(num, dtype=DTYPES.get(kind, np.int64))
    array[:] = values
    if kind == "string":
        array[~valid] = None
    failed = error if error is not None else np.zeros(num, dtype=bool)
    plain = [ROW_ERROR if f else v if ok else None for v, ok, f in zip(values, valid, failed, strict=True)]
    return Column(array, valid, error), plain


def plain(column: Column) -> list[Any]:
    failed = column.error if column.error is not None else np.zeros(len(column), dtype=bool)
    assert not (failed & column.valid).any()
    return [ROW_ERROR if bad else value for value, bad in zip(column.tolist(), failed.tolist(), strict=True)]


def same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and (a == b or a != a) and (not isinstance(a, float) or repr(a) == repr(b)))


def check(rng: random.Random, table: Table, compiled: CompiledTable, kinds: list[str], num: int, what: str) -> None:
    lengths = [1 if rng.random() < 0.3 else num for _ in kinds]
    size = max(lengths)
    columns, given = {}, []
    for name, kind, length in zip(table.inputs, kinds, lengths, strict=True):
        columns[name], values = random_column(rng, kind, length)
        given.append(values * size if length == 1 else values)
    found = compiled.lookup(columns)
    assert set(found) == {f"t.{name}" for name in table.outputs}
    assert all(len(column) == size for column in found.values())
    for row in range(size):
        values_of_row = {name: values[row] for name, values in zip(table.inputs, given, strict=True)}
        wanted = look_up_row(table, values_of_row)
        for name, column in found.items():
            assert same(plain(column)[row], wanted[name]), (what, name, values_of_row)


@pytest.mark.parametrize("hit", ["first", "unique", "collect"])
@pytest.mark.parametrize("remembered", [True, False])
def test_lookup_is_match_rows_for_random_tables_and_values(
    hit: str, remembered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not remembered:
        monkeypatch.setattr("engine.table_index.MAX_REMEMBERED", 0)
        monkeypatch.setattr("engine.table_index.MAX_SETS", 10)
    for seed in range(60):
        rng = random.Random(seed)
        table, kinds = random_table(rng, num_rows=rng.choice([1, 2, 5, 63, 64, 65, 130]), hit=hit)
        compiled = compile_table(table, kinds)
        for again in range(3):
            check(rng, table, compiled, kinds, rng.choice([1, 2, 17]), f"seed {seed}, lookup {again}")


def test_empty_batch_is_an_empty_answer() -> None:
    table, kinds = random_table(random.Random(3), num_rows=4, hit="first")
    columns = {
        name: random_column(random.Random(1), kind, 0)[0] for name, kind in zip(table.inputs, kinds, strict=True)
    }
    assert all(len(column) == 0 for column in compile_table(table, kinds).lookup(columns).values())


def zone_table(num_zones: int) -> tuple[Table, list[str]]:
    """Zone × tier × distance band: four rows a zone."""
    rows = []
    for zone in range(num_zones // 4):
        for at, (tier, low) in enumerate([("gold", 0.0), ("gold", 5.0), ("silver", 0.0), (None, 0.0)]):
            cells = (
                Cell(kind="values", values=(zone,)),
                Cell(kind="values", values=(tier,)) if tier else Cell(kind="any"),
                Cell(kind="range", low=low, high=low + 5.0, high_open=True),
            )
            rows.append(TableRow(cells=cells, outputs=(float(zone + at),), line=len(rows) + 2))
    table = Table(
        name="t", hit="first", on_gap="null", inputs=("zone", "tier", "km"),
        outputs={"bonus": Type("double", True)}, rows=tuple(rows), file="t.csv",
    )  # fmt: skip
    return table, ["int", "string", "double"]


def test_thousand_rows_are_looked_up_in_well_under_a_microsecond_a_candidate() -> None:
    """About 70 ns with a text column among three; the limit here is far from it, for machines are busy."""
    table, kinds = zone_table(1000)
    started = time.process_time()
    compiled = compile_table(table, kinds)
    compiling_s = time.process_time() - started
    rng = np.random.default_rng(1)
    num = 1000
    always = np.ones(num, dtype=bool)
    columns = {
        "zone": Column(rng.integers(0, 260, num), always),
        "tier": Column(rng.choice(np.array(["gold", "silver", "none"], dtype=object), num), always),
        "km": Column(rng.random(num) * 12.0, always),
    }
    compiled.lookup(columns)
    best = math.inf
    for _ in range(20):
        started = time.process_time()
        for _ in range(10):
            compiled.lookup(columns)
        best = min(best, (time.process_time() - started) / 10 / num)
    print(f"compiled in {compiling_s * 1e3:.1f} ms, {best * 1e9:.0f} ns a candidate")
    assert best < 500e-9
    assert compiling_s < 0.5
    for row in range(0, num, 97):
        values = {name: column.tolist()[row] for name, column in columns.items()}
        assert compiled.lookup(columns)["t.bonus"].tolist()[row] == look_up_row(table, values)["t.bonus"]


# ---------- cells and files ----------


@pytest.mark.parametrize(
    ("text", "kind", "fits", "not_fits"),
    [
        ("*", "int", [None, 3], []),
        ("null", "string", [None], ["null", ""]),
        ("'null'", "string", ["null"], [None]),
        ("a | 'b | c' | d", "string", ["a", "b | c", "d"], ["b", "c", None]),
        ("O'Hare", "string", ["O'Hare"], ["O''Hare"]),
        ("'it''s'", "string", ["it's"], []),
        ("'>= 5'", "string", [">= 5"], ["6"]),
        ("1|2 | 3", "int", [1, 2, 3], [4, None]),
        ("[1..5)", "int", [1, 4], [5, 0, None]),
        ("(1 .. 5]", "double", [5.0, 1.5], [1.0, math.nan, math.inf]),
        ("(..10]", "int", [10, -(2**63)], [11]),
        (">= 5", "double", [5.0, math.inf], [4.9, math.nan, None]),
        ("< -3", "int", [-4], [-3]),
        ("true", "bool", [True], [False, None]),
        ("30m | 1h30m", "duration", [1_800_000_000, 5_400_000_000], [30]),
        (">= 2024-03-10T07:30:00Z", "timestamp", [1_710_055_800_000_000], [0]),
    ],
)  # fmt: skip
def test_cells_accept_what_they_say(text: str, kind: str, fits: list[Any], not_fits: list[Any]) -> None:
    row = TableRow(cells=(read_cell(text, kind),), outputs=(1,), line=2)
    table = Table(
        name="t", hit="first", on_gap="null", inputs=("c",), outputs={"o": Type("int")}, rows=(row,), file="t"
    )
    assert all(match_rows(table, {"c": value}) == [0] for value in fits)
    assert all(match_rows(table, {"c": value}) == [] for value in not_fits)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("", "int", "an empty cell"),
        ("a ||b", "string", "an empty alternative"),
        ("a | null", "string", "null cannot stand beside"),
        ("* | a", "string", r"\* cannot stand beside"),
        (">= 5", "string", "a string has no ranges"),
        ("[1..2]", "bool", "a bool has no ranges"),
        ("(..)", "int", "a range without bounds"),
        ("[5..1]", "int", "nothing lies in this range"),
        ("(5..5]", "int", "nothing lies in this range"),
        ("1.5", "int", "not a whole number"),
        ("9223372036854775808", "int", "not a whole number"),
        ("nan", "double", "not a number"),
        ("1e999", "double", "not a number"),
        ("yes", "bool", "not true or false"),
        ("'open", "string", "this quote is not closed"),
        ("tomorrow", "timestamp", "not of the form"),
    ],
)
def test_cells_that_make_no_sense_are_refused(text: str, kind: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_cell(text, kind)


def test_csv_fields_keep_their_places() -> None:
    raw, mistakes = read_csv('\ufeffa, b ,"c, d"\r\n\r\n1,"say ""x""", \n', "t.csv")
    assert not mistakes
    assert [(cell.text, cell.line, cell.col) for cell in raw.header] == [("a", 1, 1), ("b", 1, 4), ("c, d", 1, 7)]
    assert [(cell.text, cell.line, cell.col) for cell in raw.rows[0]] == [("1", 3, 1), ('say "x"', 3, 3), ("", 3, 16)]


STRATEGY = """strategy: s
version: 1
request: {zone: int, hour: int}
candidates: {key: id, fields: {tier: string}}
let:
  late: hour >= 22
tables:
  bonus:
    hit: HIT
    on_gap: GAP
    columns: [zone, tier, late, out.cents, out.label]
    rows: tables/bonus.csv
score: double(bonus.cents)
"""


def write(folder: Path, csv: str, hit: str = "first", gap: str = "error") -> str:
    (folder / "tables").mkdir(exist_ok=True)
    (folder / "tables" / "bonus.csv").write_text(csv)
    return STRATEGY.replace("HIT", hit).replace("GAP", gap)


def test_every_mistake_of_a_table_has_its_line_and_column(tmp_path: Path) -> None:
    csv = (
        "zone,tier,late,out.cents,out.label\n"
        "1,gold,true,10,a\n"
        "x,>= 3,true,1.5,b\n"
        ",gold,maybe,,\n"
        '2,"a, b",*,3\n'
        '3,"open,*,3,c\n'
    )
    with pytest.raises(Mistakes) as caught:
        compile_text(write(tmp_path, csv), tmp_path, catalogue_registry())
    places = [(item.file, item.line, item.col, item.kind) for item in caught.value.items]
    assert places == [("tables/bonus.csv", 5, 1, "csv"), ("tables/bonus.csv", 6, 3, "csv")]

    csv = csv.replace('2,"a, b",*,3\n', "").replace('3,"open,*,3,c\n', "")
    with pytest.raises(Mistakes) as caught:
        compile_text(write(tmp_path, csv), tmp_path, catalogue_registry())
    places = [(item.line, item.col, item.message) for item in caught.value.items]
    assert places == [
        (3, 1, "'x' is not a whole number"),
        (3, 3, "a string has no ranges"),
        (4, 1, "an empty cell"),
        (4, 7, "'maybe' is not true or false"),
    ]


@pytest.mark.parametrize(
    ("csv", "message"),
    [
        ("", "the file has no header"),
        ("zone,tier,late,out.cents,out.label\n", "the table has no rows"),
        ("zone,tier,late,out.cent,out.label\n1,a,true,3,x\n", "did you mean 'out.cents'"),
        ("zone,tier,zone,late,out.cents,out.label\n1,a,1,true,3,x\n", "column 'zone' is there twice"),
        ("zone,tier,late,out.cents\n1,a,true,3\n", "column 'out.label' missing from the header"),
        ("zone,tier,late,out.cents,out.label\n1,a,true,3,\n", "every 'out.label' is null"),
    ],
)
def test_header_must_name_the_columns(tmp_path: Path, csv: str, message: str) -> None:
    with pytest.raises(Mistakes, match=message):
        compile_text(write(tmp_path, csv), tmp_path, catalogue_registry())


def test_types_of_outputs_come_from_rows_gap_and_collect(tmp_path: Path) -> None:
    csv = "out.label,zone,tier,late,out.cents\na,1,gold,*,10\n,2,*,*,20\n"
    registry = catalogue_registry()

    def outputs(hit: str, gap: str, csv: str = csv) -> dict[str, str]:
        text = write(tmp_path, csv, hit, gap).replace("double(bonus.cents)", "1.0")
        return {n: str(k) for n, k in compile_text(text, tmp_path, registry).strategy.tables["bonus"].outputs.items()}

    assert outputs("first", "error") == {"cents": "int", "label": "string?"}
    assert outputs("first", "null") == {"cents": "int?", "label": "string?"}
    assert outputs("unique", "{cents: 0, label: null}") == {"cents": "int", "label": "string?"}
    assert outputs("collect\n    collect: count", "{cents: 0, label: 0}") == {"cents": "int", "label": "int"}
    with pytest.raises(Mistakes, match=r"collect: sum needs numbers, and out\.label is string"):
        outputs("collect\n    collect: sum", "error")
    with pytest.raises(Mistakes, match=r"on_gap\.cents must be an int"):
        outputs("first", "{cents: x, label: y}")


def test_hash_of_a_strategy_covers_its_tables(tmp_path: Path) -> None:
    csv = "zone,tier,late,out.cents,out.label\n1,gold,*,10,a\n"
    first = compile_text(write(tmp_path, csv), tmp_path, catalogue_registry()).strategy.hash
    assert compile_text(write(tmp_path, csv), tmp_path, catalogue_registry()).strategy.hash == first
    assert compile_text(write(tmp_path, csv.replace("10", "11")), tmp_path, catalogue_registry()).strategy.hash != first

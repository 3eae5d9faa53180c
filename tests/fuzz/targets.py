"""What is fed with bad input: each target makes the files of a case from a random generator, and runs what reads them.

A run raises Mistakes about the files, returns False where the input was refused in the other way that is right for it,
and True where it was accepted; then it was used, too: evaluated on rows, decided on a request, run as a test.
"""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from engine.case_file import read_cases
from engine.decide import decide
from engine.loader import load_strategy
from engine.request import RequestError, parse
from engine.server import SHIPPED_STRATEGIES
from engine.strategy import CompiledStrategy
from engine.strategy_test import Suite, run_case
from engine.switches import SWITCHES, SwitchError, read_switches
from features.expr import (
    Facts,
    Mistakes,
    Program,
    SourceText,
    Type,
    compile_expr,
    evaluate,
    interpret,
    to_sql,
)
from features.expr.checks import check_facts
from features.expr.ranges import find_range
from features.expr.regions import find_example
from features.loader import SHIPPED, load_texts
from features.read_plan import compile_read_plan
from features.records import encode
from features.registry import Registry, local_registry
from tests.engine.random_strategies import random_strategy
from tests.engine.support import (
    AS_OF_MS,
    HERE,
    KITCHEN_SINK,
    RandomFeatures,
    catalogue_registry,
    make_live,
    shipped_registry,
)
from tests.engine.test_schema import FULL
from tests.features.expr.typed_expressions import EDGES, WIDE, random_rows, same, to_columns
from tests.fuzz.expressions import expression
from tests.fuzz.mutations import mutate

GOLDEN = Path(__file__).parents[1] / "golden" / "strategies"
Files = dict[str, bytes]

# One table of every kind of input and output, with every form of a cell.
TABLE_STRATEGY = """strategy: tabled
version: 1
request: {zone: int, opened: timestamp, waited: 'duration?', rate: 'double?'}
candidates: {key: driver_id, fields: {tier: 'string?', vip: bool}}
tables:
  bonus: {hit: HIT, on_gap: GAP, columns: [zone, tier, vip, rate, opened, waited, out.bonus, {out.label: 'string?'}], rows: bonus.csv}
score: double(bonus.bonus ?? 1.5)
outputs: {label: bonus.label}
"""
TABLE = """zone,tier,vip,rate,opened,waited,out.bonus,out.label
7,gold,true,[0.5..1.5),*,null,1.5,big
"(..10]",gold | 'a | b',*,>= 5,>= 2024-01-01T00:00:00Z,< 5m,2,
>= 5,null,false,(0.0..1e300],*,[1s..2h],-0.5,null
*,*,*,*,*,*,0,"quoted, "" text"
"""
KILLED = b'{"killed": [{"target": "strategy:a@nyc", "actor": "me", "reason": "r", "at_ms": 1}, {"target": "rule:a/b", "actor": "", "reason": "", "at_ms": 2}]}'


@dataclass(frozen=True)
class Target:
    """`share` is how many of a hundred cases are for this target. `files` makes a case, `run` reads and uses it in a folder."""

    name: str
    share: int
    files: Callable[[random.Random], Files]
    run: Callable[[random.Random, Path, Files], bool]


# Expressions -----------------------------------------------------------------------------------------------------------

_FACTS = {
    "i": Facts(unit="s", low=0.0, high=3600.0),
    "x": Facts(unit="m", low=0.0),
    "driver.z": Facts(low=-1.0, high=1.0),
    "wait": Facts(unit="s"),
}


def _expression_file(rng: random.Random) -> Files:
    return {"expression": expression(rng).encode("utf-8", "surrogatepass")}


def _run_expression(rng: random.Random, _: Path, files: Files) -> bool:
    """Compile; then whatever looks at a program, and both ways to run it, on rows of edge values."""
    text = files["expression"].decode("utf-8", "surrogatepass")
    program = compile_expr(SourceText(text, "expression"), WIDE, strict=rng.random() < 0.2)
    rows = random_rows(rng.randrange(10**6), rng.choice([0, 1, 5]), WIDE)
    by_row = [interpret(program, row) for row in rows]
    column = evaluate(program, to_columns(rows, WIDE), num_rows=len(rows))
    for at, expected in enumerate(by_row):
        if column.valid[at]:
            value = column.values[at if len(column.values) > 1 else 0]
            found = value.item() if isinstance(value, np.generic) else value
            assert same(found, expected), f"row {rows[at]}: columns say {found!r}, rows {expected!r}"
    for mistake in check_facts(program, _FACTS):
        mistake.format()
    find_range(program, _FACTS)
    str(program)
    if rng.random() < 0.3:
        _as_sql(program)
    if rng.random() < 0.1 and program.type.kind == "bool":
        find_example([(program, rng.choice([True, False]))], WIDE, _FACTS, max_tries=300)
    return True


def _as_sql(program: Program) -> None:
    for dialect in ("duckdb", "flink"):
        try:
            to_sql(program, dialect, lambda name: name)
        except Mistakes as refused:
            assert {item.kind for item in refused.items} == {"sql"}


# Strategies and their tables ---------------------------------------------------------------------------------------------


@cache
def _registries() -> tuple[Registry, Registry]:
    return shipped_registry(), catalogue_registry()


@cache
def _strategy_texts() -> tuple[tuple[str, dict[str, str]], ...]:
    """(text, CSV files by name) of what mutations start from: shipped, with every section, and golden ones with mistakes."""
    shipped = [(path.read_text(), path.parent) for path in sorted(SHIPPED_STRATEGIES.glob("*.yaml"))]
    golden = [(path.read_text(), path.parent) for path in sorted(GOLDEN.glob("*/input.yaml"))]
    full = [(KITCHEN_SINK, None), (FULL, None), (TABLE_STRATEGY, None)]
    right = [*shipped, (KITCHEN_SINK, None)] * (len(golden) // len(shipped))  # as many as there are wrong ones
    return tuple((text, _tables_beside(folder)) for text, folder in [*right, *full, *golden])


@cache
def _random_texts() -> tuple[tuple[str, dict[str, str]], ...]:
    """Random strategies that compile, with tables of all kinds."""
    out = []
    for seed in range(20):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"random_{seed}.yaml"
            random_strategy(seed, path.parent, _registries()[1])
            out.append((path.read_text(), _tables_beside(path.parent)))
    return tuple(out)


def _tables_beside(folder: Path | None) -> dict[str, str]:
    own = {"bonus.csv": TABLE, "t.csv": "zone,out.bonus\n1,2.0\n"}
    found = [] if folder is None else [*folder.glob("*.csv"), *folder.glob("tables/*.csv")]
    return own | {path.relative_to(folder).as_posix(): path.read_bytes().decode("utf-8", "replace") for path in found}


@cache
def _values() -> tuple[str, ...]:
    """Values of all strategies, to be exchanged for one another."""
    texts = [text for text, _ in _strategy_texts()]
    lines = {line.partition(": ")[2].strip() for text in texts for line in text.split("\n") if ": " in line}
    return tuple(sorted(lines - {""}))


def _strategy_files(rng: random.Random) -> Files:
    """A strategy made wrong, with its tables as they are."""
    texts = _strategy_texts() if rng.random() < 0.5 else _random_texts()
    text, tables = rng.choice(texts)
    values = [*_values(), *(expression(rng) for _ in range(3))] if rng.random() < 0.4 else _values()
    raw = mutate(rng, text, [other for other, _ in texts], values)
    return {"strategy.yaml": raw, **{name: table.encode() for name, table in tables.items()}}


def _table_files(rng: random.Random) -> Files:
    """A table made wrong, in a strategy that would be right."""
    hit = rng.choice(["first", "unique", "collect, collect: count"])
    gap = rng.choice(["error", "'null'", "{bonus: 0.5, label: none}"])
    text = TABLE_STRATEGY.replace("HIT", hit).replace("GAP", gap)
    values = [cell for line in TABLE.split("\n") for cell in line.split(",")]
    raw = mutate(rng, TABLE, [TABLE], values) if rng.random() < 0.8 else _cells(rng, values)
    return {"strategy.yaml": text.encode(), "bonus.csv": raw}


def _cells(rng: random.Random, values: list[str]) -> bytes:
    """Rows of the right length whose cells are anything."""
    lines = [[rng.choice(values[8:]) for _ in range(8)] for _ in range(rng.choice([0, 1, 3, 40]))]
    return "\n".join([TABLE.split("\n")[0], *(",".join(line) for line in lines)]).encode()


def _write(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, raw in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
    return folder / "strategy.yaml"


def _run_strategy(rng: random.Random, folder: Path, files: Files) -> bool:
    """Load it by the shipped or the small catalogue, and decide a request that fits it, and one that does not."""
    registry = _registries()[b"driver_stats" in files["strategy.yaml"]]
    path = _write(folder, files)
    compiled = load_strategy(path, registry.catalogue, schema_fingerprint=registry.fingerprint, name="strategy.yaml")
    assert all(item.format() for item in compiled.warnings)
    live = make_live(compiled, registry)
    for _ in range(2):
        body = random_body(rng, compiled)
        if rng.random() < 0.3:
            body = break_body(rng, body)
        try:
            request = parse(compiled, msgspec.json.encode(body))
        except RequestError as error:
            assert error.path.startswith("$") and error.message and error.status in (400, 413)
            continue
        killed = rng.choice([0, 0, rng.randrange(1 << len(compiled.strategy.rules))])
        encode(
            decide(live, request, RandomFeatures(compiled, rng.randrange(100), down=rng.random() < 0.1), killed=killed)
        )
    return True


def random_body(rng: random.Random, compiled: CompiledStrategy) -> dict[str, Any]:
    """A body of edge values, inside the declared bounds most of the time."""
    strategy = compiled.strategy
    num = rng.choice([1, 2, 7])
    request = {name: _sent(rng, kind, strategy.facts.get(name)) for name, kind in strategy.request.items()}
    envelope = {
        "order_id": "o-1",
        "city": _scoped(strategy.scope["city"]),
        "product": _scoped(strategy.scope["product"]),
    }
    columns: dict[str, list[Any]] = {
        name: [_sent(rng, kind, strategy.facts.get(name)) for _ in range(num)]
        for name, kind in strategy.candidate_fields.items()
    }
    columns[strategy.candidate_key] = [f"c-{at}" for at in range(num)]
    request = {name: envelope.get(name, value) for name, value in request.items()}
    return {**envelope, "as_of_ms": AS_OF_MS, "request": request, "candidates": columns}


def _scoped(scope: str) -> str:
    return "anywhere" if scope == "*" else scope


def _sent(rng: random.Random, kind: Type, facts: Facts | None) -> Any:
    if kind.nullable and rng.random() < 0.2:
        return None
    if kind.is_list:
        return [_sent(rng, kind.item, None) for _ in range(rng.randrange(4))]
    value = rng.choice(EDGES[kind.kind])
    if kind.kind in ("timestamp", "duration"):
        return value // 1000 if rng.random() < 0.5 else rng.choice([0, AS_OF_MS])
    if kind.kind == "double" and not math.isfinite(value):
        return 0.25
    if facts is not None and kind.kind in ("int", "double") and rng.random() < 0.9:
        low, high = facts.low if facts.low is not None else 0.0, facts.high if facts.high is not None else 1e6
        return type(value)(rng.uniform(low, high))
    return value


def break_body(rng: random.Random, body: dict[str, Any]) -> dict[str, Any]:
    """A body with something in it that cannot be."""
    odd = [
        None,
        "",
        "x" * 2_000,
        -1,
        2**63,
        2**64,
        -(2**63),
        1e308,
        [],
        {},
        [[]],
        True,
        "\ud800",
        "\0",
        [1] * 501,
        ["a", "a"],
    ]
    part = rng.choice([body, body["request"], body["candidates"]])
    if part and rng.random() < 0.7:
        part[rng.choice(list(part))] = rng.choice(odd[:-4] + odd[-3:])
    else:
        part[rng.choice(["", "x", "order", "as_of"])] = rng.choice(odd[:12])
    return body


# Tests of strategies, switches, features ---------------------------------------------------------------------------------


@cache
def _suites() -> tuple[tuple[CompiledStrategy, str], ...]:
    registry = _registries()[0]
    out = []
    for path in sorted(SHIPPED_STRATEGIES.glob("*.yaml")):
        compiled = load_strategy(path, registry.catalogue, schema_fingerprint=registry.fingerprint)
        assert compiled.strategy.tests is not None
        out.append((compiled, (path.parent / compiled.strategy.tests).read_text()))
    return tuple(out)


def _case_files(rng: random.Random) -> Files:
    at = rng.randrange(len(_suites()))
    text = _suites()[at][1]
    head, *cases = text.split("\n  - name:")
    few = [head, *rng.sample(cases, min(len(cases), rng.choice([1, 3])))]
    return {"cases.yaml": mutate(rng, "\n  - name:".join(few), [text], _values()), "strategy": str(at).encode()}


def _run_cases(rng: random.Random, folder: Path, files: Files) -> bool:
    compiled = _suites()[int(files["strategy"])][0]
    path = folder / "cases.yaml"
    path.write_bytes(files["cases.yaml"])
    plan = compile_read_plan(_registries()[0], {role.name: role.view.name for role in compiled.strategy.roles})
    cases = tuple(read_cases(path, compiled, name="cases.yaml"))
    suite = Suite(compiled=compiled, plan=plan, file="cases.yaml", cases=cases)
    for case in cases[:3]:
        failures = [failure.mistake for failure in run_case(suite, case).failures]
        if failures:
            raise Mistakes(failures)
    return True


def _switch_files(rng: random.Random) -> Files:
    return {
        SWITCHES: mutate(rng, KILLED.decode(), [], ["city:x", "rule:", "switch:k", "strategy:@", ":", "rule:a/b@c"])
    }


def _run_switches(rng: random.Random, folder: Path, files: Files) -> bool:
    """A file that cannot be understood is never taken for "nothing is killed"."""
    (folder / SWITCHES).write_bytes(files[SWITCHES])
    try:
        switches = read_switches(folder)
    except SwitchError as error:
        assert SWITCHES in str(error)
        str(error).encode()
        return False
    compiled = _suites()[0][0]
    switches.kills(compiled.name, "nyc")
    switches.killed_bits(compiled, "nyc")
    switches.unmatched([])
    return True


@cache
def _feature_texts() -> dict[str, str]:
    paths = [
        path for folder in (SHIPPED, HERE / "catalogue") for path in folder.rglob("*.yaml") if "tests" not in path.parts
    ]
    return {
        path.relative_to(SHIPPED if SHIPPED in path.parents else HERE / "catalogue").as_posix(): path.read_text()
        for path in paths
    }


@cache
def _shipped_features() -> dict[str, str]:
    return {
        path.relative_to(SHIPPED).as_posix(): path.read_text()
        for path in SHIPPED.rglob("*.yaml")
        if "tests" not in path.parts
    }


def _feature_files(rng: random.Random) -> Files:
    texts = _shipped_features()
    name = rng.choice(sorted(texts))
    values = [line.partition(": ")[2] for text in texts.values() for line in text.split("\n") if ": " in line]
    return {key: text.encode() for key, text in texts.items()} | {
        name: mutate(rng, texts[name], list(texts.values()), values)
    }


def _run_features(rng: random.Random, folder: Path, files: Files) -> bool:
    """A catalogue that loads can be applied, and read."""
    registry = local_registry(load_texts({name: raw.decode("utf-8-sig", "replace") for name, raw in files.items()}))
    compile_read_plan(registry, {name: name for name in registry.catalogue.views})
    return True


TARGETS = (
    Target("expressions", 40, _expression_file, _run_expression),
    Target("strategies", 28, _strategy_files, _run_strategy),
    Target("tables", 14, _table_files, _run_strategy),
    Target("tests", 8, _case_files, _run_cases),
    Target("features", 6, _feature_files, _run_features),
    Target("switches", 4, _switch_files, _run_switches),
)

"""Strategy files: the full text of every mistake, and what a right file compiles to."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.compiler import names_of
from engine.loader import load_strategy
from engine.outline import read_outline
from engine.server import SHIPPED_STRATEGIES
from engine.strategy import CompiledStrategy
from features.expr import Facts, Mistakes
from tests.engine.support import KITCHEN_SINK, catalogue_registry, compile_text, shipped_registry

GOLDEN = Path(__file__).parents[1] / "golden" / "strategies"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/input.yaml"))


@pytest.mark.parametrize("case", CASES)
def test_all_mistakes_of_a_file_are_told_at_once(case: str) -> None:
    registry = catalogue_registry()
    with pytest.raises(Mistakes) as caught:
        load_strategy(GOLDEN / case / "input.yaml", registry.catalogue, schema_fingerprint="", name=f"{case}.yaml")
    assert str(caught.value) + "\n" == (GOLDEN / case / "errors.txt").read_text()


def test_golden_cases_are_there() -> None:
    assert len(CASES) >= 25


@pytest.mark.parametrize("name", ["express_dispatch", "rider_coupon"])
def test_shipped_strategies_compile_against_the_shipped_features(name: str) -> None:
    registry = shipped_registry()
    path = SHIPPED_STRATEGIES / f"{name}.yaml"
    compiled = load_strategy(path, registry.catalogue, schema_fingerprint=registry.fingerprint)
    assert compiled.name == name
    assert compiled.schema_fingerprint == registry.fingerprint
    assert len(compiled.strategy.hash) == 64


def test_feature_without_a_default_is_nullable_and_with_one_is_not(tmp_path: Path) -> None:
    compiled = compile_text(KITCHEN_SINK, tmp_path, catalogue_registry())
    types = {name: str(kind) for name, kind in names_of(compiled.strategy).items()}
    assert types["driver.offers"] == "int?"
    assert types["driver.accept_rate"] == "double"
    assert types["to.avg_fare"] == "double?"
    assert types["city"] == "string"


def test_model_without_on_late_is_nullable_and_with_a_sure_one_is_not(tmp_path: Path) -> None:
    compiled = compile_text(KITCHEN_SINK, tmp_path, catalogue_registry())
    assert set(compiled.on_late) == {"p_cancel"}
    with pytest.raises(Mistakes, match="p_accept"):
        compile_text(KITCHEN_SINK.replace("(p_accept ?? 0.4)", "p_accept"), tmp_path, catalogue_registry())


def test_drop_of_null_makes_the_name_known_only_below_and_only_where_it_is_sound(tmp_path: Path) -> None:
    registry = catalogue_registry()
    head = "strategy: s\nversion: 1\nrequest: {hour: int}\ncandidates: {key: id, fields: {eta_s: 'double?'}}\nscore: 1.0\nrules:\n"
    unknown, far = "  - {id: u, drop_when: '%s'}\n", "  - {id: f, drop_when: eta_s > 3.0}\n"
    compile_text(head + unknown % "hour > 3 || eta_s == null" + far, tmp_path, registry)
    for condition in (
        "hour > 3 && eta_s == null",
        "(eta_s == null || hour > 1) && hour > 3",
        "hour > 3 && (hour > 1 || eta_s == null || hour > 2)",
        'city == "a || eta_s == null || b"',
        "hour > 3",
    ):
        with pytest.raises(Mistakes):
            compile_text(head + unknown % condition + far, tmp_path, registry)
    with pytest.raises(Mistakes):
        compile_text(head + far + unknown % "eta_s == null", tmp_path, registry)


def test_roles_find_their_keys(tmp_path: Path) -> None:
    compiled = compile_text(KITCHEN_SINK, tmp_path, catalogue_registry())
    keys = {role.name: (role.keys, role.per_candidate) for role in compiled.strategy.roles}
    assert keys == {"driver": (("driver_id",), True), "zone": (("zone",), False), "to": (("drop_zone",), False)}


def test_file_that_is_not_a_mapping_is_a_mistake(tmp_path: Path) -> None:
    for text in ("", "- 1\n", "just text\n"):
        with pytest.raises(Mistakes, match="a strategy must be a mapping"):
            compile_text(text, tmp_path, catalogue_registry())


def test_documented_strategy_compiles_and_uses_every_kind_of_section(tmp_path: Path) -> None:
    doc = (SHIPPED_STRATEGIES.parent / "STRATEGIES.md").read_text(encoding="utf-8").split("## The file")[1]
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "bonus.csv").write_text(doc.split("```csv\n")[1].split("```")[0])
    compiled = compile_text(doc.split("```yaml\n")[1].split("```")[0], tmp_path, shipped_registry())
    assert [warning.message for warning in compiled.warnings] == []
    assert [step.name for step in compiled.steps_before] == ["closeness", "night", "usual_rate", "bonus"]
    assert len(compiled.strategy.tables["bonus"].rows) == 3
    assert read_outline(tmp_path / "strategy.yaml").tables == {"bonus": "tables/bonus.csv"}


CHAIN = """
strategy: chain
version: 1
request: {zone: int, n: {type: int, unit: s, min: 1, max: 9}}
candidates: {key: id, fields: {eta_s: {type: 'double?', unit: s}, tags: list(string), seen: timestamp}}
models: {p: {uses: accept@champion, deadline: 8ms, on_late: base}}
let:
  last: by_zone.x + first
  first: n + n
  base: 0.5
  after: p + by_model.y
  recent: as_of - seen < duration('1h') && tags.exists(t, t == 'gold')
tables:
  by_model: {columns: [p_high, {out.y: double}], rows: m.csv}
  by_zone: {columns: [zone, first, out.x], rows: z.csv, on_gap: {x: 0}}
outputs: {both: after * 2.0, eta: eta_s}
rules:
  - {id: gone, drop_when: "eta_s == null || last > 100 || !recent"}
  - {id: fixed, when: after > 0.9, set: 1, add: 2, multiply: 3, owner: ops, kill_switch: ks.fixed}
score: after + eta_s
"""


def compile_chain(folder: Path, text: str = CHAIN) -> CompiledStrategy:
    (folder / "m.csv").write_text("p_high,out.y\ntrue,1\nfalse,2\n")
    (folder / "z.csv").write_text("zone,first,out.x\n1,*,10\n[2..5],< 9,20\n")
    return compile_text(text.replace("let:", "let:\n  p_high: p > 0.5"), folder, catalogue_registry())


def test_names_run_in_the_order_of_what_they_read_and_models_split_them(tmp_path: Path) -> None:
    compiled = compile_chain(tmp_path)
    assert [step.name for step in compiled.steps_before] == ["first", "base", "recent", "by_zone", "last"]
    assert [step.name for step in compiled.steps_after] == ["p_high", "by_model", "after"]
    assert compiled.read_after == {"base", "eta_s"}
    assert not compiled.on_late["p"].type.nullable


def test_drop_rules_narrow_what_runs_behind_them(tmp_path: Path) -> None:
    compiled = compile_chain(tmp_path)
    assert str(compiled.score.type) == "double"
    assert {output.name: str(output.program.type) for output in compiled.outputs} == {"both": "double", "eta": "double"}
    with pytest.raises(Mistakes, match="'eta_s' may be null"):
        compile_chain(tmp_path, CHAIN.replace("eta_s == null || ", ""))


def test_rule_keeps_all_that_is_said_of_it(tmp_path: Path) -> None:
    (fixed,) = compile_chain(tmp_path).adjusts
    assert (fixed.bit, fixed.on_unknown, fixed.kill_switch) == (1, "skip", "ks.fixed")
    assert [str(p) for p in (fixed.set, fixed.add, fixed.multiply)] == ["1: int", "2: int", "3: int"]


def test_units_and_bounds_reach_lets_and_tables(tmp_path: Path) -> None:
    facts = compile_chain(tmp_path).strategy.facts
    assert facts["n"] == Facts(unit="s", low=1.0, high=9.0)
    assert facts["first"] == Facts(unit="s", low=2.0, high=18.0)
    assert facts["by_zone.x"] == Facts(low=0.0, high=20.0)
    with pytest.raises(Mistakes, match="'first' is in s"):
        compile_chain(
            tmp_path,
            CHAIN.replace("eta: eta_s", "eta: first > zone_m").replace(
                "zone: int", "zone: int, zone_m: {type: int, unit: m}"
            ),
        )


def test_long_chain_of_names_compiles_and_a_long_cycle_is_told(tmp_path: Path) -> None:
    names = [f"n{at}" for at in range(1500)]
    lines = "\n".join(f"  {name}: {other} + 1" for name, other in zip(names, [*names[1:], "hour"], strict=True))
    head = "strategy: s\nversion: 1\nrequest: {hour: int}\ncandidates: {key: id}\nscore: double(n0)\nlet:\n"
    compiled = compile_text(head + lines, tmp_path, catalogue_registry())
    assert [step.name for step in compiled.steps_before] == names[::-1]
    with pytest.raises(Mistakes, match="'n0' needs itself: n0 → n1 → n2 → n3 → n4 → n5 → n6 → … → n0"):
        compile_text(head + lines.replace("hour", "n0"), tmp_path, catalogue_registry())


def test_large_file_is_refused_and_not_read_for_minutes(tmp_path: Path) -> None:
    with pytest.raises(Mistakes, match="are allowed"):
        compile_text("rules: [" + "{id: a}," * 60_000 + "]", tmp_path, catalogue_registry())


def test_column_that_is_no_output_is_a_mistake_and_no_more(tmp_path: Path) -> None:
    text = CHAIN.replace("{out.y: double}", "{outy: double}, {out.y: double, out.z: int}, {}")
    with pytest.raises(Mistakes) as caught:
        compile_chain(tmp_path, text)
    kinds = {item.kind for item in caught.value.items}
    assert "name" in kinds and "shape" in kinds

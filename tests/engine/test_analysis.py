"""What analysis says of strategies that compile: the full text of every finding, its severity and its place."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from engine.analysis import analyse
from engine.check import check_file, hash_if_good
from engine.loader import load_strategy
from engine.server import SHIPPED_STRATEGIES
from features.expr import Mistakes
from features.expr.causes import CAUSES
from tests.engine.support import catalogue_registry, compile_text, shipped_registry

GOLDEN = Path(__file__).parents[1] / "golden" / "analysis"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/input.yaml"))
CODES = {
    "gap", "overlap", "unreachable-row", "duplicate-row", "no-effect", "never-fires", "always-fires", "shadowed",
    "overwritten", "write-conflict", "unused", "undeclared-missing",
}  # fmt: skip


def findings(case: str) -> Mistakes:
    path = GOLDEN / case / "input.yaml"
    compiled = load_strategy(path, catalogue_registry().catalogue, schema_fingerprint="", name=f"{case}.yaml")
    return Mistakes(analyse(compiled))


@pytest.mark.parametrize("case", CASES)
def test_all_findings_of_a_strategy_are_told(case: str) -> None:
    assert f"{findings(case)}\n".lstrip("\n") == (GOLDEN / case / "findings.txt").read_text()


def test_the_cases_have_every_code() -> None:
    found = {mistake.kind for case in CASES for mistake in findings(case).items}
    assert found == CODES and set(CAUSES) >= CODES
    assert len(CASES) >= 15


@pytest.mark.parametrize("name", ["express_dispatch", "rider_coupon"])
def test_shipped_strategies_have_no_findings_and_take_little_time(name: str) -> None:
    registry = shipped_registry()
    path = SHIPPED_STRATEGIES / f"{name}.yaml"
    compiled = load_strategy(path, registry.catalogue, schema_fingerprint=registry.fingerprint)
    started = time.process_time()
    assert analyse(compiled) == []
    assert time.process_time() - started < 1.0


def test_errors_of_analysis_keep_a_strategy_from_being_applied(tmp_path: Path) -> None:
    registry = catalogue_registry()
    path = tmp_path / "one.yaml"
    text = "strategy: one\nversion: 1\nrequest: {hour: int}\ncandidates: {key: id, fields: {}}\nscore: 1.0\nrules:\n"
    path.write_text(text + "  - {id: never, drop_when: hour > 3 && hour < 2}\n")
    assert [mistake.kind for mistake in check_file(path, registry).errors] == ["never-fires"]
    with pytest.raises(Mistakes, match="rule never never fires"):
        hash_if_good(registry)(path, "one")
    path.write_text(text + "  - {id: a, drop_when: hour > 3}\n  - {id: b, drop_when: hour > 5}\n")
    assert [mistake.kind for mistake in check_file(path, registry).warnings] == ["shadowed"]
    assert len(hash_if_good(registry)(path, "one")) == 64


def test_fifty_rules_and_a_thousand_rows_take_a_few_seconds(tmp_path: Path) -> None:
    rows = [f"{at % 250},[{at % 20}..{at % 20 + 1 + at % 5}),{('gold', 'silver')[at % 2]},0.{at}" for at in range(999)]
    (tmp_path / "t.csv").write_text("\n".join(["zone,hour,tier,out.points", *rows, "*,*,*,0.0"]) + "\n")
    rules = [
        f"  - {{id: r{at}, when: 'eta_s * {at + 1}.0 > 700.0 && hour != {at % 24}', add: 0.1}}" for at in range(50)
    ]
    head = "strategy: big\nversion: 1\nrequest: {zone: int, hour: int}\ncandidates: {key: id, fields: {tier: string, eta_s: double}}\n"
    tables = (
        "tables: {bonus: {columns: [zone, hour, tier, out.points], rows: t.csv}}\nscore: bonus.points + eta_s\nrules:\n"
    )
    compiled = compile_text(head + tables + "\n".join(rules) + "\n", tmp_path, catalogue_registry())
    started = time.process_time()
    found = analyse(compiled)
    assert time.process_time() - started < 6.0
    assert {mistake.kind for mistake in found} <= {"unreachable-row", "duplicate-row"}

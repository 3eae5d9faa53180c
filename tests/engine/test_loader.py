"""Strategy files: the full text of every mistake, and what a right file compiles to."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.compiler import names_of
from engine.loader import load_strategy
from engine.server import SHIPPED_STRATEGIES
from features.expr import Mistakes
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
    assert len(CASES) >= 5


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
    keys = {role.name: (role.key, role.per_candidate) for role in compiled.strategy.roles}
    assert keys == {"driver": ("driver_id", True), "zone": ("zone", False), "to": ("drop_zone", False)}


def test_file_that_is_not_a_mapping_is_a_mistake(tmp_path: Path) -> None:
    for text in ("", "- 1\n", "just text\n"):
        with pytest.raises(Mistakes, match="a strategy must be a mapping"):
            compile_text(text, tmp_path, catalogue_registry())

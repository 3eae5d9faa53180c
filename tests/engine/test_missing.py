"""The missing-data report against faults: everything is taken away in turn, and decisions do nothing that it does not say."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from engine.analysis.absences import Absence, absences
from engine.analysis.missing import (
    DROPS,
    FIRES,
    LOST,
    NOT_REACHED,
    PASSES,
    UNKNOWN,
    VALUE,
    Effect,
    missing_report,
)
from engine.analysis.world import World
from engine.decide import LiveStrategy
from engine.loader import load_strategy
from engine.model import Model
from engine.row import RowResult
from engine.server import SHIPPED_STRATEGIES
from features.registry import Registry
from tests.engine.analysed import rows_of
from tests.engine.random_strategies import random_strategy
from tests.engine.support import (
    KITCHEN_SINK,
    catalogue_registry,
    compile_text,
    make_live,
    shipped_registry,
    sink_models,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "analysis"


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    return sink_models(tmp_path_factory.mktemp("models"))


def seen_codes(live: LiveStrategy, result: RowResult) -> dict[str, set[str]]:
    """What really happened to one candidate, by reader, in the words of the report."""
    out: dict[str, set[str]] = {}
    for bit, rule in enumerate(live.compiled.strategy.rules):
        if result.reached >> bit & 1:
            fired, unknown = result.fired >> bit & 1, result.unknown >> bit & 1
            codes = ({DROPS if rule.drop else FIRES} if fired else set()) | ({UNKNOWN} if unknown else set())
            out[f"rule {rule.id}"] = codes or {PASSES}
    if result.alive:
        out["score"] = {VALUE if result.base is not None and math.isfinite(result.base) else LOST}
        if result.reason is None:
            for name, value in result.outputs.items():
                broken = value is None or (isinstance(value, float) and not math.isfinite(value))
                out[f"output {name}"] = {LOST if broken else VALUE}
    return out


def check_absence(live: LiveStrategy, gone: Absence, effects: tuple[Effect, ...], seeds: range) -> Counter[str]:
    """Take it away, decide, and compare. Returns how often each code was seen."""
    if gone.kind == "model":
        live = dataclasses.replace(live, models={**live.models, gone.name: None})
    said = {effect.reader: effect.codes for effect in effects}
    seen: Counter[str] = Counter()
    for seed in seeds:
        rows = [result for _, result in rows_of(live, seed, gone)]
        if not any(live.models.values()):  # what a model makes of a feature is the model's affair
            for result, (_, before) in zip(rows, rows_of(live, seed, nans=False), strict=True):
                check_others(live, gone, set(said), before, result)
        for result in rows:
            found = seen_codes(live, result)
            for reader, codes in said.items():
                where = f"{live.compiled.name}, seed {seed}, without {gone.name}: {reader} {found.get(reader)}"
                assert found.get(reader, set()) <= codes - {NOT_REACHED}, where
                seen.update(found.get(reader, ()))
                seen[NOT_REACHED] += codes == {NOT_REACHED}
    return seen


def check_others(live: LiveStrategy, gone: Absence, readers: set[str], before: RowResult, result: RowResult) -> None:
    """Rules and scores that the report does not name are as they were."""
    for bit, rule in enumerate(live.compiled.strategy.rules):
        if f"rule {rule.id}" not in readers and before.reached & result.reached & 1 << bit:
            assert (before.fired ^ result.fired) >> bit & 1 == 0, f"{gone.name} changes rule {rule.id}"
            assert (before.unknown ^ result.unknown) >> bit & 1 == 0, f"{gone.name} changes rule {rule.id}"
    if "score" not in readers and before.alive and result.alive:
        assert repr(before.base) == repr(result.base), f"{gone.name} changes the score"


def check_strategy(live: LiveStrategy, seeds: range) -> Counter[str]:
    world = World(live.compiled)
    seen: Counter[str] = Counter()
    for gone, line in zip(absences(world), missing_report(live.compiled), strict=True):
        assert gone.name == line.name
        if line.effects or gone.kind != "feature":
            seen += check_absence(live, gone, line.effects, seeds)
    return seen


def live_of(name: str, folder: Path, models: Mapping[str, Model]) -> LiveStrategy:
    if name == "sink":
        registry: Registry = catalogue_registry()
        return make_live(compile_text(KITCHEN_SINK, folder, registry), registry, models)
    registry = shipped_registry()
    path = SHIPPED_STRATEGIES / f"{name}.yaml"
    return make_live(load_strategy(path, registry.catalogue, schema_fingerprint=""), registry)


@pytest.mark.parametrize("name", ["express_dispatch", "rider_coupon", "sink"])
def test_a_strategy_does_what_its_report_says(name: str, tmp_path: Path, models: dict[str, Model]) -> None:
    assert check_strategy(live_of(name, tmp_path, models), range(4))[VALUE] > 0


def test_random_strategies_do_what_their_reports_say(tmp_path: Path, models: dict[str, Model]) -> None:
    seen: Counter[str] = Counter()
    for seed in range(8):
        print("seed", seed)
        compiled = random_strategy(seed, tmp_path, catalogue_registry())
        live = make_live(compiled, catalogue_registry(), models if seed % 2 else None)
        seen += check_strategy(live, range(10 * seed, 10 * seed + 2))
    assert {DROPS, FIRES, PASSES, UNKNOWN, VALUE, LOST} <= set(seen)


@pytest.mark.slow
def test_random_strategies_do_what_their_reports_say_in_the_long_run(tmp_path: Path, models: dict[str, Model]) -> None:
    for seed in range(100, 200):
        print("seed", seed)
        compiled = random_strategy(seed, tmp_path, catalogue_registry())
        live = make_live(compiled, catalogue_registry(), models if seed % 2 else None)
        check_strategy(live, range(10 * seed, 10 * seed + 6))


def test_the_report_of_a_strategy_reads_as_expected() -> None:
    """Every way of saying what absence means, in one strategy."""
    path = GOLDEN / "honest" / "input.yaml"
    compiled = load_strategy(path, catalogue_registry().catalogue, schema_fingerprint="", name="honest.yaml")
    lines = [
        f"{line.name} | {line.becomes} | {effect.reader} | {' '.join(sorted(effect.codes))} | {effect.text} | {effect.declared_by}"
        for line in missing_report(compiled)
        for effect in line.effects
    ]
    assert "\n".join(lines) + "\n" == (GOLDEN / "honest" / "missing.txt").read_text()


def test_what_no_on_unknown_declares_says_nobody(tmp_path: Path) -> None:
    text = """
strategy: one
version: 1
request: {zone: int}
candidates: {key: id, fields: {eta_s: double}}
features: {zone: zone_stats}
rules:
  - {id: busy, drop_when: 'div(10, zone.requests ?? 0) > 1'}
  - {id: said, when: 'div(10, zone.requests ?? 0) > 1', add: 1, on_unknown: skip}
score: eta_s
"""
    effects = {e.reader: e for e in missing_report(compile_text(text, tmp_path, catalogue_registry()))[0].effects}
    assert effects["rule busy"].codes == {UNKNOWN} and effects["rule busy"].declared_by == ""
    assert effects["rule said"].codes == {UNKNOWN} and effects["rule said"].declared_by == "on_unknown"

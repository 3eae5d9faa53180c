"""What a strategy file says of layers and experiments arrives as it was written; its mistakes are golden cases."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import engine
from engine.strategy import Layer
from features.expr import Mistakes
from tests.engine.support import catalogue_registry, compile_text

HEAD = "strategy: s\nversion: 1\nrequest: {hour: int, pickup_zone: int}\ncandidates: {key: d}\n"
PARAMS = "score: params.w\nparams: {w: {type: double, default: 1.0, layer: ranking}}\n"


def documented() -> str:
    doc = (Path(engine.__file__).parent / "STRATEGIES.md").read_text(encoding="utf-8")
    found = re.search(r"## Experiments.*?```yaml\n(.*?)```", doc, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_documented_example_is_what_it_says(tmp_path: Path) -> None:
    text = f"{HEAD}score: params.weight + params.bonus\n{documented()}"
    compiled = compile_text(text, tmp_path, catalogue_registry())
    heavier, by_zone = compiled.strategy.experiments
    assert (heavier.kind, heavier.unit, heavier.exposure, heavier.salt) == ("hash", "order_id", 0.2, "s:heavier")
    assert heavier.where is not None and heavier.where.text == "city == 'nyc' && hour >= 17"
    assert [(arm.name, arm.share, dict(arm.set)) for arm in heavier.arms] == [
        ("control", 0.5, {}),
        ("heavy", 0.5, {"weight": 0.7}),
    ]
    assert (by_zone.kind, by_zone.region, by_zone.window_ms, by_zone.offset) == (
        "switchback",
        "pickup_zone",
        1_800_000,
        "hashed",
    )
    assert compiled.strategy.layers == {
        "ranking": Layer(name="ranking", holdout=0.05, salt="s:ranking:holdout"),
        "core": Layer(name="core", holdout=0.0, salt="s:core:holdout"),
    }
    assert compiled.layers_read == ("core", "ranking")


@pytest.mark.parametrize(
    ("written", "window_ms"),
    [("250ms", 250), ("90s", 90_000), ("30m", 1_800_000), ("2h", 7_200_000), ("1d", 86_400_000)],
)
def test_windows_are_durations(written: str, window_ms: int, tmp_path: Path) -> None:
    section = f"experiments: {{e: {{layer: ranking, kind: switchback, region: city, window: {written}, arms: {{a: {{share: 1}}}}}}}}"
    compiled = compile_text(f"{HEAD}{PARAMS}{section}", tmp_path, catalogue_registry())
    assert compiled.strategy.experiments[0].window_ms == window_ms


def test_salts_may_be_written(tmp_path: Path) -> None:
    section = "layers: {ranking: {salt: of the layer}}\nexperiments: {e: {layer: ranking, unit: city, salt: mine, arms: {a: {share: 1}}}}"
    strategy = compile_text(f"{HEAD}{PARAMS}{section}", tmp_path, catalogue_registry()).strategy
    assert (strategy.experiments[0].salt, strategy.layers["ranking"].salt) == ("mine", "of the layer")


@pytest.mark.parametrize("unit", ["order_id", "city", "product", "hour", "pickup_zone"])
def test_a_unit_is_anything_that_every_request_has(unit: str, tmp_path: Path) -> None:
    section = f"experiments: {{e: {{layer: ranking, unit: {unit}, arms: {{a: {{share: 1}}}}}}}}"
    assert compile_text(f"{HEAD}{PARAMS}{section}", tmp_path, catalogue_registry()).strategy.experiments[0].unit == unit


@pytest.mark.parametrize("where", ["params.w > 0.5", "d == 'x'", "hour", "hour > 'x'", "hour >"])
def test_where_reads_what_is_known_of_a_request_and_is_a_condition(where: str, tmp_path: Path) -> None:
    section = (
        f'experiments:\n  e:\n    layer: ranking\n    unit: city\n    where: "{where}"\n    arms: {{a: {{share: 1}}}}\n'
    )
    with pytest.raises(Mistakes) as caught:
        compile_text(f"{HEAD}{PARAMS}{section}", tmp_path, catalogue_registry())
    assert len(caught.value.items) == 1 and caught.value.items[0].line == 11  # the place of the expression in the YAML

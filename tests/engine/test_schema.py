"""The published JSON Schema: up to date, and of one mind with the loader's own check of structure."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from engine.fields import Fields
from engine.schema import PUBLISHED, schema_text, strategy_schema
from engine.sections import STRATEGY
from engine.server import SHIPPED_STRATEGIES
from features.expr import Mistake
from features.yaml_source import MapNode, Node, ScalarNode, SeqNode, parse_yaml
from tests.engine.support import KITCHEN_SINK

VALIDATOR = jsonschema.Draft202012Validator(strategy_schema())
FULL = """
strategy: full
version: 3
owner: marketplace
shadow_of: express_dispatch
scope: {city: nyc, product: '*'}
request: {zone: int, surge: {type: 'double?', unit: '1', min: 0, max: 9}, tags: list(string), asked: timestamp}
candidates: {key: driver_id, fields: {eta_s: {type: 'double?', unit: s, min: 0}, tier: string}}
features: {zone: zone_stats, from: {view: zone_stats, key: zone}}
params:
  w: {type: double, default: 0.5, min: 0, max: 1, unit: '1', layer: core}
  n: {type: int, default: 3}
  on: {type: bool, default: false, layer: other}
  mode: {type: string, default: ''}
models: {p: {uses: accept@champion, deadline: 8ms, on_late: 0.5}, q: {uses: a@v0001, deadline: 0.5s}}
let: {rush: surge > 2.0, one: 1, yes_: true}
tables:
  bonus: {hit: collect, collect: sum, on_gap: {cents: 0, label: null}, columns: [zone, out.cents, {out.label: 'string?'}], rows: tables/bonus.csv}
  other: {columns: [zone, out.x], rows: x.csv, on_gap: null}
rules:
  - {id: a, drop_when: eta_s == null, why: no route, owner: ops, kill_switch: ks.a}
  - {id: b, when: rush, set: 1, add: 0.5, multiply: w, on_unknown: fail_row}
score: 1.0
rank: {by: score, ties: driver_id, keep: 5}
explore: {kind: top_k_softmax, temperature: 0.5, top_k: 3, salt: s}
outputs: {minutes: eta_s / 60.0}
layers: {core: {holdout: 0.05, salt: x}}
experiments:
  e: {layer: core, unit: zone, exposure: 0.2, where: zone > 3, arms: {a: {share: 0.5, set: {params.w: 0.1}}, b: {share: 0.5}}}
  s: {layer: other, kind: switchback, region: zone, window: 30m, offset: hashed, arms: {a: {share: 1}}}
tests: tests/full.yaml
"""


def structure(root: Node) -> list[Mistake]:
    fields = Fields()
    fields.check(root, STRATEGY, "a strategy")
    return fields.mistakes


def as_json(node: Node) -> Any:
    if isinstance(node, MapNode):
        return {key.text: as_json(value) for key, value in node.items()}
    if isinstance(node, SeqNode):
        return [as_json(item) for item in node]
    assert isinstance(node, ScalarNode)
    return node.value


def test_published_schema_is_up_to_date_and_a_schema() -> None:
    assert PUBLISHED.read_text(encoding="utf-8") == schema_text(), "run: python -m engine.schema"
    jsonschema.Draft202012Validator.check_schema(json.loads(schema_text()))


@pytest.mark.parametrize("path", sorted(SHIPPED_STRATEGIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_strategies_fit(path: Path) -> None:
    root = parse_yaml(path.read_text(), path.name)
    assert not structure(root)
    assert not list(VALIDATOR.iter_errors(as_json(root)))


@pytest.mark.parametrize("text", [FULL, KITCHEN_SINK], ids=["full", "kitchen_sink"])
def test_file_with_every_section_fits(text: str) -> None:
    root = parse_yaml(text)
    assert [mistake.format() for mistake in structure(root)] == []
    assert not list(VALIDATOR.iter_errors(as_json(root)))


def test_every_key_is_in_the_file_with_every_section() -> None:
    """So that the mutations below reach all of the description."""
    keys: set[str] = set()

    def described(schema: Any) -> None:
        if isinstance(schema, dict):
            keys.update(schema.get("properties", {}))
            for part in schema.values():
                described(part)
        elif isinstance(schema, list):
            for part in schema:
                described(part)

    described(strategy_schema())
    written = {key for key in keys if f"{key}:" in FULL}
    assert keys - written == {"epsilon"}  # it belongs to another kind of explore


ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2.5, 3.0, "", " ", "x", "int", "double?", "list(int)?", "s", "8ms", "0ms", "30m", "a.csv",
    "/a.csv", "../a.csv", "first", "collect", "epsilon", "switchback", "params", "params.w", "out.x", [], ["x"], {}, {"x": 1},
]  # fmt: skip
KEYS = [
    "x",
    "2x",
    "params",
    "id",
    "min",
    "type",
    "set",
    "add",
    "when",
    "drop_when",
    "collect",
    "epsilon",
    "unit",
    "window",
    "out.y",
]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a value."""
    out: list[tuple[Any, Any]] = []
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        out += [(value, key), *places(part)]
    return out


def mutate(rng: random.Random, value: Any) -> None:
    """One structural change somewhere."""
    container, key = rng.choice(places(value))
    how = rng.choice(["replace", "replace", "remove", "add", "rename", "swap"])
    if how == "replace":
        container[key] = copy.deepcopy(rng.choice(ODD))
    elif how == "remove":
        del container[key]
    elif how == "swap":
        other, place = rng.choice(places(value))
        container[key] = copy.deepcopy(other[place])
    elif isinstance(container, list):
        container.append(copy.deepcopy(rng.choice(ODD)))
    elif how == "rename":
        container[rng.choice(KEYS)] = container.pop(key)
    else:
        container[rng.choice(KEYS)] = copy.deepcopy(rng.choice(ODD))


@pytest.mark.parametrize(
    "seeds", [range(200), pytest.param(range(200, 5000), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_schema_refuses_exactly_what_the_loader_refuses_structurally(seeds: range) -> None:
    refused = 0
    shipped = [path.read_text() for path in sorted(SHIPPED_STRATEGIES.glob("*.yaml"))]
    texts = [as_json(parse_yaml(text)) for text in (FULL, KITCHEN_SINK, *shipped)]
    for seed in seeds:
        rng = random.Random(seed)
        value = copy.deepcopy(rng.choice(texts))
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            mutate(rng, value)
        # Quoted where YAML 1.1 would: our reader takes quoted text for text and the rest by the core schema.
        text = yaml.safe_dump(value, sort_keys=False, default_style=None, allow_unicode=True)
        root = parse_yaml(text)
        found = structure(root)
        by_schema = not VALIDATOR.is_valid(as_json(root))
        refused += bool(found)
        assert bool(found) == by_schema, (
            f"seed {seed}\n{text}\nloader: {[m.format() for m in found]}\nschema: {[e.message for e in VALIDATOR.iter_errors(as_json(root))]}"
        )
    assert len(seeds) // 3 < refused < len(seeds)

"""Roles whose entity has a key of several columns: which fields hold it, and which rows are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.inputs import keys_of
from engine.request import parse
from engine.strategy import CompiledStrategy
from features.expr import Mistakes
from features.loader import load_texts
from features.registry import Registry, local_registry
from tests.engine.support import compile_text
from tests.features.test_loader import SOURCES, VIEW

ENTITIES = "pair: {keys: {zone: int32, driver_id: string}}\n"
STRATEGY = """\
strategy: s
version: 1
request: {zone: 'int?', spot: string}
candidates: {key: driver_id, fields: {near: int}}
features: {pair: %s}
score: double(pair.n_5m ?? 0)
rules: []
"""


def compiled(folder: Path, role: str) -> CompiledStrategy:
    return compile_text(STRATEGY % role, folder, registry())


def registry() -> Registry:
    view = VIEW.replace("entity: driver", "entity: pair")
    return local_registry(load_texts({"entities.yaml": ENTITIES, "sources.yaml": SOURCES, "views/v.yaml": view}))


@pytest.mark.parametrize(
    ("role", "keys", "per_candidate"),
    [
        ("v", ("zone", "driver_id"), True),
        ("{view: v, key: {zone: near}}", ("near", "driver_id"), True),
        ("{view: v, key: {driver_id: spot}}", ("zone", "spot"), False),
    ],
)
def test_each_column_is_held_by_the_field_named_or_called_as_it(
    tmp_path: Path, role: str, keys: tuple[str, ...], per_candidate: bool
) -> None:
    (found,) = compiled(tmp_path, role).strategy.roles
    assert (found.keys, found.per_candidate) == (keys, per_candidate)


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ("{view: v, key: spot}", "the key of entity 'pair' has 2 columns"),
        ("{view: v, key: {zon: near}}", "the key of entity 'pair' has no column 'zon'"),
        ("{view: v, key: {zone: spot}}", "the key of entity 'pair' is int32, but 'spot' is string"),
        ("{view: v, key: {zone: nera}}", "no field 'nera' holds the key of entity 'pair'"),
    ],
)
def test_each_mistake_of_a_composite_key_is_named(tmp_path: Path, role: str, message: str) -> None:
    with pytest.raises(Mistakes) as caught:
        compiled(tmp_path, role)
    assert any(message in item.message for item in caught.value.items), str(caught.value)


@pytest.mark.parametrize(
    ("role", "zone", "wanted"),
    [
        ("v", 7, [(7, "d-1"), (7, "d-2")]),
        ("v", None, None),
        ("{view: v, key: {zone: near}}", None, [(1, "d-1"), (2, "d-2")]),
        ("{view: v, key: {driver_id: spot}}", 7, [(7, "here")]),
    ],
)
def test_keys_are_read_row_by_row_and_a_null_part_reads_nothing(
    tmp_path: Path, role: str, zone: int | None, wanted: list[Any] | None
) -> None:
    strategy = compiled(tmp_path, role)
    body: dict[str, Any] = {"order_id": "o", "city": "nyc", "product": "pool", "as_of_ms": 0}
    body |= {"request": {"zone": zone, "spot": "here"}, "candidates": {"driver_id": ["d-1", "d-2"], "near": [1, 2]}}
    found = keys_of(strategy.strategy.roles[0], parse(strategy, json.dumps(body).encode()))
    assert (None if found is None else list(found)) == wanted

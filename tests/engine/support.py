"""What the engine's tests share: a small catalogue, strategies from text, real tiny ONNX models, random requests."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.decide import LiveStrategy
from engine.loader import load_strategy
from engine.model import Model, load_model, model_hash
from engine.rules import ColumnRules
from engine.strategy import CompiledStrategy
from features.expr import Type
from features.loader import SHIPPED, load_catalogue
from features.read_plan import ReadPlan, compile_read_plan
from features.registry import Registry, local_registry
from features.rows import FeatureBatch, Status, empty_column
from features.spec import Key

HERE = Path(__file__).parent
AS_OF_MS = 1_725_000_000_000

KITCHEN_SINK = """
strategy: kitchen_sink
version: 3
scope: {city: '*', product: express}
request: {order_id: string, zone: int, drop_zone: 'int?', fare_cents: int, hour: int, note: 'string?'}
candidates:
  key: driver_id
  fields: {eta_s: 'double?', distance_m: double, state: string, rank_no: int, vip: 'bool?'}
features:
  driver: driver_stats
  zone: zone_stats
  to: {view: zone_stats, key: drop_zone}
params:
  max_eta_s: {type: double, default: 900, min: 60, max: 3600, layer: core}
  w_rate:    {type: double, default: 0.5, layer: core}
  use_model: {type: bool, default: false, layer: ranking}
  divisor:   {type: int, default: 3, layer: odd}
models:
  p_accept: {uses: accept@champion, deadline: 5s}
  p_cancel: {uses: cancel@champion, deadline: 5s, on_late: driver.accept_rate / 2.0}
let:
  rush: hour >= 17 && hour < 20
  demand: double(zone.requests ?? 0) + double(to.requests ?? 0)
  pressure: demand / 100.0
  steps: div(60, rank_no - 5)
  blend: (p_accept ?? 0.4) * 2.0 - p_cancel
rules:
  - {id: not_idle,    drop_when: "state != 'idle'"}
  - {id: unknown_eta, drop_when: eta_s == null, why: no routing answer}
  - {id: odd_one,     drop_when: 'rank_no % params.divisor == 1'}
  - {id: too_far,     drop_when: eta_s > params.max_eta_s || distance_m > 20000.0}
  - {id: vip_bonus,   when: 'vip ?? false', add: 0.25}
  - {id: rush_hour,   when: rush && distance_m < 3000.0, multiply: 1.0 + pressure}
  - {id: breaks,      when: 'div(100, rank_no) > 10', add: 'double(div(1000, rank_no - 3))', multiply: 2}
  - {id: named,       when: "(driver.last_type ?? '') == 'completed' && (note ?? 'x') != 'skip'", add: -0.1}
  - {id: near_five,   when: "(steps ?? 1000) > 20", add: 0.01}
score: |
  (params.use_model
    ? blend
    : params.w_rate * driver.accept_rate)
  + (1.0 - eta_s / params.max_eta_s)
  + (distance_m < 10.0 ? 1e308 * distance_m : 0.0)
rank: {by: score, ties: rank_no, keep: 7}
explore: {kind: softmax, temperature: 0.3}
experiments:
  learned: {layer: ranking, unit: order_id, arms: {rules: {share: 0.5}, model: {share: 0.5, set: {params.use_model: true}}}}
  odd:
    layer: odd
    unit: zone
    exposure: 0.5
    arms: {zero: {share: 0.4, set: {params.divisor: 0}}, five: {share: 0.6, set: {params.divisor: 5}}}
"""


def catalogue_registry() -> Registry:
    """The small catalogue beside this file, as if it were applied."""
    return local_registry(load_catalogue(HERE / "catalogue"))


def shipped_registry() -> Registry:
    return local_registry(load_catalogue(SHIPPED))


def compile_text(text: str, folder: Path, registry: Registry, name: str = "strategy.yaml") -> CompiledStrategy:
    path = folder / name
    path.write_text(text)
    return load_strategy(path, registry.catalogue, schema_fingerprint=registry.fingerprint, name=name)


def make_live(
    compiled: CompiledStrategy, registry: Registry, models: Mapping[str, Model | None] | None = None
) -> LiveStrategy:
    found = {name: (models or {}).get(name) for name in compiled.strategy.models}
    return LiveStrategy(
        compiled=compiled,
        plan=compile_read_plan(registry, {role.name: role.view.name for role in compiled.strategy.roles}),
        models=found,
        broken_models=frozenset(),
        rules=ColumnRules(compiled),
    )


def write_model(
    models_dir: Path,
    name: str,
    version: str,
    entries: Sequence[Mapping[str, Any]],
    names: Mapping[str, str],
    *,
    weights: Sequence[float],
    bias: float = 0.0,
    nan_bias: bool = False,
) -> Path:
    """A real model directory: p = sigmoid(x · weights + bias), as an ONNX graph, hashed and with golden rows."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    width = len(entries)
    weight_F1 = np.asarray(weights, dtype=np.float32).reshape(width, 1)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["product"]),
            helper.make_node("Add", ["product", "b"], ["logit"]),
            helper.make_node("Sigmoid", ["logit"], ["wide"]),
            helper.make_node("Squeeze", ["wide", "axis"], ["p"]),
        ],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])],
        [helper.make_tensor_value_info("p", TensorProto.FLOAT, ["n"])],
        [
            numpy_helper.from_array(weight_F1, "w"),
            numpy_helper.from_array(np.array([np.nan if nan_bias else bias], dtype=np.float32), "b"),
            numpy_helper.from_array(np.array([1], dtype=np.int64), "axis"),
        ],
    )
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    folder = models_dir / name / "versions" / version
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    x_NF = rng.normal(size=(5, width)).astype(np.float32)
    p_N = 1.0 / (1.0 + np.exp(-(x_NF.astype(np.float64) @ weight_F1.astype(np.float64)).reshape(-1) - bias))
    contents = {
        "model.onnx": built.SerializeToString(),
        "program.json": json.dumps(list(entries)).encode(),
        "golden.json": json.dumps({"x": x_NF.tolist(), "p": p_N.tolist(), "atol": 1e-5}).encode(),
    }
    files = {file: hashlib.sha256(raw).hexdigest() for file, raw in contents.items()}
    manifest = {
        "format": 1,
        "name": name,
        "version": version,
        "names": dict(names),
        "files": files,
        "model_hash": model_hash(files),
    }
    contents["manifest.json"] = json.dumps(manifest).encode()
    onnx.checker.check_model(built)
    for file, raw in contents.items():
        (folder / file).write_bytes(raw)
    return folder


def promote(models_dir: Path, name: str, version: str) -> None:
    """Move the champion pointer the way publishing does: written beside, then renamed."""
    aside = models_dir / name / "champion.new"
    aside.write_text(f"{version}\n")
    os.replace(aside, models_dir / name / "champion")


SINK_ENTRIES = [
    {"name": "eta", "expr": "(eta_s ?? 300.0) / 600.0", "fill": 0.5},
    {"name": "rate", "expr": "driver.accept_rate", "fill": 0.5},
    {"name": "offers", "expr": "driver.offers", "fill": -1.0},
    {"name": "vip", "expr": "vip", "fill": 0.0},
    {"name": "zone_fare", "expr": "zone.avg_fare", "fill": 2.0},
    {"name": "late", "expr": "hour > 18", "fill": 0.0},
]
SINK_NAMES = {
    "eta_s": "double?",
    "driver.accept_rate": "double",
    "driver.offers": "int?",
    "vip": "bool?",
    "zone.avg_fare": "double?",
    "hour": "int",
}


def sink_models(models_dir: Path) -> dict[str, Model]:
    """Two real models for the strategy above."""
    first = write_model(
        models_dir, "accept", "v0001", SINK_ENTRIES, SINK_NAMES, weights=[-1.0, 2.0, 0.01, 0.5, 0.001, 0.2]
    )
    second = write_model(models_dir, "cancel", "v0007", SINK_ENTRIES[:2], SINK_NAMES, weights=[1.0, -1.5], bias=0.3)
    return {"p_accept": load_model(first), "p_cancel": load_model(second)}


def random_body(rng: random.Random, compiled: CompiledStrategy, num_candidates: int) -> dict[str, Any]:
    """A body that fits the strategy: nulls where they are allowed, values that reach every rule."""
    strategy = compiled.strategy

    def value(name: str, kind: Type) -> Any:
        if kind.nullable and rng.random() < 0.2:
            return None
        if kind.kind == "string":
            return rng.choice(["idle", "idle", "idle", "on_trip", "skip", "x y"])
        if kind.kind == "bool":
            return rng.random() < 0.5
        if kind.kind == "int":
            return rng.randrange(24) if name in ("hour", "rank_no") else rng.randrange(0, 3000)
        return rng.choice([rng.random() * 1500.0, 5.0, 1000.0 * rng.randrange(3)])

    request = {name: value(name, kind) for name, kind in strategy.request.items() if name != "order_id"}
    candidates: dict[str, list[Any]] = {
        name: [value(name, kind) for _ in range(num_candidates)]
        for name, kind in strategy.candidate_fields.items()
        if name != strategy.candidate_key
    }
    keys = [f"c-{number}" for number in rng.sample(range(10_000), num_candidates)]
    return {
        "order_id": f"o-{rng.randrange(10**9)}",
        "as_of_ms": AS_OF_MS,
        "city": "nyc",
        "product": "express",
        "request": request,
        "candidates": {strategy.candidate_key: keys, **candidates},
    }


class RandomFeatures:
    """Serves random values, nulls and defaults for whatever is asked, the same for the same seed."""

    def __init__(self, compiled: CompiledStrategy, seed: int, *, down: bool = False, old: bool = False) -> None:
        self.compiled, self.seed, self.down, self.old = compiled, seed, down, old

    def read(self, plan: ReadPlan, keys: Mapping[str, Sequence[Key]], as_of_ms: int) -> dict[str, FeatureBatch] | None:
        if self.down:
            return None
        rng = np.random.default_rng(self.seed)
        through = as_of_ms - (10 * 24 * 3_600_000 if self.old else 1_000)
        return {
            role.name: random_batch(rng, role.view.features, role.view.name, len(keys[role.name]), through)
            for role in self.compiled.strategy.roles
        }


def random_batch(rng: np.random.Generator, specs: Any, view: str, num_rows: int, through: int) -> FeatureBatch:
    columns, valid = {}, {}
    statuses = np.zeros((num_rows, len(specs)), dtype=np.uint8)
    for at, spec in enumerate(specs):
        column = empty_column(spec.type, num_rows)
        known = rng.random(num_rows) < 0.7
        if spec.type == "string":
            column[:] = rng.choice(np.array(["completed", "offered", "'"], dtype=object), num_rows)
        elif spec.type == "int":
            column[:] = rng.integers(0, 40, num_rows)
        else:
            column[:] = rng.random(num_rows)
        if spec.default is not None:
            column[~known] = spec.default
            statuses[:, at] = np.where(known, Status.PRESENT, Status.DEFAULT)
            known = np.ones(num_rows, dtype=bool)
        else:
            statuses[:, at] = np.where(known, Status.PRESENT, rng.choice([Status.NULL, Status.MISSING], num_rows))
        columns[spec.name], valid[spec.name] = column, known
    return FeatureBatch(
        view=view,
        generation=1,
        applied_through_ms=through,
        names=tuple(spec.name for spec in specs),
        types=tuple(spec.type for spec in specs),
        columns=columns,
        valid=valid,
        statuses=statuses,
        ages_ms=np.zeros((num_rows, len(specs)), dtype=np.int64),
    )

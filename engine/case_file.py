"""The tests of a strategy as written: a YAML file of cases, each a request with what was known, and what must follow.

    defaults:                                   # for every case of this file, where it does not say otherwise
      request: {pickup_zone: 7, fare_cents: 1850}
      candidate: {state: idle}
      features: {driver: {accept_rate_24h: 0.8}}
    cases:
      - name: a driver whose routing has no answer is left out
        candidates:
          d-1: {eta_s: 90}
          d-2: {eta_s: null}
        features: {driver: {d-1: {offers_1h: stale}}, pickup_zone: {requested_15m: 40}}    # or `features: away`
        models: {p_accept: {d-1: 0.7}}          # or `late`, `absent` (the default), or one number for all
        params: {max_eta_s: 600}                # instead of the default; arms: {learned_ranking: model} pins an arm
        switches: [ks.vip]                      # rules by id or by kill_switch that are switched off
        expect:
          chosen: d-1
          dropped: {d-2: unknown_eta}           # all of them, with the reason
          scores: {d-1: 0.9}

What is not given is absent: a nullable field is null, a feature is missing (or its default), a model has no champion. This
file reads and checks; `engine/strategy_test.py` decides. Every mistake of the file has its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engine.case_expect import Expected, read_expect
from engine.case_features import read_features
from engine.case_parts import Parts
from engine.case_values import Feature, typed
from engine.strategy import CompiledStrategy
from features.expr import Type
from features.yaml_fields import Fields, Problems
from features.yaml_source import MapNode, Node, ScalarNode, SeqNode, load_yaml, name_hint

DEFAULT_AS_OF_MS: Final = 1_704_110_400_000  # 2024-01-01T12:00:00Z
MODEL_WORDS: Final = ("late", "absent")
_DEFAULTS: Final = (
    "as_of",
    "city",
    "product",
    "request",
    "candidate",
    "features",
    "models",
    "params",
    "arms",
    "switches",
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """`body` is the request as it would be sent. `features` are by role, one mapping per candidate or one in all; None when
    the store is away. `stale` are roles whose whole view is not kept up to date. `models` maps a use to a word of
    `MODEL_WORDS` or to what it says of each candidate. `killed` has the bits of the rules that are switched off."""

    name: str
    node: Node
    body: Mapping[str, Any]
    features: Mapping[str, Sequence[Mapping[str, Feature]]] | None
    stale: frozenset[str]
    models: Mapping[str, str | Mapping[str, float | None]]
    params: Mapping[str, Any]
    arms: Mapping[str, str]
    assign: bool
    killed: int
    expect: tuple[Expected, ...]
    tolerance: float


def read_cases(path: Path, compiled: CompiledStrategy, *, name: str | None = None) -> list[Case]:
    """All cases of one file. `name` is what messages call it. Raises: Mistakes, all of the file; FileNotFoundError."""
    problems = Problems()
    top = Fields(load_yaml(path, name=name), problems, ("defaults", "cases"), "a test file")
    defaults = top.optional("defaults")
    shared = Fields(defaults, problems, _DEFAULTS, "defaults") if defaults is not None else None
    items = top.optional("cases")
    if not isinstance(items, SeqNode) or not len(items):
        problems.add(items or top.node, "missing", "a test file needs 'cases', a list with at least one case")
        items = None
    cases = [_Reader(node, compiled, shared, problems).case(number) for number, node in enumerate(items or (), start=1)]
    seen: dict[str, Node] = {}
    for case in cases:
        if case.name in seen:
            line = seen[case.name].line
            problems.add(case.node, "duplicate", f"case '{case.name}' is already on line {line}", "name it differently")
        seen[case.name] = case.node
    problems.raise_if_any()
    return cases


class _Reader(Parts):
    """One case, with the defaults of its file."""

    def case(self, number: int) -> Case:
        strategy = self.strategy
        features, stale = read_features(self)
        expect, tolerance = read_expect(self)
        return Case(
            name=self.own.text("name") or f"case {number}",
            node=self.own.node,
            body=self.body(),
            features=features,
            stale=stale,
            models={name: self.model(name) for name in strategy.models}
            if self.known("models", strategy.models)
            else {},
            params=self.params(),
            arms=self.arms(),
            assign=self.flag("assign"),
            killed=self.switches(),
            expect=expect,
            tolerance=tolerance,
        )

    # the request -----------------------------------------------------------------------------------------------------

    def body(self) -> dict[str, Any]:
        strategy = self.strategy
        body: dict[str, Any] = {
            "order_id": self.word("order_id", "o-1"),
            "as_of_ms": self.as_of(),
            "city": self.word("city", _one_of(strategy.scope["city"], "test-city")),
            "product": self.word("product", _one_of(strategy.scope["product"], "test-product")),
            "request": self.values("request", strategy.request, "request"),
        }
        if self.first("decision_id") is not None:
            body["decision_id"] = self.word("decision_id", "")
        fields = {name: kind for name, kind in strategy.candidate_fields.items() if name != strategy.candidate_key}
        shared = [layer.optional("candidate") for layer in self.layers[1:]]
        rows = [
            self.merged([node, *shared], fields, f"candidate {key.text}")
            for key, node in self.entries(self.own.optional("candidates"), "candidates")
        ]
        if not rows:
            self.problems.add(
                self.own.node, "missing", "a case needs 'candidates': {key: {field: value}}, at least one"
            )
        columns = {name: [row.get(name) for row in rows] for name in fields}
        body["candidates"] = {strategy.candidate_key: self.ids, **columns}
        return body

    def as_of(self) -> int:
        node = self.first("as_of")
        if node is None:
            return DEFAULT_AS_OF_MS
        value = typed(node, Type("timestamp", False), "as_of", self.problems)
        return DEFAULT_AS_OF_MS if value is None else int(value)

    def values(self, section: str, fields: Mapping[str, Type], what: str) -> dict[str, Any]:
        return self.merged([layer.optional(section) for layer in self.layers], fields, what)

    def merged(self, nodes: Sequence[Node | None], fields: Mapping[str, Type], what: str) -> dict[str, Any]:
        """Values by name, the first node that has one wins; a field that must be there and is not is a mistake."""
        out: dict[str, Any] = {}
        for node in nodes:
            for key, value in self.entries(node, what):
                if key.text not in fields:
                    self.unknown(key, f"{what}: no field '{key.text}'", fields)
                elif key.text not in out:
                    out[key.text] = typed(value, fields[key.text], f"{what}.{key.text}", self.problems)
        place = next((node for node in nodes if node is not None), self.own.node)
        for name, kind in fields.items():
            if name not in out and not kind.nullable and name not in ("order_id", "city", "product"):
                self.problems.add(place, "missing", f"{what}: '{name}' ({kind}) is missing")
        return out

    # models, parameters, switches ------------------------------------------------------------------------------------

    def known(self, section: str, names: Mapping[str, Any]) -> bool:
        """Notes names of a section that the strategy does not have."""
        for layer in self.layers:
            for key, _ in self.entries(layer.optional(section), section):
                if key.text not in names:
                    self.unknown(key, f"{section}: no '{key.text}' in strategy '{self.strategy.name}'", names)
        return True

    def model(self, use: str) -> str | dict[str, float | None]:
        node = self.pick("models", use)
        what = f"models.{use}"
        if node is None:
            return "absent"
        if isinstance(node, MapNode):
            said: dict[str, float | None] = dict.fromkeys(self.ids)
            for key, value in node.items():
                if key.text not in said:
                    self.unknown(key, f"{what}: no candidate '{key.text}'", self.ids)
                said[key.text] = typed(value, Type("double", True), f"{what}.{key.text}", self.problems)
            return said
        if isinstance(node, ScalarNode) and node.text in MODEL_WORDS:
            return node.text
        value = typed(
            node,
            Type("double", False),
            f"{what} (a number, one per candidate, or {', '.join(MODEL_WORDS)})",
            self.problems,
        )
        return dict.fromkeys(self.ids, value)

    def params(self) -> dict[str, Any]:
        params = self.strategy.params
        self.known("params", params)
        out: dict[str, Any] = {}
        for name, param in params.items():
            node = self.pick("params", name)
            if node is None:
                continue
            value = out[name] = typed(node, Type(param.type, False), f"params.{name}", self.problems)
            if param.type in ("int", "double") and value is not None:
                low, high = param.min, param.max
                if (low is not None and value < low) or (high is not None and value > high):
                    self.problems.add(node, "bound", f"params.{name} must lie from {low} to {high}, not {value:g}")
        return out

    def arms(self) -> dict[str, str]:
        experiments = {one.name: [arm.name for arm in one.arms] for one in self.strategy.experiments}
        self.known("arms", experiments)
        out: dict[str, str] = {}
        for name, arms in experiments.items():
            node = self.pick("arms", name)
            if isinstance(node, ScalarNode) and node.text in arms:
                out[name] = node.text
            elif node is not None:
                text = node.text if isinstance(node, ScalarNode) else ""
                self.problems.add(node, "unknown", f"experiment '{name}' has no arm '{text}'", name_hint(text, arms))
        return out

    def switches(self) -> int:
        bits = 0
        node = self.first("switches")
        known = {rule.id for rule in self.strategy.rules} | {
            r.kill_switch for r in self.strategy.rules if r.kill_switch
        }
        for item in self.items(node, "switches"):
            if item.text not in known:
                self.unknown(item, f"no rule and no kill_switch '{item.text}'", known)
            for bit, rule in enumerate(self.strategy.rules):
                bits |= (item.text in (rule.id, rule.kill_switch)) << bit
        return bits


def _one_of(scope: str, default: str) -> str:
    return default if scope == "*" else scope

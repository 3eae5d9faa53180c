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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engine.case_values import Feature, typed
from engine.strategy import CompiledStrategy, Role
from features.expr import Type
from features.rows import Status
from features.yaml_fields import Fields, Problems
from features.yaml_source import MapNode, Node, ScalarNode, SeqNode, load_yaml, name_hint

DEFAULT_AS_OF_MS: Final = 1_704_110_400_000  # 2024-01-01T12:00:00Z
MODEL_WORDS: Final = ("late", "absent")
_CASE: Final = (
    "name", "as_of", "order_id", "decision_id", "city", "product", "request", "candidates", "features", "models", "params",
    "arms", "assign", "switches", "expect",
)  # fmt: skip
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
_PER_CANDIDATE: Final = ("dropped", "scores", "fired", "unknown", "outputs", "propensities")
_EXPECT: Final = ("chosen", "order", *_PER_CANDIDATE, "quality", "decided_by", "arms", "params", "tolerance")


@dataclass(frozen=True, kw_only=True)
class Expected:
    """One thing that must hold: `what` is a key of `expect`, `candidate` and `name` say of whom and of which output."""

    what: str
    value: Any
    node: Node
    candidate: str | None = None
    name: str | None = None


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


class _Reader:
    """One case, with the defaults of its file."""

    def __init__(self, node: Node, compiled: CompiledStrategy, shared: Fields | None, problems: Problems) -> None:
        self.compiled, self.strategy, self.problems = compiled, compiled.strategy, problems
        self.own = Fields(node, problems, _CASE, "a case")
        self.layers = [self.own, *([shared] if shared is not None else [])]
        self.ids = [key.text for key, _ in self.entries(self.own.optional("candidates"), "candidates")]

    def case(self, number: int) -> Case:
        strategy = self.strategy
        features, stale = self.features()
        expect, tolerance = self.expect()
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

    # features --------------------------------------------------------------------------------------------------------

    def features(self) -> tuple[dict[str, list[dict[str, Feature]]] | None, frozenset[str]]:
        own = self.own.optional("features")
        if isinstance(own, ScalarNode) and own.text == "away":
            return None, frozenset()
        roles = {role.name: role for role in self.strategy.roles}
        given: dict[str, list[Node]] = {name: [] for name in roles}
        for layer in self.layers:
            for key, value in self.entries(layer.optional("features"), "features"):
                if key.text in roles:
                    given[key.text].append(value)
                else:
                    self.unknown(key, f"features: no role '{key.text}'", roles)
        words = {name: nodes[0].text for name, nodes in given.items() if nodes and isinstance(nodes[0], ScalarNode)}
        for name, word in words.items():
            if word not in ("missing", "stale"):
                self.problems.add(given[name][0], "value", f"features.{name} must be a mapping, 'missing' or 'stale'")
        stale = frozenset(name for name, word in words.items() if word == "stale")
        return {
            name: [{}] * (len(self.ids) if role.per_candidate else 1) if words.get(name) == "missing"
            else self.all_stale(role) if name in stale
            else self.role(role, [node for node in given[name] if not isinstance(node, ScalarNode)])
            for name, role in roles.items()
        }, stale  # fmt: skip

    def all_stale(self, role: Role) -> list[dict[str, Feature]]:
        row = {spec.name: Feature(None, Status.STALE) for spec in role.view.features}
        return [row] * (len(self.ids) if role.per_candidate else 1)

    def role(self, role: Role, nodes: Sequence[Node]) -> list[dict[str, Feature]]:
        """The case's own first, then the file's defaults. A candidate's role is given by candidate; in defaults, for all."""
        if not role.per_candidate:
            return [self.feature_row(role, nodes)]
        own = [node for node in nodes if node is not self.default_of(role.name)]
        by_id: dict[str, list[Node]] = {identifier: [] for identifier in self.ids}
        for node in own:
            for key, value in self.entries(node, f"features.{role.name}"):
                if key.text in by_id:
                    by_id[key.text].append(value)
                else:
                    self.unknown(key, f"features.{role.name}: no candidate '{key.text}'", self.ids)
        default = self.default_of(role.name)
        shared = [default] if isinstance(default, MapNode) else []
        return [self.feature_row(role, [*by_id[identifier], *shared]) for identifier in self.ids]

    def default_of(self, role: str) -> Node | None:
        node = self.layers[1].optional("features") if len(self.layers) > 1 else None
        return node.get(role) if isinstance(node, MapNode) else None

    def feature_row(self, role: Role, nodes: Sequence[Node]) -> dict[str, Feature]:
        known = {spec.name: spec for spec in role.view.features}
        out: dict[str, Feature] = {}
        for node in nodes:
            for key, value in self.entries(node, f"features.{role.name}"):
                if key.text not in known:
                    self.unknown(key, f"view '{role.view.name}' has no feature '{key.text}'", known)
                elif key.text not in out:
                    what = f"features.{role.name}.{key.text}"
                    out[key.text] = Feature.read(value, known[key.text], what, self.problems)
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

    # what must follow ------------------------------------------------------------------------------------------------

    def expect(self) -> tuple[tuple[Expected, ...], float]:
        node = self.own.optional("expect")
        if not isinstance(node, MapNode) or not len(node):
            self.problems.add(node or self.own.node, "missing", "a case needs 'expect': one without could never fail")
            return (), 0.0
        fields = Fields(node, self.problems, _EXPECT, "expect")
        found: list[Expected] = []
        for key, value in node.items():
            if key.text in _PER_CANDIDATE:
                found += self.per_candidate(key.text, value)
            elif key.text in ("quality", "decided_by") and isinstance(value, ScalarNode):
                found.append(Expected(what=key.text, value=value.text, node=value))
            elif key.text == "order":
                found.append(
                    Expected(what="order", value=[self.identifier(i) for i in self.items(value, "order")], node=value)
                )
            elif key.text == "chosen" and isinstance(value, ScalarNode):
                found.append(Expected(what="chosen", value=self.identifier(value), node=value))
            elif key.text in ("arms", "params"):
                found += [
                    Expected(
                        what=key.text, name=name.text, value=one.value if key.text == "params" else one.text, node=one
                    )
                    for name, one in self.entries(value, key.text)
                    if isinstance(one, ScalarNode)
                ]
        tolerance = fields.scalar("tolerance", required=False)
        allowed = typed(tolerance, Type("double", False), "tolerance", self.problems) if tolerance else 1e-9
        return tuple(found), float(allowed or 0.0)

    def per_candidate(self, what: str, node: Node) -> Iterator[Expected]:
        """`what: {candidate: value}`; `dropped` is one expectation as a whole, so that nobody is dropped unsaid."""
        rules = [rule.id for rule in self.strategy.rules]
        dropped: dict[str, str] = {}
        for key, value in self.entries(node, what):
            candidate = self.identifier(key)
            if candidate is None:
                continue
            if what in ("scores", "propensities"):
                number = typed(value, Type("double", True), f"{what}.{key.text}", self.problems)
                yield Expected(what=what, candidate=candidate, value=number, node=value)
            elif what in ("fired", "unknown"):
                named = self.items(value, what)
                for item in named:
                    if item.text not in rules:
                        self.unknown(item, f"no rule '{item.text}'", rules)
                yield Expected(what=what, candidate=candidate, value=[item.text for item in named], node=value)
            elif what == "outputs":
                yield from self.outputs(candidate, value)
            elif isinstance(value, ScalarNode):
                reasons = [*rules, *(f"unknown:{rule}" for rule in rules), "score_not_finite"]
                if value.text not in reasons:
                    self.unknown(value, f"no reason '{value.text}' to drop anything", reasons)
                dropped[candidate] = value.text
        if what == "dropped":
            yield Expected(what=what, value=dropped, node=node)

    def outputs(self, candidate: str, node: Node) -> Iterator[Expected]:
        kinds = {output.name: output.program.type for output in self.compiled.outputs}
        for key, value in self.entries(node, f"outputs.{candidate}"):
            if key.text not in kinds:
                self.unknown(key, f"no output '{key.text}'", kinds)
                continue
            wanted = typed(value, kinds[key.text].optional(), f"outputs.{candidate}.{key.text}", self.problems)
            yield Expected(what="outputs", candidate=candidate, name=key.text, value=wanted, node=value)

    # small things ----------------------------------------------------------------------------------------------------

    def identifier(self, node: ScalarNode) -> str | None:
        """The id of a candidate of this case, or null."""
        if node.value is None:
            return None
        if node.text not in self.ids:
            self.unknown(node, f"no candidate '{node.text}' in this case", self.ids)
        return node.text

    def first(self, section: str) -> Node | None:
        return next((node for layer in self.layers if (node := layer.optional(section)) is not None), None)

    def pick(self, section: str, name: str) -> Node | None:
        """The entry of a section, from the case or else from the defaults."""
        for layer in self.layers:
            node = layer.optional(section)
            if isinstance(node, MapNode) and (found := node.get(name)) is not None:
                return found
        return None

    def word(self, section: str, default: str) -> str:
        node = self.first(section)
        if node is None:
            return default
        if not isinstance(node, ScalarNode) or not node.text:
            self.problems.add(node, "type", f"'{section}' must be a text")
            return default
        return node.text

    def flag(self, section: str) -> bool:
        node = self.first(section)
        return bool(node is not None and typed(node, Type("bool", False), section, self.problems))

    def items(self, node: Node | None, what: str) -> list[ScalarNode]:
        if node is None:
            return []
        if not isinstance(node, SeqNode):
            self.problems.add(node, "type", f"'{what}' must be a list: [a, b]")
            return []
        return [item for item in node if isinstance(item, ScalarNode)]

    def entries(self, node: Node | None, what: str) -> list[tuple[ScalarNode, Node]]:
        """The entries of a mapping; a word in place of features is left to who reads it."""
        if isinstance(node, MapNode):
            return node.items()
        is_word = isinstance(node, ScalarNode) and what.startswith("features")
        if node is not None and not is_word and not (isinstance(node, ScalarNode) and node.value is None):
            self.problems.add(node, "type", f"'{what}' must be a mapping of names")
        return []

    def unknown(self, node: Node, message: str, known: Any) -> None:
        text = node.text if isinstance(node, ScalarNode) else ""
        self.problems.add(node, "unknown", message, name_hint(text, known))


def _one_of(scope: str, default: str) -> str:
    return default if scope == "*" else scope

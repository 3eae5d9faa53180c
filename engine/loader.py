"""YAML to Strategy: the shape of a strategy file, every mistake of it at once.

This file reads structure (keys, types of values, what refers to what), with the getters of `engine/fields.py`;
`engine/params.py` reads parameters, `engine/experiment_loader.py` the experiments that set them,
`engine/table_loader.py` the decision tables; `engine/compiler.py` compiles the expressions.
A section that is wrong does not hide the mistakes of the others: what can be read is read, and the compiler is told
which names are broken so that it does not complain about them a second time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from engine.compiler import compile_strategy
from engine.experiment_loader import read_experiments, read_layers
from engine.fields import Fields
from engine.params import read_params
from engine.strategy import (
    AS_OF,
    CHAMPION,
    ENVELOPE,
    EXPLORE_KINDS,
    ON_UNKNOWN,
    CompiledStrategy,
    Explore,
    ModelUse,
    Rank,
    Role,
    Rule,
    Strategy,
)
from engine.table_loader import TableDraft, is_table_path, read_tables
from features.expr import Mistakes, SourceText, Type
from features.spec import Catalogue, FeatureView
from features.yaml_source import MapNode, Node, ScalarNode, SeqNode, load_yaml, name_hint

TOP_KEYS: Final = [
    "strategy",
    "version",
    "owner",
    "shadow_of",
    "scope",
    "request",
    "candidates",
    "features",
    "params",
    "models",
    "let",
    "tables",
    "rules",
    "score",
    "rank",
    "explore",
    "outputs",
    "layers",
    "experiments",
    "tests",
]
RULE_KEYS: Final = ("id", "drop_when", "when", "set", "add", "multiply", "why", "owner", "kill_switch", "on_unknown")
EFFECTS: Final = ("set", "add", "multiply")
EXPLORE_KEYS: Final = ("kind", "epsilon", "temperature", "top_k", "salt")
EXPLORE_NEEDS: Final = {
    "none": (),
    "epsilon": ("epsilon",),
    "softmax": ("temperature",),
    "top_k_softmax": ("temperature", "top_k"),
}
MAX_RULES: Final = 53  # the `fired` mask of a Decision is one JSON integer, exact in a double
_MODEL_REF: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*)@([A-Za-z0-9_.-]+)")


def load_strategy(
    path: Path, catalogue: Catalogue, *, schema_fingerprint: str, name: str | None = None
) -> CompiledStrategy:
    """Read, check and compile one file against the applied features. `name` is what messages call the file.

    Raises: Mistakes with all mistakes of the file; FileNotFoundError.
    """
    root = load_yaml(path, name=name)
    reader = _Reader(catalogue, path.parent)
    strategy = reader.strategy(root, path.read_bytes())
    compiled, mistakes = compile_strategy(
        strategy, tables=reader.tables, broken=reader.broken, schema_fingerprint=schema_fingerprint
    )
    mistakes = [*reader.mistakes, *mistakes]
    if mistakes or compiled is None:
        raise Mistakes(mistakes)
    return compiled


def table_files(path: Path) -> list[Path]:
    """The CSV files that a strategy file names, there or not: what else to watch and to copy. Empty for wrong YAML.

    Raises: FileNotFoundError.
    """
    try:
        root = load_yaml(path)
    except Mistakes:
        return []
    tables = root.get("tables") if isinstance(root, MapNode) else None
    out = []
    for _, table in tables.items() if isinstance(tables, MapNode) else ():
        rows = table.get("rows") if isinstance(table, MapNode) else None
        if isinstance(rows, ScalarNode) and is_table_path(rows.text):
            out.append(path.parent / rows.text)
    return out


def hash_of(text: bytes, files: Mapping[str, bytes]) -> str:
    """SHA-256 of a strategy file and of the files that it names: what a Decision names."""
    if not files:
        return hashlib.sha256(text).hexdigest()
    parts = [("", text), *sorted(files.items())]
    digests = [f"{hashlib.sha256(data).hexdigest()} {name}\n" for name, data in parts]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


class _Reader(Fields):
    """Sections of one file, read in order."""

    def __init__(self, catalogue: Catalogue, folder: Path) -> None:
        super().__init__()
        self.catalogue = catalogue
        self.folder = folder
        self.tables: dict[str, TableDraft] = {}

    # ---------- the file ----------

    def strategy(self, root: Node, text: bytes) -> Strategy:
        top = self.map_of(
            root, TOP_KEYS, required=("strategy", "version", "request", "candidates", "score"), what="a strategy"
        )
        name = self.text(top.get("strategy"), "strategy", default="?")
        request = self.fields(top.get("request"), "request")
        candidate_key, candidate_fields = self.candidates(top.get("candidates"))
        roles = self.roles(top.get("features"), request, candidate_key, candidate_fields)
        params = read_params(self, top.get("params"))
        models = self.named(top.get("models"), "models", self.model, declares=True)
        lets = self.named(
            top.get("let"), "let", lambda key, node: self.expression(node, f"let.{key.text}"), declares=True
        )
        self.tables = read_tables(self, top.get("tables"), self.folder)
        for role in roles:
            if role.name in self.tables:
                self.note(self.tables[role.name].key, "duplicate", f"'{role.name}' is already a role of features")
        return Strategy(
            name=name,
            version=self.number(top.get("version"), "version", kind=int, low=1, default=1),
            hash=hash_of(text, self.files),
            file=root.file,
            scope=self.scope(top.get("scope")),
            request=request,
            candidate_key=candidate_key,
            candidate_fields=candidate_fields,
            roles=roles,
            params=params,
            models=models,
            lets=tuple(lets.items()),
            rules=self.rules(top.get("rules")),
            score=self.expression(top.get("score"), "score") or SourceText("0.0", root.file),
            rank=self.rank(top.get("rank"), candidate_key, candidate_fields),
            explore=self.explore(top.get("explore"), name),
            layers=read_layers(self, top.get("layers"), name, params),
            experiments=read_experiments(self, top.get("experiments"), name, params, request),
            outputs=tuple(self.outputs(top.get("outputs")).items()),
            facts=self.facts,
            owner=self.text(top.get("owner"), "owner", default=""),
            shadow_of=self.text(top["shadow_of"], "shadow_of", default="?") if "shadow_of" in top else None,
            tests=self.text(top["tests"], "tests", default="?") if "tests" in top else None,
        )

    # ---------- what a request and its candidates carry ----------

    def scope(self, node: Node | None) -> dict[str, str]:
        parts = self.map_of(node, ("city", "product"), what="scope") if node else {}
        return {key: self.text(parts.get(key), f"scope.{key}", default="*") for key in ("city", "product")}

    def fields(self, node: Node | None, what: str) -> dict[str, Type]:
        """`{name: type}` of a mapping; each name becomes a name of the strategy."""
        out: dict[str, Type] = {}
        for key, value in self.entries(node, what):
            if not self.declare(key, what):
                continue
            kind = self.typed(key.text, value, f"{what}.{key.text}")
            if kind is None:
                self.broken.add(key.text)
            elif key.text == AS_OF:
                self.note(key, "name", f"'{AS_OF}' is the time of every request, a timestamp", "leave it out")
            elif key.text in ENVELOPE and (what != "request" or kind != Type("string", False)):
                self.note(
                    key,
                    "name",
                    f"'{key.text}' comes with every request as a string",
                    "leave it out, or declare it in request as string",
                )
            else:
                out[key.text] = kind
        return out

    def candidates(self, node: Node | None) -> tuple[str, dict[str, Type]]:
        parts = self.map_of(node, ("key", "fields"), required=("key",), what="candidates") if node else {}
        key_node = parts.get("key")
        key = self.text(key_node, "candidates.key", default="candidate_id")
        fields = self.fields(parts.get("fields"), "candidates.fields")
        if key_node is not None and key not in fields:
            assert isinstance(key_node, ScalarNode)
            self.declare(key_node, "candidates.key")
        elif key in fields and fields[key] != Type("string", False):
            self.note(
                key_node,
                "type",
                f"the key '{key}' must be a string",
                "leave it out of fields: a key is a string by itself",
            )
        fields[key] = Type("string", False)
        return key, fields

    # ---------- features ----------

    def roles(
        self, node: Node | None, request: Mapping[str, Type], candidate_key: str, candidate_fields: Mapping[str, Type]
    ) -> tuple[Role, ...]:
        out = []
        for key, value in self.entries(node, "features"):
            explicit: ScalarNode | None = None
            view_node: Node | None = value
            if isinstance(value, MapNode):
                parts = self.map_of(value, ("view", "key"), required=("view",), what=f"features.{key.text}")
                view_node, key_node = parts.get("view"), parts.get("key")
                explicit = key_node if isinstance(key_node, ScalarNode) else None
            view_name = self.text(view_node, f"features.{key.text}", default="")
            view = self.catalogue.views.get(view_name)
            if view is None:
                if view_name:
                    self.note(
                        view_node, "view", f"unknown view '{view_name}'", name_hint(view_name, self.catalogue.views)
                    )
                self.broken.add(key.text)
                continue
            role = self.role(key, view, explicit, request, candidate_fields)
            if role is None:
                self.broken.add(key.text)
                continue
            out.append(role)
            for spec in view.features:
                self.know(f"{role.name}.{spec.name}", spec.unit, 0.0 if spec.aggregate == "count" else None, None)
        return tuple(out)

    def role(
        self,
        key: ScalarNode,
        view: FeatureView,
        explicit: ScalarNode | None,
        request: Mapping[str, Type],
        candidate_fields: Mapping[str, Type],
    ) -> Role | None:
        """Which field holds the key: the one named, else one called as the role, else the entity's join key."""
        fields = {**{name: Type("string", False) for name in ENVELOPE}, **request, **candidate_fields}
        place = explicit or key
        wanted = [explicit.text] if explicit else list(dict.fromkeys((key.text, view.entity.join_key)))
        field = next((name for name in wanted if name in fields), None)
        if field is None:
            if not self.broken & set(wanted):
                known = f"name one with {{view: {view.name}, key: …}}"
                hint = name_hint(explicit.text, fields) if explicit else known
                self.note(
                    place,
                    "key",
                    f"no field {' or '.join(repr(w) for w in wanted)} holds the key of entity '{view.entity.name}'",
                    hint,
                )
            return None
        found = fields[field]
        per_candidate = field in candidate_fields
        if found.kind != view.entity.type:
            self.note(
                place,
                "type",
                f"the key of entity '{view.entity.name}' is a {view.entity.type}, but '{field}' is a {found}",
            )
            return None
        if found.nullable and per_candidate:
            self.note(
                place,
                "type",
                f"'{field}' can be null, so it cannot be the key of a candidate's features",
                "declare it without ?",
            )
            return None
        return Role(name=key.text, view=view, key=field, per_candidate=per_candidate)

    # ---------- models, rules ----------

    def model(self, key: ScalarNode, node: Node) -> ModelUse | None:
        what = f"models.{key.text}"
        parts = self.map_of(node, ("uses", "deadline", "on_late"), required=("uses", "deadline"), what=what)
        ref = _MODEL_REF.fullmatch(self.text(parts.get("uses"), f"{what}.uses", default=""))
        if "uses" in parts and ref is None:
            self.note(
                parts["uses"],
                "model",
                f"{what}.uses must name a model and a version",
                f"write name@{CHAMPION} or name@v0001",
            )
        deadline_ms = self.duration_ms(parts.get("deadline"), f"{what}.deadline")
        if ref is None or deadline_ms is None:
            self.broken.add(key.text)
            return None
        on_late = self.expression(parts["on_late"], f"{what}.on_late") if "on_late" in parts else None
        return ModelUse(name=key.text, model=ref[1], version=ref[2], deadline_ms=deadline_ms, on_late=on_late)

    def rules(self, node: Node | None) -> tuple[Rule, ...]:
        if node is None:
            return ()
        if not isinstance(node, SeqNode):
            self.note(node, "shape", "rules must be a list", "start each rule with '- '")
            return ()
        out: list[Rule] = []
        seen: dict[str, Node] = {}
        for item in node:
            rule = self.rule(item)
            if rule is None:
                continue
            if rule.id in seen:
                self.note(
                    item,
                    "duplicate",
                    f"rule '{rule.id}' is already on line {seen[rule.id].line}",
                    "give it an id of its own",
                )
            seen[rule.id] = item
            out.append(rule)
        if len(out) > MAX_RULES:
            self.note(node, "limit", f"{len(out)} rules; at most {MAX_RULES} fit the firing mask", "split the strategy")
        return tuple(out)

    def rule(self, node: Node) -> Rule | None:
        parts = self.map_of(node, RULE_KEYS, required=("id",), what="a rule")
        identifier = self.text(parts.get("id"), "id", default="?")
        effects = [name for name in EFFECTS if name in parts]
        if ("drop_when" in parts) == ("when" in parts):
            self.note(node, "rule", f"rule '{identifier}' needs one of drop_when and when")
            return None
        drop = "drop_when" in parts
        if drop and effects:
            self.note(
                parts[effects[0]],
                "rule",
                f"a dropped candidate has no score to {effects[0]}",
                "use when instead of drop_when",
            )
        if not drop and not effects:
            self.note(node, "rule", f"rule '{identifier}' has no effect", "give it set, add or multiply")
        condition = self.expression(parts["drop_when" if drop else "when"], f"rule {identifier}")
        if condition is None:
            return None
        sources = {name: self.expression(parts[name], f"rule {identifier}.{name}") for name in effects}
        return Rule(
            id=identifier,
            condition=condition,
            drop=drop,
            set=sources.get("set"),
            add=sources.get("add"),
            multiply=sources.get("multiply"),
            why=self.text(parts.get("why"), "why", default=""),
            owner=self.text(parts.get("owner"), "owner", default=""),
            kill_switch=self.text(parts.get("kill_switch"), "kill_switch", default=""),
            on_unknown=self.choice(parts.get("on_unknown"), "on_unknown", ON_UNKNOWN),
        )

    def outputs(self, node: Node | None) -> dict[str, SourceText]:
        """Named values of every survivor: names of the answer, not of the strategy."""
        return self.named(node, "outputs", lambda key, value: self.expression(value, f"outputs.{key.text}"))

    # ---------- ranking, exploring ----------

    def rank(self, node: Node | None, candidate_key: str, fields: Mapping[str, Type]) -> Rank:
        parts = self.map_of(node, ("by", "ties", "keep"), what="rank") if node else {}
        if "by" in parts and self.text(parts["by"], "rank.by", default="score") != "score":
            self.note(parts["by"], "rank", "rank.by must be score", "put what to rank by into score")
        ties = self.text(parts["ties"], "rank.ties", default=candidate_key) if "ties" in parts else candidate_key
        if ties not in fields:
            self.note(parts["ties"], "name", f"rank.ties: no candidate field '{ties}'", name_hint(ties, fields))
        elif fields[ties].nullable or fields[ties].kind not in ("int", "string"):
            self.note(
                parts["ties"],
                "type",
                f"rank.ties: '{ties}' is a {fields[ties]}; ties need an int or a string, never null",
            )
        keep = self.number(parts["keep"], "rank.keep", kind=int, low=1, default=50) if "keep" in parts else 50
        return Rank(ties=ties, keep=keep)

    def explore(self, node: Node | None, strategy: str) -> Explore:
        salt = f"{strategy}:explore"
        if node is None:
            return Explore(salt=salt)
        parts = self.map_of(node, EXPLORE_KEYS, required=("kind",), what="explore")
        kind = self.choice(parts.get("kind"), "explore.kind", EXPLORE_KINDS) or "none"
        wanted = EXPLORE_NEEDS[kind]
        for name in ("epsilon", "temperature", "top_k"):
            if name in parts and name not in wanted:
                self.note(parts[name], "explore", f"explore.{name} does not belong to kind {kind}", "remove it")
            elif name in wanted and name not in parts:
                self.note(node, "missing", f"explore of kind {kind} needs {name}")
        numbers = {name: parts[name] for name in wanted if name in parts}
        return Explore(
            kind=kind,
            salt=self.text(parts.get("salt"), "explore.salt", default=salt),
            epsilon=self.number(numbers.get("epsilon"), "explore.epsilon", kind=float, low=0.0, high=1.0, default=0.0),
            temperature=self.number(
                numbers.get("temperature"), "explore.temperature", kind=float, low=1e-6, high=1e6, default=0.0
            ),
            top_k=self.number(numbers.get("top_k"), "explore.top_k", kind=int, low=1, default=0),
        )

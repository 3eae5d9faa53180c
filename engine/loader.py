"""YAML to Strategy: the shape of a strategy file, every mistake of it at once.

`engine/sections.py` describes the structure (keys, what stands under them), which is checked first; this file reads what
refers to what, with the getters of `engine/fields.py`;
`engine/params.py` reads parameters, `engine/experiment_loader.py` the experiments that set them,
`engine/table_loader.py` the decision tables; `engine/compiler.py` compiles the expressions.
A section that is wrong does not hide the mistakes of the others: what can be read is read, and the compiler is told
which names are broken so that it does not complain about them a second time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from engine.compiler import compile_strategy
from engine.experiment_loader import read_experiments, read_layers
from engine.fields import Fields
from engine.params import read_params
from engine.sections import STRATEGY
from engine.strategy import (
    AS_OF,
    ENVELOPE,
    CompiledStrategy,
    Explore,
    ModelUse,
    Rank,
    Role,
    Rule,
    Strategy,
)
from engine.table_loader import TableDraft, read_tables
from features.expr import Mistakes, SourceText, Type
from features.spec import Catalogue, FeatureView, KeyColumn
from features.yaml_source import MapNode, Node, ScalarNode, decode_yaml, load_yaml, name_hint

MAX_BYTES: Final = 256 << 10  # a YAML reader that keeps places takes a second for every 50 KB of nested flow maps
MAX_RULES: Final = 53  # the `fired` mask of a Decision is one JSON integer, exact in a double


def load_strategy(
    path: Path, catalogue: Catalogue, *, schema_fingerprint: str, name: str | None = None
) -> CompiledStrategy:
    """Read, check and compile one file against the applied features. `name` is what messages call the file.

    Raises: Mistakes with all mistakes of the file; FileNotFoundError.
    """
    name = name or str(path)
    path = Path(os.path.realpath(path))  # of a link to a kept version: its tables stand beside the file itself
    raw = path.read_bytes() if path.is_file() else None  # once: the hash is of what was read
    root = load_yaml(path, name=name) if raw is None else decode_yaml(raw, name, max_bytes=MAX_BYTES)
    reader = _Reader(catalogue, path.parent)
    strategy = reader.strategy(root, raw or b"")
    compiled, mistakes = compile_strategy(
        strategy, tables=reader.tables, broken=reader.broken, schema_fingerprint=schema_fingerprint
    )
    mistakes = [*reader.mistakes, *mistakes]
    if mistakes or compiled is None:
        raise Mistakes(mistakes)
    return compiled


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
        self.check(root, STRATEGY, "a strategy")
        top = self.map_of(root)
        name = self.text(top.get("strategy"), "?")
        request = self.fields(top.get("request"), "request")
        candidate_key, candidate_fields = self.candidates(top.get("candidates"))
        roles = self.roles(top.get("features"), request, candidate_fields)
        params = read_params(self, top.get("params"))
        models = self.named(top.get("models"), "models", self.model, declares=True)
        lets = self.named(top.get("let"), "let", lambda _, node: self.expression(node), declares=True)
        self.tables = read_tables(self, top.get("tables"), self.folder)
        for role in roles:
            if role.name in self.tables:
                self.note(self.tables[role.name].key, "duplicate", f"'{role.name}' is already a role of features")
        return Strategy(
            name=name,
            version=self.number(top.get("version"), 1, kind=int),
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
            score=self.expression(top.get("score")) or SourceText("0.0", root.file),
            rank=self.rank(top.get("rank"), candidate_key, candidate_fields),
            explore=self.explore(top.get("explore"), name),
            layers=read_layers(self, top.get("layers"), name, params),
            experiments=read_experiments(self, top.get("experiments"), name, params, request),
            outputs=tuple(self.outputs(top.get("outputs")).items()),
            facts=self.facts,
            owner=self.text(top.get("owner")),
            shadow_of=self.text(top.get("shadow_of")) or None,
            tests=self.text(top.get("tests")) or None,
        )

    # ---------- what a request and its candidates carry ----------

    def scope(self, node: Node | None) -> dict[str, str]:
        parts = self.map_of(node)
        return {key: self.text(parts.get(key), "*") for key in ("city", "product")}

    def fields(self, node: Node | None, what: str) -> dict[str, Type]:
        """`{name: type}` of a mapping; each name becomes a name of the strategy."""
        out: dict[str, Type] = {}
        for key, value in self.entries(node):
            if not self.declare(key, what):
                continue
            kind = self.typed(key.text, value)
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
        parts = self.map_of(node)
        key_node = parts.get("key")
        key = self.text(key_node, "candidate_id")
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
        self, node: Node | None, request: Mapping[str, Type], candidate_fields: Mapping[str, Type]
    ) -> tuple[Role, ...]:
        out = []
        for key, value in self.entries(node):
            view_node: Node | None = value
            key_node: Node | None = None
            if isinstance(value, MapNode):
                parts = self.map_of(value)
                view_node, key_node = parts.get("view"), parts.get("key")
            view_name = self.text(view_node)
            view = self.catalogue.views.get(view_name)
            if view is None:
                if view_name:
                    self.note(
                        view_node, "view", f"unknown view '{view_name}'", name_hint(view_name, self.catalogue.views)
                    )
                self.broken.add(key.text)
                continue
            role = self.role(key, view, key_node, request, candidate_fields)
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
        key_node: Node | None,
        request: Mapping[str, Type],
        candidate_fields: Mapping[str, Type],
    ) -> Role | None:
        """A view under a role's name, read by the fields that hold its key."""
        if view.request:
            text = f"view '{view.name}' has request fields ({', '.join(view.request)}), and a strategy gives it none"
            self.note(key, "view", text, "write the expression in the strategy, over its own request")
            return None
        fields = {**{name: Type("string", False) for name in ENVELOPE}, **request, **candidate_fields}
        explicit = self.key_nodes(key, view, key_node)
        if explicit is None:
            return None
        found = [self.key_field(key, view, c, explicit.get(c.name), fields, candidate_fields) for c in view.entity.keys]
        keys = tuple(name for name in found if name is not None)
        if len(keys) < len(found):
            return None
        return Role(name=key.text, view=view, keys=keys, per_candidate=any(name in candidate_fields for name in keys))

    def key_nodes(self, key: ScalarNode, view: FeatureView, node: Node | None) -> dict[str, ScalarNode] | None:
        """`key: field`, or of several columns `key: {column: field, …}`: the fields that are named, by column."""
        names = view.entity.join_keys
        if isinstance(node, MapNode):
            parts = {name.text: (name, value) for name, value in node.items()}
            for name, (place, _) in parts.items():
                if name not in names:
                    text = f"the key of entity '{view.entity.name}' has no column '{name}'"
                    self.note(place, "key", text, name_hint(name, names))
                    return None
            return {name: value for name, (_, value) in parts.items() if isinstance(value, ScalarNode)}
        if isinstance(node, ScalarNode) and len(names) > 1:
            text = f"the key of entity '{view.entity.name}' has {len(names)} columns"
            self.note(node, "key", text, f"write key: {{{', '.join(f'{name}: field' for name in names)}}}")
            return None
        return {names[0]: node} if isinstance(node, ScalarNode) else {}

    def key_field(
        self,
        key: ScalarNode,
        view: FeatureView,
        column: KeyColumn,
        explicit: ScalarNode | None,
        fields: Mapping[str, Type],
        candidate_fields: Mapping[str, Type],
    ) -> str | None:
        """Which field holds a column of the key: the one named, else, of a single column, one called as the role, else as
        the column."""
        place = explicit or key
        own = (key.text,) if len(view.entity.keys) == 1 else ()
        wanted = [explicit.text] if explicit else list(dict.fromkeys((*own, column.name)))
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
        if found.kind != column.source_type:
            text = f"the key of entity '{view.entity.name}' is {column.type}, but '{field}' is {found}"
            self.note(place, "type", text)
            return None
        if found.nullable and field in candidate_fields:
            self.note(
                place,
                "type",
                f"'{field}' can be null, so it cannot be the key of a candidate's features",
                "declare it without ?",
            )
            return None
        return field

    # ---------- models, rules ----------

    def model(self, key: ScalarNode, node: Node) -> ModelUse | None:
        parts = self.map_of(node)
        model, _, version = self.text(parts.get("uses")).partition("@")
        deadline_ms = self.duration_ms(parts.get("deadline"))
        if not model or deadline_ms is None:
            self.broken.add(key.text)
            return None
        on_late = self.expression(parts.get("on_late"))
        return ModelUse(name=key.text, model=model, version=version, deadline_ms=deadline_ms, on_late=on_late)

    def rules(self, node: Node | None) -> tuple[Rule, ...]:
        out: list[Rule] = []
        seen: dict[str, Node] = {}
        for item in self.items(node):
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
        if node is not None and len(out) > MAX_RULES:
            self.note(node, "limit", f"{len(out)} rules; at most {MAX_RULES} fit the firing mask", "split the strategy")
        return tuple(out)

    def rule(self, node: Node) -> Rule | None:
        parts = self.map_of(node)
        if "id" not in parts or ("drop_when" in parts) == ("when" in parts):
            return None
        drop = "drop_when" in parts
        condition = self.expression(parts["drop_when" if drop else "when"])
        assert condition is not None
        return Rule(
            id=self.text(parts["id"]),
            condition=condition,
            drop=drop,
            set=self.expression(parts.get("set")),
            add=self.expression(parts.get("add")),
            multiply=self.expression(parts.get("multiply")),
            why=self.text(parts.get("why")),
            owner=self.text(parts.get("owner")),
            kill_switch=self.text(parts.get("kill_switch")),
            on_unknown=self.text(parts.get("on_unknown")) or None,
        )

    def outputs(self, node: Node | None) -> dict[str, SourceText]:
        """Named values of every survivor: names of the answer, not of the strategy."""
        return self.named(node, "outputs", lambda _, value: self.expression(value))

    # ---------- ranking, exploring ----------

    def rank(self, node: Node | None, candidate_key: str, fields: Mapping[str, Type]) -> Rank:
        parts = self.map_of(node)
        ties = self.text(parts.get("ties"), candidate_key)
        if ties not in fields:
            self.note(parts["ties"], "name", f"rank.ties: no candidate field '{ties}'", name_hint(ties, fields))
        elif fields[ties].nullable or fields[ties].kind not in ("int", "string"):
            self.note(
                parts["ties"],
                "type",
                f"rank.ties: '{ties}' is a {fields[ties]}; ties need an int or a string, never null",
            )
        return Rank(ties=ties, keep=self.number(parts.get("keep"), 50, kind=int))

    def explore(self, node: Node | None, strategy: str) -> Explore:
        parts = self.map_of(node)
        return Explore(
            kind=self.text(parts.get("kind"), "none"),
            salt=self.text(parts.get("salt"), f"{strategy}:explore"),
            epsilon=self.number(parts.get("epsilon"), 0.0),
            temperature=self.number(parts.get("temperature"), 0.0),
            top_k=self.number(parts.get("top_k"), 0, kind=int),
        )

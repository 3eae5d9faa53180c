"""Words to describe a YAML file with: what a value may be, which keys a mapping has. One description serves two readers.

`check` walks a file along its description and notes everything that does not fit (`engine/sections.py` describes a
strategy); `schema` writes the same as JSON Schema, for editors (`engine/schema.py`). What depends on more than one
place of the file (names, references, bounds of a parameter) is not here: `engine/loader.py` checks that.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from features.expr.types import INT_MAX, INT_MIN
from features.yaml_source import MapNode, Node, ScalarNode, SeqNode, name_hint

Note = Callable[[Node, str, str, str], None]  # node, kind, message, hint
Json = dict[str, Any]
IDENTIFIER: Final = "[A-Za-z_][A-Za-z0-9_]*"
NAME_HINT: Final = "use letters, digits and _, not starting with a digit"


def number_of(node: Node) -> int | float | None:
    """The finite number at a node; None for anything else, and for whole numbers beyond 64 bits."""
    value = node.value if isinstance(node, ScalarNode) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or _is_odd(node):
        return None
    return value


def is_whole(value: int | float) -> bool:
    """Whether the number is one that an int of 64 bits holds; 1e300 is whole, and none of them."""
    return INT_MIN <= value <= INT_MAX and value == int(value)


def _is_odd(node: Node) -> bool:
    """A number that the language does not have: NaN, infinity, a whole number beyond 64 bits."""
    value = node.value if isinstance(node, ScalarNode) else None
    if isinstance(value, float):
        return not math.isfinite(value)
    return isinstance(value, int) and not INT_MIN <= value <= INT_MAX


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a value may be. `doc` is what an editor shows."""

    doc: str = ""

    def check(self, node: Node, what: str, note: Note) -> None:
        """Note what does not fit. `what` is what messages call the value."""
        raise NotImplementedError

    def schema(self) -> Json:
        """The same as JSON Schema, `doc` included."""
        return {**({"description": self.doc} if self.doc else {}), **self.body()}

    def body(self) -> Json:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Text(Shape):
    """A text that is not empty. With `pattern`, the whole text has to match it: else `message` and `hint` are noted, in
    which `{text}` is what was written."""

    pattern: str = ""
    kind: str = "type"
    message: str = ""
    hint: str = ""
    may_be_empty: bool = False

    def check(self, node: Node, what: str, note: Note) -> None:
        text = node.value if isinstance(node, ScalarNode) else None
        if not isinstance(text, str) or (not text and not self.may_be_empty):
            if self.message and isinstance(node, ScalarNode):
                note(node, self.kind, self.message.format(what=what, text=node.text), self.hint)
            else:
                quoted = f"put it in quotes: '{node.text}'" if isinstance(node, ScalarNode) and node.text else ""
                note(node, "type", f"{what} must be a text", self.hint or quoted)
        elif self.pattern and not re.fullmatch(self.pattern, text):
            note(node, self.kind, self.message.format(what=what, text=text), self.hint)

    def body(self) -> Json:
        out: Json = {"type": "string"}
        if not self.may_be_empty:
            out["minLength"] = 1
        if self.pattern:
            out["pattern"] = f"^(?:{self.pattern})$"
        return out


@dataclass(frozen=True, kw_only=True)
class Choice(Shape):
    """One of a few words; `null` among them is YAML's."""

    of: Sequence[str]

    def check(self, node: Node, what: str, note: Note) -> None:
        if isinstance(node, ScalarNode) and node.value in self._values():
            return
        text = node.text if isinstance(node, ScalarNode) else ""
        one_of = "one of " if len(self.of) > 1 else ""
        note(node, "value", f"{what} must be {one_of}{', '.join(self.of)}, not '{text}'", "")

    def body(self) -> Json:
        return {"enum": self._values()}

    def _values(self) -> list[str | None]:
        return [*self.of, *([None] if "null" in self.of else [])]


@dataclass(frozen=True, kw_only=True)
class Number(Shape):
    """A finite number from `low` to `high`, both included. `whole`: without a fraction (2.0 is whole)."""

    whole: bool = False
    low: float = -math.inf
    high: float = math.inf

    def check(self, node: Node, what: str, note: Note) -> None:
        value = number_of(node)
        if value is None or (self.whole and not is_whole(value)):
            note(node, "type", f"{what} must be a {'whole ' if self.whole else ''}number", "")
        elif not self.low <= value <= self.high:
            upper = f"from {self.low:g} to {self.high:g}"
            wanted = f"at least {self.low:g}" if self.high == math.inf else upper
            note(node, "bound", f"{what} is {value:g}; it must be {wanted}", "")

    def body(self) -> Json:
        out: Json = {"type": "integer" if self.whole else "number"}
        if self.low > -math.inf:
            out["minimum"] = self.low
        if self.high < math.inf:
            out["maximum"] = self.high
        return out


@dataclass(frozen=True, kw_only=True)
class Flag(Shape):
    """true or false."""

    def check(self, node: Node, what: str, note: Note) -> None:
        if not isinstance(node, ScalarNode) or not isinstance(node.value, bool):
            note(node, "type", f"{what} must be a bool", "")

    def body(self) -> Json:
        return {"type": "boolean"}


@dataclass(frozen=True, kw_only=True)
class Scalar(Shape):
    """Any single value; what it has to be, another place of the file says."""

    null: bool = True

    def check(self, node: Node, what: str, note: Note) -> None:
        value = node.value if isinstance(node, ScalarNode) else None
        if not isinstance(node, ScalarNode) or _is_odd(node) or (value is None and not self.null):
            note(node, "shape", f"{what} must be a value", "")

    def body(self) -> Json:
        return {"type": ["string", "number", "boolean", *(["null"] if self.null else [])]}


@dataclass(frozen=True, kw_only=True)
class Expression(Shape):
    """An expression. One that is a number or a bool alone need not be in quotes."""

    def check(self, node: Node, what: str, note: Note) -> None:
        value = node.value if isinstance(node, ScalarNode) else None
        if value is None or _is_odd(node) or (isinstance(value, str) and not re.search(r"[^ \t\r\n]", value)):
            note(node, "shape", f"{what} must be an expression", "")

    def body(self) -> Json:
        return {"type": ["string", "number", "boolean"], "pattern": r"[^ \t\r\n]"}


@dataclass(frozen=True, kw_only=True)
class ListOf(Shape):
    """A list. `title` is what messages call an item."""

    item: Shape
    title: str
    hint: str = ""

    def check(self, node: Node, what: str, note: Note) -> None:
        if not isinstance(node, SeqNode):
            note(node, "shape", f"{what} must be a list", self.hint)
            return
        for item in node:
            self.item.check(item, self.title, note)

    def body(self) -> Json:
        return {"type": "array", "items": self.item.schema()}


@dataclass(frozen=True, kw_only=True)
class MapOf(Shape):
    """A mapping whose keys are the author's names. `pattern`: what a key may be; `reserved`: what it may not."""

    value: Shape
    pattern: str = IDENTIFIER
    reserved: Sequence[str] = ()
    hint: str = NAME_HINT

    def check(self, node: Node, what: str, note: Note) -> None:
        if not isinstance(node, MapNode):
            note(node, "shape", f"{what} must be a mapping of names", "write name: value, one a line")
            return
        for key, value in node.items():
            if key.text in self.reserved:
                note(key, "name", f"{what}: '{key.text}' is reserved", "choose another name")
            elif not re.fullmatch(self.pattern, key.text):
                note(key, "name", f"{what}: '{key.text}' is not a name", self.hint)
            self.value.check(value, f"{what}.{key.text}", note)

    def body(self) -> Json:
        names: Json = {"pattern": f"^(?:{self.pattern})$"}
        if self.reserved:
            names["not"] = {"enum": sorted(self.reserved)}
        return {"type": "object", "propertyNames": names, "additionalProperties": self.value.schema()}


@dataclass(frozen=True, kw_only=True)
class Either(Shape):
    """A single value, or a mapping."""

    scalar: Shape
    mapping: Shape

    def check(self, node: Node, what: str, note: Note) -> None:
        (self.mapping if isinstance(node, MapNode) else self.scalar).check(node, what, note)

    def body(self) -> Json:
        return {"anyOf": [self.scalar.schema(), self.mapping.schema()]}


@dataclass(frozen=True, kw_only=True)
class Case:
    """What else holds when the key that decides has a certain value: keys that must be there, keys that must not with the
    message ({what} is the mapping, {key} the key), and shapes of others."""

    needs: Mapping[str, str] = field(default_factory=dict)  # key to hint
    forbids: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # key to (message, hint)
    shapes: Mapping[str, Shape] = field(default_factory=dict)

    def body(self) -> Json:
        properties: Json = dict.fromkeys(self.forbids, False) | {k: s.schema() for k, s in self.shapes.items()}
        out: Json = {"properties": properties} if properties else {}
        if self.needs:
            out["required"] = list(self.needs)
        return out


@dataclass(frozen=True, kw_only=True)
class Keys(Shape):
    """A mapping whose keys are known. `titled` is the key whose value names the mapping in messages; `prefix`: whether
    messages about its values begin with what the mapping is called.

    `by`: the key that decides between `cases`, by its value (`default` where it is not there). `one_of`: exactly one of
    these keys has to be there, and `cases` go by which. `any_of`: with the key on the left, one of those on the right.
    """

    entries: Mapping[str, Shape]
    required: Sequence[str] = ()
    titled: str = ""
    title: str = ""
    prefix: bool = True
    by: str = ""
    default: str = ""
    cases: Mapping[str, Case] = field(default_factory=dict)
    one_of: Sequence[str] = ()
    any_of: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def check(self, node: Node, what: str, note: Note) -> None:
        if not isinstance(node, MapNode):
            note(node, "shape", f"{what} must be a mapping", f"its keys are {', '.join(self.entries)}")
            return
        given = {key.text: value for key, value in node.items()}
        what = self._named(what, given)
        for key in (key for key, _ in node.items() if key.text not in self.entries):
            note(key, "unknown-key", f"{what}: unknown key '{key.text}'", name_hint(key.text, self.entries))
        for name in self.required:
            if name not in given:
                note(node, "missing", f"{what}: '{name}' is missing", "")
        case = self._case(node, what, given, note)
        for name, value in given.items():
            if name in case.forbids:
                message, hint = case.forbids[name]
                note(value, "extra-key", message.format(what=what, key=name), hint)
            elif name in self.entries:
                shape = case.shapes.get(name, self.entries[name])
                shape.check(value, f"{what}.{name}" if self.prefix else name, note)
        for name, hint in case.needs.items():
            if name not in given:
                note(node, "missing", f"{what}: '{name}' is missing", hint)

    def _named(self, what: str, given: Mapping[str, Node]) -> str:
        name = given.get(self.titled)
        return f"{self.title} {name.text}" if isinstance(name, ScalarNode) and name.value else what

    def _case(self, node: Node, what: str, given: Mapping[str, Node], note: Note) -> Case:
        if self.one_of:
            there = [name for name in self.one_of if name in given]
            if len(there) != 1:
                kept = "keep one" if there else "give it one"
                note(node, "rule", f"{what} needs one of {' and '.join(self.one_of)}", f"{kept} of them")
                return Case()
            wanted = self.any_of.get(there[0])
            if wanted and not any(name in given for name in wanted):
                hint = f"give it {', '.join(wanted[:-1])} or {wanted[-1]}"
                note(node, "rule", f"{what} has no effect", hint)
            return self.cases.get(there[0], Case())
        decides = given.get(self.by)
        value = self.default if decides is None else decides.value if isinstance(decides, ScalarNode) else None
        return self.cases.get(value, Case()) if isinstance(value, str) else Case()

    def body(self) -> Json:
        out: Json = {
            "type": "object",
            "properties": {name: shape.schema() for name, shape in self.entries.items()},
            "additionalProperties": False,
        }
        if self.required:
            out["required"] = list(self.required)
        rules: list[Json] = []
        if self.one_of:
            out["oneOf"] = [{"required": [name]} for name in self.one_of]
            for name in self.one_of:
                then = dict(self.cases.get(name, Case()).body())
                if name in self.any_of:
                    then["anyOf"] = [{"required": [other]} for other in self.any_of[name]]
                others = [{"required": [other]} for other in self.one_of if other != name]
                rules.append({"if": {"required": [name], "not": {"anyOf": others}}, "then": then})
        for value, case in self.cases.items() if self.by else ():
            test: Json = {"properties": {self.by: {"const": value}}}
            if value != self.default:
                test["required"] = [self.by]
            if case.body():
                rules.append({"if": test, "then": case.body()})
        return out | ({"allOf": rules} if rules else {})

"""What nodes share when they are checked: overloads, kinds that give way, nulls that are refused, and the messages.

`checker.py` walks the tree and calls these.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Final

from features.expr import cost
from features.expr.errors import Mistake, Mistakes, mistake_at
from features.expr.nodes import Call, Node
from features.expr.program import Step
from features.expr.source import SourceText
from features.expr.types import DOUBLE, Overload, Type, signature

_EMPTY_VALUE: Final = {
    "int": "0", "double": "0.0", "bool": "false", "string": "''", "duration": "duration('0s')",
    "timestamp": "timestamp('1970-01-01T00:00:00Z')",
}  # fmt: skip
_TIME_HINTS: Final = {
    ("string", "timestamp"): "a timestamp is written timestamp('2024-03-10T07:30:00Z')",
    ("int", "timestamp"): "a timestamp is written timestamp('2024-03-10T07:30:00Z'); timestamp(s) takes seconds",
    ("string", "duration"): "a duration is written duration('1h30m')",
    ("int", "duration"): "a duration is written duration('90s')",
    ("double", "duration"): "a duration is written duration('1.5s')",
}


_CASTS: Final = {
    ("int", "double"): "double({})",
    ("double", "int"): "int({})",
    ("timestamp", "int"): "int({})",
    ("duration", "int"): "({}).getSeconds()",
    ("duration", "double"): "double(({}).getSeconds())",
}


class Operands:
    """Rules about operands, and the mistakes found so far."""

    def __init__(self, source: SourceText, names: Mapping[str, Type], mistakes: list[Mistake], *, strict: bool) -> None:
        self.source, self.names, self.mistakes, self.strict = source, names, mistakes, strict
        self.items: dict[str, Step] = {}  # loop variables in sight, each as the step that reads it
        self.loops: set[str] = set()  # unique variables given so far

    def fit(self, step: Step, expect: Type) -> Step | None:
        """The step as a value of the expected type, or a mistake."""
        fitted = self._coerce(step, expect.kind)
        if fitted is None:
            hint = _TIME_HINTS.get((step.type.kind, expect.kind), "")
            cast = _CASTS.get((step.type.kind, expect.kind))
            if cast:
                hint = f"convert it: {cast.format(self._text(step))}"
            elif expect.kind == "bool":
                hint = f"compare it with something: {self._text(step)} == …"
            self._note(step, "type", f"this is {with_article(step.type)}, and {with_article(expect)} is expected", hint)
            return None
        if fitted.type.nullable and not expect.nullable:
            default = _EMPTY_VALUE.get(expect.kind)
            hint = f"give a default: {self._operand(step)} ?? {default}" if default else "guard the names it reads"
            self._note(
                step, "nullable", f"this may be null ({step.type}), and {with_article(expect)} is expected", hint
            )
            return None
        return fitted

    def _apply(self, node: Node, name: str, overloads: tuple[Overload, ...], args: list[Step | None]) -> Step | None:
        """A strict operator or function: no nullable argument, one overload that fits."""
        for arg in args:
            if arg is not None:
                self._refuse_null(arg, name)
        known = [arg for arg in args if arg is not None]
        if len(known) < len(args) or any(arg.type.kind == "null" for arg in known):
            return None
        for overload in overloads:
            fitted = [self._coerce(arg, overload.param(index)) for index, arg in enumerate(known)]
            steps = tuple(arg for arg in fitted if arg is not None)
            if len(steps) == len(known):
                return Step(overload.step, Type(overload.result), steps, node.start, node.end)
        self._no_overload(node, name, overloads, known)
        return None

    def _no_overload(self, node: Node, name: str, overloads: tuple[Overload, ...], args: list[Step]) -> None:
        kinds = " and ".join(arg.type.kind for arg in args)
        hint = ""
        if isinstance(node, Call):
            hint = self._number_hint(args) or f"it is {signature(name)}"
            if name == "string" and args[0].type.kind == "double":
                hint = "a double has no one spelling; convert it first: string(int(…))"
            elif name == "int" and args[0].type.kind == "duration":
                hint = f"the whole seconds of it are ({self._text(args[0])}).getSeconds()"
        elif name in ("*", "/", "%", "unary -") and any(arg.type.kind == "duration" for arg in args):
            hint = "durations are added, subtracted and compared; a number of it is (…).getSeconds()"
        elif any(arg.type.is_list for arg in args):
            hint = "lists are searched: x in tags, tags.exists(t, …), tags.all(t, …), size(tags)"
        else:
            hint = self._mixed_hint(args)
        if not hint:
            near = [one for one in overloads if any(arg.type.kind in one.params for arg in args)] or overloads
            accepted = ", ".join(" and ".join(overload.params) for overload in near)
            hint = f"'{name}' takes {accepted}"
        self._note(node, "type", f"'{name}' does not take {kinds}", hint)

    def _mixed_hint(self, args: list[Step]) -> str:
        """The cure for kinds that are never converted in silence: int beside double, texts and numbers beside times."""
        for one, other in itertools.pairwise(args):
            for pair in ((one.type.kind, other.type.kind), (other.type.kind, one.type.kind)):
                if pair in _TIME_HINTS:
                    return _TIME_HINTS[pair]
        return self._number_hint(args)

    def _number_hint(self, args: list[Step]) -> str:
        ints = [arg for arg in args if arg.type.kind == "int"]
        if not ints or {arg.type.kind for arg in args} != {"int", "double"}:
            return ""
        first = ints[0]
        if first.step == "const":
            return f"{first.value} is not exact as a double; write the double that you mean"
        return f"convert the int: double({self._text(first)})"

    def _same_kind(self, left: Step, right: Step, where: str) -> tuple[Step, Step] | None:
        """Both sides as one kind: literals and null give way to the other side."""
        for kind in (left.type.kind, right.type.kind):
            a, b = self._coerce(left, kind), self._coerce(right, kind)
            if a is not None and b is not None:
                return a, b
        message = f"{where} differ: {left.type.kind} and {right.type.kind}"
        span = (left.start, right.end)
        hint = self._mixed_hint([left, right]) or "both must have one type"
        self.mistakes.append(mistake_at(self.source, *span, "type", message, hint))
        return None

    def _bool(self, step: Step | None, op: str) -> Step | None:
        if step is None:
            return None
        fitted = self._coerce(step, "bool")
        if fitted is None:
            hint = f"compare it with something: {self._text(step)} == …"
            self._note(step, "type", f"'{op}' takes bool, and this is {with_article(step.type)}", hint)
        return fitted

    def _refuse_null(self, step: Step, name: str) -> None:
        if not step.type.nullable:
            return
        if step.type.kind == "null":
            self._note(
                step, "nullable", f"null cannot stand beside '{name}'", "test for null with '== null' or '!= null'"
            )
            return
        text, default = self._text(step), _EMPTY_VALUE.get(step.type.kind)  # a list has no default
        hint = f"give a default: ({self._operand(step)} ?? {default})" if default else "guard the names it reads"
        if step.step == "name":
            hint = f"guard it: {text} != null && …" + f", or give a default: ({text} ?? {default})" * bool(default)
        self._note(step, "nullable", f"'{text}' may be null ({step.type}), and '{name}' needs a value", hint)

    def _operand(self, step: Step) -> str:
        """The text of a step, in parentheses unless it is one word."""
        text = self._text(step)
        return text if step.step in ("name", "const") else f"({text})"

    def _text(self, step: Step) -> str:
        text = " ".join(self.source.text[step.start : step.end].split())
        return text if len(text) <= 60 else text[:59] + "…"

    def limit_cost(self, root: Step) -> None:
        """Raises: Mistakes when a row may cost too much; the place is the innermost part that does."""
        step = cost.too_costly(root)
        if step is None:
            return
        message = f"this may cost {cost.cost_of(step)} steps a row; {cost.MAX_COST} are allowed"
        hint = f"a loop counts its condition {cost.ASSUMED_LIST} times; nest fewer loops, or shorten what is inside"
        self._note(step, "limit", message, hint)
        raise Mistakes(self.mistakes)

    def _not_cel(self, where: Node | Step, message: str) -> None:
        self._note(where, "strict", message, "this expression is compiled as plain CEL (strict)")

    def _coerce(self, step: Step, kind: str) -> Step | None:
        return _coerce(step, kind, literals=not self.strict)

    def _note(self, where: Node | Step, kind: str, message: str, hint: str = "") -> None:
        self.mistakes.append(mistake_at(self.source, where.start, where.end, kind, message, hint))


def _coerce(step: Step, kind: str, *, literals: bool) -> Step | None:
    """The step as that kind: itself, null as any, an int literal as an exact double if `literals`; in `? :` and `??`."""
    if step.type.kind == kind:
        return step
    if not literals:
        return None
    if step.step == "const" and step.value is None:
        return Step("const", Type(kind, True), (), step.start, step.end, None)
    if step.step == "const" and kind == "double" and step.type.kind == "int":
        whole = int(step.value or 0)
        value = float(whole)
        return Step("const", DOUBLE, (), step.start, step.end, value) if int(value) == whole else None
    if step.step in ("if", "coalesce"):
        kept = step.args[:1] if step.step == "if" else ()
        parts = [_coerce(arg, kind, literals=literals) for arg in step.args[len(kept) :]]
        args = (*kept, *(part for part in parts if part is not None))
        if len(args) == len(step.args):
            return Step(step.step, Type(kind, step.type.nullable), args, step.start, step.end)
    return None


def with_article(kind: Type) -> str:
    text = str(kind)
    return text if text == "null" else f"{'an' if text[0] == 'i' else 'a'} {text}"

"""Tree to typed steps: names, types, nullability. All mistakes of the expression are found in one run.

Narrowing: behind `x != null &&`, `x == null ||`, and in the branches of a ternary, a nullable name counts as present.
The language is order-free (a null on one side of `&&` is absorbed by false on the other), so narrowing is a matter of
the checker alone and no back end needs to know of it.

Deviations from CEL, all at compile time: an int literal next to a double is read as a double when exact; `a ?? b`;
nullable types; `int / int` does not compile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from features.expr.errors import Mistake, Mistakes, did_you_mean, mistake_at, name_hint
from features.expr.nodes import Bad, Binary, Call, In, Literal, Logic, Name, Node, Ternary, Unary
from features.expr.parser import parse
from features.expr.program import Program, Step
from features.expr.source import SourceText
from features.expr.types import (
    BOOL,
    CALL_NAMES,
    DOUBLE,
    FUNCTIONS,
    INT,
    NULL,
    OPERATORS,
    STRING,
    Overload,
    Type,
    signature,
)

_EMPTY_VALUE: Final = {"int": "0", "double": "0.0", "bool": "false", "string": "''"}
_ORDER: Final = frozenset({"<", "<=", ">", ">="})
_NO_NAMES: Final[frozenset[str]] = frozenset()


def compile_expr(source: SourceText, names: Mapping[str, Type], *, expect: Type | None = None) -> Program:
    """Parse and check an expression over typed names.

    `expect` is the type the result must have; a result that is never null also serves where null is allowed.
    Raises: Mistakes, all of them at once.
    """
    tree, mistakes = parse(source)
    if tree is None:
        raise Mistakes(mistakes)
    checker = _Checker(source, names, mistakes)
    checked = checker.check(tree, _NO_NAMES)
    root = checked.step
    if root is not None and expect is not None:
        root = checker.fit(root, expect)
    if mistakes or root is None:
        raise Mistakes(mistakes)
    used = frozenset(str(step.value) for step in root.walk() if step.step == "name")
    return Program(root.type, used, source, root, checked.if_false)


class _Checked(NamedTuple):
    """A step (None where a mistake is noted), and the names that are present when it is true, or false."""

    step: Step | None
    if_true: frozenset[str] = _NO_NAMES
    if_false: frozenset[str] = _NO_NAMES


class _Checker:
    def __init__(self, source: SourceText, names: Mapping[str, Type], mistakes: list[Mistake]) -> None:
        self.source, self.names, self.mistakes = source, names, mistakes

    def check(self, node: Node, present: frozenset[str]) -> _Checked:
        """The typed form of a node, where the names in `present` are known not to be null."""
        if isinstance(node, Literal):
            return _Checked(Step("const", _literal_type(node.value), (), node.start, node.end, node.value))
        if isinstance(node, Name):
            return _Checked(self._name(node, present))
        if isinstance(node, Logic):
            return self._logic(node, present)
        if isinstance(node, Ternary):
            return _Checked(self._ternary(node, present))
        if isinstance(node, Unary):
            return self._unary(node, present)
        if isinstance(node, In):
            return _Checked(self._in(node, present))
        if isinstance(node, Call):
            return self._call(node, present)
        if isinstance(node, Binary):
            return self._binary(node, present)
        assert isinstance(node, Bad)
        return _Checked(None)

    def fit(self, step: Step, expect: Type) -> Step | None:
        """The step as a value of the expected type, or a mistake."""
        fitted = _coerce(step, expect.kind)
        if fitted is None:
            hint = ""
            if (step.type.kind, expect.kind) == ("int", "double"):
                hint = f"convert it: double({self._text(step)})"
            elif expect.kind == "bool":
                hint = f"compare it with something: {self._text(step)} == …"
            elif (step.type.kind, expect.kind) == ("double", "int"):
                hint = f"convert it: int({self._text(step)})"
            self._note(step, "type", f"this is {_a(step.type)}, and {_a(expect)} is expected", hint)
            return None
        if fitted.type.nullable and not expect.nullable:
            default = _EMPTY_VALUE.get(expect.kind, "…")
            hint = f"give a default: {self._operand(step)} ?? {default}"
            self._note(step, "nullable", f"this may be null ({step.type}), and {_a(expect)} is expected", hint)
            return None
        return fitted

    # one method a kind of node --------------------------------------------------------------------------------------

    def _name(self, node: Name, present: frozenset[str]) -> Step | None:
        found = self.names.get(node.name)
        if found is None:
            self._note(node, "unknown-name", f"unknown name '{node.name}'", self._name_hint(node.name))
            return None
        if node.name in present:
            found = found.required()
        return Step("name", found, (), node.start, node.end, node.name)

    def _name_hint(self, name: str) -> str:
        owner = name.rpartition(".")[0]
        if owner in self.names and did_you_mean(name, self.names) is None:
            return f"'{owner}' is {_a(self.names[owner])} and has no fields"
        return name_hint(name, self.names)

    def _logic(self, node: Logic, present: frozenset[str]) -> _Checked:
        is_and = node.op == "&&"
        steps: list[Step | None] = []
        every: list[frozenset[str]] = []  # what each item says when the chain stops at it
        passed = _NO_NAMES  # what holds when all items so far were passed
        for item in node.items:
            checked = self.check(item, present | passed)
            steps.append(self._bool(checked.step, node.op))
            passed |= checked.if_true if is_and else checked.if_false
            every.append(checked.if_false if is_and else checked.if_true)
        stopped = frozenset.intersection(*every)
        step = None
        if all(item is not None for item in steps):
            args = tuple(item for item in steps if item is not None)
            kind = Type("bool", any(item.type.nullable for item in args))
            step = Step("and" if is_and else "or", kind, args, node.start, node.end)
        return _Checked(step, passed, stopped) if is_and else _Checked(step, stopped, passed)

    def _ternary(self, node: Ternary, present: frozenset[str]) -> Step | None:
        condition = self.check(node.condition, present)
        test = self._bool(condition.step, "? :")
        if test is not None and test.type.nullable:
            hint = f"say what null means: {self._operand(test)} ?? false"
            self._note(test, "nullable", f"the condition may be null ({test.type})", hint)
        then = self.check(node.then, present | condition.if_true).step
        otherwise = self.check(node.otherwise, present | condition.if_false).step
        if test is None or then is None or otherwise is None:
            return None
        pair = self._same_kind(then, otherwise, "the branches of '? :'")
        if pair is None:
            return None
        kind = Type(pair[0].type.kind, pair[0].type.nullable or pair[1].type.nullable)
        return Step("if", kind, (test, *pair), node.start, node.end)

    def _unary(self, node: Unary, present: frozenset[str]) -> _Checked:
        checked = self.check(node.operand, present)
        if node.op == "!":
            operand = self._bool(checked.step, "!")
            step = operand and Step("not", operand.type, (operand,), node.start, node.end)
            return _Checked(step, checked.if_false, checked.if_true)
        return _Checked(self._apply(node, "-", OPERATORS["unary -"], [checked.step]))

    def _binary(self, node: Binary, present: frozenset[str]) -> _Checked:
        left, right = self.check(node.left, present).step, self.check(node.right, present).step
        if node.op in ("==", "!="):
            for one, other in ((left, right), (right, left)):
                if one is not None and one.step == "const" and one.value is None:
                    return self._null_test(node, other, node.op == "==")
        if node.op == "??":
            return _Checked(self._coalesce(node, left, right))
        if node.op == "/" and left is not None and right is not None and left.type.kind == right.type.kind == "int":
            a, b = self._text(left), self._text(right)
            real_a, real_b = (
                f"{s.value}.0" if s.step == "const" else f"double({self._text(s)})" for s in (left, right)
            )
            hint = f"write div({a}, {b}) for the whole number, or {real_a} / {real_b}"
            self._note(node, "int-division", "'/' between two ints does not compile", hint)
            return _Checked(None)
        chained = isinstance(node.left, Binary) and node.left.op in _ORDER and node.op in _ORDER
        if chained and left is not None and left.type.kind == "bool":
            hint = "join two comparisons: a < b && b < c"
            self._note(node, "type", f"'{node.op}' cannot compare the result of a comparison", hint)
            return _Checked(None)
        return _Checked(self._apply(node, node.op, OPERATORS[node.op], [left, right]))

    def _coalesce(self, node: Binary, left: Step | None, right: Step | None) -> Step | None:
        pair = None if left is None or right is None else self._same_kind(left, right, "the sides of '??'")
        if pair is None:
            return None
        kind = Type(pair[0].type.kind, pair[0].type.nullable and pair[1].type.nullable)
        return Step("coalesce", kind, pair, node.start, node.end)

    def _in(self, node: In, present: frozenset[str]) -> Step | None:
        item = self.check(node.item, present).step
        options = [self.check(option, present).step for option in node.options]
        if not options:
            self._note(node, "type", "the list is empty, so this is always false", "list the values to look for")
        for option in options:
            if option is not None and (option.step != "const" or option.value is None):
                self._note(
                    option, "type", "a list behind 'in' holds literals only", "compare with '==' and join with '||'"
                )
                return None
        if item is None or any(option is None for option in options):
            return None
        self._refuse_null(item, "in")
        if item.type.kind == "null":
            return None
        known = [option for option in options if option is not None]
        if item.type.kind == "int" and any(option.type.kind == "double" for option in known):
            item = _coerce(item, "double") or item
        fitted = [_coerce(option, item.type.kind) for option in known]
        for option, good in zip(known, fitted, strict=True):
            if good is None:
                message = f"{_a(option.type)} in a list that is searched for {_a(item.type.required())}"
                self._note(option, "type", message)
        args = (item, *(option for option in fitted if option is not None))
        return Step(f"in_{item.type.kind}", BOOL, args, node.start, node.end)

    def _call(self, node: Call, present: frozenset[str]) -> _Checked:
        if node.name == "has":
            if len(node.args) == 1 and isinstance(node.args[0], Name):
                return self._null_test(node, self._name(node.args[0], present), False)
            self._note(node, "type", "has(…) takes one name", "for a value that is computed write '(…) != null'")
            return _Checked(None)
        args = [self.check(arg, present).step for arg in node.args]
        overloads = FUNCTIONS.get(node.name)
        if overloads is None:
            self._unknown_function(node)
            return _Checked(None)
        fitting = [overload for overload in overloads if overload.takes(len(args))]
        if not fitting:
            message = f"{node.name} does not take {len(args)} argument{'' if len(args) == 1 else 's'}"
            self._note(node, "type", message, f"it is {signature(node.name)}")
            return _Checked(None)
        return _Checked(self._apply(node, node.name, tuple(fitting), args))

    def _unknown_function(self, node: Call) -> None:
        near = did_you_mean(node.name, CALL_NAMES)
        if node.name == "if":
            hint = "it is if(condition, then, otherwise)"
        elif near is None and f"math.{node.name}" in FUNCTIONS:
            hint = f"did you mean 'math.{node.name}'?"
        else:
            hint = f"did you mean '{near}'?" if near else f"known: {', '.join(sorted(CALL_NAMES))}"
        message = (
            f"unknown function '{node.name}'" if node.name != "if" else f"if does not take {len(node.args)} arguments"
        )
        self.mistakes.append(mistake_at(self.source, node.name_start, node.name_end, "unknown-function", message, hint))

    # rules that nodes share -----------------------------------------------------------------------------------------

    def _null_test(self, node: Node, operand: Step | None, is_null: bool) -> _Checked:
        if operand is None:
            return _Checked(None)
        step = Step("is_null", BOOL, (operand,), node.start, node.end)
        found = frozenset({str(operand.value)}) if operand.step == "name" else _NO_NAMES
        if is_null:
            return _Checked(step, _NO_NAMES, found)
        return _Checked(Step("not", BOOL, (step,), node.start, node.end), found, _NO_NAMES)

    def _apply(self, node: Node, name: str, overloads: tuple[Overload, ...], args: list[Step | None]) -> Step | None:
        """A strict operator or function: no nullable argument, one overload that fits."""
        for arg in args:
            if arg is not None:
                self._refuse_null(arg, name)
        known = [arg for arg in args if arg is not None]
        if len(known) < len(args) or any(arg.type.kind == "null" for arg in known):
            return None
        for overload in overloads:
            fitted = [_coerce(arg, overload.param(index)) for index, arg in enumerate(known)]
            steps = tuple(arg for arg in fitted if arg is not None)
            if len(steps) == len(known):
                return Step(overload.step, Type(overload.result), steps, node.start, node.end)
        self._no_overload(node, name, overloads, known)
        return None

    def _no_overload(self, node: Node, name: str, overloads: tuple[Overload, ...], args: list[Step]) -> None:
        kinds = " and ".join(arg.type.kind for arg in args)
        hint = self._mixed_hint(args)
        if not hint and isinstance(node, Call):
            hint = f"it is {signature(name)}"
            if name == "string" and args[0].type.kind == "double":
                hint = "a double has no one spelling; convert it first: string(int(…))"
        elif not hint:
            accepted = ", ".join(" and ".join(overload.params) for overload in overloads)
            hint = f"'{name}' takes {accepted}"
        self._note(node, "type", f"'{name}' does not take {kinds}", hint)

    def _mixed_hint(self, args: list[Step]) -> str:
        """The cure for int beside double, which is never converted in silence."""
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
            a, b = _coerce(left, kind), _coerce(right, kind)
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
        fitted = _coerce(step, "bool")
        if fitted is None:
            hint = f"compare it with something: {self._text(step)} == …"
            self._note(step, "type", f"'{op}' takes bool, and this is {_a(step.type)}", hint)
        return fitted

    def _refuse_null(self, step: Step, name: str) -> None:
        if not step.type.nullable:
            return
        if step.type.kind == "null":
            self._note(
                step, "nullable", f"null cannot stand beside '{name}'", "test for null with '== null' or '!= null'"
            )
            return
        text, default = self._text(step), _EMPTY_VALUE[step.type.kind]
        hint = f"give a default: ({self._operand(step)} ?? {default})"
        if step.step == "name":
            hint = f"guard it: {text} != null && …, or give a default: ({text} ?? {default})"
        self._note(step, "nullable", f"'{text}' may be null ({step.type}), and '{name}' needs a value", hint)

    def _operand(self, step: Step) -> str:
        """The text of a step, in parentheses unless it is one word."""
        text = self._text(step)
        return text if step.step in ("name", "const") else f"({text})"

    def _text(self, step: Step) -> str:
        text = " ".join(self.source.text[step.start : step.end].split())
        return text if len(text) <= 60 else text[:59] + "…"

    def _note(self, where: Node | Step, kind: str, message: str, hint: str = "") -> None:
        self.mistakes.append(mistake_at(self.source, where.start, where.end, kind, message, hint))


def _literal_type(value: bool | int | float | str | None) -> Type:
    if value is None:
        return NULL
    if isinstance(value, bool):
        return BOOL
    return INT if isinstance(value, int) else DOUBLE if isinstance(value, float) else STRING


def _coerce(step: Step, kind: str) -> Step | None:
    """The step as that kind: itself, an int literal as an exact double, null as any; through `? :` and `??`."""
    if step.type.kind == kind:
        return step
    if step.step == "const" and step.value is None:
        return Step("const", Type(kind, True), (), step.start, step.end, None)
    if step.step == "const" and kind == "double" and isinstance(step.value, int) and not isinstance(step.value, bool):
        value = float(step.value)
        return Step("const", DOUBLE, (), step.start, step.end, value) if int(value) == step.value else None
    if step.step in ("if", "coalesce"):
        kept = step.args[:1] if step.step == "if" else ()
        parts = [_coerce(arg, kind) for arg in step.args[len(kept) :]]
        args = (*kept, *(part for part in parts if part is not None))
        if len(args) == len(step.args):
            return Step(step.step, Type(kind, step.type.nullable), args, step.start, step.end)
    return None


def _a(kind: Type) -> str:
    text = str(kind)
    return text if text == "null" else f"{'an' if text[0] == 'i' else 'a'} {text}"

"""Tree to typed steps: names, types, nullability. All mistakes of the expression are found in one run.

Narrowing: behind `x != null &&`, `x == null ||`, and in the branches of a ternary, a nullable name counts as present.
The language is order-free (a null on one side of `&&` is absorbed by false on the other), so narrowing is a matter of
the checker alone and no back end needs to know of it.

Deviations from CEL, all at compile time: an int literal next to a double is read as a double when exact; `a ?? b`;
nullable types; `int / int` does not compile; functions that CEL has not (`types.py` marks them). `strict` has none of
them: what it compiles means in Google's CEL what it means here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from features.expr.errors import Mistakes, did_you_mean, mistake_at, name_hint
from features.expr.literals import LiteralMistake, read_literal
from features.expr.nodes import Bad, Binary, Call, In, InList, Literal, Logic, Macro, Name, Node, Ternary, Unary
from features.expr.operands import Operands, with_article
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
    ONLY_METHODS,
    OPERATORS,
    STRING,
    Overload,
    Type,
    signature,
)

_INT_DIVISION: Final = (Overload("div_int", ("int", "int"), "int"),)  # of the strict mode alone
_ORDER: Final = frozenset({"<", "<=", ">", ">="})
_NO_NAMES: Final[frozenset[str]] = frozenset()


def compile_expr(
    source: SourceText, names: Mapping[str, Type], *, expect: Type | None = None, strict: bool = False
) -> Program:
    """Parse and check an expression over typed names.

    `expect` is the type the result must have; a result that is never null also serves where null is allowed. `strict`
    is CEL without our deviations.
    Raises: Mistakes, all of them at once.
    """
    tree, mistakes = parse(source)
    if tree is None:
        raise Mistakes(mistakes)
    checker = _Checker(source, names, mistakes, strict=strict)
    checked = checker.check(tree, _NO_NAMES)
    root = checked.step
    if root is not None and expect is not None:
        root = checker.fit(root, expect)
    if mistakes or root is None:
        raise Mistakes(mistakes)
    checker.limit_cost(root)
    used = frozenset(str(step.value) for step in root.walk() if step.step == "name")
    return Program(root.type, used, source, root, checked.if_false)


class _Checked(NamedTuple):
    """A step (None where a mistake is noted), and the names that are present when it is true, or false."""

    step: Step | None
    if_true: frozenset[str] = _NO_NAMES
    if_false: frozenset[str] = _NO_NAMES


class _Checker(Operands):
    """The walk over the tree, one method a kind of node."""

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
        if isinstance(node, InList):
            return _Checked(self._in_list(node, present))
        if isinstance(node, Macro):
            return _Checked(self._macro(node, present))
        if isinstance(node, Call):
            return self._call(node, present)
        if isinstance(node, Binary):
            return self._binary(node, present)
        assert isinstance(node, Bad)
        return _Checked(None)

    # one method a kind of node --------------------------------------------------------------------------------------

    def _name(self, node: Name, present: frozenset[str]) -> Step | None:
        item = self.items.get(node.name)
        if item is not None:
            return Step("item", item.type, (), node.start, node.end, item.value)
        found = self.names.get(node.name)
        if found is None:
            self._note(node, "unknown-name", f"unknown name '{node.name}'", self._name_hint(node.name))
            return None
        if self.strict and found.nullable:
            self._not_cel(node, f"'{node.name}' may be null ({found}), and CEL has no such type")
            return None
        if node.name in present:
            found = found.required()
        return Step("name", found, (), node.start, node.end, node.name)

    def _name_hint(self, name: str) -> str:
        if self.items and did_you_mean(name, self.names) is None:
            return name_hint(name, {*self.names, *self.items})
        owner = name.rpartition(".")[0]
        if owner in self.names and did_you_mean(name, self.names) is None:
            return f"'{owner}' is {with_article(self.names[owner])} and has no fields"
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
        if node.is_call and self.strict:
            self._not_cel(node, "CEL has no if(…); write condition ? a : b")
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
        if self.strict and node.op == "/" and left is not None and left.type.kind == "int":
            return _Checked(self._apply(node, "/", _INT_DIVISION, [left, right]))
        if node.op in ("==", "!="):
            for one, other in ((left, right), (right, left)):
                if one is not None and one.step == "const" and one.value is None:
                    return self._null_test(node, other, node.op == "==")
        if node.op == "??":
            if self.strict:
                self._not_cel(node, "CEL has no '??'")
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
            item = self._coerce(item, "double") or item
        fitted = [self._coerce(option, item.type.kind) for option in known]
        for option, good in zip(known, fitted, strict=True):
            if good is None:
                wanted = with_article(item.type.required())
                message = f"{with_article(option.type)} in a list that is searched for {wanted}"
                self._note(option, "type", message)
        args = (item, *(option for option in fitted if option is not None))
        return Step(f"in_{item.type.kind}", BOOL, args, node.start, node.end)

    def _in_list(self, node: InList, present: frozenset[str]) -> Step | None:
        item, target = self.check(node.item, present).step, self._list(node.target, present, "in")
        if item is None or target is None:
            return None
        self._refuse_null(item, "in")
        fitted = None if item.type.kind == "null" else self._coerce(item, target.type.item.kind)
        if fitted is None:
            if item.type.kind != "null":
                message = f"{with_article(item.type.required())} is looked for in a {target.type}"
                self._note(item, "type", message, self._mixed_hint([item, Step("", target.type.item, (), 0, 0)]))
            return None
        return Step(
            f"in_{target.type.kind}".replace("(", "_").rstrip(")"), BOOL, (fitted, target), node.start, node.end
        )

    def _macro(self, node: Macro, present: frozenset[str]) -> Step | None:
        target = self._list(node.target, present, node.name)
        if target is None:
            return None  # without the type of the variable its condition cannot be checked
        unique, number = node.variable, 2
        while unique in self.loops or unique in self.names:
            unique, number = f"{node.variable}#{number}", number + 1
        self.loops.add(unique)
        hidden = self.items.get(node.variable)
        self.items[node.variable] = Step("item", target.type.item, (), node.start, node.end, unique)
        body = self._bool(self.check(node.body, present - {node.variable}).step, node.name)
        del self.items[node.variable]
        if hidden is not None:
            self.items[node.variable] = hidden
        return body and Step(node.name, Type("bool", body.type.nullable), (target, body), node.start, node.end, unique)

    def _list(self, node: Node, present: frozenset[str], name: str) -> Step | None:
        """A list that is not null."""
        step = self.check(node, present).step
        if step is None:
            return None
        if step.type.is_list:
            self._refuse_null(step, name)
            return step
        hint = "list the values: x in ['a', 'b']" if name == "in" else "lists have names of a type list(…)"
        if name == "in" and step.type.kind == "string":
            hint = f"for a part of a text write {self._text(step)}.contains(…)"
        self._note(step, "type", f"'{name}' takes a list, and this is {with_article(step.type)}", hint)
        return None

    def _call(self, node: Call, present: frozenset[str]) -> _Checked:
        if node.name == "has":
            if self.strict:
                self._not_cel(node, "CEL's has() takes a field of a message")
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
        if self.strict and not self._is_cel(node, fitting):
            return _Checked(None)
        step = self._apply(node, node.name, tuple(fitting), args)
        read = step and read_literal(step)
        if isinstance(read, LiteralMistake):
            self._note(read.at, read.kind, read.message, read.hint)
            return _Checked(None)
        return _Checked(read)

    def _is_cel(self, node: Call, overloads: list[Overload]) -> bool:
        if all(overload.ours for overload in overloads):
            self._not_cel(node, f"CEL has no {node.name}({', '.join(overloads[0].params)})")
            return False
        if node.name in ONLY_METHODS and not node.is_method:
            self._not_cel(node, f"in CEL {node.name} is called as a method: s.{node.name}(…)")
            return False
        return True

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

    def _null_test(self, node: Node, operand: Step | None, is_null: bool) -> _Checked:
        if operand is None:
            return _Checked(None)
        if self.strict and operand.type.kind != "null":
            self._not_cel(node, f"CEL does not compare {with_article(operand.type)} with null")
        step = Step("is_null", BOOL, (operand,), node.start, node.end)
        found = frozenset({str(operand.value)}) if operand.step == "name" else _NO_NAMES
        if is_null:
            return _Checked(step, _NO_NAMES, found)
        return _Checked(Step("not", BOOL, (step,), node.start, node.end), found, _NO_NAMES)


def _literal_type(value: bool | int | float | str | None) -> Type:
    if value is None:
        return NULL
    if isinstance(value, bool):
        return BOOL
    return INT if isinstance(value, int) else DOUBLE if isinstance(value, float) else STRING

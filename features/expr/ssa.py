"""Several Programs as one graph of numbered values, for the fused loop (`fused.py`): what two rules share is there once.

    graph = Graph(inputs={"eta_s": Input("eta_s", "double", nullable=True)})
    root = graph.add(program)      # the number of the value that the program yields
    print(graph)                   # one value a line, in an order in which each can be computed

A value is numbered by what it is (step, arguments, constant), so equal sub-expressions of all programs meet. Constants are
folded by the interpreter. `shared` values depend on nothing that differs from row to row: they are computed once, before
the loop. What a loop cannot compute the way the interpreter does (texts, lists, calendars, exp) is an `outside` value: a
program of its own, evaluated by `columns.py` beforehand and read by the loop like an input. A predicate of one text is a `bit`
of a number per text (`text_bits.py`).

Every rewrite here keeps value, null and row error of every row as they were, to the bit (any NaN for any NaN).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from features.expr.interpret import interpret_marked
from features.expr.program import Program, Step
from features.expr.source import SourceText
from features.expr.ssa_rewrites import SIMPLIFY, as_it_is
from features.expr.text_bits import TextBits
from features.expr.types import Type

LOOP_KINDS: Final = frozenset({"bool", "int", "double", "timestamp", "duration", "null"})
CHECKED: Final = frozenset(
    {"add_int", "sub_int", "mul_int", "neg_int", "abs_int", "div_int", "mod_int", "int_of_double"}
)  # steps of the loop that can fail
_NUMBERS: Final = ("int", "double")
TOTAL: Final = frozenset(
    {
        *("not", "same", "double_of_int", "floor", "ceil", "round", "trunc", "sqrt"),
        *(f"{op}_double" for op in ("add", "sub", "mul", "div", "neg", "abs")),
        *(f"{op}_{kind}" for op in ("lt", "le", "gt", "ge", "least", "greatest") for kind in _NUMBERS),
        *(f"{op}_{kind}" for op in ("eq", "ne", "in") for kind in (*_NUMBERS, "bool")),
        *("is_nan", "is_inf", "is_finite"),
    }
)  # steps of the loop that cannot
SPECIAL: Final = frozenset({"and", "or", "if", "coalesce", "is_null"})  # with rules of their own about null
_WHOLE: Final = frozenset(
    f"{op}_{kind}" for op in ("lt", "le", "gt", "ge", "eq", "ne", "in") for kind in ("timestamp", "duration")
)  # whole microseconds, compared like ints
_TEXT_TOTAL: Final = frozenset(
    {
        *(f"{op}_string" for op in ("add", "lt", "le", "gt", "ge", "eq", "ne", "in")),
        *("size", "starts_with", "ends_with", "contains", "matches", "string_of_int", "string_of_bool", "hash01"),
        *("exp", "log1p", "log", "pow"),
    }
)  # outside steps that cannot fail
_SWAPPED: Final = {"gt": "lt", "ge": "le"}
_COMMUTES: Final = frozenset(
    {"add_int", "mul_int", "add_double", "mul_double", *(f"{op}_{kind}" for op in ("eq", "ne") for kind in LOOP_KINDS)}
)
_NOWHERE: Final = SourceText("")


@dataclass(frozen=True)
class Input:
    """A column that the loop reads. `nullable` and `fails`: what its rows can be; `shared`: it has one row for all."""

    name: str
    kind: str
    nullable: bool = False
    fails: bool = False
    shared: bool = False


@dataclass(frozen=True)
class Value:
    """One value. `args` are numbers of earlier ones; `const` is a constant, the `Input` of an `input`, the TextBits of `bits`,
    the place of a `bit` in its number, or the Program of an `outside` value. `fail` is the step that is always a row error.
    """

    step: str
    kind: str
    args: tuple[int, ...] = ()
    const: Any = None
    nullable: bool = False
    fails: bool = False
    shared: bool = True


class Graph:
    """Values in the order in which they were made: arguments first.

    inputs: every name that may be read, unless it is in `named`, whose names stand for a program of other names. A name in
    `made` is there as an input, too; its function makes the value from other ones.
    """

    def __init__(
        self,
        inputs: Mapping[str, Input],
        named: Mapping[str, Program] | None = None,
        made: Mapping[str, Callable[[Graph], int]] | None = None,
    ) -> None:
        self.inputs = inputs
        self.named = dict(named or {})
        self.made = dict(made or {})
        self.texts: dict[str, list[TextBits]] = {}
        self.values: list[Value] = []
        self._numbers: dict[Any, int] = {}

    def add(self, program: Program) -> int:
        """The number of the program's value."""
        return self._step(program.root, program)

    def outside(self) -> list[tuple[int, Program]]:
        """The values that are computed beforehand, with their programs."""
        return [(number, value.const) for number, value in enumerate(self.values) if value.step == "outside"]

    def constant(self, kind: str, const: Any) -> int:
        return self._put(Value("const", kind, (), const, nullable=const is None))

    def fail(self, kind: str) -> int:
        """A row error in every row."""
        return self._put(Value("fail", kind, fails=True))

    def name(self, name: str) -> int:
        """What a name of a loop's kind stands for. Raises: KeyError for a name that is not known."""
        if name in self.named:
            return self.add(self.named[name])
        if name in self.made:
            return self.made[name](self)
        found = self.inputs[name]
        return self._put(
            Value("input", found.kind, (), found, nullable=found.nullable, fails=found.fails, shared=found.shared)
        )

    def make(self, step: str, kind: str, *args: int) -> int:
        """A step over values that are there. Simplified where the result is the same to the bit."""
        if step in _WHOLE:
            step = f"{step.rpartition('_')[0]}_int"
        op, _, of = step.rpartition("_")
        if op in _SWAPPED:
            step, args = f"{_SWAPPED[op]}_{of}", args[::-1]
        if step in _COMMUTES:
            args = tuple(sorted(args))
        simple = SIMPLIFY.get(step, as_it_is)(self, kind, args)
        if simple is not None:
            return simple
        parts = [self.values[arg] for arg in args]
        if all(part.step == "const" for part in parts) and (folded := _fold(step, kind, parts)) is not None:
            return self.constant(kind, folded[0])
        return self._put(
            Value(
                step,
                kind,
                args,
                nullable=_may_be_null(step, [part.nullable for part in parts]),
                fails=step in CHECKED or any(part.fails for part in parts),
                shared=all(part.shared for part in parts),
            )
        )

    def used(self, roots: Sequence[int]) -> list[int]:
        """The numbers that `roots` need, in order."""
        needed = set(roots)
        for number in range(len(self.values) - 1, -1, -1):
            if number in needed:
                needed.update(self.values[number].args)
        return sorted(needed)

    def __str__(self) -> str:
        return "\n".join(self.show(number) for number in range(len(self.values)))

    def show(self, number: int) -> str:
        """'%4 = lt_double %1 %3 : bool? shared'; `!` marks what may fail."""
        value = self.values[number]
        words = [value.step, *(f"%{arg}" for arg in value.args)]
        if value.step == "input":
            words.append(value.const.name)
        elif value.step == "outside":
            words.append(str(value.const.root))
        elif value.step in ("bits", "bit"):
            words.append(value.const.name if value.step == "bits" else str(value.const))
        elif value.step == "const":
            words.append("null" if value.const is None else repr(value.const))
        marks = "?" * value.nullable + "!" * value.fails + " shared" * (value.shared and value.step != "const")
        return f"%{number} = {' '.join(words)} : {value.kind}{marks}"

    def _step(self, step: Step, program: Program) -> int:
        if step.step == "const" and step.type.kind in LOOP_KINDS:
            return self.constant(step.type.kind, step.value)
        if step.step == "name" and step.type.kind in LOOP_KINDS:
            return self.name(str(step.value))
        if not _in_loop(step):
            return self._outside(step, program)
        return self.make(step.step, step.type.kind, *(self._step(arg, program) for arg in step.args))

    def _outside(self, step: Step, program: Program) -> int:
        names = frozenset(str(s.value) for s in step.walk() if s.step == "name") & program.names
        alone = replace(program, type=step.type, names=names, root=step)
        key = ("outside", str(step), step.type.kind)
        if key in self._numbers:
            return self._numbers[key]
        if not names:
            const, failed = interpret_marked(alone, {})
            return self.fail(step.type.kind) if failed else self.constant(step.type.kind, const)
        nullable, fails = self._facts(step, program.names)
        shared = all(self._is_shared(name) for name in names)
        value = Value("outside", step.type.kind, (), alone, nullable=nullable, fails=fails, shared=shared)
        number = self._bit(value) if _is_text_predicate(step, names) else None
        if number is None:
            return self._put(value, key)
        self._numbers[key] = number
        return number

    def _bit(self, value: Value) -> int | None:
        """A predicate of one text as a bit of the number of that text; None when there is no room for one more."""
        (name,) = value.const.names
        all_bits = self.texts.setdefault(name, [TextBits(name)])
        place = all_bits[-1].place_for(value.const, flags=value.nullable or value.fails)
        if place is None:
            all_bits.append(TextBits(name))
            place = all_bits[-1].place_for(value.const, flags=value.nullable or value.fails)
        source = self._put(
            Value("bits", "int", (), all_bits[-1], shared=value.shared), ("bits", name, len(all_bits) - 1)
        )
        return self._put(replace(value, step="bit", args=(source,), const=place))

    def _facts(self, step: Step, names: frozenset[str]) -> tuple[bool, bool]:
        """Whether a step that is not in the loop may be null, and whether it may fail."""
        if step.step == "name":
            name = str(step.value)
            if name in self.named:
                return self._facts(self.named[name].root, self.named[name].names)
            found = self.inputs.get(name) if name in names else None  # else the variable of a macro
            return (found.nullable, found.fails) if found is not None else (False, False)
        if step.step == "const":
            return step.value is None, False
        facts = [self._facts(arg, names) for arg in step.args]
        known = step.step in SPECIAL or step.step in TOTAL or step.step in _WHOLE or step.step in _TEXT_TOTAL
        return _may_be_null(step.step, [null for null, _ in facts]), not known or any(fails for _, fails in facts)

    def _is_shared(self, name: str) -> bool:
        if name in self.named:
            return all(self._is_shared(read) for read in self.named[name].names)
        return self.inputs[name].shared

    def _put(self, value: Value, key: Any = None) -> int:
        if key is None:
            const = value.const.name if isinstance(value.const, Input) else repr(value.const)  # -0.0 is not 0.0
            key = (value.step, value.kind, value.args, const)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.values)
            self.values.append(value)
        return number


def _in_loop(step: Step) -> bool:
    known = step.step in SPECIAL or step.step in TOTAL or step.step in CHECKED or step.step in _WHOLE
    return known and step.type.kind in LOOP_KINDS and all(arg.type.kind in LOOP_KINDS for arg in step.args)


def _is_text_predicate(step: Step, names: frozenset[str]) -> bool:
    kinds = {s.type.kind for s in step.walk() if s.step == "name"}
    return step.type.kind == "bool" and len(names) == 1 and kinds == {"string"}


def _may_be_null(step: str, nulls: list[bool]) -> bool:
    if step == "is_null":
        return False
    if step == "coalesce":
        return all(nulls)
    return any(nulls)


def _fold(step: str, kind: str, parts: list[Value]) -> tuple[Any] | None:
    """The constant that a step over constants is; None when it is a row error, which stays a step."""
    args = tuple(Step("const", Type(part.kind, part.const is None), (), 0, 0, part.const) for part in parts)
    root = Step(step, Type(kind, True), args, 0, 0)
    value, failed = interpret_marked(Program(root.type, frozenset(), _NOWHERE, root), {})
    return None if failed else (value,)

"""Many expressions as one list of array steps, prepared once and run for every request: `evaluate` for a whole strategy.

    plan = ArrayPlan()
    cheap = plan.add(program)            # the slot of its value; equal parts of all expressions share theirs
    plan.name("bonus", let)              # later expressions that read `bonus` share its slot; `run` adds it as a column
    V, M = plan.run(columns)             # values and masks by slot; see array_steps.py

Every value, null and row error is what `columns.evaluate` says of the expression alone, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from features.expr import array_steps
from features.expr.array_steps import Masks, Run
from features.expr.column_steps import Array
from features.expr.columns import Column, evaluate
from features.expr.program import Program, Step
from features.expr.text_bits import TextBits
from features.expr.types import Type

_ALL: Final = np.ones(1, np.bool_)


class ArrayPlan:
    """Slots in the order in which they can be computed. Not changed once it has run; then any number of threads may run it."""

    def __init__(self) -> None:
        self._values: list[Any] = []  # of every slot before a run: constants are there
        self._masks: list[Any] = []
        self._runs: list[Run] = []
        self._numbers: dict[Any, int] = {}
        self._named: dict[str, int] = {}  # names that stand for a slot
        self._texts: dict[str, list[TextBits]] = {}
        self._constants: set[int] = set()

    def add(self, program: Program) -> int:
        """The slot of the expression's value."""
        return self._step(program.root, program)

    def name(self, name: str, program: Program) -> None:
        """A named value: a slot for what follows, and a column of `run`."""
        slot = self._named[name] = self.add(program)
        reads = tuple(program.names)

        def run(V: list[Any], M: list[Any], columns: dict[str, Column]) -> None:
            columns[name] = widened(V[slot], M[slot], _size(reads, columns))

        self._runs.append(run)

    def call(self, make: Callable[[dict[str, Column]], None]) -> None:
        """Something else that adds columns, from those that are there by now."""
        self._runs.append(lambda V, M, columns: make(columns))

    def constant(self, slot: int) -> Any:
        """The value of a constant slot that is not null; None for any other."""
        return self._values[slot][0] if slot in self._constants and self._masks[slot] is None else None

    def run(self, columns: dict[str, Column]) -> tuple[list[Any], list[Any]]:
        """Values and masks by slot. The caller holds `np.errstate`.

        Raises: KeyError for a name that is not there; ValueError when lengths do not fit together.
        """
        V, M = self._values.copy(), self._masks.copy()
        for run in self._runs:
            run(V, M, columns)
        return V, M

    def _step(self, step: Step, program: Program) -> int:
        if step.step == "name":
            return self._name(str(step.value), step.type.kind)
        if step.step == "const":
            return self._folded(("const", step.type.kind, repr(step.value)), step, program)
        if step.step in ("exists", "all"):
            part = _part(step, program)
            return self._put(("alone", str(step)), lambda at: array_steps.alone(at, part))
        names = {str(s.value) for s in step.walk() if s.step == "name"}
        if not names:
            return self._folded(("folded", step.type.kind, str(step)), step, program)
        if step.type.kind == "bool" and len(names) == 1 and self._is_of_text(step, names):
            return self._predicate(step, program)
        args = tuple(self._step(arg, program) for arg in step.args)
        return self._put((step.step, args), lambda at: self._prepared(at, step.step, args))

    def _prepared(self, at: int, step: str, args: tuple[int, ...]) -> Run:
        if step in array_steps.UFUNCS:
            alone = all(arg in self._constants for arg in args)  # of shapes () alone NumPy makes no array
            return array_steps.total(at, step, args if alone else [self._bare(arg) for arg in args])
        if step in ("and", "or"):
            return array_steps.logic(at, args, absorbing=step == "or")
        if step in _SPECIAL:
            return _SPECIAL[step](at, args)
        prepare = array_steps.checked if step in array_steps.CHECKED else array_steps.total
        return prepare(at, step, args)

    def _name(self, name: str, kind: str) -> int:
        if name in self._named:
            return self._named[name]
        return self._put(("name", name, kind), lambda at: array_steps.load(at, name, kind))

    def _folded(self, key: Any, step: Step, program: Program) -> int:
        """What reads no name is a constant."""
        slot = self._numbers.get(key)
        if slot is None:
            values, masks = array_steps.parts_of(evaluate(_part(step, program), {}))
            slot = self._slot(values, masks)
            self._numbers[key] = slot
            self._constants.add(slot)
        return slot

    def _bare(self, slot: int) -> int:
        """A slot with the same constant of shape (), which costs a ufunc half as much; other slots as they are."""
        if slot not in self._constants:
            return slot
        found = self._numbers.get(("bare", slot))
        if found is None:
            found = self._numbers["bare", slot] = self._slot(self._values[slot].reshape(()), self._masks[slot])
        return found

    def _predicate(self, step: Step, program: Program) -> int:
        part = _part(step, program)
        (name,) = part.names
        key = ("answer", str(step))
        if key not in self._numbers:
            source, place = self._place_of(name, part)
            self._put(key, lambda at: array_steps.answer(at, source, place))
        return self._numbers[key]

    def _place_of(self, name: str, predicate: Program) -> tuple[int, int]:
        """The slot of the bits of a text, and the first bit of a predicate of it. Bits that are full are followed by others."""
        words = self._texts.setdefault(name, [TextBits(name)])
        place = words[-1].place_for(predicate, flags=True)
        if place is None:
            words.append(TextBits(name))
            place = words[-1].place_for(predicate, flags=True)
        assert place is not None, "a predicate needs three bits"
        return self._put(("bits", name, len(words)), lambda at: array_steps.bits(at, words[-1])), place

    def _is_of_text(self, step: Step, names: set[str]) -> bool:
        kinds = {s.type.kind for s in step.walk() if s.step == "name"}
        loops = any(s.step in ("exists", "all", "item") for s in step.walk())
        return kinds == {"string"} and not loops and not names & self._named.keys()

    def _put(self, key: Any, prepare: Callable[[int], Run]) -> int:
        slot = self._numbers.get(key)
        if slot is None:
            slot = self._numbers[key] = self._slot(None, None)
            self._runs.append(prepare(slot))
        return slot

    def _slot(self, values: Array | None, masks: Masks) -> int:
        self._values.append(values)
        self._masks.append(masks)
        return len(self._values) - 1


_SPECIAL: Final[dict[str, Callable[[int, tuple[int, ...]], Run]]] = {
    "if": array_steps.choose,
    "coalesce": array_steps.coalesce,
    "is_null": array_steps.is_null,
}


def widened(values: Array, masks: Masks, size: int) -> Column:
    """A slot as a column. Shapes: (size,)."""
    valid, error = (_ALL, None) if masks is None else masks
    if len(values) != size:
        values = np.ascontiguousarray(np.broadcast_to(values, size))
    if len(valid) != size:
        valid = np.ones(size, np.bool_) if masks is None else np.ascontiguousarray(np.broadcast_to(valid, size))
    if error is not None and len(error) != size:
        error = np.ascontiguousarray(np.broadcast_to(error, size))
    return Column(values, valid, error)


def _size(reads: tuple[str, ...], columns: dict[str, Column]) -> int:
    """How many rows an expression over these names has."""
    for name in reads:
        if (length := len(columns[name])) != 1:
            return length
    return 1


def _part(step: Step, program: Program) -> Program:
    """A part of an expression as one of its own."""
    names = frozenset(str(s.value) for s in step.walk() if s.step == "name") & program.names
    return replace(
        program, type=Type(step.type.kind, True) if step.step == "const" else step.type, names=names, root=step
    )

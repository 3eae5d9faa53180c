"""Expressions over what a strategy is given, not over what it computes: lets written out, constants folded.

`share > 0.3` with `let share: value / fare` becomes `value / fare > 0.3`. The outputs of tables stay names: `opaque`, of which
only type, bounds and that they may be a row error are known; so does a let that would make an expression too long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from engine.strategy import CompiledLet, CompiledStrategy
from features.expr import Program, Type, interpret_marked
from features.expr.pieces import OPAQUE, as_program
from features.expr.program import Step
from features.expr.ranges import Box, range_within
from features.expr.types import BOOL

MAX_STEPS: Final = 4_000  # of one expression with its lets written out; beyond, a let stays a name
FALSE_STEP: Final = Step("const", BOOL, (), 0, 0, False)


class Inliner:
    """Writes lets out. `opaque` are the computed names that stay, by type."""

    def __init__(self, compiled: CompiledStrategy) -> None:
        self.lets: dict[str, Step] = {}
        self.sizes: dict[str, int] = {}
        self.opaque: dict[str, Type] = {}
        for step in (*compiled.steps_before, *compiled.steps_after):
            if isinstance(step, CompiledLet):
                size = sum(self.sizes.get(str(part.value), 1) for part in step.program.root.walk())
                if size <= MAX_STEPS:
                    self.lets[step.name], self.sizes[step.name] = self.step(step.program.root), size
                else:
                    self.opaque[step.name] = step.program.type.optional()
            else:
                # A row error of a table reads as null where a condition is wanted true or false, so it may be null.
                outputs = step.table.outputs.items()
                self.opaque |= {f"{step.name}.{name}": kind.optional() for name, kind in outputs}

    def program(self, program: Program) -> Program:
        """The same program over given and opaque names."""
        size = sum(self.sizes.get(str(part.value), 1) for part in program.root.walk())
        root = self.step(program.root) if size <= 4 * MAX_STEPS else program.root
        return replace(program, root=root, names=as_program(root).names)

    def step(self, step: Step) -> Step:
        if step.step == "name":
            name = str(step.value)
            if name in self.lets:
                return self.lets[name]
            return replace(step, type=self.opaque[name]) if name in self.opaque else step
        return replace(step, args=tuple(self.step(arg) for arg in step.args)) if step.args else step


def known_false(program: Program) -> Program:
    """The condition with false in the place of null; a row error stays one."""
    step = Step("coalesce", BOOL, (program.root, FALSE_STEP), program.root.start, program.root.end)
    return replace(program, root=step, type=BOOL)


def with_values(step: Step, values: Mapping[str, Any], box: Box) -> Step:
    """The step where some names have a value, folded: what then is a constant is one.

    `box` bounds the other names. The answer yields what the step does for every row that fits, row errors included.
    """
    if step.step == "name":
        name = str(step.value)
        return replace(step, step="const", value=values[name]) if name in values else step
    if not step.args:
        return step
    if step.step in OPAQUE:  # the body of a loop is not looked into; a list that is null is
        over = with_values(step.args[0], values, box)
        if over.step == "const" and over.value is None:
            return _const(step, None)
        return replace(step, args=tuple(_placed(arg, values) for arg in step.args))
    return folded(replace(step, args=tuple(with_values(arg, values, box) for arg in step.args)), box)


def folded(step: Step, box: Box) -> Step:
    """One step whose arguments are folded."""
    args = step.args
    if step.step == "coalesce" and args[0].step == "const":
        return args[1] if args[0].value is None else args[0]
    if step.step == "if" and args[0].step == "const":
        if args[0].value is None:
            return _const(step, None)
        return args[1] if args[0].value else args[2]
    if step.step in ("and", "or"):
        absorbing = step.step == "or"
        if any(arg.step == "const" and arg.value is absorbing for arg in args):
            return _const(step, absorbing)
        left = tuple(arg for arg in args if not (arg.step == "const" and arg.value is (not absorbing)))
        if not left:
            return _const(step, not absorbing)
        if len(left) == 1:
            return left[0]
        return replace(step, args=left)
    if all(arg.step == "const" for arg in args):
        value, failed = interpret_marked(as_program(step), {})
        return step if failed else _const(step, value)
    strict = step.step not in ("if", "coalesce", "is_null")
    if strict and any(arg.step == "const" and arg.value is None for arg in args):
        return step if any(range_within(arg, box).may_error for arg in args) else _const(step, None)
    return step


def _placed(step: Step, values: Mapping[str, Any]) -> Step:
    if step.step == "name" and str(step.value) in values:
        return replace(step, step="const", value=values[str(step.value)])
    return replace(step, args=tuple(_placed(arg, values) for arg in step.args)) if step.args else step


def _const(step: Step, value: Any) -> Step:
    return replace(step, step="const", args=(), value=value)

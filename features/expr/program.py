"""A checked expression: typed steps, ready for any back end.

Special steps, which have rules of their own about null: `const`, `name`, `and`, `or`, `not`, `if`, `coalesce`, `is_null`,
and the loops `exists` and `all`, whose arguments are a list and a condition; there the step `item` with the loop's `value`
is the element. All others are strict (null in, null out) and come from the tables of `types.py`, besides `in_<kind>` (item
and literals) and `in_list_<kind>` (item and list). A `const` of a timestamp or a duration holds microseconds.

What a step yields, in every back end: a value, null, or a row error (int overflow, `% 0`, a bad cast). An error is null
with a mark; it is not caught by `??` or `== null`, and only `&&`, `||` and the branch not taken absorb it, so that a broken
computation never turns into a default in silence. `interpret.py` is the definition; `columns.py` and `sql.py` follow it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from features.expr.source import SourceText
from features.expr.times import format_duration, format_timestamp
from features.expr.types import Type


@dataclass(frozen=True)
class Step:
    """One typed node; the span is in the source text.

    `value` is the value of a `const`, the name of a `name`, the loop variable of `item`, `exists` and `all`. A loop
    variable is unique in its program: one that stands in another loop too, or is a name, is numbered ('t#2').
    """

    step: str
    type: Type
    args: tuple[Step, ...]
    start: int
    end: int
    value: bool | int | float | str | None = None

    def walk(self) -> Iterator[Step]:
        yield self
        for arg in self.args:
            yield from arg.walk()

    def __str__(self) -> str:
        if self.step in ("name", "item"):
            return str(self.value)
        if self.step == "const":
            if self.value is None or isinstance(self.value, bool):
                return str(self.value).lower().replace("none", "null")
            if self.type.kind in ("timestamp", "duration"):
                written = format_timestamp if self.type.kind == "timestamp" else format_duration
                return f"{self.type.kind}('{written(int(self.value))}')"
            return repr(self.value)
        args = [str(arg) for arg in self.args]
        if self.step in ("exists", "all"):
            args.insert(1, str(self.value))
        return f"{self.step}({', '.join(args)})"


@dataclass(frozen=True)
class Program:
    """A compiled expression. `names` are the names it reads; `str()` prints its steps.

    `present_if_not_true` are names that are known (a value or a row error, never null) wherever the expression yields
    anything but true: what survives a drop rule with this condition.
    """

    type: Type
    names: frozenset[str]
    source: SourceText
    root: Step
    present_if_not_true: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.root}: {self.type}"

"""A checked expression: typed steps, ready for any back end.

Special steps, which have rules of their own about null: `const`, `name`, `and`, `or`, `not`, `if`, `coalesce`, `is_null`.
All others are strict (null in, null out) and come from the tables of `types.py`, besides `in_<kind>`.

What a step yields, in every back end: a value, null, or a row error (int overflow, `% 0`, a bad cast). An error is null
with a mark; it is not caught by `??` or `== null`, and only `&&`, `||` and the branch not taken absorb it, so that a broken
computation never turns into a default in silence. `interpret.py` is the definition; `columns.py` and `sql.py` follow it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from features.expr.source import SourceText
from features.expr.types import Type


@dataclass(frozen=True)
class Step:
    """One typed node. `value` is the value of a `const` or the name of a `name`; the span is in the source text."""

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
        if self.step == "name":
            return str(self.value)
        if self.step == "const":
            if self.value is None or isinstance(self.value, bool):
                return str(self.value).lower().replace("none", "null")
            return repr(self.value)
        return f"{self.step}({', '.join(map(str, self.args))})"


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

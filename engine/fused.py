"""The rules of a strategy as machine code: the fast form of `engine.rules.ColumnRules`, equal to it bit for bit.

A call costs a few microseconds and some nanoseconds a candidate. Columns are read in place; texts go through a dict of the
texts seen; what no loop computes goes through NumPy first. `engine/fused_plan.py` says what is compiled.
Legend: K candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from engine.fused_plan import AFTER, BEFORE, Half, RulePlan, Source
from engine.rules import After, Before, ColumnRules
from engine.strategy import CompiledLet, CompiledStrategy
from features.expr import CodedTexts, Column, evaluate
from features.expr.fused import Read, TextRead
from features.expr.fused_machine import Kernel, Machine, MisfitError

_BOOL, _SHORT, _INT, _DOUBLE = map(np.dtype, ("bool", "int16", "int64", "float64"))

_Pick = Callable[[Mapping[str, Column]], Sequence[Column]]


class _Half:
    """One loop, and what picks its columns."""

    def __init__(self, plan: Half, kernel: Kernel) -> None:
        self.kernel, self.steps = kernel, plan.steps
        self.given = picker(plan.sources)
        self.texts = picker([text.name for text in plan.texts])


def picker(sources: Sequence[Source]) -> _Pick:
    """What picks columns by name and evaluates programs, in that order."""
    names = [source for source in sources if isinstance(source, str)]
    if len(names) == len(sources) > 1:
        return itemgetter(*names)  # a third of what looking up one by one takes
    return lambda columns: [columns[one] if isinstance(one, str) else evaluate(one, columns) for one in sources]


class FusedRules:
    """A RuleRunner. `machine` is the compiled text of `plan`, which is that of `compiled`.

    Columns that are not as the strategy declares them (null where it cannot be) are none of the loop's: that call goes
    through ColumnRules, and `misfits` counts it under the name of the column.
    """

    def __init__(self, compiled: CompiledStrategy, plan: RulePlan, machine: Machine) -> None:
        self.compiled, self.plan = compiled, plan
        self.misfits: dict[str, int] = {}
        self._before = _Half(plan.before, Kernel(machine, BEFORE, plan.before.reads, plan.before.texts))
        self._after = _Half(plan.after, Kernel(machine, AFTER, plan.after.reads, plan.after.texts))
        self._columns = ColumnRules(compiled)
        self._named_dtypes = [np.dtype(part) for dtype in plan.in_loop.values() for part in (dtype, "bool", "bool")]

    def before(self, columns: dict[str, Column], num_candidates: int, killed: int) -> Before:
        """Adds to `columns` what models and `after` read as columns; other lets and tables stay inside the loop."""
        num, empty = num_candidates, np.empty
        outputs = [empty(num, _BOOL), empty(num, _SHORT), empty(num, _INT), empty(num, _INT)]
        if not self._run(self._before, columns, outputs, num, killed):
            return self._columns.before(columns, num, killed)
        return Before(*outputs)

    def after(self, columns: dict[str, Column], alive_K: np.ndarray, killed: int) -> After:
        num, empty = len(alive_K), np.empty
        outputs = [empty(num, _DOUBLE), empty(num, _BOOL), empty(num, _SHORT), empty(num, _INT), empty(num, _INT)]
        puts = [empty(num, dtype) for dtype in self._named_dtypes]
        if not self._run(self._after, columns, outputs + puts, num, killed):
            return self._slow_after(columns, alive_K, killed)
        score_K, known_K, failed_by_K, fired_K, unknown_K = outputs
        named = self._named(columns, puts, num) if self.compiled.outputs else {}
        return After(score_K, known_K, failed_by_K, fired_K, unknown_K, named)

    def _named(self, columns: dict[str, Column], puts: list[np.ndarray], num_rows: int) -> dict[str, Column]:
        """The named outputs, in their order: three arrays each of those in the loop, the others by NumPy."""
        at = {name: 3 * number for number, name in enumerate(self.plan.in_loop)}
        return {
            output.name: Column(*puts[at[output.name] : at[output.name] + 3])
            if output.name in at
            else evaluate(output.program, columns, num_rows=num_rows)
            for output in self.compiled.outputs
        }

    def _run(
        self,
        half: _Half,
        columns: dict[str, Column],
        outputs: list[np.ndarray],
        num_rows: int,
        killed: int,
    ) -> bool:
        """Fill the outputs; False when the columns do not fit."""
        for step in half.steps:
            if isinstance(step, CompiledLet):
                columns[step.name] = evaluate(step.program, columns)
            else:
                columns.update(step.lookup(columns))
        given, texts = half.given(columns), half.texts(columns)
        try:
            half.kernel.run(given, texts, outputs, num_rows, killed)
            return True
        except MisfitError:
            given = [fit(column, read, num_rows) for column, read in zip(given, half.kernel.reads, strict=True)]
            texts = [fit_text(column, read, num_rows) for column, read in zip(texts, half.kernel.texts, strict=True)]
        try:
            half.kernel.run(given, texts, outputs, num_rows, killed)
            return True
        except MisfitError as error:
            name = str(error.args[0])
            self.misfits[name] = self.misfits.get(name, 0) + 1
            return False

    def _slow_after(self, columns: dict[str, Column], alive_K: np.ndarray, killed: int) -> After:
        """ColumnRules reads every let and table as a column."""
        for step in self.compiled.steps_before:
            if isinstance(step, CompiledLet):
                columns[step.name] = evaluate(step.program, columns)
            else:
                columns.update(step.lookup(columns))
        return self._columns.after(columns, alive_K, killed)


def fit(column: Column, read: Read, num_rows: int) -> Column:
    """The column as one that the loop can read, if only its shape, order in memory or width of number is another."""
    dtype = np.dtype(read.dtype)
    return _plain(column, dtype, 1 if read.shared else num_rows)


def fit_text(column: Column, read: TextRead, num_rows: int) -> Column:
    rows = 1 if read.shared else num_rows
    if not isinstance(column, CodedTexts):
        return _plain(column, np.dtype(np.object_), rows)
    codes = _plain(Column(column.codes, column.valid, column.error), np.dtype(np.int64), rows)
    return CodedTexts(codes.values, column.texts, codes.valid, codes.error)


def _plain(column: Column, dtype: np.dtype[Any], rows: int) -> Column:
    if len(column) not in (1, rows) or not np.can_cast(column.values.dtype, dtype, "safe"):
        return column

    def plain(array: np.ndarray, wanted: Any) -> np.ndarray:
        return np.array(np.broadcast_to(array, rows), dtype=wanted, order="C")

    error = None if column.error is None else plain(column.error, np.bool_)
    return Column(plain(column.values, dtype), plain(column.valid, np.bool_), error)


def fused_rules(compiled: CompiledStrategy, plan: RulePlan, objects: Mapping[str, bytes]) -> FusedRules:
    """From object code. Raises: ValueError for what is not object code of this machine."""
    return FusedRules(compiled, plan, Machine(objects))

"""The same meaning as SQL text, for Flink and DuckDB: FILTER (WHERE …), SUM(…), CASE.

SQL's three-valued AND and OR are the language's own. A row error has no place in SQL and becomes NULL, which is why every
operation that a database would wrap (Flink's BIGINT) or raise on (DuckDB's overflow, Flink's MOD by 0, casts) is guarded:
no row may end a job. Where the language tells an error from null (`??`, `== null`, a condition) the text does too; in a
step that is never null, NULL can only be an error.

Times are BIGINT microseconds (`sql_times.py`). Refused, because no database does exactly the same: the real functions
(their last bit differs), regular expressions, zones, texts of times, hash01, lists and loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Literal, NoReturn

from features.expr.errors import Mistakes, mistake_at
from features.expr.interpret import DOUBLE_TEXT, INT_TEXT
from features.expr.program import Program, Step
from features.expr.sql_times import CAN_FAIL, time_sql
from features.expr.types import INT_MIN, SCALARS

Dialect = Literal["flink", "duckdb"]
MAX_SQL: Final = 200_000  # characters; guards name their operands more than once, so the text can grow fast

_COMPARE: Final = {"eq": "=", "ne": "<>", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_PLAIN_TYPES: Final = {
    "bool": "BOOLEAN", "int": "BIGINT", "double": "DOUBLE", "timestamp": "BIGINT", "duration": "BIGINT",
}  # fmt: skip
_TYPES: Final = {"flink": {**_PLAIN_TYPES, "string": "STRING"}, "duckdb": {**_PLAIN_TYPES, "string": "VARCHAR"}}


def to_sql(program: Program, dialect: Dialect, column: Callable[[str], str]) -> str:
    """The expression as one SQL expression, in parentheses where it has to be.

    `column` gives the SQL text of a name; columns have the types BOOLEAN, BIGINT (also of microseconds), DOUBLE and
    STRING (VARCHAR).
    Raises: Mistakes for a list, a function that SQL cannot carry, or a text beyond 200,000 characters; ValueError for an
            unknown dialect.
    """
    if dialect not in _TYPES:
        raise ValueError(f"unknown dialect {dialect!r}; known: flink, duckdb")
    return _Writer(program, dialect, column).value(program.root)


class _Writer:
    def __init__(self, program: Program, dialect: Dialect, column: Callable[[str], str]) -> None:
        self.program, self.dialect, self.column = program, dialect, column
        self.flink = dialect == "flink"
        self.types = _TYPES[dialect]

    def value(self, step: Step) -> str:
        """SQL whose value is the step's value, and NULL where that is null or failed."""
        text = self._value(step)
        if len(text) > MAX_SQL:
            self._refuse(
                step, "limit", f"this needs more than {MAX_SQL} characters of SQL", "split it into simpler parts"
            )
        return text

    def failed(self, step: Step) -> str | None:
        """SQL that is true for a row error and false otherwise, never NULL; None when the step cannot fail."""
        if step.step in ("name", "const"):
            return None
        inner = [self.failed(arg) for arg in step.args]
        some = [text for text in inner if text is not None]
        if not some and not _can_fail(step):
            return None
        if not step.type.nullable:
            return f"({self.value(step)} IS NULL)"
        if step.step in ("and", "or"):
            return f"({self.value(step)} IS NULL AND ({' OR '.join(some)}))"
        if step.step == "not":
            return inner[0]
        if step.step == "coalesce":
            left_null = f"({self.value(step.args[0])} IS NULL AND {inner[1]})" if inner[1] else None
            return _any(inner[0], left_null)
        assert step.step == "if", step.step  # nothing else can be null
        then, otherwise = inner[1] or "FALSE", inner[2] or "FALSE"
        branches = (
            f"(CASE WHEN {self.value(step.args[0])} THEN {then} ELSE {otherwise} END)" if inner[1] or inner[2] else None
        )
        return _any(inner[0], branches)

    # by step --------------------------------------------------------------------------------------------------------

    def _value(self, step: Step) -> str:
        name, kind = step.step, step.type.kind
        if name == "const":
            return self._constant(step)
        if step.type.is_list or name in ("exists", "all") or name.startswith("in_list_"):
            self._refuse(step, "sql", "SQL has no lists here", _ELSEWHERE)
        if name == "name":
            return self.column(str(step.value))
        if name in ("and", "or"):
            return "(" + f" {name.upper()} ".join(self.value(arg) for arg in step.args) + ")"
        if name == "not":
            return self._not(step)
        if name == "if":
            return self._if(step)
        if name == "coalesce":
            left, right = (self.value(arg) for arg in step.args)
            failed = self.failed(step.args[0])
            plain = f"COALESCE({left}, {right})"
            if self.flink and not (step.args[0].step == "name" and step.args[0].type.nullable):
                # Flink 2.2 fails to plan COALESCE when it finds that the left is NOT NULL and the right is not.
                plain = f"(CASE WHEN {left} IS NULL THEN {right} ELSE {left} END)"
            return plain if failed is None else self._unless(failed, plain, kind)
        if name == "is_null":
            failed = self.failed(step.args[0])
            plain = f"({self.value(step.args[0])} IS NULL)"
            return plain if failed is None else self._unless(failed, plain, kind)
        operator, _, operand = name.partition("_")
        if operator in _COMPARE and operand in SCALARS:
            return self._compare(step, operator, operand)
        if operator == "in":
            return self._in(step)
        if operator in ("least", "greatest"):
            return self._extreme(step, operator)
        return self._strict(step)

    def _constant(self, step: Step, *, bare: bool = False) -> str:
        """A literal; `bare` beside a column of that type, else with its type spelled out."""
        kind, value = step.type.kind, step.value
        if value is None:
            return "NULL" if kind == "null" else f"CAST(NULL AS {self.types[kind]})"
        if isinstance(value, bool):
            return "TRUE" if value else "FALSE"
        if isinstance(value, int):
            if value == INT_MIN:  # its digits alone are beyond BIGINT
                return f"(CAST({value + 1} AS BIGINT) - CAST(1 AS BIGINT))"
            return str(value) if bare else f"CAST({value} AS BIGINT)"
        if isinstance(value, float):
            return _double(value)
        assert isinstance(value, str)
        if "\0" in value:
            self._refuse(step, "sql", "SQL text cannot hold the character U+0000", "test for another character")
        quoted = "'" + value.replace("'", "''") + "'"
        # Without the cast Flink reads CHAR(n), and pads the shorter one where two meet in a CASE.
        return quoted if bare or not self.flink else f"CAST({quoted} AS STRING)"

    def _operand(self, step: Step, beside: Step) -> str:
        bare = step.step == "const" and beside.step != "const"
        return self._constant(step, bare=True) if bare else self.value(step)

    def _not(self, step: Step) -> str:
        inner = step.args[0]
        if inner.step == "is_null" and self.failed(inner.args[0]) is None:
            return f"({self.value(inner.args[0])} IS NOT NULL)"
        if self.flink and inner.step in _NEGATED_ORDER and any(_may_be_nan(arg) for arg in inner.args):
            # Calcite reads NOT (a < b) as a >= b, which is wrong for NaN.
            negated = Step(_NEGATED_ORDER[inner.step], inner.type, inner.args, inner.start, inner.end)
            nans = " OR ".join(self._is_nan(arg) for arg in inner.args if _may_be_nan(arg))
            return f"({nans} OR {self.value(negated)})"
        if self.flink and inner.step in ("and", "or") and any(_may_be_nan(part) for part in inner.walk()):
            items = tuple(Step("not", arg.type, (arg,), arg.start, arg.end) for arg in inner.args)
            dual = "or" if inner.step == "and" else "and"
            return self.value(Step(dual, inner.type, items, inner.start, inner.end))
        return f"(NOT {self.value(inner)})"

    def _is_nan(self, step: Step) -> str:
        text = self.value(step)
        return f"CAST({text} AS STRING) = 'NaN'" if self.flink else f"isnan({text})"

    def _if(self, step: Step) -> str:
        condition, then, otherwise = (self.value(arg) for arg in step.args)
        plain = f"CASE WHEN {condition} THEN {then} ELSE {otherwise} END"
        failed = self.failed(step.args[0])
        return f"({plain})" if failed is None else self._unless(failed, plain, step.type.kind)

    def _compare(self, step: Step, operator: str, kind: str) -> str:
        left, right = step.args
        a, b = self._operand(left, right), self._operand(right, left)
        plain = f"({a} {_COMPARE[operator]} {b})"
        if kind != "double" or self.flink:
            return plain
        # DuckDB sorts NaN above all and equal to itself; IEEE says false, and true for `!=`.
        guarded, text = (right, b) if operator in ("lt", "le") else (left, a)
        if guarded.step == "const" or (operator in ("eq", "ne") and right.step == "const"):
            return plain
        exact = f"({plain} OR isnan({text}))" if operator == "ne" else f"({plain} AND NOT isnan({text}))"
        if self.failed(left) is None and self.failed(right) is None:
            return exact
        return f"(CASE WHEN {a} IS NOT NULL AND {b} IS NOT NULL THEN {exact} END)"

    def _in(self, step: Step) -> str:
        item, *options = step.args
        text = self.value(item)
        if self.flink and any(option.value == 0.0 and option.type.kind == "double" for option in options):
            # Flink looks doubles up in a hash set, which tells -0.0 from 0.0.
            rest = [option for option in options if option.value != 0.0]
            zero = f"ABS({text}) = 0.0E0"
            return f"({zero} OR {self._listed(text, item, rest)})" if rest else f"({zero})"
        return f"({self._listed(text, item, options)})"  # NaN is in no list of literals, in DuckDB too

    def _listed(self, text: str, item: Step, options: list[Step]) -> str:
        return f"{text} IN ({', '.join(self._constant(option, bare=item.step != 'const') for option in options)})"

    def _extreme(self, step: Step, operator: str) -> str:
        """The fold of `interpret._least`, with NULL and NaN winning."""
        sign = "<" if operator == "least" else ">"
        text = self.value(step.args[0])
        for arg in step.args[1:]:
            other = self.value(arg)
            better = f"{other} {sign} {text}"
            if step.type.kind == "double":
                if not self.flink:  # DuckDB's NaN sorts above all, so a NaN so far has to be kept by name
                    better = f"isnan({other}) OR ({better} AND NOT isnan({text}))"
                elif _may_be_nan(arg):
                    better = f"{self._is_nan(arg)} OR {better}"
            null = f"{text} IS NULL OR {other} IS NULL"
            text = f"(CASE WHEN {null} THEN CAST(NULL AS {self.types[step.type.kind]}) WHEN {better} THEN {other} ELSE {text} END)"
            if len(text) > MAX_SQL:
                break  # value() refuses it
        return text

    def _strict(self, step: Step) -> str:
        if step.step in _REAL:
            self._refuse(step, "sql", f"math.{step.step} has no exact form in SQL", _ELSEWHERE)
        if step.step in _REFUSED or step.step.endswith("_timestamp_string"):
            what = "a calendar field in a time zone" if "_timestamp_" in step.step else _REFUSED[step.step]
            self._refuse(step, "sql", f"{what} has no exact form in SQL", _ELSEWHERE)
        args = [self.value(arg) for arg in step.args]
        a, b = args[0], args[-1]
        times = time_sql(step, a, b, flink=self.flink)
        if times is not None:
            return times
        sql = _PLAIN.get(step.step)
        if sql is not None:
            return sql.format(a=a, b=b)
        if step.step in _EXACT:
            return self._exact(step.step, a, b)
        if step.step in ("div_int", "mod_int"):
            return self._divide(step, a, b)
        return self._function(step, a, b)

    def _exact(self, step: str, a: str, b: str) -> str:
        """Checked int arithmetic: exact in a wider type, then narrowed to BIGINT or NULL."""
        template = _EXACT[step]
        if not self.flink:
            return f"TRY_CAST({template.format(a=f'CAST({a} AS HUGEINT)', b=f'CAST({b} AS HUGEINT)')} AS BIGINT)"
        wide = template.format(a=f"CAST({a} AS DECIMAL(19, 0))", b=f"CAST({b} AS DECIMAL(19, 0))")
        # From DECIMAL to BIGINT Flink wraps without a word; from STRING it checks.
        return f"TRY_CAST(CAST({wide} AS STRING) AS BIGINT)"

    def _divide(self, step: Step, a: str, b: str) -> str:
        if step.step == "mod_int":
            good = f"MOD({a}, {b})" if self.flink else f"({a} % {b})"
        else:
            good = f"({a} / {b})" if self.flink else f"({a} // {b})"
        if not _can_fail(step):
            return good
        least = f"(CAST({INT_MIN + 1} AS BIGINT) - CAST(1 AS BIGINT))"
        bad = f"{b} = 0 OR ({a} = {least} AND {b} = -1)"
        return f"(CASE WHEN {bad} THEN CAST(NULL AS BIGINT) ELSE {good} END)"

    def _function(self, step: Step, a: str, b: str) -> str:
        flink, name = self.flink, step.step
        if name == "int_of_double":
            cut = a if flink else f"trunc({a})"
            return f"(CASE WHEN {a} > -9.223372036854775808E18 AND {a} < 9.223372036854775808E18 THEN CAST({cut} AS BIGINT) END)"
        if name in ("int_of_string", "double_of_string"):
            pattern = INT_TEXT if name == "int_of_string" else DOUBLE_TEXT
            matches = f"REGEXP({a}, '^({pattern})\\z')" if flink else f"regexp_full_match({a}, '{pattern}')"
            short = f" AND CHAR_LENGTH({a}) <= 40" if name == "int_of_string" else ""
            return f"(CASE WHEN {matches}{short} THEN TRY_CAST({a} AS {self.types[step.type.kind]}) END)"
        if name == "round":
            cut = f"(CASE WHEN {a} < 0.0E0 THEN CEIL({a}) ELSE FLOOR({a}) END)"
            away = f"(CASE WHEN {a} < 0.0E0 THEN -1.0E0 ELSE 1.0E0 END)"
            return f"(CASE WHEN ABS({a} - {cut}) >= 5.0E-1 AND ABS({a}) < 4.503599627370496E15 THEN {cut} + {away} ELSE {cut} END)"
        if name in ("sign_int", "sign_double"):
            one = "CAST(1 AS BIGINT)" if name == "sign_int" else "1.0E0"
            # NaN, zero and NULL stay; in DuckDB NaN is above all.
            nan = "" if self.flink or name == "sign_int" else f" AND NOT isnan({a})"
            zero = "" if name == "sign_int" else f" WHEN {a} = 0.0E0 THEN 0.0E0"
            return f"(CASE WHEN {a} > 0{nan} THEN {one} WHEN {a} < 0 THEN (- {one}){zero} ELSE {a} END)"
        if name in ("is_nan", "is_inf", "is_finite"):
            if not flink:
                return f"{name.replace('_', '')}({a})"
            text = f"CAST({a} AS STRING)"  # Calcite turns NOT (a <= b) round, which is wrong for NaN
            infinite = f"({text} = 'Infinity' OR {text} = '-Infinity')"
            nan = f"({text} = 'NaN')"
            return nan if name == "is_nan" else infinite if name == "is_inf" else f"(NOT {nan} AND NOT {infinite})"
        if name == "trunc":
            return f"(CASE WHEN {a} < 0.0E0 THEN CEIL({a}) ELSE FLOOR({a}) END)"
        if name == "size":
            return f"CAST(CHAR_LENGTH({a}) AS BIGINT)" if flink else f"length({a})"
        if name == "contains":
            return f"(LOCATE({b}, {a}) > 0)" if flink else f"contains({a}, {b})"
        if name in ("starts_with", "ends_with"):
            return f"{name.replace('_with', 'with').upper() if flink else name}({a}, {b})"
        if name == "string_of_int":
            return f"CAST({a} AS {self.types['string']})"
        raise AssertionError(f"no SQL for step {name}")

    def _unless(self, failed: str, text: str, kind: str) -> str:
        null = "NULL" if kind == "null" else f"CAST(NULL AS {self.types[kind]})"
        return f"(CASE WHEN {failed} THEN {null} ELSE {text} END)"

    def _refuse(self, step: Step, kind: str, message: str, hint: str) -> NoReturn:
        raise Mistakes([mistake_at(self.program.source, step.start, step.end, kind, message, hint)])


_CAN_FAIL: Final = frozenset(
    [
        "add_int",
        "sub_int",
        "mul_int",
        "neg_int",
        "abs_int",
        "div_int",
        "mod_int",
        "int_of_double",
        "int_of_string",
        "double_of_string",
        *CAN_FAIL,
    ]
)
_ELSEWHERE: Final = "compute it in an expr of the view or strategy instead"
_REAL: Final = frozenset({"sqrt", "exp", "log", "log1p", "pow"})
_REFUSED: Final = {
    "matches": "a regular expression",
    "hash01": "hash01",
    "timestamp_of_string": "timestamp of a text",
    "duration_of_string": "duration of a text",
    "string_of_timestamp": "the text of a timestamp",
    "string_of_duration": "the text of a duration",
}
_NEGATED_ORDER: Final = {
    "lt_double": "ge_double",
    "le_double": "gt_double",
    "gt_double": "le_double",
    "ge_double": "lt_double",
}
_EXACT: Final = {
    "add_int": "({a} + {b})",
    "sub_int": "({a} - {b})",
    "mul_int": "({a} * {b})",
    "neg_int": "(- {a})",
    "abs_int": "ABS({a})",
}
_PLAIN: Final = {
    "same": "{a}",
    "add_double": "({a} + {b})",
    "sub_double": "({a} - {b})",
    "mul_double": "({a} * {b})",
    "div_double": "({a} / {b})",
    "neg_double": "(- {a})",
    "abs_double": "ABS({a})",
    "add_string": "({a} || {b})",
    "floor": "FLOOR({a})",
    "ceil": "CEIL({a})",
    "double_of_int": "CAST({a} AS DOUBLE)",
    "string_of_bool": "(CASE WHEN {a} THEN 'true' WHEN NOT {a} THEN 'false' END)",
}


def _may_be_nan(step: Step) -> bool:
    """Whether a double can be NaN in Flink. Columns cannot: records are JSON, and a NaN feature is stored as null."""
    return step.type.kind == "double" and step.step not in ("name", "const", "double_of_int", "double_of_string")


def _can_fail(step: Step) -> bool:
    """Whether the step itself, apart from its operands, can be a row error."""
    if step.step in ("div_int", "mod_int") and step.args[1].step == "const":
        return step.args[1].value in (0, -1)
    return step.step in _CAN_FAIL


def _any(*texts: str | None) -> str | None:
    known = [text for text in texts if text is not None]
    return f"({' OR '.join(known)})" if known else None


def _double(value: float) -> str:
    """An approximate literal: with an exponent it is a DOUBLE in both dialects, without one a DECIMAL."""
    text = repr(value)
    assert math.isfinite(value)
    text = text if "e" in text else f"{text}e0"
    text = text.replace("e", "E").replace("E+", "E")
    return f"({text})" if text.startswith("-") else text

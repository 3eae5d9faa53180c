"""The expression language: small, typed, nullable, a subset of CEL. One language in features, rules, scores and labels.

`LANGUAGE.md` is the page for those who write it.

    program = compile_expr(SourceText("eta_s != null && eta_s > 600"), {"eta_s": parse_type("double?")})
    interpret(program, {"eta_s": 700.0})          # True: row at a time, the definition
    evaluate(program, {"eta_s": column})          # the same over columns
    to_sql(program, "flink", lambda name: name)   # the same as SQL text

Phases, one a file: source, parser (nodes), checker (types, operands, literals, cost), program, then the back ends
interpret, columns, fused, sql; errors shows mistakes; times, zones and regex are what some steps do. Read `types.py` for
what the language knows.
"""

from features.expr.checker import compile_expr
from features.expr.columns import CodedTexts, Column, evaluate
from features.expr.errors import Mistake, Mistakes, did_you_mean, mistake_at
from features.expr.facts import Facts
from features.expr.interpret import ROW_ERROR, interpret, interpret_marked
from features.expr.program import Program
from features.expr.source import SourceText
from features.expr.sql import to_sql
from features.expr.types import BOOL, DOUBLE, DURATION, INT, STRING, TIMESTAMP, Type, parse_type

__all__ = [
    "BOOL",
    "DOUBLE",
    "DURATION",
    "INT",
    "ROW_ERROR",
    "STRING",
    "TIMESTAMP",
    "CodedTexts",
    "Column",
    "Facts",
    "Mistake",
    "Mistakes",
    "Program",
    "SourceText",
    "Type",
    "compile_expr",
    "did_you_mean",
    "evaluate",
    "interpret",
    "interpret_marked",
    "mistake_at",
    "parse_type",
    "to_sql",
]

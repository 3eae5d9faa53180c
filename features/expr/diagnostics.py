"""Mistakes in the form that editors read: the diagnostics of the Language Server Protocol, as plain values.

Positions there count from 0, and a character is a UTF-16 code unit: '🐱' is two.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from features.expr.errors import Mistake

SOURCE: Final = "hailstream"
_SEVERITY: Final = {"error": 1, "warning": 2}


def diagnostics(mistakes: Iterable[Mistake]) -> dict[str, list[dict[str, Any]]]:
    """By file, what an editor shows there: range, severity (1 error, 2 warning), code, source and message."""
    out: dict[str, list[dict[str, Any]]] = {}
    for item in mistakes:
        line = item.line - 1
        start, end = (_code_units(item.source_line, col) for col in (item.col, item.end_col))
        out.setdefault(item.file, []).append(
            {
                "range": {"start": {"line": line, "character": start}, "end": {"line": line, "character": end}},
                "severity": _SEVERITY[item.severity],
                "code": item.kind,
                "source": SOURCE,
                "message": f"{item.message}\n{item.hint}" if item.hint else item.message,
            }
        )
    return out


def _code_units(line: str, col: int) -> int:
    """UTF-16 code units in front of a 1-based column; what lies behind the end of the line counts one each."""
    before = line[: col - 1]
    return sum(2 if ord(char) > 0xFFFF else 1 for char in before) + (col - 1 - len(before))

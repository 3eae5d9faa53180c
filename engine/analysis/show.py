"""Values and places as messages show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from features.expr import Mistake, SourceText, Type, mistake_at
from features.expr.shown import shown

MAX_VALUES: Final = 8


def example(values: Mapping[str, Any], names: Iterable[str], types: Mapping[str, Type]) -> str:
    """`for example: eta_s = 901.0, state = 'idle'`; the first few of many."""
    names = list(dict.fromkeys(names))
    parts = [f"{name} = {shown(values[name], types.get(name))}" for name in names[:MAX_VALUES] if name in values]
    more = f" and {len(names) - MAX_VALUES} more" if len(names) > MAX_VALUES else ""
    return f"for example: {', '.join(parts)}{more}" if parts else ""


def found(source: SourceText, kind: str, message: str, hint: str = "", *, severity: str = "error") -> Mistake:
    """The mistake about a whole expression."""
    return replace(mistake_at(source, 0, len(source.text.rstrip()), kind, message, hint), severity=severity)

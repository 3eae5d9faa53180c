"""Values as an expression writes them, for messages."""

from __future__ import annotations

from typing import Any

from features.expr.times import format_duration, format_timestamp
from features.expr.types import Type


def shown(value: Any, kind: Type | None = None) -> str:
    """A value as an expression writes it. `kind` tells a time from a number; without it, a time is its microseconds."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, list):
        return f"[{', '.join(shown(item, kind and kind.item) for item in value)}]"
    if kind is not None and kind.kind == "timestamp":
        return f"timestamp('{format_timestamp(value)}')"
    if kind is not None and kind.kind == "duration":
        return f"duration('{format_duration(value)}')"
    return repr(value)

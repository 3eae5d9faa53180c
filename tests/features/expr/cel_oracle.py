"""Google's CEL as an oracle: one expression over one row, by their C++ runtime, as our values.

An error of the runtime is ERROR. Its binding takes datetimes by way of a float, so rows must not hold timestamps that a
float of seconds cannot tell apart; literals are exact.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from features.expr import Type

cel = pytest.importorskip("cel_expr_python.cel", reason="group 'dev' (cel-expr-python)")
ext_math = pytest.importorskip("cel_expr_python.ext.ext_math")

ERROR = object()
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_TYPES = {
    "bool": cel.Type.BOOL,
    "int": cel.Type.INT,
    "double": cel.Type.DOUBLE,
    "string": cel.Type.STRING,
    "timestamp": cel.Type.TIMESTAMP,
    "duration": cel.Type.DURATION,
}


class Oracle:
    """Google's CEL with its math extension over typed names."""

    def __init__(self, names: Mapping[str, Type]) -> None:
        variables = {
            name: cel.Type.List(_TYPES[kind.item.kind]) if kind.is_list else _TYPES[kind.kind]
            for name, kind in names.items()
        }
        self.names = dict(names)
        self.env = cel.NewEnv(variables=variables, extensions=[ext_math.ExtMath()])

    def compile(self, text: str) -> Any:
        """Raises: what the binding raises for an expression that is not CEL."""
        return self.env.compile(text)

    def values(self, text: str, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        """For each row the value, as the interpreter would give it, or ERROR."""
        program = self.compile(text)
        found = []
        for row in rows:
            result = program.eval(data={name: _outward(row[name], kind) for name, kind in self.names.items()})
            found.append(ERROR if result.type() == cel.Type.ERROR else _inward(result.value()))
        return found


def _outward(value: Any, kind: Type) -> Any:
    if kind.is_list:
        return [_outward(item, kind.item) for item in value]
    if kind.kind == "timestamp":
        return EPOCH + datetime.timedelta(microseconds=value)
    return datetime.timedelta(microseconds=value) if kind.kind == "duration" else value


def _inward(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // datetime.timedelta(microseconds=1)
    return value // datetime.timedelta(microseconds=1) if isinstance(value, datetime.timedelta) else value

"""The tunables of a strategy file: the section `params`.

Functions over the getters of `engine/fields.py`. `engine/experiment_loader.py` reads the experiments whose arms set them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.fields import NUMBERS, Fields
from engine.shapes import is_whole, number_of
from engine.strategy import Param
from features.yaml_source import Node, ScalarNode


def read_params(fields: Fields, node: Node | None) -> dict[str, Param]:
    """The section `params`: by name."""
    return fields.named(node, "params", lambda key, value: _param(fields, key, value))


def _param(fields: Fields, key: ScalarNode, node: Node) -> Param | None:
    what = f"params.{key.text}"
    parts = fields.map_of(node)
    kind = fields.text(parts.get("type"))
    if not kind or "default" not in parts:
        fields.broken.add(what)
        return None
    low, high = fields.bounds(parts)
    unit = fields.text(parts.get("unit"))
    layer = fields.text(parts["layer"]) if "layer" in parts else None
    param = Param(name=key.text, type=kind, default=None, layer=layer, min=low, max=high, unit=unit)
    fields.know(what, unit, low, high)
    return replace(param, default=param_value(fields, parts["default"], param, f"{what}.default"))


def param_value(fields: Fields, node: Node, param: Param, what: str) -> Any:
    """A value that a parameter may take; a zero of its type after a mistake."""
    value = node.value if isinstance(node, ScalarNode) else None
    python = {"int": int, "double": float, "bool": bool, "string": str}[param.type]
    if not fields.fits(node):
        return python()
    number = number_of(node) if param.type in NUMBERS else None
    if number is not None and number == python(number) and (param.type == "double" or is_whole(number)):
        value = python(number)  # 1 for 1.0, and 1.0 where a whole number is meant
    if type(value) is not python:
        fields.note(node, "type", f"{what} must be a {param.type}")
        return python()
    if isinstance(value, int | float) and param.type in NUMBERS:
        if param.min is not None and value < param.min:
            fields.note(node, "bound", f"{what} is {value:g}, below the minimum {param.min:g}")
        if param.max is not None and value > param.max:
            fields.note(node, "bound", f"{what} is {value:g}, above the maximum {param.max:g}")
    return value

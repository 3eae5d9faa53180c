"""The tunables of a strategy file: the section `params`.

Functions over the getters of `engine/fields.py`. `engine/experiment_loader.py` reads the experiments whose arms set them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from engine.fields import KINDS, Fields
from engine.strategy import Param
from features.yaml_source import Node, ScalarNode


def read_params(fields: Fields, node: Node | None) -> dict[str, Param]:
    """The section `params`: by name."""
    return fields.named(node, "params", lambda key, value: _param(fields, key, value))


def _param(fields: Fields, key: ScalarNode, node: Node) -> Param | None:
    what = f"params.{key.text}"
    parts = fields.map_of(
        node, ("type", "default", "unit", "min", "max", "layer"), required=("type", "default"), what=what
    )
    kind = fields.choice(parts.get("type"), f"{what}.type", KINDS)
    if kind is None or "default" not in parts:
        fields.broken.add(what)
        return None
    low, high = fields.bounds(parts, what, kind)
    layer = fields.text(parts["layer"], f"{what}.layer", default="") if "layer" in parts else None
    unit = fields.text(parts["unit"], f"{what}.unit", default="") if "unit" in parts else ""
    param = Param(name=key.text, type=kind, default=None, layer=layer, min=low, max=high, unit=unit)
    fields.know(what, unit, low, high)
    default = param_value(fields, parts["default"], param, f"{what}.default")
    return replace(param, default=default)


def param_value(fields: Fields, node: Node, param: Param, what: str) -> Any:
    """A value that a parameter may take; a zero of its type after a mistake."""
    value = node.value if isinstance(node, ScalarNode) else None
    python = {"int": int, "double": float, "bool": bool, "string": str}[param.type]
    if param.type == "double" and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not python or (isinstance(value, float) and not math.isfinite(value)):
        fields.note(node, "type", f"{what} must be a {param.type}")
        return python()
    if isinstance(value, int | float) and param.type != "bool":
        if param.min is not None and value < param.min:
            fields.note(node, "bound", f"{what} is {value:g}, below the minimum {param.min:g}")
        if param.max is not None and value > param.max:
            fields.note(node, "bound", f"{what} is {value:g}, above the maximum {param.max:g}")
    return value

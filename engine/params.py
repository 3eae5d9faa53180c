"""The tunables of a strategy file: parameters, and the experiments whose arms set them.

Functions over the getters of `engine/fields.py`; `engine/loader.py` calls them for the sections `params` and
`experiments`. `engine/experiment.py` is what an experiment then does to a unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.experiment import lay_out
from engine.fields import KINDS, Fields
from engine.strategy import ENVELOPE, Arm, Experiment, Param
from features.expr import Type
from features.yaml_source import MapNode, Node, ScalarNode, name_hint


def read_params(fields: Fields, node: Node | None) -> dict[str, Param]:
    """The section `params`: by name."""
    return fields.named(node, "params", lambda key, value: _param(fields, key, value))


def read_experiments(
    fields: Fields, node: Node | None, strategy: str, params: Mapping[str, Param], request: Mapping[str, Type]
) -> tuple[Experiment, ...]:
    """The section `experiments`: at most one per layer, each with at least one arm."""
    out: list[Experiment] = []
    for key, value in fields.entries(node, "experiments"):
        experiment = _experiment(fields, key, value, strategy, params, request)
        if experiment is None:
            continue
        rival = next((other for other in out if other.layer == experiment.layer), None)
        if rival is not None:
            fields.note(
                key,
                "layer",
                f"layer '{rival.layer}' is already split by experiment '{rival.name}'",
                "use another layer, or add arms",
            )
        out.append(experiment)
    return tuple(out)


def _param(fields: Fields, key: ScalarNode, node: Node) -> Param | None:
    what = f"params.{key.text}"
    parts = fields.map_of(node, ("type", "default", "min", "max", "layer"), required=("type", "default"), what=what)
    kind = fields.choice(parts.get("type"), f"{what}.type", KINDS)
    if kind is None or "default" not in parts:
        fields.broken.add(what)
        return None
    bounds: dict[str, float] = {}
    for bound in ("min", "max"):
        if bound in parts and kind not in ("int", "double"):
            fields.note(parts[bound], "bound", f"a {kind} has no {bound}", "remove it")
        elif bound in parts:
            bounds[bound] = fields.number(parts[bound], f"{what}.{bound}", kind=float, default=math.nan)
    if bounds.get("min", -math.inf) > bounds.get("max", math.inf):
        fields.note(parts["min"], "bound", f"min {bounds['min']:g} is above max {bounds['max']:g}")
    layer = fields.text(parts["layer"], f"{what}.layer", default="") if "layer" in parts else None
    low, high = bounds.get("min"), bounds.get("max")
    param = Param(name=key.text, type=kind, default=None, layer=layer, min=low, max=high)
    default = _param_value(fields, parts["default"], param, f"{what}.default")
    return replace(param, default=default)


def _param_value(fields: Fields, node: Node, param: Param, what: str) -> Any:
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


def _experiment(
    fields: Fields, key: ScalarNode, node: Node, strategy: str, params: Mapping[str, Param], request: Mapping[str, Type]
) -> Experiment | None:
    what = f"experiments.{key.text}"
    parts = fields.map_of(node, ("layer", "unit", "salt", "arms"), required=("layer", "unit", "arms"), what=what)
    if not {"layer", "unit", "arms"} <= set(parts):
        return None
    layer = fields.text(parts["layer"], f"{what}.layer", default="?")
    layers = {param.layer for param in params.values() if param.layer}
    if layer not in layers:
        fields.note(parts["layer"], "layer", f"no parameter belongs to layer '{layer}'", name_hint(layer, layers))
    unit = fields.text(parts["unit"], f"{what}.unit", default="order_id")
    units = {
        *ENVELOPE,
        *(name for name, kind in request.items() if kind in (Type("string", False), Type("int", False))),
    }
    if unit not in units:
        fields.note(
            parts["unit"],
            "unit",
            f"'{unit}' is not a text or whole number that every request has",
            name_hint(unit, units),
        )
    salt = fields.text(parts["salt"], f"{what}.salt", default="") if "salt" in parts else f"{strategy}:{key.text}"
    arms = [_arm(fields, name, arm, what, layer, params) for name, arm in fields.entries(parts["arms"], f"{what}.arms")]
    if not isinstance(parts["arms"], MapNode):
        return None  # noted as that already
    try:
        lay_out([arm.share for arm in arms])
    except ValueError as error:
        fields.note(parts["arms"], "share", f"{what}: {error}", "" if arms else "give it arms, as rules: {share: 0.5}")
    return Experiment(name=key.text, layer=layer, unit=unit, salt=salt, arms=tuple(arms))


def _arm(fields: Fields, key: ScalarNode, node: Node, what: str, layer: str, params: Mapping[str, Param]) -> Arm:
    what = f"{what}.arms.{key.text}"
    parts = fields.map_of(node, ("share", "set"), required=("share",), what=what)
    share = fields.number(parts.get("share"), f"{what}.share", kind=float, low=0.0, high=1.0, default=0.0)
    values: dict[str, Any] = {}
    known = {f"params.{name}": param for name, param in params.items()}
    for name, value in fields.entries(parts.get("set"), f"{what}.set"):
        param = known.get(name.text)
        if param is None:
            if name.text not in fields.broken:
                fields.note(name, "name", f"unknown parameter '{name.text}'", name_hint(name.text, known))
        elif param.layer != layer:
            owner = f"belongs to layer '{param.layer}'" if param.layer else "belongs to no layer"
            fields.note(
                name,
                "layer",
                f"'{name.text}' {owner}, so an experiment of layer '{layer}' may not set it",
                f"give the parameter layer: {layer}",
            )
        else:
            values[param.name] = _param_value(fields, value, param, f"{what}.set.{name.text}")
    return Arm(name=key.text, share=share, set=values)

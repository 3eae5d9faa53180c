"""The section `experiments` of a strategy file: which layer each splits, into which arms, for whom.

Functions over the getters of `engine/fields.py`; `engine/loader.py` calls them. `engine/experiment.py` is what an
experiment then does to a unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.experiment import lay_out
from engine.fields import Fields
from engine.params import param_value
from engine.strategy import ENVELOPE, Arm, Experiment, Param
from features.expr import Type
from features.yaml_source import MapNode, Node, ScalarNode, name_hint


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
            values[param.name] = param_value(fields, value, param, f"{what}.set.{name.text}")
    return Arm(name=key.text, share=share, set=values)

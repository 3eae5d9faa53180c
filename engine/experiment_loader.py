"""The sections `layers` and `experiments` of a strategy file: which layer each splits, into which arms, for whom.

Functions over the getters of `engine/fields.py`; `engine/loader.py` calls them. `engine/experiment.py` is what an
experiment then does to a request, `engine/experiment_check.py` finds two that claim the same request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engine.experiment import HOLDOUT, NOT_EXPOSED, lay_out
from engine.fields import Fields
from engine.params import param_value
from engine.strategy import ENVELOPE, Arm, Experiment, Layer, Param
from features.expr import Type
from features.window import parse_duration_ms
from features.yaml_source import Node, ScalarNode, name_hint

NEEDS: Final = {"hash": ("unit",), "switchback": ("region", "window")}
NO_ARMS: Final = (HOLDOUT, NOT_EXPOSED)  # what a Decision says in place of an arm


def read_layers(fields: Fields, node: Node | None, strategy: str, params: Mapping[str, Param]) -> dict[str, Layer]:
    """The layers that parameters belong to, by name; the section `layers` says what there is to say about one."""
    known = {
        param.layer: Layer(name=param.layer, salt=_layer_salt(strategy, param.layer))
        for param in params.values()
        if param.layer
    }
    for key, value in fields.entries(node):
        parts = fields.map_of(value)
        holdout = fields.number(parts.get("holdout"), 0.0)
        salt = fields.text(parts.get("salt"), _layer_salt(strategy, key.text))
        if key.text not in known:
            if not any(what.startswith("params.") for what in fields.broken):
                fields.note(key, "layer", f"no parameter belongs to layer '{key.text}'", name_hint(key.text, known))
            continue
        known[key.text] = Layer(name=key.text, holdout=holdout, salt=salt)
    return known


def read_experiments(
    fields: Fields, node: Node | None, strategy: str, params: Mapping[str, Param], request: Mapping[str, Type]
) -> tuple[Experiment, ...]:
    """The section `experiments`, in the order of the file; each splits one layer and sets only parameters of it."""
    reader = _Reader(fields, strategy, params, request)
    out: list[Experiment] = []
    for key, value in fields.entries(node):
        experiment = reader.experiment(key, value)
        if experiment is None:
            continue
        twin = next((other for other in out if other.salt == experiment.salt), None)
        if twin is not None:
            fields.note(
                key,
                "salt",
                f"experiment '{experiment.name}' has the salt of '{twin.name}', so their arms are not independent",
                "leave the salt out, or choose another",
            )
        out.append(experiment)
    return tuple(out)


class _Reader:
    """One section; what every part of it refers to."""

    def __init__(self, fields: Fields, strategy: str, params: Mapping[str, Param], request: Mapping[str, Type]) -> None:
        self.fields, self.strategy, self.params = fields, strategy, params
        self.layers = {param.layer for param in params.values() if param.layer}
        plain = (Type("string", False), Type("int", False))
        self.units = {*ENVELOPE, *(name for name, kind in request.items() if kind in plain)}

    def experiment(self, key: ScalarNode, node: Node) -> Experiment | None:
        what = f"experiments.{key.text}"
        fields = self.fields
        parts = fields.map_of(node)
        kind = fields.text(parts.get("kind"), "hash")
        known_kind = all(fields.fits(value) for name, value in fields.entries(node) if name.text == "kind")
        if not known_kind or not {"layer", "arms"} <= set(parts):
            return None
        layer = fields.text(parts["layer"])
        if layer not in self.layers:
            fields.note(
                parts["layer"], "layer", f"no parameter belongs to layer '{layer}'", name_hint(layer, self.layers)
            )
        arms = self.arms(parts["arms"], what, layer)
        if any(name not in parts for name in NEEDS[kind]):
            return None
        return Experiment(
            name=key.text,
            layer=layer,
            unit=self.unit(parts.get("unit")),
            region=self.unit(parts.get("region")),
            salt=fields.text(parts.get("salt"), f"{self.strategy}:{key.text}"),
            arms=arms,
            kind=kind,
            exposure=fields.number(parts.get("exposure"), 1.0),
            where=fields.expression(parts.get("where")),
            window_ms=parse_duration_ms(fields.text(parts.get("window"), "0ms")),
            offset=fields.text(parts.get("offset"), "none"),
            source=key.source(),
        )

    def unit(self, node: Node | None) -> str:
        """A field whose value every request has, so that there is always something to hash."""
        name = self.fields.text(node)
        if name and name not in self.units:
            self.fields.note(
                node,
                "unit",
                f"'{name}' is not a text or whole number that every request has",
                name_hint(name, self.units),
            )
        return name

    def arms(self, node: Node, what: str, layer: str) -> tuple[Arm, ...]:
        fields = self.fields
        given = fields.entries(node)
        arms = [self.arm(name, arm, what, layer) for name, arm in given]
        if any(not fields.fits(fields_of.get("share")) for fields_of in (fields.map_of(arm) for _, arm in given)):
            return tuple(arms)  # a sum would say it again
        try:
            lay_out([arm.share for arm in arms])
        except ValueError as error:
            fields.note(node, "share", f"{what}: {error}", _shares_hint(arms))
        return tuple(arms)

    def arm(self, key: ScalarNode, node: Node, what: str, layer: str) -> Arm:
        what = f"{what}.arms.{key.text}"
        fields = self.fields
        if key.text in NO_ARMS:
            fields.note(
                key, "name", f"'{key.text}' is what a Decision says of a request without an arm", "choose another name"
            )
        parts = fields.map_of(node)
        return Arm(
            name=key.text,
            share=fields.number(parts.get("share"), 0.0),
            set=self.settings(parts.get("set"), what, layer),
        )

    def settings(self, node: Node | None, what: str, layer: str) -> dict[str, Any]:
        """`{parameter: value}`; an arm may set what belongs to its experiment's layer, and nothing else."""
        fields = self.fields
        values: dict[str, Any] = {}
        known = {f"params.{name}": param for name, param in self.params.items()}
        for name, value in fields.entries(node):
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
        return values


def _layer_salt(strategy: str, layer: str) -> str:
    return f"{strategy}:{layer}:holdout"


def _shares_hint(arms: list[Arm]) -> str:
    """How to say with `exposure` what shares below 1 in sum were meant to say."""
    if not arms:
        return "give it arms, as rules: {share: 0.5}"
    total = sum(arm.share for arm in arms)
    if not 0.0 < total < 1.0:
        return "shares are of the units that are let in; they add up to 1"
    shares = ", ".join(f"{arm.name}: {{share: {arm.share / total:g}}}" for arm in arms)
    return f"to let in {total:g} of all units, write exposure: {total:g} and {shares}"

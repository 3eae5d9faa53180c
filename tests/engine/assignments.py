"""What the tests of assignment share: one experiment as a compiled strategy would hold it, without the strategy."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from engine.experiment import assign, lay_out
from engine.strategy import CompiledArms, CompiledStrategy, Experiment, Layer


def compiled_arms(experiment: Experiment) -> CompiledArms:
    """The experiment with its buckets laid out; its arms set plain values and no columns."""
    return CompiledArms(
        experiment=experiment,
        bucketing=lay_out([arm.share for arm in experiment.arms]),
        columns=tuple({} for _ in experiment.arms),
        values=tuple(dict(arm.set) for arm in experiment.arms),
    )


def strategy_of(*experiments: Experiment, layers: Mapping[str, Layer] | None = None) -> CompiledStrategy:
    """As much of a compiled strategy as `assign` reads."""
    return cast(
        CompiledStrategy,
        SimpleNamespace(
            arms=tuple(map(compiled_arms, experiments)),
            strategy=SimpleNamespace(layers=layers or {}),
            param_columns={},
            param_values={},
        ),
    )


def arm_of(experiment: Experiment, layer: Layer | None, unit: Any, as_of_ms: int = 0) -> str:
    """What `arms` of a Decision says of one unit, or of one region and time."""
    field = experiment.region if experiment.kind == "switchback" else experiment.unit
    layers = {} if layer is None else {experiment.layer: layer}
    return assign(strategy_of(experiment, layers=layers), {field: unit}, as_of_ms).arms[experiment.name]

"""What an aggregate takes beside `of`, `where`, `window` and `hop`, and the type of its value. See AGGREGATES.md."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from features.buckets import MILLIONTHS
from features.expr import Program
from features.spec import UNWINDOWED
from features.yaml_fields import Fields

OPTIONS: Final = {"half_life": ("decayed_sum",), "q": ("quantile",), "resolution": ("stddev", "quantile")}
NUMERIC: Final = ("sum", "avg", "min", "max", "stddev", "decayed_sum", "quantile")
RESOLUTIONS: Final = {"int": 1.0, "double": 0.001}  # the steps of stddev and quantile where none are declared


@dataclass(frozen=True, kw_only=True)
class AggregateOptions:
    """The options of one feature, None where its aggregate has none."""

    half_life_ms: int | None = None
    q: float | None = None
    resolution: float | None = None


def load_options(fields: Fields, aggregate: str, of: Program | None) -> AggregateOptions:
    """The options of a feature; what is missing, out of range or goes with another aggregate is noted."""
    for name, aggregates in OPTIONS.items():
        if fields.has(name) and aggregate not in aggregates:
            message = f"'{name}' does not go with {aggregate}: it is for {' and '.join(aggregates)}"
            fields.problems.add(fields.node_of(name), "feature", message)
    half_life_ms = fields.duration("half_life") if aggregate in OPTIONS["half_life"] else None
    if half_life_ms == 0:
        fields.problems.add(fields.node_of("half_life"), "duration", "a half life must be longer than 0s")
    q = _number(fields, "q", required=True) if aggregate in OPTIONS["q"] else None
    if q is not None and (not 0.0 <= q <= 1.0 or round(q * MILLIONTHS) / MILLIONTHS != q):
        hint = "0.5 is the median, 0.95 the value that 95 % do not exceed"
        message = f"q {fields.text('q')} is not within 0 and 1, with six decimals at most"
        fields.problems.add(fields.node_of("q"), "type", message, hint)
    resolution = None
    if aggregate in OPTIONS["resolution"]:
        resolution = _number(fields, "resolution", required=False)
        if resolution is None and of is not None:
            resolution = RESOLUTIONS.get(of.type.kind)
        elif resolution is not None and not resolution > 0.0:
            message = f"resolution {fields.text('resolution')} is not above 0"
            fields.problems.add(fields.node_of("resolution"), "type", message)
    return AggregateOptions(half_life_ms=half_life_ms, q=q, resolution=resolution)


def value_type(aggregate: str, of: Program | None) -> tuple[str, bool]:
    """The type of a feature's value, and whether it can be null while the view is live."""
    nullable = aggregate not in ("count", "sum", "decayed_sum")
    if aggregate == "count":
        return "int", nullable
    if aggregate in ("avg", "stddev", "decayed_sum", "quantile"):
        return "double", nullable
    return ("int" if of is None else of.type.kind), nullable


def takes_window(aggregate: str) -> bool:
    return aggregate not in UNWINDOWED


def _number(fields: Fields, name: str, *, required: bool) -> float | None:
    node = fields.scalar(name, required=required)
    if node is None:
        return None
    value = node.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        fields.problems.add(node, "type", f"{name} {node.text} is not a number")
        return None
    return float(value)

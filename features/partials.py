"""What is kept of each aggregate: numbers of a tile, counts of buckets, a field of a last value.

Two features that need the same share it: `key` says what is the same. What the numbers mean is in `aggregate.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from features.declared import FeatureSpec

if TYPE_CHECKING:
    from features.expr import Program

_SPACES: Final = re.compile(r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|\s+""")
AGGREGATES: Final = (
    "count", "sum", "avg", "min", "max", "stddev", "first", "last", "decayed_sum", "quantile",
)  # fmt: skip
UNWINDOWED: Final = ("first", "last")  # kept in last groups, without tiles
MOMENTS: Final = ("moment_n", "moment_q", "moment_aa", "moment_ab", "moment_bb")


@dataclass(frozen=True, kw_only=True)
class Partial:
    """One number kept per tile. `of` is None only for a plain count; a count with `of` counts where it is not null.

    The empty value (`identity`) is what changes nothing when merged: 0 for everything that is added up. The moments are
    of q, the value in steps of `resolution`, cut into q = b * 2^21 + a with 0 <= a < 2^21: the number of them, the sums
    of q, a * a, a * b, b * b. None of them overflows below 2^20 events.
    """

    name: str
    function: str  # count, sum, min, max, or one of MOMENTS
    of: Program | None
    where: Program | None
    type: str  # "int" (int64) or "double" (float64)
    resolution: float | None = None  # of moments

    @property
    def identity(self) -> int | float:
        if self.function not in ("min", "max"):
            return 0
        if self.type == "double":
            return float("inf") if self.function == "min" else float("-inf")
        return 2**63 - 1 if self.function == "min" else -(2**63)

    @property
    def key(self) -> tuple[str, ...]:
        steps = () if self.resolution is None else (repr(float(self.resolution)),)
        return (self.function, text_of(self.of), text_of(self.where), *steps)


@dataclass(frozen=True, kw_only=True)
class BucketSpec:
    """What a bucketed group counts: the values of `of` in steps of `resolution`, by bucket (features/buckets.py)."""

    of: Program
    where: Program | None
    resolution: float

    @property
    def key(self) -> tuple[str, str, str]:
        return (text_of(self.of), text_of(self.where), repr(float(self.resolution)))


@dataclass(frozen=True, kw_only=True)
class LastField:
    """The newest (`first`: the oldest) non-null value of `of` among the events that `where` lets through."""

    name: str
    of: Program
    where: Program | None
    type: str
    newest: bool = True

    @property
    def key(self) -> tuple[str, ...]:
        return (text_of(self.of), text_of(self.where), *(() if self.newest else ("first",)))


def partials_of(spec: FeatureSpec) -> list[Partial]:
    """The partials that a windowed feature needs, without names. An average is a sum and a count; quantiles have none."""

    def partial(function: str, type_name: str, resolution: float | None = None) -> Partial:
        return Partial(name="", function=function, of=spec.of, where=spec.where, type=type_name, resolution=resolution)

    if spec.aggregate == "count":
        return [partial("count", "int")]
    assert spec.of is not None
    of_type = spec.of.type.kind
    if spec.aggregate == "avg":
        return [partial("sum", of_type), partial("count", "int")]
    if spec.aggregate == "stddev":
        return [partial(function, "int", spec.resolution) for function in MOMENTS]
    if spec.aggregate == "quantile":
        return []
    assert spec.aggregate in ("sum", "min", "max", "decayed_sum"), spec.aggregate
    return [partial("sum" if spec.aggregate == "decayed_sum" else spec.aggregate, of_type)]


def buckets_of(spec: FeatureSpec) -> BucketSpec | None:
    """What the bucketed group of a quantile counts; None for the other aggregates."""
    if spec.aggregate != "quantile":
        return None
    assert spec.of is not None and spec.resolution is not None
    return BucketSpec(of=spec.of, where=spec.where, resolution=spec.resolution)


def last_field_of(spec: FeatureSpec) -> LastField:
    """The field of a `last` or `first`, without a name."""
    assert spec.of is not None
    return LastField(name="", of=spec.of, where=spec.where, type=spec.of.type.kind, newest=spec.aggregate != "first")


def text_of(program: Program | None) -> str:
    """An expression as written, however its spaces and line breaks are; those inside a text are its own. "" for none."""
    if program is None:
        return ""
    return _SPACES.sub(lambda match: match[1] or " ", program.source.text.strip())

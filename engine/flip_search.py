"""Where a goal first holds when one numeric input of one candidate moves: many values of it at once, as columns.

The values tried come from the comparisons that can see the input: where it stands against another value directly, that
value and its neighbours; elsewhere (`x * 2.0 + y > z`, a table's range, a score against another's) the place where the
outcome changes, by section between tried values down to neighbouring doubles or ints. `engine/flip.py` says what the
goals are and proves each answer with the row interpreter.
Legend: P values tried of the input, R rows (candidates) looked at for each.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from engine.row import part_of
from engine.strategy import CompiledLet, CompiledStrategy
from engine.wire_values import US_PER_MS, column_of_wire, is_time
from features.expr import Column, Program, Type, evaluate, interpret
from features.expr.program import Step

NUMERIC: Final = ("int", "double", "timestamp", "duration")
COMPARES: Final = ("lt", "le", "gt", "ge", "eq", "ne", "in")
_SECTIONS: Final = 33  # parts of one section step: 11 steps reach neighbouring doubles, each one pass over 32 rows
_HOUR_MS: Final = 3_600_000
_DIRECT: Final = ("same", "double_of_int")


@dataclass(frozen=True, kw_only=True)
class Input:
    """A number that may move, as a request sends it (times in milliseconds). `shared`: it is the whole request's, so every candidate sees the change.

    `low` and `high` are the declared bounds, both included.
    """

    name: str
    kind: str
    value: int | float
    shared: bool
    status: str
    low: float | None = None
    high: float | None = None

    @property
    def whole(self) -> bool:
        return self.kind != "double"

    @property
    def has_range(self) -> bool:
        return self.low is not None and self.high is not None and self.low < self.high

    @property
    def scale(self) -> float:
        """What a change is measured by: the declared range if there is one, else the size of the value itself."""
        if self.has_range:
            assert self.low is not None and self.high is not None
            return self.high - self.low
        return max(abs(float(self.value)), 1.0 if self.whole else 1e-9)

    def distance(self, value: int | float) -> float:
        return abs(float(value) - float(self.value)) / self.scale

    def clip(self, value: int | float) -> int | float | None:
        """The value as the input may have it; None for one outside its bounds or its type."""
        if not math.isfinite(value) or (self.low is not None and value < self.low):
            return None
        if self.high is not None and value > self.high:
            return None
        if self.whole:
            return int(value) if -(2**63) <= value < 2**63 else None
        return float(value)


Holds = Callable[[Sequence[Any]], np.ndarray]


def nearest(moved: Input, holds: Holds, watched: Sequence[Holds], thresholds: Sequence[float]) -> list[int | float]:
    """For each direction the first value where `holds` is true, the nearer one first; none for a direction without.

    `holds` and `watched` take P values and return (P,): whether the goal holds, and what else changes on the way there
    (`watched` values are compared with each other only).
    """
    points = sorted({*_spread(moved), *_beside(moved, thresholds)})
    for signal in watched:
        points = sorted({*points, *_edges(moved, signal, points)})
    found: list[int | float] = []
    truth = holds(points)
    below = [at for at, point in enumerate(points) if point < moved.value][::-1]
    above = [at for at, point in enumerate(points) if point > moved.value]
    for side in (below, above):
        at = next((at for at in side if truth[at]), None)
        if at is not None:
            before = side[side.index(at) - 1] if at != side[0] else None
            start = moved.value if before is None else points[before]
            edge = _section(moved, start, points[at], lambda values: np.asarray(holds(values), dtype=bool))
            found.append(_plain(moved, edge, holds))
    return sorted(found, key=moved.distance)


def thresholds_of(
    moved: Input, programs: Sequence[Program], values: Mapping[str, Any], moving: set[str]
) -> list[float]:
    """What the input is compared with directly, as it stands for this candidate. `moving` are the names that move with it."""
    found: list[float] = []
    for program, step in comparisons(programs):
        for at, side in enumerate(step.args):
            others = [other for place, other in enumerate(step.args) if place != at]
            if _bare(side) != moved.name or any(_reads(other, moving) for other in others):
                continue
            for other in others:
                value = interpret(part_of(program, other), values)
                if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                    found.append(value / US_PER_MS if is_time(Type(moved.kind)) else value)
    return found


def signals_of(
    moved: Input,
    programs: Sequence[Program],
    moving: set[str],
    columns_at: Callable[[Sequence[Any]], dict[str, Column]],
) -> list[Holds]:
    """The comparisons that see the input only through arithmetic, as functions of its value."""
    signals: list[Holds] = []
    for program, step in comparisons(programs):
        direct = any(_bare(side) == moved.name for side in step.args)
        others = [side for side in step.args if _bare(side) != moved.name]
        if not _reads(step, moving) or (direct and not any(_reads(side, moving) for side in others)):
            continue
        part = part_of(program, step)

        def signal(points: Sequence[Any], part: Program = part) -> np.ndarray:
            found = evaluate(part, columns_at(points), num_rows=len(points))
            return np.where(found.valid, found.values.astype(np.int64), -1)

        signals.append(signal)
    return signals


def moving_with(compiled: CompiledStrategy, name: str) -> set[str]:
    """The names whose value depends on an input, itself among them: named values and table outputs too."""
    moving = {name}
    for step in (*compiled.steps_before, *compiled.steps_after):
        if isinstance(step, CompiledLet):
            if step.program.names & moving:
                moving.add(step.name)
        elif moving & set(step.table.inputs):
            moving |= {f"{step.name}.{output}" for output in step.table.outputs}
    return moving


def spread_column(column: Column, rows: Sequence[int], num_points: int) -> Column:
    """R rows of a column, P times. Shapes: column (K,); returns (P * R,)."""
    return Column(np.tile(column.values[rows], num_points), np.tile(column.valid[rows], num_points))


def moved_column(points: Sequence[Any], kind: Type, num_rows: int) -> Column:
    """A column of P values as they are sent, each for R rows. Shapes: (P * R,)."""
    column = column_of_wire(list(points), kind)
    return Column(np.repeat(column.values, num_rows), np.repeat(column.valid, num_rows))


def comparisons(programs: Sequence[Program]) -> Iterator[tuple[Program, Step]]:
    """All of them but those inside loops, which stand for no single value."""
    for program in programs:
        left = [program.root]
        while left:
            step = left.pop()
            if step.step in ("exists", "all"):
                continue
            if step.step.split("_")[0] in COMPARES:
                yield program, step
            left += step.args


def _bare(step: Step) -> str | None:
    """The name that a step is nothing but, conversions aside."""
    while step.step in _DIRECT:
        step = step.args[0]
    return str(step.value) if step.step == "name" else None


def _reads(step: Step, names: set[str]) -> bool:
    return any(inner.step == "name" and inner.value in names for inner in step.walk())


def _spread(moved: Input) -> Iterator[int | float]:
    """Values near and far on both sides, and the ends of the declared range."""
    unit = float(_HOUR_MS) if moved.kind == "timestamp" else moved.scale
    wanted = [float(moved.value) + sign * unit * 2.0**power for sign in (-1.0, 1.0) for power in range(-14, 8)]
    wanted += [float(moved.value) + step for step in (-3, -2, -1, 1, 2, 3) if moved.whole]
    wanted += [bound for bound in (moved.low, moved.high, 0.0) if bound is not None]
    for value in wanted:
        clipped = moved.clip(math.floor(value) if moved.whole and math.isfinite(value) else value)
        if clipped is not None and clipped != moved.value:
            yield clipped


def _beside(moved: Input, thresholds: Sequence[float]) -> Iterator[int | float]:
    """Each threshold and the values right below and above it."""
    for threshold in thresholds:
        if moved.whole:
            beside: list[int | float] = [math.floor(threshold) + step for step in (-1, 0, 1, 2)]
        else:
            exact = float(threshold)
            beside = [math.nextafter(exact, -math.inf), exact, math.nextafter(exact, math.inf)]
        yield from (
            clipped for value in beside if (clipped := moved.clip(value)) is not None and clipped != moved.value
        )


def _edges(moved: Input, signal: Holds, points: Sequence[int | float]) -> Iterator[int | float]:
    """Both sides of every place where a signal changes between two neighbouring points."""
    found = signal(points)
    for at in range(1, len(points)):
        if found[at] != found[at - 1]:
            edge = _section(moved, points[at - 1], points[at], _leaves(signal, found[at - 1]))
            inner = _from_ordinal(moved, _ordinal(moved, edge) - 1)
            yield from (value for value in (inner, edge) if value != moved.value)


def _leaves(signal: Holds, value: Any) -> Holds:
    return lambda points: np.asarray(signal(points) != value, dtype=bool)


def _section(moved: Input, start: int | float, end: int | float, holds: Holds) -> int | float:
    """Between a value where `holds` is false and one where it is true: a value where it is true beside one where it is not."""
    false, true = _ordinal(moved, start), _ordinal(moved, end)
    while abs(true - false) > 1:
        step = (true - false) / _SECTIONS
        inner = sorted({false + round(step * part) for part in range(1, _SECTIONS)} - {false, true}, reverse=step < 0)
        if not inner:
            break
        truth = holds([_from_ordinal(moved, at) for at in inner])
        first = int(np.argmax(truth)) if truth.any() else None
        if first is None:
            false = inner[-1]
        else:
            false, true = (inner[first - 1] if first else false), inner[first]
    return _from_ordinal(moved, true)


def _plain(moved: Input, edge: int | float, holds: Holds) -> int | float:
    """The value with the fewest digits that also holds and is at most 0.1 % further away: what a person wants to read."""
    if moved.whole or edge == 0.0:
        return edge
    outward = 1.0 if edge > moved.value else -1.0
    far = abs(edge - moved.value) * 1.001
    shorter = []
    for digits in range(1, 16):
        rounded = float(f"{edge:.{digits}g}")
        if (rounded - edge) * outward < 0:
            rounded = float(
                f"{rounded + outward * 10.0 ** (math.floor(math.log10(abs(edge))) + 1 - digits):.{digits}g}"
            )
        clipped = moved.clip(rounded)
        if clipped is not None and (clipped - edge) * outward >= 0 and abs(clipped - moved.value) <= far:
            shorter.append(clipped)
    if not shorter:
        return edge
    return next((value for value, ok in zip(shorter, holds(shorter), strict=True) if ok), edge)


def _ordinal(moved: Input, value: int | float) -> int:
    """A whole number in the order of the values, neighbours one apart."""
    if moved.whole:
        return int(value)
    (bits,) = struct.unpack("<q", struct.pack("<d", float(value)))
    return int(bits) if bits >= 0 else -(bits & 0x7FFFFFFFFFFFFFFF)


def _from_ordinal(moved: Input, ordinal: int) -> int | float:
    if moved.whole:
        return ordinal
    bits = ordinal if ordinal >= 0 else -ordinal | -0x8000000000000000
    value: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return value

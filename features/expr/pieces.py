"""A step that reads one number, cut where it changes: on each piece it is monotone, or one constant.

```
x (int)        … 4 | 5 | 6 …          x == 5 || double(x) * 2.0 > 11.0
                 F | T | T
```

The cuts are exact: on a piece where both sides of a comparison are monotone, halving finds the key at which the
interpreter's answer changes. Rounding keeps order (IEEE 754), so `x * 0.1` is monotone with all its rounding. What is
not known to be monotone (`%`, `exp`, a product of both signs) is an `unknown` piece, never a guess.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Final

from features.expr.interpret import interpret_marked
from features.expr.keys import NUMBERS, value_of
from features.expr.program import Program, Step
from features.expr.runs import Piece, direction, infinity_of, joined, outside, runs, sign, together, truncated, zero_of
from features.expr.source import SourceText
from features.expr.times import RANGES, SECOND
from features.expr.types import INT_MAX, INT_MIN

SMALL: Final = 256  # keys: a piece that is not understood, but so short, is tried key by key
MAX_PIECES: Final = 4_096  # beyond, the rest is one unknown piece: nobody reads a condition with that many edges
COMPARE: Final = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
OPAQUE: Final = frozenset({"exists", "all"})  # loops: their body cannot be evaluated by itself
_NO_SOURCE: Final = SourceText("")


def as_program(step: Step) -> Program:
    """A part of an expression as something the interpreter runs."""
    names = frozenset(str(part.value) for part in step.walk() if part.step == "name")
    return Program(step.type, names, _NO_SOURCE, step)


def pieces(step: Step, name: str, kind: str, low: int, high: int) -> list[Piece]:
    """The pieces of a step that reads no other name, from key `low` to key `high`, without gaps."""
    cutter = _Cutter(name, kind)
    out: list[Piece] = []
    for piece in cutter.cut(step, low, high):
        if piece.status == "unknown" and piece.high - piece.low < SMALL:
            out += [cutter.flat(step, key, key) for key in range(piece.low, piece.high + 1)]
        else:
            out.append(piece)
    return out


class _Cutter:
    def __init__(self, name: str, kind: str) -> None:
        self.name, self.kind = name, kind
        self.programs: dict[int, Program] = {}
        self.reads: dict[int, bool] = {}

    def cut(self, step: Step, low: int, high: int) -> list[Piece]:
        if step.step == "name":
            return [Piece(low, high, "value", 1)]
        if not self.reads_name(step):
            return [self.flat(step, low, high)]
        if step.step in OPAQUE:
            return [Piece(low, high, "unknown")]
        args = [self.cut(arg, low, high) for arg in step.args]
        out: list[Piece] = []
        for start, end, parts in together(args, low, high):
            if len(out) > MAX_PIECES:
                out.append(Piece(start, high, "unknown"))
                break
            out += self.on(step, start, end, parts)
        return joined(out)

    def on(self, step: Step, low: int, high: int, args: list[Piece]) -> list[Piece]:
        """The pieces of a step where each of its arguments is one piece."""
        if step.step in ("and", "or"):
            known = [self.at(arg, low) for arg, piece in zip(step.args, args, strict=True) if piece.status != "unknown"]
            decided = len(known) == len(args) or any(value is (step.step == "or") for value in known)
            return [self.flat(step, low, high) if decided else Piece(low, high, "unknown")]
        if step.step == "if":
            if args[0].status != "value":
                return [args[0]]
            return [args[1] if self.at(step.args[0], low) else args[2]]
        if step.step == "coalesce":
            return [args[1] if args[0].status == "null" else args[0]]
        if step.step == "is_null":
            return [args[0] if args[0].status == "unknown" else self.flat(step, low, high)]
        for status in ("error", "unknown", "null"):
            if any(arg.status == status for arg in args):
                return [Piece(low, high, status)]
        if all(arg.way == 0 for arg in args):
            return [self.flat(step, low, high)]
        operation, _, kind = step.step.partition("_")
        if any(arg.status == "nan" for arg in args):  # NaN beside a number that moves: NaN, or one truth value
            known_nan = operation in (*COMPARE, "add", "sub", "mul", "div", "least", "greatest") and kind == "double"
            return [self.flat(step, low, high) if known_nan else Piece(low, high, "unknown")]
        if operation in COMPARE and kind in NUMBERS:
            return self.compared(step, low, high, args)
        if operation == "in" and kind in NUMBERS:
            return self.among(step, low, high, args)
        if kind == "double" and operation in ("add", "sub", "mul", "div"):
            return self.real(step, operation, low, high, args)
        if step.step in _WHOLE:
            return self.whole(step, low, high, args)
        return self.function(step, low, high, args)

    # comparisons ----------------------------------------------------------------------------------------------------

    def compared(self, step: Step, low: int, high: int, args: list[Piece]) -> list[Piece]:
        """`a op b`: which is larger changes at most twice where a rises and b does not, or the other way round."""
        if args[0].way * args[1].way > 0:
            return [Piece(low, high, "unknown")]
        a, b = step.args
        return self.truths(
            step, [(s, e) for s, e, _ in runs(low, high, lambda key: sign(self.at(a, key), self.at(b, key)))]
        )

    def among(self, step: Step, low: int, high: int, args: list[Piece]) -> list[Piece]:
        """`a in [b, c]`: cut at each option."""
        item = step.args[0]
        spans = [(low, high)]
        for option in step.args[1:]:
            wanted = self.at(option, low)
            label = functools.partial(self.side, item, wanted)
            spans = [(s, e) for start, end in spans for s, e, _ in runs(start, end, label)]
        return self.truths(step, spans)

    def truths(self, step: Step, spans: list[tuple[int, int]]) -> list[Piece]:
        """The pieces of a comparison, neighbours with one answer as one piece."""
        out: list[Piece] = []
        last = None
        for start, end in spans:
            truth = self.at(step, start)
            if out and truth is last:
                out[-1] = out[-1]._replace(high=end)
            else:
                out.append(Piece(start, end, "value"))
            last = truth
        return out

    def side(self, step: Step, wanted: int | float, key: int) -> int:
        return sign(self.at(step, key), wanted)

    # arithmetic -----------------------------------------------------------------------------------------------------

    def real(self, step: Step, operation: str, low: int, high: int, args: list[Piece]) -> list[Piece]:
        """Doubles. Where an argument is infinite it is cut off first, so that inf - inf cannot hide in a piece."""
        for index, piece in enumerate(args):
            if piece.way:
                ends = runs(low, high, lambda key, i=index: infinity_of(self.at(step.args[i], key)))  # type: ignore[misc]
                if len(ends) > 1 or ends[0][2]:
                    out: list[Piece] = []
                    for start, end, infinite in ends:
                        parts = list(args)
                        parts[index] = piece._replace(way=0 if infinite else piece.way)
                        still = all(part.way == 0 for part in parts)
                        out += [self.flat(step, start, end)] if still else self.real(step, operation, start, end, parts)
                    return out
        flat = [self.at(step.args[i], low) for i, piece in enumerate(args) if piece.way == 0]
        if any(math.isinf(value) for value in flat):
            return [self.flat(step, low, high) if operation in ("add", "sub") else Piece(low, high, "unknown")]
        a, b = args[0].way, args[1].way
        if operation in ("add", "sub"):
            b = b if operation == "add" else -b
            return [Piece(low, high, "value", a or b) if a * b >= 0 else Piece(low, high, "unknown")]
        if operation == "mul":
            return self.product(step, low, high, args)
        if b == 0:
            divisor = self.at(step.args[1], low)
            return [Piece(low, high, "value", a * direction(divisor)) if divisor else Piece(low, high, "unknown")]
        if a:
            return [Piece(low, high, "unknown")]
        out = []
        top = self.at(step.args[0], low)
        for start, end, zone in runs(low, high, lambda key: zero_of(self.at(step.args[1], key))):
            if zone in (-1, 2):
                way = -b * direction(top)
                out.append(Piece(start, end, "value", way))
            else:
                out.append(self.flat(step, start, end))  # divided by -0.0, or by 0.0
        return out

    def product(self, step: Step, low: int, high: int, args: list[Piece]) -> list[Piece]:
        """a * b for a constant b, or for two that have no sign and move the same way."""
        for index in (0, 1):
            if args[1 - index].way == 0:
                return [Piece(low, high, "value", args[index].way * direction(self.at(step.args[1 - index], low)))]
        least = [min(self.at(arg, low), self.at(arg, high)) for arg in step.args]
        same = args[0].way == args[1].way and all(direction(value) > 0 for value in least)
        return [Piece(low, high, "value", args[0].way) if same else Piece(low, high, "unknown")]

    def whole(self, step: Step, low: int, high: int, args: list[Piece]) -> list[Piece]:
        """Checked ints: monotone without the check, so the overflow is at the ends of the piece."""
        way = self.whole_way(step, low, high, args)
        if way is None:
            return [Piece(low, high, "unknown")]
        operation = _WHOLE[step.step]

        least, most = RANGES.get(step.type.kind, (INT_MIN, INT_MAX))

        def overflow(key: int) -> int:
            value = operation(*(self.at(arg, key) for arg in step.args))
            return -1 if value < least else 1 if value > most else 0

        return [
            Piece(start, end, "error") if over else Piece(start, end, "value", way)
            for start, end, over in runs(low, high, overflow)
        ]

    def whole_way(self, step: Step, low: int, high: int, args: list[Piece]) -> int | None:
        ways = [piece.way for piece in args]
        if len(ways) == 1:
            return -ways[0] if step.step == "neg_int" else ways[0]
        if step.step.startswith(("add_", "sub_")):
            b = ways[1] if step.step.startswith("add_") else -ways[1]
            return (ways[0] or b) if ways[0] * b >= 0 else None
        if step.step == "div_int":
            divisor = self.at(step.args[1], low) if ways[1] == 0 else 0
            return ways[0] * direction(divisor) if divisor else None
        for index in (0, 1):
            if ways[1 - index] == 0:
                factor = self.at(step.args[1 - index], low)
                return ways[index] * (direction(factor) if factor else 0)
        least = [min(self.at(arg, low), self.at(arg, high)) for arg in step.args]
        return ways[0] if ways[0] == ways[1] and all(value >= 0 for value in least) else None

    def function(self, step: Step, low: int, high: int, args: list[Piece]) -> list[Piece]:
        if step.step in _KEEPS_ORDER:
            return [Piece(low, high, "value", args[0].way)]
        if step.step in _ABOUT_INFINITY:
            ends = runs(low, high, lambda key: infinity_of(self.at(step.args[0], key)))
            return self.truths(step, [(start, end) for start, end, _ in ends])
        if step.step == "neg_double":
            return [Piece(low, high, "value", -args[0].way)]
        if step.step in ("abs_int", "abs_double"):
            arg = step.args[0]
            halves = runs(low, high, lambda key: direction(self.at(arg, key)))
            out = [Piece(start, end, "value", args[0].way * sign) for start, end, sign in halves]
            if step.step == "abs_double":
                return out
            return [part for piece in out for part in self.valid(piece, lambda key: -self.at(arg, key) > INT_MAX)]
        if step.step == "int_of_double":
            zones = runs(low, high, lambda key: outside(self.at(step.args[0], key)))
            return [Piece(s, e, "error") if out_of else Piece(s, e, "value", args[0].way) for s, e, out_of in zones]
        if step.step == "sqrt":
            signs = runs(low, high, lambda key: self.at(step.args[0], key) < 0.0)
            return [Piece(s, e, "nan") if below else Piece(s, e, "value", args[0].way) for s, e, below in signs]
        if step.step.startswith(("least_", "greatest_")):
            ways = {piece.way for piece in args} - {0}
            return [Piece(low, high, "value", ways.pop()) if len(ways) == 1 else Piece(low, high, "unknown")]
        return [Piece(low, high, "unknown")]

    def valid(self, piece: Piece, fails: Callable[[int], bool]) -> list[Piece]:
        """The piece without the end where the step fails for its row."""
        return [
            Piece(start, end, "error") if bad else Piece(start, end, "value", piece.way)
            for start, end, bad in runs(piece.low, piece.high, fails)
        ]

    # values ---------------------------------------------------------------------------------------------------------

    def flat(self, step: Step, low: int, high: int) -> Piece:
        """The piece of a step that is one constant there."""
        program = self.program(step)
        value, failed = interpret_marked(program, {self.name: value_of(low, self.kind)})
        if failed:
            return Piece(low, high, "error")
        if value is None:
            return Piece(low, high, "null")
        return Piece(low, high, "nan" if value != value else "value")

    def at(self, step: Step, key: int) -> Any:
        """The value of a step at a key; None for null and for a row error."""
        return interpret_marked(self.program(step), {self.name: value_of(key, self.kind)})[0]

    def program(self, step: Step) -> Program:
        if id(step) not in self.programs:
            self.programs[id(step)] = as_program(step)
        return self.programs[id(step)]

    def reads_name(self, step: Step) -> bool:
        if id(step) not in self.reads:
            self.reads[id(step)] = self.name in self.program(step).names
        return self.reads[id(step)]


_WHOLE: Final[dict[str, Callable[..., int]]] = {
    "add_int": lambda a, b: a + b,
    "sub_int": lambda a, b: a - b,
    "mul_int": lambda a, b: a * b,
    "neg_int": lambda a: -a,
    "div_int": truncated,
    **dict.fromkeys(("add_duration", "add_timestamp_duration", "add_duration_timestamp"), lambda a, b: a + b),
    **dict.fromkeys(("sub_duration", "sub_timestamp_duration", "sub_timestamp_timestamp"), lambda a, b: a - b),
    "timestamp_of_int": lambda a: a * SECOND,
}
_KEEPS_ORDER: Final = frozenset(
    {"same", "double_of_int", "floor", "ceil", "round", "trunc", "sign_int", "sign_double", "int_of_timestamp"}
    | {"getHours_duration", "getMinutes_duration", "getSeconds_duration"}  # of the whole duration
)
_ABOUT_INFINITY: Final = frozenset({"is_nan", "is_inf", "is_finite"})

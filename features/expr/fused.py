"""A graph of values (`ssa.py`) as the text of one loop over rows, for Numba: no branch, nothing evaluated twice.

Every value of a row is a number and, only where its type or its steps call for them, two flags: `ok` (it counts) and `bad`
(a row error); a row error is never ok. Both branches of `? :` are computed and one is picked, so a bad row can neither
raise nor touch its neighbours, and the loop vectorises. No reassociation, no fused multiply-add: the bits are those of
`interpret.py`. `fused_steps.py` has the text of each step, `fused_ops.py` the operations the text calls, and compiles it;
`fused_machine.py` loads and calls it.

    loop = Loop(graph)
    root = loop.need(graph.add(program))[0]
    loop.body.append(f"put_double(out0, i, {root.value}, 0)")
    print(loop.text("kernel"))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from features.expr.fused_steps import FALSE, SPECIAL, TRUE, Parts, text_of_bit, text_of_strict
from features.expr.ssa import Graph, Input, Value
from features.expr.text_bits import TextBits
from features.expr.types import INT_MIN

DTYPES: Final = {
    "bool": "bool",
    "int": "int64",
    "double": "float64",
    "timestamp": "int64",
    "duration": "int64",
    "null": "int64",
}
_LOADS: Final = {"bool": "get_bool", "float64": "get_double", "int64": "get_int"}
_FILLERS: Final = {"bool": FALSE, "float64": "0.0", "int64": "0"}


@dataclass(frozen=True)
class Read:
    """A column that the loop reads, in the order in which it is given. `dtype` is NumPy's name of its values, `number` the
    value of the graph that it is."""

    name: str
    number: int
    dtype: str
    nullable: bool
    fails: bool
    shared: bool


@dataclass(frozen=True)
class TextRead:
    """A column of texts of which the loop reads numbers: see text_bits.py."""

    name: str
    number: int
    bits: TextBits
    shared: bool


class Loop:
    """The text as it grows: `head` runs once, `body` for every row `i` of `num`. Lines may use the names of `need`."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.reads: list[Read] = []
        self.texts: list[TextRead] = []
        self.head: list[str] = []
        self.body: list[str] = []
        self._done: dict[int, Parts] = {}
        self._fresh = 0

    def need(self, *numbers: int) -> list[Parts]:
        """Write what the values need that is not written yet."""
        for number in self.graph.used(list(numbers)):
            if number not in self._done:
                self._done[number] = self._write(number, self.graph.values[number])
        return [self._done[number] for number in numbers]

    def let(self, text: str, *, prefix: str = "t", shared: bool = False) -> str:
        """A name for the text; names and constants are left as they are."""
        if text.isidentifier():
            return text
        self._fresh += 1
        name = f"{prefix}_{self._fresh}"
        (self.head if shared else self.body).append(f"{name} = {text}")
        return name

    def text(self, name: str, num_outputs: int) -> str:
        """A Python function of (inputs, outputs, killed), all int64: see `fused_machine.py`.

        The number of rows is that of the first output, `killed` the bits of rules that do not count.
        """
        addresses = []
        for at, read in enumerate(self.reads):
            addresses.append(f"in{at} = data_of(values_of(item_of(inputs, {at + 1}), layout))")
            if read.nullable or read.fails:
                addresses.append(f"ok_in{at} = data_of(valid_of(item_of(inputs, {at + 1}), layout))")
            if read.fails:
                addresses.append(
                    f"bad_in{at} = data_of(or_none_of(error_of(item_of(inputs, {at + 1}), layout), layout, inputs))"
                )
        after = 1 + len(self.reads)
        addresses += [f"text{at} = data_of(item_of(inputs, {after + 5 * at + 4}))" for at in range(len(self.texts))]
        addresses += [f"out{at} = data_of(item_of(outputs, {at}))" for at in range(num_outputs)]
        lines = [
            f"def {name}(inputs, outputs, killed):",
            f"    layout = data_of(item_of(inputs, {after + 5 * len(self.texts)}))",
            "    num = rows_of(item_of(outputs, 0))",
            *(f"    {line}" for line in _CHECK.format(count=len(self.reads)).splitlines()),
            *(f"    {line}" for line in self._look_up(after)),
            *(f"    {line}" for line in (*addresses, *self.head)),
            "    for i in range(num):",
            *(f"        {line}" for line in self.body or ["pass"]),
            "    return 0",
        ]
        return "\n".join(lines) + "\n"

    def _look_up(self, first: int) -> list[str]:
        """The numbers of the texts; what is unseen comes back as a negative count."""
        if not self.texts:
            return []
        lines = ["unseen = 0"]
        for at, text in enumerate(self.texts):
            lines += [
                f"found = unseen_texts(inputs, plain({first + 5 * at}), plain({int(text.shared)}), layout, num)",
                f"if found < 0:\n        return {len(self.reads) + at + 1}",
                "unseen += found",
            ]
        return [*lines, "if unseen != 0:\n        return -unseen"]

    def _write(self, number: int, value: Value) -> Parts:
        if value.step == "bits":
            self.texts.append(TextRead(value.const.name, number, value.const, value.shared))
            row = "0" if value.shared else "i"
            return Parts(self._name(f"v{number}", f"get_int(text{len(self.texts) - 1}, {row})", value.shared))
        if value.step in ("input", "outside"):
            return self._input(number, value)
        if value.step == "const":
            return Parts(_constant(value), FALSE if value.const is None else TRUE)
        if value.step == "fail":
            return Parts(_FILLERS[DTYPES[value.kind]], FALSE, TRUE)
        args = [self._done[arg] for arg in value.args]

        def let(text: str) -> str:
            return self.let(text, prefix=f"v{number}", shared=value.shared)

        if value.step == "bit":
            made = text_of_bit(value, args[0])
        else:
            made = SPECIAL[value.step](args, let) if value.step in SPECIAL else text_of_strict(value, args, let)
        return Parts(
            self._name(f"v{number}", made.value, value.shared),
            self._name(f"ok{number}", made.ok, value.shared),
            self._name(f"bad{number}", made.bad, value.shared),
        )

    def _input(self, number: int, value: Value) -> Parts:
        at, dtype = len(self.reads), DTYPES[value.kind]
        name = value.const.name if isinstance(value.const, Input) else f"%{number}"
        self.reads.append(Read(name, number, dtype, value.nullable, value.fails, value.shared))
        row = "0" if value.shared else "i"
        may_lack = value.nullable or value.fails
        return Parts(
            self._name(f"v{number}", f"{_LOADS[dtype]}(in{at}, {row})", value.shared),
            self._name(f"ok{number}", f"get_bool(ok_in{at}, {row})" if may_lack else TRUE, value.shared),
            self._name(f"bad{number}", f"get_bool(bad_in{at}, {row})" if value.fails else FALSE, value.shared),
        )

    def _name(self, name: str, text: str, shared: bool) -> str:
        if text.isidentifier():
            return text
        (self.head if shared else self.body).append(f"{name} = {text}")
        return name


# Inputs are as `layout` says, or nothing runs: 1 + the place of the first column that is not comes back.
_CHECK: Final = """\
for at in range({count}):
    wrong = misfit(inputs, at, layout, num)
    if wrong != 0:
        return at + 1"""


def _constant(value: Value) -> str:
    const: Any = value.const
    dtype = DTYPES[value.kind]
    if const is None:
        return _FILLERS[dtype]
    if dtype == "float64":
        if math.isnan(const):
            return "NAN"
        return repr(const) if math.isfinite(const) else "INF" if const > 0 else "(-INF)"
    # -(2**63) as a literal is a negated 2**63, which is no int64
    return "lowest()" if dtype == "int64" and const == INT_MIN else repr(const)

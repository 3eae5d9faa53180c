"""A graph of values (`ssa.py`) as the text of one loop over rows, for Numba: no branch, nothing evaluated twice.

Every value of a row is a number and, only where its type or its steps call for them, two flags: `ok` (it counts) and `bad`
(a row error); a row error is never ok. Both branches of `? :` are computed and one is picked, so a bad row can neither
raise nor touch its neighbours, and the loop vectorises. No reassociation, no fused multiply-add: the bits are those of
`interpret.py`. `fused_ops.py` has the operations the text calls and compiles it; `fused_machine.py` loads and calls it.

    loop = Loop(graph)
    root = loop.need(graph.add(program))[0]
    loop.body.append(f"put_double(out0, i, {root.value}, 0)")
    print(loop.text("kernel"))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from features.expr.ssa import Graph, Input, Value
from features.expr.text_bits import TextBits
from features.expr.types import INT_MIN

TRUE: Final = "True"
FALSE: Final = "False"
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

Let = Callable[[str], str]  # a name for a text


@dataclass(frozen=True)
class Parts:
    """The names under which the text has a value and its flags. `ok` is TRUE for always, `bad` is FALSE for never."""

    value: str
    ok: str = TRUE
    bad: str = FALSE


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


def both(a: str, b: str) -> str:
    if FALSE in (a, b):
        return FALSE
    return b if a == TRUE else a if b == TRUE or a == b else f"both({a}, {b})"


def either(a: str, b: str) -> str:
    if TRUE in (a, b):
        return TRUE
    return b if a == FALSE else a if b == FALSE or a == b else f"either({a}, {b})"


def flip(a: str) -> str:
    return TRUE if a == FALSE else FALSE if a == TRUE else f"flip({a})"


def pick(test: str, a: str, b: str) -> str:
    """The flag of the branch taken."""
    if a == b:
        return a
    if a in (TRUE, FALSE) or b in (TRUE, FALSE):
        return either(both(test, a), both(flip(test), b))
    return f"select({test}, {a}, {b})"


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
        """A Python function of (inputs, outputs, asked), all int64: see `fused_machine.py`.

        The number of rows is that of the first output, `asked` the bits of killed rules and, as its sign, whether the
        numbers of the texts are filled in.
        """
        addresses = []
        for at, read in enumerate(self.reads):
            addresses.append(f"in{at} = data_of(item_of(inputs, {3 * at + 1}))")
            if read.nullable or read.fails:
                addresses.append(f"ok_in{at} = data_of(item_of(inputs, {3 * at + 2}))")
            if read.fails:
                addresses.append(f"bad_in{at} = data_of(or_none_of(item_of(inputs, {3 * at + 3}), layout, inputs))")
        after = 1 + 3 * len(self.reads)
        addresses += [f"text{at} = data_of(item_of(inputs, {after + 4 * at + 3}))" for at in range(len(self.texts))]
        addresses += [f"out{at} = data_of(item_of(outputs, {at}))" for at in range(num_outputs)]
        lines = [
            f"def {name}(inputs, outputs, asked):",
            f"    layout = data_of(item_of(inputs, {after + 4 * len(self.texts)}))",
            "    num = rows_of(item_of(outputs, 0))",
            "    killed, filled = asked & HIGHEST, asked < 0",
            *(f"    {line}" for line in _CHECK.format(count=len(self.reads)).splitlines()),
            *(f"    {line}" for line in self._look_up(after)),
            *(f"    {line}" for line in (*addresses, *self.head)),
            "    for i in range(num):",
            *(f"        {line}" for line in self.body or ["pass"]),
            "    return 0",
        ]
        return "\n".join(lines) + "\n"

    def _look_up(self, first: int) -> list[str]:
        """The numbers of the texts, unless they are filled in; what is unseen comes back as a negative count."""
        if not self.texts:
            return []
        lines = ["if not filled:", "    unseen = 0"]
        for at, text in enumerate(self.texts):
            lines += [
                f"    found = unseen_texts(inputs, plain({first + 4 * at}), plain({int(text.shared)}), layout, num)",
                f"    if found < 0:\n            return {len(self.reads) + at + 1}",
                "    unseen += found",
            ]
        return [*lines, "    if unseen != 0:\n            return -unseen"]

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
            made = _bit(value, args[0])
        else:
            made = _SPECIAL[value.step](args, let) if value.step in _SPECIAL else _strict(value, args, let)
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


def _bit(value: Value, bits: Parts) -> Parts:
    """Value, ok and bad of a predicate of a text: see text_bits.py."""
    flags = value.nullable or value.fails
    one, ok, bad = (f"({bits.value} & {1 << value.const + at}) != 0" for at in range(3))
    return Parts(one, ok if flags else TRUE, bad if flags else FALSE)


def _strict(value: Value, args: list[Parts], let: Let) -> Parts:
    """Null in, null out; error in, error out; and an error of its own where a checked step has no result."""
    ok, bad = TRUE, FALSE
    for arg in args:
        ok, bad = both(ok, arg.ok), either(bad, arg.bad)
    names = [arg.value for arg in args]
    if value.step in _TOTAL:
        return Parts(_TOTAL[value.step](names), ok, bad)
    result, wrong = _CHECKED[value.step](names, let)
    ok, wrong = let(ok), let(wrong)
    return Parts(result, both(ok, flip(wrong)), either(bad, both(ok, wrong)))


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


# Steps with rules of their own about null: see columns.py ------------------------------------------------------------


def _kleene(absorbing: bool) -> Callable[[list[Parts], Let], Parts]:
    def write(args: list[Parts], let: Let) -> Parts:
        absorbed, known, failed = FALSE, TRUE, FALSE
        for arg in args:
            absorbed = either(absorbed, both(arg.value if absorbing else flip(arg.value), arg.ok))
            known, failed = both(known, arg.ok), either(failed, arg.bad)
        absorbed = let(absorbed)
        ok = TRUE if known == TRUE else either(absorbed, known)
        return Parts(absorbed if absorbing else flip(absorbed), ok, both(failed, flip(absorbed)))

    return write


def _choose(args: list[Parts], let: Let) -> Parts:
    test, then, otherwise = args
    ok = both(test.ok, pick(test.value, then.ok, otherwise.ok))
    bad = either(test.bad, both(test.ok, pick(test.value, then.bad, otherwise.bad)))
    return Parts(f"select({test.value}, {then.value}, {otherwise.value})", ok, bad)


def _coalesce(args: list[Parts], let: Let) -> Parts:
    left, right = args
    null = let(both(flip(left.ok), flip(left.bad)))  # an error is not replaced
    return Parts(
        f"select({left.ok}, {left.value}, {right.value})",
        TRUE if right.ok == TRUE and left.bad == FALSE else either(left.ok, both(null, right.ok)),
        either(left.bad, both(null, right.bad)),
    )


def _is_null(args: list[Parts], let: Let) -> Parts:
    value = args[0]
    return Parts(both(flip(value.ok), flip(value.bad)), flip(value.bad), value.bad)


_SPECIAL: Final[dict[str, Callable[[list[Parts], Let], Parts]]] = {
    "and": _kleene(False),
    "or": _kleene(True),
    "if": _choose,
    "coalesce": _coalesce,
    "is_null": _is_null,
}


# Strict steps --------------------------------------------------------------------------------------------------------


def _form(template: str) -> Callable[[list[str]], str]:
    return lambda names: template.format(*names)


def _within(names: list[str]) -> str:
    found = FALSE
    for option in names[1:]:
        found = either(found, f"({names[0]} == {option})")
    return found


def _fold(order: str) -> Callable[[list[str]], str]:
    """The first smallest or largest; NaN when any is NaN."""

    def write(names: list[str]) -> str:
        found = names[0]
        for name in names[1:]:
            found = f"select(either({name} {order} {found}, {name} != {name}), {name}, {found})"
        return found

    return write


_TOTAL: Final[dict[str, Callable[[list[str]], str]]] = {
    "not": lambda names: flip(names[0]),
    "same": _form("{0}"),
    "double_of_int": _form("to_double({0})"),
    **{step: _form(f"{step}({{0}})") for step in ("floor", "ceil", "trunc", "sqrt")},
    "round": _form("round_away({0})"),
    "add_double": _form("{0} + {1}"),
    "sub_double": _form("{0} - {1}"),
    "mul_double": _form("{0} * {1}"),
    "div_double": _form("divide({0}, {1})"),
    "neg_double": _form("-{0}"),
    "abs_double": _form("fabs({0})"),
    **{f"lt_{kind}": _form("{0} < {1}") for kind in ("int", "double")},
    **{f"le_{kind}": _form("{0} <= {1}") for kind in ("int", "double")},
    **{f"eq_{kind}": _form("{0} == {1}") for kind in ("int", "double")},
    **{f"ne_{kind}": _form("{0} != {1}") for kind in ("int", "double")},
    "eq_bool": lambda names: flip(f"differ({names[0]}, {names[1]})"),
    "ne_bool": _form("differ({0}, {1})"),
    "in_int": _within,
    "in_double": _within,
    "in_bool": lambda names: _in_bool(names),
    **{f"least_{kind}": _fold("<") for kind in ("int", "double")},
    **{f"greatest_{kind}": _fold(">") for kind in ("int", "double")},
    "is_nan": _form("{0} != {0}"),
    "is_inf": _form("fabs({0}) == INF"),
    "is_finite": _form("fabs({0}) < INF"),
}


def _in_bool(names: list[str]) -> str:
    found = FALSE
    for option in names[1:]:
        found = either(found, flip(f"differ({names[0]}, {option})"))
    return found


def _add_int(names: Sequence[str], let: Let) -> tuple[str, str]:
    a, b = names
    total = let(f"{a} + {b}")
    return total, f"(({a} ^ {total}) & ({b} ^ {total})) < 0"


def _sub_int(names: Sequence[str], let: Let) -> tuple[str, str]:
    a, b = names
    difference = let(f"{a} - {b}")
    return difference, f"(({a} ^ {b}) & ({a} ^ {difference})) < 0"


def _mul_int(names: Sequence[str], let: Let) -> tuple[str, str]:
    """The product that wraps is right or off by a multiple of 2^64; the product of doubles is within 2^-51 of the true
    one, which tells the two apart."""
    a, b = names
    product = let(f"{a} * {b}")
    return product, flip(f"(fabs(to_double({a}) * to_double({b}) - to_double({product})) < 9223372036854775808.0)")


def _neg_int(names: Sequence[str], let: Let) -> tuple[str, str]:
    return let(f"0 - {names[0]}"), f"{names[0]} == lowest()"


def _abs_int(names: Sequence[str], let: Let) -> tuple[str, str]:
    a = names[0]
    return let(f"select({a} < 0, 0 - {a}, {a})"), f"{a} == lowest()"


def _cut_int(op: str) -> Callable[[Sequence[str], Let], tuple[str, str]]:
    """Division towards zero, or its remainder; where it has no result the divisor becomes 1."""

    def write(names: Sequence[str], let: Let) -> tuple[str, str]:
        a, b = names
        wrong = let(either(f"({b} == 0)", both(f"({a} == lowest())", f"({b} == -1)")))
        return let(f"{op}({a}, select({wrong}, 1, {b}))"), wrong

    return write


def _int_of_double(names: Sequence[str], let: Let) -> tuple[str, str]:
    wrong = let(flip(f"(fabs({names[0]}) < 9223372036854775808.0)"))
    return let(f"to_int(select({wrong}, 0.0, {names[0]}))"), wrong


_CHECKED: Final[dict[str, Callable[[Sequence[str], Let], tuple[str, str]]]] = {
    "add_int": _add_int,
    "sub_int": _sub_int,
    "mul_int": _mul_int,
    "neg_int": _neg_int,
    "abs_int": _abs_int,
    "div_int": _cut_int("quotient"),
    "mod_int": _cut_int("remainder"),
    "int_of_double": _int_of_double,
}

"""The text of each step of a fused loop: what `fused.py` writes for one value, from the names of its arguments.

`columns.py` says the same in NumPy, step by step; `interpret.py` defines it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from features.expr.ssa import Value

TRUE: Final = "True"
FALSE: Final = "False"
Let = Callable[[str], str]  # a name for a text


@dataclass(frozen=True)
class Parts:
    """The names under which the text has a value and its flags. `ok` is TRUE for always, `bad` is FALSE for never."""

    value: str
    ok: str = TRUE
    bad: str = FALSE


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


def text_of_bit(value: Value, bits: Parts) -> Parts:
    """Value, ok and bad of a predicate of a text: see text_bits.py."""
    flags = value.nullable or value.fails
    one, ok, bad = (f"({bits.value} & {1 << value.const + at}) != 0" for at in range(3))
    return Parts(one, ok if flags else TRUE, bad if flags else FALSE)


def text_of_strict(value: Value, args: list[Parts], let: Let) -> Parts:
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


SPECIAL: Final[dict[str, Callable[[list[Parts], Let], Parts]]] = {
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


# Two constants get names: Python would compute with the literals itself, and beyond an int64.
def _add_int(names: Sequence[str], let: Let) -> tuple[str, str]:
    a, b = map(let, names)
    total = let(f"{a} + {b}")
    return total, f"(({a} ^ {total}) & ({b} ^ {total})) < 0"


def _sub_int(names: Sequence[str], let: Let) -> tuple[str, str]:
    a, b = map(let, names)
    difference = let(f"{a} - {b}")
    return difference, f"(({a} ^ {b}) & ({a} ^ {difference})) < 0"


def _mul_int(names: Sequence[str], let: Let) -> tuple[str, str]:
    """The product that wraps is right or off by a multiple of 2^64; the product of doubles is within 2^-51 of the true
    one, which tells the two apart."""
    a, b = map(let, names)
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

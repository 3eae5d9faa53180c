"""Types, and the table of what operators and functions accept.

Kinds: bool, int (64-bit, checked), double (IEEE 754), string (Unicode, compared by code point); `T?` may be null. An
operator or function has overloads; each names the step (`program.py`) that does the work, so that interpreter, columns
and SQL have one list to cover. No overload accepts a nullable argument: null is handled by `??`, `has`, `== null`,
`&&`, `||`, `!` and `? :`, which have rules of their own in `checker.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KINDS: Final = ("bool", "int", "double", "string", "null")
INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1


@dataclass(frozen=True)
class Type:
    """A kind, and whether the value may be null. `null` is the type of the literal alone."""

    kind: str
    nullable: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown kind {self.kind!r}; known: {', '.join(KINDS)}")
        if self.kind == "null" and not self.nullable:
            object.__setattr__(self, "nullable", True)

    def __str__(self) -> str:
        return "null" if self.kind == "null" else self.kind + "?" * self.nullable

    def required(self) -> Type:
        """The same type without null."""
        return self if self.kind == "null" else Type(self.kind)

    def optional(self) -> Type:
        """The same type with null."""
        return Type(self.kind, True)


BOOL: Final = Type("bool")
INT: Final = Type("int")
DOUBLE: Final = Type("double")
STRING: Final = Type("string")
NULL: Final = Type("null", True)


def parse_type(text: str) -> Type:
    """'double?' -> Type. Raises: ValueError naming the known types."""
    kind = text.strip()
    nullable = kind.endswith("?")
    kind = kind.removesuffix("?")
    if kind not in KINDS or kind == "null":
        raise ValueError(
            f"unknown type '{text}'; known: bool, int, double, string, each with '?' where null is allowed"
        )
    return Type(kind, nullable)


@dataclass(frozen=True)
class Overload:
    """Kinds of the parameters, kind of the result, and the step. `variadic`: the last parameter may repeat."""

    step: str
    params: tuple[str, ...]
    result: str
    variadic: bool = False

    def takes(self, count: int) -> bool:
        return count == len(self.params) or (self.variadic and count > len(self.params))

    def param(self, index: int) -> str:
        return self.params[min(index, len(self.params) - 1)]


def _both(step: str, kinds: tuple[str, ...], result: str = "") -> tuple[Overload, ...]:
    return tuple(Overload(f"{step}_{kind}", (kind, kind), result or kind) for kind in kinds)


OPERATORS: Final[dict[str, tuple[Overload, ...]]] = {
    "+": _both("add", ("int", "double", "string")),
    "-": _both("sub", ("int", "double")),
    "*": _both("mul", ("int", "double")),
    "/": _both("div", ("double",)),  # int / int is refused by name in the checker: 7/2 means 3 to some, 3.5 to others
    "%": _both("mod", ("int",)),
    "<": _both("lt", ("int", "double", "string"), "bool"),
    "<=": _both("le", ("int", "double", "string"), "bool"),
    ">": _both("gt", ("int", "double", "string"), "bool"),
    ">=": _both("ge", ("int", "double", "string"), "bool"),
    "==": _both("eq", ("bool", "int", "double", "string"), "bool"),
    "!=": _both("ne", ("bool", "int", "double", "string"), "bool"),
    "unary -": (Overload("neg_int", ("int",), "int"), Overload("neg_double", ("double",), "double")),
}

_LEAST = (
    Overload("least_int", ("int", "int"), "int", True),
    Overload("least_double", ("double", "double"), "double", True),
)
_GREATEST = (
    Overload("greatest_int", ("int", "int"), "int", True),
    Overload("greatest_double", ("double", "double"), "double", True),
)


def _real(step: str) -> tuple[Overload, ...]:
    return (Overload(step, ("double",), "double"),)


# `has(x)` and `if(c, a, b)` are calls in form only; the checker knows them.
FUNCTIONS: Final[dict[str, tuple[Overload, ...]]] = {
    "double": (
        Overload("double_of_int", ("int",), "double"),
        Overload("double_of_string", ("string",), "double"),
        Overload("same", ("double",), "double"),
    ),
    "int": (
        Overload("int_of_double", ("double",), "int"),
        Overload("int_of_string", ("string",), "int"),
        Overload("same", ("int",), "int"),
    ),
    # No string(double): Python, Java and DuckDB write the same double differently.
    "string": (
        Overload("string_of_int", ("int",), "string"),
        Overload("string_of_bool", ("bool",), "string"),
        Overload("same", ("string",), "string"),
    ),
    "div": (Overload("div_int", ("int", "int"), "int"),),
    "size": (Overload("size", ("string",), "int"),),
    "startsWith": (Overload("starts_with", ("string", "string"), "bool"),),
    "endsWith": (Overload("ends_with", ("string", "string"), "bool"),),
    "contains": (Overload("contains", ("string", "string"), "bool"),),
    "min": _LEAST,
    "max": _GREATEST,
    "math.least": _LEAST,
    "math.greatest": _GREATEST,
    "math.abs": (Overload("abs_int", ("int",), "int"), Overload("abs_double", ("double",), "double")),
    "math.floor": _real("floor"),
    "math.ceil": _real("ceil"),
    "math.round": _real("round"),
    "math.sqrt": _real("sqrt"),
    "math.exp": _real("exp"),
    "math.log1p": _real("log1p"),
}
METHODS: Final = frozenset({"size", "startsWith", "endsWith", "contains"})
CALL_NAMES: Final = (*FUNCTIONS, "has", "if")


def signature(name: str) -> str:
    """What a function accepts, for hints: 'div(int, int)'."""
    forms = [f"{name}({', '.join(o.params)}{', …' if o.variadic else ''})" for o in FUNCTIONS[name]]
    return " or ".join(forms)

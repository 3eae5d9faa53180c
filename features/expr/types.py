"""Types, and the table of what operators and functions accept.

Kinds: bool, int (64-bit, checked), double (IEEE 754), string (Unicode, compared by code point), timestamp and duration
(whole microseconds, see `times.py`), and list(T) of one of those, whose elements are never null; `T?` may be null. An
operator or function has overloads; each names the step (`program.py`) that does the work, so that interpreter, columns
and SQL have one list to cover. No overload accepts a nullable argument: null is handled by `??`, `has`, `== null`,
`&&`, `||`, `!` and `? :`, which have rules of their own in `checker.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SCALARS: Final = ("bool", "int", "double", "string", "timestamp", "duration")
LISTS: Final = tuple(f"list({kind})" for kind in SCALARS)
KINDS: Final = (*SCALARS, *LISTS, "null")
INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1


@dataclass(frozen=True)
class Type:
    """A kind ('double', 'list(string)'), and whether the value may be null. `null` is the type of the literal alone."""

    kind: str
    nullable: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown kind {self.kind!r}; known: {', '.join(KINDS)}")
        if self.kind == "null" and not self.nullable:
            object.__setattr__(self, "nullable", True)

    def __str__(self) -> str:
        return "null" if self.kind == "null" else self.kind + "?" * self.nullable

    @property
    def is_list(self) -> bool:
        return self.kind.startswith("list(")

    @property
    def item(self) -> Type:
        """The type of a list's elements. Raises: ValueError when it is no list."""
        if not self.is_list:
            raise ValueError(f"{self} is no list")
        return Type(self.kind[len("list(") : -1])

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
TIMESTAMP: Final = Type("timestamp")
DURATION: Final = Type("duration")
NULL: Final = Type("null", True)


def parse_type(text: str) -> Type:
    """'double?' or 'list(string)' -> Type. Raises: ValueError naming the known types."""
    kind = text.strip()
    nullable = kind.endswith("?")
    kind = kind.removesuffix("?").strip()
    if kind.startswith("list(") and kind.endswith(")"):
        kind = f"list({kind[len('list(') : -1].strip()})"
    if kind not in KINDS or kind == "null":
        known = f"{', '.join(SCALARS)} and list(…) of one of them"
        raise ValueError(f"unknown type '{text}'; known: {known}, each with '?' where null is allowed")
    return Type(kind, nullable)


@dataclass(frozen=True)
class Overload:
    """Kinds of the parameters, kind of the result, and the step.

    `variadic`: the last parameter may repeat. `ours`: CEL has no such overload, so the strict mode does without it.
    """

    step: str
    params: tuple[str, ...]
    result: str
    variadic: bool = False
    ours: bool = False

    def takes(self, count: int) -> bool:
        return count == len(self.params) or (self.variadic and count > len(self.params))

    def param(self, index: int) -> str:
        return self.params[min(index, len(self.params) - 1)]


def _both(step: str, kinds: tuple[str, ...], result: str = "") -> tuple[Overload, ...]:
    return tuple(Overload(f"{step}_{kind}", (kind, kind), result or kind) for kind in kinds)


_ORDERED: Final = ("int", "double", "string", "timestamp", "duration")
OPERATORS: Final[dict[str, tuple[Overload, ...]]] = {
    "+": (
        *_both("add", ("int", "double", "string", "duration")),
        Overload("add_timestamp_duration", ("timestamp", "duration"), "timestamp"),
        Overload("add_duration_timestamp", ("duration", "timestamp"), "timestamp"),
    ),
    "-": (
        *_both("sub", ("int", "double", "duration")),
        Overload("sub_timestamp_duration", ("timestamp", "duration"), "timestamp"),
        Overload("sub_timestamp_timestamp", ("timestamp", "timestamp"), "duration"),
    ),
    "*": _both("mul", ("int", "double")),
    "/": _both("div", ("double",)),  # int / int is refused by name in the checker: 7/2 means 3 to some, 3.5 to others
    "%": _both("mod", ("int",)),
    "<": _both("lt", _ORDERED, "bool"),
    "<=": _both("le", _ORDERED, "bool"),
    ">": _both("gt", _ORDERED, "bool"),
    ">=": _both("ge", _ORDERED, "bool"),
    "==": _both("eq", SCALARS, "bool"),
    "!=": _both("ne", SCALARS, "bool"),
    "unary -": (Overload("neg_int", ("int",), "int"), Overload("neg_double", ("double",), "double")),
}


def _fold(step: str, *, ours: bool) -> tuple[Overload, ...]:
    return tuple(Overload(f"{step}_{kind}", (kind, kind), kind, True, ours) for kind in ("int", "double"))


def _real(step: str, *, ours: bool = False) -> tuple[Overload, ...]:
    return (Overload(step, ("double",), "double", ours=ours),)


def _test(step: str) -> tuple[Overload, ...]:
    return (Overload(step, ("double",), "bool"),)


def _field(name: str, *, of_duration: bool = False) -> tuple[Overload, ...]:
    """A calendar field of a timestamp, in UTC or in a zone; or of a duration."""
    return (
        Overload(f"{name}_timestamp", ("timestamp",), "int"),
        Overload(f"{name}_timestamp_string", ("timestamp", "string"), "int"),
        *((Overload(f"{name}_duration", ("duration",), "int"),) if of_duration else ()),
    )


# `has(x)`, `if(c, a, b)` and the macros `exists` and `all` are calls in form only; the checker knows them.
FUNCTIONS: Final[dict[str, tuple[Overload, ...]]] = {
    "double": (
        Overload("double_of_int", ("int",), "double"),
        Overload("double_of_string", ("string",), "double"),
        Overload("same", ("double",), "double"),
    ),
    "int": (
        Overload("int_of_double", ("double",), "int"),
        Overload("int_of_string", ("string",), "int"),
        Overload("int_of_timestamp", ("timestamp",), "int"),
        Overload("same", ("int",), "int"),
    ),
    # No string(double): Python, Java and DuckDB write the same double differently.
    "string": (
        Overload("string_of_int", ("int",), "string"),
        Overload("string_of_bool", ("bool",), "string"),
        Overload("string_of_timestamp", ("timestamp",), "string"),
        Overload("string_of_duration", ("duration",), "string"),
        Overload("same", ("string",), "string"),
    ),
    "timestamp": (
        Overload("timestamp_of_string", ("string",), "timestamp"),
        Overload("timestamp_of_int", ("int",), "timestamp"),
        Overload("same", ("timestamp",), "timestamp"),
    ),
    "duration": (
        Overload("duration_of_string", ("string",), "duration"),
        Overload("same", ("duration",), "duration"),
    ),
    "div": (Overload("div_int", ("int", "int"), "int", ours=True),),
    "size": (
        Overload("size", ("string",), "int"),
        *(Overload("size_list", (kind,), "int") for kind in LISTS),
    ),
    "startsWith": (Overload("starts_with", ("string", "string"), "bool"),),
    "endsWith": (Overload("ends_with", ("string", "string"), "bool"),),
    "contains": (Overload("contains", ("string", "string"), "bool"),),
    "matches": (Overload("matches", ("string", "string"), "bool"),),
    "hash01": (Overload("hash01", ("string", "string"), "double", ours=True),),
    "getFullYear": _field("getFullYear"),
    "getMonth": _field("getMonth"),
    "getDate": _field("getDate"),
    "getDayOfMonth": _field("getDayOfMonth"),
    "getDayOfWeek": _field("getDayOfWeek"),
    "getDayOfYear": _field("getDayOfYear"),
    "getHours": _field("getHours", of_duration=True),
    "getMinutes": _field("getMinutes", of_duration=True),
    "getSeconds": _field("getSeconds", of_duration=True),
    "getMilliseconds": _field("getMilliseconds", of_duration=True),
    "min": _fold("least", ours=True),
    "max": _fold("greatest", ours=True),
    "math.least": _fold("least", ours=False),
    "math.greatest": _fold("greatest", ours=False),
    "math.abs": (Overload("abs_int", ("int",), "int"), Overload("abs_double", ("double",), "double")),
    "math.sign": (Overload("sign_int", ("int",), "int"), Overload("sign_double", ("double",), "double")),
    "math.isNaN": _test("is_nan"),
    "math.isInf": _test("is_inf"),
    "math.isFinite": _test("is_finite"),
    "math.floor": _real("floor"),
    "math.ceil": _real("ceil"),
    "math.round": _real("round"),
    "math.trunc": _real("trunc"),
    "math.sqrt": _real("sqrt"),
    "math.exp": _real("exp", ours=True),
    "math.log": _real("log", ours=True),
    "math.log1p": _real("log1p", ours=True),
    "math.pow": (Overload("pow", ("double", "double"), "double", ours=True),),
}
MACROS: Final = frozenset({"exists", "all"})
ONLY_METHODS: Final = frozenset(  # in CEL; ours may be called either way
    {"startsWith", "endsWith", "contains", *(name for name in FUNCTIONS if name.startswith("get"))}
)
METHODS: Final = frozenset({"size", "matches", *ONLY_METHODS, *MACROS})
CALL_NAMES: Final = (*FUNCTIONS, "has", "if", *sorted(MACROS))


def signature(name: str) -> str:
    """What a function accepts, for hints: 'div(int, int)'."""
    forms = [f"{name}({', '.join(o.params)}{', …' if o.variadic else ''})" for o in FUNCTIONS[name]]
    if len(forms) > len(SCALARS):  # size, of any list
        forms = [form for form in forms if "list(" not in form] + [f"{name}(list)"]
    return " or ".join(forms)

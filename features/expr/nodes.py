"""The tree of an expression as written. Every node knows its span: offsets into the text, end exclusive.

`parser.py` builds it, `checker.py` turns it into the typed tree of `program.py`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Node:
    start: int
    end: int
    depth: int  # of the tree below, this node included: the guard against recursion without end


@dataclass(frozen=True)
class Literal(Node):
    """null, bool, int, double or string. A minus in front of a number belongs to it."""

    value: bool | int | float | str | None


@dataclass(frozen=True)
class Name(Node):
    """A dotted name: 'driver.accept_rate_24h'."""

    name: str


@dataclass(frozen=True)
class Unary(Node):
    """`!` or `-`."""

    op: str
    operand: Node


@dataclass(frozen=True)
class Binary(Node):
    """Arithmetic, a relation, or `??`."""

    op: str
    left: Node
    right: Node


@dataclass(frozen=True)
class Logic(Node):
    """A whole chain of `&&` or of `||`. Kleene logic is associative, so a long chain need not be deep."""

    op: str
    items: tuple[Node, ...]


@dataclass(frozen=True)
class In(Node):
    """`item in [literal, …]`."""

    item: Node
    options: tuple[Node, ...]


@dataclass(frozen=True)
class InList(Node):
    """`item in list_name`."""

    item: Node
    target: Node


@dataclass(frozen=True)
class Macro(Node):
    """`target.exists(variable, body)` or `target.all(variable, body)`."""

    name: str
    target: Node
    variable: str
    body: Node


@dataclass(frozen=True)
class Ternary(Node):
    """`condition ? then : otherwise`, or `if(condition, then, otherwise)`."""

    condition: Node
    then: Node
    otherwise: Node
    is_call: bool = False


@dataclass(frozen=True)
class Call(Node):
    """`name(args)`; a method call has its receiver as the first argument."""

    name: str
    name_start: int
    name_end: int
    args: tuple[Node, ...]
    is_method: bool = False


@dataclass(frozen=True)
class Bad(Node):
    """A place where a mistake is already noted; it is checked no further."""

"""The order in which a strategy's own names can be computed: what `let`, a table or a model reads comes before it.

The author may write them in any order, as long as no name needs itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from features.expr import Mistake, SourceText, mistake_at
from features.expr.nodes import Name, Node
from features.expr.parser import parse


@dataclass(frozen=True, kw_only=True)
class Item:
    """A name that is computed: what it reads, and the text to point at. `needs_models`: it is a model."""

    name: str
    kind: str  # "model", "let" or "table"
    reads: frozenset[str]
    place: SourceText


@dataclass(frozen=True, kw_only=True)
class Order:
    """`items` each behind what it reads; `late` are the names of those that read a model, directly or not, and of models;
    `cyclic` the names that cannot be computed."""

    items: tuple[Item, ...]
    late: frozenset[str]
    cyclic: frozenset[str]


def names_in(source: SourceText) -> frozenset[str]:
    """The names that an expression mentions, also where it has mistakes; more than it reads when a macro binds one."""
    tree, _ = parse(source)
    return frozenset(found.name for found in _walk(tree) if isinstance(found, Name))


def order_items(items: Sequence[Item]) -> tuple[Order, list[Mistake]]:
    """Sort, keeping the order of the file where it does not matter; a cycle is a mistake that shows it."""
    at = {item.name: place for place, item in enumerate(items)}
    needs = [frozenset(at[owner] for name in item.reads if (owner := owner_of(name, at)) is not None) for item in items]
    mistakes: list[Mistake] = []
    cyclic: set[int] = set()
    done = _sorted(needs, cyclic)
    while len(done) + len(cyclic) < len(items):
        left = [place for place in range(len(items)) if place not in cyclic and place not in set(done)]
        cycle = _cycle(needs, left)
        cyclic |= set(cycle)
        mistakes.append(_cycle_mistake([items[place] for place in cycle]))
        done = _sorted(needs, cyclic)
    late: set[int] = set()
    for place in done:
        if items[place].kind == "model" or needs[place] & late:
            late.add(place)
    order = Order(
        items=tuple(items[place] for place in done),
        late=frozenset(items[place].name for place in late),
        cyclic=frozenset(items[place].name for place in cyclic),
    )
    return order, mistakes


def owner_of(name: str, known: Mapping[str, object]) -> str | None:
    """Which of the known names a name belongs to: itself, or the table of `table.output`."""
    if name in known:
        return name
    owner = name.partition(".")[0]
    return owner if owner != name and owner in known else None


def _walk(node: object) -> Iterator[Node]:
    """All nodes of a tree, without recursion: an author may nest as deep as the parser lets him."""
    stack = [node]
    while stack:
        found = stack.pop()
        if isinstance(found, tuple):
            stack.extend(found)
        elif isinstance(found, Node):
            yield found
            stack.extend(getattr(found, part.name) for part in fields(found))


def _sorted(needs: Sequence[frozenset[int]], without: set[int]) -> list[int]:
    """Places in order, the lowest first among those that are ready. What is in `without` counts as there."""
    waits = [set(need) - without for need in needs]
    readers: dict[int, list[int]] = {}
    for place, need in enumerate(waits):
        for other in need:
            readers.setdefault(other, []).append(place)
    ready = [place for place, need in enumerate(waits) if not need and place not in without]
    heapq.heapify(ready)
    out: list[int] = []
    while ready:
        place = heapq.heappop(ready)
        out.append(place)
        for reader in readers.get(place, ()):
            waits[reader].discard(place)
            if not waits[reader] and reader not in without:
                heapq.heappush(ready, reader)
    return out


def _cycle(needs: Sequence[frozenset[int]], left: Sequence[int]) -> list[int]:
    """A cycle among places that all wait for another one of them, from its first place on."""
    path: list[int] = []
    seen: dict[int, int] = {}
    place = left[0]
    among = set(left)
    while place not in seen:
        seen[place] = len(path)
        path.append(place)
        place = min(needs[place] & among)
    cycle = path[seen[place] :]
    start = cycle.index(min(cycle))
    return cycle[start:] + cycle[:start]


def _cycle_mistake(cycle: Sequence[Item]) -> Mistake:
    first = cycle[0]
    shown = [item.name for item in cycle]
    if len(shown) > 8:
        shown = [*shown[:7], "…"]
    message = f"'{first.name}' needs itself: {' → '.join([*shown, first.name])}"
    end = len(first.place.text.rstrip())
    return mistake_at(first.place, 0, end, "cycle", message, "let one of them stand without the others")

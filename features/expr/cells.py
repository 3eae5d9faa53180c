"""The values of a name, cut into cells within which no condition at hand can tell two values apart.

```
eta_s (double?)    eta_s > 600.0, eta_s != null
                   null | -inf … 600.0 | above 600.0 … inf | NaN
```

A cell is one value (`single`), or a range with one value that stands for it. `regions.py` tries the cells of all names.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from features.expr.facts import Facts
from features.expr.interpret import interpret_marked
from features.expr.keys import NUMBERS, key_of, key_range, nice, spread, value_of
from features.expr.outcomes import TRUE, outcome_of
from features.expr.pieces import COMPARE, OPAQUE, as_program, pieces
from features.expr.program import Program, Step
from features.expr.ranges import Range, of_value, range_within
from features.expr.runs import Piece
from features.expr.types import Type

MAX_LISTED: Final = 64  # whole numbers: a name with so few values that meets other names is tried value by value
MAX_ORDERED: Final = 4  # names compared with each other: each gap between constants then needs as many points
_WORDS: Final = ("other", "else", "some", "any", "x", "m", "a", "z", "A", "Z", "0", "!")


@dataclass(frozen=True)
class Cell:
    """Values `low` to `high` (numbers), and the one that is tried. `single`: `value` is the only one."""

    value: Any
    low: Any
    high: Any
    single: bool

    def range(self) -> Range:
        if self.single:
            return of_value(self.value)
        is_number = isinstance(self.low, int | float) and not isinstance(self.value, bool)
        return Range(self.low, self.high) if is_number else Range()


@dataclass(frozen=True, eq=False)
class Atom:
    """A part of a condition that yields one outcome. `ordered`: it only compares two names that were cut together."""

    step: Step
    names: tuple[str, ...]
    program: Program
    text: str
    ordered: bool = False

    def outcome(self, values: Mapping[str, Any]) -> int:
        return outcome_of(*interpret_marked(self.program, values))

    def outcomes(self, cells: Mapping[str, Cell]) -> int:
        """What it may yield anywhere in the cells, by interval arithmetic."""
        found = range_within(self.step, {name: cell.range() for name, cell in cells.items()})
        return found.outcomes if self.step.type.kind == "bool" else found.outcomes | TRUE


@dataclass(frozen=True, eq=False)
class Domain:
    """The cells of a name, and for each atom that reads nothing else (by place in `atoms`) its outcomes cell by cell."""

    name: str
    cells: tuple[Cell, ...]
    masks: Mapping[str, tuple[int, ...]]  # by the text of the atom's step


def find_atoms(steps: Iterable[Step]) -> dict[str, Atom]:
    """The atoms by text: equal ones of several conditions are one. Comparisons of two names are marked `ordered`."""
    found: dict[str, Atom] = {}
    for step in steps:
        text = str(step)
        if text not in found:
            program = as_program(step)
            found[text] = Atom(step, tuple(sorted(program.names)), program, text)
    small = {name for group in _groups(found.values()) if len(group) <= MAX_ORDERED for name in group}
    return {
        text: replace(atom, ordered=True) if _compares_names(atom) and small >= {*atom.names} else atom
        for text, atom in found.items()
    }


def build_domains(
    atoms: Iterable[Atom], types: Mapping[str, Type], facts: Mapping[str, Facts], *, merge: bool = True
) -> dict[str, Domain]:
    """The cells of every name that an atom reads. `merge`: cells that no atom tells apart become one."""
    atoms = list(atoms)
    reading: dict[str, list[Atom]] = {}
    for atom in atoms:
        for name in atom.names:
            reading.setdefault(name, []).append(atom)
    together = {name: group for group in _groups(atoms) if len(group) <= MAX_ORDERED for name in group}
    builders = {
        name: _Builder(name, types.get(name) or _type_of(name, found), facts.get(name), found)
        for name, found in reading.items()
    }
    for name, builder in builders.items():
        builder.find_cuts()
        builder.points = len(together.get(name, (name,)))
    for group in {id(group): group for group in together.values()}.values():
        shared: set[Any] = set().union(*(builders[name].cuts for name in group))
        for name in group:
            builders[name].cuts |= shared
    return {name: builder.domain(merge=merge) for name, builder in builders.items()}


class _Builder:
    """Cuts are keys at which a cell begins (numbers), or strings that are a cell of their own."""

    def __init__(self, name: str, kind: Type, facts: Facts | None, atoms: Sequence[Atom]) -> None:
        self.name, self.type, self.facts, self.atoms = name, kind, facts, atoms
        self.own = [atom for atom in atoms if len(atom.names) == 1]
        self.shared = [atom for atom in atoms if len(atom.names) > 1]
        self.cuts: set[Any] = set()
        self.found: dict[str, list[Piece]] = {}
        self.understood: set[str] = set()
        self.judged: dict[tuple[str, int], int] = {}  # the outcome of an atom on one of its pieces
        self.points = 1

    def find_cuts(self) -> None:
        if self.type.kind in NUMBERS:
            self.low, self.high = key_range(self.type.kind, self.facts)
            if self.low > self.high:
                return
            self.cuts |= {self.low, self.high + 1}
            for atom in self.own:
                self.found[atom.text] = found = pieces(atom.step, self.name, self.type.kind, self.low, self.high)
                self.cuts.update(piece.low for piece in found)
            for atom in self.shared:
                if self.type.kind == "double":
                    self.cuts |= {-1, 0, 1}  # -0.0 and 0.0 are equal, so they must not stand in cells side by side
                if not atom.ordered:
                    self.cuts.update(cut for probe in self.probes(atom) for cut in (probe, probe + 1))
                    if self.type.kind == "int" and self.high - self.low < MAX_LISTED:
                        self.cuts |= set(range(self.low, self.high + 2))
        elif self.type.kind == "string":
            self.cuts.add("")
            for atom in self.own:
                if _text_cuts(atom.step, self.name, self.cuts):
                    self.understood.add(atom.text)
            for atom in self.atoms:
                self.cuts.update(
                    part.value for part in atom.step.walk() if part.step == "const" and isinstance(part.value, str)
                )

    def probes(self, atom: Atom) -> set[int]:
        """Keys worth trying where names are computed with: small numbers, the atom's constants, the bounds."""
        real = self.type.kind == "double"
        values: set[float] = {-1, 0, 1}
        for part in atom.step.walk():
            if part.step == "const" and isinstance(part.value, int | float) and not isinstance(part.value, bool):
                values.add(part.value)
        keys = {key_of(float(v)) if real else int(v) for v in values if real or (math.isfinite(v) and int(v) == v)}
        if self.facts is not None and self.facts.low is not None:
            keys.add(self.low)
        if self.facts is not None and self.facts.high is not None:
            keys.add(self.high)
        return {key for key in keys if self.low <= key <= self.high}

    def domain(self, *, merge: bool) -> Domain:
        cells = self.cells()
        texts = [atom.text for atom in self.own]
        masks = [[self.mask(atom, cell) for cell in cells] for atom in self.own]
        if merge and not self.shared:
            same: dict[tuple[int, ...], list[int]] = {}
            for index in range(len(cells)):
                seen = tuple(mask[index] for mask in masks)
                unsure = any(mask & (mask - 1) for mask in seen)  # then its range is still needed
                same.setdefault((*seen, index) if unsure else seen, []).append(index)
            cells = [_joined([cells[index] for index in indexes]) for indexes in same.values()]
            masks = [[mask[indexes[0]] for indexes in same.values()] for mask in masks]
        return Domain(self.name, tuple(cells), {text: tuple(mask) for text, mask in zip(texts, masks, strict=True)})

    def mask(self, atom: Atom, cell: Cell) -> int:
        if atom.text in self.found and isinstance(cell.low, int | float) and cell.low == cell.low:
            found = self.found[atom.text]
            place = bisect.bisect_right(found, key_of(cell.low), key=lambda piece: piece.low) - 1
            if found[place].status != "unknown":  # then one outcome all over the piece, which the cell is a part of
                if (atom.text, place) not in self.judged:
                    value = value_of(found[place].low, self.type.kind)
                    self.judged[atom.text, place] = atom.outcome({self.name: value})
                return self.judged[atom.text, place]
        if cell.single or atom.text in self.understood:
            return atom.outcome({self.name: cell.value})
        return atom.outcomes({self.name: cell})

    def cells(self) -> list[Cell]:
        """Plain values first, then what reads odd in an example: infinities, NaN, null."""
        kind = self.type.kind
        if kind in NUMBERS:
            out = self.numbers()
            bounded = self.facts is not None and (self.facts.low is not None or self.facts.high is not None)
            if kind == "double" and not bounded:
                out.append(_single(math.nan))
        elif kind == "string":
            out = self.texts()
        elif kind == "bool":
            out = [_single(True), _single(False)]
        else:
            out = self.lists()
        return out + [_single(None)] * self.type.nullable

    def numbers(self) -> list[Cell]:
        kind = self.type.kind
        if self.low > self.high:
            return []
        starts = sorted(cut for cut in self.cuts if self.low <= cut <= self.high)
        out = []
        for low, after in zip(starts, [*starts[1:], self.high + 1], strict=True):
            ends = value_of(low, kind), value_of(after - 1, kind)
            if self.points == 1:
                out.append(Cell(nice(low, after - 1, kind), *ends, single=after - low == 1))
            else:
                single = after - low <= self.points
                for value in spread(low, after - 1, kind, self.points):
                    out.append(Cell(value, *((value, value) if single else ends), single=single))
        return sorted(out, key=lambda cell: (math.isinf(cell.value), math.copysign(1.0, cell.value) < 0))

    def texts(self) -> list[Cell]:
        cuts = sorted(self.cuts)
        out = [_single(text) for text in cuts]
        for low, high in zip(cuts, [*cuts[1:], None], strict=True):
            found = _between(low, high, self.points)
            whole = len(found) < self.points  # then these are all there are
            out += [Cell(text, low, high, single=whole) for text in found]
        rank = {text: place for place, text in enumerate(_WORDS)}
        return sorted(out, key=lambda cell: (cell.value == "", not cell.single, rank.get(cell.value, len(rank))))

    def lists(self) -> list[Cell]:
        """A few lists of the constants around; nothing is proved about lists."""
        around = dict.fromkeys(
            part.value
            for atom in self.atoms
            for part in atom.step.walk()
            if part.step == "const" and part.value is not None
        )
        python = {"string": str, "double": float, "bool": bool}.get(self.type.item.kind, int)
        values: list[Any] = [value for value in around if type(value) is python]
        ends = [value + step for value in values for step in (-1, 1)] if python in (int, float) else []
        values = list(dict.fromkeys([*values, *ends]))[:16] or [python()]
        tried: list[list[Any]] = [[], *([value] for value in values), values, values[:2], values[-2:]]
        return [*(_single(list(value)) for value in tried), Cell([values[0], values[0]], None, None, single=False)]


def _single(value: Any) -> Cell:
    return Cell(value, value, value, single=True)


def _joined(cells: list[Cell]) -> Cell:
    """One cell for several that nothing tells apart; its range is given up, as nothing reads it."""
    return cells[0] if len(cells) == 1 else Cell(cells[0].value, None, None, single=False)


def _type_of(name: str, atoms: Sequence[Atom]) -> Type:
    """The type of a name from its uses: nullable unless every use says that it is not."""
    found = [part.type for atom in atoms for part in atom.step.walk() if part.step == "name" and part.value == name]
    return next((kind for kind in found if kind.nullable), found[0])


def _compares_names(atom: Atom) -> bool:
    operation, _, kind = atom.step.step.partition("_")
    names = [arg.value for arg in atom.step.args if arg.step == "name"]
    return operation in COMPARE and kind in (*NUMBERS, "string") and len(set(names)) == 2


def _groups(atoms: Iterable[Atom]) -> list[tuple[str, ...]]:
    """Names that are compared with each other, directly or through others."""
    root: dict[str, str] = {}

    def find(name: str) -> str:
        while root.setdefault(name, name) != name:
            name = root[name]
        return name

    for atom in atoms:
        if _compares_names(atom):
            root[find(atom.names[0])] = find(atom.names[1])
    out: dict[str, list[str]] = {}
    for name in root:
        out.setdefault(find(name), []).append(name)
    return [tuple(group) for group in out.values()]


def _text_cuts(step: Step, name: str, cuts: set[Any]) -> bool:
    """Add the strings at which the step can change; False when it is not known to change at those only."""
    if name not in as_program(step).names or (step.step == "is_null" and _bare(step.args[0], name)):
        return True
    if step.step in OPAQUE:
        return False
    operation, _, kind = step.step.partition("_")
    if ((operation in COMPARE or operation == "in") and kind == "string") or step.step == "starts_with":
        others = [arg for arg in step.args if not _bare(arg, name)]
        if len(others) < len(step.args) and all(name not in as_program(arg).names for arg in others):
            if step.step == "starts_with" and not _bare(step.args[0], name):
                return False
            for arg in others:
                value = interpret_marked(as_program(arg), {})[0]
                if isinstance(value, str):
                    cuts |= {value, _after_prefix(value)} - {None} if step.step == "starts_with" else {value}
            return True
    return not any(_bare(arg, name) for arg in step.args) and all(_text_cuts(arg, name, cuts) for arg in step.args)


def _bare(step: Step, name: str) -> bool:
    """Whether the step is the name's own value wherever that is not null."""
    if step.step in ("coalesce", "same"):
        return _bare(step.args[0], name)
    return step.step == "name" and step.value == name


def _after_prefix(prefix: str) -> str | None:
    """The first string behind all that start with the prefix."""
    kept = prefix.rstrip(chr(0x10FFFF))
    return kept[:-1] + chr(ord(kept[-1]) + 1) if kept else None


def _between(low: str, high: str | None, count: int) -> list[str]:
    """Up to `count` strings between two, both excluded; fewer only when there are no more."""
    tries = [*_WORDS, *(low + "a" * n for n in range(1, count + 1)), *(low + "!" * n for n in range(1, count + 1))]
    tries += [low + "\0" * n for n in range(1, count + 1)]
    found = [text for text in dict.fromkeys(tries) if low < text and (high is None or text < high)]
    return found[:count]

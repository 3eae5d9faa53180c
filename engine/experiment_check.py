"""Two experiments that claim the same request: found before they run, with a request that shows it.

A layer gives its parameters to one experiment at a time. Experiments of one layer may run side by side only when their
`where` exclude each other, and that is proved on the expressions (`features/expr/regions.py`), not tried on traffic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

from features.expr import Facts, Mistake, Program, Type, mistake_at
from features.expr.outcomes import is_structure
from features.expr.program import Step
from features.expr.regions import find_example

if TYPE_CHECKING:
    from engine.strategy import CompiledArms


def find_conflicts(
    arms: Sequence[CompiledArms], types: Mapping[str, Type], facts: Mapping[str, Facts]
) -> list[Mistake]:
    """A mistake for every two experiments of one layer that are not proved to exclude each other.

    `types` and `facts` are of the names that `where` may read. A `where` that did not compile is a mistake already.
    """
    out = []
    readable = [split for split in arms if split.where is not None or split.experiment.where is None]
    for first, second in combinations(readable, 2):
        if first.experiment.layer == second.experiment.layer:
            found = _conflict(first, second, types, facts)
            if found is not None:
                out.append(found)
    return out


def _conflict(
    first: CompiledArms, second: CompiledArms, types: Mapping[str, Type], facts: Mapping[str, Facts]
) -> Mistake | None:
    """The mistake stands at the second one: at its `where`, or at its name when it has none."""
    one, two = first.experiment, second.experiment
    layer = f"layer '{one.layer}'"
    wanted = [(split.where, True) for split in (first, second) if split.where is not None]
    if not wanted:
        message = f"experiments '{one.name}' and '{two.name}' both split {layer} for every request"
        return _mistake(second, message, "use another layer, or give each a where that excludes the other's")
    search = find_example(wanted, types, facts)
    if search.example is not None:
        request = ", ".join(f"{name}: {_shown(value)}" for name, value in search.example.items())
        message = f"experiments '{one.name}' and '{two.name}' both split {layer} for a request with {request}"
        return _mistake(second, message, "change one where so that it excludes the other's, or use another layer")
    if search.exact or _exclude_whatever_terms_are(wanted, types):
        return None
    message = f"it is not proved that experiments '{one.name}' and '{two.name}' of {layer} exclude each other"
    return _mistake(
        second, message, "compare the same fields with constants in both where, as city == 'nyc' and city != 'nyc'"
    )


def _exclude_whatever_terms_are(wanted: Sequence[tuple[Program, bool | None]], types: Mapping[str, Type]) -> bool:
    """Whether the conditions exclude each other even if every computed term could have any value, equal terms one value.

    `zone % 10 < 5` and `zone % 10 >= 5` do: whatever `zone % 10` is, null and a row error included, they are not both true. A
    row error counts as null here, which lets more conditions hold, never fewer, so what is excluded is excluded.
    """
    terms: dict[str, Type] = dict(types)
    opaque = []
    for program, value in wanted:
        root = _opaque(program.root, terms)
        names = frozenset(str(step.value) for step in root.walk() if step.step == "name")
        opaque.append((replace(program, root=root, names=names), value))
    search = find_example(opaque, terms, {})
    return search.exact and search.example is None


def _opaque(step: Step, terms: dict[str, Type]) -> Step:
    """The condition with every computed term a name of its own, which is added to `terms`; equal terms are one name."""
    if is_structure(step):
        return replace(step, args=tuple(_opaque(arg, terms) for arg in step.args))
    if step.step in ("name", "const"):
        return step
    if step.step in ("exists", "all"):
        return _term(step, terms)
    plain = all(arg.step in ("name", "const") or arg.type.is_list for arg in step.args)
    return step if plain else replace(step, args=tuple(_named(arg, terms) for arg in step.args))


def _named(arg: Step, terms: dict[str, Type]) -> Step:
    return arg if arg.step in ("name", "const") or arg.type.is_list else _term(arg, terms)


def _term(step: Step, terms: dict[str, Type]) -> Step:
    name = f"({step})"
    terms[name] = Type(step.type.kind, True)
    return replace(step, step="name", args=(), value=name, type=terms[name])


def _mistake(split: CompiledArms, message: str, hint: str) -> Mistake:
    source = split.experiment.where or split.experiment.source
    assert source is not None, "the loader sets it"
    return mistake_at(source, 0, len(source.text.rstrip()), "conflict", message, hint)


def _shown(value: Any) -> str:
    """A value as an expression writes it."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return repr(value)

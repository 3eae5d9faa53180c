"""Two experiments that claim the same request: found before they run, with a request that shows it.

A layer gives its parameters to one experiment at a time. Experiments of one layer may run side by side only when their
`where` exclude each other, and that is proved on the expressions (`features/expr/regions.py`), not tried on traffic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from features.expr import Facts, Mistake, Type, mistake_at
from features.expr.regions import find_example
from features.expr.shown import shown

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
        request = ", ".join(f"{name}: {shown(value, types.get(name))}" for name, value in search.example.items())
        message = f"experiments '{one.name}' and '{two.name}' both split {layer} for a request with {request}"
        return _mistake(second, message, "change one where so that it excludes the other's, or use another layer")
    if search.exact:
        return None
    message = f"it is not proved that experiments '{one.name}' and '{two.name}' of {layer} exclude each other"
    return _mistake(
        second, message, "compare the same fields with constants in both where, as city == 'nyc' and city != 'nyc'"
    )


def _mistake(split: CompiledArms, message: str, hint: str) -> Mistake:
    source = split.experiment.where or split.experiment.source
    assert source is not None, "the loader sets it"
    return mistake_at(source, 0, len(source.text.rstrip()), "conflict", message, hint)

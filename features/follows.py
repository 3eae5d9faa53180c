"""What follows from edits: groups that get a new generation or go away, spans that become shorter, features that read others.

`features/edits.py` says what is written differently; `features/plan.py` puts both together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from features.edits import BACKFILL, DESTRUCTIVE, RISKS, SAFE, Edit, place_of, worst
from features.registry import Registry
from features.spec import Catalogue, FeatureSpec, FeatureView, Group, RowGroup, TileGroup, text_of


def edits_of_groups(before: Registry | None, after: Registry) -> Iterator[Edit]:
    """What the store loses: groups that nothing needs any more, and the far end of spans that become shorter."""
    if before is None:
        return
    now = {group.name: group for group in all_groups(after.catalogue)}
    for old in all_groups(before.catalogue):
        new = now.get(old.name)
        if new is None:
            what = f"group {old.name} is gone"
            yield Edit("group", None, None, what, DESTRUCTIVE, "no feature needs it; what it kept expires", "")
        elif isinstance(old, TileGroup) and isinstance(new, TileGroup) and new.retain_tiles < old.retain_tiles:
            what = f"group {old.name} keeps {new.retain_tiles} tiles a key, not {old.retain_tiles}"
            reason = "no window needs the older ones; a longer window later would have to be backfilled"
            yield Edit("retention", None, None, what, DESTRUCTIVE, reason, "")


def edits_of_features(before: Registry | None, after: Registry, edits: list[Edit]) -> list[Edit]:
    """What follows for each feature: its group is kept anew, or a feature that it reads changes."""
    found: list[Edit] = []
    for view in after.catalogue.views.values():
        seen: dict[str, str | None] = {}
        for spec in view.features:
            _follow(before, after, view, spec, edits, seen, found)
    return found


def _follow(
    before: Registry | None,
    after: Registry,
    view: FeatureView,
    spec: FeatureSpec,
    edits: list[Edit],
    seen: dict[str, str | None],
    found: list[Edit],
) -> str | None:
    """The class of one feature with all that follows; edits that say so join `found`. The loader refuses circles."""
    if spec.name in seen:
        return seen[spec.name]
    risk = risk_of(edits, view.name, spec.name)
    if spec.expr is None:
        edit = _kept_anew(before, after, view, spec)
    else:
        known = {other.name: other for other in view.features}
        read = {
            name: _follow(before, after, view, known[name], edits, seen, found)
            for name in sorted(spec.expr.names)
            if name in known
        }
        edit = _reads(view, spec, read, existed=_existed(before, view.name, spec.name))
    if edit is not None and (risk is None or RISKS.index(edit.risk) > RISKS.index(risk)):
        found.append(edit)
        risk = edit.risk
    seen[spec.name] = risk
    return risk


def _kept_anew(before: Registry | None, after: Registry, view: FeatureView, spec: FeatureSpec) -> Edit | None:
    """A feature whose group starts empty: it is new, or has a new generation."""
    group = group_of(after.catalogue, view, spec)
    if group is None:
        return None
    generation = after.generation_of(group.name)
    known = before.document.groups.get(group.name) if before is not None else None
    if known is not None and known.generation == generation:
        return None
    place = place_of(spec)
    if before is None or known is None:
        what = f"needs group {group.name}, which is new"
        return Edit("generation", view.name, spec.name, what, BACKFILL, "it starts without history", place)
    old = next((other for other in all_groups(before.catalogue) if other.name == group.name), None)
    what = f"group {group.name} is kept anew: generation {known.generation} → {generation}"
    return Edit("generation", view.name, spec.name, what, BACKFILL, _why_anew(old, group, known.retain_tiles), place)


def _reads(view: FeatureView, spec: FeatureSpec, read: Mapping[str, str | None], *, existed: bool) -> Edit | None:
    """What an expression takes over from the features that it reads. One that is new has no value yet to break."""
    risk = worst(r for r in read.values() if r is not None)
    if risk is None or risk == SAFE:
        return None
    risk = risk if existed else BACKFILL
    causes = ", ".join(name for name, r in read.items() if r not in (None, SAFE))
    reason = "what it reads changes" if existed else "what it reads starts without history"
    return Edit("follows", view.name, spec.name, f"reads {causes}", risk, reason, place_of(spec))


def _why_anew(old: Group | RowGroup | None, new: Group | RowGroup, retained: int) -> str:
    if old is None:
        return "a group of this name was there before, with other tiles"
    if old.fingerprint == new.fingerprint:
        span = new.retain_tiles if isinstance(new, TileGroup) else 0
        return f"a window needs {span} tiles a key, {retained} are kept"
    was, now = _parts(old), _parts(new)
    gained, lost = sorted(now - was), sorted(was - now)
    told = [f"keeps {text}" for text in gained] + [f"no longer keeps {text}" for text in lost]
    return f"it {'; '.join(told)}" if told else "its source or its key changes"


def _parts(group: Group | RowGroup) -> set[str]:
    """What a group keeps, in words."""
    if isinstance(group, RowGroup):
        return {f"{field.name}: {field.type}" for field in group.fields}
    if not isinstance(group, TileGroup):
        return {_part("the last", field) for field in group.fields}
    buckets = [] if group.buckets is None else [_part("buckets", group.buckets)]
    return {*buckets, *(_part(partial.function, partial) for partial in group.partials)}


def _part(kind: str, part: Any) -> str:
    of = f" of {text_of(part.of)}" if part.of is not None else ""
    return kind + of + (f" where {text_of(part.where)}" if part.where is not None else "")


def risk_of(edits: Iterable[Edit], view: str, feature: str) -> str | None:
    """The most severe class among the edits of a feature and of its whole view."""
    return worst(edit.risk for edit in edits if edit.view == view and edit.feature in (None, feature))


def all_groups(catalogue: Catalogue) -> tuple[Group | RowGroup, ...]:
    """What streams feed, then what batch sources feed."""
    return (*catalogue.groups(), *catalogue.row_groups())


def group_of(catalogue: Catalogue, view: FeatureView, spec: FeatureSpec) -> Group | RowGroup | None:
    """What feeds a feature, None for one that is computed when it is asked for."""
    if spec.aggregate is not None:
        return catalogue.group_for(view, spec)
    return catalogue.row_group_of(view) if spec.column is not None else None


def _existed(before: Registry | None, view: str, feature: str) -> bool:
    known = before.catalogue.views.get(view) if before is not None else None
    return known is not None and any(spec.name == feature for spec in known.features)

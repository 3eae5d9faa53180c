"""What making a catalogue the applied truth would mean: every edit with its class of risk, before anything is written.

`features/edits.py` says what is written differently; here it meets what is applied: which groups get a new generation and
so need history, which tiles are lost, which features change because they read one that does, how much room it takes, and
which strategies and models read what changes. Pure: `hailstream features plan` prints it, `features apply` refuses by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from features.edits import BACKFILL, BREAKING, DESTRUCTIVE, RISKS, SAFE, Edit, edits_between, place_of, worst
from features.estimates import GroupSize, StoredGroup, size_of
from features.registry import Change, Registry, next_registry
from features.spec import PROJECT, Catalogue, FeatureSpec, FeatureView, Group, TileGroup, text_of
from features.staging import moved_groups

Uses = Mapping[str, Set[tuple[str, str]]]  # (view, feature) that each strategy or model reads


@dataclass(frozen=True, kw_only=True)
class GroupPlan:
    """One group before and after. Generations and spans are None where it does not exist; a span is 0 without tiles."""

    name: str
    generation_before: int | None
    generation_after: int | None
    span_before_ms: int | None
    span_after_ms: int | None
    size: GroupSize | None

    @property
    def changes(self) -> bool:
        return (self.generation_before, self.span_before_ms) != (self.generation_after, self.span_after_ms)


@dataclass(frozen=True, kw_only=True)
class Touched:
    """A strategy or model, and what of it changes: (view, feature, class of risk). `error` says why it would no longer load."""

    user: str
    features: tuple[tuple[str, str, str], ...]
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All edits, those of a view together. `changes` are generations that move, `steps` what apply does and leaves to do."""

    project: str
    version_before: int | None
    edits: tuple[Edit, ...]
    changes: tuple[Change, ...]
    groups: tuple[GroupPlan, ...]
    touched: tuple[Touched, ...]
    steps: tuple[str, ...]

    @property
    def risk(self) -> str | None:
        """The most severe class, None where nothing changes."""
        return worst(edit.risk for edit in self.edits)

    @property
    def exit_code(self) -> int:
        """0 nothing, 2 changes, 3 breaking or destructive ones."""
        return 0 if self.risk is None else 3 if self.risk in (BREAKING, DESTRUCTIVE) else 2

    def risk_of(self, view: str, feature: str) -> str | None:
        return _risk_of(self.edits, view, feature)

    def beyond(self, allowed: str) -> list[Edit]:
        """The edits that are more severe than a class."""
        return [edit for edit in self.edits if RISKS.index(edit.risk) > RISKS.index(allowed)]


def plan_changes(
    before: Registry | None,
    catalogue: Catalogue,
    *,
    project: str = PROJECT,
    uses: Uses | None = None,
    broken: Mapping[str, str] | None = None,
    stored: Mapping[str, StoredGroup] | None = None,
    keys: int | None = None,
) -> Plan:
    """Every edit between what is applied and what is declared.

    `uses` says what strategies and models read, `broken` which of them would not load with the catalogue, and why; `stored`
    is what the store holds per group (features/estimates.stored_groups), `keys` the number of entities to reckon with instead.
    """
    after, changes = next_registry(before, catalogue, before.project if before is not None else project)
    old = before.catalogue if before is not None else Catalogue(entities={}, sources={}, views={})
    edits = edits_between(old, catalogue)
    edits += _of_groups(before, after)
    edits += _of_features(before, after, edits)
    edits += _of_texts(old, catalogue, edits)
    known, kept = old.groups(), stored or {}
    return Plan(
        project=after.project,
        version_before=None if before is None else before.version,
        edits=tuple(sorted(edits, key=_place_in_list)),
        changes=tuple(changes),
        groups=tuple(_groups(before, after, lambda group: size_of(group, after.project, kept, known, keys=keys))),
        touched=tuple(_touched(uses or {}, broken or {}, edits)),
        steps=tuple(_steps(before, after, edits, stored)),
    )


def _of_groups(before: Registry | None, after: Registry) -> Iterator[Edit]:
    """What the store loses: groups that nothing needs any more, and the far end of spans that become shorter."""
    if before is None:
        return
    now = {group.name: group for group in after.catalogue.groups()}
    for old in before.catalogue.groups():
        new = now.get(old.name)
        if new is None:
            what = f"group {old.name} is gone"
            yield Edit("group", None, None, what, DESTRUCTIVE, "no feature needs it; what it kept expires", "")
        elif isinstance(old, TileGroup) and isinstance(new, TileGroup) and new.retain_tiles < old.retain_tiles:
            what = f"group {old.name} keeps {new.retain_tiles} tiles a key, not {old.retain_tiles}"
            reason = "no window needs the older ones; a longer window later would have to be backfilled"
            yield Edit("retention", None, None, what, DESTRUCTIVE, reason, "")


def _of_features(before: Registry | None, after: Registry, edits: list[Edit]) -> list[Edit]:
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
    risk = _risk_of(edits, view.name, spec.name)
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
    group = after.catalogue.group_for(view, spec)
    generation = after.generation_of(group.name)
    known = before.document.groups.get(group.name) if before is not None else None
    if known is not None and known.generation == generation:
        return None
    place = place_of(spec)
    if before is None or known is None:
        what = f"needs group {group.name}, which is new"
        return Edit("generation", view.name, spec.name, what, BACKFILL, "it starts without history", place)
    old = next((other for other in before.catalogue.groups() if other.name == group.name), None)
    what = f"group {group.name} is kept anew: generation {known.generation} → {generation}"
    return Edit("generation", view.name, spec.name, what, BACKFILL, _why_anew(old, group, known.retain_tiles), place)


def _reads(view: FeatureView, spec: FeatureSpec, read: Mapping[str, str | None], *, existed: bool) -> Edit | None:
    """What an expression takes over from the features that it reads. One that is new has no value yet to break."""
    risk = worst(r for r in read.values() if r is not None)
    if risk is None or risk == SAFE:
        return None
    risk = risk if existed else BACKFILL
    causes = ", ".join(name for name, r in read.items() if r not in (None, SAFE))
    return Edit("follows", view.name, spec.name, f"reads {causes}", risk, "what it reads changes", place_of(spec))


def _why_anew(old: Group | None, new: Group, retained: int) -> str:
    if old is None:
        return "a group of this name was there before, with other tiles"
    if old.fingerprint == new.fingerprint:
        span = new.retain_tiles if isinstance(new, TileGroup) else 0
        return f"a window needs {span} tiles a key, {retained} are kept"
    was, now = _parts(old), _parts(new)
    gained, lost = sorted(now - was), sorted(was - now)
    told = [f"keeps {text}" for text in gained] + [f"no longer keeps {text}" for text in lost]
    return f"it {'; '.join(told)}" if told else "its source or its key changes"


def _parts(group: Group) -> set[str]:
    """What a group keeps, in words."""
    if not isinstance(group, TileGroup):
        return {_part("the last", field) for field in group.fields}
    buckets = [] if group.buckets is None else [_part("buckets", group.buckets)]
    return {*buckets, *(_part(partial.function, partial) for partial in group.partials)}


def _part(kind: str, part: Any) -> str:
    of = f" of {text_of(part.of)}" if part.of is not None else ""
    return kind + of + (f" where {text_of(part.where)}" if part.where is not None else "")


def _of_texts(old: Catalogue, new: Catalogue, edits: list[Edit]) -> Iterator[Edit]:
    """Files that are written differently and mean the same."""
    told = {edit.place.rpartition(":")[0] for edit in edits}
    for name in sorted({*old.files, *new.files}):
        if old.files.get(name) == new.files.get(name) or any(file.endswith(name) for file in told):
            continue
        what = "is new" if name not in old.files else "is gone" if name not in new.files else "is written differently"
        yield Edit("text", None, None, f"{name} {what}", SAFE, "all that is declared means the same", f"{name}:1")


def _groups(before: Registry | None, after: Registry, size: Callable[[Group], GroupSize]) -> Iterator[GroupPlan]:
    olds = {group.name: group for group in before.catalogue.groups()} if before is not None else {}
    news = {group.name: group for group in after.catalogue.groups()}
    for name in sorted({*olds, *news}):
        old, new = olds.get(name), news.get(name)
        yield GroupPlan(
            name=name,
            generation_before=None if old is None or before is None else before.generation_of(name),
            generation_after=None if new is None else after.generation_of(name),
            span_before_ms=None if old is None else _span_ms(old),
            span_after_ms=None if new is None else _span_ms(new),
            size=None if new is None else size(new),
        )


def _touched(uses: Uses, broken: Mapping[str, str], edits: list[Edit]) -> Iterator[Touched]:
    for user in sorted({*uses, *broken}):
        features = [(view, name, _risk_of(edits, view, name)) for view, name in sorted(uses.get(user, ()))]
        changed = tuple((view, name, risk) for view, name, risk in features if risk is not None and risk != SAFE)
        if changed or user in broken:
            yield Touched(user=user, features=changed, error=broken.get(user, ""))


def _steps(
    before: Registry | None, after: Registry, edits: list[Edit], stored: Mapping[str, StoredGroup] | None
) -> Iterator[str]:
    """What apply will do, and what has to be done after it."""
    staged = before.document.next if before is not None else None
    if staged is not None:
        yield (
            "this is the version that is staged: `hailstream features rollout` goes on with it"
            if staged.files == after.document.files
            else "another version is staged, and apply refuses until `hailstream features switch` or `abort`"
        )
        return
    if not edits:
        return
    anew = [] if before is None else moved_groups(before, after)
    fed = stored is None or any(name in stored for name in anew)
    old, new = before.generations() if before is not None else {}, after.generations()
    added, gone = sorted(new.keys() - old.keys()), sorted(old.keys() - new.keys())
    if anew and fed:
        yield f"apply stages new generations of {', '.join(anew)}; readers keep the applied ones until the switch"
        yield "`hailstream features rollout` does the rest: second job, backfill, catching up, switch, end of the first job"
        return
    yield "apply makes it live at once, in one transaction"
    counted_otherwise = sorted({str(edit.view) for edit in edits if edit.kind == "source"})
    if anew or added or gone or counted_otherwise:
        yield "the feature job feeds what was applied when it was submitted: `hailstream jobs submit features --replace`"
    if counted_otherwise:
        yield f"`hailstream features rebuild` counts what is stored anew, for {', '.join(counted_otherwise)}"
    if anew or added:
        yield f"`hailstream features backfill` gives {', '.join(sorted([*anew, *added]))} the history from before the job"


def _risk_of(edits: list[Edit] | tuple[Edit, ...], view: str, feature: str) -> str | None:
    return worst(edit.risk for edit in edits if edit.view == view and edit.feature in (None, feature))


def _existed(before: Registry | None, view: str, feature: str) -> bool:
    known = before.catalogue.views.get(view) if before is not None else None
    return known is not None and any(spec.name == feature for spec in known.features)


def _span_ms(group: Group) -> int:
    return group.retain_tiles * group.hop_ms if isinstance(group, TileGroup) else 0


def _place_in_list(edit: Edit) -> tuple[bool, str, str, int]:
    """What belongs to no view comes first; then by view and feature, the most severe first."""
    return (edit.view is not None, edit.view or "", edit.feature or "", -RISKS.index(edit.risk))

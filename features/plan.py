"""What making a catalogue the applied truth would mean: every edit with its class of risk, before anything is written.

`features/edits.py` says what is written differently, `features/follows.py` what follows from it for what is stored and for
features that read others; here stands besides how much room it takes, which strategies and models read what changes, and
what comes next. Pure: `hailstream features plan` prints it, `features apply` refuses by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass

from features.edits import BREAKING, DESTRUCTIVE, RISKS, SAFE, Edit, edits_between, worst
from features.estimates import AnyGroup, GroupSize, StoredGroup, size_of
from features.follows import all_groups, edits_of_features, edits_of_groups, risk_of
from features.registry import Change, Registry, next_registry
from features.spec import PROJECT, Catalogue, TileGroup
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
        return risk_of(self.edits, view, feature)

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
    edits += edits_of_groups(before, after)
    edits += edits_of_features(before, after, edits)
    edits += _of_texts(old, catalogue, edits)
    known, kept = all_groups(old), stored or {}
    return Plan(
        project=after.project,
        version_before=None if before is None else before.version,
        edits=tuple(sorted(edits, key=_place_in_list)),
        changes=tuple(changes),
        groups=tuple(_groups(before, after, lambda group: size_of(group, after.project, kept, known, keys=keys))),
        touched=tuple(_touched(uses or {}, broken or {}, edits)),
        steps=tuple(_steps(before, after, edits, stored)),
    )


def _of_texts(old: Catalogue, new: Catalogue, edits: list[Edit]) -> Iterator[Edit]:
    """Files that are written differently and mean the same."""
    told = {edit.place.rpartition(":")[0] for edit in edits}
    for name in sorted({*old.files, *new.files}):
        if old.files.get(name) == new.files.get(name) or any(file.endswith(name) for file in told):
            continue
        what = "is new" if name not in old.files else "is gone" if name not in new.files else "is written differently"
        yield Edit("text", None, None, f"{name} {what}", SAFE, "all that is declared means the same", f"{name}:1")


def _groups(before: Registry | None, after: Registry, size: Callable[[AnyGroup], GroupSize]) -> Iterator[GroupPlan]:
    olds = {group.name: group for group in all_groups(before.catalogue)} if before is not None else {}
    news = {group.name: group for group in all_groups(after.catalogue)}
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
        features = [(view, name, risk_of(edits, view, name)) for view, name in sorted(uses.get(user, ()))]
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
    old, new = before.document.groups if before is not None else {}, after.document.groups
    rows = {g.name for registry in (before, after) if registry is not None for g in registry.catalogue.row_groups()}
    unfilled = sorted(n for n in rows & new.keys() if n not in old or old[n].generation != new[n].generation)
    old, new = ({n: group for n, group in groups.items() if n not in rows} for groups in (old, new))
    added, gone = sorted(new.keys() - old.keys()), sorted(old.keys() - new.keys())
    if anew and fed:
        yield f"apply stages new generations of {', '.join(anew)}; readers keep the applied ones until the switch"
        yield "`hailstream features rollout` does the rest: second job, backfill, catching up, switch, end of the first job"
        return
    yield "apply makes it live at once, in one transaction"
    if unfilled:
        yield f"values of {', '.join(unfilled)} are missing until `hailstream features backfill` has written their rows"
    streams = {view.name for view in after.catalogue.views.values() if view.kind == "stream"}
    counted_otherwise = sorted({str(edit.view) for edit in edits if edit.kind == "source" and edit.view in streams})
    if anew or added or gone or counted_otherwise:
        yield "the feature job feeds what was applied when it was submitted: `hailstream jobs submit features --replace`"
    if counted_otherwise:
        yield f"`hailstream features rebuild` counts what is stored anew, for {', '.join(counted_otherwise)}"
    if anew or added:
        yield f"`hailstream features backfill` gives {', '.join(sorted([*anew, *added]))} the history from before the job"


def _span_ms(group: AnyGroup) -> int:
    return group.retain_tiles * group.hop_ms if isinstance(group, TileGroup) else 0


def _place_in_list(edit: Edit) -> tuple[bool, str, str, int]:
    """What belongs to no view comes first; then by view and feature, the most severe first."""
    return (edit.view is not None, edit.view or "", edit.feature or "", -RISKS.index(edit.risk))

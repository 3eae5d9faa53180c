"""What is applied: the catalogue, the generation of every view and group, one fingerprint; kept whole in Redis.

Engine, sink and command line read this one truth; the YAML texts travel inside, so none of them needs a file. `apply`
is idempotent: a group gets a new generation only where its tiles of before and after must not be mixed, or where a
longer window needs tiles that were not kept. Where such a group is served already, the new version is *staged* beside
the applied one, which everybody goes on reading until the switch (features/staging.py, features/rollout.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec

from features.loader import load_texts
from features.spec import (
    PROJECT,
    Catalogue,
    FeatureSpec,
    FeatureView,
    Group,
    RowGroup,
    TileGroup,
    fingerprint_of,
    text_of,
)
from features.store import FeatureError

FORMAT: Final = 2
READ_FORMATS: Final = (1, 2)  # 1 had no staged version, lives or seams


class AppliedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One generation of a group. `retain_tiles` is 0 for last groups and rows.

    `life` is what the generation's marker in Redis says: who writes shows it, and a Redis that lost the marker, or got
    another one after a fresh apply, refuses (features/redis_writes.py). "" where format 1 made the generation.
    `seam_ms`: the stream owns event times from here on, the backfill what is earlier. None: the stream owns all.
    """

    generation: int
    fingerprint: str
    retain_tiles: int
    life: str = ""
    seam_ms: int | None = None


class AppliedView(msgspec.Struct, frozen=True, kw_only=True):
    generation: int
    fingerprint: str


class NextVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version that is staged: whole, but nobody is served from it until the switch."""

    files: dict[str, str]
    groups: dict[str, AppliedGroup]
    views: dict[str, AppliedView]
    seam_ms: int
    started_ms: int
    actor: str
    reason: str


class RegistryDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The registry as it is stored.

    `retired` keeps the highest generation that a name has used, where that is not the one that is applied: of names that
    are gone, and of versions that were staged and aborted. No generation is ever used twice.
    """

    format: int
    project: str
    version: int
    files: dict[str, str]
    groups: dict[str, AppliedGroup]
    views: dict[str, AppliedView]
    retired: dict[str, int] = {}
    next: NextVersion | None = None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One view or group that an apply adds, changes or drops; a generation is None where it does not exist."""

    kind: str  # "view" or "group"
    name: str
    before: int | None
    after: int | None


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Who did what, when and why. `version` is the one that is served afterwards; `note` says what was overridden."""

    time_ms: int
    actor: str
    reason: str
    version: int
    fingerprint: str
    changes: list[Change]
    kind: str = "apply"  # or stage, switch, rebuild, drop, abort
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class ApplyReport:
    """What an apply did. Not `changed`: everything was applied, or staged, already and nothing was written.

    `staged`: the folder is the version that `registry.staged` holds, and `registry` still serves what it served before;
    `changes` are then those that the switch will make.
    """

    changed: bool
    registry: Registry
    changes: list[Change] = field(default_factory=list)
    feast_written: bool = False
    staged: bool = False


@dataclass(frozen=True)
class Registry:
    """What is applied, ready to be read."""

    document: RegistryDocument
    catalogue: Catalogue

    @property
    def project(self) -> str:
        return self.document.project

    @property
    def version(self) -> int:
        return self.document.version

    @cached_property
    def fingerprint(self) -> str:
        """One hash over the ordered columns of all views and the generations that feed them."""
        views = {name: [view.generation, view.fingerprint] for name, view in self.document.views.items()}
        groups = {name: [group.generation, group.fingerprint] for name, group in self.document.groups.items()}
        return fingerprint_of([self.project, views, groups])

    @cached_property
    def staged(self) -> Registry | None:
        """The staged version as if it were applied: for its job, its backfill and the checks before the switch."""
        following = self.document.next
        if following is None:
            return None
        document = msgspec.structs.replace(
            self.document, files=following.files, groups=following.groups, views=following.views, next=None
        )
        return Registry(document, load_texts(following.files))

    def life_of(self, group: str) -> str | None:
        """What the group's marker says; None where format 1 made its generation. Raises: KeyError naming the known groups."""
        return self._known(self.document.groups, "group", group).life or None

    def generation_of(self, group: str) -> int:
        """Raises: KeyError naming the known groups."""
        return self._known(self.document.groups, "group", group).generation

    def view_generation(self, view: str) -> int:
        """Raises: KeyError naming the known views."""
        return self._known(self.document.views, "view", view).generation

    def groups(self) -> list[tuple[Group, int]]:
        """Every group that a stream feeds, and its generation."""
        return [(group, self.generation_of(group.name)) for group in self.catalogue.groups()]

    def row_groups(self) -> list[tuple[RowGroup, int]]:
        """Every group that a batch source feeds, and its generation."""
        return [(group, self.generation_of(group.name)) for group in self.catalogue.row_groups()]

    def generations(self) -> dict[str, int]:
        """Generation by name of the groups that streams feed."""
        return {group.name: generation for group, generation in self.groups()}

    def lives(self) -> dict[tuple[str, int], str]:
        """By (group, generation) what its marker says, as a writer has to show it."""
        return {(name, group.generation): group.life for name, group in self.document.groups.items() if group.life}

    def _known(self, known: Mapping[str, Any], what: str, name: str) -> Any:
        if name not in known:
            raise KeyError(f"{what} {name!r} is not applied in project {self.project!r}; applied are {sorted(known)}")
        return known[name]


def local_registry(catalogue: Catalogue, project: str = PROJECT) -> Registry:
    """A catalogue as if it were applied for the first time, without a store."""
    return next_registry(None, catalogue, project)[0]


def load_registry(redis_url: str, project: str = PROJECT) -> Registry:
    """What is applied.

    Raises: StoreError when Redis cannot be reached; FeatureError when nothing is applied or the format is newer.
    """
    found = applied_or_none(redis_url, project)
    if found is None:
        raise FeatureError(f"no features are applied in project {project!r}: run `hailstream features apply`")
    return found


def applied_or_none(redis_url: str, project: str = PROJECT) -> Registry | None:
    """What is applied, None where nothing is yet. Raises: as `load_registry`."""
    from features.redis_store import read_document

    data = read_document(redis_url, registry_key(project))
    return None if data is None else decode_registry(data)


def load_history(redis_url: str, project: str = PROJECT) -> list[HistoryEntry]:
    """All applies, oldest first."""
    from features.redis_store import read_history

    entries = read_history(redis_url, history_key(project))
    return [msgspec.json.decode(entry, type=HistoryEntry) for entry in entries]


def apply_catalogue(
    folder: Path | str,
    redis_url: str,
    *,
    actor: str,
    reason: str,
    feast_dir: Path | None = None,
    project: str = PROJECT,
    now_ms: int | None = None,
    now: bool = False,
    check: Callable[[Registry | None, Catalogue], str] = lambda before, catalogue: "",
) -> ApplyReport:
    """Make what the folder declares the applied truth, in one transaction; nothing is written where nothing changed.

    Where a stream group that is fed already would get a new generation, the version is staged instead: with `now` it is
    not, and readers see missing until the new generation is fed. `feast_dir`: also write Feast's feature_store.yaml and
    registry file there; that comes first, so that an error in it leaves what is applied untouched. `check` sees what is
    applied and what is declared before something is written, at every try: what it raises is raised, what it
    returns is the history's note.
    Raises: Mistakes for wrong YAML; FeatureError where another version is staged; StoreError when Redis cannot be reached.
    """
    from features.applying import apply_folder

    return apply_folder(
        folder,
        redis_url,
        project,
        actor=actor,
        reason=reason,
        feast_dir=feast_dir,
        now_ms=now_ms,
        now=now,
        check=check,
    )


def next_registry(
    before: Registry | None,
    catalogue: Catalogue,
    project: str,
    *,
    life: str = "",
    seam_ms: int | None = None,
    again: Collection[str] = (),
) -> tuple[Registry, list[Change]]:
    """What a catalogue becomes after what is applied, and what changes. Pure.

    New generations get `life` and `seam_ms`; the groups named in `again` get one without being changed.
    """
    old = before.document if before is not None else None
    old_groups, old_views = (old.groups, old.views) if old else ({}, {})
    retired = dict(old.retired) if old else {}
    groups = {
        g.name: _applied_group(g, old_groups.get(g.name), retired, life, seam_ms, g.name in again)
        for g in (*catalogue.groups(), *catalogue.row_groups())
    }
    views: dict[str, AppliedView] = {}
    for view in catalogue.views.values():
        fed_by = [[name, groups[name].generation] for name in _groups_of(catalogue, view)]
        fingerprint = fingerprint_of([view_signature(view), fed_by])
        known = old_views.get(view.name)
        same = known is not None and known.fingerprint == fingerprint
        last = max(0 if known is None else known.generation, 0 if same else retired.get(view.name, 0))
        views[view.name] = AppliedView(generation=last if same else last + 1, fingerprint=fingerprint)
    document = RegistryDocument(
        format=FORMAT,
        project=project,
        version=1 if old is None else old.version,
        files=dict(catalogue.files),
        groups=groups,
        views=views,
    )
    changes = changes_between(old, document)
    document = msgspec.structs.replace(document, retired=retire(retired, changes))
    if old is not None and document != old:
        document = msgspec.structs.replace(document, version=old.version + 1)
    return Registry(document, catalogue), changes


def changes_between(before: RegistryDocument | None, after: RegistryDocument) -> list[Change]:
    """What is served differently, groups first."""
    groups = {} if before is None else before.groups
    views = {} if before is None else before.views
    return _changes("group", groups, after.groups) + _changes("view", views, after.views)


def retire(retired: Mapping[str, int], changes: Iterable[Change]) -> dict[str, int]:
    """Which names have used generations that are not applied, after these changes."""
    out = dict(retired)
    for change in changes:
        if change.after is not None:
            out.pop(change.name, None)
        elif change.before is not None:
            out[change.name] = max(change.before, out.get(change.name, 0))
    return out


def view_signature(view: FeatureView) -> list[Any]:
    """What a reader of the view's columns depends on."""
    columns = [
        [f.name, f.type, f.nullable, f.aggregate, text_of(f.of), text_of(f.where), f.window_ms, f.hop_ms]
        + [text_of(f.expr), f.default]
        + [[name, value] for name, value in _rare(f).items() if value is not None]
        for f in view.features
    ]
    source = None if view.source is None else view.source.name
    keys = view.key_fields[0] if len(view.key_fields) == 1 else list(view.key_fields)
    request = [dict(view.request)] if view.request else []
    return [view.entity.name, view.entity.signature, source, keys, view.max_age_ms, columns, *request]


def _rare(spec: FeatureSpec) -> dict[str, Any]:
    """What only some features have: it stands in a signature only there, so that those of others stay what they were."""
    return {"column": spec.column, "half_life_ms": spec.half_life_ms, "q": spec.q, "resolution": spec.resolution}


def decode_registry(data: bytes) -> Registry:
    """Stored bytes to a registry. Raises: FeatureError for a format that this version does not know."""
    document = msgspec.json.decode(data, type=RegistryDocument)
    if document.format not in READ_FORMATS:
        raise FeatureError(f"the registry has format {document.format}; this version reads {FORMAT}: update hailstream")
    return Registry(document, load_texts(document.files))


def registry_key(project: str) -> str:
    return f"hailstream:registry:{project}"


def history_key(project: str) -> str:
    return f"hailstream:registry:{project}:history"


def _applied_group(
    group: Group | RowGroup,
    known: AppliedGroup | None,
    retired: Mapping[str, int],
    life: str,
    seam_ms: int | None,
    again: bool,
) -> AppliedGroup:
    retain = group.retain_tiles if isinstance(group, TileGroup) else 0
    same = known is not None and known.fingerprint == group.fingerprint and retain <= known.retain_tiles
    if known is not None and same and not again:
        return msgspec.structs.replace(known, retain_tiles=retain)
    last = max(0 if known is None else known.generation, retired.get(group.name, 0))
    return AppliedGroup(
        generation=last + 1, fingerprint=group.fingerprint, retain_tiles=retain, life=life, seam_ms=seam_ms
    )


def _groups_of(catalogue: Catalogue, view: FeatureView) -> list[str]:
    rows = {group.name for group in catalogue.row_groups() if group.view == view.name}
    return sorted(rows | {catalogue.group_for(view, f).name for f in view.features if f.aggregate is not None})


def _changes(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    out = []
    for name in sorted(set(old) | set(new)):
        before = old[name].generation if name in old else None
        after = new[name].generation if name in new else None
        if before != after:
            out.append(Change(kind=kind, name=name, before=before, after=after))
    return out

"""What is applied: the catalogue, the generation of every view and group, one fingerprint; kept whole in Redis.

Engine, sink and command line read this one truth; the YAML texts travel inside, so none of them needs a file. `apply`
is idempotent: a group gets a new generation only where its tiles of before and after must not be mixed, or where a
longer window needs tiles that were not kept. Old generations are left to expire.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec

from features.loader import load_catalogue, load_texts
from features.spec import PROJECT, Catalogue, FeatureView, Group, TileGroup, fingerprint_of, text_of
from features.store import FeatureError

FORMAT: Final = 1
ATTEMPTS: Final = 20


class AppliedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """`retain_tiles` is 0 for last groups."""

    generation: int
    fingerprint: str
    retain_tiles: int


class AppliedView(msgspec.Struct, frozen=True, kw_only=True):
    generation: int
    fingerprint: str


class RegistryDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The registry as it is stored. `retired` keeps the last generation of names that are gone: they never restart."""

    format: int
    project: str
    version: int
    files: dict[str, str]
    groups: dict[str, AppliedGroup]
    views: dict[str, AppliedView]
    retired: dict[str, int] = {}


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One view or group that an apply adds, changes or drops; a generation is None where it does not exist."""

    kind: str  # "view" or "group"
    name: str
    before: int | None
    after: int | None


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Who applied what, when and why."""

    time_ms: int
    actor: str
    reason: str
    version: int
    fingerprint: str
    changes: list[Change]


@dataclass(frozen=True, kw_only=True)
class ApplyReport:
    """What an apply did. Not `changed`: everything was applied already and nothing was written."""

    changed: bool
    registry: Registry
    changes: list[Change] = field(default_factory=list)
    feast_written: bool = False


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

    def generation_of(self, group: str) -> int:
        """Raises: KeyError naming the known groups."""
        return self._known(self.document.groups, "group", group).generation

    def view_generation(self, view: str) -> int:
        """Raises: KeyError naming the known views."""
        return self._known(self.document.views, "view", view).generation

    def groups(self) -> list[tuple[Group, int]]:
        """Every group and its generation."""
        return [(group, self.generation_of(group.name)) for group in self.catalogue.groups()]

    def generations(self) -> dict[str, int]:
        """Generation by group name."""
        return {name: group.generation for name, group in self.document.groups.items()}

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
    from features.redis_store import read_document

    data = read_document(redis_url, registry_key(project))
    if data is None:
        raise FeatureError(f"no features are applied in project {project!r}: run `hailstream features apply`")
    return decode_registry(data)


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
) -> ApplyReport:
    """Make what the folder declares the applied truth, in one transaction; nothing is written where nothing changed.

    `feast_dir`: also write Feast's feature_store.yaml and registry file there; that comes first, so that an error in it
    leaves what is applied untouched.
    Raises: Mistakes for wrong YAML; StoreError when Redis cannot be reached.
    """
    from features.redis_store import read_document, swap_document

    catalogue = load_catalogue(folder)
    for _ in range(ATTEMPTS):
        stored = read_document(redis_url, registry_key(project))
        before = None if stored is None else decode_registry(stored)
        after, changes = next_registry(before, catalogue, project)
        feast_written = feast_dir is not None and _write_feast(after, redis_url, feast_dir)
        if before is not None and after.document == before.document:
            return ApplyReport(changed=False, registry=before, feast_written=feast_written)
        entry = HistoryEntry(
            time_ms=int(time.time() * 1000) if now_ms is None else now_ms,
            actor=actor,
            reason=reason,
            version=after.version,
            fingerprint=after.fingerprint,
            changes=changes,
        )
        encoded = msgspec.json.encode(after.document)
        names = (registry_key(project), history_key(project))
        if swap_document(redis_url, names, stored, encoded, msgspec.json.encode(entry)):
            return ApplyReport(changed=True, registry=after, changes=changes, feast_written=feast_written)
    raise FeatureError(f"project {project!r} is being changed by somebody else; tried {ATTEMPTS} times, try again")


def next_registry(before: Registry | None, catalogue: Catalogue, project: str) -> tuple[Registry, list[Change]]:
    """What a catalogue becomes after what is applied, and what changes. Pure."""
    old = before.document if before is not None else None
    old_groups, old_views = (old.groups, old.views) if old else ({}, {})
    retired = dict(old.retired) if old else {}
    groups = {g.name: _applied_group(g, old_groups.get(g.name), retired) for g in catalogue.groups()}
    views: dict[str, AppliedView] = {}
    for view in catalogue.views.values():
        fed_by = [[name, groups[name].generation] for name in _groups_of(catalogue, view)]
        fingerprint = fingerprint_of([view_signature(view), fed_by])
        known = old_views.get(view.name)
        same = known is not None and known.fingerprint == fingerprint
        last = known.generation if known is not None else retired.get(view.name, 0)
        views[view.name] = AppliedView(generation=last if same else last + 1, fingerprint=fingerprint)
    changes = _changes("group", old_groups, groups) + _changes("view", old_views, views)
    for change in changes:
        if change.after is None and change.before is not None:
            retired[change.name] = change.before
        elif change.after is not None:
            retired.pop(change.name, None)
    document = RegistryDocument(
        format=FORMAT,
        project=project,
        version=1 if old is None else old.version,
        files=dict(catalogue.files),
        groups=groups,
        views=views,
        retired=retired,
    )
    if old is not None and document != old:
        document = msgspec.structs.replace(document, version=old.version + 1)
    return Registry(document, catalogue), changes


def view_signature(view: FeatureView) -> list[Any]:
    """What a reader of the view's columns depends on."""
    columns = [
        [f.name, f.type, f.nullable, f.aggregate, text_of(f.of), text_of(f.where), f.window_ms, f.hop_ms]
        + [text_of(f.expr), f.default]
        for f in view.features
    ]
    return [view.entity.name, view.entity.type, view.source.name, view.key_field, view.max_age_ms, columns]


def decode_registry(data: bytes) -> Registry:
    """Stored bytes to a registry. Raises: FeatureError for a format that this version does not know."""
    document = msgspec.json.decode(data, type=RegistryDocument)
    if document.format != FORMAT:
        raise FeatureError(f"the registry has format {document.format}; this version reads {FORMAT}: update hailstream")
    return Registry(document, load_texts(document.files))


def registry_key(project: str) -> str:
    return f"hailstream:registry:{project}"


def history_key(project: str) -> str:
    return f"hailstream:registry:{project}:history"


def _applied_group(group: Group, known: AppliedGroup | None, retired: Mapping[str, int]) -> AppliedGroup:
    retain = group.retain_tiles if isinstance(group, TileGroup) else 0
    last = known.generation if known is not None else retired.get(group.name, 0)
    same = known is not None and known.fingerprint == group.fingerprint and retain <= known.retain_tiles
    return AppliedGroup(generation=last if same else last + 1, fingerprint=group.fingerprint, retain_tiles=retain)


def _groups_of(catalogue: Catalogue, view: FeatureView) -> list[str]:
    return sorted({catalogue.group_for(view, f).name for f in view.features if f.aggregate is not None})


def _changes(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    out = []
    for name in sorted(set(old) | set(new)):
        before = old[name].generation if name in old else None
        after = new[name].generation if name in new else None
        if before != after:
            out.append(Change(kind=kind, name=name, before=before, after=after))
    return out


def _write_feast(registry: Registry, redis_url: str, feast_dir: Path) -> bool:
    """Feast's files, unless they are those of this registry already: importing feast takes seconds."""
    marker = feast_dir / "hailstream.fingerprint"
    wanted = f"{registry.fingerprint} {redis_url}\n"
    if marker.is_file() and marker.read_text() == wanted:
        return False
    from features.feast_store import write_feast_repo

    write_feast_repo(registry, redis_url, feast_dir)
    marker.write_text(wanted)
    return True

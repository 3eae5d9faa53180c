"""What a request reads, compiled once: which keys, and how their bytes become columns, statuses and ages.

`compile_read_plan` resolves views, groups and generations; `ReadPlan.store_keys` lists the keys of one MGET (heartbeats
first, then per role and group one key per entity); `ReadPlan.assemble` turns the answers into a FeatureBatch per role.
Nothing here knows Redis: features/redis_store.py and features/store.py bring the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from features.derived import derive, evaluation_order
from features.expr import Column
from features.merge import WindowRead, compile_window, finish, reduce_window
from features.merge_machine import NO_TILE, MergePlan, TileMachine, compile_merge
from features.packing import GroupKeys, KeyEncoder, unpack_last, unpack_tiles
from features.row_packing import NO_ROW_MS, unpack_rows
from features.rows import UNKNOWN_AGE_MS, FeatureBatch, Status, empty_column
from features.spec import Catalogue, FeatureSpec, FeatureView, Key, LastGroup, RowGroup, TileGroup
from features.window import window_tiles

if TYPE_CHECKING:
    from features.registry import Registry


Requests = Mapping[str, Mapping[str, Column]]  # by role and name of a request field


@dataclass(frozen=True)
class TileRead:
    """`merge` is the same for the compiled form, None where that form does not do it."""

    group: TileGroup
    names: GroupKeys
    windows: tuple[WindowRead, ...]
    merge: MergePlan | None


@dataclass(frozen=True)
class LastRead:
    """`features`: (place in the view, spec, place of its field in the group)."""

    group: LastGroup
    names: GroupKeys
    features: tuple[tuple[int, FeatureSpec, int], ...]


@dataclass(frozen=True)
class RowRead:
    """`features`: (place in the view, spec, place of its column in the rows)."""

    group: RowGroup
    names: GroupKeys
    features: tuple[tuple[int, FeatureSpec, int], ...]


@dataclass(frozen=True)
class RolePlan:
    """One role's view. `derived` holds the places of its expressions, each behind what it reads; `places` all by name."""

    role: str
    view: FeatureView
    generation: int
    encoder: KeyEncoder
    reads: tuple[TileRead | LastRead | RowRead, ...]
    derived: tuple[int, ...]
    places: Mapping[str, int]


@dataclass(frozen=True)
class ReadPlan:
    """Immutable: a plan stays right until another registry is applied."""

    project: str
    fingerprint: str
    roles: tuple[RolePlan, ...]
    heartbeats: tuple[bytes, ...]

    def store_keys(self, project: str, keys: Mapping[str, Sequence[Key]]) -> list[bytes]:
        """The keys of one MGET, heartbeats first.

        Raises: KeyError for a role without keys, ValueError for a project that the plan was not made for.
        """
        if project != self.project:
            raise ValueError(f"this plan reads project {self.project!r}, the store holds {project!r}")
        names = list(self.heartbeats)
        for role in self.roles:
            if role.role not in keys:
                raise KeyError(f"no keys for role {role.role!r} (view {role.view.name}); got {sorted(keys)}")
            encoded = role.encoder.encode_many(keys[role.role])
            for read in role.reads:
                suffix = read.names.suffix
                names.extend([key + suffix for key in encoded])
        return names

    def assemble(
        self,
        values: Sequence[bytes | None],
        keys: Mapping[str, Sequence[Key]],
        as_of_ms: int,
        machine: TileMachine | None = None,
        *,
        request: Requests | None = None,
    ) -> dict[str, FeatureBatch]:
        """The answers to `store_keys`, in its order, as one batch per role. With `machine` tiles are merged by it, to the
        same bits. `request`: by role and name the request fields of its view, a column of as many rows as keys, or of one.

        Raises: ValueError naming request fields that are not there.
        """
        at = len(self.heartbeats)
        beats = {
            name: None if value is None else int(value)
            for name, value in zip(self.heartbeats, values[:at], strict=True)
        }
        out: dict[str, FeatureBatch] = {}
        for role in self.roles:
            num_rows = len(keys[role.role])
            asked = _asked(role, request)
            assembly = _Assembly(role, num_rows, as_of_ms, machine, asked)
            for read in role.reads:
                part, at = values[at : at + num_rows], at + num_rows
                if isinstance(read, TileRead):
                    assembly.tiles(read, part, beats[read.names.heartbeat])
                elif isinstance(read, LastRead):
                    assembly.last(read, part, beats[read.names.heartbeat])
                else:
                    assembly.rows(read, part)
            through = [beats[read.names.heartbeat] for read in role.reads]
            known = [beat for beat in through if beat is not None]
            out[role.role] = assembly.batch(min(known) if known and len(known) == len(through) else None)
        return out


def compile_read_plan(registry: Registry, roles: Mapping[str, str]) -> ReadPlan:
    """Resolve role -> view name against what is applied.

    Raises: KeyError naming the known views.
    """
    compiled = tuple(_role_plan(registry, role, view_name) for role, view_name in roles.items())
    beats = dict.fromkeys(read.names.heartbeat for role in compiled for read in role.reads)
    return ReadPlan(registry.project, registry.fingerprint, compiled, tuple(beats))


def _role_plan(registry: Registry, role: str, view_name: str) -> RolePlan:
    catalogue = registry.catalogue
    view = catalogue.views.get(view_name)
    if view is None:
        raise KeyError(f"role {role!r}: view {view_name!r} is not applied; applied are {sorted(catalogue.views)}")
    tiles, lasts = grouped_features(catalogue, view)
    columns = [
        (place, spec, catalogue.row_group_of(view).index_of(spec))
        for place, spec in enumerate(view.features)
        if spec.column is not None
    ]

    def names(group: TileGroup | LastGroup | RowGroup) -> GroupKeys:
        return GroupKeys(registry.project, group.name, registry.generation_of(group.name))

    reads: list[TileRead | LastRead | RowRead] = []
    for group, windows in tiles:
        reads.append(TileRead(group, names(group), windows, compile_merge(group, windows)))
    reads += [LastRead(group, names(group), features) for group, features in lasts]
    if columns:
        rows = catalogue.row_group_of(view)
        reads.append(RowRead(rows, names(rows), tuple(columns)))
    return RolePlan(
        role,
        view,
        registry.view_generation(view.name),
        KeyEncoder(view.entity),
        tuple(reads),
        evaluation_order(view),
        {spec.name: place for place, spec in enumerate(view.features)},
    )


def grouped_features(
    catalogue: Catalogue, view: FeatureView
) -> tuple[
    list[tuple[TileGroup, tuple[WindowRead, ...]]], list[tuple[LastGroup, tuple[tuple[int, FeatureSpec, int], ...]]]
]:
    """A view's aggregates by the group that feeds them: its windows, or (place in the view, spec, place in the group)."""
    tiles: dict[str, tuple[TileGroup, dict[int, list[tuple[int, FeatureSpec]]]]] = {}
    lasts: dict[str, tuple[LastGroup, list[tuple[int, FeatureSpec, int]]]] = {}
    for place, spec in enumerate(view.features):
        if spec.aggregate is None:
            continue
        group = catalogue.group_for(view, spec)
        if isinstance(group, TileGroup):
            assert spec.window_ms is not None
            tiles.setdefault(group.name, (group, {}))[1].setdefault(spec.window_ms, []).append((place, spec))
        else:
            lasts.setdefault(group.name, (group, []))[1].append((place, spec, group.index_of(spec)))
    windows = [
        (group, tuple(compile_window(group, window_ms, mine) for window_ms, mine in by_window.items()))
        for group, by_window in tiles.values()
    ]
    return windows, [(group, tuple(features)) for group, features in lasts.values()]


def _asked(role: RolePlan, request: Requests | None) -> Mapping[str, Column]:
    """The request fields of a role's view."""
    given = {} if request is None else request.get(role.role, {})
    missing = sorted(set(role.view.request) - set(given))
    if missing:
        raise ValueError(f"role {role.role!r}: view {role.view.name} needs the request fields {', '.join(missing)}")
    return given


class _Assembly:
    """One role's columns while they are filled. R rows, F features."""

    def __init__(
        self,
        plan: RolePlan,
        num_rows: int,
        as_of_ms: int,
        machine: TileMachine | None,
        request: Mapping[str, Column],
    ) -> None:
        self.request = request
        self.plan, self.num_rows, self.as_of_ms, self.machine = plan, num_rows, as_of_ms, machine
        self.specs = plan.view.features
        self.everywhere, self.nowhere = np.ones(num_rows, dtype=bool), np.zeros(num_rows, dtype=bool)
        self.cells_FR = np.zeros((len(self.specs), num_rows), dtype="<i8")
        self.doubles_FR = self.cells_FR.view("<f8")
        self.columns: dict[str, NDArray[Any]] = {}
        self.valid: dict[str, NDArray[np.bool_]] = {}
        self.statuses = np.full((num_rows, len(self.specs)), Status.MISSING, dtype=np.uint8)
        self.ages_ms = np.full((num_rows, len(self.specs)), UNKNOWN_AGE_MS, dtype=np.int64)

    def tiles(self, read: TileRead, values: Sequence[bytes | None], beat_ms: int | None) -> None:
        """Windowed features. The age of all of them is that of the heartbeat."""
        age_ms = UNKNOWN_AGE_MS if beat_ms is None else max(self.as_of_ms - beat_ms, 0)
        stale = age_ms > self.plan.view.max_age_ms
        newest, merged_windows = self._merge(read, values)
        for window, merged in zip(read.windows, merged_windows, strict=True):
            first, _ = window_tiles(self.as_of_ms, window.window_ms, read.group.hop_ms)
            # Asked about a time whose tiles have made room for newer ones: what was there is not known any more.
            gone = newest > first + read.group.retain_tiles - 1
            for place, spec, partials in window.features:
                column, known = finish(spec, [merged[p] for p in partials], read.group, partials)
                self.ages_ms[:, place] = age_ms
                if beat_ms is None or stale:
                    self._put(place, column, self.nowhere, Status.MISSING if beat_ms is None else Status.STALE)
                elif gone.any():
                    there = ~gone if known is None else known & ~gone
                    self._put(
                        place,
                        column,
                        there,
                        np.where(gone, Status.MISSING, np.where(there, Status.PRESENT, Status.NULL)),
                    )
                elif known is None:
                    self._put(place, column, self.everywhere, Status.PRESENT)
                else:
                    self._put(place, column, known, np.where(known, Status.PRESENT, Status.NULL))

    def _merge(
        self, read: TileRead, values: Sequence[bytes | None]
    ) -> tuple[NDArray[np.int64], list[Mapping[int, NDArray[Any]]]]:
        """(R,) newest tile of each key, NO_TILE for none; per window the merged partials, (R,) each."""
        plan = read.merge
        if self.machine is not None and plan is not None:
            cells, newest = self.machine.merge(values, plan.at(self.as_of_ms), plan.weights, plan.num_rows)
            doubles = cells.view("<f8")
            return newest, [
                {p: doubles[row] if is_double else cells[row] for p, (row, is_double) in rows.items()}
                for rows in plan.rows
            ]
        lists = [value or b"" for value in values]
        cells = unpack_tiles(read.group, b"".join(lists))
        width_bytes = cells.shape[1] * cells.itemsize
        num_tiles = np.fromiter((len(one) // width_bytes for one in lists), dtype=np.int64, count=len(lists))
        rows = np.repeat(np.arange(self.num_rows), num_tiles)
        newest = np.full(self.num_rows, NO_TILE)
        heads = cells[(np.cumsum(num_tiles) - num_tiles)[num_tiles > 0], 0]  # lists are newest first
        newest[num_tiles > 0] = heads // read.group.rows_per_tile
        merged: list[Mapping[int, NDArray[Any]]] = []
        for window in read.windows:
            first, last = window_tiles(self.as_of_ms, window.window_ms, read.group.hop_ms)
            merged.append(reduce_window(cells, rows, self.num_rows, first, last, window))
        return newest, merged

    def last(self, read: LastRead, values: Sequence[bytes | None], beat_ms: int | None) -> None:
        """Last values: each has an age of its own. One that was never seen is missing, also of a live view."""
        stored = [None if value is None else unpack_last(read.group, value) for value in values]
        for place, spec, field in read.features:
            column = empty_column(spec.type, self.num_rows)
            statuses = np.full(self.num_rows, Status.MISSING, dtype=np.uint8)
            for row, cells in enumerate(stored):
                cell = None if cells is None else cells[field]
                if cell is None:
                    continue
                time_ms, column[row] = cell
                age_ms = max(self.as_of_ms - time_ms, 0)
                self.ages_ms[row, place] = age_ms
                statuses[row] = Status.STALE if age_ms > self.plan.view.max_age_ms else Status.PRESENT
            self._put(place, column, statuses == Status.PRESENT, statuses)

    def rows(self, read: RowRead, values: Sequence[bytes | None]) -> None:
        """Columns of rows: all of a row have its age. A key without a row is missing."""
        columns, valid_FR, event_ms = unpack_rows(read.group, values)
        there = event_ms != NO_ROW_MS
        age_ms = np.where(there, np.maximum(self.as_of_ms - event_ms, 0), UNKNOWN_AGE_MS)
        stale = there & (age_ms > self.plan.view.max_age_ms)
        for place, _, field in read.features:
            known = valid_FR[field] & ~stale
            reason = np.where(stale, Status.STALE, np.where(there, Status.NULL, Status.MISSING))
            self.ages_ms[:, place] = age_ms
            self._put(place, columns[field], known, np.where(known, Status.PRESENT, reason))

    def batch(self, applied_through_ms: int | None) -> FeatureBatch:
        for place in self.plan.derived:
            self._derive(place)
        return FeatureBatch(
            view=self.plan.view.name,
            generation=self.plan.generation,
            applied_through_ms=applied_through_ms,
            names=tuple(spec.name for spec in self.specs),
            types=tuple(spec.type for spec in self.specs),
            columns=self.columns,
            valid=self.valid,
            statuses=self.statuses,
            ages_ms=self.ages_ms,
            cells_FR=self.cells_FR,
        )

    def _derive(self, place: int) -> None:
        found = derive(self.specs[place], self.specs, self.plan.places, self, self.request)
        self.ages_ms[:, place] = found.ages_ms
        if found.known.all():
            self._put(place, found.values, self.everywhere, Status.PRESENT)
        else:
            self._put(place, found.values, found.known, found.statuses)

    def _put(self, place: int, column: NDArray[Any], known: NDArray[np.bool_], statuses: NDArray[Any] | Status) -> None:
        """File a finished column; the declared default stands in where nothing is known."""
        spec = self.specs[place]
        self.statuses[:, place] = statuses
        if known is not self.everywhere and not known.all():
            column = column.copy()
            if spec.default is None:
                column[~known] = "" if spec.type == "string" else 0
            else:
                column[~known] = spec.default
                self.statuses[~known, place] = Status.DEFAULT
                known = self.everywhere
        if spec.type in ("int", "double"):
            cells = self.cells_FR[place] if spec.type == "int" else self.doubles_FR[place]
            cells[:] = column
            column = cells
        elif spec.type == "bool":
            self.cells_FR[place] = column
        self.columns[spec.name], self.valid[spec.name] = column, known

"""What an edit really does: both versions of a catalogue see the same events, and what is stored and served is compared.

A is what is applied, with everything that it stored; B is the edited version, with the generations that the registry gives
it. Three answers decide the class of a feature:

    A            what A serves
    meant        what B serves once it has been fed all events from the start
    at once      what B finds right after the apply, among what A stored
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from features.aggregate import replay
from features.edits import BACKFILL, BREAKING, DESTRUCTIVE, SAFE, worst
from features.follows import group_of
from features.loader import load_texts
from features.packing import GroupKeys
from features.read_plan import compile_read_plan
from features.registry import Registry, local_registry, next_registry
from features.spec import Catalogue, Entity, Key, Source, TileGroup
from features.store import InMemoryStore
from features.window import DAY_MS, HOUR_MS, MINUTE_MS

Event = dict[str, Any]
Served = dict[tuple[str, str], list[Any]]  # by (view, feature): one (type, value, status) per time and key
NUM_KEYS = 3
END_MS = 28 * HOUR_MS + 7 * MINUTE_MS + 11_000
WORDS = ("nyc", "a  b", "a b", "x")


def random_events(catalogue: Catalogue, seed: int, num_events: int) -> dict[str, list[Event]]:
    """Events by source name, in the order of arrival: late, early, twice, at equal times, on tiles' edges, with nulls.

    All have arrived before END_MS. A quarter each happened in the last quarter of an hour, the last hours, the last day, and
    around the old edge of a window.
    """
    rng, literals = random.Random(seed), _literals(catalogue)
    windows = sorted(
        {(f.window_ms, f.hop_ms) for v in catalogue.views.values() for f in v.features if f.window_ms and f.hop_ms}
    )
    out = {}
    for source in catalogue.streams.values():
        events: list[Event] = []
        for i in range(num_events):
            window_ms, hop_ms = rng.choice(windows)
            spread_ms = (15 * MINUTE_MS, 5 * HOUR_MS, 30 * HOUR_MS, 2 * hop_ms)[i % 4]
            edge_ms = window_ms - rng.choice([0, 80 * MINUTE_MS])  # as seen from END_MS, and from the time after it
            at_ms = END_MS - rng.randrange(spread_ms) - (max(edge_ms, 0) if i % 4 == 3 else 0)
            if rng.random() < 0.2:
                at_ms = at_ms // MINUTE_MS * MINUTE_MS - rng.randrange(2)
            if events and rng.random() < 0.3:
                at_ms = int(rng.choice(events)[source.event_time])
            lag_ms = rng.choice([rng.randrange(60_000), rng.randrange(9 * MINUTE_MS), rng.randrange(90 * MINUTE_MS)])
            lag_ms = -rng.randrange(3 * MINUTE_MS) if rng.random() < 0.15 else lag_ms
            event = {name: _value(name, kind, rng, i, literals) for name, kind in source.schema.items()}
            event |= {
                source.event_id: f"{rng.choice('aB~')}{i}",
                source.event_time: at_ms,
                source.ingest_time: at_ms + lag_ms,
            }
            events.append(event)
        for event in rng.sample(events, num_events // 10):
            lag_ms = rng.choice([500, 5 * MINUTE_MS, 20 * MINUTE_MS])
            events.append({**event, source.ingest_time: int(event[source.ingest_time]) + lag_ms})
        events = [event for event in events if int(event[source.ingest_time]) < END_MS]
        out[source.name] = sorted(events, key=lambda event: int(event[source.ingest_time]))
    return out


@dataclass
class Truth:
    """`features` has the class of every feature of A, and of every new one of B; `names` that of all that has a name or is
    stored. `mixed` are features for which old and new tiles meet under one generation, `unmoved` those that are not found
    any more although their group has kept its generation."""

    features: dict[tuple[str, str], str]
    names: dict[str, str]
    mixed: set[tuple[str, str]]
    unmoved: set[tuple[str, str]]

    @property
    def risk(self) -> str | None:
        return worst([*self.features.values(), *self.names.values()])


class Applied:
    """A catalogue that is applied and has seen all events."""

    def __init__(self, files: Mapping[str, str], seeds: Sequence[int], num_events: int) -> None:
        self.catalogue = load_texts(files)
        self.registry = local_registry(self.catalogue)
        self.events = [random_events(self.catalogue, seed, num_events) for seed in seeds]
        self.stores = [_fed(self.registry, events) for events in self.events]
        self._served: dict[tuple[int, tuple[int, ...]], Served] = {}

    def served(self, i: int, times_ms: tuple[int, ...]) -> Served:
        if (i, times_ms) not in self._served:
            self._served[i, times_ms] = _served(self.registry, self.stores[i], times_ms)
        return self._served[i, times_ms]


def truth_of(before: Applied, after: Catalogue, *, feed_on: bool = True) -> Truth:
    """Both versions on the same events. `feed_on`: also find where new tiles meet old ones."""
    registry = next_registry(before.registry, after, before.registry.project)[0]
    truth = Truth({}, _names(before.catalogue, after), set(), set())
    for i, events in enumerate(before.events):
        _lost_tiles(before, i, after, truth)
        times_ms = _times(before.catalogue, after)
        was, meant = before.served(i, times_ms), _served(registry, _fed(registry, events), times_ms)
        at_once = _served(registry, before.stores[i], times_ms)
        fed_on = _served(registry, _fed(registry, events, _copy(before.stores[i])), times_ms) if feed_on else meant
        for place in {*was, *meant}:
            risk = _risk(place, was, meant, at_once, before.catalogue, after)
            truth.features[place] = worst([risk, truth.features.get(place, SAFE)]) or SAFE
            fed_by = _generation(registry, place) if place in was and risk == BACKFILL else None
            if fed_by is not None and fed_by == _generation(before.registry, place):
                truth.unmoved.add(place)
            if place in meant and fed_on[place] != meant[place]:
                truth.mixed.add(place)
    return truth


def differs(before: Applied, after: Catalogue) -> bool:
    """Whether some value of a feature that both have is another one: the costly half of `truth_of` left out."""
    registry, times_ms = (
        next_registry(before.registry, after, before.registry.project)[0],
        _times(before.catalogue, after),
    )
    for i, events in enumerate(before.events):
        was, meant = before.served(i, times_ms), _served(registry, _fed(registry, events), times_ms)
        if any(was[place] != meant[place] for place in was.keys() & meant.keys()):
            return True
    return False


def _risk(
    place: tuple[str, str], was: Served, meant: Served, at_once: Served, before: Catalogue, after: Catalogue
) -> str:
    view, name = place
    if place not in meant:
        return DESTRUCTIVE
    if place in was:
        old, new = before.views[view].feature(name), after.views[view].feature(name)
        if was[place] != meant[place] or old.served_type != new.served_type:
            return BREAKING
    return SAFE if at_once[place] == meant[place] else BACKFILL


def _generation(registry: Registry, place: tuple[str, str]) -> tuple[str, int] | None:
    """Group and generation that feed a feature; None of an expression."""
    view = registry.catalogue.views[place[0]]
    group = group_of(registry.catalogue, view, view.feature(place[1]))
    return None if group is None else (group.name, registry.generation_of(group.name))


def _names(before: Catalogue, after: Catalogue) -> dict[str, str]:
    out = {}
    for what in ("entities", "sources", "views"):
        for name in getattr(before, what).keys() - getattr(after, what).keys():
            out[f"{what} {name}"] = DESTRUCTIVE
    return out


def _lost_tiles(before: Applied, i: int, after: Catalogue, truth: Truth) -> None:
    """Groups whose bytes nobody can reach any more, and tiles that a shorter span no longer has, as Redis would keep them."""
    now = {group.name: group for group in after.groups()}
    for old in before.catalogue.groups():
        suffix = GroupKeys(before.registry.project, old.name, before.registry.generation_of(old.name)).suffix
        stored = before.stores[i]
        keys = [name for name in (*stored._tiles, *stored._last) if name.endswith(suffix)]
        new = now.get(old.name)
        if new is None:
            if keys:
                truth.names[f"group {old.name}"] = DESTRUCTIVE
        elif isinstance(old, TileGroup) and isinstance(new, TileGroup):
            for name in keys:
                tiles = np.array(list(stored._tiles[name])) // old.rows_per_tile
                was, left = (tiles[tiles > tiles.max() - group.retain_tiles].min() for group in (old, new))
                if left > was:
                    truth.names[f"tiles of {old.name}"] = DESTRUCTIVE


def _fed(registry: Registry, events: Mapping[str, list[Event]], store: InMemoryStore | None = None) -> InMemoryStore:
    """All events, each source by its name; of one that was renamed, those of the source that is gone."""
    store = store or InMemoryStore(registry.project)
    sources = registry.catalogue.streams
    for source in sources.values():
        orphans = [name for name in events if name not in sources]
        mine = events.get(source.name) or (events[orphans[0]] if orphans else [])
        typed = [_typed(event, source) for event in mine]
        replay(store, registry.catalogue, registry.generations(), source, sorted(typed, key=lambda e: int(e[source.ingest_time])))  # fmt: skip
    return store


def _typed(event: Event, source: Source) -> Event:
    """The event as this version's schema has it: what it does not know is null, an int is a double where it says so."""
    out = dict(event)
    for name, kind in source.schema.items():
        value = event.get(name)
        out[name] = float(value) if kind.startswith("double") and value is not None else value
    return out


def _served(registry: Registry, store: InMemoryStore, times_ms: Sequence[int]) -> Served:
    views = registry.catalogue.views
    plan = compile_read_plan(registry, {name: name for name in views})
    out: Served = {(view.name, spec.name): [] for view in views.values() for spec in view.features}
    keys = {view.name: _keys(view.entity) for view in views.values()}
    for as_of_ms in times_ms:
        for name, batch in store.read(plan, keys, as_of_ms).items():
            for f, feature in enumerate(batch.names):
                kind, valid = batch.types[f], batch.valid[feature].tolist()
                values = zip(valid, batch.columns[feature].tolist(), batch.statuses[:, f].tolist(), strict=True)
                out[name, feature] += [(kind, value if known else None, status) for known, value, status in values]
    return out


def _keys(entity: Entity) -> list[Key]:
    """Of a key of several columns every combination of two values each."""
    columns = [[f"k-{i}" if column.type == "string" else i for i in range(NUM_KEYS)] for column in entity.keys]
    return [*columns[0]] if len(columns) == 1 else [*product(*(values[:2] for values in columns))]


def _times(before: Catalogue, after: Catalogue) -> tuple[int, ...]:
    """Times at and behind the end of the events (what the past held is another question: it has made room), and around
    the moment at which the values of a view become stale; at last all of them are."""
    times = {END_MS, END_MS + 20_123, END_MS + 49_000, END_MS + 80 * MINUTE_MS, END_MS + 10 * DAY_MS}
    for name in before.views.keys() & after.views.keys():
        old, new = before.views[name].max_age_ms, after.views[name].max_age_ms
        if old != new:
            times.add(END_MS + (old + new) // 2)
    return tuple(sorted(times))


def _copy(store: InMemoryStore) -> InMemoryStore:
    copy = InMemoryStore(store._project)
    copy._tiles = {name: dict(tiles) for name, tiles in store._tiles.items()}
    copy._last, copy._numbers = dict(store._last), dict(store._numbers)
    return copy


def _literals(catalogue: Catalogue) -> tuple[str, ...]:
    """The words that the catalogue's conditions speak of, so that each of them holds at times."""
    texts = " ".join(text for name, text in catalogue.files.items() if name.startswith("views/"))
    return (*sorted(set(re.findall(r"'([^']*)'", texts))), "other")


def _value(name: str, kind: str, rng: random.Random, i: int, literals: Sequence[str]) -> Any:
    if kind.endswith("?") and rng.random() < 0.2:
        return None
    kind = kind.removesuffix("?")
    if kind == "string":
        if name.endswith("_id"):
            return f"k-{_key(rng)}"
        return rng.choice(literals if name in ("kind", "event_type", "status") else WORDS)
    if kind == "double":
        return rng.randrange(0, 80) / 4
    if name.endswith("_ms"):
        return rng.randrange(28 * HOUR_MS)
    return _key(rng) if name.endswith("zone") else rng.randrange(-20, 300)


def _key(rng: random.Random) -> int:
    """One that happens often, one at times, one seldom, and one that is never asked for."""
    return rng.choices(range(NUM_KEYS + 1), weights=(60, 30, 3, 10))[0]

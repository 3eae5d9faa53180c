"""A catalogue with every aggregate, random streams for it, and the brute-force value of each feature.

What a feature counts stands here twice, as an expression and as a Python function, so that the expression language is
no part of what brute force says.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from features.aggregate import Aggregator, State, contribution
from features.buckets import LIMIT
from features.expr import SourceText, compile_expr, parse_type
from features.loader import load_texts
from features.rows import FeatureBatch, Status
from features.spec import Catalogue, FeatureSpec, FeatureView, TileGroup
from tests import naive

Event = dict[str, Any]
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
KEYS = ["a", "b", "é"]
FILES = {
    "entities.yaml": "thing: {join_key: thing, type: string}\n",
    "sources.yaml": """
things:
  topic: trip_events
  event_time: event_time_ms
  ingest_time: ingest_time_ms
  event_id: event_id
  disorder: 2m
  future: 30s
  dedup: {by: event_id, horizon: 2h}
  schema: {event_id: string, thing: "string?", event_time_ms: int, ingest_time_ms: int, i: "int?", d: "double?", ok: "bool?", s: "string?"}
""",
    "views/things.yaml": """
view: things
entity: thing
source: things
max_age: 2d
features:
  n: {aggregate: count, window: 1m, hop: 1m}
""",
}


@dataclass(frozen=True)
class Asked:
    """What is asked of an event, as an expression and as a function."""

    text: str
    function: Callable[[Event], Any]


I = Asked("i", lambda e: e["i"])  # noqa: E741
D = Asked("d", lambda e: e["d"])
S = Asked("s", lambda e: e["s"])
SMALL = Asked("i != null && i > -100000 && i < 100000", lambda e: e["i"] is not None and -100_000 < e["i"] < 100_000)
B = Asked("ok", lambda e: e["ok"])
OK = Asked("ok ?? false", lambda e: e["ok"] is True)
TENTH = Asked("d != null ? d * 0.1 : null", lambda e: None if e["d"] is None else e["d"] * 0.1)
RATIO = Asked("d != null ? d / (d - d) : null", lambda e: None if e["d"] is None else math.nan)  # never a finite number


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One feature as it is declared, with what brute force needs."""

    name: str
    aggregate: str
    of: Asked | None = None
    where: Asked | None = None
    window_ms: int | None = None
    hop_ms: int | None = None
    half_life_ms: int | None = None
    q: float | None = None
    resolution: float | None = None

    def spec(self, catalogue: Catalogue) -> FeatureSpec:
        names = {name: parse_type(kind) for name, kind in catalogue.sources["things"].schema.items()}
        of, where = (
            None if asked is None else compile_expr(SourceText(asked.text), names) for asked in (self.of, self.where)
        )
        kind = {"count": "int"}.get(self.aggregate) or ("double" if of is None or of.type.kind == "double" else "int")
        if self.aggregate in ("avg", "stddev", "decayed_sum", "quantile"):
            kind = "double"
        if self.aggregate in ("first", "last"):
            assert of is not None
            kind = of.type.kind
        return FeatureSpec(
            name=self.name, type=kind, nullable=self.aggregate not in ("count", "sum", "decayed_sum"),
            aggregate=self.aggregate, of=of, where=where, window_ms=self.window_ms, hop_ms=self.hop_ms,
            half_life_ms=self.half_life_ms, q=self.q, resolution=self.resolution,
        )  # fmt: skip


def windowed() -> Iterator[Feature]:
    """Every windowed aggregate of ints and doubles, with and without `where`, over several windows and two hops."""
    windows = [(MINUTE, MINUTE), (5 * MINUTE, MINUTE), (40 * SECOND, 10 * SECOND)]
    for at, (window, hop) in enumerate(windows):
        common = {"window_ms": window, "hop_ms": hop}
        yield Feature(name=f"count_{at}", aggregate="count", **common)
        yield Feature(name=f"count_ok_{at}", aggregate="count", where=OK, **common)
        yield Feature(name=f"count_nan_{at}", aggregate="count", of=RATIO, **common)
        yield Feature(name=f"sum_nan_{at}", aggregate="sum", of=RATIO, **common)
        for label, of in (("i", I), ("d", D), ("t", TENTH)):
            for aggregate in ("count", "sum", "avg", "min", "max"):
                yield Feature(name=f"{aggregate}_{label}_{at}", aggregate=aggregate, of=of, **common)
            for resolution in (1.0, 0.001):
                name = f"stddev_{label}_{at}_{resolution}"
                yield Feature(name=name, aggregate="stddev", of=of, resolution=resolution, **common)
            half_life = (30 * SECOND, 90 * SECOND, 7_777)[at]
            name = f"decayed_{label}_{at}"
            yield Feature(name=name, aggregate="decayed_sum", of=of, half_life_ms=half_life, **common)
            q, resolution = (0.5, 0.95, 0.07)[at], (1.0, 0.5, 0.001)[at]
            name = f"quantile_{label}_{at}"
            yield Feature(name=name, aggregate="quantile", of=of, q=q, resolution=resolution, **common)
        yield Feature(
            name=f"quantile_99_{at}", aggregate="quantile", of=I, q=0.99, resolution=(1.0, 0.5, 0.001)[at], **common
        )
        for aggregate in ("sum", "avg", "min", "stddev", "quantile"):
            options = {"resolution": 1.0} if aggregate in ("stddev", "quantile") else {}
            options |= {"q": 0.25} if aggregate == "quantile" else {}
            name = f"{aggregate}_small_{at}"
            yield Feature(name=name, aggregate=aggregate, of=I, where=SMALL, **options, **common)


def unwindowed() -> Iterator[Feature]:
    for aggregate in ("first", "last"):
        for label, of in (("i", I), ("d", D), ("s", S), ("ok", B)):
            yield Feature(name=f"{aggregate}_{label}", aggregate=aggregate, of=of)
        yield Feature(name=f"{aggregate}_small", aggregate=aggregate, of=I, where=SMALL)


FEATURES: Mapping[str, Feature] = {feature.name: feature for feature in (*windowed(), *unwindowed())}


def catalogue(features: Sequence[Feature] = tuple(FEATURES.values())) -> Catalogue:
    """One view with these features."""
    plain = load_texts(FILES)
    view = replace(plain.views["things"], features=tuple(feature.spec(plain) for feature in features))
    return Catalogue(entities=plain.entities, sources=plain.sources, views={"things": view}, files=plain.files)


def random_ints(rng: random.Random) -> int:
    return rng.choice([
        rng.randrange(-50, 50), rng.randrange(-10**6, 10**6), rng.choice([0, 1, -1, 15, 16, 17, LIMIT - 1, 1 - LIMIT, LIMIT, -LIMIT]),
        rng.choice([2**53 + 1, 2**62, -(2**62), 2**63 - 1, -(2**63)]) if rng.random() < 0.3 else rng.randrange(1_000),
        10**9 + rng.randrange(2),
    ])  # fmt: skip


def random_doubles(rng: random.Random) -> float:
    return rng.choice([
        float(rng.randrange(-50, 50)), rng.uniform(-1, 1), rng.gauss(0, 1e6), 1e9 + rng.randrange(2), -0.0,
        rng.choice([math.nan, math.inf, -math.inf, 1e300, -1e300, 5e-324, 4.4e9, -4398046511.1035]),
    ])  # fmt: skip


def random_stream(rng: random.Random, num_events: int, *, span_ms: int = 6 * MINUTE) -> list[Event]:
    """Events in order of arrival, around time 0: late, from the future, twice, at equal times, on tile edges, incomplete."""
    start_ms, events = -span_ms // 2 + rng.randrange(-MINUTE, MINUTE), []
    for number in range(num_events):
        event_ms = start_ms + rng.randrange(span_ms)
        if rng.random() < 0.25:
            event_ms = event_ms // (10 * SECOND) * 10 * SECOND - rng.randrange(2)
        if events and rng.random() < 0.25:
            event_ms = rng.choice(events)["event_time_ms"]
        lag_ms = rng.choice([0, 1, rng.randrange(5_000), rng.randrange(3 * MINUTE), -rng.randrange(40 * SECOND)])
        events.append({
            "event_id": f"{rng.choice(['e', 'E', 'é', '~'])}{rng.randrange(10**6)}-{number}",
            "thing": None if rng.random() < 0.1 else rng.choice(KEYS),
            "event_time_ms": event_ms,
            "ingest_time_ms": event_ms + lag_ms,
            "i": None if rng.random() < 0.2 else random_ints(rng),
            "d": None if rng.random() < 0.2 else random_doubles(rng),
            "ok": rng.choice([True, False, None]),
            "s": None if rng.random() < 0.2 else rng.choice(["", "x", "πέντε"]),
        })  # fmt: skip
    for event in rng.sample(events, num_events // 8):
        events.append({**event, "ingest_time_ms": event["ingest_time_ms"] + rng.randrange(2_000)})
    return sorted(events, key=lambda event: event["ingest_time_ms"])


def used_events(events: Sequence[Event], view: FeatureView) -> list[Event]:
    """Those that count, as brute force says, with their key."""
    used, _ = naive.used_once(events, disorder_ms=view.source.disorder_ms, future_ms=view.source.future_ms)
    return [{**event, "key": event["thing"]} for event in used]


def brute_force(feature: Feature, used: Sequence[Event], key: str, as_of_ms: int) -> tuple[Any, float]:
    """(value, how far a right answer may be from it). Whole numbers are exact; a sum of doubles has the bound n·ε·Σ|x|."""
    of = (lambda e: 1) if feature.of is None else feature.of.function
    where = (lambda e: True) if feature.where is None else lambda e: feature.where.function(e) is True
    if feature.aggregate in ("first", "last"):
        found = naive.last_value(used, key, as_of_ms, of=of, where=where, oldest=feature.aggregate == "first")
        return (None if found is None else found[1]), 0.0
    assert feature.window_ms is not None and feature.hop_ms is not None
    timed = naive.window_values(
        used, key, as_of_ms, window_ms=feature.window_ms, hop_ms=feature.hop_ms, where=where,
        of=lambda e: None if naive.known(of(e)) is None else (e["event_time_ms"], of(e)),
    )  # fmt: skip
    values = [value for _, value in timed]
    rounding = max(len(values), 1) * 2.0**-52 * math.fsum(abs(value) for value in values)
    if feature.aggregate == "decayed_sum":
        assert feature.half_life_ms is not None
        per_tile: dict[int, int] = {}
        if any(isinstance(value, int) for value in values):  # each tile's sum wraps before it decays
            for event_ms, value in timed:
                tile = math.floor(event_ms / feature.hop_ms)
                per_tile[tile] = naive.wrapped(per_tile.get(tile, 0) + value)
            timed = [(tile * feature.hop_ms, value) for tile, value in per_tile.items()]
        return naive.decayed_sum(timed, as_of_ms, feature.hop_ms, feature.half_life_ms), rounding
    if feature.aggregate == "stddev":
        assert feature.resolution is not None
        value = naive.standard_deviation(values, feature.resolution)
        return value, 0.0 if value is None else 8 * 2.0**-53 * value
    if feature.aggregate == "quantile":
        assert feature.resolution is not None and feature.q is not None
        value = naive.quantile(values, feature.q, feature.resolution)
        return value, 0.0 if value is None else abs(value) / 32
    return _plain(feature.aggregate, values, rounding)


def _plain(aggregate: str, values: list[Any], rounding: float) -> tuple[Any, float]:
    if aggregate == "count":
        return len(values), 0.0
    is_int = all(isinstance(value, int) for value in values)
    total = naive.wrapped(sum(values)) if is_int else math.fsum(values)
    if aggregate == "sum":
        return total, 0.0 if is_int else rounding
    if not values:
        return None, 0.0
    if aggregate == "avg":
        return float(total) / len(values), 0.0 if is_int else rounding
    value = min(values) if aggregate == "min" else max(values)
    # The extreme of the type itself is how an empty tile is written: it reads as no value.
    empty = value == (2**63 - 1 if aggregate == "min" else -(2**63))
    return (None if empty else value), 0.0


def differences(
    batch: FeatureBatch, features: Mapping[str, Feature], used: Sequence[Event], keys: Sequence[str], as_of_ms: int
) -> list[str]:
    """What is not as brute force says, in words; and a status that does not fit its value."""
    out: list[str] = []
    for row, key in enumerate(keys):
        got = batch.row(row)
        for place, name in enumerate(batch.names):
            want, tolerance = brute_force(features[name], used, key, as_of_ms)
            status = Status(batch.statuses[row, place])
            value = got[name]
            if want is None or value is None:
                same = want is None and value is None and status in (Status.NULL, Status.MISSING)
            else:
                same = status == Status.PRESENT and abs(value - want) <= tolerance if tolerance else value == want
                same = same and status == Status.PRESENT
            if not same:
                out.append(
                    f"{name} of {key!r} at {as_of_ms}: {value!r} ({status.name}), brute force {want!r} ± {tolerance}"
                )
    return out


def by_algebra(group: TileGroup, events: list[Event]) -> dict[tuple[str, int], State]:
    """Each row of a tile group, by (key, number of the row)."""
    aggregator, out = Aggregator(group), dict[tuple[str, int], State]()
    for event in events:
        if event["thing"] is not None:
            at = event["thing"], aggregator.row_of(event)
            out[at] = aggregator.add(out.get(at) or aggregator.start(), event)
    return out


def assert_same_tiles(group: TileGroup, got: Mapping[tuple[str, int], State], events: Sequence[Event]) -> None:
    """Every row is the algebra's: whole numbers and extremes exactly, sums of doubles to their bound n·ε·Σ|x|."""
    want, aggregator = by_algebra(group, events), Aggregator(group)
    sizes: dict[tuple[str, int], list[float]] = {at: [0.0] * len(group.partials) for at in want}
    for event in events:
        if event["thing"] is not None:
            mine = sizes[event["thing"], aggregator.row_of(event)]
            for place, partial in enumerate(group.partials):
                mine[place] += abs(contribution(partial, event))
    assert got.keys() == want.keys()
    for at, state in want.items():
        assert got[at][0] == state[0]
        for place, partial in enumerate(group.partials):
            a, b = got[at][1 + place], state[1 + place]
            if partial.type == "double" and partial.function == "sum":
                bound = state[0] * 2.0**-52 * sizes[at][place]
                assert abs(a - b) <= bound, (at, partial, a, b)
            else:
                assert a == b and (partial.type == "double" or type(a) is int), (at, partial, a, b)

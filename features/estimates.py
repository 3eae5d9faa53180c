"""How much a group of tiles or values takes, in Redis and in the job's state: formulas, and what a store says of keys.

    Redis   keys × (100 + key + allocated(tiles a key × bytes of a record)), and where there are tiles once more the same for
            the counts of tiles that have left their span (features/lua/write_tiles.lua), 16 bytes each for two days
    state   keys × tiles a key that the job still corrects × bytes of an accumulator row

Redis's part is what Redis 6.2 and 7 take (tests/features/test_estimates.py holds it to a real server); the state's is a
bound to plan with: Flink's heap and RocksDB differ by more than the formula's detail. Deduplication is not in it: it depends
on the rate of records, not on keys. Read `features/plan.py` next for who asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from features.packing import CELL_BYTES, GroupKeys, KeyEncoder, record_cells
from features.spec import PROJECT, Entity, Group, Key, LastGroup, RowGroup, TileGroup
from features.window import DAY_MS

REDIS_KEY_BYTES: Final = 100  # entry in the dictionary and in that of expiries, object, string heads
STATE_ENTRY_BYTES: Final = 96  # entry of a state map with its key, namespace and time to live
STATE_CELL_BYTES: Final = 24  # one boxed accumulator
TEXT_BYTES: Final = 16  # a text whose length nobody knows: a key, an event id, a last value
MAX_OUTAGE_MS: Final = DAY_MS  # the job's own default (pipelines/jobs/options.py)
SAMPLED_KEYS: Final = 4_000
COUNTED_SPAN_MS: Final = 2 * DAY_MS  # features/redis_writes.py
COUNTED_BYTES: Final = 16
APPENDED: Final = 1.4
BUCKETS_PER_TILE: Final = 8  # with events, where nobody has looked
_LAST_HEAD_BYTES: Final = 17
_ROW_HEAD_BYTES: Final = 19


@dataclass(frozen=True, kw_only=True)
class StoredGroup:
    """What a store holds of one group: `keys` entities, `value_bytes` each on average."""

    keys: int
    value_bytes: float


@dataclass(frozen=True, kw_only=True)
class GroupSize:
    """What one group takes. `keys` None: nobody knows, and then neither the bytes.

    `keys_from`: "option", "store" (counted there), "entity" (as many as another group of the same entity has) or
    "unknown". `units_per_key` are tiles, or 1 for a row of values; not `measured`, they are the most that there can be.
    """

    group: str
    keys: int | None
    keys_from: str
    record_bytes: int
    units_per_key: float
    measured: bool
    redis_bytes: int | None
    state_bytes: int | None


AnyGroup = Group | RowGroup


def record_bytes(group: AnyGroup) -> int:
    """One tile, or one row of values, as it is stored."""
    if isinstance(group, TileGroup):
        return record_cells(group) * CELL_BYTES
    values = [CELL_BYTES + (TEXT_BYTES if field.type == "string" else 0) for field in group.fields]
    if isinstance(group, LastGroup):
        return sum(_LAST_HEAD_BYTES + TEXT_BYTES + value for value in values)
    return _ROW_HEAD_BYTES + -(-len(values) // 8) + sum(values)


def redis_bytes(group: AnyGroup, keys: int, key_bytes: int, units_per_key: float) -> int:
    """Memory of that many entities: their strings, each with an expiry, as Redis allocates them."""
    each = float(REDIS_KEY_BYTES + key_bytes + _allocated(units_per_key * record_bytes(group)))
    if isinstance(group, TileGroup):
        rows_per_tile = units_per_key / group.retain_tiles
        num_counted = COUNTED_SPAN_MS / group.hop_ms * rows_per_tile * (1 + 1 / 16)  # cut at every eighth
        grown = _allocated(8 + COUNTED_BYTES * num_counted) * APPENDED  # by appending, and Redis makes room ahead
        each += REDIS_KEY_BYTES + key_bytes + 8 + grown
    return round(keys * each)


def state_bytes(group: AnyGroup, keys: int, units_per_key: float, *, max_outage_ms: int = MAX_OUTAGE_MS) -> int:
    """Accumulators that the job keeps: a tile for its hop, the disorder and an outage after its last event. Values without
    tiles need none: they are merged in the store."""
    if not isinstance(group, TileGroup):
        return 0
    kept_ms = group.hop_ms + group.source.disorder_ms + max_outage_ms
    open_rows = max(1.0, (kept_ms // group.hop_ms + 1) * units_per_key / group.retain_tiles)
    return round(keys * open_rows * (STATE_ENTRY_BYTES + STATE_CELL_BYTES * record_cells(group)))


def size_of(
    group: AnyGroup,
    project: str,
    stored: Mapping[str, StoredGroup],
    known: Sequence[AnyGroup],
    *,
    keys: int | None = None,
    max_outage_ms: int = MAX_OUTAGE_MS,
) -> GroupSize:
    """What a group will take, after what a store holds now of the `known` groups (those applied, by the same names).

    Without tiles to look at, every tile of the span is taken to hold an event: a bound. Rows of a bucketed group are its units.
    """
    unit, before = record_bytes(group), next((other for other in known if other.name == group.name), None)
    held = stored.get(group.name)
    counted, keys_from = _keys_of(group, stored, known) if keys is None else (keys, "option")
    units, measured = 1.0, not isinstance(group, TileGroup)
    if isinstance(group, TileGroup):
        units = float(group.retain_tiles * (1 if group.buckets is None else BUCKETS_PER_TILE))
        if held is not None and held.keys and isinstance(before, TileGroup):
            measured = True
            units = min(
                units, held.value_bytes / record_bytes(before) * max(1.0, group.retain_tiles / before.retain_tiles)
            )
    key_bytes = len(KeyEncoder(group.entity).encode(_sample_key(group.entity))) + len(
        GroupKeys(project, group.name, 1).suffix
    )
    return GroupSize(
        group=group.name,
        keys=counted,
        keys_from=keys_from,
        record_bytes=unit,
        units_per_key=round(units, 2),
        measured=measured,
        redis_bytes=None if counted is None else redis_bytes(group, counted, key_bytes, units),
        state_bytes=None if counted is None else state_bytes(group, counted, units, max_outage_ms=max_outage_ms),
    )


def stored_groups(
    redis_url: str, groups: Sequence[tuple[AnyGroup, int]], project: str = PROJECT, *, sample: int = SAMPLED_KEYS
) -> dict[str, StoredGroup]:
    """What Redis holds of each (group, generation): counted whole where the server has few keys, else from `sample` random
    ones. Raises: StoreError."""
    from features.redis_client import address_of, connect, store_errors
    from features.redis_keys import COUNTED, entity_key_length, group_of_key

    wanted = {(group.name, generation) for group, generation in groups}
    with store_errors(address_of(redis_url)), connect(redis_url, 5.0) as client:
        total = int(client.dbsize())
        if total <= sample:
            names, scale = list(client.scan_iter(count=1_000)), 1.0
        else:
            pipeline = client.pipeline(transaction=False)
            for _ in range(sample):
                pipeline.randomkey()
            names, scale = [name for name in pipeline.execute() if name is not None], total / sample
        lists = [n for n in names if entity_key_length(n) is not None and not n.endswith(COUNTED)]
        found = [(name, place) for name in lists if (place := group_of_key(name, project)) in wanted]
        pipeline = client.pipeline(transaction=False)
        for name, _ in found:
            pipeline.strlen(name)
        lengths = pipeline.execute() if found else []
    by_group: dict[str, list[int]] = {}
    for (_, place), length in zip(found, lengths, strict=True):
        by_group.setdefault(place[0], []).append(int(length))
    return {
        group: StoredGroup(keys=round(len(mine) * scale), value_bytes=sum(mine) / len(mine))
        for group, mine in by_group.items()
    }


def _keys_of(group: AnyGroup, stored: Mapping[str, StoredGroup], known: Sequence[AnyGroup]) -> tuple[int | None, str]:
    held = stored.get(group.name)
    if held is not None and held.keys:
        return held.keys, "store"
    related = [stored[o.name].keys for o in known if o.entity.name == group.entity.name and o.name in stored]
    return (max(related), "entity") if related else (None, "unknown")


def _sample_key(entity: Entity) -> Key:
    values = tuple("x" * TEXT_BYTES if column.type == "string" else 0 for column in entity.keys)
    return values[0] if len(values) == 1 else values


def _allocated(size: float) -> int:
    """What the allocator takes for so many bytes: four sizes between each power of two and the next, 16 at least."""
    wanted = int(size) + 8  # the string's own head and end
    if wanted <= 128:
        return -(-wanted // 16) * 16
    step = 1 << ((wanted - 1).bit_length() - 3)
    return -(-wanted // step) * step

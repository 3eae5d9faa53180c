"""Entities and sources: keys of several columns, streams with a history, batch sources, what is said of columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from features.loader import load_texts
from features.spec import BatchSource, Catalogue, ColumnFacts, KeyColumn, Source
from tests.features.test_loader import ENTITIES, SOURCES, VIEW, mistakes, write

PAIRED = ENTITIES + "pair: {keys: {zone: int32, driver_id: string}, description: A driver in a zone.}\n"
RATINGS = """\
ratings:
  parquet: ratings/*.parquet
  event_time: rated_at
  ingest_time: made_at
  valid_to: until
  schema:
    driver_id: string
    stars: {type: 'double?', unit: ratio, min: 0, max: 5}
"""


def load(entities: str = ENTITIES, sources: str = SOURCES, **views: str) -> Catalogue:
    texts = {f"views/{name}.yaml": text for name, text in views.items()}
    return load_texts({"entities.yaml": entities, "sources.yaml": sources, **texts})


def test_a_key_has_its_columns_in_the_order_in_which_they_are_written() -> None:
    catalogue = load(PAIRED, v=VIEW.replace("entity: driver", "entity: pair"))
    pair = catalogue.entities["pair"]
    assert pair.keys == (KeyColumn(name="zone", type="int32"), KeyColumn(name="driver_id", type="string"))
    (group,) = catalogue.tile_groups()
    assert (group.name, group.key_fields) == ("pair.trips.60000", ("zone", "driver_id"))
    record = {"zone": 7, "driver_id": "d-1"}
    assert group.key_of(record) == (7, "d-1")
    assert group.key_of({**record, "driver_id": None}) is None, "a record without a part of the key belongs to no tile"
    assert group.key_of({**record, "zone": 2**31}) is None, "a number beyond 32 bits is no key of 32"


def test_the_columns_of_a_key_can_be_called_otherwise_in_the_source() -> None:
    entities = ENTITIES + "pair: {keys: {place: int, driver_id: string}}\n"
    catalogue = load(entities, v=VIEW.replace("entity: driver", "entity: pair\nkey: {place: zone}"))
    (group,) = catalogue.tile_groups()
    assert (group.name, group.key_fields) == ("pair.trips.60000.zone.driver_id", ("zone", "driver_id"))


def test_one_column_is_the_same_however_it_is_written() -> None:
    short = load(v=VIEW).tile_groups()[0]
    long = load(ENTITIES.replace("{join_key: driver_id, type: string}", "{keys: {driver_id: string}}"), v=VIEW)
    assert (long.tile_groups()[0].name, long.tile_groups()[0].fingerprint) == (short.name, short.fingerprint)


def test_the_order_and_types_of_a_key_are_part_of_the_fingerprint() -> None:
    def fingerprint(keys: str) -> str:
        catalogue = load(f"pair: {{keys: {{{keys}}}}}\n", v=VIEW.replace("entity: driver", "entity: pair"))
        return catalogue.tile_groups()[0].fingerprint

    found = {
        fingerprint(k)
        for k in ("zone: int, driver_id: string", "driver_id: string, zone: int", "zone: int32, driver_id: string")
    }
    assert len(found) == 3


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("a: {keys: {zone: integer}}", "3:18", "unknown type 'integer' (did you mean 'int'?)"),
        ("a: {keys: {zone: int}}", "3:11", "join key 'zone' already belongs to entity 'zone'"),
        ("a: {keys: {z: int, y: int}}\nb: {keys: {y: int, z: int}}", "4:11", "keys y, z already belong to entity 'a'"),
        ("a: {keys: {z: int}, join_key: y}", "3:31", "'join_key' does not go with 'keys'"),
        ("a: {keys: {}}", "3:11", "entity 'a' has no key"),
        ("a: {keys: zone}", "3:11", "keys must be a mapping of names"),
        ("a: {join_keys: zone}", "3:5", "entity 'a' has no field 'join_keys' (did you mean 'join_key'?)"),
        ("a: {join_key: Zone ID, type: int}", "3:15", "'Zone ID' is not a name"),
    ],
)
def test_each_mistake_of_an_entity_is_named_at_its_place(tmp_path: Path, text: str, place: str, message: str) -> None:
    found = mistakes(write(tmp_path / "c", entities=ENTITIES + text + "\n", v=VIEW))
    assert any(item.startswith(f"entities.yaml:{place}: ") and message in item for item in found), found


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("key: {zon: zone}", "v.yaml:3:7: the key of entity 'pair' is 'zone, driver_id' alone (did you mean 'zone'?)"),
        ("key: zone", "v.yaml:3:6: the key of entity 'pair' is 'zone, driver_id' alone (write key: {zone: column, driver_id: column})"),
        ("key: {zone: zoen}", "v.yaml:3:13: source 'trips' has no column 'zoen' to take the key from (did you mean 'zone'?)"),
        ("key: {zone: kind}", "v.yaml:3:13: column 'kind' is string, the key of entity 'pair' is int32"),
        ("key: {zone: [zone]}", "v.yaml:3:13: 'zone' is one column of the source"),
    ],
)  # fmt: skip
def test_each_mistake_of_a_composite_key_is_named_at_its_place(tmp_path: Path, key: str, message: str) -> None:
    view = VIEW.replace("entity: driver", f"entity: pair\n{key}")
    found = mistakes(write(tmp_path / "c", entities=PAIRED, v=view))
    assert len(found) == 1 and found[0].startswith(message), found


def test_a_batch_source_is_known_by_its_files() -> None:
    ratings = load(sources=SOURCES + RATINGS).sources["ratings"]
    assert ratings == BatchSource(
        name="ratings",
        path="ratings/*.parquet",
        schema={"driver_id": "string", "stars": "double?"},
        event_time="rated_at",
        ingest_time="made_at",
        valid_to="until",
        facts={"stars": ColumnFacts(unit="ratio", low=0.0, high=5.0)},
    )


def test_a_stream_has_a_history_and_facts_of_its_columns() -> None:
    sources = SOURCES.replace("  topic:", "  history: archive/**/*.parquet\n  topic:")
    source = load(sources=sources.replace("cents: int?", "cents: {type: 'int?', unit: cents, min: 0}")).sources["trips"]
    assert isinstance(source, Source)
    assert (source.history, source.schema["cents"]) == ("archive/**/*.parquet", "int?")
    assert source.facts == {"cents": ColumnFacts(unit="cents", low=0.0)}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("parquet: ratings/*.parquet", "parquets: x", "has no field 'parquets' (did you mean 'parquet'?)"),
        ("parquet: ratings/*.parquet", "parquet: ratings/", "'parquet' is a glob of Parquet files, not 'ratings/'"),
        ("  event_time: rated_at\n", "", "source 'ratings' needs 'event_time'"),
        ("  valid_to: until", "  topic: t", "source 'ratings' has no field 'topic'"),
        ("min: 0, max: 5", "min: 6, max: 5", "no value of 'stars' is 6 at least and 5 at most"),
        ("unit: ratio", "unit: ratios", "unknown unit 'ratios' (did you mean 'ratio'?)"),
        ("driver_id: string", "driver_id: {type: string, min: 1}", "'min' does not go with string: it is for numbers"),
        ("min: 0", "min: low", "min low is not a number"),
        ("min: 0", "mni: 0", "column 'stars' has no field 'mni' (did you mean 'min'?)"),
        ("type: 'double?', ", "", "column 'stars' needs 'type'"),
        ("driver_id: string", "driver_id: list(string)", "column 'driver_id' cannot be a list(string)"),
        ("driver_id: string", "driver_id: string\n    rated_at: string", "column 'rated_at' is string; event_time must be int"),
    ],
)  # fmt: skip
def test_each_mistake_of_a_source_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in RATINGS
    found = mistakes(write(tmp_path / "c", sources=SOURCES + RATINGS.replace(old, new), v=VIEW))
    assert any(message in item for item in found), found


@pytest.mark.parametrize("text", ["int ", " int", "int ?", '"int "', '" int? "', "'int\t'"])
def test_spaces_around_a_type_do_not_make_it_another(text: str) -> None:
    """A type list with a stray space once became a string elsewhere."""
    source = load(sources=SOURCES.replace("cents: int?", f"cents: {text}")).sources["trips"]
    assert source.schema["cents"].removesuffix("?") == "int"


@pytest.mark.parametrize("text", ["INT32_LIST", '"INT32_LIST "', "Int", "integer", "int??", "i nt"])
def test_an_unknown_type_is_refused_and_never_taken_for_a_string(tmp_path: Path, text: str) -> None:
    found = mistakes(write(tmp_path / "c", sources=SOURCES.replace("cents: int?", f"cents: {text}"), v=VIEW))
    assert len(found) == 1 and "unknown type" in found[0] and "known: " in found[0], found

"""Bytes of keys and rows: Feast's own key bytes (golden), and every number back as it was."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.coalesce import coalesce_last, coalesce_tiles
from features.loader import SHIPPED, load_catalogue
from features.packing import GroupKeys, KeyEncoder, pack_tiles, pack_value, unpack_last, unpack_tiles, unpack_value
from features.spec import Entity, KeyColumn, single_key

CATALOGUE = load_catalogue(SHIPPED)
TILES = next(g for g in CATALOGUE.tile_groups() if g.hop_ms == 300_000)
LAST = next(g for g in CATALOGUE.last_groups() if g.source.name == "driver_events")


def test_int_keys_have_the_bytes_that_feast_writes() -> None:
    golden = "01000000 02000000 09000000 6472697665725f6964 04000000 08000000 e903000000000000"
    encoder = KeyEncoder(single_key(name="driver", join_key="driver_id", type="int"))
    assert encoder.encode(1001) == bytes.fromhex(golden.replace(" ", ""))
    assert encoder.encode(-(2**31) - 1).endswith((-(2**31) - 1).to_bytes(8, "little", signed=True))
    assert encoder.encode(np.int64(7)) == encoder.encode(7)


def test_string_keys_carry_their_utf8_length() -> None:
    encoder = KeyEncoder(single_key(name="driver", join_key="driver_id", type="string"))
    assert encoder.encode("dé").endswith(b"\x02\0\0\0\x03\0\0\0d\xc3\xa9")


def test_int32_keys_have_the_bytes_that_feast_writes() -> None:
    golden = "01000000 02000000 04000000 7a6f6e65 03000000 04000000 fbffffff"
    encoder = KeyEncoder(single_key("zone", "zone", "int32"))
    assert encoder.encode(-5) == bytes.fromhex(golden.replace(" ", ""))
    with pytest.raises(OverflowError):
        encoder.encode(2**31)


def test_keys_of_several_columns_are_written_in_the_order_of_their_names() -> None:
    golden = (
        "03000000 02000000 04000000 63697479 02000000 06000000 646f726d6572 02000000 04000000 7a6f6e65 "
        "02000000 03000000 c3a963 04000000 08000000 ffffffffffffffff 03000000 04000000 07000000"
    )
    columns = (("zone", "int32"), ("city", "string"), ("dormer", "int"))
    entity = Entity(name="e", keys=tuple(KeyColumn(name=name, type=kind) for name, kind in columns))
    encoder = KeyEncoder(entity)
    assert encoder.encode((7, "éc", -1)) == bytes.fromhex(golden.replace(" ", ""))
    for wrong in (7, (7, "éc"), (7, "éc", -1, 1), [7, "éc", -1], ("éc", 7, -1), (7, None, -1)):
        with pytest.raises(TypeError, match="entity e"):
            encoder.encode(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("type_name", "key"),
    [
        ("int32", "1"),
        ("int32", True),
        ("int", "1"),
        ("int", True),
        ("int", 1.0),
        ("int", None),
        ("string", 1),
        ("string", None),
    ],
)
def test_a_key_of_another_type_is_refused_not_coerced(type_name: str, key: object) -> None:
    with pytest.raises(TypeError, match="entity e"):
        KeyEncoder(single_key(name="e", join_key="k", type=type_name)).encode(key)  # type: ignore[arg-type]


def test_projects_groups_and_generations_never_share_a_key() -> None:
    suffixes = {GroupKeys(p, g, n).suffix for p in ("a", "ab") for g in ("b", "bc") for n in (1, 11)}
    assert len(suffixes) == 8


@given(
    st.lists(
        st.tuples(st.integers(-(2**53), 2**53), st.integers(1, 2**53), st.none() | st.integers(-(2**53), 2**53)),
        max_size=20,
    )
)
def test_tiles_come_back_with_identities_for_nulls(rows: list[tuple[int, int, int | None]]) -> None:
    tiles, counts = (np.array([row[i] for row in rows], dtype=np.int64) for i in (0, 1))
    given_ = np.array([row[2] for row in rows], dtype=object)
    cells = unpack_tiles(TILES, pack_tiles(TILES, tiles, counts, [given_] * len(TILES.partials)).tobytes())
    assert cells[:, 0].tolist() == tiles.tolist() and cells[:, 1].tolist() == counts.tolist()
    for p, partial in enumerate(TILES.partials):
        assert cells[:, 2 + p].tolist() == [partial.identity if row[2] is None else row[2] for row in rows]


def test_nan_in_a_float_column_is_null_and_whole_floats_become_exact_ints() -> None:
    cells = pack_tiles(TILES, np.array([1, 2]), np.array([1, 1]), [np.array([np.nan, 2.0**53])] * len(TILES.partials))
    for p, partial in enumerate(TILES.partials):
        assert cells[:, 2 + p].tolist() == [partial.identity, 2**53]


def test_torn_records_and_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="whole records"):
        unpack_tiles(TILES, b"\0" * 9)
    with pytest.raises(ValueError, match="partials"):
        pack_tiles(TILES, np.array([1]), np.array([1]), [])
    with pytest.raises(ValueError, match="do not hold"):
        unpack_last(LAST, b"\0\0\0\0")


@pytest.mark.parametrize(
    ("type_name", "value"), [("int", -5), ("double", -0.5), ("bool", True), ("bool", False), ("string", "zoné")]
)
def test_last_values_come_back(type_name: str, value: object) -> None:
    back = unpack_value(type_name, pack_value(type_name, value))
    assert back == value and type(back) is type(value)


def test_a_batch_is_one_record_a_tile_newest_first() -> None:
    cells = np.array([[1, 1], [3, 1], [1, 2], [2, 9], [1, 1]], dtype=np.int64)
    batch = coalesce_tiles(["a", "a", "a", "b", "a"], cells)
    assert batch.keys == ["a", "b"]
    assert [np.frombuffer(r, "<i8").reshape(-1, 2).tolist() for r in batch.records] == [[[3, 1], [1, 2]], [[2, 9]]]
    assert batch.rows.tolist() == [1, 2, 3]
    assert coalesce_tiles([], np.empty((0, 2), dtype=np.int64)).keys == []


def test_last_rows_are_chosen_per_field_by_time_then_id_bytes() -> None:
    values = {
        field.name: [10 * (f + 1), None, 7] if field.type == "int" else ["x", "y", None]
        for f, field in enumerate(LAST.fields)
    }
    batch = coalesce_last(LAST, ["a", "a", "a"], np.array([5, 5, 4]), ["é", "z", "zz"], values)
    (cells,) = (unpack_last(LAST, cell) for cell in batch.cells)
    by_type = {field.type: cell for field, cell in zip(LAST.fields, cells, strict=True)}
    assert by_type["string"] == (5, "x")  # "é" is two bytes above "z"
    assert by_type["int"][0] == 5 and by_type["int"][1] in (10, 20)

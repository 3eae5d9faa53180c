"""The compiled merge against a plain loop over unpacked records."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import numpy as np
import pytest

from features import merge_machine as mm
from features.merge import WindowRead, compile_window, reduce_window
from features.spec import TileGroup
from features.window import window_tiles
from tests.features.aggregate_cases import KEYS, random_stream
from tests.features.test_merge import by_group_and_window, columns, states

INT_MAX, INT_MIN = 2**63 - 1, -(2**63)
FUNCTIONS = {
    mm.ADD_INT: (0, False),
    mm.ADD_DOUBLE: (0.0, True),
    mm.MIN_INT: (INT_MAX, False),
    mm.MAX_INT: (INT_MIN, False),
    mm.MIN_DOUBLE: (float("inf"), True),
    mm.MAX_DOUBLE: (float("-inf"), True),
}
CELLS = list(FUNCTIONS)  # cell 2 + i of a record is for the i-th function
RECORD = 2 + len(CELLS)


@pytest.fixture(scope="module")
def machine() -> mm.TileMachine:
    return mm.compiled()


def slow(records: Sequence[tuple[int, ...]], first: int, last: int, function: int, cell: int) -> int | float:
    """Oldest tile first, as Python adds and compares; integers wrap as 64 bits do."""
    inside = [record[cell] for record in reversed(records) if first <= record[0] <= last]
    total, is_double = FUNCTIONS[function]
    for value in inside:
        if function in (mm.ADD_INT, mm.ADD_DOUBLE):
            total = total + value
        else:
            total = min(total, value) if function in (mm.MIN_INT, mm.MIN_DOUBLE) else max(total, value)
    return total if is_double else (int(total) + 2**63) % 2**64 - 2**63


def random_records(rng: np.random.Generator, newest: int) -> list[tuple[int, ...]]:
    """Newest first, with gaps."""
    tiles = sorted(
        rng.choice(np.arange(newest - 40, newest + 1), int(rng.integers(0, 30)), replace=False), reverse=True
    )
    return [
        (
            int(tile),
            int(rng.integers(1, 9)),
            *(
                float(rng.normal() * 10 ** int(rng.integers(-3, 12)))
                if FUNCTIONS[f][1]
                else int(rng.integers(INT_MIN, INT_MAX))
                for f in CELLS
            ),
        )
        for tile in tiles
    ]


def packed(records: Sequence[tuple[int, ...]]) -> bytes:
    layout = "<qq" + "".join("d" if FUNCTIONS[f][1] else "q" for f in CELLS)
    return b"".join(struct.pack(layout, *record) for record in records)


@pytest.mark.parametrize("newest", [5, -3, 1_700_000, -1_700_000])
def test_every_function_over_every_window_is_bit_for_bit_the_plain_loops(machine: mm.TileMachine, newest: int) -> None:
    rng = np.random.default_rng(abs(newest))
    stored = [random_records(rng, newest) for _ in range(50)]
    values = [None if i % 7 == 3 else packed(records) for i, records in enumerate(stored)]
    windows = [(newest - 4, newest), (newest - 20, newest), (newest - 39, newest - 2), (newest + 1, newest + 9)]
    operations = [
        [(f, 2 + at, w * len(CELLS) + at, FUNCTIONS[f][0], 0) for at, f in enumerate(CELLS)]
        for w in range(len(windows))
    ]
    cells, tiles = machine.merge(
        values, mm.plan_array(RECORD, windows, operations), np.zeros(1), len(windows) * len(CELLS)
    )
    for key, records in enumerate(stored):
        known = [] if values[key] is None else records
        assert tiles[key] == (known[0][0] if known else mm.NO_TILE)
        for w, (first, last) in enumerate(windows):
            for at, function in enumerate(CELLS):
                row = cells[w * len(CELLS) + at]
                found = row.view("<f8")[key] if FUNCTIONS[function][1] else row[key]
                assert found == slow(known, first, last, function, 2 + at), (key, w, function)


@pytest.mark.parametrize("seed", range(4))
def test_the_compiled_merge_of_random_streams_is_numpys_bit_for_bit(machine: mm.TileMachine, seed: int) -> None:
    rng = random.Random(seed)
    events = random_stream(rng, 150)
    compared = 0
    for group, windows in windows_by_group().values():
        plan = mm.compile_merge(group, windows)
        assert (plan is None) == (group.buckets is not None), group.name
        if plan is None:
            continue
        cells, keys = columns(group, states(group, events))
        values = [cells[keys == k].tobytes() or None for k in range(len(KEYS))]
        for as_of_ms in (0, 59_999, -60_000, *(rng.choice(events)["event_time_ms"] for _ in range(4))):
            merged, _ = machine.merge(values, plan.at(as_of_ms), plan.weights, plan.num_rows)
            for window, rows in zip(windows, plan.rows, strict=True):
                wanted = reduce_window(
                    cells, keys, len(KEYS), *window_tiles(as_of_ms, window.window_ms, group.hop_ms), window
                )
                assert rows.keys() == wanted.keys()
                for slot, (row, is_double) in rows.items():
                    got = merged[row].view("<f8") if is_double else merged[row]
                    assert np.array_equal(got, wanted[slot], equal_nan=is_double), (group.name, as_of_ms, slot)
                    compared += 1
    assert compared > 100


def windows_by_group() -> dict[str, tuple[TileGroup, list[WindowRead]]]:
    out: dict[str, tuple[TileGroup, list[WindowRead]]] = {}
    for (name, window_ms), (group, specs) in by_group_and_window().items():
        out.setdefault(name, (group, []))[1].append(compile_window(group, window_ms, list(enumerate(specs))))
    return out


def test_a_decayed_sum_weighs_each_tile_by_its_age(machine: mm.TileMachine) -> None:
    weights = np.array([9.0, 1.0, 0.5, 0.25])  # a plan may begin anywhere in them
    records = [(10, 1, 8), (9, 1, 4), (8, 1, 2)]
    value = b"".join(struct.pack("<qqq", *record) for record in records)
    plan = mm.plan_array(3, [(8, 10)], [[(mm.DECAY_INT, 2, 0, 0, 1)]])
    cells, _ = machine.merge([value], plan, weights, 1)
    assert cells.view("<f8")[0, 0] == 2 * 0.25 + 4 * 0.5 + 8 * 1.0


def test_bytes_that_are_not_whole_records_are_refused_with_their_length(machine: mm.TileMachine) -> None:
    plan = mm.plan_array(3, [(0, 1)], [[(mm.ADD_INT, 2, 0, 0, 0)]])
    with pytest.raises(ValueError, match="30 bytes are not whole records of 24 bytes"):
        machine.merge([bytes(24), bytes(30)], plan, np.zeros(1), 1)


def test_what_is_not_bytes_is_refused_before_it_is_read(machine: mm.TileMachine) -> None:
    plan = mm.plan_array(3, [(0, 1)], [[(mm.ADD_INT, 2, 0, 0, 0)]])
    with pytest.raises(TypeError, match="str, not bytes"):
        machine.merge([bytes(24), "x" * 24], plan, np.zeros(1), 1)  # type: ignore[list-item]


def test_no_keys_and_no_windows_are_fine(machine: mm.TileMachine) -> None:
    cells, tiles = machine.merge([], mm.plan_array(3, [], []), np.zeros(1), 0)
    assert cells.shape == (0, 0) and tiles.shape == (0,)

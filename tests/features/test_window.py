"""The window rule: floor tiles, also before 1970; W/h whole tiles and the current one; the same rule as SQL."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.window import format_duration, num_whole_tiles, parse_duration_ms, sql_tile, tile_of, window_tiles
from tests.naive import in_window

TIMES = st.integers(-(2**53), 2**53)
HOPS = st.sampled_from([1, 7, 1_000, 60_000, 900_000, 86_400_000])


@given(TIMES, HOPS)
def test_an_event_lies_in_its_own_half_open_tile(t: int, hop_ms: int) -> None:
    tile = tile_of(t, hop_ms)
    assert tile * hop_ms <= t < (tile + 1) * hop_ms


@settings(max_examples=30, deadline=None)
@given(st.lists(TIMES, min_size=1, max_size=50), HOPS)
def test_arrays_and_sql_give_the_tiles_of_scalars(times: list[int], hop_ms: int) -> None:
    want = [tile_of(t, hop_ms) for t in times]
    assert tile_of(np.array(times, dtype=np.int64), hop_ms).tolist() == want
    rows = duckdb.sql(
        f"SELECT {sql_tile('t', hop_ms, 'duckdb')} FROM (SELECT unnest({times}::BIGINT[]) AS t)"
    ).fetchall()
    assert [row[0] for row in rows] == want


@given(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6), st.integers(1, 30), st.integers(1, 5_000))
def test_window_tiles_hold_what_the_naive_window_holds(
    event_ms: int, as_of_ms: int, num_tiles: int, hop_ms: int
) -> None:
    first, last = window_tiles(as_of_ms, num_tiles * hop_ms, hop_ms)
    assert (first <= tile_of(event_ms, hop_ms) <= last) == in_window(event_ms, as_of_ms, num_tiles * hop_ms, hop_ms)
    assert last - first == num_tiles


def test_a_window_at_a_tile_edge_starts_a_new_current_tile() -> None:
    #  hop 1m, window 3m      1     2     3     4    |5
    #  at 4:59.999 the window is tiles 1..4, at 5:00.000 it is 2..5
    assert window_tiles(299_999, 180_000, 60_000) == (1, 4)
    assert window_tiles(300_000, 180_000, 60_000) == (2, 5)
    assert window_tiles(-1, 180_000, 60_000) == (-4, -1)


@pytest.mark.parametrize(("window_ms", "hop_ms"), [(90_000, 60_000), (0, 60_000), (60_000, 0), (-60_000, 60_000)])
def test_a_window_that_is_no_positive_multiple_of_its_hop_is_refused(window_ms: int, hop_ms: int) -> None:
    with pytest.raises(ValueError, match="multiple"):
        num_whole_tiles(window_ms, hop_ms)


@pytest.mark.parametrize(
    ("text", "ms"), [("250ms", 250), ("90s", 90_000), ("15m", 900_000), ("1h", 3_600_000), ("2d", 172_800_000)]
)
def test_durations_read_back(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms
    assert parse_duration_ms(format_duration(ms)) == ms


@pytest.mark.parametrize("text", ["1", "h", "1.5h", "-1h", "1w", "1 h", ""])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration_ms(text)

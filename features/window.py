"""Window edges and tiles: the one rule that the Flink SQL, the online reader, the backfill and the tests share.

Integer milliseconds. A tile i of hop h is the half-open range [i*h, (i+1)*h), also before 1970. A window W with hop
h asked at time T takes the tiles floor(T/h) - W/h .. floor(T/h): W/h whole tiles before the current one, and the
current one as far as it was known at T (infra/DESIGN.md §3.2). Which events are known is a matter of ingest time and
is decided by what has been applied, not here.

    hop 1m, window 3m, asked at T = 5m20s                 T
        | tile 1 | tile 2 | tile 3 | tile 4 | tile 5 ...  |
                 [------------ the window --------------- )

Read `features/spec.py` next for what is counted in a tile.
"""

from __future__ import annotations

import re
from typing import Final, overload

import numpy as np
from numpy.typing import NDArray

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

_UNITS_MS: Final = {"ms": 1, "s": SECOND_MS, "m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS}
_DURATION = re.compile(r"(\d+)(ms|s|m|h|d)")


@overload
def tile_of(event_ms: int, hop_ms: int) -> int: ...
@overload
def tile_of(event_ms: NDArray[np.int64], hop_ms: int) -> NDArray[np.int64]: ...
def tile_of(event_ms: int | NDArray[np.int64], hop_ms: int) -> int | NDArray[np.int64]:
    """The number of the tile that holds an event: floor(t / h), which is not truncation for t < 0.

    Units:  event_ms epoch milliseconds, scalar or (N,) int64; hop_ms milliseconds.
    Raises: ValueError if hop_ms <= 0.
    """
    if hop_ms <= 0:
        raise ValueError(f"hop_ms must be positive, got {hop_ms}")
    return event_ms // hop_ms


def window_tiles(as_of_ms: int, window_ms: int, hop_ms: int) -> tuple[int, int]:
    """First and last tile, both included, of the window that is asked at `as_of_ms`.

    Raises: ValueError if the window is not a positive multiple of the hop.
    """
    last = tile_of(as_of_ms, hop_ms)
    return last - num_whole_tiles(window_ms, hop_ms), last


def num_whole_tiles(window_ms: int, hop_ms: int) -> int:
    """W/h, the number of whole tiles in a window beside the current one.

    Raises: ValueError if the window is not a positive multiple of the hop.
    """
    if hop_ms <= 0 or window_ms <= 0 or window_ms % hop_ms:
        raise ValueError(f"window {window_ms} ms is not a positive multiple of hop {hop_ms} ms")
    return window_ms // hop_ms


def sql_tile(column: str, hop_ms: int, dialect: str = "flink") -> str:
    """The same floor division as SQL text for "flink" or "duckdb", where MOD truncates towards zero.

    t - mod(mod(t, h) + h, h) is the start of the tile, so the division leaves no rest; the result is a BIGINT. Integer
    division is `/` in Flink and `//` in DuckDB, whose `/` gives doubles.
    """
    if hop_ms <= 0:
        raise ValueError(f"hop_ms must be positive, got {hop_ms}")
    divide = {"flink": "/", "duckdb": "//"}[dialect]
    return f"(({column} - MOD(MOD({column}, {hop_ms}) + {hop_ms}, {hop_ms})) {divide} {hop_ms})"


def parse_duration_ms(text: str) -> int:
    """ "90s", "15m", "1h", "2d", "250ms" to milliseconds.

    Raises: ValueError naming the accepted units.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration: write a whole number and one of {', '.join(_UNITS_MS)}")
    return int(match[1]) * _UNITS_MS[match[2]]


def format_duration(ms: int) -> str:
    """Milliseconds in the largest unit that divides them: 900000 -> "15m"."""
    for unit, size in reversed(_UNITS_MS.items()):
        if ms % size == 0 and ms >= size:
            return f"{ms // size}{unit}"
    return f"{ms}ms"

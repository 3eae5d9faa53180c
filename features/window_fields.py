"""What a window and its hop may be, and what to write instead. The rule of windows itself is in features/window.py."""

from __future__ import annotations

from typing import Final

from features.window import DAY_MS, HOUR_MS, SECOND_MS, format_duration
from features.yaml_fields import Fields

MAX_WINDOW_MS: Final = 28 * DAY_MS
MIN_HOP_MS: Final = SECOND_MS
MAX_HOP_MS: Final = 24 * HOUR_MS
MAX_TILES: Final = 50_000  # of one window: a key's tiles are read and written whole


def check_window(fields: Fields, window_ms: int | None, hop_ms: int | None) -> None:
    """Note a window or hop that is out of bounds, or no whole number of hops, with the nearest that are right."""
    if hop_ms is not None and not MIN_HOP_MS <= hop_ms <= MAX_HOP_MS:
        message = f"hop {format_duration(hop_ms)} is not within {format_duration(MIN_HOP_MS)} and {format_duration(MAX_HOP_MS)}"
        nearest = MIN_HOP_MS if hop_ms < MIN_HOP_MS else MAX_HOP_MS
        fields.problems.add(fields.node_of("hop"), "window", message, f"the nearest is hop: {format_duration(nearest)}")
        return
    if window_ms is None:
        return
    step = hop_ms or SECOND_MS
    if not 0 < window_ms <= MAX_WINDOW_MS:
        message = f"window {format_duration(window_ms)} is not within 1s and {format_duration(MAX_WINDOW_MS)}"
        nearest = step if window_ms <= 0 else MAX_WINDOW_MS - MAX_WINDOW_MS % step
        fields.problems.add(
            fields.node_of("window"), "window", message, f"the nearest is window: {format_duration(nearest)}"
        )
        return
    if hop_ms is not None and window_ms % hop_ms:
        message = f"window {format_duration(window_ms)} is not a multiple of hop {format_duration(hop_ms)}"
        below = window_ms - window_ms % hop_ms
        near = sorted(ms for ms in {max(below, hop_ms), below + hop_ms} if ms <= MAX_WINDOW_MS)
        hint = f"the nearest {'are' if len(near) == 2 else 'is'} {' and '.join(map(format_duration, near))}"
        fields.problems.add(fields.node_of("window"), "window", message, hint)
    elif hop_ms is not None and window_ms // hop_ms > MAX_TILES:
        message = f"window {format_duration(window_ms)} has {window_ms // hop_ms:,} tiles of {format_duration(hop_ms)}"
        wanted = next(
            ms for ms in range(-(-window_ms // MAX_TILES // 1000) * 1000, window_ms + 1, 1000) if window_ms % ms == 0
        )
        hint = f"{MAX_TILES:,} are read at most: the nearest is hop: {format_duration(wanted)}"
        fields.problems.add(fields.node_of("hop"), "window", message, hint)

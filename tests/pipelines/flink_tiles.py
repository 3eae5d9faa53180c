"""The events and groups whose tiles Flink is asked for: every aggregate of one window, in one session."""

from __future__ import annotations

import random
from typing import Any, Final

from features.spec import Catalogue
from tests.features.aggregate_cases import FEATURES, MINUTE, catalogue, random_stream

TILE_COLUMNS: Final = {
    "thing": "string",
    "event_time_ms": "int",
    "ingest_time_ms": "int",
    "i": "int",
    "d": "double",
    "ok": "bool",
    "s": "string",
}


def tile_catalogue() -> Catalogue:
    one_window = [feature for feature in FEATURES.values() if feature.window_ms == 5 * MINUTE]
    return catalogue([feature for feature in one_window if "_t_" not in feature.name])  # a query a group takes seconds


def tile_events() -> list[dict[str, Any]]:
    """In order of arrival: nulls, negative and huge numbers, doubles that are no finite numbers, times before 1970."""
    return random_stream(random.Random(20_260), 400)

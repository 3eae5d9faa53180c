"""What is known of a name besides its type: its unit and its bounds. `units.py` and `ranges.py` reason with them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """`unit` as written (`s`, `cents`, `m/s`; empty: not known). `low` and `high` are bounds, both included."""

    unit: str = ""
    low: float | None = None
    high: float | None = None

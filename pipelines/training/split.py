"""Cut rows by decision time: what is learned first, what says for how long, what judges. Nothing is shuffled across.

      earlier ──────────────────────────────────────────► later
      [        train        )[ calibration )[    test     ]

Equal times stay together, and an order stands in one split only: its rows beyond a cut are left out, since they share
their fate with rows before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pipelines.training.config import TrainingError

Rows = NDArray[np.int64]
NAMES: Final = ("train", "calibration", "test")


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Row numbers of each split, ascending in time, and those left out because their order stands earlier."""

    train: Rows
    calibration: Rows
    test: Rows
    spanning: Rows


def split_by_time(event_time_ms: NDArray[np.int64], order_id: NDArray[Any], shares: Sequence[float]) -> Split:
    """Two cut times that give the shares by number of rows.

    Shapes: (N,) each, times ascending. Raises: TrainingError if a split stays empty; ValueError if not ascending.
    """
    if np.any(np.diff(event_time_ms) < 0):
        raise ValueError("event_time_ms must ascend")
    num = len(event_time_ms)
    if num == 0:
        raise TrainingError("no rows to split")
    cuts = [event_time_ms[min(int(num * share), num - 1)] for share in (shares[0], shares[0] + shares[1])]
    part_N = np.searchsorted(np.array(cuts), event_time_ms, side="right")
    first_part: dict[Any, int] = {}
    kept_N = np.array(
        [first_part.setdefault(order, int(part)) == part for order, part in zip(order_id, part_N, strict=True)]
    )
    parts = [np.flatnonzero(kept_N & (part_N == part)) for part in range(len(NAMES))]
    for name, rows in zip(NAMES, parts, strict=True):
        if len(rows) == 0:
            raise TrainingError(
                f"the {name} split is empty: {num} rows over {len(np.unique(event_time_ms))} decision times and "
                f"{len(first_part)} orders; collect more, or change the shares {tuple(shares)}"
            )
    return Split(train=parts[0], calibration=parts[1], test=parts[2], spanning=np.flatnonzero(~kept_N))

"""All that will happen in a simulation, by time.

At one time the service acts before events arrive; beyond that, first come, first served.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any, Final

ACTS: Final = 0
ARRIVES: Final = 1

Step = Callable[..., None]


class Agenda:
    """A queue of steps. Two runs that put in the same steps take out the same steps in the same order."""

    def __init__(self) -> None:
        self._queue: list[tuple[int, int, int, Step, tuple[Any, ...]]] = []
        self._sequence = itertools.count()

    def __len__(self) -> int:
        return len(self._queue)

    def at(self, at_ms: int, rank: int, step: Step, *arguments: Any) -> None:
        """Do `step(*arguments)` at a time. `rank` is ACTS or ARRIVES."""
        heapq.heappush(self._queue, (at_ms, rank, next(self._sequence), step, arguments))

    def next_step(self) -> Step:
        """The step that is due next. Raises: IndexError when there is none."""
        return self._queue[0][3]

    def pop(self) -> tuple[int, Step, tuple[Any, ...]]:
        """Take out what is due next: when, what, and with what. Raises: IndexError when there is none."""
        at_ms, _, _, step, arguments = heapq.heappop(self._queue)
        return at_ms, step, arguments

"""How fast simulated time may run against the wall's. The clock and the sleep are arguments."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pacer:
    """Lets simulated time pass at most `speed` times as fast as the wall's.

    An idle stretch that would take longer than `longest_wait_s` of wall time is cut to that: nothing happens in it. A
    caller who is behind catches up by at most `most_debt_s` of wall time; what lies further back is forgiven, so that
    a pause (training) is not followed by a burst. `speed` None means as fast as possible.
    """

    def __init__(
        self,
        speed: float | None,
        *,
        longest_wait_s: float = 1.0,
        most_debt_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if speed is not None and speed <= 0:
            raise ValueError(f"speed is {speed}, it must be above 0 (or None: as fast as possible)")
        self.speed = speed
        self.clock = clock
        self._sleep = sleep
        self._longest_wait_s = longest_wait_s
        self._most_debt_s = most_debt_s
        self._due_s: float | None = None  # wall time at which `_at_ms` was due
        self._at_ms = 0
        self.skipped_ms = 0  # simulated time that was cut out of idle stretches

    def wait_for(self, at_ms: int) -> None:
        """Return no sooner than the simulated moment is due. Moments must not go back; one that does is due at once."""
        if self.speed is None:
            return
        now_s = self.clock()
        if self._due_s is None:
            self._due_s, self._at_ms = now_s, at_ms
            return
        gap_s = max(0, at_ms - self._at_ms) / 1000 / self.speed
        if gap_s > self._longest_wait_s:
            self.skipped_ms += int((gap_s - self._longest_wait_s) * 1000 * self.speed)
            gap_s = self._longest_wait_s
        self._due_s = max(self._due_s + gap_s, now_s - self._most_debt_s)
        self._at_ms = max(at_ms, self._at_ms)
        if self._due_s > now_s:
            self._sleep(self._due_s - now_s)

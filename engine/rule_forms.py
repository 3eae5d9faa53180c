"""The two forms of a strategy's rules behind one face: NumPy from the first request on, machine code once it is proved.

A thread has the fused form compiled elsewhere (`engine/fused_cache.py`), runs it on the columns of the last real requests,
and swaps it in only when it says the same as NumPy, bit for bit. A disagreement is our mistake: it is logged as an error with
the row, the strategy stays with NumPy, and `state` says so.
Legend: K candidates.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from engine.fused import fused_rules
from engine.fused_cache import FusedCache
from engine.fused_plan import NotFusableError, plan_rules
from engine.made_columns import made_columns
from engine.program_rules import ProgramRules
from engine.rules import After, Before, ColumnRules, RuleRunner
from engine.strategy import CompiledStrategy
from features.expr import Column

logger = logging.getLogger(__name__)

COLUMNS, COMPILING, FUSED, REFUSED = "columns", "compiling", "fused", "refused"
_MADE_ROWS: Final = (0, 1, 2, 7, 64, 200)  # batches of values that nobody sent, for the edges that traffic lacks


@dataclass(frozen=True, kw_only=True)
class RuleFormsConfig:
    """What is remembered for the proof, and how long the compiler may take."""

    remember_rows: int = 10_000
    """Candidates of the last requests whose columns are kept, until the swap."""
    wait_for_rows_s: float = 2.0
    """How long the proof waits for a first real request, once the code is there."""
    compile_timeout_s: float = 300.0
    pause_s: float = 0.003
    """Between two requests that the forms are compared on, which cost a millisecond each: the interpreter is the requests'."""

    def __post_init__(self) -> None:
        if self.remember_rows < 1 or min(self.wait_for_rows_s, self.pause_s) < 0 or self.compile_timeout_s <= 0:
            raise ValueError("remember_rows must be at least 1, waits not negative")


@dataclass(frozen=True, eq=False)
class Seen:
    """What one request gave the rules: the columns before them, and before `after` when it came that far."""

    columns: dict[str, Column]
    num_rows: int
    killed: int
    later: dict[str, Column] | None = None


class RuleForms:
    """A RuleRunner. Without a cache it stays with NumPy."""

    def __init__(
        self,
        compiled: CompiledStrategy,
        cache: FusedCache | None,
        *,
        config: RuleFormsConfig = RuleFormsConfig(),
        on_disagreement: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.compiled = compiled
        self.why = ""  # it was refused
        self.proved_on = 0  # rows of real requests
        self._state = COLUMNS
        self._cache, self._config, self._on_disagreement = cache, config, on_disagreement
        self._columns = ColumnRules(compiled).prepare()
        self._current: RuleRunner = self._columns
        self._seen: deque[Seen] = deque()
        self._num_seen = 0
        self._lock = threading.Lock()  # of what was seen
        self._remember = cache is not None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if cache is not None:
            self._state = COMPILING
            self._thread = threading.Thread(target=self._fuse, name=f"fuse {compiled.name}", daemon=True)
            self._thread.start()

    @property
    def state(self) -> str:
        """`columns`, `compiling`, `fused`, or `refused: why`."""
        return f"{REFUSED}: {self.why}" if self._state == REFUSED else self._state

    def close(self) -> None:
        """The strategy is no longer live: nobody needs the proof."""
        self._stop.set()

    def join(self, timeout_s: float) -> bool:
        """Wait until it is decided which form runs; whether it is."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._state != COMPILING

    def before(self, columns: dict[str, Column], num_candidates: int, killed: int) -> Before:
        if self._remember:
            self._note(Seen(dict(columns), num_candidates, killed))
        return self._current.before(columns, num_candidates, killed)

    def after(self, columns: dict[str, Column], alive_K: np.ndarray, killed: int) -> After:
        """A request that began with one form may end with the other: each finds in `columns` what it needs."""
        if self._remember:
            self._note_later(columns, killed)
        return self._current.after(columns, alive_K, killed)

    def _note(self, seen: Seen) -> None:
        with self._lock:
            self._seen.append(seen)
            self._num_seen += seen.num_rows
            while self._num_seen > self._config.remember_rows and len(self._seen) > 1:
                self._num_seen -= self._seen.popleft().num_rows

    def _note_later(self, columns: dict[str, Column], killed: int) -> None:
        """Complete what `before` noted of the same request, if it is still the last one."""
        with self._lock:
            last = self._seen[-1] if self._seen else None
            if last is None or last.later is not None:
                return
            if all(columns.get(name) is column for name, column in last.columns.items()):
                self._seen[-1] = Seen(last.columns, last.num_rows, killed, dict(columns))

    def _remembered(self) -> list[Seen]:
        with self._lock:
            return list(self._seen)

    # The thread ------------------------------------------------------------------------------------------------------

    def _fuse(self) -> None:
        try:
            self._try_to_fuse()
        except (NotFusableError, TimeoutError, RuntimeError, ValueError, OSError) as error:
            self._refuse(f"{error}" or type(error).__name__)
            if not self._stop.is_set():
                logger.warning("strategy %s stays with NumPy: %s", self.compiled.name, error)
        except Exception as error:  # a surprise must not leave the state at `compiling`
            self._refuse(f"{type(error).__name__}: {error}")
            logger.exception("strategy %s stays with NumPy", self.compiled.name)
        finally:
            self._remember = False
            with self._lock:
                self._seen.clear()

    def _try_to_fuse(self) -> None:
        assert self._cache is not None
        plan = plan_rules(self.compiled)
        objects = self._cache.get(plan.text, timeout_s=self._config.compile_timeout_s, stop=self._stop.is_set)
        fused = fused_rules(self.compiled, plan, objects)
        wanted = time.monotonic() + self._config.wait_for_rows_s
        while not self._seen and time.monotonic() < wanted and not self._stop.wait(0.02):
            pass
        real = self._remembered()
        batches = [*real, *(Seen(*made_columns(self.compiled, rows), 0) for rows in _MADE_ROWS)]
        problem = disagreement(ProgramRules(self.compiled), fused, batches, self.compiled.strategy.models, self._paused)
        if problem is not None:
            self._refuse(f"the fused form disagrees: {problem}")
            logger.error("strategy %s: the fused form disagrees with NumPy, %s", self.compiled.name, problem)
            self._on_disagreement(problem)
            return
        if not self._stop.is_set():
            self.proved_on = sum(seen.num_rows for seen in real)
            self._current, self._state = fused, FUSED

    def _paused(self) -> bool:
        """Let requests have the interpreter for a while; whether the proof is still wanted."""
        return self._stop.wait(self._config.pause_s)

    def _refuse(self, why: str) -> None:
        self.why, self._state = why, REFUSED


def disagreement(
    slow: RuleRunner,
    fast: RuleRunner,
    batches: Iterable[Seen],
    uses: Collection[str],
    stop: Callable[[], bool] = lambda: False,
) -> str | None:
    """The first row on which the two differ, in words; None when they agree everywhere.

    `stop` is asked before each batch. `uses` are the models' names: a request that did not come as far as their answers is compared as far as it came.
    """
    for number, seen in enumerate(batches):
        if stop():
            return None
        own, other = dict(seen.columns), dict(seen.columns)
        wanted = slow.before(own, seen.num_rows, seen.killed)
        found = fast.before(other, seen.num_rows, seen.killed)
        problem = differ_before(wanted, found)
        later = seen.later or seen.columns
        if problem is None and all(use in later for use in uses):
            own, other = {**later, **own}, {**later, **other}
            problem = differ_after(
                slow.after(own, wanted.alive_K, seen.killed),
                fast.after(other, wanted.alive_K, seen.killed),
                wanted.alive_K,
            )
        if problem is not None:
            part, row, a, b = problem
            shown = {name: _shown(column, row) for name, column in sorted((seen.later or seen.columns).items())}
            return (
                f"{part} of row {row} of batch {number} (killed {seen.killed}): NumPy {a!r}, fused {b!r}; row {shown}"
            )
    return None


Difference = tuple[str, int, Any, Any]


def differ_before(wanted: Before, found: Before) -> Difference | None:
    rows_K = np.ones(len(wanted.alive_K), dtype=np.bool_)
    for part in ("alive_K", "dropped_by_K", "fired_K", "unknown_K"):
        if (difference := _first(part, getattr(wanted, part), getattr(found, part), rows_K)) is not None:
            return difference
    return None


def differ_after(wanted: After, found: After, alive_K: np.ndarray) -> Difference | None:
    """What says nothing is not compared: dropped rows, the score of a row without one, outputs of rows that cannot win."""
    for part in ("known_K", "failed_by_K", "fired_K", "unknown_K"):
        if (difference := _first(part, getattr(wanted, part), getattr(found, part), alive_K)) is not None:
            return difference
    counts_K = alive_K & wanted.known_K
    difference = _first("score_K", wanted.score_K, found.score_K, counts_K)
    for name, column in wanted.outputs.items():
        other = found.outputs[name]
        difference = difference or _first(f"output {name}", column.valid, other.valid, counts_K)
        difference = difference or _first(f"output {name}", column.values, other.values, counts_K & column.valid)
    return difference


def _first(part: str, wanted: np.ndarray, found: np.ndarray, rows_K: np.ndarray) -> Difference | None:
    if wanted.dtype != found.dtype or len(wanted) != len(found):
        return part, 0, f"{wanted.dtype} of {len(wanted)}", f"{found.dtype} of {len(found)}"
    a, b = wanted, found
    if wanted.dtype == np.float64:  # by bits; one NaN is as good as another
        a, b = (np.where(np.isnan(x), np.nan, x).view(np.int64) for x in (wanted, found))
    rows = np.flatnonzero((a != b) & rows_K)
    if len(rows) == 0:
        return None
    row = int(rows[0])
    return part, row, wanted[row : row + 1].tolist()[0], found[row : row + 1].tolist()[0]


def _shown(column: Column, row: int) -> Any:
    at = row if len(column) > 1 else 0
    return column.values[at : at + 1].tolist()[0] if column.valid[at] else None

"""Logged Decisions from files or messages: decoded, folded by decision_id, those that are wanted.

A line that cannot be read is counted with its place and costs no other line. Read `engine/replay.py` for what is done with them.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.replay_block import misfit
from features.records import Decision, RecordError, decode

MOST_SHOWN = 20

Line = tuple[str, bytes]  # place and bytes of a record


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Decisions of `strategy` with `from_ms` <= as_of_ms < `to_ms`, at most `limit` of them (0: all there are)."""

    strategy: str
    from_ms: int | None = None
    to_ms: int | None = None
    limit: int = 0

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise ValueError(f"limit must be at least 0, not {self.limit}")
        if self.from_ms is not None and self.to_ms is not None and self.from_ms >= self.to_ms:
            raise ValueError("there is no time between `from` and `to`")


@dataclass
class Log:
    """Iterates over the wanted Decisions of `lines` and counts what it passes over.

    `unreadable` are places and reasons, the first MOST_SHOWN of `num_unreadable`. `read` counts all records.
    """

    lines: Iterable[Line]
    wanted: Wanted
    read: int = 0
    taken: int = 0
    others: int = 0
    outside: int = 0
    duplicates: int = 0
    num_unreadable: int = 0
    unreadable: list[str] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)

    def __iter__(self) -> Iterator[Decision]:
        wanted = self.wanted
        for place, raw in self.lines:
            if wanted.limit and self.taken >= wanted.limit:
                return
            self.read += 1
            try:
                decision = decode(raw, Decision)
            except RecordError as error:
                self._unreadable(place, str(error))
                continue
            if decision.strategy != wanted.strategy:
                self.others += 1
            elif not _between(decision.as_of_ms, wanted):
                self.outside += 1
            elif decision.decision_id in self._seen:
                self.duplicates += 1
            elif (problem := misfit(decision)) is not None:
                self._unreadable(place, f"decision {decision.decision_id}: {problem}")
            else:
                self._seen.add(decision.decision_id)
                self.taken += 1
                yield decision

    def _unreadable(self, place: str, why: str) -> None:
        self.num_unreadable += 1
        if len(self.unreadable) < MOST_SHOWN:
            self.unreadable.append(f"{place}: {why}")


def read_files(paths: Sequence[Path]) -> Iterator[Line]:
    """The lines of files, `.gz` or plain, with `file:line` as their place. Raises: OSError, EOFError for half a .gz."""
    for path in paths:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{path}:{number}", line


def _between(time_ms: int, wanted: Wanted) -> bool:
    if wanted.from_ms is not None and time_ms < wanted.from_ms:
        return False
    return wanted.to_ms is None or time_ms < wanted.to_ms

"""What the simulation alone knows of each dispatch decision, kept in a file of its own for the demo's report.

It lies outside every topic and every sample: a trainer that read it would be told the answer.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Literal

import msgspec

Answer = Literal["accepted", "declined", "timed_out", "none"]


class TruthRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One dispatch decision. `p_accept` is (K,) in the order of `candidate_ids`; `chosen` an index into it, or null."""

    decision_id: str
    order_id: str
    round_id: int
    as_of_ms: int
    arms: dict[str, str]
    decided_by: str
    quality: str
    model: str | None  # name and first hash digits of the model that scored, null when none did
    candidate_ids: list[str]
    p_accept: list[float]
    chosen: int | None
    answer: Answer


class TruthLog:
    """Keeps records in memory and appends each as one line of JSON to a file, when there is one."""

    def __init__(self, path: Path | None = None) -> None:
        self.records: list[TruthRecord] = []
        self._file = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb")

    def add(self, record: TruthRecord) -> None:
        self.records.append(record)
        if self._file is not None:
            self._file.write(msgspec.json.encode(record) + b"\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> TruthLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_truth(path: Path) -> list[TruthRecord]:
    """The records of a truth file, in the order of the answers: what `report` takes, to judge a run after it ended.

    Raises: msgspec.ValidationError, OSError.
    """
    return [msgspec.json.decode(line, type=TruthRecord) for line in path.read_bytes().splitlines()]

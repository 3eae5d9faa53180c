"""Is a logged Decision fit to become a Sample? `features.records.decode` checks its shape, this file what it says.

A Decision whose propensities do not add up would be a wrong weight in training, silently; so it is quarantined with the reason.
"""

from __future__ import annotations

import math
from typing import Final

from features.records import Decision, RecordError, decode

# The engine writes float64 that it normalised itself; K = 1,000 terms round to about 1e-13.
PROPENSITY_TOLERANCE: Final = 1e-6
# A Sample's version 1 carries these bytes, and the broker takes 1 MiB: a message that it refuses would stop the job for
# ever. 1,000 candidates x 50 features have 390 kB; our own producer sends no message above this limit.
MAX_BYTES: Final = 1_000_000
MAX_NAME: Final = 200  # as every id of a record (features/records.py::Id)
_PER_CANDIDATE: Final = ("scores", "propensities", "survivors", "reasons", "fired", "unknown")


def read_decision(raw: bytes) -> Decision:
    """The bytes of one message to a Decision that can become a Sample.

    Raises: RecordError with the reason and the field path.
    """
    if len(raw) > MAX_BYTES:
        raise RecordError(f"{len(raw):,} bytes are more than a sample carries ({MAX_BYTES:,})")
    decision = decode(raw, Decision)
    if not 0 < len(decision.strategy) <= MAX_NAME:
        raise RecordError(f"a strategy's name has 1 to {MAX_NAME} characters", "$.strategy")
    num_candidates = len(decision.candidate_ids)
    if num_candidates == 0:
        raise RecordError("no candidates: there was nothing to decide", "$.candidate_ids")
    for name in _PER_CANDIDATE:
        _same_length(f"$.{name}", len(getattr(decision, name)), num_candidates)
    for name, column in decision.candidates.items():
        _same_length(f"$.candidates.{name}", len(column), num_candidates)
    for name, output in decision.model_outputs.items():
        _same_length(f"$.model_outputs.{name}.values", len(output.values), num_candidates)
    chosen = decision.chosen
    if chosen is not None and not 0 <= chosen < num_candidates:
        raise RecordError(f"{chosen} is not the index of one of {num_candidates} candidates", "$.chosen")
    _check_propensities(decision)
    return decision


def _same_length(path: str, length: int, num_candidates: int) -> None:
    if length != num_candidates:
        raise RecordError(f"{length} values for {num_candidates} candidates", path)


def _check_propensities(decision: Decision) -> None:
    for index, (propensity, survives) in enumerate(zip(decision.propensities, decision.survivors, strict=True)):
        if not 0.0 <= propensity <= 1.0 + PROPENSITY_TOLERANCE:  # NaN fails too
            raise RecordError(f"{propensity} is not a probability", f"$.propensities[{index}]")
        if propensity > 0.0 and not survives:
            raise RecordError(f"{propensity} for a candidate that was dropped", f"$.propensities[{index}]")
    total = math.fsum(decision.propensities)
    if decision.chosen is None:
        if total != 0.0:
            raise RecordError(f"sum to {total:.6g} although nothing was chosen", "$.propensities")
        return
    if abs(total - 1.0) > PROPENSITY_TOLERANCE:
        raise RecordError(f"sum to {total:.6g}, not to 1", "$.propensities")
    # `assign` solves many orders at once: its choice has no propensity of its own.
    if decision.propensities[decision.chosen] == 0.0 and decision.decided_by != "assign":
        raise RecordError("0 for the candidate that was chosen", f"$.propensities[{decision.chosen}]")

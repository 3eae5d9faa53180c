"""A replay of the strategy that made the Decisions, held against the record: equal to the bit, or where not.

Legend: D decisions, R candidates of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.replay_block import NO_ROW, Block, Raw
from engine.replay_fit import to_typed
from engine.replay_run import Replayed, outputs_as_logged
from engine.strategy import CompiledStrategy
from engine.wire_values import US_PER_MS, is_time, to_wire


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Where a replay is not what was logged. `candidate` is None for what the whole decision has (arms, chosen)."""

    decision_id: str
    candidate: str | None
    part: str
    logged: Any
    replayed: Any

    def __str__(self) -> str:
        place = f"decision {self.decision_id}" + (f", candidate {self.candidate}" if self.candidate else "")
        return f"{place}: {self.part} was {self.logged!r}, replayed {self.replayed!r}"


def compare(compiled: CompiledStrategy, block: Block, replayed: Replayed) -> list[Difference]:
    """Every difference: those of candidates part by part, then those of whole decisions."""
    out: list[Difference] = []
    for part, logged, found, rows in _by_row(compiled, block, replayed):
        for row in rows.tolist():
            at = int(block.decision_of_R[row])
            out.append(
                Difference(
                    decision_id=block.decision_ids[at],
                    candidate=str(block.candidate_ids[row]),
                    part=part,
                    logged=_plain(logged, row),
                    replayed=_plain(found, row),
                )
            )
    return [*out, *_by_decision(block, replayed)]


# A column to compare: values, and where there is one (None: everywhere).
Cells = tuple[np.ndarray, np.ndarray | None]


def _by_row(
    compiled: CompiledStrategy, block: Block, replayed: Replayed
) -> Iterator[tuple[str, Cells, Cells, np.ndarray]]:
    """(part, as logged, as replayed, the rows that differ)."""
    texts = np.array([*block.reasons, None], dtype=np.object_)
    places = {text: place for place, text in enumerate(replayed.reasons.texts.tolist())}
    code_of = np.array([*(places.get(text, NO_ROW) for text in block.reasons), 0], dtype=np.int64)
    differ = np.flatnonzero(code_of[block.reason_R] != replayed.reason_R)
    yield "survivors", *_pair(block.survives_R, replayed.survives_R)
    reasons = replayed.reasons.texts
    yield "reasons", (texts[block.reason_R], None), (reasons[replayed.reason_R], None), differ
    yield "fired", *_pair(block.fired_R, replayed.fired_R)
    yield "unknown", *_pair(block.unknown_R, replayed.unknown_R)
    yield "scores", *_masked((block.score_R, block.scored_R), (replayed.after.score_K, replayed.survives_R))
    yield "propensities", *_pair(block.propensity_R, replayed.propensity_R)
    kinds = {named.name: named.program.type for named in compiled.outputs}
    for name, (values, valid) in outputs_as_logged(compiled, replayed.after, replayed.survives_R).items():
        kind = kinds[name]
        if is_time(kind) and not kind.is_list:
            values = values // US_PER_MS
        elif kind.is_list:
            values = _wire_lists(values, valid, kind)
        raw = block.outputs.get(name, Raw("null", np.zeros(block.num_rows), np.zeros(block.num_rows, dtype=np.bool_)))
        logged = to_typed(raw, kind) if raw.kind == "null" else raw
        yield f"outputs.{name}", *_masked((logged.values, logged.valid), (values, valid))
    for name in sorted(set(block.outputs) - set(kinds)):
        raw = block.outputs[name]
        none = (np.zeros(block.num_rows, dtype=np.bool_), np.zeros(block.num_rows, dtype=np.bool_))
        yield f"outputs.{name}", *_masked((raw.values, raw.valid), none)


def _pair(logged: np.ndarray, found: np.ndarray) -> tuple[Cells, Cells, np.ndarray]:
    return (logged, None), (found, None), np.flatnonzero(_bits(logged) != _bits(found))


def _masked(
    logged: tuple[np.ndarray, np.ndarray], found: tuple[np.ndarray, np.ndarray]
) -> tuple[Cells, Cells, np.ndarray]:
    """Null equals null; where both have a value, the values by bits."""
    both = logged[1] & found[1]
    a, b = logged[0], found[0]
    differ = logged[1] != found[1]
    if a.dtype != b.dtype:
        differ |= both
    else:
        differ |= both & (_bits(a) != _bits(b))
    return logged, found, np.flatnonzero(differ)


def _bits(values: np.ndarray) -> np.ndarray:
    return values.view(np.int64) if values.dtype == np.float64 else values


def _wire_lists(values: np.ndarray, valid: np.ndarray, kind: Any) -> np.ndarray:
    out = np.empty(len(values), dtype=np.object_)
    for row in np.flatnonzero(valid).tolist():
        out[row] = to_wire(values[row], kind)
    return out


def _by_decision(block: Block, replayed: Replayed) -> Iterator[Difference]:
    assigned, logged = replayed.assigned, block.assignments
    pairs, place_D = np.unique(np.stack([block.assigned_D, assigned.place_D]), axis=1, return_inverse=True)
    place_D = place_D.reshape(-1)
    for part, which in (("arms", 0), ("params", 1)):
        sides = [(logged[a][which], assigned.distinct[b][which]) for a, b in pairs.T.tolist()]
        wrong = np.array([was != now for was, now in sides])
        for at in np.flatnonzero(wrong[place_D]).tolist():
            was, now = sides[int(place_D[at])]
            yield Difference(decision_id=block.decision_ids[at], candidate=None, part=part, logged=was, replayed=now)
    for at in np.flatnonzero(block.chosen_D != replayed.chosen_D).tolist():
        was, now = (_candidate(block, at, int(chosen[at])) for chosen in (block.chosen_D, replayed.chosen_D))
        yield Difference(decision_id=block.decision_ids[at], candidate=None, part="chosen", logged=was, replayed=now)


def _candidate(block: Block, at: int, place: int) -> str | None:
    return None if place == NO_ROW else str(block.candidate_ids[int(block.starts[at]) + place])


def _plain(cells: Cells, row: int) -> Any:
    values, valid = cells
    return values[row : row + 1].tolist()[0] if valid is None or valid[row] else None

"""What a request must keep to besides the types of its fields: its scope, its candidates' keys, declared bounds.

`engine/request.py` decodes and calls these; every refusal names its place in the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from features.expr import Column, Facts, Type

if TYPE_CHECKING:
    from engine.strategy import Strategy

MAX_CANDIDATES: Final = 500
_BOUNDED: Final = ("int", "double")


class RequestError(ValueError):
    """A request that cannot be decided. `status` is HTTP's, `code` is for programs, `path` says where."""

    def __init__(self, status: int, code: str, message: str, *, path: str = "$", hint: str = "") -> None:
        super().__init__(f"{path}: {message}")
        self.status, self.code, self.message, self.path, self.hint = status, code, message, path, hint


class Envelope(Protocol):
    """What every request says of itself, whatever its strategy; a body has it, and a Decision."""

    @property
    def order_id(self) -> str: ...

    @property
    def decision_id(self) -> str | None: ...

    @property
    def round_id(self) -> int | None: ...

    @property
    def city(self) -> str: ...

    @property
    def product(self) -> str: ...

    @property
    def as_of_ms(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The fields of a strategy that have any; of a candidate's field also whether it may be null."""

    request: tuple[tuple[str, Facts], ...]
    candidates: tuple[tuple[str, Facts, bool], ...]


def bounds_of(strategy: Strategy) -> Bounds:
    def bounded(fields: Mapping[str, Type]) -> list[tuple[str, Facts, bool]]:
        known = [(name, strategy.facts.get(name), kind) for name, kind in fields.items() if kind.kind in _BOUNDED]
        return [
            (name, facts, kind.nullable)
            for name, facts, kind in known
            if facts is not None and not (facts.low is None and facts.high is None)
        ]

    return Bounds(
        request=tuple((name, facts) for name, facts, _ in bounded(strategy.request)),
        candidates=tuple(bounded(strategy.candidate_fields)),
    )


def check_scope(envelope: Envelope, strategy: Strategy) -> None:
    for name in ("city", "product"):
        wanted = strategy.scope[name]
        found = getattr(envelope, name)
        if wanted not in ("*", found):
            raise RequestError(
                400,
                "out_of_scope",
                f"strategy {strategy.name} serves {name} '{wanted}', not '{found}'",
                path=f"$.{name}",
                hint="send it to a strategy with that scope",
            )


def check_candidates(candidates: dict[str, Any], strategy: Strategy) -> list[str]:
    """At least one, equal lengths, not too many, no key twice; an absent nullable column becomes all null."""
    key = strategy.candidate_key
    ids: list[str] = candidates[key]
    if len(ids) > MAX_CANDIDATES:
        raise RequestError(
            413,
            "too_many_candidates",
            f"{len(ids)} candidates; at most {MAX_CANDIDATES} are decided at once",
            path=f"$.candidates.{key}",
            hint="keep the nearest ones",
        )
    if not ids:
        raise RequestError(
            400,
            "no_candidates",
            "there is nothing to choose from",
            path=f"$.candidates.{key}",
            hint="ask again when there is a candidate; a decision without any would be no sample either",
        )
    for name, column in candidates.items():
        if column is None:
            candidates[name] = [None] * len(ids)
        elif len(column) != len(ids):
            raise RequestError(
                400,
                "length",
                f"{len(column)} values for {len(ids)} candidates",
                path=f"$.candidates.{name}",
                hint=f"candidates are columns: each list has one value per {key}",
            )
    distinct = set(ids)
    if len(distinct) != len(ids):
        at = next(at for at, identifier in enumerate(ids) if identifier in ids[:at])
        raise RequestError(400, "duplicate", f"candidate '{ids[at]}' is there twice", path=f"$.candidates.{key}[{at}]")
    if "" in distinct:
        raise RequestError(400, "malformed", "a candidate's key is empty", path=f"$.candidates.{key}[{ids.index('')}]")
    return ids


def check_bounds(bounds: Bounds, sent: Mapping[str, Any], lists: dict[str, Any], columns: dict[str, Column]) -> None:
    """Declared bounds hold from here on: a field of the request outside of them is refused; one of a candidate is null
    where it may be (in `lists` and `columns`), else refused.

    Raises: RequestError.
    """
    for name, facts in bounds.request:
        if sent[name] is not None and _outside(np.array([sent[name]]), facts)[0]:
            raise _out_of_bounds(sent[name], facts, f"$.request.{name}")
    for name, facts, nullable in bounds.candidates:
        column = columns[name]
        rows = np.flatnonzero(_outside(column.values, facts) & column.valid).tolist()
        if not rows:
            continue
        if not nullable:
            raise _out_of_bounds(lists[name][rows[0]], facts, f"$.candidates.{name}[{rows[0]}]")
        lists[name], valid = list(lists[name]), column.valid.copy()
        valid[rows] = False
        for row in rows:
            lists[name][row] = None
        columns[name] = Column(column.values, valid)


def _outside(values: np.ndarray, facts: Facts) -> np.ndarray:
    outside = np.zeros(len(values), dtype=np.bool_)
    if facts.low is not None:
        outside |= values < facts.low
    if facts.high is not None:
        outside |= values > facts.high
    return outside


def _out_of_bounds(value: Any, facts: Facts, path: str) -> RequestError:
    low, high = ("no bound" if end is None else f"{end:g}" for end in (facts.low, facts.high))
    unit = f" {facts.unit}" if facts.unit else ""
    return RequestError(
        400,
        "malformed",
        f"{value} is outside what the strategy declares, from {low} to {high}{unit}",
        path=path,
        hint="send a value within the bounds, or change min and max of the field",
    )

"""Logged Decisions as columns: what replay, its cache and its reports work on.

A `Block` holds Decisions of one layout (one version of one strategy, the same rules switched off, the same features) with
their candidates as rows behind each other. It knows no strategy: a value is what JSON made of it (`Raw`), and
`Block.decision` gives the Decision back as it was logged. `engine/replay_fit.py` turns a block into the columns that a
strategy reads.
Legend: D decisions, R candidates of all of them, F features of a role.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np

from features.records import Decision, ModelOutput, ServedFeatures, decode, encode
from features.rows import FeatureBatch, has_value, to_served

BLOCK_ROWS: Final = 16_384  # candidates of a block: columns of this length stay in the cache of a core
NO_ROW: Final = -1
SOURCES: Final = ("model", "fallback", "absent")
_KINDS: Final[dict[type, str]] = {bool: "bool", int: "int", float: "double", str: "string", list: "list"}
_DTYPES: Final[dict[str, Any]] = {"bool": np.bool_, "int": np.int64, "double": np.float64}
_FILLERS: Final[dict[str, Any]] = {"bool": False, "int": 0, "double": 0.0, "string": "", "list": None}


@dataclass(frozen=True, eq=False)
class Raw:
    """Values as JSON has them. kind: bool, int, double, string, list, `null` (nothing but nulls), or `mixed`.

    Shapes: values (N,) of the kind's dtype (object for string, list, mixed), valid (N,) bool.
    """

    kind: str
    values: np.ndarray
    valid: np.ndarray

    def tolist(self) -> list[Any]:
        """Plain values, None for null."""
        return [value if ok else None for value, ok in zip(self.values.tolist(), self.valid.tolist(), strict=True)]


@dataclass(frozen=True, kw_only=True, eq=False)
class RoleColumns:
    """The features of one role as they were served.

    Shapes: rows_D (D,) int64, 1 or the number of candidates; the columns (rows_D.sum(),): values by name, statuses
    (F, rows_D.sum()) uint8. `generation` is the same in a block, `through_ms_D` (D,) int64 with `through_known_D`.
    """

    view: str
    generation: int
    names: tuple[str, ...]
    types: tuple[str, ...]
    rows_D: np.ndarray
    through_ms_D: np.ndarray
    through_known_D: np.ndarray
    columns: Mapping[str, np.ndarray]
    statuses: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelColumns:
    """What a model said. Shapes: values (R,) float64, valid (R,); source_D (D,) uint8, places in SOURCES. `model` as recorded."""

    model: str
    model_hash: str | None
    source_D: np.ndarray
    values: np.ndarray
    valid: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """Decisions of one layout. `heads_D` are their records without anything that is a column, as JSON.

    Shapes: starts (D + 1,): decision d has the rows [starts[d], starts[d + 1]). `assigned_D` (D,) are places in
    `assigned`, the distinct JSON of (arms, params); `reason_R` (R,) int16 places in `reasons`, -1 for none; `chosen_D`
    (D,) int64 a place among the decision's own candidates, NO_ROW for nobody.
    """

    strategy: str
    version: int
    hash: str
    killed: tuple[str, ...]
    candidate_key: str
    starts: np.ndarray
    decision_ids: Sequence[str]
    order_ids: Sequence[str]
    cities: Sequence[str]
    products: Sequence[str]
    as_of_ms_D: np.ndarray
    request: Mapping[str, Raw]
    candidate_ids: np.ndarray
    candidates: Mapping[str, Raw]
    roles: Mapping[str, RoleColumns]
    models: Mapping[str, ModelColumns]
    assigned: Sequence[bytes]
    assigned_D: np.ndarray
    chosen_D: np.ndarray
    survives_R: np.ndarray
    score_R: np.ndarray
    scored_R: np.ndarray
    propensity_R: np.ndarray
    reasons: Sequence[str]
    reason_R: np.ndarray
    fired_R: np.ndarray
    unknown_R: np.ndarray
    outputs: Mapping[str, Raw]
    heads_D: Sequence[bytes]

    @property
    def num_decisions(self) -> int:
        return len(self.starts) - 1

    @property
    def num_rows(self) -> int:
        return int(self.starts[-1])

    @cached_property
    def sizes_D(self) -> np.ndarray:
        return np.diff(self.starts)

    @cached_property
    def decision_of_R(self) -> np.ndarray:
        """The decision of every row."""
        return np.repeat(np.arange(self.num_decisions), self.sizes_D)

    @cached_property
    def assignments(self) -> list[tuple[dict[str, str], dict[str, Any]]]:
        """(arms, params) by their place in `assigned`."""
        return [tuple(msgspec.json.decode(text)) for text in self.assigned]

    def decision(self, at: int) -> Decision:
        """The Decision as it was logged."""
        start, end = int(self.starts[at]), int(self.starts[at + 1])
        rows = slice(start, end)
        scores = Raw("double", self.score_R[rows], self.scored_R[rows])
        reasons = [self.reasons[place] if place >= 0 else None for place in self.reason_R[rows].tolist()]
        arms, params = msgspec.json.decode(self.assigned[int(self.assigned_D[at])])
        return msgspec.structs.replace(
            decode(self.heads_D[at], Decision),
            request={name: _cell(raw, at) for name, raw in self.request.items()},
            candidate_ids=self.candidate_ids[rows].tolist(),
            candidates={name: _part(raw, rows) for name, raw in self.candidates.items()},
            features={name: self._served(role, at) for name, role in self.roles.items()},
            model_outputs={name: self._said(model, at, rows) for name, model in self.models.items()},
            scores=scores.tolist(),
            propensities=self.propensity_R[rows].tolist(),
            survivors=self.survives_R[rows].tolist(),
            reasons=reasons,
            fired=self.fired_R[rows].tolist(),
            unknown=self.unknown_R[rows].tolist(),
            outputs={name: _part(raw, rows) for name, raw in self.outputs.items()},
            arms=arms,
            params=params,
        )

    def _served(self, role: RoleColumns, at: int) -> ServedFeatures:
        start = int(role.rows_D[:at].sum())
        rows = slice(start, start + int(role.rows_D[at]))
        statuses = role.statuses[:, rows]
        batch = FeatureBatch(
            view=role.view,
            generation=role.generation,
            applied_through_ms=int(role.through_ms_D[at]) if role.through_known_D[at] else None,
            names=role.names,
            types=role.types,
            columns={name: column[rows] for name, column in role.columns.items()},
            valid=dict(zip(role.names, has_value(statuses), strict=True)),
            statuses=np.ascontiguousarray(statuses.T),
            ages_ms=np.full(statuses.T.shape, -1, dtype=np.int64),
        )
        return to_served(batch)

    def _said(self, model: ModelColumns, at: int, rows: slice) -> ModelOutput:
        return ModelOutput(
            model=model.model,
            model_hash=model.model_hash,
            source=SOURCES[int(model.source_D[at])],
            values=Raw("double", model.values[rows], model.valid[rows]).tolist(),
        )


def blocks_of(decisions: Iterable[Decision], *, num_rows: int = BLOCK_ROWS) -> Iterator[Block]:
    """The Decisions as blocks of about `num_rows` candidates, in order within a layout. Their parts must fit together: what
    `misfit` finds nothing wrong with (`engine/replay_log.py` looks)."""
    waiting: dict[Any, tuple[list[Decision], int]] = {}
    for decision in decisions:
        key = _layout(decision)
        group, rows = waiting.get(key, ([], 0))
        group.append(decision)
        rows += len(decision.candidate_ids)
        if rows >= num_rows:
            yield block_of(group)
            group, rows = [], 0
        waiting[key] = (group, rows)
    for group, _ in waiting.values():
        if group:
            yield block_of(group)


def misfit(decision: Decision) -> str | None:
    """Why a record cannot be replayed at all: lists that do not have one entry per candidate."""
    num_candidates = len(decision.candidate_ids)
    if num_candidates == 0:
        return "it has no candidates"
    lists: dict[str, Sequence[Any]] = {
        name: getattr(decision, name) for name in ("scores", "propensities", "survivors", "reasons", "fired", "unknown")
    }
    lists |= {f"candidates.{name}": values for name, values in decision.candidates.items()}
    lists |= {f"model_outputs.{name}": output.values for name, output in decision.model_outputs.items()}
    lists |= {f"outputs.{name}": values for name, values in decision.outputs.items()}
    for name, values in lists.items():
        if len(values) != num_candidates:
            return f"{name} has {len(values)} entries for {num_candidates} candidates"
    for role, served in decision.features.items():
        cells = served.rows * len(served.names)
        if served.rows not in (1, num_candidates) or (len(served.values), len(served.statuses)) != (8 * cells, cells):
            return f"features.{role} does not fit {num_candidates} candidates"
    if decision.chosen is not None and decision.chosen >= num_candidates:
        return f"candidate {decision.chosen} of {num_candidates} is chosen"
    return None


def _layout(decision: Decision) -> Any:
    """What has to be the same in a block."""
    return (
        decision.strategy,
        decision.strategy_version,
        decision.strategy_hash,
        tuple(decision.killed),
        decision.candidate_key,
        tuple(decision.request),
        tuple(decision.candidates),
        tuple((r, s.view, s.generation, tuple(s.names), tuple(s.types)) for r, s in decision.features.items()),
        tuple((name, output.model, output.model_hash) for name, output in decision.model_outputs.items()),
        tuple(decision.outputs),
    )


def block_of(decisions: Sequence[Decision]) -> Block:
    """Decisions of one layout as columns; at least one."""
    first = decisions[0]
    sizes_D = np.array([len(decision.candidate_ids) for decision in decisions], dtype=np.int64)
    reasons: dict[str, int] = {}
    assigned: dict[bytes, int] = {}
    score = _doubles(_joined(d.scores for d in decisions))
    return Block(
        strategy=first.strategy,
        version=first.strategy_version,
        hash=first.strategy_hash,
        killed=tuple(first.killed),
        candidate_key=first.candidate_key,
        starts=np.concatenate(([0], np.cumsum(sizes_D))),
        decision_ids=[d.decision_id for d in decisions],
        order_ids=[d.order_id for d in decisions],
        cities=[d.city for d in decisions],
        products=[d.product for d in decisions],
        as_of_ms_D=np.array([d.as_of_ms for d in decisions], dtype=np.int64),
        request={name: raw_of([d.request[name] for d in decisions]) for name in first.request},
        candidate_ids=_objects(_joined(d.candidate_ids for d in decisions), texts=True),
        candidates={name: raw_of(_joined(d.candidates[name] for d in decisions)) for name in first.candidates},
        roles={name: _role([d.features[name] for d in decisions]) for name in first.features},
        models={name: _model([d.model_outputs[name] for d in decisions]) for name in first.model_outputs},
        assigned_D=np.array(
            [assigned.setdefault(msgspec.json.encode([d.arms, d.params]), len(assigned)) for d in decisions],
            dtype=np.int64,
        ),
        assigned=list(assigned),
        chosen_D=np.array([NO_ROW if d.chosen is None else d.chosen for d in decisions], dtype=np.int64),
        survives_R=np.array(_joined(d.survivors for d in decisions), dtype=np.bool_),
        score_R=score.values,
        scored_R=score.valid,
        propensity_R=np.array(_joined(d.propensities for d in decisions), dtype=np.float64),
        reason_R=np.array(
            [
                NO_ROW if text is None else reasons.setdefault(text, len(reasons))
                for d in decisions
                for text in d.reasons
            ],
            dtype=np.int16,
        ),
        reasons=list(reasons),
        fired_R=np.array(_joined(d.fired for d in decisions), dtype=np.int64),
        unknown_R=np.array(_joined(d.unknown for d in decisions), dtype=np.int64),
        outputs={name: raw_of(_joined(d.outputs[name] for d in decisions)) for name in first.outputs},
        heads_D=[encode(_head(d)) for d in decisions],
    )


def _joined(lists: Iterable[Sequence[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))


def raw_of(values: Sequence[Any]) -> Raw:
    """A column of plain values. Whole numbers among doubles stay apart (`mixed`): JSON as we write it has none."""
    found = set(map(type, values))
    nullable = type(None) in found
    found.discard(type(None))
    if not found:
        return Raw("null", np.zeros(len(values), dtype=np.bool_), np.zeros(len(values), dtype=np.bool_))
    kind = _KINDS.get(next(iter(found)), "mixed") if len(found) == 1 else "mixed"
    if kind == "double":
        return _doubles(values)
    valid = (
        np.array([value is not None for value in values], dtype=np.bool_) if nullable else np.ones(len(values), bool)
    )
    if kind in _DTYPES:
        filler = _FILLERS[kind]
        plain = [filler if value is None else value for value in values] if nullable else values
        try:
            return Raw(kind, np.array(plain, dtype=_DTYPES[kind]), valid)
        except OverflowError:  # beyond int64: no strategy declares that
            kind = "mixed"
    if nullable and kind == "string":
        values = ["" if value is None else value for value in values]
    return Raw(kind, _objects(values, texts=kind == "string"), valid)


def _doubles(values: Sequence[float | None]) -> Raw:
    doubles = np.array(values, dtype=np.float64)  # None becomes NaN, which JSON cannot say
    valid = ~np.isnan(doubles)
    doubles[~valid] = 0.0
    return Raw("double", doubles, valid)


def _objects(values: Sequence[Any], *, texts: bool) -> np.ndarray:
    out = np.empty(len(values), dtype=np.object_)
    if texts:
        out[:] = values
        return out
    for row, value in enumerate(values):  # a slice would spread lists of one length over a second axis
        out[row] = value
    return out


def _role(served: Sequence[ServedFeatures]) -> RoleColumns:
    """One role of all decisions: the cells lie feature by feature in each, and are put behind each other."""
    first = served[0]
    num_features = len(first.names)
    rows_D = np.array([one.rows for one in served], dtype=np.int64)
    cells = [np.frombuffer(one.values, dtype="<i8").reshape(num_features, one.rows) for one in served]
    statuses = [np.frombuffer(one.statuses, dtype=np.uint8).reshape(num_features, one.rows) for one in served]
    cells_FR, statuses_FR = np.concatenate(cells, axis=1), np.concatenate(statuses, axis=1)
    columns: dict[str, np.ndarray] = {}
    texts = _objects(_joined(one.strings for one in served) or [""], texts=True)
    firsts_D = np.concatenate(([0], np.cumsum([len(one.strings) for one in served])[:-1]))
    for f, (name, kind) in enumerate(zip(first.names, first.types, strict=True)):
        if kind == "double":
            columns[name] = cells_FR[f].view(np.float64)
        elif kind == "string":
            known = has_value(statuses_FR[f])
            places = np.where(known, cells_FR[f] + np.repeat(firsts_D, rows_D), 0)
            columns[name] = np.where(known, texts[places], "")
        else:
            columns[name] = cells_FR[f].astype(np.bool_ if kind == "bool" else np.int64)
    through = raw_of([one.applied_through_ms for one in served])
    return RoleColumns(
        view=first.view,
        generation=first.generation,
        names=tuple(first.names),
        types=tuple(first.types),
        rows_D=rows_D,
        through_ms_D=through.values.astype(np.int64),
        through_known_D=through.valid,
        columns=columns,
        statuses=statuses_FR,
    )


def _model(outputs: Sequence[ModelOutput]) -> ModelColumns:
    said = _doubles(_joined(output.values for output in outputs))
    return ModelColumns(
        model=outputs[0].model,
        model_hash=outputs[0].model_hash,
        source_D=np.array([SOURCES.index(output.source) for output in outputs], dtype=np.uint8),
        values=said.values,
        valid=said.valid,
    )


def _head(decision: Decision) -> Decision:
    """The record without its columns."""
    return msgspec.structs.replace(
        decision,
        request={},
        candidate_ids=[],
        candidates={},
        features={},
        model_outputs={},
        scores=[],
        propensities=[],
        survivors=[],
        reasons=[],
        fired=[],
        unknown=[],
        outputs={},
        arms={},
        params={},
    )


def _cell(raw: Raw, at: int) -> Any:
    return raw.values[at : at + 1].tolist()[0] if raw.valid[at] else None


def _part(raw: Raw, rows: slice) -> list[Any]:
    return Raw(raw.kind, raw.values[rows], raw.valid[rows]).tolist()

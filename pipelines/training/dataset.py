"""Samples to rows: the offered candidate of each decision, its features as served, and whether it was accepted.

Features come from the Decision's own bytes, never from a join, so training sees what serving saw; the column program is
the engine's own. Every sample becomes a row or is counted in `left_out` under one reason, the first of REASONS that holds.
Propensities are not used as weights (the outcome model is fitted on what was offered), but a sample whose propensities
speak of another offer, or say that the offered one was impossible, is broken and stays out. Read `split.py` next.

Shape legend: N rows, F inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from features.expr import Column, Type
from features.records import Decision, RecordError, decode
from features.rows import DTYPES, FeatureBatch, from_served
from pipelines.training.config import TrainingError

if TYPE_CHECKING:
    import pyarrow as pa

    from engine.model import ColumnProgram

# Why a sample is not a row, in the order in which they are looked at.
REASONS: Final = (
    "duplicate_sample",
    "other_strategy",
    "outside_time_range",
    "label_unknown",
    "propensity_unknown",  # no offer was seen yet
    "propensity_invalid",  # somebody else was offered
    "decision_malformed",
    "nobody_chosen",
    "zero_propensity",
    "field_missing",
    "feature_not_served",
    "wrong_type",
    "order_spans_splits",  # split.py: the order already stands in an earlier split
)
COLUMNS: Final = ("sample_id", "strategy", "event_time_ms", "propensity_valid", "decision")
ROWS_A_TICK: Final = 250
_ENVELOPE: Final = ("order_id", "city", "product")


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Usable rows in order of decision time, then sample id.

    Shapes: label (N,) int64 in {0, 1}; event_time_ms (N,) int64; columns[name] of N; slices[name] of N texts.
    `examples` holds for each reason the first sample it met. Always: rows_in == num_rows + left_out.total().
    `made_under` counts every decision that was read, row or not, by the fingerprint of the features applied then.
    """

    sample_id: list[str]
    order_id: NDArray[Any]
    event_time_ms: NDArray[np.int64]
    label: NDArray[np.int64]
    columns: Mapping[str, Column]
    slices: Mapping[str, list[str]]
    fingerprint_N: list[str]  # of the applied features, per row
    rows_in: int
    left_out: Counter[str]
    examples: Mapping[str, str]
    made_under: Counter[str]

    @property
    def num_rows(self) -> int:
        return len(self.label)

    @property
    def newest_fingerprint(self) -> str:
        """Of the applied features at the latest decision."""
        return self.fingerprint_N[-1]

    def inputs(self, program: ColumnProgram, rows: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """The graph's input for all rows or the given ones: (N, F) float32, by the engine's own column program."""
        picked = slice(None) if rows is None else rows
        columns = {
            name: Column(self.columns[name].values[picked], self.columns[name].valid[picked]) for name in program.reads
        }
        return program.evaluate(columns, self.num_rows if rows is None else len(rows))


@dataclass(frozen=True, kw_only=True)
class _Row:
    sample_id: str
    label: int
    decision: Decision
    values: Mapping[str, Any]  # None is null


class _LeftOut(Exception):
    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        assert reason in REASONS
        self.reason = reason


def build_dataset(
    table: pa.Table, names: Mapping[str, Type], *, strategy: str, label: str = "accepted",
    needed: Iterable[str], wanted: Iterable[str] = (),
    since_ms: int | None = None, until_ms: int | None = None, on_row: Callable[[int], None] | None = None,
) -> Dataset:  # fmt: skip
    """Rows from the folded samples (`pipelines.sample_fold.fold`, which gives each its decision or raises).

    `names` types what column programs may read. A sample without one of the `needed` names is left out; one of the
    `wanted` names (another model's) that it lacks is null instead.

    Raises: TrainingError if the table lacks a column, or a needed name is none that a Decision carries.
    """
    missing = [name for name in (*COLUMNS, label) if name not in table.column_names]
    if missing:
        raise TrainingError(
            f"the folded samples lack column {', '.join(missing)}; they have {', '.join(table.column_names)}"
        )
    needed = sorted(set(needed))
    wanted = sorted(set(wanted) - set(needed))
    if unknown := [name for name in needed if name not in names]:
        raise TrainingError(f"strategy {strategy} has no {', '.join(unknown)}; it has {', '.join(sorted(names))}")
    left_out: Counter[str] = Counter()
    examples: dict[str, str] = {}
    made_under: Counter[str] = Counter()
    rows: list[_Row] = []
    seen: set[str] = set()
    for number, sample in enumerate(_samples(table, label)):
        try:
            _check_sample(sample, seen, strategy, since_ms, until_ms, label)
            decision = _decision(sample["decision"])
            made_under[decision.schema_fingerprint] += 1
            rows.append(_row(sample, decision, names, needed, wanted, label))
        except _LeftOut as out:
            left_out[out.reason] += 1
            examples.setdefault(out.reason, f"{sample['sample_id']}: {out}")
        if on_row is not None and (number + 1) % ROWS_A_TICK == 0:
            on_row(number + 1)
    rows.sort(key=lambda row: (row.decision.event_time_ms, row.sample_id))
    return Dataset(
        sample_id=[row.sample_id for row in rows],
        order_id=np.array([row.decision.order_id for row in rows], dtype=object),
        event_time_ms=np.array([row.decision.event_time_ms for row in rows], dtype=np.int64),
        label=np.array([row.label for row in rows], dtype=np.int64),
        columns={name: _column([row.values[name] for row in rows], names[name]) for name in (*needed, *wanted)},
        slices=_slices([row.decision for row in rows]),
        fingerprint_N=[row.decision.schema_fingerprint for row in rows],
        rows_in=table.num_rows,
        left_out=left_out,
        examples=examples,
        made_under=made_under,
    )


def why_empty(data: Dataset) -> str:
    """The reasons of everything left out, most frequent first, each with an example."""
    counted = [f"{count} {reason} (as {data.examples[reason]})" for reason, count in data.left_out.most_common()]
    return f"of {data.rows_in} samples {data.num_rows} are usable; left out: {'; '.join(counted) or 'none'}"


def _samples(table: pa.Table, label: str) -> Iterable[dict[str, Any]]:
    """One dict per sample; batches, so that the payloads of a large log are not all Python objects at once."""
    for batch in table.select([*COLUMNS, label]).to_batches(max_chunksize=4096):
        yield from batch.to_pylist()


def _check_sample(
    sample: Mapping[str, Any], seen: set[str], strategy: str, since_ms: int | None, until_ms: int | None, label: str
) -> None:
    if sample["sample_id"] in seen:
        raise _LeftOut("duplicate_sample", "this id was read already; the fold should give one row each")
    seen.add(sample["sample_id"])
    if sample["strategy"] != strategy:
        raise _LeftOut("other_strategy", f"of strategy {sample['strategy']}")
    at = sample["event_time_ms"]
    if (since_ms is not None and at < since_ms) or (until_ms is not None and at >= until_ms):
        raise _LeftOut("outside_time_range", f"decided at {at}")
    if sample[label] is None:
        raise _LeftOut("label_unknown", f"{label} is not known")
    if sample["propensity_valid"] is None:
        raise _LeftOut("propensity_unknown", "no offer was seen")
    if not sample["propensity_valid"]:
        raise _LeftOut("propensity_invalid", "the first offer went to another candidate")


def _row(
    sample: Mapping[str, Any], decision: Decision, names: Mapping[str, Type], needed: Sequence[str],
    wanted: Sequence[str], label: str,
) -> _Row:  # fmt: skip
    if decision.chosen is None:
        raise _LeftOut("nobody_chosen", "no candidate survived the rules, yet an answer was seen")
    if decision.propensities[decision.chosen] <= 0.0:
        raise _LeftOut("zero_propensity", "the chosen candidate has propensity 0")
    values = _Values(decision)
    read = {name: values.get(name, names[name]) for name in needed}
    for name in wanted:
        try:
            read[name] = values.get(name, names[name])
        except _LeftOut as out:
            if out.reason == "decision_malformed":
                raise
            read[name] = None
    return _Row(sample_id=sample["sample_id"], label=int(bool(sample[label])), decision=decision, values=read)


def _decision(raw: bytes) -> Decision:
    """The payload, with the shapes that the record's schema cannot check."""
    try:
        decision = decode(raw, Decision)
    except RecordError as error:
        raise _LeftOut("decision_malformed", str(error)) from None
    num = len(decision.candidate_ids)
    lengths = {"propensities": len(decision.propensities)} | {
        f"candidates.{k}": len(v) for k, v in decision.candidates.items()
    }
    if wrong := [f"$.{name} has {length} entries" for name, length in lengths.items() if length != num]:
        raise _LeftOut("decision_malformed", f"{num} candidates, but {', '.join(wrong)}")
    if decision.chosen is not None and not 0 <= decision.chosen < num:
        raise _LeftOut("decision_malformed", f"$.chosen is {decision.chosen} of {num} candidates")
    return decision


class _Values:
    """What one decision knew of its chosen candidate, by the names of the expression language."""

    def __init__(self, decision: Decision) -> None:
        assert decision.chosen is not None
        self._decision = decision
        self._chosen: int = decision.chosen
        self._batches: dict[str, FeatureBatch] = {}

    def get(self, name: str, type_: Type) -> Any:
        """The value, None for null. Raises: _LeftOut where it is not there or not of the type."""
        role, dot, feature = name.partition(".")
        if dot:
            return self._feature(role, feature, type_)
        value = self._field(name, type_)
        if value is None:
            if type_.nullable:
                return None
            raise _LeftOut("field_missing", f"`{name}` is null, but its type is {type_}")
        if not _fits(value, type_.kind):
            raise _LeftOut("wrong_type", f"`{name}` is {value!r}, expected {type_}")
        return value

    def _field(self, name: str, type_: Type) -> Any:
        decision = self._decision
        if name in decision.candidates:
            return decision.candidates[name][self._chosen]
        if name == decision.candidate_key:
            return decision.candidate_ids[self._chosen]
        if name in _ENVELOPE:
            return getattr(decision, name)
        if name not in decision.request and not type_.nullable:
            raise _LeftOut("field_missing", f"`{name}` is neither a field of the request nor of the candidates")
        return decision.request.get(name)

    def _feature(self, role: str, feature: str, type_: Type) -> Any:
        if role not in self._batches:
            self._batches[role] = self._batch(role)
        batch = self._batches[role]
        if feature not in batch.columns:
            raise _LeftOut("feature_not_served", f"role {role} was served without `{feature}` (view {batch.view})")
        served = batch.types[batch.names.index(feature)]
        if served != type_.kind:
            raise _LeftOut("wrong_type", f"`{role}.{feature}` was served as {served}, expected {type_}")
        row = self._chosen if batch.num_rows > 1 else 0
        if batch.valid[feature][row]:
            return batch.columns[feature][row]
        if type_.nullable:
            return None
        raise _LeftOut("feature_not_served", f"`{role}.{feature}` had no value then; it is {type_} now")

    def _batch(self, role: str) -> FeatureBatch:
        served = self._decision.features.get(role)
        if served is None:
            raise _LeftOut("feature_not_served", f"no features of role {role}")
        if served.rows not in (1, len(self._decision.candidate_ids)):
            raise _LeftOut("decision_malformed", f"$.features.{role}.rows is {served.rows}")
        try:
            return from_served(served)
        except (ValueError, KeyError, IndexError) as error:
            raise _LeftOut("decision_malformed", f"$.features.{role}: {error}") from None


def _fits(value: Any, kind: str) -> bool:
    if kind == "double":
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, bool if kind == "bool" else str)


def _column(values: Sequence[Any], type_: Type) -> Column:
    """A typed column with its mask; a cell without a value holds the type's zero."""
    zero: Any = "" if type_.kind == "string" else 0
    valid = np.array([value is not None for value in values], dtype=bool)
    filled = np.array([zero if value is None else value for value in values], dtype=DTYPES[type_.kind])
    if type_.kind == "double":  # NaN as a value is null (DESIGN §5)
        valid &= ~np.isnan(filled)
        filled = np.where(valid, filled, 0.0)
    return Column(filled, valid)


def _slices(decisions: Sequence[Decision]) -> dict[str, list[str]]:
    """The groups in which calibration is shown apart."""
    slices: dict[str, list[str]] = {
        "hour_utc": [f"{datetime.fromtimestamp(d.event_time_ms / 1000, UTC).hour:02d}" for d in decisions],
        "decided_by": [d.decided_by for d in decisions],
        "quality": [d.quality for d in decisions],
        "candidates": [
            "1" if len(d.candidate_ids) == 1 else "2-5" if len(d.candidate_ids) <= 5 else "6+" for d in decisions
        ],
    }
    for experiment in sorted({name for d in decisions for name in d.arms}):
        slices[f"arm.{experiment}"] = [d.arms.get(experiment, "none") for d in decisions]
    return slices

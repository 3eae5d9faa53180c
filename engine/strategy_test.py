"""The tests of a strategy run: each case decided as the engine decides, without store, model files or clock.

    suite = load_suite(Path("engine/strategies/express_dispatch.yaml"), registry)
    results = [run_case(suite, case) for case in suite.cases]

`engine/case_file.py` is how cases are written, `engine/coverage.py` what they reached. Parameters have their defaults, and
no experiment touches them, unless a case pins `arms` or says `assign: true`: a test of rules must not depend on the hash
of an order's id.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from engine.case_file import Case, Expected, read_cases
from engine.case_values import Feature
from engine.decide import LiveStrategy, decide
from engine.explain import explain
from engine.loader import load_strategy
from engine.model import ColumnProgram, Model
from engine.request import RequestError, parse
from engine.rules import ColumnRules
from engine.strategy import CompiledStrategy, Role
from engine.wire_values import to_column
from features.expr import STRING, Column, Mistake, SourceText, Type, compile_expr
from features.read_plan import ReadPlan, compile_read_plan
from features.records import Decision
from features.rows import UNKNOWN_AGE_MS, FeatureBatch, Status, empty_column
from features.spec import Key
from features.yaml_source import MapNode, Node, mistake

if TYPE_CHECKING:
    from features.registry import Registry


@dataclass(frozen=True, kw_only=True, eq=False)
class Suite:
    """A strategy with its cases, ready to run."""

    compiled: CompiledStrategy
    plan: ReadPlan
    file: str
    cases: tuple[Case, ...]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What came instead of what was expected, at the place of the expectation; `explained` is why, of the candidate concerned."""

    mistake: Mistake
    explained: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """`decision` is None where the request was refused. `seconds` from the request to the last comparison."""

    case: Case
    decision: Decision | None
    failures: tuple[Failure, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.failures


def load_suite(path: Path, registry: Registry) -> Suite | None:
    """A strategy file and the tests that it names; None when it names none.

    Raises: Mistakes of either file; FileNotFoundError for a file of tests that is not there.
    """
    compiled = load_strategy(path, registry.catalogue, schema_fingerprint=registry.fingerprint)
    if compiled.strategy.tests is None:
        return None
    tests = path.resolve().parent / compiled.strategy.tests
    return Suite(
        compiled=compiled,
        plan=compile_read_plan(registry, {role.name: role.view.name for role in compiled.strategy.roles}),
        file=str(tests),
        cases=tuple(read_cases(tests, compiled)),
    )


def run_case(suite: Suite, case: Case) -> CaseResult:
    """Decide one case and compare."""
    started = time.perf_counter()
    compiled = _pinned(suite.compiled, case)
    clock = _HandClock()
    live = LiveStrategy(
        compiled=compiled,
        plan=suite.plan,
        models={name: _model(compiled, name, said, clock) for name, said in case.models.items()},
        broken_models=frozenset(),
        rules=ColumnRules(compiled),
    )
    try:
        request = parse(compiled, msgspec.json.encode(case.body))
    except RequestError as error:
        failure = Failure(mistake=mistake(_place(case, error.path), "request", f"refused: {error}", error.hint))
        return CaseResult(case=case, decision=None, failures=(failure,), seconds=time.perf_counter() - started)
    decision = decide(live, request, _GivenFeatures(compiled, case), clock=clock, killed=case.killed)
    failures = tuple(failure for wanted in case.expect for failure in _compare(wanted, decision, case, compiled))
    return CaseResult(case=case, decision=decision, failures=failures, seconds=time.perf_counter() - started)


# What a case puts in place of the store, the models and the clock -----------------------------------------------------


def _pinned(compiled: CompiledStrategy, case: Case) -> CompiledStrategy:
    """The strategy with the parameters of the case, and with experiments only where it asks for them."""
    values = dict(compiled.param_values)
    for split in compiled.arms:
        wanted = case.arms.get(split.experiment.name)
        for arm, settings in zip(split.experiment.arms, split.values, strict=True):
            values |= settings if arm.name == wanted else {}
    values |= case.params
    types = {name: Type(param.type, False) for name, param in compiled.strategy.params.items()}
    pinned = {
        *case.params,
        *(
            name
            for split in compiled.arms
            if split.experiment.name in case.arms
            for arm in split.values
            for name in arm
        ),
    }
    arms = [
        replace(
            split,
            values=tuple({name: value for name, value in arm.items() if name not in pinned} for arm in split.values),
            columns=tuple(
                {name: column for name, column in arm.items() if name.removeprefix("params.") not in pinned}
                for arm in split.columns
            ),
        )
        for split in compiled.arms
    ]
    return replace(
        compiled,
        param_values=values,
        param_columns={f"params.{name}": to_column([value], types[name]) for name, value in values.items()},
        arms=tuple(arms) if case.assign else (),
    )


class _HandClock:
    """Stands still until a late model moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class _GivenModel(Model):
    """Says of each candidate what the case says, late if the case says so."""

    def __init__(self, ref: str, key: str, said: Mapping[str, float | None], clock: _HandClock, takes_s: float) -> None:
        name, _, version = ref.partition("@")
        reads = ColumnProgram(names={key: STRING}, columns=((key, compile_expr(SourceText(key), {key: STRING}), 0.0),))
        super().__init__({"name": name, "version": version, "model_hash": "given by a test"}, reads, None)
        self.key, self.said, self.clock, self.takes_s = key, said, clock, takes_s

    def score(self, columns: Mapping[str, Column], num_rows: int) -> np.ndarray:
        """Shapes: returns (num_rows,) float64, NaN where nothing is said."""
        self.clock.now += self.takes_s
        said = [self.said.get(candidate) for candidate in columns[self.key].values[:num_rows]]
        return np.array([math.nan if value is None else value for value in said], dtype=np.float64)


def _model(
    compiled: CompiledStrategy, use_name: str, said: str | Mapping[str, float | None], clock: _HandClock
) -> Model | None:
    use = compiled.strategy.models[use_name]
    if said == "absent":
        return None
    takes_s = 2.0 * use.deadline_ms / 1000.0 if said == "late" else 0.0
    by_id = {} if isinstance(said, str) else said
    return _GivenModel(f"{use.model}@{use.version}", compiled.strategy.candidate_key, by_id, clock, takes_s)


class _GivenFeatures:
    """The features of a case, in the place of a store."""

    def __init__(self, compiled: CompiledStrategy, case: Case) -> None:
        self.compiled, self.case = compiled, case

    def read(self, plan: ReadPlan, keys: Mapping[str, Sequence[Key]], as_of_ms: int) -> dict[str, FeatureBatch] | None:
        if self.case.features is None:
            return None
        out = {}
        for role in self.compiled.strategy.roles:
            too_old_ms = role.view.max_age_ms + 1 if role.name in self.case.stale else 1
            out[role.name] = _batch(role, self.case.features[role.name], as_of_ms - too_old_ms)
        return out


def _batch(role: Role, rows: Sequence[Mapping[str, Feature]], through_ms: int) -> FeatureBatch:
    """Features as the store would serve them: a declared default stands in for a value that is not there."""
    specs = role.view.features
    columns = {spec.name: empty_column(spec.type, len(rows)) for spec in specs}
    statuses = np.empty((len(rows), len(specs)), dtype=np.uint8)
    for at, spec in enumerate(specs):
        for row, given in enumerate(rows):
            feature = given.get(spec.name, Feature(None, Status.MISSING))
            if feature.value is None and spec.default is not None:
                feature = Feature(spec.default, Status.DEFAULT)
            if feature.value is not None:
                columns[spec.name][row] = feature.value
            statuses[row, at] = feature.status
    return FeatureBatch(
        view=role.view.name,
        generation=1,
        applied_through_ms=through_ms,
        names=tuple(spec.name for spec in specs),
        types=tuple(spec.type for spec in specs),
        columns=columns,
        valid={spec.name: np.isin(statuses[:, at], (Status.PRESENT, Status.DEFAULT)) for at, spec in enumerate(specs)},
        statuses=statuses,
        ages_ms=np.full(statuses.shape, UNKNOWN_AGE_MS, dtype=np.int64),
    )


# What came, against what was expected ---------------------------------------------------------------------------------


def _compare(wanted: Expected, decision: Decision, case: Case, compiled: CompiledStrategy) -> Iterator[Failure]:
    """One failure for each difference."""
    found = _found(wanted, decision, compiled)
    if wanted.what == "dropped":
        for candidate in sorted({*found, *wanted.value}, key=decision.candidate_ids.index):
            got, should = found.get(candidate), wanted.value.get(candidate)
            if got != should:
                node = wanted.node.get(candidate) if isinstance(wanted.node, MapNode) else None
                text = f"{candidate} {_fate(got)}, expected {_fate(should)}"
                yield _failure(node or wanted.node, text, decision, candidate, compiled)
        return
    if _same(found, wanted.value, case.tolerance, ordered=wanted.what not in ("fired", "unknown")):
        return
    what = " ".join(part for part in (wanted.what, wanted.candidate, wanted.name) if part)
    text = f"{what} is {_show(found)}, expected {_show(wanted.value)}"
    concerned = wanted.candidate or _first_difference(wanted, found)
    yield _failure(wanted.node, text, decision, concerned, compiled)


def _found(wanted: Expected, decision: Decision, compiled: CompiledStrategy) -> Any:
    """What the decision says of the thing expected."""
    ids = decision.candidate_ids
    row = ids.index(wanted.candidate) if wanted.candidate in ids else None
    if wanted.what == "chosen":
        return None if decision.chosen is None else ids[decision.chosen]
    if wanted.what == "order":
        ties = decision.candidates.get(compiled.strategy.rank.ties, ids)
        ranked = sorted((-score, ties[at], ids[at]) for at, score in enumerate(decision.scores) if score is not None)
        return [candidate for *_, candidate in ranked]
    if wanted.what == "dropped":
        return {candidate: reason for candidate, reason in zip(ids, decision.reasons, strict=True) if reason}
    if wanted.what in ("arms", "params"):
        return getattr(decision, wanted.what).get(wanted.name)
    if wanted.what in ("quality", "decided_by"):
        return getattr(decision, wanted.what)
    assert row is not None  # the file was checked for candidates that are not there
    if wanted.what in ("fired", "unknown"):
        bits = getattr(decision, wanted.what)[row]
        return [rule.id for bit, rule in enumerate(compiled.strategy.rules) if bits >> bit & 1]
    if wanted.what == "outputs":
        return decision.outputs[str(wanted.name)][row]
    return getattr(decision, wanted.what)[row]


def _same(found: Any, wanted: Any, tolerance: float, *, ordered: bool) -> bool:
    numbers = isinstance(found, int | float) and isinstance(wanted, int | float)
    if numbers and not isinstance(found, bool) and not isinstance(wanted, bool):
        return math.isclose(found, wanted, rel_tol=tolerance, abs_tol=tolerance)
    if isinstance(found, list) and not ordered:
        return sorted(found) == sorted(wanted)
    return bool(found == wanted)


def _first_difference(wanted: Expected, found: Any) -> str | None:
    """The candidate that a reader will ask about: the one expected where another came."""
    if wanted.what == "chosen":
        return wanted.value or found
    if wanted.what == "order":
        pairs = zip([*wanted.value, None], [*found, None], strict=False)
        return next((a or b for a, b in pairs if a != b), None)
    return None


def _failure(node: Node, text: str, decision: Decision, candidate: str | None, compiled: CompiledStrategy) -> Failure:
    explained = explain(decision, candidate, compiled).lines if candidate in decision.candidate_ids else []
    return Failure(mistake=mistake(node, "expect", text), explained=tuple(explained))


def _fate(reason: str | None) -> str:
    return "survives" if reason is None else f"is dropped ({reason})"


def _show(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[{', '.join(map(_show, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _place(case: Case, path: str) -> Node:
    """The node that `$.candidates.eta_s[1]` or `$.request.hour` means, as near as the case has one."""
    section, _, rest = path.removeprefix("$.").partition(".")
    node = case.node.get(section) if isinstance(case.node, MapNode) else None
    inner = node.get(rest) if isinstance(node, MapNode) else None
    return inner or node or case.node

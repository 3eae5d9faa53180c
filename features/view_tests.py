"""The YAML tests of a view: given events and query times, expect values; run on the reference aggregator, no JVM.

    view: driver_activity
    cases:
      - name: a trip leaves the window by itself
        events:
          - {at: "08:00", driver_id: d-1, event_type: completed, fare_cents: 1200}
        expect:
          - {key: d-1, as_of: "08:10", values: {completed_15m: 1}}
          - {key: d-2, as_of: "08:10", values: {max_fare_24h: null}, statuses: {max_fare_24h: "null"}}

A view of a batch source has `rows` in place of `events`, a view without a source neither; `request: {distance_m: 900}` in
an expectation gives the request fields, and a key of several columns is `key: {zone: 1, product: pool}`.

`at` is the event time, `ingest` the arrival (default: the same moment); both, like `as_of`, are HH:MM[:SS[.mmm]] of one
day, with an optional "+Nd " in front, or epoch milliseconds. Columns that are left out are null, or "-" and 0 where the
source does not allow null. An event is known to a query when it arrived before it, and meets its fate as in the job.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from features.aggregate import replay
from features.expr import Column, Mistake, Mistakes
from features.registry import Registry
from features.rows import Status, empty_column
from features.spec import BatchSource, Catalogue, FeatureView, Key, Source
from features.store import InMemoryStore
from features.window import DAY_MS, HOUR_MS, MINUTE_MS
from features.yaml_fields import Fields, Problems
from features.yaml_source import MapNode, Node, ScalarNode, SeqNode, load_yaml, mistake, name_hint

DAY_START_MS: Final = 1_704_067_200_000  # 2024-01-01T00:00:00Z
_TIME = re.compile(r"(?:\+(?P<d>\d+)d )?(?P<h>\d\d):(?P<m>\d\d)(?::(?P<s>\d\d)(?:\.(?P<ms>\d{3}))?)?")
_STATUSES: Final = {status.name.lower(): status for status in Status}
EVENT, ARRIVAL = "at", "ingest"  # an event's times in a case, beside the columns of its source
_ABSENT: Final[dict[str, Any]] = {"int": 0, "double": 0.0, "bool": False, "string": "-"}
_KINDS: Final[dict[str, tuple[type, ...]]] = {"int": (int,), "double": (int, float), "bool": (bool,), "string": (str,)}


@dataclass(frozen=True, kw_only=True)
class Expectation:
    key: Key
    as_of_ms: int
    values: Mapping[str, tuple[Any, Node]]
    statuses: Mapping[str, tuple[Status, Node]]
    request: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """`events` are records of a stream or rows of a batch source, in the order of arrival (`ARRIVAL`)."""

    view: str
    name: str
    file: str
    line: int
    events: tuple[Mapping[str, Any], ...]
    expect: tuple[Expectation, ...]


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """`failures` say what came instead, each at the place of the expectation."""

    case: Case
    failures: tuple[Mistake, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.failures


def load_cases(folder: Path | str, catalogue: Catalogue) -> list[Case]:
    """All cases under `<folder>/tests`. Raises: Mistakes with every mistake of every file."""
    problems = Problems()
    cases = read_cases(folder, catalogue, problems)
    problems.raise_if_any()
    return cases


def read_cases(folder: Path | str, catalogue: Catalogue, problems: Problems) -> list[Case]:
    """The cases that can be understood; mistakes join `problems`. Where the definitions have mistakes of their own,
    the tests of such views are left alone: what they say may be right."""
    wrong = {item.file for item in problems.items}
    cases: list[Case] = []
    for path in sorted((Path(folder) / "tests").glob("*.yaml")):
        try:
            node = load_yaml(path, name=str(path))
        except Mistakes as error:
            problems.extend(error.items)
            continue
        fields = Fields(node, problems, ("view", "cases"), "a test file")
        if wrong and fields.text("view") not in catalogue.views:
            continue
        name = fields.choice("view", tuple(catalogue.views))
        if name is not None and catalogue.views[name].file not in wrong:
            cases += [_case(item, catalogue.views[name], problems) for item in _items(fields, "cases")]
    return cases


def run_case(case: Case, registry: Registry) -> CaseResult:
    """Each query sees a store that holds what had arrived before it."""
    from features.read_plan import compile_read_plan

    started = time.perf_counter()
    view = registry.catalogue.views[case.view]
    plan = compile_read_plan(registry, {"view": case.view})
    failures: list[Mistake] = []
    for wanted in case.expect:
        store = InMemoryStore(registry.project)
        known = [event for event in case.events if event[ARRIVAL] < wanted.as_of_ms]
        if isinstance(view.source, Source):
            replay(store, registry.catalogue, registry.generations(), view.source, known)
        elif view.source is not None and known:
            _write_rows(store, registry, view, known)
        asked = {name: _column(view.request[name], value) for name, value in wanted.request.items()}
        batch = store.read(plan, {"view": [wanted.key]}, wanted.as_of_ms, request={"view": asked})["view"]
        row = batch.row(0)
        for name, (value, node) in wanted.values.items():
            if not _same(row[name], value):
                failures.append(mistake(node, "expect", f"{name} is {_show(row[name])}, expected {_show(value)}"))
        for name, (status, node) in wanted.statuses.items():
            got = Status(batch.statuses[0, batch.names.index(name)])
            if got != status:
                message = f"{name} is {got.name.lower()}, expected {status.name.lower()}"
                failures.append(mistake(node, "expect", message))
    return CaseResult(case=case, failures=tuple(failures), seconds=time.perf_counter() - started)


def _write_rows(store: InMemoryStore, registry: Registry, view: FeatureView, rows: Sequence[Mapping[str, Any]]) -> None:
    group = registry.catalogue.row_group_of(view)
    keyed = [(key, row) for row in rows if (key := group.key_of(row)) is not None]
    store.write_rows(
        group,
        registry.generation_of(group.name),
        [key for key, _ in keyed],
        np.array([row[EVENT] for _, row in keyed], dtype=np.int64),
        np.array([row[ARRIVAL] * 1000 for _, row in keyed], dtype=np.int64),
        {field.name: [row[field.name] for _, row in keyed] for field in group.fields},
        max_age_ms=view.max_age_ms,
    )


def _column(type_name: str, value: Any) -> Column:
    kind = type_name.removesuffix("?")
    column = empty_column(kind, 1)
    if value is not None:
        column[0] = value
    return Column(column, np.array([value is not None]))


def _case(node: Node, view: FeatureView, problems: Problems) -> Case:
    given = {"stream": ("events",), "batch": ("rows",), "request": ()}[view.kind]
    fields = Fields(node, problems, ("name", *given, "expect"), f"a case of a {view.kind} view")
    events = [_event(item, view, problems, i) for name in given for i, item in enumerate(_items(fields, name))]
    return Case(
        view=view.name,
        name=fields.text("name") or "",
        file=node.file,
        line=node.line,
        events=tuple(sorted(events, key=lambda event: event[ARRIVAL])),
        expect=tuple(_expectation(item, view, problems) for item in _items(fields, "expect")),
    )


def _items(fields: Fields, name: str) -> list[Node]:
    node = fields.optional(name)
    if isinstance(node, SeqNode):
        return list(node)
    fields.problems.add(node or fields.node, "missing", f"{fields.what} needs '{name}', a list")
    return []


def _event(node: Node, view: FeatureView, problems: Problems, index: int) -> dict[str, Any]:
    """A record of a stream or a row of a batch source, with its two times under EVENT and ARRIVAL too."""
    source = view.source
    assert source is not None
    times = {source.event_time, source.ingest_time, source.valid_to if isinstance(source, BatchSource) else None}
    columns = [name for name in source.schema if name not in times]
    what = "an event" if isinstance(source, Source) else "a row"
    fields = Fields(node, problems, ("at", "ingest", *columns), what)
    event: dict[str, Any] = {}
    for name in columns:
        kind, nullable = source.schema[name].removesuffix("?"), source.schema[name].endswith("?")
        value = _value(fields, name, source.schema[name])
        event[name] = value if value is not None or nullable else _ABSENT[kind]
    if isinstance(source, Source) and not fields.has(source.event_id):
        event[source.event_id] = f"e{index:04d}"
    event[EVENT] = _time(fields, "at") or 0
    ingest_ms = _time(fields, "ingest") if fields.has("ingest") else None
    event[ARRIVAL] = event[EVENT] if ingest_ms is None else ingest_ms
    if isinstance(source, Source):
        event |= {source.event_time: event[EVENT], source.ingest_time: event[ARRIVAL]}
    return event


def _value(fields: Fields, name: str, type_name: str) -> Any:
    """The value of a field, None where there is none; one of another type is noted."""
    given, kind = fields.scalar(name, required=False), type_name.removesuffix("?")
    if given is None:
        return None
    if not isinstance(given.value, _KINDS[kind]) or isinstance(given.value, bool) != (kind == "bool"):
        fields.problems.add(given, "type", f"'{name}' is {type_name}, not {given.text}")
        return None
    return given.value


def _request(fields: Fields, view: FeatureView) -> dict[str, Any]:
    """The request fields of an expectation; those that may be null need not be given."""
    node = fields.optional("request")
    if node is None:
        missing = [name for name, kind in view.request.items() if not kind.endswith("?")]
        if missing:
            text = f"view '{view.name}' needs the request fields {', '.join(missing)}"
            fields.problems.add(fields.node, "request", text, f"write request: {{{missing[0]}: …}}")
        return dict.fromkeys(view.request)
    inner = Fields(node, fields.problems, tuple(view.request), f"the request of view '{view.name}'")
    for name, kind in view.request.items():
        if not inner.has(name) and not kind.endswith("?"):
            inner.problems.add(node, "request", f"request field '{name}' is {kind} and never null")
    return {name: _value(inner, name, kind) for name, kind in view.request.items()}


def _expectation(node: Node, view: FeatureView, problems: Problems) -> Expectation:
    fields = Fields(node, problems, ("key", "as_of", "request", "values", "statuses"), "an expectation")
    key = _key(fields, view)
    values = {name.text: (value.value, value) for name, value in _features(fields, "values", view, problems)}
    statuses: dict[str, tuple[Status, Node]] = {}
    for name, value in _features(fields, "statuses", view, problems):
        if value.text in _STATUSES:
            statuses[name.text] = (_STATUSES[value.text], value)
        else:
            problems.add(value, "status", f"unknown status '{value.text}'", f"known are {', '.join(_STATUSES)}")
    as_of_ms = _time(fields, "as_of")
    return Expectation(
        key=key, as_of_ms=as_of_ms or 0, values=values, statuses=statuses, request=_request(fields, view)
    )


def _key(fields: Fields, view: FeatureView) -> Key:
    """`key: d-1`, or of several columns `key: {zone: 1, product: x}`; what cannot be read is "" and noted."""
    entity, problems = view.entity, fields.problems
    if len(entity.keys) == 1:
        nodes = [fields.scalar("key")]
    elif isinstance(fields.optional("key"), MapNode):
        inner = Fields(fields.node_of("key"), problems, entity.join_keys, f"a key of entity '{entity.name}'")
        nodes = [inner.scalar(name) for name in entity.join_keys]
    else:
        hint = f"write key: {{{', '.join(f'{name}: …' for name in entity.join_keys)}}}"
        problems.add(
            fields.node_of("key"), "key", f"a key of entity '{entity.name}' has {len(entity.keys)} columns", hint
        )
        return ""
    values: list[Any] = []
    for column, node in zip(entity.keys, nodes, strict=True):
        wanted = str if column.type == "string" else int
        if node is not None and (
            not isinstance(node.value, wanted) or isinstance(node.value, bool) or not column.holds(node.value)
        ):
            problems.add(node, "type", f"a key of entity '{entity.name}' is {column.type}, not {node.text}")
        values.append("" if node is None else node.value)
    return values[0] if len(values) == 1 else tuple(values)


def _features(fields: Fields, name: str, view: FeatureView, problems: Problems) -> list[tuple[ScalarNode, ScalarNode]]:
    node = fields.optional(name)
    if node is None:
        return []
    if not isinstance(node, MapNode):
        problems.add(node, "type", f"'{name}' must be a mapping of features")
        return []
    known = [spec.name for spec in view.features]
    out = []
    for key, value in node.items():
        if key.text not in known:
            message = f"view '{view.name}' ({view.file}) has no feature '{key.text}'"
            problems.add(key, "unknown", message, name_hint(key.text, known))
        elif isinstance(value, ScalarNode):
            out.append((key, value))
        else:
            problems.add(value, "type", "expected a single value")
    return out


def _time(fields: Fields, name: str) -> int | None:
    node = fields.scalar(name)
    if node is None:
        return None
    if isinstance(node.value, int) and not isinstance(node.value, bool):
        return node.value
    match = _TIME.fullmatch(node.text)
    if match is None:
        fields.problems.add(
            node, "time", f"'{node.text}' is not a time", 'write "08:30", "08:30:00.250" or "+1d 08:30"'
        )
        return None
    part = {unit: int(text or 0) for unit, text in match.groupdict().items()}
    in_day_ms = part["h"] * HOUR_MS + part["m"] * MINUTE_MS + part["s"] * 1000 + part["ms"]
    return DAY_START_MS + part["d"] * DAY_MS + in_day_ms


def _same(got: Any, wanted: Any) -> bool:
    if isinstance(got, float) and isinstance(wanted, int | float):
        return math.isclose(got, wanted, rel_tol=1e-9)
    return got == wanted and (got is None) == (wanted is None)


def _show(value: Any) -> str:
    return "null" if value is None else repr(value)

"""The features of one view: aggregates over a stream's columns, columns of a batch source, and expressions over the
view's features and request fields."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from features.aggregate_fields import NUMERIC, OPTIONS, AggregateOptions, load_options, takes_window, value_type
from features.declared import UNITS
from features.expr import Facts, Mistake, Mistakes, Program, Type, compile_expr, parse_type
from features.expr.checks import check_facts
from features.expr.units import check_units, parse_unit
from features.spec import AGGREGATES, BatchSource, ColumnFacts, FeatureSpec, Source
from features.window_fields import check_window
from features.yaml_fields import Fields, Problems
from features.yaml_source import ScalarNode

_KEYS = (
    "aggregate",
    "column",
    "of",
    "where",
    "window",
    "hop",
    *OPTIONS,
    "expr",
    "type",
    "default",
    "unit",
    "description",
)
_DEFAULT_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "int": (int,),
    "double": (int, float),
    "bool": (bool,),
    "string": (str,),
}
_STREAM_ONLY: Final = ("of", "where", "window", "hop", *OPTIONS)


def load_features(
    view: Fields,
    source: Source | BatchSource | None,
    request: Mapping[str, str],
    request_facts: Mapping[str, ColumnFacts],
    *,
    known_source: bool,
) -> tuple[FeatureSpec, ...]:
    """All features of a view in the order in which they are written; those with mistakes are left out and noted.

    `known_source` False: the source was not readable, so nothing that depends on its columns is compiled.
    """
    known: dict[str, FeatureSpec] = {}
    pending: dict[str, Fields] = {}
    entries = view.entries("features")
    for key, node in entries:
        fields = Fields(node, view.problems, _KEYS, f"feature '{key.text}'")
        kinds = [name for name in ("aggregate", "column", "expr") if fields.has(name)]
        if len(kinds) != 1:
            _add_kind_mistake(key, fields, source)
        elif kinds == ["expr"]:
            pending[key.text] = fields
            _refuse(fields, _STREAM_ONLY, "'expr'")
        else:
            if source is None and known_source:
                what = "a stream" if kinds == ["aggregate"] else "a batch source"
                message = f"'{kinds[0]}' is for views with {what}, and this one has no source"
                view.problems.add(fields.node_of(kinds[0]), "feature", message)
            load = _column if kinds == ["column"] else _aggregated
            spec = load(key, fields, source)
            if spec is not None:
                known[key.text] = spec
    if not known_source:
        return ()
    # An expression over a feature that has a mistake of its own would only repeat that mistake.
    broken = {key.text for key, _ in entries} - set(known) - set(pending)
    _derived(
        pending, known, broken, _Asked(request, request_facts, {} if source is None else source.facts), view.problems
    )
    return tuple(known[key.text] for key, _ in entries if key.text in known)


def _add_kind_mistake(key: ScalarNode, fields: Fields, source: Source | BatchSource | None) -> None:
    own = "'column'" if isinstance(source, BatchSource) else "'aggregate'"
    fields.problems.add(key, "feature", f"feature '{key.text}' needs either {own} or 'expr'")


def _refuse(fields: Fields, names: Sequence[str], what: str) -> None:
    for name in names:
        if fields.has(name):
            fields.problems.add(fields.node_of(name), "feature", f"'{name}' does not go with {what}")


def _column(key: ScalarNode, fields: Fields, source: Source | BatchSource | None) -> FeatureSpec | None:
    """`column: rating`: a column of a batch source as it is."""
    before = len(fields.problems.items)
    _refuse(fields, _STREAM_ONLY, "'column'")
    if isinstance(source, Source):
        message = f"'column' is for batch sources, and '{source.name}' is a stream"
        hint = f"for its newest value write {{aggregate: last, of: {fields.text('column')}}}"
        fields.problems.add(fields.node_of("column"), "feature", message, hint)
    if not isinstance(source, BatchSource):
        return None
    column = fields.choice("column", tuple(source.schema))
    if column is None or len(fields.problems.items) > before:
        return None
    kind = parse_type(source.schema[column])
    unit = _unit_of(fields, source.facts.get(column, ColumnFacts()).unit)
    spec = _spec(key.text, fields, kind.kind, kind.nullable, None, None, None, None, None, None)
    return None if spec is None or unit is None else replace(spec, column=column, unit=unit)


def _aggregated(key: ScalarNode, fields: Fields, source: Source | BatchSource | None) -> FeatureSpec | None:
    before = len(fields.problems.items)
    if isinstance(source, BatchSource):
        message = f"'aggregate' is for streams, and '{source.name}' is a batch source"
        fields.problems.add(fields.node_of("aggregate"), "feature", message, "write column: and one of its columns")
        return None
    aggregate = fields.choice("aggregate", AGGREGATES)
    window_ms = hop_ms = None
    if aggregate is not None and not takes_window(aggregate):
        for name in ("window", "hop"):
            if fields.has(name):
                which = "newest" if aggregate == "last" else "oldest"
                message = f"'{name}' does not go with {aggregate}: it is the {which} value, however old"
                fields.problems.add(fields.node_of(name), "window", message, "its age is judged by the view's max_age")
    elif aggregate is not None:
        window_ms, hop_ms = fields.duration("window"), fields.duration("hop")
        check_window(fields, window_ms, hop_ms)
    columns = None if source is None else {name: parse_type(text) for name, text in source.schema.items()}
    of = compile_at(fields, "of", columns, None)
    where = compile_at(fields, "where", columns, Type("bool"))
    if aggregate not in (None, "count") and not fields.has("of"):
        fields.problems.add(key, "missing", f"{aggregate} needs 'of': the column or expression it is taken of")
    if aggregate in NUMERIC and of is not None and of.type.kind not in ("int", "double"):
        message = f"{aggregate} takes numbers, this is {of.type}"
        fields.problems.add(fields.node_of("of"), "type", message, "use last or count for text")
    options = AggregateOptions() if aggregate is None else load_options(fields, aggregate, of)
    unit = _unit_of_records(fields, aggregate, of, where, source)
    if source is None or aggregate is None or unit is None or len(fields.problems.items) > before:
        return None
    kind, nullable = value_type(aggregate, of)
    spec = _spec(key.text, fields, kind, nullable, aggregate, of, where, window_ms, hop_ms, None)
    if spec is None:
        return None
    return replace(spec, half_life_ms=options.half_life_ms, q=options.q, resolution=options.resolution, unit=unit)


def _unit_of_records(
    fields: Fields, aggregate: str | None, of: Program | None, where: Program | None, source: Source | None
) -> str | None:
    """The unit of an aggregate, None where what it reads of the records does not go together. A count has its own."""
    if source is None:
        return None
    facts = {name: Facts(unit=f.unit, low=f.low, high=f.high) for name, f in source.facts.items()}
    found = [item for program in (of, where) if program is not None for item in _errors(program, facts)]
    fields.problems.extend(found)
    if found:
        return None
    unit = "" if of is None or aggregate == "count" else check_units(of, facts)[0]
    return _unit_of(fields, unit)


def _unit_of(fields: Fields, computed: str) -> str | None:
    """The declared unit, else that of what is read where it has a name; None, with a mistake, where the two differ."""
    declared = fields.text("unit", required=False)
    given, read = parse_unit(declared or ""), parse_unit(computed)
    if given is not None and read is not None and not given.agrees(read):
        fields.problems.add(
            fields.node_of("unit"), "unit-mismatch", f"declared in {declared}, but the value is in {computed}"
        )
        return None
    return declared if declared is not None else computed if computed in UNITS else ""


def _errors(program: Program, facts: Mapping[str, Facts]) -> list[Mistake]:
    """A catalogue has no place for warnings."""
    return [item for item in check_facts(program, facts) if item.severity == "error"]


@dataclass(frozen=True)
class _Asked:
    """The request fields of a view, and what is known of them and of the source's columns."""

    types: Mapping[str, str]
    request: Mapping[str, ColumnFacts]
    columns: Mapping[str, ColumnFacts]

    def facts(self, known: Mapping[str, FeatureSpec]) -> dict[str, Facts]:
        """What is known of every name that an expression may read."""
        out = {name: Facts(unit=f.unit, low=f.low, high=f.high) for name, f in self.request.items()}
        for name, spec in known.items():
            read = self.columns.get(spec.column or "", ColumnFacts())
            low = 0.0 if spec.aggregate == "count" else read.low
            out[name] = Facts(unit=spec.unit, low=low, high=read.high)
        return out


def _derived(
    pending: dict[str, Fields], known: dict[str, FeatureSpec], broken: set[str], asked: _Asked, problems: Problems
) -> None:
    """Compile the expressions, each after those that it mentions. What is left mentions itself in a circle."""
    while pending:
        ready = [name for name, fields in pending.items() if not _words(fields.text("expr")) & set(pending)]
        if not ready:
            for name, fields in pending.items():
                message = f"'{name}' depends on itself through {', '.join(sorted(pending))}"
                problems.add(fields.node_of("expr"), "cycle", message)
            return
        for name in ready:
            fields = pending.pop(name)
            if _words(fields.text("expr")) & broken:
                broken.add(name)
                continue
            names = {other: parse_type(kind) for other, kind in asked.types.items()}
            names |= {other: parse_type(spec.local_type) for other, spec in known.items()}
            expr = compile_at(fields, "expr", names, None)
            spec = None
            if expr is not None and expr.type.kind == "null":
                problems.add(fields.node_of("expr"), "type", "this is always null")
            elif expr is not None and _agrees(fields, expr, asked.facts(known)):
                spec = _spec(name, fields, expr.type.kind, expr.type.nullable, None, None, None, None, None, expr)
            if spec is None:
                broken.add(name)
            else:
                known[name] = spec


def _agrees(fields: Fields, expr: Program, facts: Mapping[str, Facts]) -> bool:
    """Whether an expression agrees with the units of what it reads, and with its own."""
    found = _errors(expr, facts)
    fields.problems.extend(found)
    return not found and _unit_of(fields, check_units(expr, facts)[0]) is not None


def compile_at(fields: Fields, name: str, columns: Mapping[str, Type] | None, expect: Type | None) -> Program | None:
    """Compile the expression under a field; its mistakes join the others."""
    node = fields.scalar(name, required=False)
    if node is None or columns is None:
        return None
    try:
        return compile_expr(node.source(), columns, expect=expect)
    except Mistakes as error:
        fields.problems.extend(error.items)
        return None


def _spec(
    name: str,
    fields: Fields,
    kind: str,
    nullable: bool,
    aggregate: str | None,
    of: Program | None,
    where: Program | None,
    window_ms: int | None,
    hop_ms: int | None,
    expr: Program | None,
) -> FeatureSpec | None:
    before = len(fields.problems.items)
    declared = fields.choice("type", ("bool", "int", "double", "string"), required=False)
    if declared is not None and declared != kind:
        fields.problems.add(fields.node_of("type"), "type", f"declared as {declared}, but the value is {kind}")
    default = _default(fields, kind)
    unit = fields.choice("unit", UNITS, required=False)
    if len(fields.problems.items) > before:
        return None
    return FeatureSpec(
        name=name,
        type=kind,
        nullable=nullable,
        aggregate=aggregate,
        of=of,
        where=where,
        window_ms=window_ms,
        hop_ms=hop_ms,
        expr=expr,
        default=default,
        unit=unit or "",
        description=fields.text("description", required=False) or "",
        file=fields.node.file,
        line=fields.node.line,
    )


def _default(fields: Fields, kind: str) -> Any | None:
    node = fields.scalar("default", required=False)
    if node is None:
        return None
    fits = isinstance(node.value, _DEFAULT_KINDS[kind]) and isinstance(node.value, bool) == (kind == "bool")
    if not fits:
        fields.problems.add(node, "type", f"default {node.text} is not of the feature's type, {kind}")
        return None
    if isinstance(node.value, float) and not math.isfinite(node.value):
        fields.problems.add(node, "type", f"default {node.text} is not a finite number")
        return None
    return float(node.value) if kind == "double" and isinstance(node.value, int | float) else node.value


def _words(text: str | None) -> set[str]:
    """The names that an expression may mention; words inside its strings too, which at worst delays it a round."""
    return set(re.findall(r"[A-Za-z_]\w*", text or ""))

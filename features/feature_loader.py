"""The features of one view: aggregates over the source's columns, and expressions over the view's features."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from features.aggregate_fields import NUMERIC, OPTIONS, AggregateOptions, load_options, takes_window, value_type
from features.expr import Facts, Mistakes, Program, Type, compile_expr, parse_type
from features.expr.checks import check_facts
from features.expr.units import check_units, parse_unit
from features.spec import AGGREGATES, FeatureSpec, Source
from features.window import format_duration
from features.yaml_fields import Fields, Problems
from features.yaml_source import ScalarNode

_KEYS = ("aggregate", "of", "where", "window", "hop", *OPTIONS, "expr", "type", "default", "unit", "description")
_DEFAULT_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "int": (int,),
    "double": (int, float),
    "bool": (bool,),
    "string": (str,),
}
UNITS: Final = (
    ("trips", "offers", "events", "drivers", "riders", "requests")  # counted things
    + ("cents", "m", "km", "s", "ms", "min", "h", "m/s", "km/h")  # measured things
    + ("ratio", "zone", "status", "id", "1")  # shares, labels, pure numbers
)


def load_features(
    view: Fields, source: Source | None, *, max_window_ms: int, min_hop_ms: int, max_hop_ms: int
) -> tuple[FeatureSpec, ...]:
    """All features of a view in the order in which they are written; those with mistakes are left out and noted.

    `source` None: it was not readable, so nothing that depends on its columns is compiled.
    """
    known: dict[str, FeatureSpec] = {}
    pending: dict[str, Fields] = {}
    entries = view.entries("features")
    for key, node in entries:
        fields = Fields(node, view.problems, _KEYS, f"feature '{key.text}'")
        if fields.has("expr") == fields.has("aggregate"):
            view.problems.add(key, "feature", f"feature '{key.text}' needs either 'aggregate' or 'expr'")
        elif fields.has("expr"):
            pending[key.text] = fields
            for name in ("of", "where", "window", "hop", *OPTIONS):
                if fields.has(name):
                    view.problems.add(fields.node_of(name), "feature", f"'{name}' does not go with 'expr'")
        else:
            spec = _aggregated(key, fields, source, max_window_ms, min_hop_ms, max_hop_ms)
            if spec is not None:
                known[key.text] = spec
    if source is None:
        return ()
    # An expression over a feature that has a mistake of its own would only repeat that mistake.
    broken = {key.text for key, _ in entries} - set(known) - set(pending)
    _derived(pending, known, broken, view.problems)
    return tuple(known[key.text] for key, _ in entries if key.text in known)


def _aggregated(
    key: ScalarNode, fields: Fields, source: Source | None, max_window_ms: int, min_hop_ms: int, max_hop_ms: int
) -> FeatureSpec | None:
    before = len(fields.problems.items)
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
        _check_window(fields, window_ms, hop_ms, max_window_ms, min_hop_ms, max_hop_ms)
    columns = None if source is None else {name: parse_type(text) for name, text in source.schema.items()}
    of = compile_at(fields, "of", columns, None)
    where = compile_at(fields, "where", columns, Type("bool"))
    if aggregate not in (None, "count") and not fields.has("of"):
        fields.problems.add(key, "missing", f"{aggregate} needs 'of': the column or expression it is taken of")
    if aggregate in NUMERIC and of is not None and of.type.kind not in ("int", "double"):
        message = f"{aggregate} takes numbers, this is {of.type}"
        fields.problems.add(fields.node_of("of"), "type", message, "use last or count for text")
    options = AggregateOptions() if aggregate is None else load_options(fields, aggregate, of)
    if source is None or aggregate is None or len(fields.problems.items) > before:
        return None
    kind, nullable = value_type(aggregate, of)
    spec = _spec(key.text, fields, kind, nullable, aggregate, of, where, window_ms, hop_ms, None)
    if spec is None:
        return None
    return replace(spec, half_life_ms=options.half_life_ms, q=options.q, resolution=options.resolution)


def _check_window(
    fields: Fields, window_ms: int | None, hop_ms: int | None, max_window_ms: int, min_hop_ms: int, max_hop_ms: int
) -> None:
    if window_ms is not None and not 0 < window_ms <= max_window_ms:
        message = f"window {format_duration(window_ms)} is not within 1s and {format_duration(max_window_ms)}"
        fields.problems.add(fields.node_of("window"), "window", message)
    if hop_ms is not None and not min_hop_ms <= hop_ms <= max_hop_ms:
        message = f"hop {format_duration(hop_ms)} is not within {format_duration(min_hop_ms)} and {format_duration(max_hop_ms)}"
        fields.problems.add(fields.node_of("hop"), "window", message)
        return
    if window_ms is not None and hop_ms is not None and window_ms % hop_ms:
        message = f"window {format_duration(window_ms)} is not a multiple of hop {format_duration(hop_ms)}"
        below = window_ms - window_ms % hop_ms
        hint = f"the nearest are {format_duration(below or hop_ms)} and {format_duration(below + hop_ms)}"
        fields.problems.add(fields.node_of("window"), "window", message, hint)


def _derived(pending: dict[str, Fields], known: dict[str, FeatureSpec], broken: set[str], problems: Problems) -> None:
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
            names = {other: parse_type(spec.local_type) for other, spec in known.items()}
            expr = compile_at(fields, "expr", names, None)
            spec = None
            if expr is not None and expr.type.kind == "null":
                problems.add(fields.node_of("expr"), "type", "this is always null")
            elif expr is not None and _agrees(fields, expr, known):
                spec = _spec(name, fields, expr.type.kind, expr.type.nullable, None, None, None, None, None, expr)
            if spec is None:
                broken.add(name)
            else:
                known[name] = spec


def _agrees(fields: Fields, expr: Program, known: Mapping[str, FeatureSpec]) -> bool:
    """Whether an expression agrees with the units of what it reads, and with its own. Columns of sources have none.

    Only errors count: a catalogue has no place for warnings.
    """
    counts = {name: 0.0 for name, spec in known.items() if spec.aggregate == "count"}
    facts = {name: Facts(unit=spec.unit, low=counts.get(name)) for name, spec in known.items()}
    found = [item for item in check_facts(expr, facts) if item.severity == "error"]
    fields.problems.extend(found)
    unit = check_units(expr, facts)[0]
    declared = fields.text("unit", required=False) or ""
    given, computed = parse_unit(declared), parse_unit(unit)
    if found or given is None or computed is None or given.agrees(computed):
        return not found
    fields.problems.add(fields.node_of("unit"), "unit-mismatch", f"declared in {declared}, but the value is in {unit}")
    return False


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

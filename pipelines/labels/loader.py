"""YAML -> labels. All mistakes of all files are reported together, each with file, line and column.

One file a strategy; `express_dispatch.yaml` beside this file shows every field. What they mean: `spec.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from features.expr import Type, compile_expr, interpret, parse_type
from features.window import parse_duration_ms
from features.yaml_source import MapNode, Mistakes, Node, ScalarNode, load_yaml, mistake, name_hint
from pipelines.labels.spec import Condition, JoinedBy, LabelSet, LabelSpec, StrategyLabels

SHIPPED: Final = Path(__file__).parent
BITS_PER_LABEL: Final = 3
MAX_LABELS: Final = 63 // BITS_PER_LABEL  # of all strategies together: an outcome's answers are kept in one int64
DEFAULT_RETENTION: Final = "6h"

# What a condition may name: the fields of one TripEvent (features/records.py) and their types.
EVENT_TYPES: Final[Mapping[str, Type]] = {
    name: parse_type(text)
    for name, text in {
        "event_id": "string",
        "event_type": "string",
        "order_id": "string",
        "rider_id": "string",
        "city": "string",
        "product": "string",
        "pickup_zone": "int",
        "event_time_ms": "int",
        "ingest_time_ms": "int",
        "offer_id": "string?",
        "decision_id": "string?",
        "driver_id": "string?",
        "dropoff_zone": "int?",
        "fare_cents": "int?",
        "distance_m": "int?",
        "duration_s": "int?",
    }.items()
}
_STRATEGY_KEYS: Final = ("strategy", "retention", "labels")
_LABEL_KEYS: Final = ("joined_by", "positive_when", "negative_when", "closed_when", "redispatch", "wait", "window")
_REDISPATCH: Final = ("ignore", "negative")


def load_labels(folder: Path | str = SHIPPED) -> LabelSet:
    """Every `*.yaml` of a folder, in the order of their names.

    Raises: Mistakes with all mistakes of all files; FileNotFoundError when the folder has no label file.
    """
    paths = sorted(Path(folder).glob("*.yaml"))
    if not paths:
        raise FileNotFoundError(f"no label files (*.yaml) in {folder}")
    found = _Mistakes()
    strategies: list[StrategyLabels] = []
    named_at: dict[str, str] = {}
    for path in paths:
        try:
            node = load_yaml(path)
        except Mistakes as mistakes:
            found.items.extend(mistakes.items)
            continue
        loaded = _strategy(node, found, first_label=sum(len(s.labels) for s in strategies))
        if loaded is None:
            continue
        if loaded.strategy in named_at:
            at = node.get("strategy") if isinstance(node, MapNode) else node
            found.note(
                at or node,
                "duplicate",
                f"strategy '{loaded.strategy}' has labels already, in {named_at[loaded.strategy]}",
            )
            continue
        named_at[loaded.strategy] = str(path)
        strategies.append(loaded)
    if found.items:
        raise Mistakes(found.items)
    return LabelSet(tuple(strategies))


class _Mistakes:
    """Collects, so that an author sees all mistakes at once."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def note(self, node: Node, kind: str, message: str, hint: str = "") -> None:
        self.items.append(mistake(node, kind, message, hint))


def _strategy(node: Node, found: _Mistakes, *, first_label: int) -> StrategyLabels | None:
    if not isinstance(node, MapNode):
        found.note(node, "shape", "a label file is a mapping", f"its keys: {', '.join(_STRATEGY_KEYS)}")
        return None
    _refuse_unknown_keys(node, _STRATEGY_KEYS, found)
    name = node.get("strategy")
    if not isinstance(name, ScalarNode) or not isinstance(name.value, str):
        found.note(name or node, "missing", "`strategy` must name the strategy that these labels are for")
        name = None
    retention_ms = _duration(node, "retention", found, default=parse_duration_ms(DEFAULT_RETENTION))
    labels_node = node.get("labels")
    if not isinstance(labels_node, MapNode) or not len(labels_node):
        found.note(labels_node or node, "missing", "`labels` must be a mapping of at least one label")
        return None
    labels = []
    for rank, (key, value) in enumerate(labels_node.items(), start=first_label):
        if rank == MAX_LABELS:
            found.note(
                key,
                "too-many",
                f"label '{key.text}' is one too many: there is room for {MAX_LABELS} labels in all files together",
                "leave some out, or give the other strategies a folder and a sample job of their own",
            )
        label = _label(key, value, found, bit=rank * BITS_PER_LABEL)
        if label is None:
            continue
        if label.window_ms > retention_ms:
            found.note(
                key,
                "window",
                f"the window of '{label.name}' is longer than the file's retention",
                "a decision is forgotten after its retention: raise it, or shorten the window",
            )
        labels.append(label)
    if name is None:
        return None
    return StrategyLabels(strategy=str(name.value), retention_ms=retention_ms, labels=tuple(labels))


def _label(key: ScalarNode, node: Node, found: _Mistakes, *, bit: int) -> LabelSpec | None:
    if not isinstance(node, MapNode):
        found.note(node, "shape", f"label '{key.text}' must be a mapping", f"its keys: {', '.join(_LABEL_KEYS)}")
        return None
    if not key.text.isidentifier():
        found.note(key, "name", f"'{key.text}' cannot name a column", "use letters, digits and _")
    before = len(found.items)
    _refuse_unknown_keys(node, _LABEL_KEYS, found)
    joined_by = _choice(node, "joined_by", tuple(j.value for j in JoinedBy), found, required=True)
    redispatch = _choice(node, "redispatch", _REDISPATCH, found, required=False) or "ignore"
    conditions = {name: _condition(node, name, found) for name in ("positive_when", "negative_when", "closed_when")}
    if node.get("positive_when") is None:
        found.note(key, "missing", f"label '{key.text}' has no `positive_when`")
    window_ms = _duration(node, "window", found, default=None, owner=key)
    wait_ms = _duration(node, "wait", found, default=window_ms)
    wait = node.get("wait")
    if wait is not None and window_ms < wait_ms:
        found.note(
            wait,
            "window",
            "`wait` is longer than `window`",
            "silence is a final no when the window has passed; a wait ends before it",
        )
    positive = conditions["positive_when"]
    if len(found.items) > before or positive is None or joined_by is None:
        return None
    return LabelSpec(
        name=key.text,
        joined_by=JoinedBy(joined_by),
        positive_when=positive,
        negative_when=conditions["negative_when"],
        closed_when=conditions["closed_when"],
        redispatch_is_negative=redispatch == "negative",
        wait_ms=wait_ms,
        window_ms=window_ms,
        bit=bit,
    )


def _condition(node: MapNode, name: str, found: _Mistakes) -> Condition | None:
    value = node.get(name)
    if value is None:
        return None
    if not isinstance(value, ScalarNode) or not isinstance(value.value, str):
        found.note(value, "shape", f"`{name}` must be an expression over the fields of a trip event, in quotes")
        return None
    try:
        program = compile_expr(value.source(), EVENT_TYPES, expect=Type("bool", True))
    except Mistakes as mistakes:
        found.items.extend(mistakes.items)
        return None
    evaluate: Callable[[Mapping[str, Any]], Any] = partial(interpret, program)
    return Condition(value.text, program.names, evaluate)


def _duration(node: MapNode, name: str, found: _Mistakes, *, default: int | None, owner: Node | None = None) -> int:
    value = node.get(name)
    if value is None:
        if default is None:
            found.note(owner or node, "missing", f"no `{name}`", f"write a duration, as in `{name}: 10m`")
        return default or 0
    try:
        duration_ms = parse_duration_ms(str(value.value) if isinstance(value, ScalarNode) else "")
    except ValueError as error:
        found.note(value, "duration", f"`{name}`: {error}")
        return default or 0
    if duration_ms <= 0:
        found.note(value, "duration", f"`{name}` must be longer than nothing")
    return duration_ms


def _choice(node: MapNode, name: str, allowed: tuple[str, ...], found: _Mistakes, *, required: bool) -> str | None:
    value = node.get(name)
    if value is None:
        if required:
            found.note(node, "missing", f"no `{name}`", f"one of: {', '.join(allowed)}")
        return None
    if not isinstance(value, ScalarNode) or value.value not in allowed:
        text = value.text if isinstance(value, ScalarNode) else "this"
        found.note(value, "choice", f"`{name}` cannot be '{text}'", name_hint(text, allowed))
        return None
    return str(value.value)


def _refuse_unknown_keys(node: MapNode, known: tuple[str, ...], found: _Mistakes) -> None:
    for key, _ in node.items():
        if key.text not in known:
            found.note(key, "unknown-key", f"unknown key '{key.text}'", name_hint(key.text, known))

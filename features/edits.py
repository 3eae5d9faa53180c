"""The edits between two catalogues, each with its class of risk: what is written differently, and what that does by itself.

    safe         no stored byte and no served value of an existing feature changes, nothing disappears
    backfill     existing values stay right, but tiles or values are kept anew and need history
    breaking     an existing feature's value, type, nullability, default, staleness or key changes for the same events
    destructive  data or a name goes away

A field that this module does not know is breaking: a new one has to be judged before it may be called milder. What follows
from the groups that feed the features (generations, retention) is added by `features/plan.py`. The classes are held to what
both catalogues do with the same events by tests/features/test_plan_truth.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

from features.expr import Program
from features.spec import BatchSource, Catalogue, FeatureSpec, FeatureView, Source, text_of
from features.window import format_duration

SAFE, BACKFILL, BREAKING, DESTRUCTIVE = RISKS = ("safe", "backfill", "breaking", "destructive")

# Fields that no served value and no stored byte depends on.
_WORDS: Final = frozenset(
    {"description", "owner", "unit", "file", "line", "tests", "freshness_slo_p99_ms", "facts", "history"}
)
_JUDGED_APART: Final = frozenset({"name", "features", "schema", "entity", "source"})
_FATES: Final = {
    "disorder_ms": "which records are late",
    "future_ms": "which records are from the future",
    "dedup": "which records are duplicates",
    "ingest_time": "which records are late, and what was known when",
    "event_time": "which tile a record belongs to",
    "topic": "which records are read: nobody can see from here whether they are the same",
    "path": "which rows are read: nobody can see from here whether they are the same",
}


@dataclass(frozen=True)
class Edit:
    """One difference. `view` and `feature` say whose values it touches: a feature, all of a view (`feature` None), or none.

    `kind`: add, drop, change, order, text; and what follows: source, entity, generation, retention, group, follows.
    `place` is file:line, of what is applied where it is gone.
    """

    kind: str
    view: str | None
    feature: str | None
    what: str
    risk: str
    reason: str
    place: str


def worst(risks: Iterable[str]) -> str | None:
    """The most severe class, None of none."""
    return max(risks, key=RISKS.index, default=None)


def edits_between(before: Catalogue, after: Catalogue) -> list[Edit]:
    """What is written differently, without what follows from it for groups and for features that read others."""
    edits = [*_entities(before, after), *_sources(before, after)]
    for name in sorted({*before.views, *after.views}):
        old, new = before.views.get(name), after.views.get(name)
        if new is None:
            assert old is not None
            edits.append(_gone(name, None, f"view {name} with {_number_of(old)}", place_of(old)))
        elif old is None:
            what = f"new view {name} with {_number_of(new)}"
            edits.append(Edit("add", name, None, what, SAFE, "nobody reads it yet", place_of(new)))
        else:
            edits += _view(old, new)
    return edits


def place_of(item: FeatureView | FeatureSpec) -> str:
    return f"{item.file}:{item.line}"


def same_meaning(old: Any, new: Any) -> bool:
    """Whether two values of a field mean the same: expressions by their steps, not by how they are written."""
    return bool(_meaning(old) == _meaning(new))


def _entities(before: Catalogue, after: Catalogue) -> Iterator[Edit]:
    for name, old in before.entities.items():
        new, place = after.entities.get(name), _place_in(after, "entities.yaml", name)
        if new is None:
            yield _gone(None, None, f"entity {name}", _place_in(before, "entities.yaml", name))
            continue
        for field, what in _differences(old, new):
            risk, reason = BREAKING, "values stand under other keys, and who asks names the key otherwise"
            if field in _WORDS:
                risk, reason = SAFE, "no value depends on it"
            elif all(_name_of(view.entity) != name for view in after.views.values()):
                risk, reason = SAFE, "no view describes it"
            yield Edit("change", None, None, f"entity {name}: {what}", risk, reason, place)
            if risk != SAFE:
                yield from _follow(after, "entity", name, what, risk, reason)
    for name in after.entities.keys() - before.entities.keys():
        yield _new(f"new entity {name}", _place_in(after, "entities.yaml", name))


def _sources(before: Catalogue, after: Catalogue) -> Iterator[Edit]:
    for name, old in before.sources.items():
        new, place = after.sources.get(name), _place_in(after, "sources.yaml", name)
        if new is None:
            yield _gone(None, None, f"source {name}", _place_in(before, "sources.yaml", name))
            continue
        if type(old) is not type(new):
            yield _gone(None, None, f"source {name} of its kind", place)
            continue
        for field, what in _differences(old, new):
            risk, reason = _source_risk(field, name, after)
            yield Edit("change", None, None, f"source {name}: {what}", risk, reason, place)
            if risk != SAFE:
                yield from _follow(after, "source", name, what, risk, reason)
        yield from _schema(name, old, new, place)
    for name in after.sources.keys() - before.sources.keys():
        yield _new(f"new source {name}", _place_in(after, "sources.yaml", name))


def _schema(name: str, old: Source | BatchSource, new: Source | BatchSource, place: str) -> Iterator[Edit]:
    """A column's type shows in the features that read it; here it is only told."""
    for column in sorted({*old.schema, *new.schema}):
        was, now = old.schema.get(column), new.schema.get(column)
        if was != now:
            what = (
                f"column {column} is new"
                if was is None
                else f"column {column} is gone"
                if now is None
                else f"column {column}: {was} → {now}"
            )
            reason = "what it means for a feature is said there" if was and now else "no feature reads it"
            yield Edit("change", None, None, f"source {name}: {what}", SAFE, reason, place)


def _source_risk(field: str, name: str, after: Catalogue) -> tuple[str, str]:
    readers = [view for view in after.views.values() if _name_of(view.source) == name]
    if field in _WORDS:
        return SAFE, "no value depends on it"
    if not readers:
        return SAFE, "no view reads it"
    if field == "event_id":
        if any(f.aggregate in ("first", "last") for view in readers for f in view.features):
            return BREAKING, "of two events of one time, another one counts as the last"
        return SAFE, "only first and last values are ordered by it, and no feature is one"
    return BREAKING, f"it decides {_FATES.get(field, 'what a record means')}; what is stored was counted the old way"


def _follow(after: Catalogue, part: str, name: str, what: str, risk: str, reason: str) -> Iterator[Edit]:
    """The views that an edit of their entity or source changes."""
    for view in after.views.values():
        if _name_of(getattr(view, part)) == name:
            yield Edit(part, view.name, None, f"{part} {name}: {what}", risk, reason, place_of(view))


def _view(old: FeatureView, new: FeatureView) -> Iterator[Edit]:
    place = place_of(new)
    for field, what in _differences(old, new):
        risk = SAFE if field in _WORDS else BREAKING
        reason = "no value depends on it" if risk == SAFE else _WHY.get(field, "the view's values depend on it")
        yield Edit("change", new.name, None, what, risk, reason, place)
    for part in ("entity", "source"):
        was, now = _name_of(getattr(old, part)), _name_of(getattr(new, part))
        if was != now:
            yield Edit("change", new.name, None, f"{part} {was} → {now}", BREAKING, _WHY[part], place)
    olds, news = {f.name: f for f in old.features}, {f.name: f for f in new.features}
    for name, spec in olds.items():
        if name not in news:
            twin = next((n for n, other in news.items() if n not in olds and not list(_differences(spec, other))), None)
            yield _gone(new.name, name, f"feature {name}" + (f" (renamed to {twin}?)" if twin else ""), place_of(spec))
    for name, spec in news.items():
        if name not in olds:
            yield Edit(
                "add",
                new.name,
                name,
                f"new feature {name}: {meaning_of(spec)}",
                SAFE,
                "nobody reads it yet",
                place_of(spec),
            )
        else:
            yield from _feature(new.name, olds[name], spec)
    if [name for name in olds if name in news] != [name for name in news if name in olds]:
        yield Edit("order", new.name, None, "features in another order", SAFE, "values are read by name", place)


def _feature(view: str, old: FeatureSpec, new: FeatureSpec) -> Iterator[Edit]:
    for field, what in _differences(old, new):
        if field in _WORDS:
            risk, reason = SAFE, "no value depends on it"
        else:
            risk, reason = BREAKING, _WHY.get(field, "its value depends on it")
        yield Edit("change", view, new.name, what, risk, reason, place_of(new))
    for field in ("of", "where", "expr"):
        was, now = getattr(old, field), getattr(new, field)
        if text_of(was) != text_of(now) and same_meaning(was, now):
            what = f"{field} is written as {text_of(now)}"
            yield Edit("change", view, new.name, what, SAFE, "it means the same", place_of(new))


_WHY: Final = {
    "entity": "the view describes other things",
    "source": "values come from other records",
    "key_field": "values stand under other keys",
    "key_fields": "values stand under other keys",
    "max_age_ms": "values become stale at another age",
    "default": "what is served where there is no value changes",
    "type": "readers see another type",
    "nullable": "readers have to expect null, or need not any more",
    "window_ms": "other events are in the window",
    "hop_ms": "the window starts at other edges",
    "where": "other events count",
    "of": "another value is aggregated",
    "aggregate": "another value is computed",
    "expr": "another value is computed",
    "column": "another column is served",
    "request": "who reads the view has to send other fields",
    "half_life_ms": "older events weigh otherwise",
    "q": "another quantile is taken",
    "resolution": "values are counted in other steps",
}


def meaning_of(spec: FeatureSpec) -> str:
    """One feature in words: `sum of fare_cents where event_type == 'completed' over 1d`."""
    if spec.expr is not None:
        return spec.expr.source.text
    of = f" of {spec.of.source.text}" if spec.of is not None else ""
    where = f" where {spec.where.source.text}" if spec.where is not None else ""
    window = f" over {format_duration(spec.window_ms)}" if spec.window_ms is not None else ""
    return f"{spec.aggregate}{of}{where}{window}"


def _differences(old: Any, new: Any) -> Iterator[tuple[str, str]]:
    """(field, `field old → new`) of every field that means something else, those apart that are judged by themselves."""
    for field in fields(new):
        was, now = getattr(old, field.name), getattr(new, field.name)
        if field.name in _JUDGED_APART or field.name in ("file", "line", "tests") or same_meaning(was, now):
            continue
        yield field.name, f"{field.name.removesuffix('_ms')} {_shown(field.name, was)} → {_shown(field.name, now)}"


def _meaning(value: Any) -> Any:
    if isinstance(value, Program):
        return (str(value.root), value.type.kind)
    if is_dataclass(value):
        return (type(value).__name__, [_meaning(getattr(value, field.name)) for field in fields(value)])
    if isinstance(value, float | int):
        return (type(value).__name__, value)  # 1, 1.0 and true are equal to Python and not to a reader
    if isinstance(value, Mapping):
        return {key: _meaning(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_meaning(item) for item in value]
    return value


def _shown(field: str, value: Any) -> str:
    if value is None or value == "":
        return "none"
    if field.endswith("_ms") and isinstance(value, int):
        return format_duration(value)
    if isinstance(value, Program):
        return text_of(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {item}" for key, item in value.items()) or "none"
    return str(value)


def _number_of(view: FeatureView) -> str:
    return "1 feature" if len(view.features) == 1 else f"{len(view.features)} features"


def _name_of(part: Any) -> str:
    return "none" if part is None else str(part.name)


def _gone(view: str | None, feature: str | None, what: str, place: str) -> Edit:
    reason = "who reads it fails, and what it kept expires"
    return Edit("drop", view, feature, f"{what} is gone", DESTRUCTIVE, reason, place)


def _new(what: str, place: str) -> Edit:
    return Edit("add", None, None, what, SAFE, "nobody reads it yet", place)


def _place_in(catalogue: Catalogue, file: str, name: str) -> str:
    """Where an entity or a source is declared: its key stands at the start of a line."""
    text = catalogue.files.get(file, "")
    match = re.search(rf"(?m)^['\"]?{re.escape(name)}['\"]?\s*:", text)
    return f"{file}:{text[: match.start()].count(chr(10)) + 1 if match else 1}"

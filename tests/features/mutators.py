"""Edits of a catalogue at the level of its text, as an author would make them.

`mutants` makes every edit that it knows at every place of every file; many do not load, and a test leaves those out. It
works on views whose features stand on a line each, `  name: {aggregate: count, …}`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

Files = Mapping[str, str]


@dataclass(frozen=True)
class Mutant:
    name: str
    files: Files


@dataclass(frozen=True)
class FeatureLine:
    """One line `  name: {key: value, …}` of a view's file."""

    file: str
    number: int
    name: str
    fields: Mapping[str, str]

    def text(self, name: str | None = None, **changed: str | None) -> str:
        """The line again, with other fields; None leaves one out."""
        fields = {**self.fields, **changed}
        return f"  {name or self.name}: {{{', '.join(f'{k}: {v}' for k, v in fields.items() if v is not None)}}}"


_LINE = re.compile(r"  (\w+):\s*\{(.*)\}\s*$")
_ITEM = re.compile(r"""\s*(\w+):\s*("(?:[^"\\]|\\.)*"|'[^']*'|\{[^}]*\}|[^,]*)(?:,|$)""")


def feature_lines(files: Files) -> Iterator[FeatureLine]:
    for file, text in files.items():
        if not file.startswith("views/"):
            continue
        inside = False
        for number, line in enumerate(text.splitlines()):
            inside = line.startswith("features:") or (inside and (not line or line.startswith((" ", "#"))))
            match = _LINE.match(line) if inside else None
            if match:
                fields = {m[1]: m[2].strip() for m in _ITEM.finditer(match[2])}
                yield FeatureLine(file, number, match[1], fields)


def mutants(files: Files) -> Iterator[Mutant]:
    """Every edit at every place."""
    for mutator in MUTATORS:
        yield from mutator(files)


def random_mutant(files: Files, rng: random.Random, num_edits: int) -> Mutant:
    """Several edits one after the other, each at a random place of what the ones before it left."""
    names = []
    for _ in range(num_edits):
        choice: list[Mutant] = []
        while not choice:
            choice = list(rng.choice(MUTATORS)(files))
        one = rng.choice(choice)
        names.append(one.name)
        files = one.files
    return Mutant(" + ".join(names), files)


def _with_line(files: Files, at: FeatureLine, *lines: str) -> Files:
    text = files[at.file].splitlines()
    text[at.number : at.number + 1] = list(lines)
    return {**files, at.file: "\n".join(text) + "\n"}


def _with_text(files: Files, file: str, old: str, new: str, count: int = 1) -> Files:
    return {**files, file: re.sub(old, new, files[file], count=count)}


def features_renamed_dropped_copied(files: Files) -> Iterator[Mutant]:
    for line in feature_lines(files):
        here = f"{line.file}:{line.name}"
        yield Mutant(f"{here} dropped", _with_line(files, line))
        yield Mutant(f"{here} renamed", _with_text(files, line.file, rf"\b{line.name}\b", f"{line.name}_new", count=0))
        yield Mutant(f"{here} copied", _with_line(files, line, line.text(), line.text(f"{line.name}_copy")))


def features_aggregated_otherwise(files: Files) -> Iterator[Mutant]:
    for line in feature_lines(files):
        here = f"{line.file}:{line.name}"
        for other in ("count", "sum", "avg", "min", "max"):
            if line.fields.get("aggregate") not in (None, "last", other):
                yield Mutant(f"{here} aggregate {other}", _with_line(files, line, line.text(aggregate=other)))
        if line.fields.get("aggregate") == "last":
            counted = line.text(aggregate="count", window="1h", hop="1m", default=None)
            yield Mutant(f"{here} aggregate count, not last", _with_line(files, line, counted))
        for name, others in (
            ("resolution", ("1", "0.5", "10")),
            ("q", ("0.5", "0.90", "0.95")),
            ("half_life", ("5m", "600s")),
        ):
            for other in others:
                if name in line.fields and line.fields[name] != other:
                    yield Mutant(f"{here} {name} {other}", _with_line(files, line, line.text(**{name: other})))
        if line.fields.get("aggregate") in ("first", "last"):
            other = "last" if line.fields["aggregate"] == "first" else "first"
            yield Mutant(f"{here} aggregate {other}", _with_line(files, line, line.text(aggregate=other)))
        of = line.fields.get("of")
        if of is not None:
            for other in (f"{of} + 1", f"({of})", "cents", "km", "tip", "fare_cents", "pickup_zone", "zone"):
                if other != of:
                    yield Mutant(f"{here} of {other}", _with_line(files, line, line.text(of=f'"{other}"')))


def features_filtered_otherwise(files: Files) -> Iterator[Mutant]:
    for line in feature_lines(files):
        here, where = f"{line.file}:{line.name}", line.fields.get("where", "").strip('"')
        if "aggregate" not in line.fields:
            continue
        if not where:
            for word, column in (("done", "kind"), ("completed", "event_type"), ("idle", "status")):
                filtered = line.text(where=f"\"{column} == '{word}'\"")
                yield Mutant(f"{here} where {column} is {word}", _with_line(files, line, filtered))
            continue
        yield Mutant(f"{here} without where", _with_line(files, line, line.text(where=None)))
        changes: dict[str, str] = {
            "in brackets": f"({where})",
            "with spaces": re.sub(r"\s*==\s*", "  ==  ", where),
            "without spaces": re.sub(r"\s*==\s*", "==", where),
            "the other way round": re.sub(r"(\w+) == ('[^']*')", r"\2 == \1", where),
            "negated": f"!({where})",
            "with another word": re.sub(r"'(\w)", r"'x\1", where, count=1),
            "with another space in a text": where.replace("a  b", "a b"),
            "with a second word": f"{where} || {where}".replace("'done'", "'other'", 1).replace("'completed'", "'offered'", 1),
            "and always": f"{where} && 1 < 2",
            "and never": f"{where} && 1 > 2",
        }  # fmt: skip
        for how, text in changes.items():
            if text != where:
                yield Mutant(f"{here} where {how}", _with_line(files, line, line.text(where=f'"{text}"')))


def features_over_other_windows(files: Files) -> Iterator[Mutant]:
    for line in feature_lines(files):
        here = f"{line.file}:{line.name}"
        for window in ("5m", "10m", "30m", "1h", "2h", "4h", "12h", "24h", "2d", "60m"):
            if line.fields.get("window") not in (None, window):
                yield Mutant(f"{here} window {window}", _with_line(files, line, line.text(window=window)))
        for hop in ("30s", "1m", "5m", "15m", "60s", "1h"):
            if line.fields.get("hop") not in (None, hop):
                yield Mutant(f"{here} hop {hop}", _with_line(files, line, line.text(hop=hop)))


def features_with_other_defaults(files: Files) -> Iterator[Mutant]:
    for line in feature_lines(files):
        here, default = f"{line.file}:{line.name}", line.fields.get("default")
        for other in ("0", "1", "0.5", "0.8", "0.80", "none", "true", "false", "7"):
            if other != default:
                yield Mutant(f"{here} default {other}", _with_line(files, line, line.text(default=other)))
        if default is not None:
            yield Mutant(f"{here} without default", _with_line(files, line, line.text(default=None)))


def features_described_otherwise(files: Files) -> Iterator[Mutant]:
    for line in feature_lines(files):
        here = f"{line.file}:{line.name}"
        yield Mutant(f"{here} described", _with_line(files, line, line.text(description="New words.")))
        yield Mutant(f"{here} in another unit", _with_line(files, line, line.text(unit="events")))
        yield Mutant(f"{here} without unit", _with_line(files, line, line.text(unit=None)))
        yield Mutant(f"{here} with a comment", _with_line(files, line, line.text() + "  # why", "  # and more"))
        yield Mutant(f"{here} with a type", _with_line(files, line, line.text(type="int")))
        yield Mutant(f"{here} in quotes", _with_line(files, line, line.text().replace(line.name, f'"{line.name}"', 1)))


def features_computed_otherwise(files: Files) -> Iterator[Mutant]:
    for line in feature_lines(files):
        here, expr = f"{line.file}:{line.name}", line.fields.get("expr", "").strip('"')
        changes = {
            "in brackets": f"({expr})",
            "with spaces": expr.replace(" ", "   "),
            "with another bound": re.sub(r"> 0\b", "> 1", expr),
            "with another number": re.sub(r"\b(2|100|10|3)\b", "4", expr, count=1),
            "with a default": re.sub(r": null$", ": 0.5", expr),
            "turned round": re.sub(r"(\w+) > 0\b", r"0 < \1", expr),
            "of another feature": re.sub(r"\bn_1h\b", "n_10m", re.sub(r"\boffers_1h\b", "completed_1h", expr)),
        }
        for how, text in changes.items():
            if expr and text != expr:
                yield Mutant(f"{here} expr {how}", _with_line(files, line, line.text(expr=f'"{text}"')))


def features_in_another_order(files: Files) -> Iterator[Mutant]:
    lines = list(feature_lines(files))
    for one, other in pairwise(lines):
        if one.file == other.file:
            text = files[one.file].splitlines()
            text[one.number], text[other.number] = text[other.number], text[one.number]
            changed = {**files, one.file: "\n".join(text) + "\n"}
            yield Mutant(f"{one.file}: {one.name} below {other.name}", changed)


def features_added(files: Files) -> Iterator[Mutant]:
    added = {
        "a feature like another": "{aggregate: count, window: 10m, hop: 1m}",
        "a feature with a new hop": "{aggregate: count, window: 20m, hop: 10m}",
        "a feature with a new where": "{aggregate: count, where: \"1 < 2\", window: 10m, hop: 1m}",
        "a feature with a long window": "{aggregate: count, window: 3d, hop: 1h}",
        "a sum of cents": "{aggregate: sum, of: cents, window: 10m, hop: 1m}",
        "a sum of fares": "{aggregate: sum, of: fare_cents, window: 10m, hop: 1m}",
        "a last time": "{aggregate: last, of: at_ms}",
        "a last event time": "{aggregate: last, of: event_time_ms}",
        "a spread": "{aggregate: stddev, of: cents, window: 1h, hop: 1m}",
        "another quantile": "{aggregate: quantile, q: 0.25, of: cents, window: 1h, hop: 15m}",
        "a number": "{expr: \"1 + 2\"}",
    }  # fmt: skip
    last = {line.file: line for line in feature_lines(files)}
    for file, line in last.items():
        for what, text in added.items():
            yield Mutant(f"{file} with {what}", _with_line(files, line, line.text(), f"  added: {text}"))
        derived = f'  added: {{expr: "{line.name} == {line.name}"}}'
        yield Mutant(f"{file} with a derived feature", _with_line(files, line, line.text(), derived))


def views_edited(files: Files) -> Iterator[Mutant]:
    for file in [name for name in files if name.startswith("views/")]:
        text, name = files[file], file.split("/")[1].removesuffix(".yaml")
        without = {key: value for key, value in files.items() if key != file}
        yield Mutant(f"{file} gone", without)
        yield Mutant(f"{file} under another file name", {**without, f"views/x_{name}.yaml": text})
        yield Mutant(f"{file} renamed", _with_text(files, file, r"(?m)^view: .*$", f"view: {name}_new"))
        copy = re.sub(r"(?m)^view: .*$", f"view: {name}_copy", text)
        yield Mutant(f"{file} copied", {**files, f"views/{name}_copy.yaml": copy})
        for age in ("30m", "2h", "8h", "12h", "1d", "2d", "24h", "48h", "9d"):
            yield Mutant(f"{file} max_age {age}", _with_text(files, file, r"(?m)^max_age: .*$", f"max_age: {age}"))
        for key, value in (("owner", "them"), ("description", "Other words."), ("freshness_slo", "{p99: 3s}")):
            yield Mutant(f"{file} without {key}", _with_text(files, file, rf"(?m)^{key}: .*\n", ""))
            yield Mutant(f"{file} {key} changed", _with_text(files, file, rf"(?m)^{key}: .*$", f"{key}: {value}"))
        yield Mutant(f"{file} without tests", _with_text(files, file, r"(?m)^tests: .*\n", ""))
        for entity in ("driver", "zone", "rider"):
            changed = _with_text(files, file, r"(?m)^entity: .*$", f"entity: {entity}")
            yield Mutant(f"{file} of entity {entity}", _with_text(changed, file, r"(?m)^key: .*\n", ""))
        for source in ("rides", "pings", "trip_events", "driver_events"):
            yield Mutant(f"{file} from {source}", _with_text(files, file, r"(?m)^source: .*$", f"source: {source}"))
        for key in ("from_zone", "to_zone", "pickup_zone", "dropoff_zone", "zone", "spare"):
            keyed = _with_text(files, file, r"(?m)^key: .*\n", "")
            keyed = _with_text(keyed, file, r"(?m)^(source: .*)$", rf"\1\nkey: {{zone: {key}}}")
            yield Mutant(f"{file} keyed by {key}", keyed)
        yield Mutant(f"{file} keyed by rider", _with_text(files, file, r"(?m)^(source: .*)$", r"\1\nkey: {driver_id: rider_id}"))  # fmt: skip


def sources_edited(files: Files) -> Iterator[Mutant]:
    file, text = "sources.yaml", files["sources.yaml"]
    names = re.findall(r"(?m)^(\w+):", text)
    for name in names:
        start = text.index(f"{name}:")
        end = min((text.find(f"\n{other}:") for other in names if text.find(f"\n{other}:") > start), default=len(text))
        body = text[start:end]

        def edited(what: str, old: str, new: str, name: str = name, body: str = body) -> Mutant:
            changed = text.replace(body, re.sub(old, new, body, count=1), 1)
            return Mutant(f"source {name} {what}", {**files, file: changed})

        for bound in ("0s", "1m", "10m", "2h", "600s", "120s"):
            yield edited(f"disorder {bound}", r"disorder: .*", f"disorder: {bound}")
            yield edited(f"future {bound}", r"future: .*", f"future: {bound}")
        yield edited("from another topic", r"topic: .*", "topic: elsewhere")
        yield edited("without dedup", r"  dedup: .*\n", "")
        yield edited("dedup none", r"dedup: .*", "dedup: none")
        yield edited("with a shorter horizon", r"horizon: \w+", "horizon: 1s")
        yield edited("with dedup by another column", r"by: \w+", "by: rider_id")
        if "dedup" not in body:
            yield edited("with dedup", r"(  future: .*)", r"\1\n  dedup: {by: id, horizon: 1h}")
        for column in ("at_ms", "seen_ms", "other_ms", "event_time_ms", "ingest_time_ms"):
            yield edited(f"event_time {column}", r"event_time: .*", f"event_time: {column}")
            yield edited(f"ingest_time {column}", r"ingest_time: .*", f"ingest_time: {column}")
        for column in ("other_id", "order_id", "rider_id"):
            yield edited(f"event_id {column}", r"event_id: .*", f"event_id: {column}")
        yield edited("with a new column", r"(  schema:\n)", r"\1    brand_new: int?\n")
        for column, kind in re.findall(r"(?m)^    (\w+): ([\w?]+)$", body):
            yield edited(f"without column {column}", rf"    {column}: .*\n?", "")
            nullable = kind.removesuffix("?") if kind.endswith("?") else f"{kind}?"
            yield edited(f"column {column} {nullable}", rf"(    {column}: ).*", rf"\g<1>{nullable}")
            if kind.startswith("int"):
                double = kind.replace("int", "double")
                yield edited(f"column {column} {double}", rf"(    {column}: ).*", rf"\g<1>{double}")
        yield edited("described", r"(  topic: .*)", r"\1\n  description: Words.")
        renamed = {other: re.sub(rf"\bsource: {name}\b", f"source: {name}_new", t) for other, t in files.items()}
        renamed[file] = text.replace(f"{name}:\n", f"{name}_new:\n", 1)
        yield Mutant(f"source {name} renamed", renamed)
        yield Mutant(f"source {name} gone", {**files, file: text.replace(body, "", 1)})


def entities_edited(files: Files) -> Iterator[Mutant]:
    file, text = "entities.yaml", files["entities.yaml"]
    for name in re.findall(r"(?m)^(\w+):", text):
        renamed = {other: re.sub(rf"\bentity: {name}\b", f"entity: {name}_new", t) for other, t in files.items()}
        yield Mutant(f"entity {name} renamed", {**renamed, file: re.sub(rf"(?m)^{name}:", f"{name}_new:", text)})
        columns = re.search(rf"(?m)^{name}: \{{keys: \{{(\w+): (\w+), (\w+): (\w+)\}}", text)
        if columns is not None:
            yield Mutant(f"entity {name} with its keys turned round", {**files, file: re.sub(rf"(?m)^({name}: \{{keys: \{{)([^,]*), ([^}}]*)", r"\1\3, \2", text)})  # fmt: skip
            yield Mutant(f"entity {name} with a smaller int", {**files, file: re.sub(rf"(?m)^({name}: .*): int,", r"\1: int32,", text)})  # fmt: skip
        flow = re.search(rf"(?m)^{name}: \{{join_key: (\w+), type: (\w+)", text)
        if flow is None:
            continue
        key, kind = flow[1], flow[2]
        other = "string" if kind == "int" else "int"
        yield Mutant(f"entity {name} of type {other}", _with_text(files, file, rf"(?m)^({name}: .*type: )\w+", rf"\g<1>{other}"))  # fmt: skip
        rekeyed = {o: re.sub(rf"key: \{{{key}:", "key: {id:", t) for o, t in files.items() if o != file}
        rekeyed = {
            o: t if f"entity: {name}\n" not in t or "\nkey:" in t else re.sub(r"(?m)^(source: .*)$", rf"\1\nkey: {{id: {key}}}", t)
            for o, t in rekeyed.items()
        }  # fmt: skip
        yield Mutant(f"entity {name} with another join key", {**rekeyed, file: text.replace(f"join_key: {key}", "join_key: id", 1)})  # fmt: skip
        yield Mutant(f"entity {name} described", _with_text(files, file, rf"(?m)^({name}: .*type: \w+).*$", r"\1, description: More words.}"))  # fmt: skip
        yield Mutant(f"entity {name} gone", _with_text(files, file, rf"(?m)^{name}: .*\n", ""))
    yield Mutant("a new entity", {**files, file: text + "fresh: {join_key: fresh_id, type: int}\n"})


def texts_edited(files: Files) -> Iterator[Mutant]:
    for file, text in files.items():
        yield Mutant(f"{file} with a comment above", {**files, file: f"# Some words.\n{text}"})
        yield Mutant(f"{file} with blank lines", {**files, file: text.replace("\n", "\n\n", 3)})
        yield Mutant(f"{file} with spaces at the ends", {**files, file: text.replace("\n", "  \n")})
        yield Mutant(f"{file} with other line ends", {**files, file: text.replace("\n", "\r\n")})


MUTATORS: tuple[Callable[[Files], Iterator[Mutant]], ...] = (
    features_renamed_dropped_copied,
    features_aggregated_otherwise,
    features_filtered_otherwise,
    features_over_other_windows,
    features_with_other_defaults,
    features_described_otherwise,
    features_computed_otherwise,
    features_in_another_order,
    features_added,
    views_edited,
    sources_edited,
    entities_edited,
    texts_edited,
)

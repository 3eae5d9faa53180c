"""The section `tables` of a strategy file, and the CSV files it names.

Reading is in two steps, for a cell cannot be read before its column has a type, and a column may be a `let`: `read_tables`
makes a `TableDraft` of what the files say; `TableDraft.finish`, called by `engine/compiler.py` once the inputs are typed,
makes the `Table`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from engine.fields import Fields
from engine.sections import TABLE_PATH
from engine.shapes import IDENTIFIER, NAME_HINT
from engine.strategy import Table
from engine.table_csv import CELL_KINDS, LINE_END, MAX_COLUMNS, ORDERED, RawTable, literal, read_csv, read_rows
from features.expr import Mistake, SourceText, Type
from features.expr.types import INT
from features.yaml_source import MAX_FILE_BYTES, MapNode, Node, ScalarNode, encoding_mistake, mistake, name_hint

OUT: Final = "out."
_PYTHON: Final[dict[str, type]] = {"int": int, "double": float, "bool": bool, "string": str}
TIMES: Final = ("timestamp", "duration")
_SUMMED: Final = ("int", "double", "duration")


@dataclass(frozen=True, kw_only=True)
class TableDraft:
    """A table whose cells have no types yet. `outputs` maps to the declared type, or to None; `gaps` are the nodes of
    `on_gap`'s values, `raw` is the CSV and `text` its bytes' hashable text."""

    name: str
    key: ScalarNode
    hit: str
    collect: str
    collect_node: Node
    on_gap: str
    gaps: Mapping[str, ScalarNode]
    inputs: Mapping[str, SourceText]
    outputs: Mapping[str, Type | None]
    output_nodes: Mapping[str, Node]
    raw: RawTable

    def finish(self, inputs: Mapping[str, Type]) -> tuple[Table | None, list[Mistake]]:
        """The table over inputs of these types. Returns no table where there is a mistake."""
        body, mistakes = read_rows(self.raw, inputs, self.outputs)
        if body is None:
            return None, mistakes
        outputs = {name: self._result(name, kind, mistakes) for name, kind in body.outputs.items()}
        gap_values = {name: self._gap(name, kind, mistakes) for name, kind in outputs.items() if name in self.gaps}
        if mistakes:
            return None, mistakes
        table = Table(
            name=self.name,
            hit=self.hit,
            on_gap=self.on_gap,
            inputs=tuple(inputs),
            outputs=outputs,
            rows=body.rows,
            file=self.raw.file,
            collect=self.collect,
            gap_values=gap_values,
            source=self.key.source(),
            lines=self.raw.lines,
        )
        return table, []

    def _result(self, name: str, kind: Type, mistakes: list[Mistake]) -> Type:
        """The type that the strategy sees: what `collect` makes of the rows' type, null where a gap is null."""
        if self.hit == "collect" and self.collect == "count":
            kind = INT
        elif self.hit == "collect" and kind.kind not in (_SUMMED if self.collect == "sum" else ORDERED):
            message = f"collect: {self.collect} needs numbers, and out.{name} is {kind}"
            mistakes.append(mistake(self.collect_node, "type", message, "collect: count counts rows"))
        declared = self.outputs[name]
        if self.on_gap != "null" or kind.nullable:
            return kind
        if declared is not None and self.collect_node is not None and not declared.nullable:
            message = f"out.{name} is {declared}, and on_gap: null makes it null where no row fits"
            hint = f"declare {{out.{name}: '{declared}?'}}, or give on_gap a value"
            mistakes.append(mistake(self.output_nodes[name], "nullable", message, hint))
        return kind.optional()

    def _gap(self, name: str, kind: Type, mistakes: list[Mistake]) -> Any:
        node = self.gaps[name]
        value = node.value
        python = _PYTHON.get(kind.kind)
        if value is None and kind.nullable:
            return None
        if kind.kind == "double" and type(value) is int:
            value = float(value)
        if kind.kind in TIMES:
            try:
                return literal(node.text, kind.kind)
            except ValueError as error:
                mistakes.append(mistake(node, "type", f"on_gap.{name}: {error}"))
                return None
        if type(value) is not python or (isinstance(value, float) and not math.isfinite(value)):
            mistakes.append(
                mistake(node, "type", f"on_gap.{name} must be {'an' if kind.kind == 'int' else 'a'} {kind}")
            )
            return None
        return value


def read_tables(fields: Fields, node: Node | None, folder: Path) -> dict[str, TableDraft]:
    """The section `tables`; CSV paths are relative to `folder`, the strategy file's. A table that cannot be read leaves
    its name in `fields.broken`."""
    out: dict[str, TableDraft] = {}
    for key, value in fields.entries(node):
        if not fields.declare(key, "tables"):
            fields.broken.add(key.text)
            continue
        draft = _table(fields, key, value, folder)
        if draft is None:
            fields.broken.add(key.text)
        else:
            out[key.text] = draft
    return out


def _table(fields: Fields, key: ScalarNode, node: Node, folder: Path) -> TableDraft | None:
    what = f"tables.{key.text}"
    before = len(fields.mistakes)
    parts = fields.map_of(node)
    hit = fields.text(parts.get("hit"), "first")
    if not {"columns", "rows"} <= set(parts) or (hit == "collect") != ("collect" in parts):
        return None
    inputs, outputs, output_nodes = _columns(fields, parts["columns"], f"{what}.columns")
    on_gap, gaps = _on_gap(fields, parts.get("on_gap"), f"{what}.on_gap", outputs)
    raw = _csv(fields, parts["rows"], f"{what}.rows", folder)
    if raw is None or len(fields.mistakes) > before or any(not fields.fits(part) for _, part in fields.entries(node)):
        return None
    return TableDraft(
        name=key.text,
        key=key,
        hit=hit,
        collect=fields.text(parts.get("collect"), "sum"),
        collect_node=parts.get("collect", key),
        on_gap=on_gap,
        gaps=gaps,
        inputs=inputs,
        outputs=outputs,
        output_nodes=output_nodes,
        raw=raw,
    )


def _columns(
    fields: Fields, node: Node, what: str
) -> tuple[dict[str, SourceText], dict[str, Type | None], dict[str, Node]]:
    """Inputs with their places; outputs with their declared types, None where the values are to tell."""
    inputs: dict[str, SourceText] = {}
    outputs: dict[str, Type | None] = {}
    nodes: dict[str, Node] = {}
    for item in fields.items(node):
        found = _column(fields, item, what)
        if found is None:
            continue
        name, kind = found
        output = name.removeprefix(OUT)
        if output in outputs if name.startswith(OUT) else name in inputs:
            fields.note(item, "duplicate", f"{what}: '{name}' is there twice", "remove one of them")
        elif not name.startswith(OUT):
            assert isinstance(item, ScalarNode)
            inputs[name] = item.source()
        elif not re.fullmatch(IDENTIFIER, output):
            fields.note(item, "name", f"{what}: '{name}' is not a name", NAME_HINT)
        else:
            outputs[output], nodes[output] = kind, item
    if not inputs or not outputs:
        fields.note(node, "table", f"{what} needs an input and an output", "as [pickup_zone, tier, out.bonus]")
    if len(inputs) + len(outputs) > MAX_COLUMNS:
        fields.note(node, "limit", f"{what}: more than {MAX_COLUMNS} columns", "split the table")
    return inputs, outputs, nodes


def _column(fields: Fields, item: Node, what: str) -> tuple[str, Type | None] | None:
    """`name`, or `{out.name: type}`; None after a mistake."""
    if isinstance(item, ScalarNode):
        return item.text, None
    if not isinstance(item, MapNode) or len(item) != 1:
        fields.note(item, "shape", f"{what}: a column is a name, out.name or {{out.name: type}}")
        return None
    key, value = item.items()[0]
    if not fields.fits(key):
        return None
    kind = fields.type_of(value)
    if kind is not None and kind.kind not in CELL_KINDS:
        fields.note(value, "type", f"{what}: a cell cannot hold a {kind}", f"use {', '.join(CELL_KINDS)}")
    return key.text, kind


def _on_gap(
    fields: Fields, node: Node | None, what: str, outputs: Mapping[str, Type | None]
) -> tuple[str, dict[str, ScalarNode]]:
    """`error`, `null`, or a value for every output."""
    if not isinstance(node, MapNode):
        return ("null" if isinstance(node, ScalarNode) and node.text == "null" else "error"), {}
    gaps: dict[str, ScalarNode] = {}
    for key, value in fields.entries(node):
        if key.text not in outputs:
            fields.note(key, "unknown-column", f"{what}: no output '{key.text}'", name_hint(key.text, outputs))
        elif isinstance(value, ScalarNode):
            gaps[key.text] = value
    if missing := [name for name in outputs if name not in gaps]:
        fields.note(node, "missing", f"{what}: '{missing[0]}' is missing", "give every output a value")
    return "default", gaps


def _csv(fields: Fields, node: Node, what: str, folder: Path) -> RawTable | None:
    """The fields of the file at a path below the strategy file's folder."""
    text = fields.text(node)
    if not is_table_path(text):
        return None  # its structure is noted
    path = PurePosixPath(text)
    name = (PurePosixPath(node.file).parent / path).as_posix()
    try:
        with (folder / path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"the file is larger than {MAX_FILE_BYTES} bytes")
        raw, mistakes = read_csv(data.decode("utf-8-sig"), name)
    except UnicodeDecodeError as error:
        fields.mistakes.append(encoding_mistake(error, name, LINE_END))
        return None
    except (OSError, ValueError) as error:  # not there, a folder, too large
        problem = error.strerror if isinstance(error, OSError) else str(error)
        fields.note(
            node, "unreadable", f"{what}: {name} cannot be read: {problem}", "the path is relative to this file"
        )
        return None
    fields.mistakes.extend(mistakes)
    fields.files[path.as_posix()] = data
    return None if mistakes else raw


def is_table_path(text: str) -> bool:
    """Whether a text names a CSV file in or below the strategy file's folder."""
    return re.fullmatch(TABLE_PATH, text) is not None

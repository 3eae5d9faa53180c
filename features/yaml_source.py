"""YAML whose every node knows its file, line and column. All YAML of the product is read here.

The reader is PyYAML's safe composer: nodes with marks, no Python objects. Scalars follow YAML 1.2's core schema (`yes`,
`no`, `on` and `off` are text; no dates, no sexagesimals). Duplicate keys, tags, anchors and merge keys are refused.
Expressions stand inside YAML, and some look like YAML: `a ? b : c`, a leading `!`, ` #`. Those traps are named together
with the fix. `ScalarNode.source()` gives the text with the place of every character, also in quoted, folded and block
scalars, so that `features/expr` reports `file:line:col` of the YAML file.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from features.expr.errors import Mistake, Mistakes, did_you_mean, name_hint
from features.expr.source import LINE_BREAK, SourceText
from features.yaml_traps import quote_hint, syntax_mistake, value_length

__all__ = [
    "MapNode",
    "Mistake",
    "Mistakes",
    "Node",
    "ScalarNode",
    "SeqNode",
    "decode_yaml",
    "did_you_mean",
    "encoding_mistake",
    "load_yaml",
    "mistake",
    "name_hint",
    "parse_yaml",
]

MAX_FILE_BYTES = 4 << 20

_NULL = re.compile(r"|~|null|Null|NULL")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL_OR_HEX = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL_FLOAT = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_BREAKS = ("\n", "\x85", "\u2028", "\u2029")  # what ends a line, once CR is LF
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
_Place = tuple[str, int, int, int, tuple[str, ...]]
_ESCAPE_LENGTH = {"x": 4, "u": 6, "U": 10}


@dataclass(frozen=True)
class Node:
    """A place in a file; `end_col` is exclusive and on the same line."""

    file: str
    line: int
    col: int
    end_col: int
    file_lines: tuple[str, ...] = field(repr=False, compare=False)


@dataclass(frozen=True)
class ScalarNode(Node):
    """A scalar. `value` is None, bool, int, float or str; `text` is what was written, without quotes."""

    value: bool | int | float | str | None
    text: str
    segments: tuple[tuple[int, int, int], ...] = field(default=(), repr=False, compare=False)

    def source(self) -> SourceText:
        """The text and the place of each of its characters."""
        line, col = self.segments[0][1:] if self.segments else (self.line, self.col)
        return SourceText(self.text, self.file, line, col, self.segments, self.file_lines)


@dataclass(frozen=True)
class SeqNode(Node):
    """A sequence."""

    items: tuple[Node, ...]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True)
class MapNode(Node):
    """A mapping whose keys are scalars, all different, in the order in which they were written."""

    entries: tuple[tuple[ScalarNode, Node], ...]

    def items(self) -> list[tuple[ScalarNode, Node]]:
        return list(self.entries)

    def get(self, name: str) -> Node | None:
        """The value under a key, or None."""
        return next((value for key, value in self.entries if key.text == name), None)

    def key(self, name: str) -> ScalarNode | None:
        """The key itself: the place to complain about an entry as a whole."""
        return next((key for key, _ in self.entries if key.text == name), None)

    def __len__(self) -> int:
        return len(self.entries)


def mistake(node: Node, kind: str, message: str, hint: str = "") -> Mistake:
    """The mistake that stands at a node."""
    line_text = node.file_lines[node.line - 1] if node.line <= len(node.file_lines) else ""
    return Mistake(kind, node.file, node.line, node.col, node.end_col, message, hint, line_text)


def load_yaml(path: Path | str, *, name: str | None = None, max_bytes: int = MAX_FILE_BYTES) -> Node:
    """Read one YAML document. `name` is what messages call the file (default: the path as given).

    Raises: Mistakes, with all mistakes that the YAML layer can see; FileNotFoundError.
    """
    name = name or str(path)
    try:
        raw = Path(path).read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:  # a folder, or not ours to read
        raise Mistakes([Mistake("unreadable", name, 1, 1, 2, f"cannot be read: {error.strerror}")]) from None
    return decode_yaml(raw, name, max_bytes=max_bytes)


def decode_yaml(raw: bytes, name: str, *, max_bytes: int = MAX_FILE_BYTES) -> Node:
    """The bytes of a file as a document. Raises: Mistakes."""
    if len(raw) > max_bytes:
        raise Mistakes([Mistake("limit", name, 1, 1, 2, f"the file has {len(raw)} bytes; {max_bytes} are allowed")])
    try:
        return parse_yaml(raw.decode("utf-8-sig"), name)
    except UnicodeDecodeError as error:
        raise Mistakes([encoding_mistake(error, name)]) from None


def encoding_mistake(error: UnicodeDecodeError, name: str, line_end: re.Pattern[str] = LINE_BREAK) -> Mistake:
    """The mistake at the first byte of a file that is not UTF-8."""
    raw = error.object  # without a byte order mark: that is what the places of the error count in
    before = line_end.split(raw[: error.start].decode())
    line, col = len(before), len(before[-1]) + 1
    message = f"byte 0x{raw[error.start]:02x} is not UTF-8"
    return Mistake("encoding", name, line, col, col + 1, message, "save the file as UTF-8")


@lru_cache(maxsize=1)  # a strategy's tables are looked for before it is compiled, and reading it is half of that
def parse_yaml(text: str, file: str = "<yaml>") -> Node:
    """Read one YAML document from a text. An empty document is a null scalar at 1:1. Raises: Mistakes."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = tuple(LINE_BREAK.split(text))
    loader = yaml.SafeLoader("")
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return ScalarNode(file, 1, 1, 2, lines, None, "")
        builder = _Builder(file, text, lines)
        node = builder.build(root)
    except yaml.YAMLError as error:
        raise Mistakes([syntax_mistake(error, file, text, lines)]) from None
    except RecursionError:
        raise Mistakes([Mistake("limit", file, 1, 1, 2, "the YAML is nested too deeply", "", lines[0])]) from None
    finally:
        loader.dispose()
    if builder.mistakes:
        raise Mistakes(builder.mistakes)
    return node


class _Loader(yaml.SafeLoader):
    """The safe loader, used up to its node graph only; it keeps explicit tags and refuses aliases."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.composer.ComposerError(None, None, f"alias '*{event.anchor}' is not read", event.start_mark)
        event = self.peek_event()
        node = super().compose_node(parent, index)
        node.written_tag, node.written_anchor = event.tag, event.anchor
        return node


class _Builder:
    """PyYAML's nodes to ours, with all mistakes noted on the way."""

    def __init__(self, file: str, text: str, lines: tuple[str, ...]) -> None:
        self.file, self.text, self.lines = file, text, lines
        self.starts = [0, *(match.end() for match in LINE_BREAK.finditer(text))]
        self.mistakes: list[Mistake] = []

    def build(self, node: Any) -> Node:
        place = self._place(node)
        self._refuse_tag(node, place)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, place)
        if isinstance(node, yaml.SequenceNode):
            return SeqNode(*place, tuple(self.build(item) for item in node.value))
        return MapNode(*place, tuple(self._entries(node)))

    def _entries(self, node: Any) -> Iterator[tuple[ScalarNode, Node]]:
        seen: dict[str, ScalarNode] = {}
        open_until = -1  # where an expression ends that YAML has cut at its commas
        for raw_key, raw_value in node.value:
            if raw_key.start_mark.index < open_until:
                continue
            key = self.build(raw_key)
            value = self.build(raw_value)
            if node.flow_style and (end := self._end_if_cut(raw_value)) is not None:
                open_until = end
                whole = self.text[raw_value.start_mark.index : end].strip()
                message = "YAML reads ',' inside '{…}' as the end of the value"
                self._note(value, "yaml-trap", message, quote_hint(" ".join(whole.split())))
            if not isinstance(key, ScalarNode):
                self._note(key, "key", "a key must be a word", "put the value in quotes if it is text")
                continue
            if raw_key.style is None and re.search(r"(^|\s)\?(\s|$)", key.text):
                whole = self._line_from(key)
                self._note(key, "yaml-trap", "YAML reads ': ' in this '? :' expression as a mapping", quote_hint(whole))
                continue
            if key.text == "<<" and raw_key.style is None:
                self._note(key, "key", "merge keys ('<<') are not read", "write the entries out")
            elif key.text in seen:
                first = seen[key.text]
                message = f"duplicate key '{key.text}'"
                self._note(key, "duplicate-key", message, f"it is already set on line {first.line}; remove one of them")
            else:
                seen[key.text] = key
                yield key, value

    def _end_if_cut(self, node: Any) -> int | None:
        """Where an expression ends whose parenthesis is still open at the comma that ends the YAML value."""
        if not isinstance(node, yaml.ScalarNode) or node.style is not None:
            return None
        if node.value.count("(") <= node.value.count(")"):
            return None
        return node.start_mark.index + value_length(self.text[node.start_mark.index :])

    def _scalar(self, node: Any, place: _Place) -> ScalarNode:
        scalar = ScalarNode(*place, _core_value(node), node.value, _segments(node, self.text, self.starts))
        if half := _HALF_CHARACTER.search(node.value):
            message = f"U+{ord(half[0]):04X} is half a character"
            self._note(scalar, "yaml", message, "write the character itself, or its whole number as \\U0001F600")
        if node.style is None:
            self._refuse_cut_by_comment(node, scalar)
        return scalar

    def _refuse_cut_by_comment(self, node: Any, scalar: ScalarNode) -> None:
        """`name == 'a #1'` in a plain scalar loses its tail to a comment; the odd quote gives it away."""
        rest = self.lines[node.end_mark.line][node.end_mark.column :]
        if rest.lstrip().startswith("#") and any(scalar.text.count(q) % 2 and rest.count(q) % 2 for q in "'\""):
            message = "YAML reads ' #' as the start of a comment, inside a quoted string of this value"
            self._note(scalar, "yaml-trap", message, quote_hint(self._line_from(scalar)))

    def _refuse_tag(self, node: Any, place: _Place) -> None:
        if node.written_tag is not None:
            line, col = node.start_mark.line + 1, node.start_mark.column + 1
            found = Node(self.file, line, col, col + 1, self.lines)
            message = "YAML reads a leading '!' as a tag"
            self._note(found, "yaml-trap", message, quote_hint(self._line_from(found)))
        if node.written_anchor is not None:
            where = Node(*place)
            self._note(where, "anchor", f"anchor '&{node.written_anchor}' is not read", "write the value out")

    def _line_from(self, node: Node) -> str:
        return self.lines[node.line - 1][node.col - 1 :].strip()

    def _place(self, node: Any) -> _Place:
        start, end = node.start_mark, node.end_mark
        line_end = len(self.lines[start.line].rstrip())
        end_col = end.column if end.line == start.line else line_end
        return self.file, start.line + 1, start.column + 1, max(end_col, start.column + 1) + 1, self.lines

    def _note(self, node: Node, kind: str, message: str, hint: str) -> None:
        self.mistakes.append(mistake(node, kind, message, hint))


def _core_value(node: Any) -> bool | int | float | str | None:
    """A plain scalar by YAML 1.2's core schema; any other style is text."""
    text: str = node.value
    if node.style is not None:
        return text
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        return int(text) if len(text) < 1000 else text  # Python's own limit, and far beyond any number meant
    if _OCTAL_OR_HEX.fullmatch(text):
        return int(text, 0)
    if _SPECIAL_FLOAT.fullmatch(text):
        return math.nan if "n" in text.lower().replace("inf", "") else (-math.inf if text[0] == "-" else math.inf)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _segments(node: Any, text: str, starts: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """Where each run of the scalar's characters stands in the file.

    Folding and indentation change white space only, so the other characters are found in their order; quoted styles
    have escapes besides. Each run is one (offset, line, col). `starts` are the positions at which the file's lines start.
    """
    pos = node.start_mark.index
    if node.style in ("|", ">"):
        below = bisect.bisect_right(starts, pos)
        pos = starts[below] if below < len(starts) else len(text)
        while text[pos : pos + 1].isspace() and not node.value[:1].isspace():
            pos += 1
    elif node.style in ("'", '"'):
        pos += 1
    else:
        while text[pos : pos + 1] in ("!", "&"):  # refused elsewhere; any place will do
            pos += 1
    runs: list[tuple[int, int]] = []
    for offset, char in enumerate(node.value):
        found, behind = _locate(char, text, pos, node.style)
        if not runs or found != runs[-1][1] + offset - runs[-1][0] or text[found - 1 : found] in _BREAKS:
            runs.append((offset, found))
        pos = behind
    if not runs:
        runs = [(0, pos)]
    out = []
    for offset, at in runs:
        line = bisect.bisect_right(starts, at)
        out.append((offset, line, at - starts[line - 1] + 1))
    return tuple(out)


def _locate(char: str, text: str, pos: int, style: str | None) -> tuple[int, int]:
    """Where a character of the value stands in the text at or behind `pos`, and the position behind it."""
    if style == '"':
        while text[pos : pos + 2] == "\\\n":  # an escaped line end, and the indentation behind it, is nothing
            pos += 2
            while text[pos : pos + 1] in (" ", "\t"):
                pos += 1
        if text[pos : pos + 1] == "\\":
            return pos, pos + _ESCAPE_LENGTH.get(text[pos + 1 : pos + 2], 2)
    if not char.isspace():
        while text[pos : pos + 1].isspace():
            pos += 1
        return pos, pos + (2 if style == "'" and text[pos : pos + 2] == "''" else 1)
    if text[pos : pos + 1] in (char, *_BREAKS):
        return pos, pos + 1
    return pos, pos

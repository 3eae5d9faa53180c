"""Text and place: where each character of an expression stands in its file.

An expression usually lives inside a YAML scalar, so its first character is not at 1:1, its lines may be indented,
folded or escaped. `SourceText` keeps the mapping, so that every later phase can speak of offsets into `text` only.
Read `errors.py` next: it turns a span into a message with a caret.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass, field

# What YAML counts as the end of a line; lines must be numbered as an editor and PyYAML do.
LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


@dataclass(frozen=True)
class SourceText:
    """A text and the place of its characters in `file`.

    `line` and `col` (1-based) are where `text[0]` stands. Without `segments`, the text stands in the file as it is:
    after a newline comes column 1 of the next line. With them, each `(offset, line, col)` says where the run of
    characters from `offset` on stands, up to the next segment. `file_lines` are the file's lines, for display;
    when empty, the text itself is shown.
    """

    text: str
    file: str = "<expression>"
    line: int = 1
    col: int = 1
    segments: tuple[tuple[int, int, int], ...] = field(default=(), repr=False)
    file_lines: tuple[str, ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.segments:
            starts = [match.end() for match in LINE_BREAK.finditer(self.text)]
            places = [(start, self.line + number, 1) for number, start in enumerate(starts, start=1)]
            object.__setattr__(self, "segments", ((0, self.line, self.col), *places))

    def place(self, offset: int) -> tuple[int, int]:
        """The 1-based (line, column) of `text[offset]`; the offset just behind the text is a place too."""
        index = bisect.bisect_right(self.segments, (offset, 1 << 60, 0)) - 1
        start, line, col = self.segments[max(index, 0)]
        return line, col + offset - start

    def span(self, start: int, end: int) -> tuple[int, int, int]:
        """(line, col, end_col) of `text[start:end]`; `end_col` is exclusive and stays on the first line."""
        line, col = self.place(start)
        last_line, last_col = self.place(max(start, end - 1))
        if last_line != line:
            return line, col, max(col + 1, len(self.line_text(line)) + 1)
        return line, col, max(last_col, col) + 1

    def line_text(self, line: int) -> str:
        """The whole line of the file, or as much of it as the text itself knows."""
        if self.file_lines:
            return self.file_lines[line - 1] if 1 <= line <= len(self.file_lines) else ""
        lines = LINE_BREAK.split(self.text)
        index = line - self.line
        if not 0 <= index < len(lines):
            return ""
        return " " * (self.col - 1) * (index == 0) + lines[index]

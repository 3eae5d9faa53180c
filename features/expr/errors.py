"""Mistakes in what an author wrote, as values: kind, place, message, hint. Text is made at the edge, by `format`.

```
strategies/surge.yaml:14:11: unknown name 'trip_cnt_5m'
 14 |     when: trip_cnt_5m > 3
    |           ^^^^^^^^^^^
 did you mean 'trip_count_5m'?
```

All mistakes of a run travel together in one `Mistakes`. YAML loaders use the same two classes. `causes.py` has the codes.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from features.expr.causes import CAUSES
from features.expr.source import SourceText

MAX_SHOWN = 100  # the rest is counted: a page of carets helps nobody
MAX_LINE = 160  # characters of a source line that are shown
MAX_TEXT = 600  # characters of a message or a hint: they quote what was written, which may be anything
MAX_NAMES_IN_HINT = 8


@dataclass(frozen=True)
class Mistake:
    """One mistake. `line` and `col` are 1-based, `end_col` is exclusive; `source_line` is that line of the file.

    `kind` is the stable code of the mistake (`causes.py`). A `warning` is worth a look and does not stop what is compiled.
    """

    kind: str
    file: str
    line: int
    col: int
    end_col: int
    message: str
    hint: str = ""
    source_line: str = ""
    severity: str = "error"  # or "warning"

    def __post_init__(self) -> None:
        """What is quoted may be endless, or hold what cannot be printed: the name of a file, half a character."""
        object.__setattr__(self, "file", _printable(self.file))
        object.__setattr__(self, "message", _shortened(_printable(self.message)))
        object.__setattr__(self, "hint", _shortened(_printable(self.hint)))
        object.__setattr__(self, "source_line", _printable(self.source_line))

    def as_dict(self) -> dict[str, Any]:
        """For `--json`: stable keys, `code` for the kind, and the one sentence that says what the code means."""
        return {
            "code": self.kind,
            "severity": self.severity,
            "file": self.file,
            "line": self.line,
            "col": self.col,
            "end_col": self.end_col,
            "message": self.message,
            "hint": self.hint,
            "cause": CAUSES.get(self.kind, ""),
            "source_line": self.source_line,
        }

    def format(self) -> str:
        """`file:line:col: message`, the line with a caret below, and the hint; a warning says so before its message."""
        word = "warning: " if self.severity == "warning" else ""
        out = [f"{self.file}:{self.line}:{self.col}: {word}{self.message}"]
        if self.source_line.strip():
            shown, start, end = _clip(self.source_line, self.col - 1, self.end_col - 1)
            gutter = str(self.line)
            pad = "".join(" " * _width(char) for char in shown[:start])
            carets = "^" * max(1, sum(_width(char) for char in shown[start:end]))
            out.append(f" {gutter} | {shown}".rstrip())
            out.append(f" {' ' * len(gutter)} | {pad}{carets}")
        if self.hint:
            out.append(f" {self.hint}")
        return "\n".join(out)


class Mistakes(ValueError):
    """All mistakes of one run, sorted by place. `str()` shows the first 100 and counts the rest."""

    def __init__(self, items: Iterable[Mistake]) -> None:
        unique = dict.fromkeys(items)
        self.items = sorted(unique, key=lambda item: (item.file, item.line, item.col, item.end_col, item.kind))
        super().__init__(self.items)

    def __str__(self) -> str:
        shown = [item.format() for item in self.items[:MAX_SHOWN]]
        rest = len(self.items) - MAX_SHOWN
        if rest > 0:
            shown.append(f"and {rest} more mistake{'s' if rest > 1 else ''}")
        return "\n".join(shown)


def mistake_at(source: SourceText, start: int, end: int, kind: str, message: str, hint: str = "") -> Mistake:
    """The mistake about `source.text[start:end]`."""
    line, col, end_col = source.span(start, end)
    return Mistake(kind, source.file, line, col, end_col, message, hint, source.line_text(line))


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """The known name that is nearest to a misspelt one, or None when nothing is near."""
    names = sorted(known)
    folded = {candidate.casefold(): candidate for candidate in names}
    if name.casefold() in folded:
        return folded[name.casefold()]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return near[0]
    # 'completed_1h' for 'driver.completed_1h': the author forgot, or mistook, what stands before the last dot.
    tail = name.rpartition(".")[2]
    same_tail = [candidate for candidate in names if candidate.rpartition(".")[2] == tail]
    return same_tail[0] if same_tail else None


def name_hint(name: str, known: Iterable[str]) -> str:
    """'did you mean …?', else the names there are."""
    names = sorted(known)
    near = did_you_mean(name, names)
    if near is not None:
        return f"did you mean '{near}'?"
    if not names:
        return "no names are known here"
    rest = len(names) - MAX_NAMES_IN_HINT
    return f"known here: {', '.join(names[:MAX_NAMES_IN_HINT])}" + (f" and {rest} more" if rest > 0 else "")


def _printable(text: str) -> str:
    """The text with ? for every half of a character, so that it can be written as UTF-8; nothing moves."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _shortened(text: str) -> str:
    """A text without its middle, where that is endless: what it quotes comes first, what it says of it last."""
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT // 2]} … {text[-MAX_TEXT // 2 :]}"


def _clip(line: str, start: int, end: int) -> tuple[str, int, int]:
    """The part of a long line around the span, tabs and control characters as spaces; the span in that part."""
    clean = "".join(char if char.isprintable() else " " for char in line)
    if len(clean) <= MAX_LINE:
        return clean, start, end
    left = max(0, min(start - MAX_LINE // 3, len(clean) - MAX_LINE))
    right = left + MAX_LINE
    head, tail = ("…" if left else ""), ("…" if right < len(clean) else "")
    shift = len(head) - left
    return head + clean[left:right] + tail, start + shift, min(end, right) + shift


def _width(char: str) -> int:
    """Columns that a terminal gives the character, so that carets stand under wide text."""
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1

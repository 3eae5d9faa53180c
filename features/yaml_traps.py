"""What YAML makes of an expression that it misreads, as a mistake with the fix; and what else its parser refuses.

The text is an author's, so the value is found again on its line as it was meant: a key and all behind it, or inside
`{…}` the entry at hand. Read features/yaml_source.py for what is read.
"""

from __future__ import annotations

import re
from typing import Final

import yaml

from features.expr.errors import Mistake
from features.expr.source import LINE_BREAK

_KEY: Final = re.compile(r"""^\s*(?:-\s+)*(?:[\w.*-]+|'[^']*'|"[^"]*")\s*:\s+|^\s*-\s+""")
_FLOW_ENTRY: Final = re.compile(r"[{,]\s*[\w.]+\s*:\s+")
_BLOCK_HINT: Final = "put the expression on lines of its own behind '|'"


def syntax_mistake(error: yaml.YAMLError, file: str, text: str, lines: tuple[str, ...]) -> Mistake:
    """A YAML error as a mistake: the known trap on that line and its fix, else what PyYAML says."""
    if isinstance(error, yaml.reader.ReaderError):
        before = text[: error.position]
        line = len(LINE_BREAK.split(before))
        col = len(LINE_BREAK.split(before)[-1]) + 1
        code = error.character if isinstance(error.character, int) else ord(error.character)
        message = f"character U+{code:04X} is not allowed in YAML"
        return Mistake(
            "yaml", file, line, col, col + 1, message, "write it as an escape in double quotes", lines[line - 1]
        )
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line, col = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    line = min(line, len(lines))
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    if problem == "but found another document":
        problem = "'---' starts another document, and a file holds one"
    for candidate in dict.fromkeys((line, _context_line(error, line))):
        shown = lines[candidate - 1]
        at, value = _value_on(shown, col - 1 if candidate == line else len(shown))
        trap = _trap(value, problem)
        if trap is not None:
            end = at + len(value) + 1
            return Mistake("yaml-trap", file, candidate, at + 1, end, trap, quote_hint(value), shown)
    shown = lines[line - 1]
    if re.match(r"\s*[?:]\s", shown):
        message = f"YAML reads a line that starts with '{shown.strip()[0]}' as a mapping"
        return Mistake("yaml-trap", file, line, col, col + 1, message, _BLOCK_HINT, shown)
    if "\t" in shown[: len(shown) - len(shown.lstrip())]:
        return Mistake("yaml", file, line, 1, 2, "YAML does not take a tab as indentation", "use spaces", shown)
    hint = getattr(error, "context", None) or ""
    return Mistake("yaml", file, line, col, col + 1, f"not valid YAML: {problem}", hint, shown)


def _context_line(error: yaml.YAMLError, default: int) -> int:
    mark = getattr(error, "context_mark", None)
    return mark.line + 1 if mark else default


def _value_on(line: str, near: int) -> tuple[int, str]:
    """(0-based column, text) of the value that an author wrote on this line; inside `{…}`, of the entry at `near`."""
    entries = [match for match in _FLOW_ENTRY.finditer(line) if match.end() <= max(near, 0) + 1]
    if entries:
        at = entries[-1].end()
        return at, line[at : at + value_length(line[at:])].rstrip()
    head = _KEY.match(line)
    at = head.end() if head else len(line) - len(line.lstrip())
    return at, line[at:].rstrip(" \t,")


def value_length(text: str) -> int:
    """How far the author's value reaches inside `{…}`: to the comma or brace behind it, quotes and brackets considered."""
    depth, quote = 0, ""
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}" and depth:
            depth -= 1
        elif char in ",}]\n" and not depth:
            return at
    return len(text)


def _trap(value: str, problem: str) -> str | None:
    """What YAML makes of this value, when it is an expression that YAML misreads."""
    if re.match(r"[%@`]|[-?]\s|[|>]\s*[^\s|>+-]", value):
        return f"YAML gives a leading '{value[0]}' a meaning of its own"
    if value.startswith("!"):
        return "YAML reads a leading '!' as a tag"
    if value.startswith(("&", "*")):
        return f"YAML reads a leading '{value[0]}' as an anchor or alias"
    if re.match(r"""(?:'[^']*'|"[^"]*")\s*[^\s,}\]#:]""", value):
        return "YAML reads the leading quote as the whole value"
    if not value.startswith(("'", '"', "|", ">", "{", "[")):
        if "??" in value:
            return "YAML does not read '??' inside '{…}' without quotes"
        if re.search(r"\?.*\s:\s", value):
            return "YAML reads ': ' in this '? :' expression as a mapping"
        if re.search(r"^[^'\"]*'[^']* #|^[^'\"]*\"[^\"]* #", value):
            return "YAML reads ' #' as the start of a comment, inside a quoted string of this value"
        if ": " in value and "mapping values" in problem:
            return "YAML reads ': ' in this value as a mapping"
        if value.endswith("?") and "got '?'" in problem:
            return "YAML does not read a '?' at the end of a value inside '{…}' without quotes"
        if "[" in value and "got '['" in problem:
            return "YAML reads '[' inside '{…}' as the start of a list"
    return None


def quote_hint(value: str) -> str:
    """How to write the value so that YAML keeps it whole."""
    short = value if len(value) <= 80 else value[:79] + "…"
    if "'" not in short:
        return f"put it in quotes: '{short}'"
    if '"' not in short and "\\" not in short:
        return f'put it in quotes: "{short}"'
    return "put it on a line of its own behind '|'"

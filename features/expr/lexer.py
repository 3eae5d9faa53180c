"""Text to tokens: CEL's literals and operators, without its bytes and unsigned ints.

Spellings from other languages (`and`, `=`, `<>`) are noted as mistakes and read as what was meant, so that one run shows
further mistakes too. Read `parser.py` next.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from features.expr.errors import Mistake, mistake_at
from features.expr.source import SourceText
from features.expr.types import INT_MAX

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
    |(?P<string>[rR]?(?:'''|\"\"\"|'|"))
    |(?P<double>(?:\d+\.\d+|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
    |(?P<int>0[xX][0-9a-fA-F]+|\d+)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<op>&&|\|\||\?\?|==|!=|<=|>=|<>|[-+*/%!<>=?:.,()\[\]&|{}])""",
    re.VERBOSE | re.ASCII,
)
_KEYWORDS: Final = frozenset({"true", "false", "null", "in"})
_RESERVED: Final = frozenset(
    {"as", "break", "const", "continue", "else", "for", "function", "import", "let", "loop", "package", "namespace",
     "return", "var", "void", "while"}
)  # fmt: skip
_FOREIGN: Final = {  # spellings of other languages -> ours
    "and": "&&", "AND": "&&", "or": "||", "OR": "||", "not": "!", "NOT": "!", "=": "==", "<>": "!=", "&": "&&", "|": "||",
    "True": "true", "False": "false", "None": "null", "TRUE": "true", "FALSE": "false", "NULL": "null",
}  # fmt: skip
_ESCAPES: Final = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", "?": "?", '"': '"', "'": "'", "`": "`",
}  # fmt: skip
_HEX_ESCAPES: Final = {"x": 2, "X": 2, "u": 4, "U": 8}


@dataclass(frozen=True)
class Token:
    """`kind`: string, double, int, name, word (keyword), op, end. `value`: of a literal."""

    kind: str
    text: str
    start: int
    end: int
    value: bool | int | float | str | None = None


class Stop(Exception):
    """The parser cannot go on; the mistake is noted."""


def lex(source: SourceText, mistakes: list[Mistake]) -> list[Token]:
    """The tokens, with one of kind 'end' behind them. Raises: Stop, when the rest makes no sense."""
    return _Lexer(source, mistakes).run()


class _Lexer:
    """Text to tokens."""

    def __init__(self, source: SourceText, mistakes: list[Mistake]) -> None:
        self.source, self.text, self.mistakes = source, source.text, mistakes
        self.pos = 0
        self.tokens: list[Token] = []

    def run(self) -> list[Token]:
        tokens = self.tokens
        while self.pos < len(self.text):
            match = _TOKEN.match(self.text, self.pos)
            if match is None:
                self._unknown_character()
                continue
            kind, text, start = str(match.lastgroup), match.group(), self.pos
            self.pos = match.end()
            if kind == "string":
                tokens.append(self._string(text, start))
            elif kind in ("int", "double"):
                tokens.append(self._number(kind, text, start))
            elif kind != "space":
                tokens.append(self._word_or_op(kind, text, start))
        end = len(self.text.rstrip())  # a block scalar ends with a line end, behind which nothing stands
        tokens.append(Token("end", "the end", end, end))
        return tokens

    def _unknown_character(self) -> None:
        char = self.text[self.pos]
        hint = "write strings with ' or \"" if char in "‘’“”`" else "names are of letters, digits, '_' and '.'"
        self._note(self.pos, self.pos + 1, "syntax", f"unexpected character {char!r}", hint)
        self.pos += 1
        if char in "‘’“”`":
            raise Stop  # what follows is the inside of a string

    def _number(self, kind: str, text: str, start: int) -> Token:
        end = self.pos
        tail = re.compile(r"[A-Za-z_]\w*", re.ASCII).match(self.text, end)
        if tail:
            self.pos = tail.end()
            unsigned = tail.group() in ("u", "U")
            hint = "there are no unsigned ints; drop the 'u'" if unsigned else "put a space or an operator between them"
            self._note(start, self.pos, "syntax", f"'{text}{tail.group()}' is not a number", hint)
        if kind == "double":
            value: int | float = float(text)
            if math.isinf(value):
                self._note(start, end, "literal", f"{text} is beyond the largest double", "the largest is 1.797e308")
            return Token("double", text, start, end, value)
        value = int(text, 16) if text[:2] in ("0x", "0X") else _decimal(text)
        return Token("int", text, start, end, value)

    def _word_or_op(self, kind: str, text: str, start: int) -> Token:
        end = self.pos
        after_dot = bool(self.tokens) and self.tokens[-1].text == "."
        meant = None if after_dot else _FOREIGN.get(text)
        if meant is not None:
            self._note(start, end, "syntax", f"'{text}' is written '{meant}' here")
            text = meant
            kind = "word" if meant.isalpha() else "op"
        if kind == "op":
            return Token("op", text, start, end)
        if text in _KEYWORDS and not after_dot:
            return Token("word", text, start, end, {"true": True, "false": False}.get(text))
        if text in _RESERVED and not after_dot:
            self._note(start, end, "syntax", f"'{text}' is a reserved word", "choose another name")
        return Token("name", text, start, end)

    def _string(self, opening: str, start: int) -> Token:
        raw = opening[0] in "rR"
        quote = opening[1:] if raw else opening
        out: list[str] = []
        while True:
            if self.text.startswith(quote, self.pos):
                self.pos += len(quote)
                return Token("string", self.text[start : self.pos], start, self.pos, "".join(out))
            char = self.text[self.pos : self.pos + 1]
            if char == "" or (char == "\n" and len(quote) == 1):
                end = self.pos
                self._note(start, end, "syntax", "this string is not closed", f"close it with {quote}")
                raise Stop
            if char == "\\" and not raw:
                out.append(self._escape())
                continue
            if "\ud800" <= char <= "\udfff":
                self._note(self.pos, self.pos + 1, "literal", f"U+{ord(char):04X} is half a character")
                char = "?"
            out.append(char)
            self.pos += 1

    def _escape(self) -> str:
        start = self.pos
        char = self.text[start + 1 : start + 2]
        if char in _ESCAPES and char:
            self.pos += 2
            return _ESCAPES[char]
        digits, base = ("", 16)
        if char in _HEX_ESCAPES and char:
            wanted = self.text[start + 2 : start + 2 + _HEX_ESCAPES[char]]
            digits = wanted if re.fullmatch(f"[0-9a-fA-F]{{{_HEX_ESCAPES[char]}}}", wanted) else ""
            self.pos = start + 2 + len(digits)
        elif re.match(r"[0-3][0-7]{2}", self.text[start + 1 : start + 4]):
            digits, base = self.text[start + 1 : start + 4], 8
            self.pos = start + 4
        code = int(digits, base) if digits else -1
        if 0 <= code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF:
            return chr(code)
        self.pos = max(self.pos, start + 2)
        hint = r"known: \n \t \\ \' \" \xHH \uHHHH \UHHHHHHHH \ooo; or a raw string: r'…'"
        self._note(start, self.pos, "syntax", f"'{self.text[start : self.pos]}' is not an escape", hint)
        return "?"

    def _note(self, start: int, end: int, kind: str, message: str, hint: str = "") -> None:
        self.mistakes.append(mistake_at(self.source, start, end, kind, message, hint))


def _decimal(text: str) -> int:
    return int(text) if len(text) <= 40 else INT_MAX * 4  # long past any range; int() of 10,000 digits is slow

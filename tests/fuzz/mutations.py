"""Texts made wrong: by bytes, by words, by lines, by values, and by what usually breaks readers.

Everything is a function of the `random.Random` that is given, so that a seed repeats a case.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

WORDS = [
    "null", "true", "false", "~", "-1", "0", "1", "0x7f", "0o17", "1e308", "1e400", "-0.0", ".5", "1.", ".inf", "-.inf", ".nan",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "9" * 400, "9" * 5000, "1e-400", "1_000", "2024-02-30",
    "''", '""', "'", '"', "[]", "{}", "[", "]", "{", "}", "{{}}", "? x", ":", "- -", "|", ">", "|2-", ">+", "*x", "&x", "!x", "!!int 3",
    "<<: *x", "%YAML 1.1", "---", "...", "#", " # x", "@", "`", ",", ";", "\\", "yes", "no", "on", "as_of", "score", "params.x", "a.b.c",
    "int", "double", "string?", "'double?'", "timestamp", "duration?", "list(int)", "list(list(int))", "list(string)?", "bytes",
    "5s", "5ms", "1h30m", "-5s", "99999999h", "1e9s", "../x.csv", "/etc/passwd", "tables/zone_bonus.csv", "x.csv", "..", ".", "~/x.csv",
    "first", "unique", "collect", "sum", "min", "max", "count", "error", "skip", "fire", "fail_row", "hash", "switchback", "softmax",
    "[1..5)", "(..10]", ">= 5", "< 3", "a | b", "*", "(5..1]", "[..]", "[1..x)", "out.bonus", "{out.bonus: 'int?'}",
]  # fmt: skip
CHARACTERS = [
    "\0", "\x01", "\x07", "\x1b", "\x7f", "\x85", "\xa0", "\u2028", "\u2029", "\ufeff", "\u200b", "\u202e", "\u0301", "é", "ß", "İ", "ﬀ", "π", "🐱",
    "٣", "²", "\t", "\r", "\r\n", "\n", " ", "\v", "\f", "\\ud800", "\\x00", "\\", "'", '"', "#", ":", "?", "!", "-", "%", "{", "[", "(", "|", ">", "&", "*", ",",
]  # fmt: skip
BYTES = [b"\x00", b"\xff", b"\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80", b"\xef\xbb\xbf", b"\r", b"\r\n", b"\xc3"]  # fmt: skip
_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
_VALUE = re.compile(r"(:\s+|-\s+|,\s*|\[\s*)([^,\]}\n]+)")


_NUMBERS = [
    "0",
    "1",
    "2",
    "7",
    "0.5",
    "0.0",
    "-1",
    "-0.5",
    "1e308",
    "5e-324",
    "100",
    "9007199254740993",
    "9223372036854775807",
]
_ALIKE = [  # words and signs that often stand for one another without breaking anything
    ["<", "<=", ">", ">=", "==", "!="], ["&&", "||"], ["+", "-", "*"], ["true", "false"], ["first", "unique"], ["skip", "fire", "fail_row"],
    ["none", "epsilon", "softmax", "top_k_softmax"], ["add", "multiply", "set"], ["error", "null"], ["sum", "min", "max", "count"], ["floor", "ceil", "round"],
    ["int", "double", "string", "bool"], ["int?", "double?"], ["exists", "all"], ["startsWith", "endsWith", "contains"], ["hour", "zone", "rank_no", "fare_cents"],
]  # fmt: skip
_SAME_KIND = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])|[<>=!]=|[<>+*]|&&|\|\||\b[a-zA-Z_]+\b")


def mutate(rng: random.Random, text: str, others: Sequence[str], values: Sequence[str]) -> bytes:
    """The text with a few things made wrong. Lines are borrowed from `others`, values from `values` too."""
    if rng.random() < 0.4:
        return tweak(rng, text).encode("utf-8", "surrogatepass")
    for _ in range(rng.choice([1, 1, 1, 1, 2, 3, 6])):
        roll = rng.random()
        if roll < 0.5:
            text = swap_value(rng, text, values)
        elif roll < 0.7:
            text = mangle_words(rng, text)
        elif roll < 0.85:
            text = mangle_lines(rng, text, others)
        elif roll < 0.97:
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(CHARACTERS) + text[at + rng.randrange(3) :]
        else:
            text = nest(rng, text)
    raw = text.encode("utf-8", "surrogatepass")
    roll = rng.random()
    if roll < 0.05:
        raw = mangle_bytes(rng, raw)
    elif roll < 0.10:
        raw = rng.choice(
            [
                b"\xef\xbb\xbf" + raw,
                raw.replace(b"\n", b"\r\n"),
                raw.replace(b"\n", b"\r"),
                text.encode("utf-16", "replace"),
            ]
        )
    return raw


def tweak(rng: random.Random, text: str) -> str:
    """A few numbers, signs and words exchanged for others of their kind: what comes out is often right."""
    alike = {word: group for group in _ALIKE for word in group}
    places = [match for match in _SAME_KIND.finditer(text) if match[0][0].isdigit() or match[0] in alike]
    for place in sorted(
        rng.sample(places, min(len(places), rng.choice([0, 1, 1, 2]))), key=lambda found: -found.start()
    ):
        other = rng.choice(alike.get(place[0], _NUMBERS))
        text = text[: place.start()] + other + text[place.end() :]
    return text


def swap_value(rng: random.Random, text: str, values: Sequence[str]) -> str:
    """One value (behind `: `, `- `, `,` or `[`) becomes another one."""
    places = [match.span(2) for match in _VALUE.finditer(text)]
    if not places:
        return mangle_words(rng, text)
    start, end = rng.choice(places)
    value = rng.choice(values) if values and rng.random() < 0.6 else rng.choice(WORDS)
    if rng.random() < 0.3:
        value = "'" + value.replace("'", "''") + "'"
    return text[:start] + value + text[end:]


def mangle_words(rng: random.Random, text: str) -> str:
    """Words and signs deleted, doubled, exchanged or replaced."""
    tokens = _TOKEN.findall(text) or [""]
    at = rng.randrange(len(tokens))
    kind = rng.randrange(6)
    if kind == 0:
        del tokens[at : at + rng.choice([1, 1, 2, 5])]
    elif kind == 1:
        tokens.insert(at, tokens[at])
    elif kind == 2:
        other = rng.randrange(len(tokens))
        tokens[at], tokens[other] = tokens[other], tokens[at]
    elif kind == 3:
        tokens[at] = rng.choice(WORDS)
    elif kind == 4:
        tokens[at] = rng.choice(tokens)
    else:
        tokens[at] = tokens[at] * rng.choice([2, 3, 300])
    return "".join(tokens)


def mangle_lines(rng: random.Random, text: str, others: Sequence[str]) -> str:
    """Lines deleted, doubled, moved, indented differently, cut, or borrowed from another text."""
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    kind = rng.randrange(7)
    if kind == 0:
        del lines[at : at + rng.choice([1, 1, 2, 4])]
    elif kind == 1:
        lines.insert(rng.randrange(len(lines)), lines[at])
    elif kind == 2:
        lines[at] = rng.choice([" ", "  ", "    ", "\t"]) + lines[at]
    elif kind == 3:
        lines[at] = lines[at].lstrip()
    elif kind == 4 and others:
        borrowed = rng.choice(others).split("\n")
        start = rng.randrange(len(borrowed))
        lines[at:at] = borrowed[start : start + rng.randrange(1, 6)]
    elif kind == 5:
        lines = lines[:at] if rng.random() < 0.5 else lines[at:]
    else:
        lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
    return "\n".join(lines)


def nest(rng: random.Random, text: str) -> str:
    """Something is nested, or repeated, more often than anybody means it."""
    at = rng.randrange(len(text) + 1)
    depth = rng.choice([20, 200, 3_000])
    opening, closing = rng.choice(
        [("[", "]"), ("{a: ", "}"), ("- ", ""), ("(", ")"), ("!", ""), ("x: ", ""), ("a ? b : ", ""), ("-", "")]
    )
    return text[:at] + opening * depth + closing * rng.choice([depth, depth - 1, 0]) + text[at:]


def mangle_bytes(rng: random.Random, raw: bytes) -> bytes:
    """Bytes flipped, put in or cut off."""
    data = bytearray(raw)
    for _ in range(rng.choice([1, 1, 3, 20])):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(4)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at:at] = rng.choice(BYTES)
        elif kind == 2:
            del data[at : at + rng.randrange(1, 9)]
        else:
            del data[at:]
    return bytes(data)

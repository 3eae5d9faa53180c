"""Expressions from a grammar that knows the kinds and sometimes forgets them, and soups of tokens."""

from __future__ import annotations

import random

from tests.features.expr.typed_expressions import STRINGS, WIDE
from tests.fuzz.mutations import CHARACTERS, WORDS, mangle_words, nest

_KINDS = [
    "int",
    "double",
    "string",
    "bool",
    "timestamp",
    "duration",
    "list(int)",
    "list(string)",
    "list(double)",
    "list(timestamp)",
]
_LITERALS = {
    "int": ["0", "1", "-1", "7", "0x1F", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "00", "9" * 60],
    "double": ["0.0", "-0.0", "1.5", ".5", "1e308", "1e309", "5e-324", "1e-400", "2", "9007199254740993.0"],
    "string": ["''", '""', "'a'", "r'\\d'", "'''a\nb'''", "'\\u03c0'", "'🐱'", "'\\ud800'", "'it\\'s'", '"\\x00"', "'idle'"],
    "bool": ["true", "false"],
    "timestamp": ["timestamp('2024-03-10T07:30:00Z')", "timestamp(0)", "timestamp('x')", "timestamp('9999-12-31T23:59:59.999999Z')"],
    "duration": ["duration('1h')", "duration('-1.5s')", "duration('1us')", "duration('2562047h')", "duration('')"],
    "list(int)": ["[1, 2]", "[]", "[1]", "[1, 2.5]"],
    "list(double)": ["[1.5, 2]", "[0.0]"],
    "list(string)": ["['a', 'b']", "['']"],
    "list(timestamp)": ["[timestamp(0)]"],
}  # fmt: skip
# What yields each kind; a word in braces is an operand of that kind, `{name}` a nullable name, `{v}` a loop's variable.
_FORMS = {
    "int": [
        "{int} + {int}", "{int} - {int}", "{int} * {int}", "{int} % {int}", "div({int}, {int})", "-{int}", "math.abs({int})", "int({double})",
        "int({string})", "int({timestamp})", "size({string})", "{string}.size()", "size({list(int)})", "{bool} ? {int} : {int}", "if({bool}, {int}, {int})",
        "n ?? {int}", "max({int}, {int}, {int})", "math.least({int}, {int})", "({timestamp}).getHours()", "({timestamp}).getMonth({string})",
        "({timestamp}).getFullYear('America/New_York')", "({duration}).getSeconds()", "math.sign({int})",
    ],
    "double": [
        "{double} + {double}", "{double} - {double}", "{double} * {double}", "{double} / {double}", "-{double}", "double({int})", "double({string})",
        "math.sqrt({double})", "math.log({double})", "math.log1p({double})", "math.exp({double})", "math.pow({double}, {double})", "math.floor({double})",
        "math.round({double})", "min({double}, {double})", "driver.z ?? {double}", "{bool} ? {double} : {int}", "hash01('s', {string})", "hash01({string}, {string})",
    ],
    "string": ["{string} + {string}", "string({int})", "string({timestamp})", "string({duration})", "string({bool})", "t ?? {string}", "{bool} ? {string} : {string}"],
    "bool": [
        "{int} < {int}", "{double} >= {double}", "{string} == {string}", "{bool} && {bool}", "{bool} || {bool}", "!{bool}", "{bool} != {bool}",
        "{int} in {list(int)}", "{string} in {list(string)}", "{double} in [1, 2.5, {double}]", "{string}.contains({string})", "startsWith({string}, {string})",
        "({string}).matches('^[a-z]+$')", "({string}).matches('(a+)+$')", "({string}).matches('(')", "({string}).matches({string})", "has({name})", "{name} == null",
        "null != {name}", "{name} != null && {bool}", "f ?? {bool}", "nums.exists(v, v > {int})", "tags.all(v, v < {string} || {bool})", "nums.all(w, tags.exists(v, {bool}))",
        "moments.exists(v, v - {timestamp} < {duration})", "{timestamp} < {timestamp}", "{duration} >= {duration}", "math.isNaN({double})", "{int} == {double}", "f", "(f ? {bool} : {bool})",
    ],
    "timestamp": ["{timestamp} + {duration}", "{timestamp} - {duration}", "timestamp({int})", "timestamp({string})", "last ?? {timestamp}", "{duration} + {timestamp}"],
    "duration": ["{duration} + {duration}", "{timestamp} - {timestamp}", "duration({string})", "req.gap ?? {duration}"],
    "list(int)": ["opt ?? nums", "{bool} ? nums : [1]"],
}  # fmt: skip
_SOUP = [
    "(", ")", "[", "]", "{", "}", ",", ".", "?", ":", "??", "?.", "&&", "||", "!", "!=", "==", "=", "<", "<=", ">", ">=", "<>", "+", "-", "*", "/", "%", "in",
    "and", "or", "not", "&", "|", "^", "**", "//", "/*", "null", "true", "None", "has", "size", "exists", "all", "matches", "if", "min", "math", "math.abs", "v", "1", "2.5",
    "1u", "1e", "0x", "'a'", "'", '"', "'''", "r'", "b'x'", "\\", "@", "$", "#", "`", "for", "let", "double", "int", "timestamp", "duration", "hash01", "div", "params.x",
]  # fmt: skip


def expression(rng: random.Random) -> str:
    """A text that is an expression, or nearly one, or none."""
    roll = rng.random()
    if roll < 0.5:
        text = typed(rng, rng.choice(_KINDS), rng.randrange(1, 5), slip=0.0)
    elif roll < 0.7:
        text = typed(rng, rng.choice(_KINDS), rng.randrange(1, 6), slip=0.1)
    elif roll < 0.8:
        text = " ".join(rng.choice([*_SOUP, *WIDE]) for _ in range(rng.randrange(1, 30)))
    elif roll < 0.9:
        text = _big(rng)
    else:
        text = typed(rng, "bool", 3, slip=0.05)
        for _ in range(rng.randrange(1, 4)):
            text = rng.choice([mangle_words, nest, _character])(rng, text)
    return text if rng.random() < 0.9 else _character(rng, text)


def typed(rng: random.Random, kind: str, depth: int, *, slip: float) -> str:
    """An expression of the kind; with probability `slip` an operand is of any kind."""
    if rng.random() < slip:
        kind = rng.choice(_KINDS)
    if depth <= 0 or rng.random() < 0.1 or kind not in _FORMS:
        return _leaf(rng, kind)
    form = rng.choice(_FORMS[kind])
    out, at = [], 0
    while (start := form.find("{", at)) >= 0:
        end = form.index("}", start)
        inner = form[start + 1 : end]
        out.append(form[at:start])
        nullable = [name for name, known in WIDE.items() if known.nullable]
        out.append(rng.choice(nullable) if inner == "name" else f"({typed(rng, inner, depth - 1, slip=slip)})")
        at = end + 1
    return "".join(out) + form[at:]


def _leaf(rng: random.Random, kind: str) -> str:
    names = [name for name, known in WIDE.items() if known.kind == kind and not known.nullable]
    if names and rng.random() < 0.6:
        return rng.choice(names)
    if kind == "string" and rng.random() < 0.2:
        return repr(rng.choice(STRINGS))
    return rng.choice(_LITERALS[kind])


def _big(rng: random.Random) -> str:
    """Long chains, deep nests, long texts."""
    many = rng.choice([10, 100, 300, 5_000, 40_000])
    inner = typed(rng, "bool", 1, slip=0.02)
    return rng.choice(
        [
            lambda: rng.choice([" && ", " || ", " ?? ", " == "]).join([inner] * min(many, 40_000 // len(inner))),
            lambda: "(" * many + "b" + ")" * rng.choice([many, many - 1]),
            lambda: "!" * many + "b",
            lambda: "-" * many + "i",
            lambda: "b ? i : " * (many // 8) + "1",
            lambda: "i" + " + i" * (many // 4),
            lambda: "'" + "a" * many + "' == s",
            lambda: "i in [" + ", ".join(map(str, range(many // 6))) + "]",
            lambda: (
                "s.matches('"
                + rng.choice(["(a*)*", "a{1000}", "[a-z]{500}{500}", "(", "|", "\\\\pN"]) * (many // 10 + 1)
                + "')"
            ),
            lambda: "nums.all(v, " * (many // 12) + "b" + ")" * (many // 12),
            lambda: ".".join(["a"] * many),
            lambda: "if(b, " * (many // 6) + "1" + ", 2)" * (many // 6),
            lambda: "9" * many,
            lambda: "0x" + "f" * many,
            lambda: "1e" + "9" * many,
        ]
    )()


def _character(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice([*CHARACTERS, *WORDS, "\ud800", "\udfff"]) + text[at:]

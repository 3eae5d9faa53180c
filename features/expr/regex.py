"""Regular expressions for `matches`: RE2, whose time is linear in the text for every pattern.

A pattern is a literal of the expression, compiled when the expression is checked. Its length and the size of its
compiled form are limited here: RE2 bounds time by pattern size times text length, so the size is the other factor.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Protocol

import re2

MAX_PATTERN: Final = 1_000  # characters
MAX_PROGRAM: Final = 2_000  # instructions; the classes of Unicode are large: `\pL` alone needs 1,200
_MAX_MEM: Final = 1 << 20  # bytes a pattern may use, its cache of states included


class BadPattern(ValueError):
    """The pattern does not compile, or is too large."""


class Regex(Protocol):
    def search(self, text: str) -> object | None: ...


@lru_cache(maxsize=512)
def compile_pattern(pattern: str) -> Regex:
    """The compiled pattern; `search` says whether it occurs anywhere. Raises: BadPattern, saying what is wrong."""
    if len(pattern) > MAX_PATTERN:
        raise BadPattern(f"the pattern has {len(pattern)} characters; {MAX_PATTERN} are allowed")
    options = re2.Options()
    options.max_mem = _MAX_MEM
    options.log_errors = False
    options.never_capture = True
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error.args[0])
        raise BadPattern(f"RE2 says: {reason}") from None
    if compiled.programsize > MAX_PROGRAM:
        raise BadPattern(f"the pattern compiles to {compiled.programsize} instructions; {MAX_PROGRAM} are allowed")
    return compiled


def size(pattern: str) -> int:
    """Instructions of the compiled pattern: the work that one character of text costs at most."""
    return int(compile_pattern(pattern).programsize)  # type: ignore[attr-defined]

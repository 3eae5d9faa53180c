"""Predicates of one text, answered once per distinct text: a column of texts becomes codes, a predicate one look-up by code.

`state == 'idle'`, `state.startsWith('on_')` and the like depend on nothing but one name. Texts get codes as they are first
seen, and `columns.evaluate` answers every predicate for the new ones; what it said is kept as a table by code. The codes of a
batch cost one dict look-up a text, whatever the number of predicates.
Legend: N rows, T texts seen.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from features.expr.columns import Column, evaluate
from features.expr.program import Program

NULL, ERROR = 0, 1  # the codes of what is no text
_FIRST: Final = 2
_MOST_TEXTS: Final = 4096  # remembered before starting over; a field of ids would grow for ever


class Answers:
    """What one predicate says of every code. Shapes: (T + 2,) bool. `always_known`: it is for every text there is."""

    __slots__ = ("always_known", "error", "valid", "values")

    def __init__(self, values: np.ndarray, valid: np.ndarray, error: np.ndarray) -> None:
        self.values, self.valid, self.error = values, valid, error
        self.always_known = bool(valid[_FIRST:].all())


class _Seen:
    """The texts seen so far. Answers are extended before a code is handed out: who has a code finds its answer."""

    def __init__(self, programs: Sequence[Program], name: str) -> None:
        nothing = Column(np.array([""] * _FIRST, np.object_), np.zeros(_FIRST, np.bool_), np.array([False, True]))
        self.code_of: dict[str, int] = {}
        self.answers = [_answers(program, name, nothing) for program in programs]


class TextCodes:
    """The predicates of one name. All are given before the first batch; then any number of threads may ask."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.programs: list[Program] = []
        self._seen: _Seen | None = None
        self._lock = threading.Lock()  # around what is added

    def place_for(self, program: Program) -> int:
        """The place of a new predicate in what `look_up` returns."""
        self.programs.append(program)
        return len(self.programs) - 1

    def look_up(self, texts: Column) -> tuple[np.ndarray, list[Answers], bool]:
        """Codes, the answers by place, and whether every row has a text. Shapes: returns codes (N,) int64."""
        seen = self._seen
        keys = texts.values.tolist()
        whole = np.count_nonzero(texts.valid) == len(keys)
        try:
            if seen is None:
                raise KeyError
            codes_N = np.fromiter(map(seen.code_of.__getitem__, keys), np.int64, len(keys))
        except KeyError:
            known = keys if whole else [key for key, valid in zip(keys, texts.valid.tolist(), strict=True) if valid]
            seen = self._learn(known)
            codes_N = np.fromiter((seen.code_of.get(key, NULL) for key in keys), np.int64, len(keys))
        if not whole:
            codes_N = np.where(texts.valid, codes_N, NULL)
            if texts.error is not None:
                codes_N = np.where(texts.error, ERROR, codes_N)
        return codes_N, seen.answers, whole

    def _learn(self, texts: list[str]) -> _Seen:
        with self._lock:
            seen = self._seen
            if seen is None or len(seen.code_of) > _MOST_TEXTS:
                seen = _Seen(self.programs, self.name)
            new = sorted(set(texts) - seen.code_of.keys())
            if new:
                column = Column(_objects(new), np.ones(len(new), np.bool_))
                seen.answers = [
                    _joined(old, _answers(program, self.name, column))
                    for old, program in zip(seen.answers, self.programs, strict=True)
                ]
                first = _FIRST + len(seen.code_of)
                seen.code_of.update({text: first + at for at, text in enumerate(new)})
            self._seen = seen
            return seen


def _objects(texts: list[str]) -> np.ndarray:
    values = np.empty(len(texts), np.object_)
    values[:] = texts
    return values


def _answers(program: Program, name: str, texts: Column) -> Answers:
    found = evaluate(program, {name: texts}, num_rows=len(texts))
    error: Any = np.zeros(len(texts), np.bool_) if found.error is None else found.error
    return Answers(found.values, found.valid, error)


def _joined(a: Answers, b: Answers) -> Answers:
    pairs = ((a.values, b.values), (a.valid, b.valid), (a.error, b.error))
    return Answers(*(np.concatenate(pair) for pair in pairs))

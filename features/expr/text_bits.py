"""Predicates of one text as bits: what a strategy asks of `state` is one number per distinct text, looked up by dict.

`state == 'idle'`, `state.startsWith('on_') || state == null` and the like depend on nothing but one name, so their answers
for a text never change: they are computed by the interpreter when a text is first seen, and remembered.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from features.expr.columns import Column
from features.expr.interpret import ROW_ERROR, interpret_marked
from features.expr.program import Program

MOST_BITS: Final = 60  # of an int64
_MOST_TEXTS: Final = 4096  # remembered per name; a field of ids would grow for ever


class TextBits:
    """The predicates of one name. Each owns bits of the number: its value and, if it is not always known, two flags."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.width = 0
        self._programs: list[tuple[Program, int, bool]] = []
        self._memo = _Memo(self)

    def place_for(self, program: Program, *, flags: bool) -> int | None:
        """The first bit of a new predicate: value, then (with flags) ok and bad. None when no bits are left."""
        need = 3 if flags else 1
        if self.width + need > MOST_BITS:
            return None
        place, self.width = self.width, self.width + need
        self._programs.append((program, place, flags))
        self._memo.clear()
        return place

    def bits(self, text: Any) -> int:
        """The answers for a text, None (null) or ROW_ERROR."""
        out = 0
        for program, place, flags in self._programs:
            value, failed = interpret_marked(program, {self.name: text})
            out |= (value is True) << place
            if flags:
                out |= (value is not None) << place + 1 | failed << place + 2
        return out

    def column(self, texts: Column) -> Column:
        """Shapes: texts (N,), objects; returns values (N,) int64, all valid."""
        keys = texts.values.tolist()
        if not texts.valid.all():
            keys = [key if valid else None for key, valid in zip(keys, texts.valid.tolist(), strict=True)]
        if texts.error is not None and texts.error.any():
            keys = [ROW_ERROR if bad else key for key, bad in zip(keys, texts.error.tolist(), strict=True)]
        values = np.fromiter(map(self._memo.__getitem__, keys), np.int64, len(keys))
        return Column(values, np.ones(len(keys), dtype=np.bool_))


class _Memo(dict[Any, int]):
    def __init__(self, owner: TextBits) -> None:
        super().__init__()
        self._owner = owner

    def __missing__(self, text: Any) -> int:
        if len(self) >= _MOST_TEXTS:
            self.clear()
        bits = self[text] = self._owner.bits(text)
        return bits

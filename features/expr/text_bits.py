"""Predicates of one text as bits: what a strategy asks of `state` is one number per distinct text.

`state == 'idle'`, `state.startsWith('on_') || state == null` and the like depend on nothing but one name, so their answers
for a text never change: the interpreter computes them when a text is first seen, and they are remembered twice. A dict has
all texts; `table` has the short ones in a form that the fused loop looks up by itself (`fused_memory.py`), some
nanoseconds a row.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, Final

import numpy as np

from features.expr.columns import Column
from features.expr.interpret import ROW_ERROR, interpret_marked
from features.expr.program import Program

MOST_BITS: Final = 60  # of an int64
UNSEEN: Final = -1  # no answer has this value: bit 63 is none of the bits
_MOST_TEXTS: Final = 4096  # remembered per name; a field of ids would grow for ever
# The table: the number for null, then SLOTS slots of SLOT_WIDTH numbers: tag (0 for an empty slot), four words, number.
SLOTS: Final = 1024
TABLE_HEAD, SLOT_WIDTH = 8, 8  # whole lines of cache, if the table begins with one
LONGEST: Final = 32  # bytes, in CPython's form of the text
FACTORS: Final = (-7046029254386353131, -4417276706812531889)  # odd; of splitmix64 and Murmur's relatives
_FORMS: Final = ((0xFF, 1, "latin-1"), (0xFFFF, 2, "utf-16-le"), (0x10FFFF, 4, "utf-32-le"))


class TextBits:
    """The predicates of one name. Each owns bits of the number: its value and, if it is not always known, two flags."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.width = 0
        self._programs: list[tuple[Program, int, bool]] = []
        self._memo: dict[Any, int] = {}
        self._in_table = 0
        self._dictionary: tuple[np.ndarray, np.ndarray] | None = None
        self.table = np.zeros(TABLE_HEAD + SLOT_WIDTH * SLOTS, dtype=np.int64)

    def place_for(self, program: Program, *, flags: bool) -> int | None:
        """The first bit of a new predicate: value, then (with flags) ok and bad. None when no bits are left.

        All places are taken before the first text is asked for.
        """
        need = 3 if flags else 1
        if self.width + need > MOST_BITS:
            return None
        place, self.width = self.width, self.width + need
        self._programs.append((program, place, flags))
        self.table[0] = self._compute(None)
        return place

    def bits(self, text: Any) -> int:
        """The answers for a text, None (null) or ROW_ERROR."""
        found = self._memo.get(text)
        if found is None:
            if len(self._memo) >= _MOST_TEXTS:
                self._memo.clear()
            found = self._memo[text] = self._compute(text)
            self._put(text, found)
        return found

    def column(self, texts: Column) -> Column:
        """Shapes: texts (N,), objects; returns values (N,) int64, all valid."""
        keys = texts.values.tolist()
        if not texts.valid.all():
            keys = [key if valid else None for key, valid in zip(keys, texts.valid.tolist(), strict=True)]
        if texts.error is not None and texts.error.any():
            keys = [ROW_ERROR if bad else key for key, bad in zip(keys, texts.error.tolist(), strict=True)]
        try:  # texts that were all seen before, which is most batches: no call a text
            values = np.fromiter(map(self._memo.__getitem__, keys), np.int64, len(keys))
        except KeyError:
            values = np.fromiter(map(self.bits, keys), np.int64, len(keys))
        return Column(values, np.ones(len(keys), dtype=np.bool_))

    def of_dictionary(self, texts: np.ndarray) -> np.ndarray:
        """The number for null, then those of the texts. Shapes: texts (M,) objects, not changed later; returns (M + 1,) int64.

        The last dictionary is remembered: one that comes again costs nothing.
        """
        known = self._dictionary
        if known is None or known[0] is not texts:
            numbers = map(self.bits, chain((None,), texts.tolist()))
            self._dictionary = known = (texts, np.fromiter(numbers, np.int64, len(texts) + 1))
        return known[1]

    def fill(self, texts: np.ndarray, numbers: np.ndarray) -> None:
        """The numbers that are UNSEEN. Shapes: texts (N,) objects, none of them null where UNSEEN; numbers (N,) int64."""
        for row in np.flatnonzero(numbers == UNSEEN).tolist():
            numbers[row] = self.bits(texts[row])

    def _compute(self, text: Any) -> int:
        out = 0
        for program, place, flags in self._programs:
            value, failed = interpret_marked(program, {self.name: text})
            out |= (value is True) << place
            if flags:
                out |= (value is not None) << place + 1 | failed << place + 2
        return out

    def _put(self, text: Any, bits: int) -> None:
        """Into the table, while it is at most half full."""
        if type(text) is not str or self._in_table >= SLOTS // 2:
            return
        key = key_of(text)
        if key is None:
            return
        slot = slot_of(key)
        while self.table[TABLE_HEAD + SLOT_WIDTH * slot]:
            slot = (slot + 1) % SLOTS
        at = TABLE_HEAD + SLOT_WIDTH * slot
        self.table[at + 1 : at + 6] = *key[1:], bits
        self.table[at] = key[0]
        self._in_table += 1


Key = tuple[int, int, int, int, int]


def key_of(text: str) -> Key | None:
    """Tag and four words, int64, that say what a text is; None for one that is too long.

    CPython stores a text with 1, 2 or 4 bytes a character, by its highest one. The words are the first 8 of those bytes
    (zeros behind a shorter text), the last 8 of more than 8, and 8 from either end of the middle of more than 16.
    """
    highest = ord(max(text, default="\0"))
    width, codec = next((width, codec) for most, width, codec in _FORMS if highest <= most)
    raw = text.encode(codec, "surrogatepass")
    size = len(raw)
    if size > LONGEST:
        return None
    last = _word(raw[-8:]) if size > 8 else 0
    inner = (_word(raw[8:16]), _word(raw[-16:-8])) if size > 16 else (0, 0)
    return size * 8 + width, _word(raw[:8]), last, *inner


def slot_of(key: Key) -> int:
    """Where a text is looked for first."""
    tag, first, second, third, fourth = key
    mixed = (first ^ tag) * FACTORS[0] ^ (second ^ third ^ fourth) * FACTORS[1]
    return (mixed >> 40) % SLOTS


def _word(part: bytes) -> int:
    return int.from_bytes(part.ljust(8, b"\0"), "little", signed=True)

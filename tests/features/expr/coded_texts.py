"""Columns of texts in their other form: a dictionary, which may have more than is used, and codes."""

from __future__ import annotations

import random

import numpy as np

from features.expr import CodedTexts, Column

WILD = (-1, 2**31, 2**62, -(2**63), 2**63 - 1)  # what may stand behind a null


def code(column: Column, rng: random.Random) -> CodedTexts:
    """The same texts. Shapes: column (N,) of texts; returns (N,)."""
    texts = list(dict.fromkeys([*column.values[column.valid].tolist(), "never used", ""]))
    rng.shuffle(texts)
    place = {text: at for at, text in enumerate(texts)}
    rows = zip(column.values.tolist(), column.valid.tolist(), strict=True)
    codes = np.array([place[value] if valid else rng.choice(WILD) for value, valid in rows], dtype=np.int64)
    dictionary = np.empty(len(texts), dtype=np.object_)
    dictionary[:] = texts
    return CodedTexts(codes, dictionary, column.valid, column.error)

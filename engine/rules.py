"""The rules of a strategy over all candidates: what has to run, whatever runs it.

`decide` calls a `RuleRunner`: first `before`, what needs no model; then, with the models' answers among the columns, `after`.
Two forms, one meaning: `ColumnRules` here goes through NumPy and serves a strategy from its first request on; the fused
loop of `engine/fused.py` takes over once it has agreed with it. `tests/engine/naive_decide.py` defines both.
Legend: K candidates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from features.expr import Column

KEPT = -1  # of `Before.dropped_by_K` and `After.failed_by_K`: no rule did


@dataclass(frozen=True, kw_only=True, eq=False)
class Before:
    """After the drop rules. Shapes: all (K,).

    `dropped_by_K` int16: the bit of the rule that dropped the candidate, KEPT for a survivor. `fired_K`, `unknown_K` int64:
    a bit per rule. A candidate that a `fail_row` rule dropped has the rule's bit in `unknown_K` and not in `fired_K`.
    """

    alive_K: np.ndarray
    dropped_by_K: np.ndarray
    fired_K: np.ndarray
    unknown_K: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class After:
    """After score and adjustments. Shapes: all (K,); rows that were dropped before mean nothing.

    `known_K`: the score is a finite number and no `fail_row` rule failed; `failed_by_K` int16: the bit of the rule that did.
    `fired_K`, `unknown_K`: the bits of this part only. `outputs` by name.
    """

    score_K: np.ndarray
    known_K: np.ndarray
    failed_by_K: np.ndarray
    fired_K: np.ndarray
    unknown_K: np.ndarray
    outputs: Mapping[str, Column]


class RuleRunner(Protocol):
    """`columns` are by name, length K or 1 (what the whole request shares). `killed` has the bit of every rule that is
    switched off: it neither fires nor is unknown."""

    def before(self, columns: dict[str, Column], num_candidates: int, killed: int) -> Before:
        """Adds to `columns` what models or `after` will read: the lets and tables of `compiled.read_after`."""
        ...

    def after(self, columns: dict[str, Column], alive_K: np.ndarray, killed: int) -> After:
        """`columns` has the models' answers by now, length K; what it says of a dropped row means nothing."""
        ...

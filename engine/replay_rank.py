"""Rank, chances and draw of many Decisions at once: what `decide` does with the scores of one, to the bit.

`engine/propensity.py` and `decide._rank` define it; here all groups go through one sort and one list of exponentials.
Legend: D decisions, R candidates of all of them, N ranked ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from engine.replay_block import NO_ROW, Block
from engine.rules import After
from engine.strategy import Explore
from features.expr.hashing import draw64_array, unit_keys


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranked:
    """The survivors, decision by decision, best first. Shapes: rows_N the row of each, place_N its place from 0;
    starts (D + 1,): decision d has the entries [starts[d], starts[d + 1])."""

    rows_N: np.ndarray
    place_N: np.ndarray
    starts: np.ndarray

    def first_D(self) -> np.ndarray:
        """The row of the best of each decision, NO_ROW without a survivor. Shapes: returns (D,)."""
        some_D = self.starts[1:] > self.starts[:-1]
        out_D = np.full(len(some_D), NO_ROW, dtype=np.int64)
        out_D[some_D] = self.rows_N[self.starts[:-1][some_D]]
        return out_D


def rank_rows(block: Block, ties: str, survives_R: np.ndarray, score_R: np.ndarray) -> Ranked:
    """The survivors of every decision, best first; equal scores by the field `ties` ascending, then by key."""
    rows_N = np.flatnonzero(survives_R)
    falls_N, group_N = -score_R[rows_N], block.decision_of_R[rows_N]
    order_N = np.lexsort((falls_N, group_N))
    rows_N, falls_N, group_N = rows_N[order_N], falls_N[order_N], group_N[order_N]
    equal_N = (falls_N[1:] == falls_N[:-1]) & (group_N[1:] == group_N[:-1])
    if equal_N.any():
        _break_ties(block, ties, rows_N, equal_N)
    starts = np.searchsorted(group_N, np.arange(block.num_decisions + 1))
    place_N = np.arange(len(rows_N)) - starts[group_N]
    return Ranked(rows_N=rows_N, place_N=place_N, starts=starts)


def _break_ties(block: Block, ties: str, rows_N: np.ndarray, equal_N: np.ndarray) -> None:
    """Order the runs of equal scores in place."""
    ids = block.candidate_ids
    by = ids if ties in ("", block.candidate_key) else block.candidates[ties].values
    edges = np.flatnonzero(np.diff(np.concatenate(([False], equal_N, [False])).astype(np.int8)))
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        rows_N[start : end + 1] = sorted(rows_N[start : end + 1].tolist(), key=lambda row: (by[row], ids[row]))


def choose_block(
    explore: Explore, keep: int, block: Block, ranked: Ranked, after: After
) -> tuple[np.ndarray, np.ndarray]:
    """The chance of every candidate and the draw. Shapes: returns (R,) float64 and (D,) int64."""
    kept_N = ranked.place_N < keep
    rows_N, place_N = ranked.rows_N[kept_N], ranked.place_N[kept_N]
    sizes_D = np.minimum(np.diff(ranked.starts), keep)
    starts = np.concatenate(([0], np.cumsum(sizes_D)))
    chances_N = chances_of(explore, after.score_K[rows_N], place_N, sizes_D, starts)
    propensity_R = np.zeros(block.num_rows)
    propensity_R[rows_N] = chances_N
    chosen_D = np.full(block.num_decisions, NO_ROW, dtype=np.int64)
    some_D = np.flatnonzero(sizes_D)
    drawn_D = starts[some_D]
    if explore.kind != "none":
        drawn_D = drawn_D + draw_block(explore.salt, block, chances_N, starts, some_D)
    chosen_D[some_D] = rows_N[drawn_D] - block.starts[some_D]
    return propensity_R, chosen_D


def chances_of(
    explore: Explore, score_N: np.ndarray, place_N: np.ndarray, sizes_D: np.ndarray, starts: np.ndarray
) -> np.ndarray:
    """`propensities` for every group of kept candidates, best first: the same operations in the same order.

    Shapes: score_N, place_N and the result (N,); sizes_D (D,), starts (D + 1,).
    """
    first_N = place_N == 0
    if explore.kind == "none":
        return first_N.astype(np.float64)
    if explore.kind == "epsilon":
        with np.errstate(divide="ignore"):
            each_N = np.repeat(explore.epsilon / sizes_D, sizes_D)
        return np.where(first_N, 1.0 - explore.epsilon + each_N, each_N)
    drawn_N = place_N < explore.top_k if explore.kind == "top_k_softmax" else np.ones(len(place_N), dtype=np.bool_)
    best_N = np.repeat(score_N[starts[:-1][sizes_D > 0]], sizes_D[sizes_D > 0])
    with np.errstate(over="ignore"):  # two scores may be further apart than a double reaches: a chance of 0
        exponents_N = (score_N - best_N) / explore.temperature
    weights = list(map(math.exp, exponents_N.tolist()))  # the C library's: NumPy's differs in the last bit
    weights_N = np.array(weights) * drawn_N
    ends = (
        starts[1:].tolist()
        if explore.kind == "softmax"
        else (starts[:-1] + np.minimum(sizes_D, explore.top_k)).tolist()
    )
    totals = [math.fsum(weights[start:end]) for start, end in zip(starts[:-1].tolist(), ends, strict=True)]
    return weights_N / np.repeat(np.array(totals), sizes_D)


def draw_block(salt: str, block: Block, chances_N: np.ndarray, starts: np.ndarray, some_D: np.ndarray) -> np.ndarray:
    """`draw` for every decision of `some_D`: the first place whose cumulated chance exceeds the decision's number.

    Shapes: returns (len(some_D),) int64.
    """
    draws_D = (draw64_array(salt, unit_keys(list(block.decision_ids))) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    out = np.zeros(len(some_D), dtype=np.int64)
    sizes = np.diff(starts)[some_D]
    for size in np.unique(sizes).tolist():  # groups of one size are the rows of one array
        at = np.flatnonzero(sizes == size)
        chances = chances_N[starts[some_D[at]][:, None] + np.arange(size)]
        ends = np.add.accumulate(chances, axis=1)  # one addition after the other, as `accumulate`
        places = (ends <= draws_D[some_D[at]][:, None]).sum(axis=1)
        for row in np.flatnonzero(places == size).tolist():  # rounding left the sum below the number
            places[row] = int(np.flatnonzero(chances[row] > 0.0)[-1])
        out[at] = places
    return out

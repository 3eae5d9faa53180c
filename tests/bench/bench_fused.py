"""What the fused rules cost: `python -m tests.bench.bench_fused`. Equal results are asserted first.

24 rules and a score with nulls, texts, a table and firing bits (`rules_set.py`), by number of candidates: machine code alone
with its inputs packed (texts as numbers, or as Python's texts), what firing bits add to it, both halves as decide calls
them, and NumPy. Then what a
compile, a load and an import cost. Prints a table and keeps nothing: `make bench-rules` is what keeps rows.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from engine.fused import FusedRules, fused_rules
from engine.fused_cache import FusedCache, pack, unpack
from engine.fused_plan import AFTER, BEFORE, Half, plan_rules
from engine.request import parse
from engine.rules import ColumnRules
from engine.strategy import CompiledStrategy
from features.expr import Column
from features.expr.fused_machine import Kernel
from features.expr.fused_ops import compile_text as to_code
from tests.bench import rules_set
from tests.engine.rule_columns import assert_same_after, assert_same_before
from tests.engine.support import AS_OF_MS, catalogue_registry, compile_text

SIZES = (1, 10, 50, 100, 200, 1000, 5000)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        compiled = compile_bench(Path(folder))
    fused, without = build(compiled, bits=True), build(compiled, bits=False)
    by_hand = rules_set.by_hand()
    print("      | code, texts numbered       | code, texts looked up      | both halves as called | NumPy")
    print("    N |       µs  ns/cand  bits % |       µs  ns/cand  bits % |       µs  ns/cand |       µs  times")
    for size in SIZES:
        columns, rows = columns_of(compiled, size)
        check(fused, columns, rows, by_hand)
        print(line(fused, without, columns, size))
    print(costs(compiled))


def compile_bench(folder: Path) -> CompiledStrategy:
    (folder / "bonus.csv").write_text(rules_set.table_csv())
    return compile_text(rules_set.strategy_yaml(), folder, catalogue_registry())


def build(compiled: CompiledStrategy, *, bits: bool) -> FusedRules:
    plan = plan_rules(compiled, bits=bits)
    return fused_rules(compiled, plan, to_code(plan.text, (BEFORE, AFTER)))


def columns_of(compiled: CompiledStrategy, size: int) -> tuple[dict[str, Column], list[dict[str, Any]]]:
    """Columns as a request brings them, every text an object of its own; and the rows they are made of."""
    request = {**rules_set.make_request(1), "wheelchair": False}
    rows = rules_set.make_candidates(size, 2)
    names = {name: [row[name] for row in rows] for name in rules_set.FIELDS}
    columns: dict[str, Column] = {}
    for start in range(0, size, 500):  # a request has at most so many
        part = {name: values[start : start + 500] for name, values in names.items()}
        keys = [f"d-{at}" for at in range(start, min(start + 500, size))]
        body = {"order_id": "o-1", "as_of_ms": AS_OF_MS, "city": "nyc", "product": "express", "request": request,
                "candidates": {"driver_id": keys, **part}}  # fmt: skip
        made = parse(compiled, msgspec.json.encode(body)).columns
        for name, column in made.items():
            wide = name in compiled.strategy.candidate_fields
            columns[name] = joined(columns[name], column) if start and wide else column
    columns |= compiled.param_columns
    return columns, [{**row, **request} for row in rows]


def joined(a: Column, b: Column) -> Column:
    return Column(np.concatenate([a.values, b.values]), np.concatenate([a.valid, b.valid]))


def check(fused: FusedRules, columns: dict[str, Column], rows: list[dict[str, Any]], by_hand: Any) -> None:
    """Fused equals NumPy to the bit, and both the expression in plain Python (whose rounding differs: it has no rules)."""
    slow, own, other = ColumnRules(fused.compiled), dict(columns), dict(columns)
    wanted = slow.before(own, len(rows), 0)
    before = fused.before(other, len(rows), 0)
    assert_same_before(before, wanted, "bench")
    after = fused.after(other, before.alive_K, 0)
    assert_same_after(after, slow.after(own, wanted.alive_K, 0), wanted.alive_K, "bench")
    bits = np.where(before.alive_K, after.fired_K, before.fired_K)
    assert not fused.misfits
    for at, row in enumerate(rows):
        hand_bits, hand_score = by_hand(row)
        assert int(hand_bits) == bits[at], (row, hand_bits, bits[at])
        if before.alive_K[at]:
            assert abs(hand_score - after.score_K[at]) < 1e-12


def packed(
    kernel: Kernel, half: Half, columns: dict[str, Column], dtypes: list[Any], size: int, *, numbered: bool
) -> Callable[[], Any]:
    """The machine code alone: its lists are made. `numbered`: the numbers of the texts are there, too."""
    inputs: list[Any] = [np.zeros(size, bool)]
    for name in half.sources:
        column = columns[str(name)]
        inputs += (column.values, column.valid, column.error)
    for text in half.texts:
        column = columns[text.name]
        inputs += (column.values, column.valid, text.bits.table, np.empty(len(column), np.int64))
    outputs = [np.empty(size, dtype) for dtype in dtypes]
    inputs.append(kernel._layout)
    call, asked = kernel._call, -(2**63) if numbered else 0
    if call(inputs, outputs, 0) < 0:  # the first time, texts are unseen
        kernel.run(
            [columns[str(name)] for name in half.sources],
            [columns[text.name] for text in half.texts],
            [np.empty(size, dtype) for dtype in dtypes],
            size,
        )
    assert call(inputs, outputs, 0) == 0
    return lambda: call(inputs, outputs, asked)


def line(fused: FusedRules, without: FusedRules, columns: dict[str, Column], size: int) -> str:
    early = [np.bool_, np.int16, np.int64, np.int64]
    late = [np.float64, np.bool_, np.int16, np.int64, np.int64]
    alive_K = fused.before(dict(columns), size, 0).alive_K
    slow, given = ColumnRules(fused.compiled), dict(columns)
    runs = {"runner": lambda: (fused.before(given, size, 0), fused.after(given, alive_K, 0))}
    runs["numpy"] = lambda: numpy_both(slow, dict(columns), size)  # type: ignore[assignment]
    for numbered in (False, True):
        for rules, name in ((fused, "bits"), (without, "plain")):
            num = (4, 5) if name == "bits" else (2, 3)
            first = packed(rules._before, rules.plan.before, columns, early[: num[0]], size, numbered=numbered)
            second = packed(rules._after, rules.plan.after, columns, late[: num[1]], size, numbered=numbered)
            runs[f"{name} {numbered}"] = lambda first=first, second=second: (first(), second())  # type: ignore[misc]
    best = interleaved(runs)
    bits, plain, texts = best["bits True"], best["plain True"], best["bits False"]
    per = 1e9 / size
    return (
        f"{size:>5} | {bits * 1e6:8.2f} {bits * per:8.1f} {100 * (bits / plain - 1):7.1f} | {texts * 1e6:8.2f} {texts * per:8.1f}"
        f" {100 * (texts / best['plain False'] - 1):7.1f} | {best['runner'] * 1e6:8.2f} {best['runner'] * per:8.1f} |"
        f" {best['numpy'] * 1e6:8.1f} {best['numpy'] / best['runner']:6.1f}"
    )


def numpy_both(slow: ColumnRules, columns: dict[str, Column], size: int) -> None:
    before = slow.before(columns, size, 0)
    slow.after(columns, before.alive_K, 0)


def interleaved(runs: dict[str, Callable[[], Any]], rounds: int = 200) -> dict[str, float]:
    """Seconds a call: the variants take turns, the best round of each counts (the machine is shared)."""
    calls = {}
    for name, run in runs.items():
        started = time.perf_counter()
        for _ in range(3):
            run()
        calls[name] = max(1, int(0.0005 / max((time.perf_counter() - started) / 3, 1e-7)))
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            started = time.perf_counter()
            for _ in range(calls[name]):
                run()
            best[name] = min(best[name], (time.perf_counter() - started) / calls[name])
    return best


def costs(compiled: CompiledStrategy) -> str:
    """Seconds outside of a decision: planning, compiling (in this process, warm), loading; and imports in processes of their own."""
    started = time.perf_counter()
    plan = plan_rules(compiled)
    planned = time.perf_counter()
    objects = to_code(plan.text, (BEFORE, AFTER))
    made = time.perf_counter()
    raw = pack(objects)
    again = unpack(raw)
    assert again is not None
    fused_rules(compiled, plan, again)
    loaded = time.perf_counter()
    words = [
        f"plan {1e3 * (planned - started):.1f} ms, {len(plan.text.splitlines())} lines; compile {made - planned:.2f} s warm,"
        f" {len(raw)} bytes; load {1e3 * (loaded - made):.2f} ms"
    ]
    with tempfile.TemporaryDirectory() as folder:
        cache = FusedCache(Path(folder) / "cache")
        started = time.perf_counter()
        cache.get(plan.text)
        words.append(
            f"from an empty cache, the process and its imports included: {time.perf_counter() - started:.2f} s"
        )
    for module in ("llvmlite.binding", "numba"):
        words.append(f"importing {module}: {stall_of(module)}")
    return "\n".join(words)


def stall_of(module: str) -> str:
    """How long an import holds the interpreter: the longest pause of a thread that does nothing but look at the clock."""
    script = f"""
import numpy, ctypes, threading, time
worst, stop = 0.0, False
def watch():
    global worst
    last = time.perf_counter()
    while not stop:
        time.sleep(0.0005)
        now = time.perf_counter(); worst = max(worst, now - last - 0.0005); last = now
thread = threading.Thread(target=watch); thread.start(); time.sleep(0.2); worst = 0.0
started = time.perf_counter()
import {module}
took = time.perf_counter() - started
stop = True; thread.join()
print(f"{{1e3 * took:.0f}} ms, others wait up to {{1e3 * worst:.0f}} ms")
"""
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    random.seed(1)
    main()

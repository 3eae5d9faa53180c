"""What the fused rules cost: `python -m tests.bench.bench_fused`. Equal results are asserted first.

24 rules and a score with nulls, texts, a table and firing bits (`rules_set.py`), by number of candidates: machine code alone
with its inputs packed (texts as numbers, or as Python's texts), what firing bits add to it, both halves as decide calls
them (texts as JSON brings them, or coded as Arrow does), and NumPy. Then what a
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
from features.expr import CodedTexts, Column
from features.expr.fused_machine import Kernel, text_inputs
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
    print(
        "      | code, texts numbered       | code, texts looked up      | both halves as called |   the same, texts coded | NumPy"
    )
    print(
        "    N |       µs  ns/cand  bits % |       µs  ns/cand  bits % |       µs  ns/cand |       µs  ns/cand dict µs |       µs  times"
    )
    for size in SIZES:
        columns, rows = columns_of(compiled, size)
        for form in (columns, coded(columns)):
            check(fused, form, rows, by_hand)
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
    inputs: list[Any] = [np.zeros(size, bool), *(columns[str(name)] for name in half.sources)]
    outputs, given = [np.empty(size, dtype) for dtype in dtypes], [columns[text.name] for text in half.texts]
    kernel.run([columns[str(name)] for name in half.sources], given, outputs, size)
    for text, column in zip(half.texts, given, strict=True):
        inputs += text_inputs(column if numbered else Column(column.values, column.valid), text.bits)
    inputs.append(kernel._layout)
    call = kernel._call
    assert call(inputs, outputs, 0) == 0
    return lambda: call(inputs, outputs, 0)


def line(fused: FusedRules, without: FusedRules, columns: dict[str, Column], size: int) -> str:
    early = [np.bool_, np.int16, np.int64, np.int64]
    late = [np.float64, np.bool_, np.int16, np.int64, np.int64]
    slow = ColumnRules(fused.compiled)
    runs = {"runner": as_decide_calls_it(fused, columns, size)}
    runs["coded"] = as_decide_calls_it(fused, coded(columns), size)
    runs["new dictionary"] = as_decide_calls_it(fused, coded(columns), size, new_dictionaries=True)
    runs["numpy"] = lambda: numpy_both(slow, dict(columns), size)  # type: ignore[assignment]
    for numbered in (False, True):
        for rules, name in ((fused, "bits"), (without, "plain")):
            num = (4, 5) if name == "bits" else (2, 3)
            first = packed(rules._before.kernel, rules.plan.before, columns, early[: num[0]], size, numbered=numbered)
            second = packed(rules._after.kernel, rules.plan.after, columns, late[: num[1]], size, numbered=numbered)
            runs[f"{name} {numbered}"] = lambda first=first, second=second: (first(), second())  # type: ignore[misc]
    best = interleaved(runs)
    bits, plain, texts = best["bits True"], best["plain True"], best["bits False"]
    per = 1e9 / size
    return (
        f"{size:>5} | {bits * 1e6:8.2f} {bits * per:8.1f} {100 * (bits / plain - 1):7.1f} | {texts * 1e6:8.2f} {texts * per:8.1f}"
        f" {100 * (texts / best['plain False'] - 1):7.1f} | {best['runner'] * 1e6:8.2f} {best['runner'] * per:8.1f} |"
        f" {best['coded'] * 1e6:8.2f} {best['coded'] * per:8.1f} {1e6 * (best['new dictionary'] - best['coded']):7.2f} |"
        f" {best['numpy'] * 1e6:8.1f} {best['numpy'] / best['runner']:6.1f}"
    )


def coded(columns: dict[str, Column]) -> dict[str, Column]:
    """The same with texts as a dictionary and codes."""
    out = dict(columns)
    for name, column in columns.items():
        if column.values.dtype == np.object_ and len(column) > 1:
            texts = sorted(set(column.values.tolist()))
            place = {text: at for at, text in enumerate(texts)}
            codes = np.array([place[text] for text in column.values.tolist()])
            out[name] = CodedTexts(codes, np.array(texts, dtype=np.object_), column.valid)
    return out


def as_decide_calls_it(
    fused: FusedRules, columns: dict[str, Column], size: int, *, new_dictionaries: bool = False
) -> Callable[[], Any]:
    """Both halves with columns that no loop has seen; `new_dictionaries`: nor the dictionaries of coded texts."""
    names = {text.name for half in (fused.plan.before, fused.plan.after) for text in half.texts}
    texts = [columns[name] for name in sorted(names & set(columns))]

    def both() -> Any:
        for text in texts:
            text.numbers = None
            if new_dictionaries and isinstance(text, CodedTexts):
                text.texts = text.texts.copy()
        given = dict(columns)
        before = fused.before(given, size, 0)
        return fused.after(given, before.alive_K, 0)

    return both


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

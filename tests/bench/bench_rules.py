"""`make bench-rules`: 24 rules, a score and firing bits against other engines, and what stands around them.

Equal results are asserted first. Peers do no firing bits in the headline rows (`rules_set.py`), ours always does. Sections, all
by default: rules, arrow, decide, replay, assignment, reload.
"""

from __future__ import annotations

import http.client
import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from engine.decide import decide
from engine.experiment_log import assign_many
from engine.fused import FusedRules
from engine.fused_cache import FusedCache
from engine.inputs import LiveStrategy
from engine.replay import Replay
from engine.replay_block import Block, blocks_of
from engine.replay_rules import fused_for_replay
from engine.request import parse
from engine.request_arrow import request_from_arrow
from engine.rules import ColumnRules, RuleRunner
from engine.strategy import Arm, CompiledStrategy, Experiment
from features.records import Decision, decode, encode
from tests.bench import rules_set
from tests.bench.bench_fused import as_decide_calls_it, build, check, coded, columns_of, compile_bench, packed
from tests.bench.harness import Bench, arguments
from tests.bench.reload_engine import NoStore
from tests.bench.rules_peers import PACKAGES, numpy_by_hand, row_peers
from tests.engine.support import AS_OF_MS, catalogue_registry, make_live

SIZES = (1, 10, 50, 200, 1000, 5000)
BEST_ROW_ENGINE = "datalogic, parsed batch"
BEFORE_TYPES: list[Any] = [np.bool_, np.int16, np.int64, np.int64]
AFTER_TYPES: list[Any] = [np.float64, np.bool_, np.int16, np.int64, np.int64]


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("sections", nargs="*", choices=[[], *SECTIONS], help="which parts (default: all)")
    given = parser.parse_args()
    bench = Bench("rules", packages=PACKAGES)
    with tempfile.TemporaryDirectory() as folder:
        compiled = compile_bench(Path(folder))
        fused = build(compiled, bits=True)
        for name in given.sections or SECTIONS:
            print(f"… {name}", file=sys.stderr, flush=True)
            SECTIONS[name](bench, compiled, fused, given.quick)
    return bench.finish()


def rules(bench: Bench, compiled: CompiledStrategy, fused: FusedRules, quick: bool) -> None:
    """The loop alone, the loop as decide calls it, with and without firing bits; then the peers, all from inputs that are
    ready: theirs as rows that they have parsed, ours as columns, texts coded."""
    plain = build(compiled, bits=False)
    for size in (50, 1000) if quick else SIZES:
        columns, rows = columns_of(compiled, size)
        check(fused, columns, rows, rules_set.by_hand())
        alone, no_bits = loops(fused, columns, size, bits=True), loops(plain, columns, size, bits=False)
        limits = {50: 3000.0 / 50, 1000: 15.0}
        bench.compare(f"loop alone, N={size}", {"fused": alone, "fused, no firing bits": no_bits}, ours="fused", unit="ns/candidate",
                      per=size, limit=limits.get(size), targets={"fused, no firing bits": 1 / 1.1}, rounds=21)  # fmt: skip
        peers = {name: prepare(rows) for name, prepare in row_peers(with_bits=False).items()}
        results_agree(peers, rows)
        runner = as_decide_calls_it(fused, coded(columns), size)
        plain_texts = as_decide_calls_it(fused, columns, size)
        variants: dict[str, Callable[[], Any]] = {
            "fused": runner,
            "fused, texts not coded": plain_texts,
            "NumPy by hand": numpy_by_hand(rows),
            **peers,
        }
        targets = (
            {**{name: 200.0 for name in peers if name.startswith("zen")}, BEST_ROW_ENGINE: 100.0}
            if size == 1000
            else {}
        )
        bench.compare(f"ready inputs, N={size}", variants, ours="fused", unit="ns/candidate", per=size, targets=targets,
                      rounds=5 if size < 5000 else 3)  # fmt: skip


def arrow(bench: Bench, compiled: CompiledStrategy, fused: FusedRules, quick: bool) -> None:
    """From the bytes of an Arrow stream to results: what it costs to make an engine's input is its own to pay."""
    for size in (50,) if quick else (50, 200, 500):
        raw, envelope, request = arrow_bytes(size)

        def ours(raw: bytes = raw, envelope: bytes = envelope) -> Any:
            with pa.ipc.open_stream(raw) as stream:
                made = request_from_arrow(compiled, envelope, stream.read_next_batch())
            columns = {**made.columns, **compiled.param_columns}
            before = fused.before(columns, made.num_candidates, 0)
            return before, fused.after(columns, before.alive_K, 0)

        def rows_of(raw: bytes = raw, request: dict[str, Any] = request) -> list[dict[str, Any]]:
            with pa.ipc.open_stream(raw) as stream:
                batch = stream.read_next_batch().select(list(rules_set.FIELDS))
            return [{**row, **request} for row in batch.to_pylist()]

        bench.compare(f"from Arrow bytes, N={size}", {"fused": ours, "Arrow to rows alone": rows_of, **row_peers_from(rows_of)},
                      ours="fused", unit="ns/candidate", per=size, rounds=5)  # fmt: skip


def row_peers_from(rows_of: Callable[[], list[dict[str, Any]]]) -> dict[str, Callable[[], Any]]:
    """Peers that read their rows when called: rules are compiled before, rows are made inside the timed part."""
    out: dict[str, Callable[[], Any]] = {}
    for name, prepare in row_peers(with_bits=False).items():
        if name.startswith("datalogic"):
            continue  # it is timed with rows that it has parsed already
        rows = rows_of()
        out[name] = partial(_with_new_rows, rows, rows_of, prepare(rows))
    return out


def _with_new_rows(
    rows: list[dict[str, Any]], rows_of: Callable[[], list[dict[str, Any]]], call: Callable[[], Any]
) -> Any:
    rows[:] = rows_of()
    return call()


def decisions(bench: Bench, compiled: CompiledStrategy, fused: FusedRules, quick: bool) -> None:
    """A whole decide: no network, no store, no model."""
    live = live_strategy(compiled, fused)
    store = NoStore()
    for size in (100,) if quick else (1, 10, 50, 100, 200, 500):
        request = parse(compiled, body_of(size))
        decision = decide(live, request, store)
        assert sum(decision.propensities) == 0 or math.isclose(sum(decision.propensities), 1.0)
        bench.compare(f"whole decide, N={size}", {"decide": lambda request=request: decide(live, request, store)}, ours="decide", unit="us",
                      limit=60.0 if size == 100 else None, rounds=21)  # fmt: skip


def replay(bench: Bench, compiled: CompiledStrategy, fused: FusedRules, quick: bool) -> None:
    """An unchanged strategy over logged Decisions: candidate rows a second, with and without reading the JSON."""
    live, store = live_strategy(compiled, fused), NoStore()
    num, size = (200, 50) if quick else (4000, 50)
    raws = [encode(decide(live, parse(compiled, body_of(size, seed)), store)) for seed in range(num)]
    blocks = list(blocks_of([decode(raw, Decision) for raw in raws]))
    with tempfile.TemporaryDirectory() as folder:
        stacked, problem = fused_for_replay(compiled, FusedCache(Path(folder) / "fused"))
    assert problem is None, problem
    forms: dict[str, RuleRunner] = {"fused": stacked, "NumPy": ColumnRules(compiled)}
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(3 if quick else 9):
        for name, form in forms.items():
            seconds[name].append(timed(partial(_replay_all, compiled, form, blocks, num * size)))
    reading = [timed(lambda: list(blocks_of([decode(raw, Decision) for raw in raws]))) for _ in range(3)]
    rows, unit = num * size / 1e6, "M rows/s/core"
    best = statistics.median(seconds["fused"])
    bench.record(f"replay, fused, {num} decisions of {size}", rows / best, unit, target=1.0, at_most=False)
    bench.record("replay, NumPy", rows / statistics.median(seconds["NumPy"]), unit, target=1.0, at_most=False)
    bench.record("replay, fused, reading JSON too", rows / (best + statistics.median(reading)), unit, at_most=False)


def _replay_all(compiled: CompiledStrategy, form: RuleRunner, blocks: Sequence[Block], num_rows: int) -> None:
    replaying = Replay(compiled, rules=form)
    for block in blocks:
        replaying.add(block)
    report = replaying.report
    assert report.outcome == "equal" and report.candidates == num_rows, report.same.differences[:3]


def assignment(bench: Bench, compiled: CompiledStrategy, fused: FusedRules, quick: bool) -> None:
    """Arms of many units, from texts as Python has them and as Arrow has them."""
    arms = (Arm(name="a", share=0.5, set={}), Arm(name="b", share=0.5, set={}))
    experiment = Experiment(name="e", layer="l", unit="order_id", salt="s", arms=arms)
    for size in (10_000,) if quick else (1_000, 200_000):
        texts = [f"order-{at * 10}" for at in range(size)]
        column = pa.array(texts)
        variants = {"list of texts": lambda texts=texts: assign_many(experiment, None, texts),
                    "Arrow": lambda column=column: assign_many(experiment, None, column)}  # fmt: skip
        bench.compare(
            f"assignment, {size} units",
            variants,
            ours="list of texts",
            unit="ns/unit",
            per=size,
            limit=60.0 if size > 1000 else None,
        )


def reloading(bench: Bench, compiled: CompiledStrategy, fused: FusedRules, quick: bool) -> None:
    """p99 of a loaded engine: steady with machine code, and in the second after a file landed that it has never seen."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        strategies = folder / "strategies"
        strategies.mkdir()
        (strategies / "bonus.csv").write_text(rules_set.table_csv())
        file, texts = strategies / "bench.yaml", new_texts()
        put(file, next(texts))
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.reload_engine", name], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            steady, landing = [], []
            for _ in range(2 if quick else 12):
                wait_for_fused(port)
                steady += load(port, 2.0)
                put(file, next(texts))
                landing += load(port, 1.0)
        finally:
            process.terminate()
            process.wait(20)
    p99 = [float(np.quantile(values, 0.99)) for values in (steady, landing)]
    bench.record("engine under load: p99 steady", p99[0] * 1e3, "ms", note=f"{len(steady)} requests of 100 candidates")
    note = f"{len(landing)} requests in the second after a landing"
    bench.record("engine under load: p99 while a file lands", p99[1] * 1e3, "ms", note=note)
    bench.record("p99 while a file lands / steady", p99[1] / p99[0], "ratio", target=1.5)


def new_texts() -> Iterator[str]:
    for number in itertools.count():
        yield rules_set.strategy_yaml().replace("add: 0.25", f"add: 0.25{number:03d}")


def loops(fused: FusedRules, columns: dict[str, Any], size: int, *, bits: bool) -> Callable[[], None]:
    """The machine code of both halves with its inputs packed."""
    before = packed(
        fused._before.kernel, fused.plan.before, columns, BEFORE_TYPES[: 4 if bits else 2], size, numbered=True
    )
    after = packed(fused._after.kernel, fused.plan.after, columns, AFTER_TYPES[: 5 if bits else 3], size, numbered=True)

    def both() -> None:
        before()
        after()

    return both


def results_agree(peers: dict[str, Callable[[], Any]], rows: list[dict[str, Any]]) -> None:
    """Scores of all, and firing bits of all when they are asked for. Decimals and another order of sums: to 1e-9."""
    wanted = [rules_set.by_hand()(row) for row in rows]
    for name, prepare in row_peers(with_bits=True).items():
        for row, (got, want) in enumerate(zip(prepare(rows)(), wanted, strict=True)):
            assert int(got[0]) == int(want[0]) and abs(float(got[1]) - want[1]) < 1e-9, (name, row, got, want)
    for name, call in peers.items():
        assert all(abs(float(got[1]) - want[1]) < 1e-9 for got, want in zip(call(), wanted, strict=True)), name


def live_strategy(compiled: CompiledStrategy, fused: FusedRules) -> LiveStrategy:
    live = make_live(compiled, catalogue_registry())
    return LiveStrategy(compiled=compiled, plan=live.plan, models={}, broken_models=frozenset(), rules=fused)


def body_of(size: int, seed: int = 2) -> bytes:
    rows = rules_set.make_candidates(size, seed)
    candidates = {name: [row[name] for row in rows] for name in rules_set.FIELDS}
    candidates["driver_id"] = [f"d-{at}" for at in range(size)]
    request = {**rules_set.make_request(seed), "wheelchair": False}
    return msgspec.json.encode({"order_id": f"o-{seed}", "as_of_ms": AS_OF_MS, "city": "nyc", "product": "express", "request": request,
                                "candidates": candidates})  # fmt: skip


def arrow_bytes(size: int) -> tuple[bytes, bytes, dict[str, Any]]:
    """A stream of one batch, texts dictionary-coded but for the ids; the envelope; the request's fields."""
    body = msgspec.json.decode(body_of(size))
    arrays = {name: pa.array(values) for name, values in body.pop("candidates").items()}
    for name, kind in rules_set.FIELDS.items():
        if kind == "string":
            arrays[name] = arrays[name].dictionary_encode()
    batch = pa.RecordBatch.from_pydict(arrays)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes(), msgspec.json.encode(body), body["request"]


def timed(call: Callable[[], Any]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def put(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text)
    part.rename(path)


def wait_for_fused(port: int) -> None:
    """Until the engine answers with machine code, after enough requests to be proved on."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    until = time.monotonic() + 120
    while time.monotonic() < until:
        ask(connection, body_of(100))
        connection.request("GET", "/v1/strategies")
        found = json.loads(connection.getresponse().read())["strategies"]["bench"]
        if found.get("rules", "").startswith("fused"):
            connection.close()
            return
        time.sleep(0.05)
    raise AssertionError(f"no machine code after 120 s: {found}")


def ask(connection: http.client.HTTPConnection, body: bytes) -> None:
    connection.request("POST", "/v1/strategies/bench/decide", body)
    response = connection.getresponse()
    answer = response.read()
    assert response.status == 200, answer


def load(port: int, seconds: float, rate: float = 150.0) -> list[float]:
    """Latencies of an open loop: a request is due every 1/rate, and is timed from when it was due."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body, taken = body_of(100), []
    begun = time.perf_counter()
    for at in range(int(seconds * rate)):
        due = begun + at / rate
        time.sleep(max(0.0, due - time.perf_counter()))
        ask(connection, body)
        taken.append(time.perf_counter() - due)
    connection.close()
    return taken


SECTIONS: dict[str, Callable[[Bench, CompiledStrategy, FusedRules, bool], None]] = {
    "rules": rules,
    "arrow": arrow,
    "decide": decisions,
    "replay": replay,
    "assignment": assignment,
    "reload": reloading,
}

if __name__ == "__main__":
    sys.exit(1 if main() else 0)

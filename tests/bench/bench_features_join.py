"""Point-in-time join, 1 M feature rows × 100,000 entity rows × 10 features: `python -m tests.bench.bench_features_join`.

Ours against Feast's default offline store (dask) and its DuckDB store, each in a process of its own, in turn. Feast and ibis
come from an environment of their own: `tests/bench/peers/setup join`. By event time all give equal values, row by row, which
is checked first; as known at each row's time (created before it) is ours by default and an option of Feast's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.bench.harness import Bench, Timed, arguments
from tests.bench.join_variants import NAMES

PEERS = Path(".peers/join/bin/python")
DAY_MS, START_MS, DAYS, NUM_DRIVERS, SEED = 86_400_000, 1_725_148_800_000, 30, 10_000, 5


def make_files(folder: Path, num_rows: int, num_asked: int) -> None:
    """Rows of drivers over a month, created minutes to hours after their time; asked times are even, created ones odd
    milliseconds, so that `<` and `<=` agree between systems."""
    rng = np.random.default_rng(SEED)
    event_ms = _even_times(rng, num_rows)
    created_ms = event_ms + 2 * rng.integers(30_000, 7_200_000, num_rows) + 1
    columns: dict[str, Any] = {
        "driver_id": rng.integers(0, NUM_DRIVERS, num_rows),
        "event_time": pa.array(event_ms, pa.timestamp("ms", "UTC")),
        "created": pa.array(created_ms, pa.timestamp("ms", "UTC")),
    }
    columns |= {name: rng.normal(size=num_rows) for name in NAMES}
    pq.write_table(pa.table(columns), folder / "features.parquet")
    asked_ms = _even_times(rng, num_asked)
    frame = {"row": np.arange(num_asked), "driver_id": rng.integers(0, NUM_DRIVERS, num_asked), "as_of_ms": asked_ms}
    pq.write_table(pa.table(frame), folder / "frame.parquet")


def _even_times(rng: np.random.Generator, count: int) -> np.ndarray:
    """Distinct even milliseconds of the month, in no order."""
    halves = np.unique(rng.integers(0, DAYS * DAY_MS // 2, count + count // 10))
    return START_MS + 2 * rng.permutation(halves)[:count]


def run(variant: str, folder: Path) -> dict[str, float]:
    python = str(PEERS) if variant.startswith("feast") else sys.executable
    done = subprocess.run(
        [python, "-m", "tests.bench.join_variants", variant, str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{variant} failed:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def assert_equal(folder: Path, names: list[str]) -> None:
    """Same values to the bit, row by row; only Feast's default store may lose rows, and then says how many."""
    first, *others = (pq.read_table(folder / f"{name}.parquet") for name in names)
    for name, other in zip(names[1:], others, strict=True):
        lost = first.num_rows - other.num_rows
        assert lost == 0 or name == "feast dask", f"{name} lost {lost} rows"
        print(f"{name}: {other.num_rows} rows, {lost} lost")
        kept = first.take(other.column("row"))
        for column in NAMES:
            a, b = (t.column(column).to_numpy() for t in (kept, other))
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            assert same.all(), f"{name}.{column}: {int((~same).sum())} of {len(a)} values differ from {names[0]}"


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    num_rows, num_asked = (20_000, 2_000) if args.quick else (1_000_000, 100_000)
    by_event, as_known = ["ours", "feast dask", "feast duckdb"], ["ours, as known", "feast duckdb, as known"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder, num_rows, num_asked)
        timed = {variant: Timed() for variant in (*by_event, *as_known)}
        peaks = dict.fromkeys(timed, 0.0)
        for number in range(1 if args.quick else args.rounds):
            for variant, one in timed.items():
                found = run(variant, folder)
                one.wall.append(found["wall_s"])
                one.calls.append(found["wall_s"])
                one.cpu.append(found["cpu_s"])
                peaks[variant] = max(peaks[variant], found["peak_mib"])
                print(f"round {number}: {variant}: {found}", flush=True)
            if number == 0:
                assert_equal(folder, by_event)
                assert_equal(folder, as_known)
    bench = Bench("features_join", packages=("duckdb", "pyarrow", "numpy"))
    work = f"join {num_rows // 1000}k x {num_asked // 1000}k x {len(NAMES)}"
    note = "peak MiB: " + ", ".join(f"{variant} {peak:.0f}" for variant, peak in peaks.items())
    targets = {"feast dask": 20.0, "feast duckdb": 1.0, "feast duckdb, as known": 1.0}
    for group, mine in ((by_event, "ours"), (as_known, "ours, as known")):
        chosen = {variant: timed[variant] for variant in group}
        bench.compare_timed(f"{work}, wall", chosen, unit="s", ours=mine, targets=targets, note=note)
        in_cpu = {variant: Timed(wall=one.cpu, cpu=one.cpu, calls=one.cpu) for variant, one in chosen.items()}
        bench.compare_timed(f"{work}, CPU", in_cpu, unit="s", ours=mine, targets=targets, note=note)
    bench.record(f"{work}, peak memory", max(peaks["ours"], peaks["ours, as known"]), "MiB", target=700.0, note=note)
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())

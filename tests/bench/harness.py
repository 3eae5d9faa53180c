"""Timing on a shared machine: variants interleaved, medians and ratios, one table, one row per variant in results.csv.

    bench = Bench("rules")
    bench.compare("rush_hour N=1000", {"ours": f, "zen": g}, ours="ours", unit="ns/candidate", per=1000, targets={"zen": 200})
    bench.finish()

Check first that results are equal: that is the caller's part. A speed drifts on a shared machine, a ratio does not, so the
variants take turns, round by round, and a ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import os
import platform
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results.csv"
LATEST = HERE / "latest"
COLUMNS = [
    "date", "commit", "bench", "work", "variant", "unit", "p20", "p50", "p80", "p99", "cpu_p50", "rounds", "num_calls",
    "max_rss_mib", "device", "versions", "state", "note",
]  # fmt: skip
MIN_ROUND_S = 0.02  # a round is as many calls as fill this time: the clock and the noise of one call drown in it


@dataclass
class Timed:
    """Seconds of single calls, by round. `cpu` are CPU seconds per call."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)


class Bench:
    """One benchmark file's run. `state` is "warm" or "cold"; `packages` are named with their versions in each row."""

    def __init__(self, name: str, *, packages: Sequence[str] = (), state: str = "warm") -> None:
        self.name, self.state = name, state
        self.versions = " ".join(f"{package}={_version(package)}" for package in packages)
        self.rows: list[dict[str, Any]] = []
        self.latest: list[dict[str, Any]] = []

    def compare(
        self,
        work: str,
        variants: Mapping[str, Callable[[], Any]],
        *,
        unit: str,
        per: float = 1.0,
        ours: str | None = None,
        targets: Mapping[str, float] | None = None,
        limit: float | None = None,
        rounds: int = 9,
        note: str = "",
    ) -> dict[str, Timed]:
        """Time the variants in turn. `per` divides a call's seconds; `unit` is what comes out ("ns/candidate": × 1e9).

        `targets`: by how much the peer's time must exceed that of `ours`; `limit`: what `ours` may cost, in `unit`.
        """
        timed = {name: Timed() for name in variants}
        counts = {name: _warm_up(call) for name, call in variants.items()}
        gc.collect()
        gc.disable()
        try:
            for _ in range(rounds):
                for name, call in variants.items():
                    _round(timed[name], call, counts[name])
        finally:
            gc.enable()
        self.compare_timed(work, timed, unit=unit, per=per, ours=ours, targets=targets, limit=limit, note=note)
        return timed

    def compare_timed(
        self,
        work: str,
        timed: Mapping[str, Timed],
        *,
        unit: str,
        per: float = 1.0,
        ours: str | None = None,
        targets: Mapping[str, float] | None = None,
        limit: float | None = None,
        note: str = "",
    ) -> None:
        """`compare` for calls that were timed elsewhere, in processes of their own: one entry of `wall` a round."""
        scale = _SCALES[unit.split("/")[0]] / per
        for name, one in timed.items():
            rounds = len(one.wall)
            self._add_row(work, name, unit, scale, one, rounds, len(one.calls) // rounds, note)
        if ours is not None:
            self._judge(work, timed, ours, unit, scale, targets or {}, limit)

    def record(
        self, work: str, ours: float, unit: str, *, target: float | None = None, at_most: bool = True, note: str = ""
    ) -> None:
        """A figure that was measured in another way."""
        met = None if target is None else (ours <= target if at_most else ours >= target)
        self.rows.append(
            _row(self, work, "ours", unit, dict.fromkeys(("p20", "p50", "p80", "p99"), ours) | {"note": note})
        )
        self.latest.append(
            {
                "work": work,
                "ours": ours,
                "peer": None,
                "peer_name": None,
                "unit": unit,
                "ratio": None,
                "target": target,
                "met": met,
            }
        )

    def finish(self) -> int:
        """Print the table, write latest/<name>.json, append to results.csv. Returns how many targets were missed."""
        _print_table(self.latest)
        LATEST.mkdir(exist_ok=True)
        (LATEST / f"{self.name}.json").write_text(json.dumps(self.latest, indent=1) + "\n")
        is_new = not RESULTS.exists()
        with RESULTS.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerows(self.rows)
        missed = [row for row in self.latest if row["met"] is False]
        for row in missed:
            print(
                f"missed: {row['work']} ({row['peer_name'] or 'limit'}): {row['ratio'] or row['ours']:.4g}, wanted {row['target']:g}"
            )
        return len(missed)

    def _add_row(
        self, work: str, name: str, unit: str, scale: float, one: Timed, rounds: int, count: int, note: str
    ) -> None:
        calls = sorted(one.calls)
        spread = {f"p{p}": _quantile(calls, p / 100) * scale for p in (20, 50, 80, 99)}
        extra = {
            "cpu_p50": statistics.median(one.cpu) * scale,
            "rounds": rounds,
            "num_calls": rounds * count,
            "note": note,
        }
        self.rows.append(_row(self, work, name, unit, spread | extra))

    def _judge(
        self,
        work: str,
        timed: Mapping[str, Timed],
        ours: str,
        unit: str,
        scale: float,
        targets: Mapping[str, float],
        limit: float | None,
    ) -> None:
        mine = timed[ours]
        figure = statistics.median(mine.wall) * scale
        self.latest.append(
            {"work": work, "ours": figure, "peer": None, "peer_name": None, "unit": unit, "ratio": None, "target": limit,
             "met": None if limit is None else figure <= limit}
        )  # fmt: skip
        for name, other in timed.items():
            if name == ours:
                continue
            ratio = statistics.median(b / a for a, b in zip(mine.wall, other.wall, strict=True))
            wanted = targets.get(name)
            self.latest.append(
                {"work": work, "ours": figure, "peer": statistics.median(other.wall) * scale, "peer_name": name, "unit": unit,
                 "ratio": ratio, "target": wanted, "met": None if wanted is None else ratio >= wanted}
            )  # fmt: skip


_SCALES = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}


def arguments(description: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="few rounds and sizes: to see that it runs")
    return parser


def _warm_up(call: Callable[[], Any]) -> int:
    """Call until warm; how many calls fill a round."""
    started, count = time.perf_counter(), 0
    while count < 3 or time.perf_counter() - started < MIN_ROUND_S:
        call()
        count += 1
        if time.perf_counter() - started > 1.0:
            break
    each = (time.perf_counter() - started) / count
    return max(1, round(MIN_ROUND_S / each))


def _round(timed: Timed, call: Callable[[], Any], count: int) -> None:
    clock = time.perf_counter
    cpu = time.process_time()
    begun = clock()
    for _ in range(count):
        started = clock()
        call()
        timed.calls.append(clock() - started)
    timed.wall.append((clock() - begun) / count)
    timed.cpu.append((time.process_time() - cpu) / count)


def _quantile(ordered: Sequence[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def _row(bench: Bench, work: str, variant: str, unit: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    rounded = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in figures.items()}
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": _commit(),
        "bench": bench.name,
        "work": work,
        "variant": variant,
        "unit": unit,
        "max_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "device": f"{platform.machine()}, {os.cpu_count()} shared cores",
        "versions": bench.versions,
        "state": bench.state,
        **rounded,
    }


def _commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True)
    return found.stdout.strip()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def _print_table(latest: Sequence[Mapping[str, Any]]) -> None:
    print(f"{'work':<44} {'ours':>10} {'unit':<13} {'peer':<28} {'time':>10} {'ratio':>8}  target")
    for row in latest:
        peer = "" if row["peer"] is None else f"{row['peer']:.4g}"
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.1f}×"
        target = "" if row["target"] is None else f"{row['target']:g} {'met' if row['met'] else 'MISSED'}"
        print(
            f"{row['work']:<44} {row['ours']:>10.4g} {row['unit']:<13} {row['peer_name'] or '':<28} {peer:>10} {ratio:>8}  {target}"
        )

"""Online = offline in numbers: random (stream, T) pairs whose stored and read values equal brute force, 0 differences.

    python -m tests.bench.bench_features_equal [--pairs 100000] [--seed 1]

Each stream is served by a catalogue of a few features drawn from all aggregates, windows and hops; what is compared is
written in tests/features/equality.py. Exit status 1 where anything differs. Fewer pairs than
100,000 are a try-out and leave no row.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter

from rich.progress import Progress

from tests.bench.harness import Bench
from tests.features.aggregate_cases import FEATURES, catalogue
from tests.features.equality import run_pairs

ALL_PAIRS = 100_000
PAIRS_PER_CATALOGUE = 100
FEATURES_PER_CATALOGUE = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=ALL_PAIRS)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng, started, cpu = random.Random(args.seed), time.perf_counter(), time.process_time()
    pairs, values, drawn = 0, 0, Counter[str]()
    found: list[str] = []
    with Progress() as progress:
        task = progress.add_task("pairs", total=args.pairs)
        while pairs < args.pairs:
            features = dict(rng.sample(sorted(FEATURES.items()), FEATURES_PER_CATALOGUE))
            wanted = min(PAIRS_PER_CATALOGUE, args.pairs - pairs)
            done, compared, differing = run_pairs(
                rng.randrange(2**32), wanted, catalogue(tuple(features.values())), features, num_events=30
            )
            pairs, values = pairs + done, values + compared
            drawn.update({feature.aggregate: done for feature in features.values()})
            found += differing
            progress.update(task, completed=pairs)
    cpu_s = time.process_time() - cpu
    print(f"seed {args.seed}: {pairs:,} pairs, {values:,} values, differences = {len(found)}")
    print(f"{time.perf_counter() - started:.0f} s, {cpu_s:.0f} CPU s")
    print("pairs by aggregate: " + ", ".join(f"{name} {count:,}" for name, count in sorted(drawn.items())))
    for line in found[:20]:
        print(line)
    if pairs < ALL_PAIRS:
        return 1 if found else 0
    bench, note = Bench("features_equal", packages=["numpy"]), f"{pairs} pairs, {values} values, seed {args.seed}"
    bench.record("online = offline, random (stream, T) pairs", len(found), "differences", target=0, note=note)
    bench.record("replay, store, read and brute force of a pair", cpu_s / pairs * 1e3, "ms", note="CPU")
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())

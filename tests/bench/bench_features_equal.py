"""Online = offline in numbers: random (stream, T) pairs whose stored and read values equal brute force, 0 differences.

    python -m tests.bench.bench_features_equal [--pairs 100000] [--seed 1]

Each stream is served by a catalogue of a few features drawn from all aggregates, windows and hops; what is compared is
written in tests/features/equality.py. Exit status 1 where anything differs.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter

from rich.progress import Progress

from tests.features.aggregate_cases import FEATURES, catalogue
from tests.features.equality import run_pairs

PAIRS_PER_CATALOGUE = 100
FEATURES_PER_CATALOGUE = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=100_000)
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
    print(f"seed {args.seed}: {pairs:,} pairs, {values:,} values, differences = {len(found)}")
    print(f"{time.perf_counter() - started:.0f} s, {time.process_time() - cpu:.0f} CPU s")
    print("pairs by aggregate: " + ", ".join(f"{name} {count:,}" for name, count in sorted(drawn.items())))
    for line in found[:20]:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""A run of many cases from one seed: `.venv/bin/python -m tests.fuzz.campaign [TARGET] [SEED] [COUNT]`.

Case `n` of a target is a function of (target, seed, n); a fault names the three, and its files are kept.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.oracle import Fault, judge
from tests.fuzz.targets import TARGETS, Target

MAX_FAULTS = 20  # a fault often comes in hundreds of cases


@dataclass
class Campaign:
    """What came of a run: counts, and the faults with where their files are."""

    cases: int = 0
    accepted: int = 0
    faults: list[str] = field(default_factory=list)


def run_case(target: Target, seed: int, number: int, folder: Path) -> tuple[bool, Fault | None]:
    """One case in an empty folder of its own: whether it was accepted, and its fault."""
    files = target.files(random.Random(f"{target.name} {seed} {number}"))
    with tempfile.TemporaryDirectory(dir=folder) as own:
        rng = random.Random(f"run {target.name} {seed} {number}")
        return judge(files, lambda: target.run(rng, Path(own), files))


def run(target: Target, seed: int, count: int, folder: Path, say: Callable[[str], None]) -> Campaign:
    """`count` cases; `say` gets a line every few seconds. Files of faults are in `folder`."""
    found, said = Campaign(), time.monotonic()
    for number in range(count):
        accepted, fault = run_case(target, seed, number, folder)
        found.cases += 1
        found.accepted += accepted
        if fault is not None:
            kept = folder / f"{target.name}-{seed}-{number}"
            for name, raw in fault.files.items():
                (kept / name).parent.mkdir(parents=True, exist_ok=True)
                (kept / name).write_bytes(raw)
            found.faults.append(f"{target.name} seed {seed} case {number}, its files in {kept}:\n{fault.what}")
            say(found.faults[-1])
            if len(found.faults) >= MAX_FAULTS:
                break
        if time.monotonic() - said > 10:
            said = time.monotonic()
            say(f"{target.name} seed {seed}: {found.cases} of {count} cases, {found.accepted} accepted")
    say(f"{target.name} seed {seed}: {found.cases} cases, {found.accepted} accepted, {len(found.faults)} faults")
    return found


def main(name: str = "", seed: str = "0", count: str = "1000") -> None:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    for target in TARGETS:
        if name in ("", target.name):
            started = time.process_time()
            found = run(target, int(seed), int(count), folder, lambda line: print(line, flush=True))
            print(f"  {1000 * (time.process_time() - started) / max(found.cases, 1):.1f} ms of CPU a case")


if __name__ == "__main__":
    main(*sys.argv[1:])

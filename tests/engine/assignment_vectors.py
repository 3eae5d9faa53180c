"""What `engine/vectors/assignment.json` holds, from the slow twin. As a program it writes the file."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import engine
from engine.strategy import Arm, Experiment, Layer
from tests.engine import naive_assignment as naive

FILE = Path(engine.__file__).parent / "vectors" / "assignment.json"
SALTS = ["", "salt", "express_dispatch:learned_ranking", "πέντε"]
UNITS = [
    "",
    "0",
    "7",
    "-7",
    "9223372036854775807",
    "o-1",
    "o-2",
    "12345678",
    "123456789",
    "driver-000000001",
    "é",
    "e\u0301",
    "🐱",
]
SHARES = [0.0, 1e-9, 2**-25, 0.01, 0.1, 1 / 3, 0.5, 0.999999999, 1.0]
LAYOUTS = [
    [1.0],
    [0.5, 0.5],
    [0.9, 0.1],
    [0.1, 0.9],
    [0.5, 0.3, 0.2],
    [0.0, 0.5, 0.0, 0.5, 0.0],
    [0.333333, 0.333333, 0.333333],
]
HALF_HOUR = 1_800_000
TIMES = [-1, 0, 1, HALF_HOUR - 1, HALF_HOUR, -HALF_HOUR, -HALF_HOUR - 1, 1_725_000_000_000, 1_725_001_199_999]
LAYER = Layer(name="ranking", holdout=0.05, salt="s:ranking:holdout")


def experiment(**changes: Any) -> Experiment:
    """A hash experiment of two arms, with what is to be different."""
    known: dict[str, Any] = {
        "name": "learned",
        "layer": "ranking",
        "unit": "order_id",
        "salt": "s:learned",
        "arms": (Arm(name="rules", share=0.5, set={}), Arm(name="model", share=0.5, set={})),
    }
    return Experiment(**{**known, **changes})


EXPERIMENTS = [
    (experiment(), None),
    (experiment(exposure=0.2), LAYER),
    (experiment(salt="s:three", arms=tuple(Arm(name=n, share=s, set={}) for n, s in (("a", 0.2), ("b", 0.0), ("c", 0.8)))), LAYER),
    (experiment(kind="switchback", unit="", region="zone", window_ms=HALF_HOUR), LAYER),
    (experiment(kind="switchback", unit="", region="zone", window_ms=HALF_HOUR, offset="hashed", exposure=0.7), None),
]  # fmt: skip


def vectors() -> dict[str, Any]:
    """The whole file."""
    return {
        "hashes": [_hash(salt, unit) for salt, unit in itertools.product(SALTS, UNITS)],
        "steps": [{"share": share, "steps": naive.steps(share)} for share in SHARES],
        "layouts": [_layout(shares) for shares in LAYOUTS],
        "windows": [
            _window(offset, zone, as_of_ms)
            for offset, zone, as_of_ms in itertools.product(("none", "hashed"), ("1", "zone-π"), TIMES)
        ],
        "assignments": [_assignments(found, layer) for found, layer in EXPERIMENTS],
    }


def text() -> str:
    """The file, one case a line, so that a change of it can be read."""
    parts = []
    for name, cases in vectors().items():
        lines = ",\n".join(f"    {json.dumps(case, ensure_ascii=False)}" for case in cases)
        parts.append(f"  {json.dumps(name)}: [\n{lines}\n  ]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _hash(salt: str, unit: str) -> dict[str, Any]:
    key = naive.key_of(unit)
    return {
        "salt": salt,
        "unit": unit,
        "key": f"{key:016x}",
        "draw": f"{naive.draw(salt, key):016x}",
        "hash01": (naive.draw(salt, key) // 2**11) / 2**53,
        "bucket": naive.bucket(salt, key),
    }


def _layout(shares: list[float]) -> dict[str, Any]:
    """Where each arm begins, found by asking for the arm of a bucket, bisecting between buckets of different arms."""
    arms = [(str(at), share) for at, share in enumerate(shares)]

    def owner(bucket: int) -> int:
        return int(naive.arm_of_bucket(arms, bucket))

    starts = [0]
    while owner(starts[-1]) != owner(naive.BUCKETS - 1):
        low, high = starts[-1], naive.BUCKETS - 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if owner(middle) == owner(starts[-1]) else (low, middle)
        starts.append(high)
    return {"shares": shares, "arms": [owner(start) for start in starts], "starts": starts}


def _window(offset: str, region: str, as_of_ms: int) -> dict[str, Any]:
    found = experiment(kind="switchback", region="zone", window_ms=HALF_HOUR, offset=offset)
    index = naive.window_index(found, region, as_of_ms)
    shift = naive.draw(f"{found.salt}:offset", naive.key_of(region)) % HALF_HOUR if offset == "hashed" else 0
    return {
        "salt": found.salt,
        "window_ms": HALF_HOUR,
        "offset": offset,
        "region": region,
        "as_of_ms": as_of_ms,
        "index": index,
        "start_ms": index * HALF_HOUR + shift,
        "end_ms": (index + 1) * HALF_HOUR + shift,
        "key": f"{naive.fmix64((naive.key_of(region) + index * naive.GOLDEN) % naive.TWO_64):016x}",
    }


def _assignments(found: Experiment, layer: Layer | None) -> dict[str, Any]:
    switchback = found.kind == "switchback"
    units = ["1", "264", "zone-π"] if switchback else [f"o-{number}" for number in range(40)]
    times = [TIMES[0] + HALF_HOUR * step for step in range(15)] if switchback else [0]
    return {
        "experiment": {
            "kind": found.kind,
            "salt": found.salt,
            "exposure": found.exposure,
            "arms": [{"name": arm.name, "share": arm.share} for arm in found.arms],
            "window_ms": found.window_ms,
            "offset": found.offset,
        },
        "layer": None if layer is None else {"salt": layer.salt, "holdout": layer.holdout},
        "cases": [
            [unit, as_of_ms, naive.arm_or_why(found, layer, unit, as_of_ms)]
            for unit, as_of_ms in itertools.product(units, times)
        ],
    }


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")

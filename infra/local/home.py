"""Where the local stack and everything that it writes live: one folder, `.hailstream/` in the checkout by default."""

from __future__ import annotations

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def home() -> Path:
    """The folder of the local stack: $HAILSTREAM_HOME, else `.hailstream/` in the checkout."""
    return Path(os.environ.get("HAILSTREAM_HOME") or CHECKOUT / ".hailstream").resolve()


def jars() -> Path:
    """The folder that `infra/jars/fetch` fills: `broker/` and `flink/`. It outlives any one stack."""
    return Path(os.environ.get("HAILSTREAM_JARS") or CHECKOUT / ".hailstream" / "jars").resolve()

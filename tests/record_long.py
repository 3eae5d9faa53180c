"""Adds one row on a run of `make test-long` to tests/long_results.csv: when, at which commit, what passed.

usage: python tests/record_long.py JUNIT.xml
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).with_name("long_results.csv")
FIELDS = ("date", "commit", "tests", "failed", "skipped", "seconds", "cores", "slowest")


def main() -> int:
    suite = ET.parse(sys.argv[1]).getroot().find("testsuite")
    assert suite is not None
    cases = sorted(suite.iter("testcase"), key=lambda case: -float(case.get("time", "0")))
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True, cwd=RESULTS.parent
    )
    dirty = subprocess.run(
        ["git", "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True, cwd=RESULTS.parent
    )
    row = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip() + ("+" if dirty.stdout.strip() else ""),
        "tests": suite.get("tests"),
        "failed": int(suite.get("failures", 0)) + int(suite.get("errors", 0)),
        "skipped": suite.get("skipped"),
        "seconds": round(float(suite.get("time", "0"))),
        "cores": os.cpu_count(),
        "slowest": "; ".join(f"{case.get('name')} {float(case.get('time', '0')):.0f} s" for case in cases[:5]),
    }
    new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as out:
        writer = csv.DictWriter(out, FIELDS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)
    print(f"{RESULTS.name}: {row['tests']} tests, {row['failed']} failed, {row['seconds']} s at {row['commit']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The shipped files: where they are, that they are the ones we know, and their rows as plain mappings.

A row stays as raw as it can be read: text for the CSV file, Python values for the Parquet file. What a row means is in
`hvfhv.py`, `chicago.py` and `green.py`.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATA_DIR = Path(__file__).parent / "data"
HVFHV_FILE = "hvfhv_2024-09-01_head5000.csv"
CHICAGO_FILE = "chicago_taxi_2022-04-01.parquet"
GREEN_FILE = "green_2023-01.parquet"
ZONE_POINTS_FILE = "zones/taxi_zone_points.csv"


class TripFileError(ValueError):
    """A shipped file is missing or is not the file it should be."""


def checked_path(name: str, data_dir: Path = DATA_DIR) -> Path:
    """The path of a shipped file whose bytes match SHA256SUMS. Raises: TripFileError."""
    path, sums = data_dir / name, data_dir / "SHA256SUMS"
    if not sums.is_file():
        raise TripFileError(f"{sums} is missing: restore it from the repository (git checkout -- {sums.name})")
    listed = (line.split("  ", 1) for line in sums.read_text().splitlines() if line)
    wanted = {file: digest for digest, file in listed}
    if name not in wanted:
        raise TripFileError(f"{name} is not listed in {sums}; it lists {', '.join(sorted(wanted))}")
    if not path.is_file():
        raise TripFileError(f"{path} is missing: restore it from the repository (git checkout -- {name})")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != wanted[name]:
        raise TripFileError(
            f"{path}: sha256 is {found}, SHA256SUMS says {wanted[name]}: the file was changed; restore it"
        )
    return path


def csv_rows(name: str, data_dir: Path = DATA_DIR) -> Iterator[tuple[dict[str, str], bytes]]:
    """Rows of a CSV file in file order, each with the bytes of its line. Raises: TripFileError."""
    lines = checked_path(name, data_dir).read_bytes().splitlines()
    header = lines[0].decode()
    for line in lines[1:]:
        (row,) = csv.DictReader([header, line.decode()])
        yield row, line


def parquet_rows(name: str, data_dir: Path = DATA_DIR) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Rows of a Parquet file in file order, each with its values as one JSON object. Raises: TripFileError."""
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(checked_path(name, data_dir)).iter_batches():
        for row in batch.to_pylist():
            yield row, json.dumps(row, default=str, separators=(",", ":")).encode()

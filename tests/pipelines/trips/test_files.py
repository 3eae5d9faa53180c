"""The shipped files are the ones we know."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipelines.trips.files import (
    CHICAGO_FILE,
    DATA_DIR,
    HVFHV_FILE,
    TripFileError,
    checked_path,
    csv_rows,
    parquet_rows,
)


def test_every_listed_file_is_there_and_unchanged() -> None:
    listed = [line.split("  ", 1)[1] for line in (DATA_DIR / "SHA256SUMS").read_text().splitlines()]
    assert len(listed) == 6
    for name in listed:
        assert checked_path(name).is_file()


def test_credits_and_terms_lie_beside_the_files() -> None:
    text = (DATA_DIR / "README.md").read_text()
    assert "New York City Taxi and Limousine Commission" in text
    assert "The City of Chicago" in text and "makes no claims as to the content" in text


def test_a_changed_file_is_refused_with_its_name(tmp_path: Path) -> None:
    shutil.copytree(DATA_DIR, tmp_path / "data")
    changed = tmp_path / "data" / HVFHV_FILE
    changed.write_bytes(changed.read_bytes().replace(b"Y", b"N", 1))
    with pytest.raises(TripFileError, match=rf"{HVFHV_FILE}: sha256 is .* the file was changed"):
        list(csv_rows(HVFHV_FILE, tmp_path / "data"))


def test_a_missing_or_unlisted_file_is_refused_with_its_name(tmp_path: Path) -> None:
    shutil.copytree(DATA_DIR, tmp_path / "data")
    (tmp_path / "data" / CHICAGO_FILE).unlink()
    with pytest.raises(TripFileError, match=f"{CHICAGO_FILE} is missing"):
        list(parquet_rows(CHICAGO_FILE, tmp_path / "data"))
    with pytest.raises(TripFileError, match=r"other\.csv is not listed"):
        checked_path("other.csv", tmp_path / "data")
    (tmp_path / "data" / "SHA256SUMS").unlink()
    with pytest.raises(TripFileError, match="SHA256SUMS is missing"):
        checked_path(HVFHV_FILE, tmp_path / "data")


def test_rows_keep_their_raw_bytes_and_their_order() -> None:
    lines = (DATA_DIR / HVFHV_FILE).read_bytes().splitlines()
    rows = list(csv_rows(HVFHV_FILE))
    assert [raw for _, raw in rows] == lines[1:]
    assert rows[0][0]["request_datetime"] == "2024-09-01 00:00:42"

"""The verbs over the past, as a person runs them: files in, files out, exit codes, messages without tracebacks."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from features.loader import SHIPPED, load_catalogue
from infra.cli import app
from pipelines.trips.events import recorded_events
from pipelines.trips.hvfhv import read_hvfhv
from tests.features.history_cases import table_of


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose archive holds the events of 300 real trips."""
    trips, _ = read_hvfhv(seed=1, limit_rows=300)
    events = [event for trip in trips for event in recorded_events(trip)]
    source = load_catalogue(SHIPPED).streams["trip_events"]
    rows = [{name: getattr(event, name) for name in source.schema} for event in events]
    place = tmp_path / "archive" / "trip_events" / "partition=0000"
    place.mkdir(parents=True)
    pq.write_table(table_of(source, rows), place / "block-000000000000-000000000900.parquet")
    monkeypatch.setenv("HAILSTREAM_HOME", str(tmp_path))
    return tmp_path


def run(*words: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["features", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_a_csv_frame_is_joined_under_two_roles(home: Path) -> None:
    (home / "frame.csv").write_text("label,zone,to,as_of_ms\nb,263,75,1725166800000\na,75,263,1725166800000\n")
    code, out, _ = run(
        "history", home / "frame.csv", "-f", "zone_demand.requested_15m,to.completed_1h", "--role", "to=zone_demand", "-o",
        home / "out.parquet", "--statuses", "--json",
    )  # fmt: skip
    assert (code, json.loads(out)) == (0, {"rows": 2, "file": str(home / "out.parquet")})
    got = pq.read_table(home / "out.parquet")
    assert got.column("label").to_pylist() == ["b", "a"]
    assert set(got.column("to.completed_1h__status").to_pylist()) == {"present"}
    assert sum(got.column("zone_demand.requested_15m").to_pylist()) > 0


def test_an_export_has_every_zone_at_every_step(home: Path) -> None:
    words = ["export", "zone_demand", "-o", home / "out.parquet", "--from", "2024-09-01T05:00:00Z", "--every", "30m"]
    code, out, _ = run(*words, "--to", "2024-09-01T06:00:00Z", "-f", "completed_1h")
    assert code == 0 and "rows to" in out
    got = pq.read_table(home / "out.parquet")
    assert set(got.column("as_of_ms").to_pylist()) == {1725166800000, 1725168600000}
    assert got.column_names == ["zone", "as_of_ms", "zone_demand.completed_1h"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["history", "none.parquet", "-f", "zone_demand.*", "-o", "out.parquet"], "there is no none.parquet"),
        (["history", "frame.csv", "-f", "zone_demnd.*", "-o", "out.parquet"], "there is no feature 'zone_demnd.*'"),
        (["history", "frame.csv", "-f", "driver_state.*", "-o", "out.parquet"], "no column 'driver_id'"),
        (["history", "frame.csv", "-f", "x.*", "-o", "out.parquet", "--role", "x"], "'x' is no role: write NAME=VIEW"),
        (["export", "zone_demand", "-o", "out.parquet", "--from", "now", "--to", "1", "--every", "1h"], "'now' is not a time"),
        (["archive", "nothing"], "there is no stream source 'nothing'"),
    ],
)  # fmt: skip
def test_mistakes_are_messages(words: list[str], message: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    (home / "frame.csv").write_text("zone,as_of_ms\n1,1725166800000\n")
    code, _, err = run(*words)
    assert code == 1 and message in err and "Traceback" not in err
    assert not (home / "out.parquet").exists()

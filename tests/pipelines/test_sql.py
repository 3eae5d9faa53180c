"""The feature job's SQL: whole golden text, and what refuses to be rendered.

To accept a change: `python -m pipelines.jobs.features --render --definitions DIR --kafka broker:9092 > EXPECTED`
(`--project small` for the small case), and say in the commit who notices.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from features.loader import SHIPPED, load_catalogue
from features.registry import local_registry
from pipelines.jobs.options import JobOptions
from pipelines.sql import job_name, render_feature_job

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "sql"


def small_tile_groups() -> list[str]:
    """A group of plain tiles, and one of buckets."""
    names = [group.name for group in load_catalogue(GOLDEN / "small").tile_groups()]
    assert names[0] == "zone.trip_events.300000.pickup_zone"
    assert re.fullmatch(r"zone\.trip_events\.300000\.q[0-9a-f]{8}\.pickup_zone", names[1])
    return names


def rendered(folder: Path, **options: object):
    catalogue = load_catalogue(folder)
    options = {"kafka": "broker:9092", **options}
    return render_feature_job(catalogue, local_registry(catalogue).generations(), JobOptions(**options))


@pytest.mark.parametrize(
    ("folder", "expected", "project"),
    [
        (GOLDEN / "small", GOLDEN / "small" / "expected.sql", "small"),  # every aggregate, no dedup, last with where
        (GOLDEN / "composite", GOLDEN / "composite" / "expected.sql", "composite"),  # keys of several columns, int32
        (SHIPPED, GOLDEN / "shipped.sql", "hailstream"),
    ],
    ids=["small", "composite", "shipped"],
)
def test_sql_text_is_the_golden_text(folder: Path, expected: Path, project: str) -> None:
    assert rendered(folder, project=project).text() == expected.read_text()


def test_text_depends_on_the_declarations_only() -> None:
    assert rendered(SHIPPED).text() == rendered(SHIPPED).text()


def test_decode_returns_only_the_columns_that_groups_need() -> None:
    trips = next(d for d in rendered(GOLDEN / "small").decoders if d.topic == "trip_events")
    assert [column for column, _ in trips.columns] == [
        "event_id",
        "product",
        "pickup_zone",
        "event_time_ms",
        "ingest_time_ms",
        "fare_cents",
    ]


def test_state_lives_for_hop_disorder_and_outage() -> None:
    # hop 5 m, disorder 5 m, outage 1 h; duplicates are known for the source's 2 h
    sql = rendered(GOLDEN / "small", max_outage_ms=3_600_000)
    assert re.findall(r"STATE_TTL\('(\w+)' = '(\d+) ms'\)", sql.text()) == [
        (f"{name.replace('.', '_')}_rows", str(300_000 + 300_000 + 3_600_000)) for name in small_tile_groups()
    ]
    assert sql.settings["table.exec.state.ttl"] == "7200000 ms"


def test_session_is_pinned_to_utc_and_batches_are_equal() -> None:
    settings = rendered(SHIPPED).settings
    assert settings["table.local-time-zone"] == "UTC"
    assert settings["python.fn-execution.bundle.size"] == settings["python.fn-execution.arrow.batch.size"]


def test_group_that_was_not_applied_is_named() -> None:
    catalogue = load_catalogue(GOLDEN / "small")
    with pytest.raises(ValueError, match=r"not applied: driver\.driver_events\.last; run `hailstream features apply`"):
        render_feature_job(catalogue, dict.fromkeys(small_tile_groups(), 1), JobOptions(kafka="broker:9092"))


def test_column_that_the_records_do_not_have_is_named(tmp_path: Path) -> None:
    for file in GOLDEN.glob("small/**/*.yaml"):
        target = tmp_path / file.relative_to(GOLDEN / "small")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file.read_text().replace("fare_cents", "fare_pence"))
    with pytest.raises(ValueError, match=r"source trip_events: TripEvent .* has no \['fare_pence'\]"):
        rendered(tmp_path)


def test_job_is_named_after_its_newest_generation() -> None:
    assert job_name({"a": 1, "b": 3}) == "hailstream-features-g3"
    catalogue = load_catalogue(GOLDEN / "small")
    generations = {**dict.fromkeys(small_tile_groups(), 4), "driver.driver_events.last": 2}
    sql = render_feature_job(catalogue, generations, JobOptions(kafka="broker:9092"))
    assert sql.name == "hailstream-features-g4"
    assert {w.group.name: w.generation for w in sql.writers} == generations


def test_a_staged_version_reads_from_its_seam_and_says_what_is_before_it() -> None:
    """Last of all fates, so that what is a duplicate, late or from the future is still called that."""
    seam_ms = 1_700_000_400_000
    sql, text = rendered(SHIPPED, seam_ms=seam_ms), rendered(SHIPPED, seam_ms=seam_ms).text()
    assert sql.name == f"hailstream-features-g1-from{seam_ms}"
    assert f"'sink.transactional-id-prefix' = '{sql.name}-ledger'" in text  # two jobs may not share transactions
    fates = re.findall(r"CASE (.*) END AS `fate`", text)
    assert len(fates) == 2
    for fate in fates:
        assert fate.endswith(f"THEN 'late' WHEN `event_time_ms` < {seam_ms} THEN 'before_seam' ELSE 'used'")
    assert text.count(f"'scan.startup.timestamp-millis' = '{seam_ms - 2 * 60_000}'") == 2
    assert text.count("'scan.startup.mode' = 'timestamp'") == 2 and "earliest-offset" not in text
    assert "'scan.startup.timestamp-millis' = '0'" in rendered(SHIPPED, seam_ms=-900_000).text()
    assert "before_seam" not in rendered(SHIPPED).text()


@pytest.mark.parametrize(("option", "value"), [("parallelism", 0), ("bundle_ms", -1), ("state_backend", "heap")])
def test_option_out_of_range_is_refused(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=option):
        JobOptions(kafka="broker:9092", **{option: value})


def test_a_job_of_several_tasks_commits_under_a_name_of_what_it_writes_to() -> None:
    """Its heartbeat is read from those offsets: those of another generation, or life, would promise what it never wrote."""
    catalogue = load_catalogue(GOLDEN / "small")
    generations = local_registry(catalogue).generations()

    def group_of(generations: dict[str, int], lives: dict[str, str]) -> str:
        sql = render_feature_job(catalogue, generations, JobOptions(kafka="broker:9092", parallelism=2), lives)
        (name,) = set(re.findall(r"'properties.group.id' = '(.*)'", sql.text()))
        assert {writer.progress.consumer_group for writer in sql.writers if writer.progress is not None} == {name}
        assert all(writer.progress is not None for writer in sql.writers)
        return str(name)

    name = next(iter(generations))
    names = {
        group_of(generations, {}),
        group_of({**generations, name: 7}, {}),
        group_of(generations, {name: "a"}),
        group_of(generations, {name: "b"}),
    }
    assert len(names) == 4 and all(re.fullmatch(r"hailstream-features-[0-9a-f]{16}", each) for each in names)
    assert group_of(generations, {}) in names
    assert all(writer.progress is None for writer in rendered(SHIPPED).writers)

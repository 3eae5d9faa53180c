"""What `plan` says of an edit: its class, what follows from it, what it costs and whom it touches."""

from __future__ import annotations

import pytest

from features.edits import BACKFILL, BREAKING, DESTRUCTIVE, SAFE, Edit
from features.estimates import StoredGroup
from features.expr import Mistakes
from features.loader import SHIPPED, load_catalogue, load_texts
from features.plan import Plan, plan_changes
from features.registry import Registry, local_registry, next_registry
from features.staging import stage_next

FILES = dict(load_catalogue(SHIPPED).files)
DRIVER, ZONE, SOURCES, ENTITIES = (
    "views/driver_activity.yaml",
    "views/zone_demand.yaml",
    "sources.yaml",
    "entities.yaml",
)
MINUTE, QUARTER, LAST = "driver.trip_events.60000", "driver.trip_events.900000", "driver.trip_events.last"


@pytest.fixture(scope="module")
def applied() -> Registry:
    return local_registry(load_texts(FILES))


def planned(applied: Registry, file: str, old: str, new: str, **options: object) -> Plan:
    assert old in FILES[file], old
    return plan_changes(applied, load_texts({**FILES, file: FILES[file].replace(old, new, 1)}), **options)  # type: ignore[arg-type]


def risks(plan: Plan) -> dict[str, str]:
    return {f"{edit.view}.{edit.feature}" if edit.feature else edit.view or edit.what: edit.risk for edit in plan.edits}


def test_what_is_applied_is_no_edit(applied: Registry) -> None:
    plan = plan_changes(applied, load_texts(FILES))
    assert (plan.edits, plan.risk, plan.exit_code, plan.changes, plan.steps) == ((), None, 0, (), ())


@pytest.mark.parametrize(
    ("file", "old", "new", "risk", "exit_code"),
    [
        (DRIVER, "owner: supply", "owner: somebody", SAFE, 2),
        (DRIVER, "unit: trips}", "unit: trips, description: new words}", SAFE, 2),
        (DRIVER, "freshness_slo: {p99: 1s}", "freshness_slo: {p99: 5s}", SAFE, 2),
        (DRIVER, "offers_24h > 0 ?", "(offers_24h > 0) ?", SAFE, 2),
        (DRIVER, "features:\n", "# words\nfeatures:\n", SAFE, 2),
        (DRIVER, "view:", "# words\nview:", SAFE, 2),
        (ENTITIES, "type: int", "type: int # words", SAFE, 2),
        (SOURCES, "    city: string\n", "    city: string\n    brand_new: int?\n", SAFE, 2),
        (SOURCES, "    duration_s: int?\n", "", SAFE, 2),
        (DRIVER, "tests: ", "  more_1h: {aggregate: count, where: \"event_type == 'offered'\", window: 1h, hop: 1m}\ntests: ", SAFE, 2),
        (DRIVER, "tests: ", "  offers_7d: {aggregate: count, where: \"event_type == 'offered'\", window: 7d, hop: 15m}\ntests: ", BACKFILL, 2),
        (DRIVER, "tests: ", "  all_1h: {aggregate: count, window: 1h, hop: 1m}\ntests: ", BACKFILL, 2),
        (DRIVER, "tests: ", "  all_1h: {aggregate: count, window: 1h, hop: 10m}\ntests: ", BACKFILL, 2),
        (DRIVER, "\"event_type == 'accepted'\"", "\"event_type=='accepted'\"", BACKFILL, 2),
        (DRIVER, "default: 0.8", "default: 0.7", BREAKING, 3),
        (DRIVER, ", default: 0.8", "", BREAKING, 3),
        (DRIVER, "max_age: 2d", "max_age: 1d", BREAKING, 3),
        (DRIVER, "window: 15m", "window: 30m", BREAKING, 3),
        (DRIVER, "'accepted'", "'offered'", BREAKING, 3),
        (DRIVER, "of: dropoff_zone", "of: pickup_zone", BREAKING, 3),
        (SOURCES, "disorder: 10m", "disorder: 5m", BREAKING, 3),
        (SOURCES, "horizon: 1h", "horizon: 2h", BREAKING, 3),
        (ZONE, "key: {zone: pickup_zone}", "key: {zone: dropoff_zone}", DESTRUCTIVE, 3),
        (DRIVER, "view: driver_activity", "view: driver_doings", DESTRUCTIVE, 3),
        (DRIVER, "  last_dropoff_zone:", "  last_zone_seen:", DESTRUCTIVE, 3),
    ],
)  # fmt: skip
def test_each_edit_has_its_class(applied: Registry, file: str, old: str, new: str, risk: str, exit_code: int) -> None:
    plan = planned(applied, file, old, new)
    assert (plan.risk, plan.exit_code) == (risk, exit_code), plan.edits
    assert all(edit.what and edit.reason for edit in plan.edits)


def test_an_edit_says_where_what_and_why(applied: Registry) -> None:
    (edit,) = [e for e in planned(applied, DRIVER, "window: 15m", "window: 30m").edits if e.kind == "change"]
    assert edit == Edit(
        "change",
        "driver_activity",
        "completed_15m",
        "window 15m → 30m",
        BREAKING,
        "other events are in the window",
        f"{DRIVER}:9",
    )


def test_a_new_partial_keeps_its_whole_group_anew_and_nothing_else(applied: Registry) -> None:
    plan = planned(applied, DRIVER, "tests: ", "  all_1h: {aggregate: count, window: 1h, hop: 1m}\ntests: ")
    anew = {edit.feature: edit for edit in plan.edits if edit.kind in ("generation", "follows")}
    assert set(anew) == {"completed_15m", "completed_1h", "offers_1h", "declines_1h", "decline_share_1h", "all_1h"}
    assert {edit.risk for edit in anew.values()} == {BACKFILL}
    assert anew["offers_1h"].what == f"group {MINUTE} is kept anew: generation 1 → 2"
    assert anew["offers_1h"].reason == "it keeps count"
    assert plan.risk_of("driver_activity", "offers_24h") is None and plan.risk_of("zone_demand", "requested_5m") is None
    assert {(c.name, c.before, c.after) for c in plan.changes} == {(MINUTE, 1, 2), ("driver_activity", 1, 2)}
    assert plan.steps[0].startswith(f"apply stages new generations of {MINUTE};") and "rollout" in plan.steps[1]


def test_what_reads_a_changed_feature_changes_with_it(applied: Registry) -> None:
    plan = planned(applied, DRIVER, "'accepted'", "'offered'")
    assert plan.risk_of("driver_activity", "accepts_24h") == BREAKING
    assert plan.risk_of("driver_activity", "accept_rate_24h") == BREAKING
    assert plan.risk_of("driver_activity", "fare_24h") == BACKFILL
    (follows,) = [edit for edit in plan.edits if edit.feature == "accept_rate_24h"]
    assert (follows.kind, follows.what) == ("follows", "reads accepts_24h, offers_24h")


def test_a_shorter_span_loses_tiles_and_the_last_feature_of_a_group_loses_the_group(applied: Registry) -> None:
    shorter = FILES[DRIVER].replace("window: 24h, hop: 15m", "window: 12h, hop: 15m")
    plan = plan_changes(applied, load_texts({**FILES, DRIVER: shorter}))
    (lost,) = [edit for edit in plan.edits if edit.kind == "retention"]
    assert (lost.risk, lost.what) == (DESTRUCTIVE, f"group {QUARTER} keeps 50 tiles a key, not 98")
    assert not plan.changes[0].name.startswith("driver.trip_events"), "the generation stays"
    without = FILES[DRIVER].replace(FILES[DRIVER].splitlines()[17] + "\n", "")
    gone = plan_changes(applied, load_texts({**FILES, DRIVER: without}))
    assert (risks(gone)["driver_activity.last_dropoff_zone"], risks(gone)[f"group {LAST} is gone"]) == (
        DESTRUCTIVE,
    ) * 2


def test_a_renamed_feature_is_told_as_one(applied: Registry) -> None:
    plan = planned(applied, DRIVER, "  last_dropoff_zone:", "  last_zone_seen:")
    assert "feature last_dropoff_zone (renamed to last_zone_seen?) is gone" in {edit.what for edit in plan.edits}


def test_an_edit_of_a_source_reaches_every_view_that_reads_it(applied: Registry) -> None:
    plan = planned(applied, SOURCES, "disorder: 10m", "disorder: 5m")
    assert {edit.view for edit in plan.edits} == {None, "driver_activity", "zone_demand"}
    assert plan.risk_of("driver_state", "last_zone") is None
    assert "jobs submit features" in plan.steps[1]
    assert plan.steps[2].endswith("for driver_activity, zone_demand")


def test_the_first_apply_adds_everything(applied: Registry) -> None:
    plan = plan_changes(None, load_texts(FILES))
    assert (plan.risk, plan.exit_code, plan.version_before) == (BACKFILL, 2, None)
    assert {edit.risk for edit in plan.edits} == {SAFE, BACKFILL}
    assert {group.generation_after for group in plan.groups} == {1} and all(g.changes for g in plan.groups)
    assert plan.steps[0] == "apply makes it live at once, in one transaction"


def test_a_staged_version_is_told(applied: Registry) -> None:
    files = {**FILES, DRIVER: FILES[DRIVER].replace("'accepted'", "'offered'")}
    staged = stage_next(applied, load_texts(files), applied.project, 0, started_ms=1, actor="a", reason="r")[0]
    assert "this is the version that is staged" in plan_changes(staged, load_texts(files)).steps[0]
    assert "another version is staged" in plan_changes(staged, load_texts(FILES)).steps[0]


def test_what_was_never_fed_is_not_staged(applied: Registry) -> None:
    plan = planned(applied, DRIVER, "'accepted'", "'offered'", stored={})
    assert plan.steps[0] == "apply makes it live at once, in one transaction"
    fed = planned(applied, DRIVER, "'accepted'", "'offered'", stored={QUARTER: StoredGroup(keys=3, value_bytes=80)})
    assert fed.steps[0].startswith(f"apply stages new generations of {QUARTER}")


def test_users_of_what_changes_are_named_and_those_that_would_not_load(applied: Registry) -> None:
    uses = {
        "strategy one": {("driver_activity", "accept_rate_24h"), ("driver_activity", "offers_1h")},
        "strategy other": {("zone_demand", "requested_5m")},
        "model m@v1": {("driver_activity", "accepts_24h")},
    }
    plan = planned(applied, DRIVER, "'accepted'", "'offered'", uses=uses, broken={"strategy other": "no such thing"})
    assert {touched.user: touched.features for touched in plan.touched} == {
        "model m@v1": (("driver_activity", "accepts_24h", BREAKING),),
        "strategy one": (("driver_activity", "accept_rate_24h", BREAKING),),
        "strategy other": (),
    }
    assert [touched.error for touched in plan.touched] == ["", "", "no such thing"]


def test_only_what_goes_beyond_the_allowed_class_is_refused(applied: Registry) -> None:
    plan = planned(applied, DRIVER, "'accepted'", "'offered'")
    assert {edit.feature for edit in plan.beyond(BACKFILL)} == {"accepts_24h", "accept_rate_24h"}
    assert plan.beyond(BREAKING) == [] and len(plan.beyond(SAFE)) > 2


def test_a_feature_that_was_gone_and_comes_back_needs_history(applied: Registry) -> None:
    without = load_texts({name: text for name, text in FILES.items() if name != "views/driver_state.yaml"})
    gone = next_registry(applied, without, applied.project)[0]
    plan = plan_changes(gone, load_texts(FILES))
    assert plan.risk == BACKFILL and {c.after for c in plan.changes} == {2}


RATINGS = """
ratings:
  parquet: ratings/*.parquet
  event_time: at_ms
  schema: {driver_id: string, rating: 'double?', tier: string, at_ms: int}
"""
RATED = """
view: driver_rating
entity: driver
source: ratings
max_age: 30d
features:
  rating: {column: rating, default: 4.5}
  tier:   {column: tier}
  good:   {expr: "rating > 4.0"}
"""
ASKED = """
view: asked
entity: driver
request: {hour: int}
features:
  night: {expr: "hour < 6"}
"""
MORE = {**FILES, SOURCES: FILES[SOURCES] + RATINGS, "views/rated.yaml": RATED, "views/asked.yaml": ASKED}


def test_rows_of_a_batch_view_have_to_be_written_and_a_request_view_needs_nothing(applied: Registry) -> None:
    plan = plan_changes(applied, load_texts(MORE))
    assert plan.risk == BACKFILL
    assert {name: plan.risk_of("driver_rating", name) for name in ("rating", "tier", "good")} == dict.fromkeys(
        ("rating", "tier", "good"), BACKFILL
    )
    assert plan.risk_of("asked", "night") == SAFE
    (group,) = [group for group in plan.groups if group.changes]
    assert group.name == "driver.ratings.rows.driver_rating"
    assert (
        plan.steps[1]
        == f"values of {group.name} are missing until `hailstream features backfill` has written their rows"
    )
    assert not any("job" in step for step in plan.steps)


@pytest.mark.parametrize(
    ("file", "old", "new", "risk", "feature"),
    [
        ("views/rated.yaml", "{column: tier}", "{column: driver_id}", BREAKING, "driver_rating.tier"),
        ("views/rated.yaml", "{column: tier}", "{column: driver_id}", BACKFILL, "driver_rating.rating"),
        ("views/rated.yaml", "  tier:   {column: tier}\n", "", BACKFILL, "driver_rating.good"),
        ("views/rated.yaml", "  tier:   {column: tier}\n", "", DESTRUCTIVE, "driver_rating.tier"),
        ("views/rated.yaml", "default: 4.5", "default: 4.0", BREAKING, "driver_rating.good"),
        ("views/rated.yaml", "max_age: 30d", "max_age: 3d", BREAKING, "driver_rating.good"),
        (SOURCES, "ratings/*", "others/*", BREAKING, "driver_rating.tier"),
        (SOURCES, "rating: 'double?'", "rating: double", BREAKING, "driver_rating.rating"),
        (SOURCES, "tier: string, ", "tier: string, more: int, ", None, "driver_rating.tier"),
        ("views/asked.yaml", "{hour: int}", "{hour: int, day: int}", BREAKING, "asked.night"),
        ("views/asked.yaml", "hour < 6", "(hour < 6)", SAFE, "asked.night"),
        ("views/asked.yaml", "hour < 6", "hour < 7", BREAKING, "asked.night"),
    ],
)  # fmt: skip
def test_edits_of_batch_and_request_views_have_their_class(
    file: str, old: str, new: str, risk: str | None, feature: str
) -> None:
    assert old in MORE[file]
    plan = plan_changes(local_registry(load_texts(MORE)), load_texts({**MORE, file: MORE[file].replace(old, new)}))
    view, _, name = feature.partition(".")
    assert plan.risk_of(view, name) == risk, plan.edits


def test_mistakes_are_no_plan() -> None:
    with pytest.raises(Mistakes):
        load_texts({**FILES, DRIVER: FILES[DRIVER].replace("offers_24h > 0", "ofers_24h > 0")})

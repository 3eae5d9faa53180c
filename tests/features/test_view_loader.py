"""Views of each kind: what goes with what, and what units and bounds of columns say about expressions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from features.spec import BatchSource
from features.window_fields import MAX_TILES
from tests.features.test_loader import SOURCES, VIEW, mistakes, write
from tests.features.test_source_loader import RATINGS, load

BATCH_VIEW = """\
view: r
entity: driver
source: ratings
max_age: 30d
features:
  stars: {column: stars}
  rated: {column: stars, default: 4.5}
  good: {expr: rated > 4.0}
"""
ASKED = """\
view: a
entity: driver
request: {distance_m: int, minutes: {type: 'double?', unit: min, min: 0}}
features:
  km: {expr: double(distance_m) / 1000.0, unit: km}
"""
FACTS = SOURCES.replace("cents: int?", "cents: {type: 'int?', unit: cents, min: 0}").replace(
    "zone: int", "zone: {type: int, unit: m, min: 0, max: 0}"
)


def test_a_view_of_a_batch_source_serves_its_columns() -> None:
    catalogue = load(sources=SOURCES + RATINGS, r=BATCH_VIEW)
    view = catalogue.views["r"]
    assert (view.kind, isinstance(view.source, BatchSource), view.key_fields) == ("batch", True, ("driver_id",))
    stars, rated, good = view.features
    assert (stars.column, stars.served_type, stars.unit) == ("stars", "double?", "ratio")
    assert (rated.column, rated.served_type, rated.default) == ("stars", "double", 4.5)
    assert (good.type, good.nullable) == ("bool", False)
    (group,) = catalogue.row_groups()
    assert (group.name, [(f.name, f.type) for f in group.fields]) == ("driver.ratings.rows.r", [("stars", "double")])
    assert catalogue.groups() == (), "no stream feeds it"


def test_a_view_without_a_source_has_request_fields() -> None:
    view = load(a=ASKED).views["a"]
    assert (view.kind, view.source, view.key_fields) == ("request", None, ())
    assert dict(view.request) == {"distance_m": "int", "minutes": "double?"}


def test_expressions_of_a_stream_view_may_read_request_fields() -> None:
    text = VIEW.replace("features:", "request: {limit: int}\nfeatures:") + "  many: {expr: n_5m > limit}\n"
    view = load(v=text).views["v"]
    assert (view.kind, view.feature("many").type) == ("stream", "bool")


@pytest.mark.parametrize(
    ("base", "old", "new", "message"),
    [
        (VIEW, "features:", "request: {n_5m: int}\nfeatures:", "v.yaml:7:3: 'n_5m' is a feature and a request field of the same view (rename one of them)"),
        (VIEW, "features:", "request: {limit: int}\nfeatures:\n  x: {expr: limt + 1}", "v.yaml:7:13: unknown name 'limt' (did you mean 'limit'?)"),
        (VIEW, "features:", "request: {limit: intt}\nfeatures:", "unknown type 'intt'"),
        (VIEW, "source: trips\n", "", "a view needs 'source'"),
        (VIEW, "features:", "features:\n  x: {column: kind}", "'column' is for batch sources, and 'trips' is a stream (for its newest value write {aggregate: last, of: kind})"),
        (BATCH_VIEW, "{column: stars}", "{column: starz}", "unknown column 'starz' (did you mean 'stars'?)"),
        (BATCH_VIEW, "{column: stars}", "{column: stars, window: 1h}", "'window' does not go with 'column'"),
        (BATCH_VIEW, "{column: stars}", "{column: stars, unit: cents}", "declared in cents, but the value is in ratio"),
        (BATCH_VIEW, "{column: stars}", "{aggregate: count, window: 1h, hop: 1m}", "'aggregate' is for streams, and 'ratings' is a batch source"),
        (BATCH_VIEW, "{column: stars}", "{default: 1}", "feature 'stars' needs either 'column' or 'expr'"),
        (BATCH_VIEW, "max_age: 30d", "max_age: 30d\nfreshness_slo: {p99: 1s}", "'freshness_slo' does not go with a view of a batch source"),
        (BATCH_VIEW, "rated > 4.0", "rated > 4.0 && div(1, stars * 0.0) > 0.0", "div"),
        (ASKED, "request:", "max_age: 1d\nrequest:", "'max_age' does not go with a view without a source"),
        (ASKED, "request:", "key: {driver_id: x}\nrequest:", "'key' does not go with a view without a source"),
        (ASKED, "{expr: double(distance_m) / 1000.0, unit: km}", "{aggregate: count, window: 1h, hop: 1m}", "'aggregate' is for views with a stream"),
        (ASKED, "double(distance_m) / 1000.0, unit: km", "minutes, unit: cents", "declared in cents, but the value is in min"),
    ],
)  # fmt: skip
def test_each_mistake_of_a_kind_of_view_is_named(tmp_path: Path, base: str, old: str, new: str, message: str) -> None:
    assert old in base
    found = mistakes(write(tmp_path / "c", sources=SOURCES + RATINGS, v=base.replace(old, new, 1)))
    assert any(message in item for item in found), found


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{aggregate: sum, of: cents, window: 5m, hop: 1m, unit: m}", "declared in m, but the value is in cents"),
        ("{aggregate: count, where: '(cents ?? 0) > zone', window: 5m, hop: 1m}", "in cents and 'zone' in m"),
        ("{aggregate: sum, of: 'cents + zone', window: 5m, hop: 1m}", "cents"),
        ("{aggregate: sum, of: 'div(cents ?? 0, zone)', window: 5m, hop: 1m}", "the divisor 'zone' is always zero"),
    ],
)
def test_units_and_bounds_of_columns_hold_in_what_reads_them(tmp_path: Path, line: str, message: str) -> None:
    found = mistakes(write(tmp_path / "c", sources=FACTS, v=VIEW + f"  x: {line}\n"))
    assert len(found) == 1 and found[0].startswith("v.yaml:7:") and message in found[0], found


def test_an_aggregate_has_the_unit_of_what_it_is_taken_of() -> None:
    text = VIEW + "  fares: {aggregate: sum, of: cents, window: 5m, hop: 1m}\n"
    view = load(sources=FACTS, v=text).views["v"]
    assert (view.feature("fares").unit, view.feature("n_5m").unit) == ("cents", "")
    assert load(v=text).views["v"].feature("fares").unit == ""


@pytest.mark.parametrize(
    ("window", "hop", "message", "hint"),
    [
        ("29d", "1d", "window 29d is not within", "window: 28d"),
        ("40d", "5h", "window 40d is not within", "window: 670h"),
        ("0s", "1m", "window 0ms is not within", "window: 1m"),
        ("1h", "100ms", "hop 100ms is not within", "hop: 1s"),
        ("7d", "2d", "hop 2d is not within", "hop: 1d"),
        ("90s", "1m", "window 90s is not a multiple", "1m and 2m"),
        ("30s", "1m", "window 30s is not a multiple", "nearest is 1m"),
        ("672h", "23h", "window 28d is not a multiple", "667h"),
        ("28d", "1s", "window 28d has 2,419,200 tiles of 1s", "hop: 50s"),
    ],
)
def test_a_window_that_cannot_be_names_the_nearest_that_can(
    tmp_path: Path, window: str, hop: str, message: str, hint: str
) -> None:
    line = f"  x: {{aggregate: count, window: {window}, hop: {hop}}}\n"
    (found,) = mistakes(write(tmp_path / "c", v=VIEW + line))
    assert message in found and hint in found, found
    hop = hint.removeprefix("hop: ") if hint.startswith("hop") else hop
    for word in re.findall(r"(?<!hop: )\b\d+\w\b", hint) or [window]:
        fixed = f"  x: {{aggregate: count, window: {word}, hop: {hop}}}\n"
        assert load(v=VIEW + fixed).views["v"].feature("x").hop_ms is not None
    assert MAX_TILES >= 28 * 24 * 60, "a month of minutes can be kept"

"""YAML cases of every kind of view: keys of several columns, rows of a batch source, request fields."""

from __future__ import annotations

from pathlib import Path

import pytest

from features import verbs
from tests.features.test_loader import SOURCES, VIEW, mistakes, write
from tests.features.test_source_loader import PAIRED, RATINGS
from tests.features.test_view_loader import ASKED, BATCH_VIEW

PAIR = VIEW.replace("view: v", "view: p").replace("entity: driver", "entity: pair") + "tests: tests/p.yaml\n"
PAIR_CASES = """\
view: p
cases:
  - name: each pair counts for itself
    events:
      - {at: "08:00", zone: 1, driver_id: d-1}
      - {at: "08:01", zone: 1, driver_id: d-2}
      - {at: "08:02", zone: 1}
      - {at: "08:02", zone: 2147483648, driver_id: d-1}
    expect:
      - {key: {zone: 1, driver_id: d-1}, as_of: "08:03", values: {n_5m: 1}}
      - {key: {driver_id: d-2, zone: 1}, as_of: "08:03", values: {n_5m: 1}}
      - {key: {zone: 2, driver_id: d-1}, as_of: "08:03", values: {n_5m: 0}}
"""
ROW_CASES = """\
view: r
cases:
  - name: the latest row that was known stands until it is too old
    rows:
      - {at: "08:00", driver_id: d-1, stars: 4.0}
      - {at: "08:00", ingest: "09:00", driver_id: d-1, stars: 3.5}
      - {at: "07:00", ingest: "10:00", driver_id: d-1, stars: 1.0}
      - {at: "08:00", driver_id: d-2}
    expect:
      - {key: d-1, as_of: "08:30", values: {stars: 4.0, rated: 4.0, good: false}}
      - {key: d-1, as_of: "09:00", values: {stars: 4.0}}
      - {key: d-1, as_of: "11:00", values: {stars: 3.5}, statuses: {stars: present}}
      - {key: d-2, as_of: "08:30", values: {stars: null, rated: 4.5, good: true}, statuses: {stars: "null", rated: default}}
      - {key: d-9, as_of: "08:30", values: {stars: null}, statuses: {stars: missing}}
      - {key: d-1, as_of: "+31d 08:00", values: {stars: null, rated: 4.5}, statuses: {stars: stale}}
"""
ASKED_CASES = """\
view: a
cases:
  - name: metres are a thousandth of a kilometre
    expect:
      - {key: d-1, as_of: "08:00", request: {distance_m: 1500}, values: {km: 1.5}, statuses: {km: present}}
      - {key: d-1, as_of: "08:00", request: {distance_m: 0, minutes: 2}, values: {km: 0.0}}
"""


def catalogue(folder: Path, **cases: str) -> Path:
    sources = SOURCES + RATINGS
    write(folder, entities=PAIRED, sources=sources, p=PAIR, r=BATCH_VIEW, a=ASKED)
    (folder / "tests").mkdir()
    for name, text in {"p": PAIR_CASES, **cases}.items():
        (folder / "tests" / f"{name}.yaml").write_text(text)
    return folder


@pytest.mark.parametrize(("view", "cases"), [("p", PAIR_CASES), ("r", ROW_CASES), ("a", ASKED_CASES)])
def test_cases_of_every_kind_of_view_run_on_the_reference(tmp_path: Path, view: str, cases: str) -> None:
    folder = catalogue(tmp_path / "c", **{view: cases})
    (result,) = verbs.test(folder, view)
    assert [failure.format() for failure in result.failures] == []
    assert result.seconds < 0.1


@pytest.mark.parametrize(
    ("view", "old", "new", "message"),
    [
        ("p", "n_5m: 1", "n_5m: 2", "n_5m is 1, expected 2"),
        ("r", "stars: 3.5}, statuses", "stars: 4.0}, statuses", "stars is 3.5, expected 4.0"),
        ("a", "km: 1.5", "km: 15", "km is 1.5, expected 15"),
    ],
)
def test_a_wrong_expectation_fails_where_it_stands(tmp_path: Path, view: str, old: str, new: str, message: str) -> None:
    cases = {"p": PAIR_CASES, "r": ROW_CASES, "a": ASKED_CASES}[view]
    assert old in cases
    (result,) = verbs.test(catalogue(tmp_path / "c", **{view: cases.replace(old, new, 1)}), view)
    (failure,) = result.failures
    assert failure.message == message and Path(failure.file).name == f"{view}.yaml"


@pytest.mark.parametrize(
    ("view", "old", "new", "message"),
    [
        ("p", "{zone: 1, driver_id: d-1}, as_of", "d-1, as_of", "a key of entity 'pair' has 2 columns"),
        ("p", "{zone: 1, driver_id: d-1}, as_of", "{zone: 1}, as_of", "needs 'driver_id'"),
        ("p", "{zone: 1, driver_id: d-1}, as_of", "{zone: 4294967296, driver_id: d-1}, as_of", "is int32, not 4294967296"),
        ("p", "{zone: 1, driver_id: d-1}, as_of", "{zon: 1, driver_id: d-1}, as_of", "has no field 'zon'"),
        ("r", "rows:", "events:", "a case of a batch view has no field 'events'"),
        ("r", "stars: 4.0}", "starz: 4.0}", "a row has no field 'starz' (did you mean 'stars'?)"),
        ("r", "stars: 4.0}", "stars: many}", "'stars' is double?, not many"),
        ("a", "request: {distance_m: 1500}, ", "", "view 'a' needs the request fields distance_m"),
        ("a", "{distance_m: 1500}", "{distance: 1500}", "has no field 'distance'"),
        ("a", "{distance_m: 1500}", "{distance_m: 1.5}", "'distance_m' is int, not 1.5"),
    ],
)  # fmt: skip
def test_each_mistake_of_a_case_is_named(tmp_path: Path, view: str, old: str, new: str, message: str) -> None:
    cases = {"p": PAIR_CASES, "r": ROW_CASES, "a": ASKED_CASES}[view]
    assert old in cases
    found = mistakes(catalogue(tmp_path / "c", **{view: cases.replace(old, new, 1)}))
    assert any(message in item for item in found), found

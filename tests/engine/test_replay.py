"""Replay of a log: what is equal, what changes and for whom, what is passed over, and the page that shows it."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.replay import Replay, Report
from engine.replay_block import blocks_of
from engine.replay_diff import NO_FILE, TELLING, Histogram
from engine.replay_log import Log, Wanted, read_files
from engine.replay_report import caveats, document, interval, mean_interval, page
from engine.replay_run import replay_one
from engine.report_page import Fold, Page, bars
from engine.strategy import CompiledStrategy
from features.records import Decision, encode
from tests.engine.logged import Logged, changed_sink, sink_log
from tests.engine.support import catalogue_registry, make_live

TOO_FAR = ("eta_s > params.max_eta_s ||", "eta_s > 0.6 * params.max_eta_s ||")


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    return sink_log(tmp_path_factory.mktemp("log"), 150, seed=3)


def replayed(new: CompiledStrategy, logged: Logged, *, at_hand: bool = True) -> Report:
    before = {logged.compiled.strategy.hash: logged.compiled} if at_hand else {}
    replay = Replay(new, before=before, by=("zone", "city"))
    for block in blocks_of(logged.decisions, num_rows=600):
        replay.add(block)
    return replay.report


def test_unchanged_strategy_is_equal(logged: Logged) -> None:
    report = replayed(logged.compiled, logged)
    assert (report.outcome, report.same.decisions, report.same.differing) == ("equal", 150, 0)
    assert report.same.candidates == report.candidates == sum(len(one.candidate_ids) for one in logged.decisions)


def test_unchanged_strategy_that_comes_to_something_else_is_broken(logged: Logged) -> None:
    at = next(at for at, one in enumerate(logged.decisions) if one.chosen is not None)
    wrong = msgspec.structs.replace(logged.decisions[at], chosen=None)
    report = replayed(logged.compiled, Logged(logged.live, [*logged.decisions[:at], wrong]))
    assert (report.outcome, report.same.differing, dict(report.same.parts)) == ("broken", 1, {"chosen": 1})


def test_counts_of_a_changed_strategy_are_those_of_one_decision_at_a_time(logged: Logged, tmp_path: Path) -> None:
    new = changed_sink(tmp_path, TOO_FAR, ("add: 0.25", "add: 0.9"))
    live = make_live(new, catalogue_registry())
    diff = replayed(new, logged).diff
    again = [replay_one(live, one) for one in logged.decisions]
    pairs = list(zip(logged.decisions, again, strict=True))
    rows = [(a, b, row) for a, b in pairs for row in range(len(a.candidate_ids))]
    assert diff.decisions == 150
    assert diff.chosen_changed == sum(a.chosen != b.chosen for a, b in pairs)
    assert diff.newly_dropped == sum(a.survivors[row] and not b.survivors[row] for a, b, row in rows)
    assert diff.rules["too_far"].newly_dropped == sum(
        a.survivors[row] and b.reasons[row] == "too_far" for a, b, row in rows
    )
    bit = [rule.id for rule in new.strategy.rules].index("vip_bonus")
    assert diff.rules["vip_bonus"].fired_then == sum(a.fired[row] >> bit & 1 for a, _, row in rows)
    assert diff.rules["vip_bonus"].fired_now == sum(b.fired[row] >> bit & 1 for _, b, row in rows)
    moved = [0.5 * sum(abs(p - q) for p, q in zip(a.propensities, b.propensities, strict=True)) for a, b in pairs]
    assert diff.moved == pytest.approx(sum(moved), rel=1e-12)
    both = [b.scores[row] - a.scores[row] for a, b, row in rows if a.survivors[row] and b.survivors[row]]  # type: ignore[operator]
    assert diff.shift.count == len(both)
    assert diff.shift.counts.sum() + diff.shift.below + diff.shift.above == sum(one != 0.0 for one in both)
    zones = diff.groups["zone"]
    assert sum(group.decisions for group in zones.values()) == 150
    assert sum(group.changed for group in zones.values()) == diff.first_changed == sum(diff.causes.values())
    assert sum(group.changed for group in diff.hours.values()) == diff.first_changed
    assert len(diff.hours) == len({one.as_of_ms // 3_600_000 for one in logged.decisions})


def test_without_the_file_of_the_old_version_nothing_is_attributed(logged: Logged, tmp_path: Path) -> None:
    diff = replayed(changed_sink(tmp_path, TOO_FAR), logged, at_hand=False).diff
    assert diff.first_changed and dict(diff.causes) == {NO_FILE: diff.first_changed}
    assert not any(rule.there_then for rule in diff.rules.values())


def test_change_that_moves_no_first_choice_still_moves_mass(logged: Logged, tmp_path: Path) -> None:
    report = replayed(changed_sink(tmp_path, ("temperature: 0.3", "temperature: 3.0")), logged)
    assert (report.diff.first_changed, report.outcome) == (0, "changed")
    assert report.diff.moved > 1.0


def test_comment_alone_changes_nothing(logged: Logged, tmp_path: Path) -> None:
    report = replayed(changed_sink(tmp_path, ("let:", "let:  # named values")), logged)
    assert (report.outcome, report.diff.decisions, report.diff.moved) == ("equal", 150, 0.0)


def test_decisions_of_another_strategy_are_refused(logged: Logged, tmp_path: Path) -> None:
    new = changed_sink(tmp_path, ("strategy: kitchen_sink", "strategy: other"))
    (block,) = blocks_of(logged.decisions[:3])
    with pytest.raises(ValueError, match="decisions of kitchen_sink, not of other"):
        Replay(new).add(block)
    named = Replay(new, of="kitchen_sink")
    named.add(block)
    assert named.report.decisions == 3


def test_what_is_left_out_is_counted_and_said(logged: Logged, tmp_path: Path) -> None:
    new = changed_sink(
        tmp_path,
        ("fare_cents: int", "fare_cents: {type: int, min: 0, max: 2000}"),
        ("hour: int, note: 'string?'}", "hour: int, note: 'string?', surge: double}"),
        ("eta_s > params.max_eta_s ||", "surge > 2.0 && state == 'idle' ||"),
    )
    report = replayed(new, logged)
    high = sum(one.request["fare_cents"] > 2000 for one in logged.decisions)
    assert dict(report.refused) == {"request field fare_cents is out of its bounds": high}
    assert set(report.lacking) == {"request field surge: the log has none"}
    assert report.unresolved + report.diff.decisions + high == 150 and report.unresolved > 0
    said = " ".join(caveats(document(report)))
    assert f"{report.unresolved} decisions are left out" in said and f"{high} decisions are left out" in said


def test_orders_that_show_most_are_of_every_cause(logged: Logged, tmp_path: Path) -> None:
    diff = replayed(
        changed_sink(
            tmp_path, TOO_FAR, ("add: 0.25", "add: 0.9"), ("default: 0.5, layer: core", "default: 2.0, layer: core")
        ),
        logged,
    ).diff
    assert len(diff.telling) == min(TELLING, diff.first_changed)
    assert {one.cause for one in diff.telling} == set(diff.causes)
    for one in diff.telling:
        assert one.decision in logged.decisions and one.then != one.now


def lines(decisions: list[Decision]) -> bytes:
    return b"".join(encode(one) + b"\n" for one in decisions)


def test_log_is_read_folded_and_filtered(logged: Logged, tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    first.write_bytes(lines(logged.decisions[:40]) + b'\n{"half": \n')
    with gzip.open(second, "wb") as file:
        file.write(lines(logged.decisions[30:60]))
    other = msgspec.structs.replace(logged.decisions[0], strategy="another", decision_id="x")
    broken = msgspec.structs.replace(logged.decisions[0], scores=[], decision_id="y")
    with first.open("ab") as file:
        file.write(lines([other, broken]))
    log = Log(read_files([first, second]), Wanted(strategy="kitchen_sink"))
    assert [one.decision_id for one in log] == [one.decision_id for one in logged.decisions[:60]]
    assert (log.read, log.taken, log.others, log.duplicates, log.num_unreadable) == (73, 60, 1, 10, 2)
    assert log.unreadable[0].startswith(f"{first}:42: $: not JSON")
    assert (
        log.unreadable[1] == f"{first}:44: decision y: scores has 0 entries for {len(broken.candidate_ids)} candidates"
    )
    times = [one.as_of_ms for one in logged.decisions[:60]]
    wanted = Wanted(strategy="kitchen_sink", from_ms=times[10], to_ms=times[20], limit=7)
    assert [one.as_of_ms for one in Log(read_files([first, second]), wanted)] == times[10:17]
    with pytest.raises(ValueError, match="no time between"):
        Wanted(strategy="x", from_ms=2, to_ms=2)


def test_intervals() -> None:
    assert interval(0, 0) == (0.0, 1.0)
    low, high = interval(5, 100)  # Wilson 1927 by hand: 0.0215, 0.1118
    assert (round(low, 4), round(high, 4)) == (0.0215, 0.1118)
    assert interval(0, 50)[0] == 0.0 and interval(50, 50)[1] == 1.0
    mean, low, high = mean_interval(30.0, 20.0, 100)
    assert (mean, round(low, 5), round(high, 5)) == (0.3, 0.235, 0.365)


def test_histogram_counts_every_value_once() -> None:
    rng = np.random.default_rng(5)
    histogram = Histogram()
    for batch in (np.zeros(10), rng.normal(size=1000), rng.normal(size=1000) * 50, np.array([np.inf, np.nan, 1e300])):
        histogram.add(batch)
    assert histogram.count == 2011 and histogram.zero == 10
    assert histogram.counts.sum() + histogram.below + histogram.above == 2001


def test_page_holds_what_the_document_says(logged: Logged, tmp_path: Path) -> None:
    new = changed_sink(tmp_path, TOO_FAR)
    report = replayed(new, logged)
    text = page(report, new, {logged.compiled.strategy.hash: logged.compiled}, "changed.yaml").html()
    found = document(report)["changed"]
    assert f"{100 * found['first_choice']['share']:.2f} %" in text
    assert all(one["decision_id"] in text for one in found["telling"]) and found["telling"]
    assert "dropped by rule too_far because eta_s &gt; 0.6 * params.max_eta_s" in text
    outside = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"<(link|img|iframe)|src=|href=|@import|url\(", outside), "a page needs no network"
    assert msgspec.json.decode(msgspec.json.encode(document(report)))["outcome"] == "changed"


def test_page_reads_nothing_of_what_it_is_given_as_html() -> None:
    bad = "</script><script>alert(1)</script>"
    out = Page(bad, bad)
    out.text(bad)
    out.chart(bad, bars([bad], [1]), note=bad)
    out.table(bad, [{bad: bad}], note=bad)
    out.folds(bad, [Fold(bad, [bad], bad)], note=bad)
    text = out.html()
    assert "alert(1)" in text and bad not in text
    assert text.count("<script>") == text.count("</script>") == 2

"""Kill switches: which decisions and rules a target reaches, and a file that is never misread as "nothing is killed"."""

from __future__ import annotations

import json
import multiprocessing
import random
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from engine.client import EngineClient, EngineError
from engine.files import read_notes
from engine.reload import Library, LibraryConfig
from engine.strategy import CompiledStrategy
from engine.switch_watch import SwitchWatch
from engine.switches import (
    SWITCHES,
    Known,
    Switch,
    SwitchError,
    Switches,
    Target,
    find_problem,
    kill,
    parse_target,
    read_switches,
    revive,
)
from features.files import write_whole
from features.registry import Registry
from tests.engine.running import Engine
from tests.engine.support import AS_OF_MS, catalogue_registry, compile_text
from tests.engine.test_decision_log import wait_until

TEXT = """
strategy: one
version: 1
request: {hour: int}
candidates: {key: id, fields: {eta_s: double}}
rules:
  - {id: far, drop_when: eta_s > 600.0}
  - {id: near, when: eta_s < 60.0, add: 1.0}
  - {id: night, when: hour < 5, add: 2.0}
score: 0.0 - eta_s
"""
KNOWN = [
    Known(name="one", rules=("far", "near", "night"), kill_switches=("ks.far", "ks.far")),
    Known(name="two", city="nyc"),
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> CompiledStrategy:
    made = compile_text(TEXT, tmp_path_factory.mktemp("s"), catalogue_registry())
    rules = tuple(replace(r, kill_switch="" if r.id == "near" else "ks.far") for r in made.strategy.rules)
    return replace(made, strategy=replace(made.strategy, rules=rules))


def switches(*targets: str) -> Switches:
    return Switches(killed={t: Switch(target=t, actor="ann", reason="why", at_ms=5) for t in targets})


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("strategy:one", Target(kind="strategy", name="one")),
        ("strategy:one@nyc", Target(kind="strategy", name="one", city="nyc")),
        ("city:new york", Target(kind="city", city="new york")),
        ("rule:one/far", Target(kind="rule", name="one", rule="far")),
        ("rule:one/far@nyc", Target(kind="rule", name="one", rule="far", city="nyc")),
        ("switch:ks.far", Target(kind="switch", name="ks.far")),
    ],
)
def test_targets_are_read_as_written(text: str, target: Target) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("strategi:one", "did you mean 'strategy:'?"),
        ("one", "write strategy:NAME"),
        ("", "write strategy:NAME"),
        ("strategy:", "is no target"),
        ("strategy:one@", "names nothing"),
        ("rule:one", "names nothing"),
        ("rule:/far", "names nothing"),
    ],
)
def test_what_is_no_target_is_refused_with_the_shapes(text: str, said: str) -> None:
    with pytest.raises(SwitchError, match=said.replace("?", r"\?")):
        parse_target(text)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("strategy:on", "did you mean 'one'?"),
        ("rule:one/fare", "has no rule 'fare'; did you mean 'far'?"),
        ("rule:two/far", "strategy 'two' has no rule 'far'; there are: none"),
        ("switch:ks.fat", "did you mean 'ks.far'?"),
        ("strategy:two@sf", "no strategy serves city 'sf'"),
        ("strategy:one@sf", None),
        ("city:sf", None),
        ("rule:one/night@sf", None),
        ("switch:ks.far", None),
    ],
)
def test_a_target_that_reaches_nothing_is_found(target: str, said: str | None) -> None:
    found = find_problem(parse_target(target), KNOWN)
    assert (found is None) if said is None else (found is not None and said in found)


def test_killed_bits_are_those_of_the_rules_by_id_and_by_switch(compiled: CompiledStrategy) -> None:
    for targets, city, bits in (
        ((), "nyc", 0b000),
        (("rule:one/near",), "nyc", 0b010),
        (("rule:two/near",), "nyc", 0b000),
        (("switch:ks.far",), "nyc", 0b101),
        (("switch:", "strategy:one"), "nyc", 0b000),
        (("rule:one/near@nyc", "switch:ks.far@sf"), "nyc", 0b010),
        (("rule:one/near@nyc", "switch:ks.far@sf"), "sf", 0b101),
        (("rule:one/near@nyc", "rule:one/far"), "la", 0b001),
    ):
        made = switches(*[t for t in targets if t != "switch:"])
        for _ in range(2):  # the second look comes from what the first one kept
            assert made.killed_bits(compiled, city) == bits, (targets, city)


def test_a_strategy_is_killed_everywhere_or_in_a_city() -> None:
    made = switches("strategy:one@nyc", "city:sf", "strategy:two")
    killed = {(s, c): made.kills(s, c) is not None for s in ("one", "two", "three") for c in ("nyc", "sf", "la")}
    assert {pair for pair, dead in killed.items() if dead} == {
        ("one", "nyc"), ("one", "sf"), ("two", "nyc"), ("two", "sf"), ("two", "la"), ("three", "sf"),
    }  # fmt: skip
    assert Switches().kills("one", "nyc") is None


def test_kill_and_revive_are_kept_with_who_when_and_why(tmp_path: Path) -> None:
    assert read_switches(tmp_path).killed == {}
    first = kill(tmp_path, "rule:one/far", actor="ann", reason="drops everybody", now_ms=7)
    assert kill(tmp_path, "rule:one/far", actor="bob", reason="me too", now_ms=8) == first  # the first one stands
    kill(tmp_path, "city:nyc", actor="bob", reason="flood — überall", now_ms=9)
    assert list(read_switches(tmp_path).killed) == ["rule:one/far", "city:nyc"]
    assert read_switches(tmp_path).killed["rule:one/far"] == first
    assert revive(tmp_path, "rule:one/far", actor="ann", reason="repaired", now_ms=10) == first
    assert revive(tmp_path, "rule:one/far", actor="ann", reason="repaired", now_ms=11) is None
    assert list(read_switches(tmp_path).killed) == ["city:nyc"]
    assert [(n["event"], n["target"], n["actor"], n["reason"], n["at_ms"]) for n in read_notes(tmp_path)] == [
        ("kill", "rule:one/far", "ann", "drops everybody", 7),
        ("kill", "city:nyc", "bob", "flood — überall", 9),
        ("revive", "rule:one/far", "ann", "repaired", 10),
    ]


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"{}", b'{"killed": [{"target": "city:nyc"}]}', b"\xff", b'{"killed": [], "off": []}',
     b'{"killed": [{"target": "citi:nyc", "actor": "a", "reason": "r", "at_ms": 1}]}'],
)  # fmt: skip
def test_a_file_that_makes_no_sense_is_an_error_and_is_not_overwritten(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / SWITCHES).write_bytes(raw)
    with pytest.raises(SwitchError, match="repair it by hand"):
        read_switches(tmp_path)
    with pytest.raises(SwitchError):
        kill(tmp_path, "city:nyc", actor="ann", reason="r", now_ms=1)
    assert (tmp_path / SWITCHES).read_bytes() == raw


def test_a_folder_in_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / SWITCHES).mkdir()
    with pytest.raises(SwitchError, match="cannot be read"):
        read_switches(tmp_path)


def test_an_audit_line_that_died_half_way_spoils_no_other(tmp_path: Path) -> None:
    kill(tmp_path, "city:nyc", actor="ann", reason="r", now_ms=1)
    with (tmp_path / "audit.jsonl").open("a") as file:
        file.write('{"event": "ki')
    kill(tmp_path, "city:sf", actor="ann", reason="r", now_ms=2)
    assert [n["target"] for n in read_notes(tmp_path)] == ["city:nyc", "city:sf"]


def _many(folder: Path, worker: int, count: int) -> None:
    for number in range(count):
        kill(folder, f"city:{worker}-{number}", actor=str(worker), reason="r", now_ms=number)


def test_concurrent_kills_all_land_and_readers_always_see_a_whole_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_many, args=(tmp_path, worker, 20)) for worker in range(3)]
    for worker in workers:
        worker.start()
    seen = 0
    while any(worker.is_alive() for worker in workers):
        found = len(read_switches(tmp_path).killed)  # raises for half a file
        assert found >= seen
        seen = found
    for worker in workers:
        worker.join()
    assert len(read_switches(tmp_path).killed) == len(read_notes(tmp_path)) == 60


def test_any_set_of_switches_survives_the_file(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    rng = random.Random(seed)
    pool = [f"{kind}:{name}" for kind in ("strategy", "city", "switch") for name in ("a", "b@c", "ü", "x y")]
    chosen = rng.sample(pool, 6)
    for target in chosen:
        kill(
            tmp_path, target, actor="ann", reason=rng.choice(["", '"quoted"', "line\nbreak"]), now_ms=rng.randrange(99)
        )
    assert list(read_switches(tmp_path).killed) == chosen
    assert len(json.loads((tmp_path / SWITCHES).read_text())["killed"]) == 6


def test_a_watch_without_a_good_file_knows_nothing_and_with_one_keeps_it(tmp_path: Path) -> None:
    (tmp_path / SWITCHES).write_text("{")
    watch = SwitchWatch(tmp_path)
    watch.refresh()
    assert watch.switches is None and "repair it by hand" in watch.error
    (tmp_path / SWITCHES).unlink()  # nothing was ever known to be off
    watch.refresh()
    assert watch.switches is not None and watch.error == ""
    kill(tmp_path, "city:nyc", actor="ann", reason="r", now_ms=1)
    watch.refresh()
    good = watch.switches
    assert list(good.killed) == ["city:nyc"]
    (tmp_path / SWITCHES).write_text("{")
    watch.refresh()
    assert watch.switches is good and "repair it by hand" in watch.error
    (tmp_path / SWITCHES).unlink()  # gone is not the same as revived
    watch.refresh()
    assert watch.switches is good and "is gone; its 1 switches stay off" in watch.error
    write_whole(tmp_path / SWITCHES, b'{"killed": []}')
    watch.refresh()
    assert watch.switches is not None and dict(watch.switches.killed) == {} and watch.error == ""


def test_a_look_at_an_unchanged_file_reads_nothing(tmp_path: Path) -> None:
    kill(tmp_path, "city:nyc", actor="ann", reason="r", now_ms=1)
    watch = SwitchWatch(tmp_path)
    watch.refresh()
    first = watch.switches
    watch.refresh()
    assert watch.switches is first


SENT = {
    "order_id": "o-1", "as_of_ms": AS_OF_MS, "city": "nyc", "product": "pool",
    "request": {"pickup_zone": 7, "fare_cents": 2000, "hour": 9},
    "candidates": {"coupon_id": ["none", "c2", "c9"], "value_cents": [0, 200, 900]},
}  # fmt: skip


def refused(client: EngineClient, **changes: str) -> EngineError | None:
    try:
        client.decide("rider_coupon", SENT | changes)
    except EngineError as error:
        return error
    return None


def test_kills_are_live_within_a_second_on_a_running_engine(engine: Engine, client: EngineClient) -> None:
    folder = engine.strategies
    assert client.decide("rider_coupon", SENT)["reasons"][2] == "above_share"
    for target, dead in (("strategy:rider_coupon", True), ("strategy:rider_coupon@nyc", False), ("city:nyc", False)):
        killed_at = time.monotonic()
        kill(folder, target, actor="ann", reason="it pays too much", now_ms=1_700_000_000_000)
        wait_until(lambda: refused(client) is not None)
        assert time.monotonic() - killed_at < 1.0
        error = refused(client)
        assert error is not None and (error.status, error.code) == (503, "killed")
        assert f"{target} is switched off by ann since 2023-11-14 22:13:20 UTC: it pays too much" in error.message
        assert (refused(client, city="sf") is not None) == dead  # only its own city
        revive(folder, target, actor="ann", reason="r", now_ms=2)
        wait_until(lambda: refused(client) is None)
    kill(folder, "rule:rider_coupon/above_share", actor="ann", reason="r", now_ms=3)
    wait_until(lambda: client.decide("rider_coupon", SENT)["reasons"][2] is None)
    assert engine.decisions()[-1].killed == ["above_share"]
    metrics = engine.app.metrics.text().decode()
    assert 'hailstream_killed_requests_total{strategy="rider_coupon",target="city:nyc"}' in metrics
    assert 'hailstream_killed_rules_total{rule="above_share",strategy="rider_coupon"}' in metrics
    assert "hailstream_switches 1.0" in metrics
    (switch,) = client.strategies()["switches"]
    assert (switch["target"], switch["actor"]) == ("rule:rider_coupon/above_share", "ann")


def test_a_registry_that_hangs_holds_up_no_kill(tmp_path: Path) -> None:
    hang, asked = threading.Event(), threading.Event()

    def fetch() -> Registry:
        if library.live.strategies:
            asked.set()
            hang.wait(30)
        return catalogue_registry()

    (tmp_path / "one.yaml").write_text(TEXT)
    library = Library(
        LibraryConfig(strategies_dir=tmp_path, models_dir=tmp_path, poll_s=0.01, registry_poll_s=0.01), fetch
    )
    library.start()
    try:
        assert asked.wait(5)
        killed_at = time.monotonic()
        kill(tmp_path, "city:nyc", actor="ann", reason="r", now_ms=1)
        wait_until(lambda: library.live.switches is not None and library.live.switches.kills("one", "nyc") is not None)
        assert time.monotonic() - killed_at < 1.0
        assert set(library.live.strategies) == {"one"}
    finally:
        hang.set()
        library.stop()


def test_an_engine_that_never_could_read_its_switches_decides_nothing(
    engine: Engine, client: EngineClient, tmp_path: Path
) -> None:
    (engine.strategies / SWITCHES).write_text("{")
    wait_until(lambda: SWITCHES in engine.library.live.errors)
    assert refused(client) is None  # the last good ones stay
    fresh = Library(engine.library.config, engine.library._fetch_registry)
    fresh.refresh()
    engine.app.library = fresh
    error = refused(client)
    assert error is not None and (error.status, error.code) == (503, "switches_unreadable")
    with pytest.raises(EngineError, match="repair it by hand"):
        client.wait_ready(0.0)
    (engine.strategies / SWITCHES).write_text('{"killed": []}')
    fresh.refresh()
    client.wait_ready(0.0)
    assert refused(client) is None

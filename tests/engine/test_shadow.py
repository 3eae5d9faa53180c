"""Shadows: the same request, the same served features, a Decision of their own, and nobody's answer is touched."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from engine.client import EngineClient, EngineError
from engine.decide import decide
from engine.feature_source import FeatureSource
from engine.inputs import LiveStrategy
from engine.metrics import Metrics
from engine.reload import Library, LibraryConfig
from engine.request import parse
from engine.shadow import Answered, ShadowRunner, first_choice
from engine.shadow_fit import find_misfit, request_for
from engine.switches import Switch, Switches, kill
from features.expr import parse_type
from features.read_plan import ReadPlan
from features.records import Decision, decode
from features.rows import FeatureBatch
from features.spec import Key
from features.topics import SHADOW_DECISIONS
from infra.cli import app
from tests.engine.running import Engine
from tests.engine.support import (
    AS_OF_MS,
    KITCHEN_SINK,
    RandomFeatures,
    catalogue_registry,
    compile_text,
    make_live,
    random_body,
)
from tests.engine.test_decision_log import wait_until

REGISTRY = catalogue_registry()
NO_SWITCHES = Switches()


class Sender:
    """A broker in memory that acknowledges on poll. `broken` makes every send raise, `away` never acknowledges."""

    def __init__(self, *, broken: bool = False, away: bool = False) -> None:
        self.broken, self.away = broken, away
        self.kept: list[Decision] = []
        self._callbacks: list[Callable[[str | None], None]] = []

    def send(
        self, topic: str, key: str | bytes, value: bytes, *, on_delivery: Callable[[str | None], None] | None = None
    ) -> None:
        if self.broken:
            raise RuntimeError("no broker")
        decision = decode(value, Decision)
        assert topic == SHADOW_DECISIONS and key == decision.order_id and on_delivery is not None
        self.kept.append(decision)
        self._callbacks.append(on_delivery)

    def poll(self, timeout_s: float = 0.0) -> None:
        while self._callbacks and not self.away:
            self._callbacks.pop()(None)


class Store:
    """Counts the reads that reach the store."""

    def __init__(self, inner: RandomFeatures) -> None:
        self.inner, self.reads = inner, 0

    def read(self, plan: ReadPlan, keys: Mapping[str, Sequence[Key]], as_of_ms: int) -> dict[str, FeatureBatch] | None:
        self.reads += 1
        return self.inner.read(plan, keys, as_of_ms)


class Blocked(Store):
    """A store that answers only once it is let go."""

    def __init__(self, inner: RandomFeatures) -> None:
        super().__init__(inner)
        self.free = False

    def read(self, plan: ReadPlan, keys: Mapping[str, Sequence[Key]], as_of_ms: int) -> dict[str, FeatureBatch] | None:
        self.reads += 1
        wait_until(lambda: self.free)
        return self.inner.read(plan, keys, as_of_ms)


@pytest.fixture
def main(tmp_path: Path) -> LiveStrategy:
    return make_live(compile_text(KITCHEN_SINK, tmp_path, REGISTRY), REGISTRY)


def shadow_of(folder: Path, *changes: tuple[str, str], name: str = "dark") -> LiveStrategy:
    text = KITCHEN_SINK.replace("strategy: kitchen_sink", f"strategy: {name}\nshadow_of: kitchen_sink")
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return make_live(compile_text(text, folder, REGISTRY, f"{name}.yaml"), REGISTRY)


@pytest.fixture
def runner_of() -> Iterator[Callable[..., ShadowRunner]]:
    made: list[ShadowRunner] = []

    def make(source: Any, sender: Sender | None, **options: Any) -> ShadowRunner:
        made.append(ShadowRunner(source, (lambda: sender) if sender else None, Metrics(), **options))
        return made[-1]

    yield make
    for runner in made:
        runner.close(0.0)


def answered(
    main: LiveStrategy, *shadows: LiveStrategy, seed: int = 1, down: bool = False, switches: Switches = NO_SWITCHES
) -> Answered:
    rng = random.Random(seed)
    request = parse(main.compiled, msgspec.json.encode(random_body(rng, main.compiled, 20)))
    decision = decide(main, request, RandomFeatures(main.compiled, seed, down=down))
    return Answered(shadows=shadows, live=main, request=request, decision=decision, switches=switches)


def computed(runner: ShadowRunner, sender: Sender, count: int = 1) -> list[Decision]:
    wait_until(lambda: len(sender.kept) >= count and runner.delivered >= count)
    return sender.kept


def plain(decision: Decision) -> Decision:
    """Without what says whose decision it is."""
    return msgspec.structs.replace(
        decision, strategy="", strategy_hash="", shadow_of=None, salt="", chosen=None, decided_by="rank"
    )


def test_a_shadow_that_is_the_same_decides_the_same_without_reading_again(
    main: LiveStrategy, tmp_path: Path, runner_of: Callable[..., ShadowRunner]
) -> None:
    salted = ("temperature: 0.3", "temperature: 0.3, salt: kitchen_sink")
    shadow = shadow_of(tmp_path, salted)
    sender, store = Sender(), Store(RandomFeatures(main.compiled, 99))
    runner = runner_of(store, sender)
    given = [answered(main, shadow, seed=seed) for seed in range(20)]
    for one in given:
        runner.offer(one)
    found = computed(runner, sender, 20)
    assert store.reads == 0
    for one, decision in zip(given, found, strict=True):
        assert decision.shadow_of == "kitchen_sink" and decision.strategy == "dark"
        assert decision.decision_id == one.decision.decision_id
        assert decision.features == one.decision.features  # byte for byte what was served
        if decision.arms == one.decision.arms:  # the salt of an experiment holds the strategy's name by default
            assert plain(decision) == plain(one.decision)
    assert runner.counts["dark"].decided == 20


def test_agreement_is_of_the_first_choice(
    main: LiveStrategy, tmp_path: Path, runner_of: Callable[..., ShadowRunner]
) -> None:
    shadow = shadow_of(tmp_path, ("(1.0 - eta_s / params.max_eta_s)", "(0.0 - 1.0 - eta_s / params.max_eta_s * 0.001)"))
    sender = Sender()
    runner = runner_of(RandomFeatures(main.compiled, 1), sender)
    given = [answered(main, shadow, seed=seed) for seed in range(30)]
    for one in given:
        runner.offer(one)
    found = computed(runner, sender, 30)
    same = sum(
        first_choice(one.decision, main.compiled.strategy) == first_choice(decision, shadow.compiled.strategy)
        for one, decision in zip(given, found, strict=True)
    )
    count = runner.counts["dark"]
    assert (count.decided, count.agreed) == (30, same)
    assert 0 < same < 30
    text = runner._metrics.text().decode()
    line = f'hailstream_shadow_decisions_total{{agrees="true",shadow="dark",strategy="kitchen_sink"}} {float(same)}'
    assert line in text
    assert f'hailstream_shadow_agreement{{shadow="dark"}} {same / 30}' in text


def test_first_choice_is_the_best_ranked_whoever_was_drawn(main: LiveStrategy) -> None:
    for seed in range(30):
        one = answered(main, seed=seed)
        best = first_choice(one.decision, main.compiled.strategy)
        scores = one.decision.scores
        known = [score for score in scores if score is not None]
        if not known:
            assert best is None
            continue
        assert best is not None
        assert scores[one.decision.candidate_ids.index(best)] == max(known)
        if one.decision.decided_by == "rank":
            assert one.decision.chosen is not None and one.decision.candidate_ids[one.decision.chosen] == best


def test_a_shadow_with_another_view_reads_the_store_itself(
    main: LiveStrategy, tmp_path: Path, runner_of: Callable[..., ShadowRunner]
) -> None:
    shadow = shadow_of(
        tmp_path, ("  to: {view: zone_stats, key: drop_zone}\n", "  to: {view: zone_stats, key: hour}\n")
    )
    sender = Sender()
    store = Store(RandomFeatures(shadow.compiled, 5))
    runner = runner_of(store, sender)
    runner.offer(answered(main, shadow))
    (decision,) = computed(runner, sender)
    assert store.reads == 1 and set(decision.features) == {"driver", "zone", "to"}


def test_a_role_by_another_name_is_the_same_role(
    main: LiveStrategy, tmp_path: Path, runner_of: Callable[..., ShadowRunner]
) -> None:
    shadow = shadow_of(tmp_path, ("  to: {view", "  target: {view"), ("to.requests", "target.requests"))
    sender, store = Sender(), Store(RandomFeatures(main.compiled, 5))
    runner = runner_of(store, sender)
    one = answered(main, shadow)
    runner.offer(one)
    (decision,) = computed(runner, sender)
    assert store.reads == 0 and decision.features["target"] == one.decision.features["to"]


def test_when_the_store_was_away_it_is_away_for_the_shadow(
    main: LiveStrategy, tmp_path: Path, runner_of: Callable[..., ShadowRunner]
) -> None:
    sender, store = Sender(), Store(RandomFeatures(main.compiled, 5))
    runner = runner_of(store, sender)
    runner.offer(answered(main, shadow_of(tmp_path), down=True))
    (decision,) = computed(runner, sender)
    assert (decision.decided_by, store.reads) == ("fallback", 0)


def test_a_shadow_stands_aside_while_a_request_is_decided(
    main: LiveStrategy, tmp_path: Path, runner_of: Callable[..., ShadowRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.shadow.MAX_YIELD_S", 60.0)
    sender = Sender()
    runner = runner_of(RandomFeatures(main.compiled, 1), sender)
    runner.stand_aside()
    runner.offer(answered(main, shadow_of(tmp_path)))
    wait_until(lambda: runner._waiting.empty())  # the thread has it and waits
    assert runner.counts == {} and sender.kept == []
    runner.go_on()
    computed(runner, sender)


def test_under_full_load_a_shadow_goes_on_slowly(
    main: LiveStrategy, tmp_path: Path, runner_of: Callable[..., ShadowRunner]
) -> None:
    sender = Sender()
    runner = runner_of(RandomFeatures(main.compiled, 1), sender)
    runner.stand_aside()  # and never quiet again
    runner.offer(answered(main, shadow_of(tmp_path)))
    computed(runner, sender)


def test_what_is_too_much_is_dropped_at_once_and_counted(
    main: LiveStrategy, tmp_path: Path, runner_of: Callable[..., ShadowRunner]
) -> None:
    shadow = shadow_of(
        tmp_path, ("  to: {view: zone_stats, key: drop_zone}\n", "  to: {view: zone_stats, key: hour}\n")
    )
    sender, store = Sender(), Blocked(RandomFeatures(shadow.compiled, 5))
    runner = runner_of(store, sender, max_waiting=3)
    one = answered(main, shadow)
    runner.offer(one)
    wait_until(lambda: store.reads == 1)  # the thread is busy with it
    started = time.monotonic()
    for _ in range(50):
        runner.offer(one)
    assert time.monotonic() - started < 1.0  # nobody waited for the store
    assert runner.counts["dark"].undecided == {"full": 47}
    store.free = True
    computed(runner, sender, 4)


@pytest.mark.parametrize("target", ["strategy:dark", "city:nyc", "strategy:dark@nyc"])
def test_a_killed_shadow_decides_nothing(
    main: LiveStrategy, tmp_path: Path, runner_of: Callable[..., ShadowRunner], target: str
) -> None:
    killed = Switches(killed={target: Switch(target=target, actor="a", reason="r", at_ms=1)})
    sender = Sender()
    runner = runner_of(RandomFeatures(main.compiled, 1), sender)
    runner.offer(answered(main, shadow_of(tmp_path), switches=killed))
    wait_until(lambda: runner.counts.get("dark") is not None and bool(runner.counts["dark"].undecided))
    assert runner.counts["dark"].undecided == {"killed": 1} and sender.kept == []


def test_a_killed_rule_of_the_shadow_does_not_exist_there(
    main: LiveStrategy, tmp_path: Path, runner_of: Callable[..., ShadowRunner]
) -> None:
    target = "rule:dark/not_idle"
    killed = Switches(killed={target: Switch(target=target, actor="a", reason="r", at_ms=1)})
    sender = Sender()
    runner = runner_of(RandomFeatures(main.compiled, 1), sender)
    runner.offer(answered(main, shadow_of(tmp_path), switches=killed))
    (decision,) = computed(runner, sender)
    assert decision.killed == ["not_idle"] and "not_idle" not in decision.reasons


def test_requests_outside_of_its_scope_are_counted_and_harm_nothing(
    main: LiveStrategy, tmp_path: Path, runner_of: Callable[..., ShadowRunner]
) -> None:
    sender = Sender()
    runner = runner_of(RandomFeatures(main.compiled, 1), sender)
    far = shadow_of(tmp_path, ("city: '*'", "city: sf"), name="far")
    runner.offer(answered(main, far, shadow_of(tmp_path)))
    (decision,) = computed(runner, sender)
    assert decision.strategy == "dark" and runner.counts["far"].undecided == {"refused": 1}


def test_a_shadow_that_raises_is_counted_and_the_next_is_computed(
    main: LiveStrategy, tmp_path: Path, runner_of: Callable[..., ShadowRunner]
) -> None:
    class Broken:
        def before(self, *_: object) -> Any:
            raise ZeroDivisionError

        after = before

    sender = Sender()
    runner = runner_of(RandomFeatures(main.compiled, 1), sender)
    runner.offer(answered(main, replace(shadow_of(tmp_path, name="bad"), rules=Broken()), shadow_of(tmp_path)))
    (decision,) = computed(runner, sender)
    assert decision.strategy == "dark" and runner.counts["bad"].undecided == {"failed": 1}


def test_a_broker_that_is_away_loses_and_counts(
    main: LiveStrategy, tmp_path: Path, runner_of: Callable[..., ShadowRunner]
) -> None:
    now = [0.0]
    sender = Sender(broken=True)
    runner = runner_of(RandomFeatures(main.compiled, 1), sender, clock=lambda: now[0])
    one = answered(main, shadow_of(tmp_path))
    for lost in (1, 2, 3):  # the first one raises, the others meet the pause
        runner.offer(one)
        wait_until(lambda lost=lost: runner.lost == lost)  # type: ignore[misc]
    sender.broken = False
    now[0] += 5.0
    runner.offer(one)
    computed(runner, sender)
    assert (runner.sent, runner.delivered, runner.lost, runner.counts["dark"].decided) == (4, 1, 3, 4)


def test_another_version_of_a_shadow_counts_anew(
    main: LiveStrategy, tmp_path: Path, runner_of: Callable[..., ShadowRunner]
) -> None:
    sender = Sender()
    runner = runner_of(RandomFeatures(main.compiled, 1), sender)
    first, second = shadow_of(tmp_path), shadow_of(tmp_path, ("version: 3", "version: 4"))
    for shadow in (first, first, second):
        runner.offer(answered(main, shadow))
    computed(runner, sender, 3)
    assert runner.counts["dark"].decided == 1


@pytest.mark.parametrize(
    ("field", "kind", "said"),
    [
        ("request.hour", "int", None),
        ("request.hour", "int?", None),
        ("request.extra", "double?", None),
        ("request.extra", "double", "request.extra is not sent to 'kitchen_sink'; declare it 'double?'"),
        ("request.fare_cents", "double", "request.fare_cents is double here and int in 'kitchen_sink'"),
        ("request.drop_zone", "int", "request.drop_zone is int here and int? in 'kitchen_sink'"),
        ("candidates.vip", "bool", "candidates.vip is bool here and bool? in 'kitchen_sink'"),
        ("key", "driver", "its candidates' key is 'driver', that of 'kitchen_sink' is 'driver_id'"),
    ],
)
def test_a_shadow_must_be_able_to_decide_the_requests(
    main: LiveStrategy, tmp_path: Path, field: str, kind: str, said: str | None
) -> None:
    made = shadow_of(tmp_path).compiled.strategy
    section, _, name = field.partition(".")
    if section == "key":
        made = replace(made, candidate_key=kind)
    elif section == "request":
        made = replace(made, request={**made.request, name: parse_type(kind)})
    else:
        made = replace(made, candidate_fields={**made.candidate_fields, name: parse_type(kind)})
    assert find_misfit(made, main.compiled.strategy) == said


def test_fields_that_a_shadow_does_not_declare_are_left_out_and_its_own_are_null(
    main: LiveStrategy, tmp_path: Path
) -> None:
    shadow = shadow_of(
        tmp_path, (", note: 'string?'", ", extra: 'double?'"), ("(note ?? 'x') != 'skip'", "(extra ?? 1.0) > 0.0")
    )
    one = answered(main)
    request = request_for(shadow.compiled, one.request)
    assert "note" not in request.fields and request.fields["extra"] is None
    assert request.decision_id == one.request.decision_id and request.candidate_ids == one.request.candidate_ids


def test_the_library_pairs_shadows_and_names_those_it_cannot(tmp_path: Path) -> None:
    folder = tmp_path / "strategies"
    folder.mkdir()
    for name, of in (("one", None), ("dark", "one"), ("lost", "nobody"), ("darker", "dark")):
        text = "strategy: {name}\nversion: 1\nrequest: {{hour: int}}\ncandidates: {{key: id, fields: {{e: double}}}}\nscore: e\n"
        more = f"shadow_of: {of}\n" if of else ""
        (folder / f"{name}.yaml").write_text(text.format(name=name) + more)
    misfit = "strategy: odd\nversion: 1\nshadow_of: one\nrequest: {day: int}\ncandidates: {key: id, fields: {e: double}}\nscore: e\n"
    (folder / "odd.yaml").write_text(misfit)
    library = Library(LibraryConfig(strategies_dir=folder, models_dir=tmp_path), lambda: REGISTRY)
    library.refresh()
    live = library.live
    assert set(live.strategies) == {"one"}
    assert {of: [s.compiled.name for s in found] for of, found in live.shadows.items()} == {"one": ["dark"]}
    assert live.errors == {
        "lost": "strategy 'lost' is a shadow of 'nobody': 'nobody' is not live",
        "darker": "strategy 'darker' is a shadow of 'dark': 'dark' is itself a shadow",
        "odd": "strategy 'odd' is a shadow of 'one': request.day is not sent to 'one'; declare it 'int?'",
    }


SENT = {
    "order_id": "o-1", "as_of_ms": AS_OF_MS, "city": "nyc", "product": "pool",
    "request": {"pickup_zone": 7, "fare_cents": 2000, "hour": 9},
    "candidates": {"coupon_id": ["none", "c2", "c9"], "value_cents": [0, 200, 900]},
}  # fmt: skip


def test_a_shadow_beside_a_running_engine(engine: Engine, client: EngineClient) -> None:
    sender = Sender()
    runner = ShadowRunner(FeatureSource(engine.reader), lambda: sender, engine.app.metrics)
    engine.app.shadows = runner
    text = (engine.strategies / "rider_coupon.yaml").read_text()
    shadow = text.replace("strategy: rider_coupon", "strategy: dark_coupon\nshadow_of: rider_coupon")
    (engine.strategies / "dark_coupon.yaml").write_text(shadow)
    wait_until(lambda: bool(engine.library.live.shadows))
    answer = client.decide("rider_coupon", SENT)
    assert answer["strategy"] == "rider_coupon"
    (decision,) = computed(runner, sender)
    assert (decision.shadow_of, decision.decision_id) == ("rider_coupon", answer["decision_id"])
    assert decision.scores == answer["scores"]
    listed = client.strategies()
    assert set(listed["strategies"]) == {"express_dispatch", "rider_coupon"}
    assert listed["shadows"]["dark_coupon"] | {"hash": ""} == listed["shadows"]["dark_coupon"] | {
        "hash": "", "shadow_of": "rider_coupon", "decided": 1, "agreed": 1, "undecided": {},
    }  # fmt: skip
    listed_text = CliRunner().invoke(app, ["strategies", "list", "--url", engine.url], env={"COLUMNS": "300"}).output
    assert "dark_coupon" in listed_text and "rider_coupon: 100.0 % of 1 agree" in listed_text
    with pytest.raises(EngineError) as caught:
        client.decide("dark_coupon", SENT)
    assert (caught.value.status, caught.value.code) == (409, "shadow")
    assert len(engine.decisions()) == 1  # the log of answers has the answer alone
    kill(engine.strategies, "strategy:dark_coupon", actor="ann", reason="r", now_ms=1)
    wait_until(lambda: engine.library.live.switches is not None and bool(engine.library.live.switches.killed))
    client.decide("rider_coupon", SENT)
    wait_until(lambda: runner.counts["dark_coupon"].undecided == {"killed": 1})
    runner.close()

"""The server over real sockets: bodies, errors, retries, hot swaps under load, starts and stops."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.client import EngineClient, EngineError
from engine.server import ServeConfig, serve
from engine.spill import read_spilled
from features.loader import SHIPPED
from features.records import DECISIONS, Decision, decode
from features.registry import apply_catalogue
from features.rows import from_served
from features.store import StoreError
from features.topics import read_all
from infra.local.process import stop, wait_ready
from infra.local.redis import redis_ready, start_redis
from infra.local.stack import free_ports
from tests.engine.running import Engine, fill
from tests.engine.support import AS_OF_MS, promote, random_body, write_model
from tests.engine.test_decision_log import wait_until


def body(engine: Engine, seed: int = 1, count: int = 10, **changes: Any) -> dict[str, Any]:
    """An express order with idle candidates that are all near."""
    made = random_body(random.Random(seed), engine.library.live.strategies["express_dispatch"].compiled, count)
    made["candidates"] |= {
        "driver_id": [f"c-{n}" for n in range(count)],
        "state": ["idle"] * count,
        "eta_s": [60.0 * (n + 1) for n in range(count)],
    }
    made["request"] |= {"pickup_zone": 7}
    return made | changes


def test_answer_has_the_promised_shape_and_the_decision_reaches_the_topic(engine: Engine, client: EngineClient) -> None:
    sent = body(engine, round_id=1)
    answer = client.decide("express_dispatch", sent)
    assert set(answer) == {
        "decision_id", "strategy", "strategy_version", "strategy_hash", "chosen", "chosen_id", "ranking", "scores",
        "propensities", "survivors", "reasons", "decided_by", "quality", "models", "arms", "as_of_ms", "applied_through_ms",
    }  # fmt: skip
    assert answer["chosen_id"] == sent["candidates"]["driver_id"][answer["chosen"]]
    assert answer["quality"] == "full"
    assert answer["applied_through_ms"] == dict.fromkeys(("driver", "driver_state", "pickup_zone"), AS_OF_MS - 500)
    assert answer["models"] == {"p_accept": {"model": "accept@champion", "model_hash": None, "source": "absent"}}
    assert sum(answer["propensities"]) == pytest.approx(1.0)
    (decision,) = engine.decisions()
    assert decision.decision_id == answer["decision_id"]
    assert decision.scores == answer["scores"]
    assert engine.broker.kept[0][0] == sent["order_id"].encode()
    driver = from_served(decision.features["driver"])
    assert (
        driver.row(4)["offers_1h"] == 5 and driver.row(4)["accept_rate_24h"] == 1.0
    )  # as many accepts as offers there
    assert from_served(decision.features["pickup_zone"]).row(0)["requested_15m"] == 1


def test_coupon_strategy_chooses_a_value_with_one_candidate(engine: Engine, client: EngineClient) -> None:
    sent = {
        "order_id": "o-1", "as_of_ms": AS_OF_MS, "city": "nyc", "product": "pool",
        "request": {"pickup_zone": 7, "fare_cents": 2000, "hour": 9},
        "candidates": {"coupon_id": ["none"], "value_cents": [0]},
    }  # fmt: skip
    answer = client.decide("rider_coupon", sent)
    assert (answer["chosen_id"], answer["propensities"]) == ("none", [1.0])
    sent["candidates"] = {"coupon_id": ["none", "c2", "c5", "c9"], "value_cents": [0, 200, 500, 900]}
    answer = client.decide("rider_coupon", sent)
    assert answer["reasons"] == [None, None, None, "above_share"]
    assert answer["propensities"][3] == 0.0


def test_errors_are_named(engine: Engine, client: EngineClient) -> None:
    for name, sent, status, code in (
        ("express_dispach", body(engine), 404, "unknown_strategy"),
        ("express_dispatch", {"order_id": 1}, 400, "malformed"),
        ("express_dispatch", body(engine, product="pool"), 400, "out_of_scope"),
        ("express_dispatch", body(engine, count=501), 413, "too_many_candidates"),
    ):
        with pytest.raises(EngineError) as caught:
            client.decide(name, sent)
        assert (caught.value.status, caught.value.code) == (status, code), caught.value
    with pytest.raises(EngineError, match=r"did you mean 'express_dispatch'\?"):
        client.decide("express_dispach", body(engine))
    assert engine.decisions() == []
    assert client.decide("express_dispatch", body(engine))["chosen"] is not None  # the connection is still good


@pytest.mark.parametrize(
    ("method", "path", "raw", "status"),
    [
        ("POST", "/v1/strategies/express_dispatch/decide", b"{not json", 400),
        ("POST", "/v1/strategies/express_dispatch/decide", b"", 400),
        ("POST", "/v1/strategies/express_dispatch/decide", b" " * (1 << 20) + b"{}", 413),
        ("GET", "/v1/strategies/express_dispatch/decide", b"", 405),
        ("POST", "/v1/strategies", b"", 405),
        ("GET", "/v2/strategies", b"", 404),
    ],
)
def test_bad_requests_get_a_json_error(engine: Engine, method: str, path: str, raw: bytes, status: int) -> None:
    found, answer = ask(engine.url, method, path, raw)
    assert found == status
    assert set(json.loads(answer)["error"]) == {"code", "message", "path", "hint"}


def ask(url: str, method: str, path: str, raw: bytes = b"", headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=5)
    try:
        connection.request(method, path, raw, headers or {})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_deadline_header_is_kept(engine: Engine) -> None:
    path, raw = "/v1/strategies/express_dispatch/decide", msgspec.json.encode(body(engine))
    assert ask(engine.url, "POST", path, raw, {"x-hailstream-deadline-ms": "500"})[0] == 200
    assert ask(engine.url, "POST", path, raw, {"x-hailstream-deadline-ms": "0"})[0] == 504
    assert ask(engine.url, "POST", path, raw, {"x-hailstream-deadline-ms": "soon"})[0] == 400


def test_asking_again_gets_the_same_answer_and_no_second_decision(engine: Engine) -> None:
    path, raw = "/v1/strategies/express_dispatch/decide", msgspec.json.encode(body(engine))
    first = ask(engine.url, "POST", path, raw)
    assert ask(engine.url, "POST", path, raw, {"x-hailstream-retry": "1"}) == first
    assert len(engine.decisions()) == 1
    ask(engine.url, "POST", path, raw)  # not a retry: decided again, and logged again under the same id
    assert len({decision.decision_id for decision in engine.decisions()}) == 1
    assert len(engine.decisions()) == 2


def test_retry_after_a_hot_swap_gets_the_answer_that_was_made_before_it(engine: Engine) -> None:
    """The joiner keeps the first Decision of an id: another answer to the retry would be acted on with its propensity."""
    path, raw = "/v1/strategies/express_dispatch/decide", msgspec.json.encode(body(engine))
    first = ask(engine.url, "POST", path, raw)
    file = engine.strategies / "express_dispatch.yaml"
    text = file.read_text()
    file.write_text(
        text.replace("version: 1", "version: 2").replace(
            "max_eta_s:   {type: double, default: 900", "max_eta_s:   {type: double, default: 100"
        )
    )
    wait_until(lambda: engine.library.live.strategies["express_dispatch"].compiled.strategy.version == 2)
    assert ask(engine.url, "POST", path, raw, {"x-hailstream-retry": "1"}) == first
    anew = json.loads(ask(engine.url, "POST", path, raw)[1])
    assert anew["propensities"] != json.loads(first[1])["propensities"]  # the swap would have been seen
    file.unlink()
    wait_until(lambda: "express_dispatch" not in engine.library.live.strategies)
    assert json.loads(ask(engine.url, "POST", path, raw, {"x-hailstream-retry": "2"})[1]) == anew
    assert len(engine.decisions()) == 2


def test_client_retries_a_lost_connection_and_gives_up_clearly(engine: Engine, client: EngineClient) -> None:
    client.decide("express_dispatch", body(engine))
    assert client._connection is not None and client._connection.sock is not None
    client._connection.sock.shutdown(socket.SHUT_RDWR)
    assert client.decide("express_dispatch", body(engine))["chosen"] is not None
    assert client.retries == 1
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with EngineClient(f"http://127.0.0.1:{port}") as nobody, pytest.raises(EngineError, match="is the engine running"):
        nobody.decide("express_dispatch", {})


def test_look_paths(engine: Engine, client: EngineClient) -> None:
    client.decide("express_dispatch", body(engine))
    assert ask(engine.url, "GET", "/healthz")[0] == 200
    assert ask(engine.url, "GET", "/readyz")[0] == 200
    listed = client.strategies()
    assert set(listed["strategies"]) == {"express_dispatch", "rider_coupon"}
    assert listed["strategies"]["express_dispatch"]["experiments"] == {"learned_ranking": {"rules": 0.5, "model": 0.5}}
    metrics = ask(engine.url, "GET", "/metrics")[1].decode()
    for line in (
        'hailstream_decisions_total{decided_by="',
        'hailstream_decide_seconds_count{strategy="express_dispatch"} 1.0',
        "hailstream_feature_read_seconds_count 1.0",
        'hailstream_feature_values_total{role="driver",status="present"}',
        "hailstream_decision_log_backlog",
        "hailstream_strategies 2.0",
    ):
        assert line in metrics, line


def test_decision_that_cannot_be_kept_is_not_answered(engine: Engine, client: EngineClient, monkeypatch: Any) -> None:
    def full(key: str, value: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(engine.log, "append", full)
    with pytest.raises(EngineError) as caught:
        client.decide("express_dispatch", body(engine))
    assert (caught.value.status, caught.value.code) == (503, "log_unavailable")


def test_hot_swap_of_strategy_and_model_under_load_fails_no_request(engine: Engine) -> None:
    """Callers ask without pause while strategies are edited, broken and repaired and champions move."""
    live = engine.library.live.strategies["express_dispatch"]
    names = {name: str(kind) for name, kind in live.compiled.names.items()}
    for number, weight in enumerate((-0.001, 0.001, -0.002), start=1):
        entries = [{"name": "eta", "expr": "eta_s ?? 300.0", "fill": 0.0}]
        write_model(engine.models, "accept", f"v{number:04d}", entries, names, weights=[weight])
    seen: set[tuple[int, str]] = set()
    problems: list[BaseException] = []
    counts = [0, 0]
    done = threading.Event()

    def call(caller: int) -> None:
        try:
            with EngineClient(engine.url, timeout_s=5.0) as client:
                while not done.is_set():
                    order = {"order_id": f"o-{caller}-{counts[caller]}"}
                    answer = client.decide("express_dispatch", body(engine, count=3) | order)
                    seen.add((answer["strategy_version"], answer["models"]["p_accept"]["model"]))
                    counts[caller] += 1
        except BaseException as error:
            problems.append(error)

    callers = [threading.Thread(target=call, args=(caller,)) for caller in range(2)]
    for caller in callers:
        caller.start()
    path = engine.strategies / "express_dispatch.yaml"
    text = path.read_text()
    wanted: set[tuple[int, str]] = {(1, "accept@champion")}
    try:
        wait_until_seen(wanted, seen, problems)
        for version in (2, 3, 4):
            promote(engine.models, "accept", f"v{version - 1:04d}")
            path.write_text(text.replace("score: |", "score: ] |"))  # in place, and broken
            wait_until(lambda: path.name in engine.library.live.errors)
            path.write_text(text.replace("version: 1", f"version: {version}"))
            wanted.add((version, f"accept@v{version - 1:04d}"))
            wait_until_seen(wanted, seen, problems)
    finally:
        done.set()
        for caller in callers:
            caller.join(10)
    assert problems == []
    assert len(engine.decisions()) == sum(counts)


def wait_until_seen(wanted: set[Any], seen: set[Any], problems: list[BaseException]) -> None:
    deadline = time.monotonic() + 20
    while not wanted <= seen and not problems:
        assert time.monotonic() < deadline, (wanted, seen)
        time.sleep(0.005)


def test_store_that_goes_away_degrades_and_comes_back(engine: Engine, client: EngineClient) -> None:
    class Away:
        def read(self, *_: Any) -> Any:
            raise StoreError("Redis is away")

    reader, engine.app.features.reader = engine.app.features.reader, Away()
    answer = client.decide("express_dispatch", body(engine))
    assert (answer["quality"], answer["decided_by"]) == ("degraded", "fallback")
    assert answer["chosen"] is not None
    engine.app.features.reader = reader
    deadline = time.monotonic() + 5
    while client.decide("express_dispatch", body(engine))["quality"] != "full":
        assert time.monotonic() < deadline


def test_loopback_is_the_default_and_more_must_be_said(tmp_path: Path) -> None:
    options = {"redis_url": "redis://x", "kafka": None, "models_dir": tmp_path, "spill_dir": tmp_path}
    ServeConfig(**options)
    ServeConfig(**options, host="localhost")
    for host in ("0.0.0.0", "::", "10.0.0.1", "example"):
        with pytest.raises(ValueError, match="--allow-remote"):
            ServeConfig(**options, host=host)
    ServeConfig(**options, host="0.0.0.0", allow_remote=True)


_PROCESS = """
import json, sys
from pathlib import Path
from engine.server import ServeConfig, serve
options = json.loads(sys.argv[1])
folders = {name: Path(options.pop(name)) for name in ("models_dir", "spill_dir")}
serve(ServeConfig(**folders, **options), announce=lambda line: print(line, flush=True))
"""


def start_process(folder: Path, redis_url: str, **options: Any) -> tuple[subprocess.Popen[str], str]:
    """The engine as a process; returns it and its address."""
    options |= {"models_dir": str(folder / "models"), "spill_dir": str(folder / "spill"), "redis_url": redis_url}
    command = [sys.executable, "-c", _PROCESS, json.dumps(options | {"port": 0})]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=(folder / "log").open("a"), text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("engine on http://127.0.0.1:"), (line, (folder / "log").read_text())
    return process, line.split()[-1]


def test_process_without_redis_waits_and_without_kafka_keeps_decisions(tmp_path: Path) -> None:
    """No Redis at the start: alive, not ready, says why. Nothing applied: the same. Then ready. No broker: decisions stay."""
    redis_port, kafka_port = free_ports(2)
    url_of_redis = f"redis://127.0.0.1:{redis_port}/0"
    process, url = start_process(tmp_path, url_of_redis, kafka=f"127.0.0.1:{kafka_port}", drain_s=0.3)
    redis = None
    try:
        with EngineClient(url) as client:
            assert ask(url, "GET", "/healthz")[0] == 200
            with pytest.raises(EngineError, match="cannot be reached"):
                client.wait_ready(timeout_s=0.1)
            with pytest.raises(EngineError) as caught:
                client.decide("express_dispatch", {})
            assert (caught.value.status, caught.value.code) == (503, "store_unavailable")
            redis = start_redis(
                tmp_path / "redis", redis_port, stack_id=f"test-{os.getpid()}", log=tmp_path / "redis.log"
            )
            wait_ready(redis, lambda: redis_ready(redis_port), deadline_s=30)
            wait_until(lambda: "features apply" in ask(url, "GET", "/readyz")[1].decode())
            fill(url_of_redis, apply_catalogue(SHIPPED, url_of_redis, actor="test", reason="late").registry)
            client.wait_ready(timeout_s=10)
            sent = {
                "order_id": "o-1", "as_of_ms": AS_OF_MS, "city": "nyc", "product": "x",
                "request": {"pickup_zone": 7, "fare_cents": 2000, "hour": 9},
                "candidates": {"coupon_id": ["none"], "value_cents": [0]},
            }  # fmt: skip
            answer = client.decide("rider_coupon", sent)
            assert answer["quality"] == "full"
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(20)
        if redis is not None:
            stop(redis)
    assert code == 0
    assert process.stdout is not None
    assert "1 decisions left for the next start" in process.stdout.read()
    ((key, value),) = read_spilled(tmp_path / "spill")
    assert key == b"o-1"
    assert decode(value, Decision).decision_id == answer["decision_id"]


@pytest.mark.services
def test_every_answered_decision_is_on_the_real_topic_after_a_kill_and_a_restart(tmp_path: Path, stack: Any) -> None:
    """The engine is killed with decisions under way; the next one sends what was left; the topic holds each of them."""
    project = f"engine-kafka-{os.getpid()}"
    apply_catalogue(SHIPPED, stack.redis_url, actor="test", reason="test", project=project)
    answered = set()
    for run in range(2):
        process, url = start_process(tmp_path, stack.redis_url, project=project, kafka=stack.kafka)
        with EngineClient(url) as client:
            client.wait_ready()
            for number in range(200):
                sent = {
                    "order_id": f"{project}-{run}-{number}", "as_of_ms": AS_OF_MS, "city": "nyc", "product": "x",
                    "request": {"pickup_zone": 7, "fare_cents": 2000, "hour": 9},
                    "candidates": {"coupon_id": ["none", "c1"], "value_cents": [0, 100]},
                }  # fmt: skip
                answered.add(client.decide("rider_coupon", sent)["decision_id"])
        process.send_signal(signal.SIGKILL if run == 0 else signal.SIGTERM)
        assert process.wait(30) == (-signal.SIGKILL if run == 0 else 0)
    assert list(read_spilled(tmp_path / "spill")) == []
    ours = [m for m in read_all(stack.kafka, DECISIONS) if (m.key or b"").startswith(f"{project}-".encode())]
    assert {decode(message.value, Decision).decision_id for message in ours} == answered
    assert all(decode(message.value, Decision).order_id.encode() == message.key for message in ours)


def test_taken_port_is_a_message_with_the_way_out(tmp_path: Path, redis_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = ServeConfig(redis_url=redis_url, kafka=None, models_dir=tmp_path, spill_dir=tmp_path / "s", port=port)
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: .*; choose another --port"):
            serve(config)

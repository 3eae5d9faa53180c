"""The truth is learnable, and worth learning: the bands the demo's report is read against, on the demo's own hour.

One run, as the demo does it but with engines in this process: half of the orders on rules alone; then a plain
logistic regression is fitted on what features could have told of those offers, and the other half is split by hash
between rules, that model, and an oracle that is told the truth.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipelines.sim.asking import DISPATCH
from pipelines.sim.behaviour import Offer
from pipelines.sim.dispatch import Dispatch, DispatchConfig
from pipelines.sim.policies import UNROUTED_ETA_S, ScorePolicy, nearest
from pipelines.sim.report import acceptance_by_arm, ceiling, difference, first_offers
from pipelines.sim.truth import TruthLog, TruthRecord
from pipelines.training.evaluate import auc, ece_band
from pipelines.trips.draws import uniform
from pipelines.trips.pace import Pacer

from .conftest import Hour

FEATURE_LAG_MS = 30_000  # what is served is older than what is true: the job's lag at speed-up 30, and a coarse hop
ARMS = ("rules", "model", "oracle")


class Nowhere:
    def send(self, topic: str, key: str | bytes, value: bytes) -> None: ...
    def flush(self) -> None: ...


class Arms:
    """An engine with up to three arms. It keeps the inputs of each decision's candidates, as samples would."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dispatch: Dispatch
        self.open_arms: tuple[str, ...] = ("rules",)
        self.weights: NDArray[np.float64] | None = None
        self.scale: tuple[NDArray[np.float64], NDArray[np.float64]]
        self.inputs: dict[str, NDArray[np.float64]] = {}
        self._policies = {
            "rules": ScorePolicy(nearest, seed=seed, temperature=0.5, arm="rules"),
            "model": ScorePolicy(self._learned, seed=seed, temperature=0.03, arm="model"),
            "oracle": ScorePolicy(self._truth, seed=seed, arm="oracle"),
        }

    def decide(self, strategy: str, body: dict[str, Any]) -> dict[str, Any]:
        arm = self.open_arms[int(uniform(self.seed, "arm", body["order_id"]) * len(self.open_arms))]
        answer = self._policies[arm].decide(strategy, body)
        if strategy == DISPATCH:
            self.inputs[answer["decision_id"]] = self.inputs_of(body)
        return answer

    def inputs_of(self, body: dict[str, Any]) -> NDArray[np.float64]:
        """(K, F): request and candidate fields, and driver.fare_24h and driver.completed_1h as of a little ago."""
        request, candidates = body["request"], body["candidates"]
        eta_K = np.array([UNROUTED_ETA_S if eta is None else eta for eta in candidates["eta_s"]]) / 180
        km_K = (request["distance_m"] + np.array(candidates["pickup_distance_m"])) / 1000
        rate_K = np.minimum(request["fare_cents"] / 100 / np.maximum(km_K, 0.5), 8)
        earnings, as_of_ms = self.dispatch.behaviour.earnings, body["as_of_ms"] - FEATURE_LAG_MS
        served_K2 = np.array([earnings.of(driver_id, as_of_ms) for driver_id in candidates["driver_id"]], dtype=float)
        fare_K = np.minimum(served_K2[:, 0] / 10_000, 5)
        columns = [np.ones_like(eta_K), eta_K, rate_K, eta_K * rate_K, fare_K, fare_K**2, served_K2[:, 1]]
        return np.stack(columns, axis=1)

    def fit(self, records: list[TruthRecord]) -> None:
        """Ridge logistic regression by Newton steps, on the offers and their answers alone."""
        inputs_NF = self.of_chosen(records)
        answer_N = np.array([record.answer == "accepted" for record in records], dtype=float)
        self.scale = inputs_NF.mean(axis=0), inputs_NF.std(axis=0)
        self.scale[0][0], self.scale[1][0] = 0.0, 1.0
        inputs_NF = (inputs_NF - self.scale[0]) / self.scale[1]
        weights_F = np.zeros(inputs_NF.shape[1])
        for _ in range(25):
            chance_N = 1 / (1 + np.exp(-inputs_NF @ weights_F))
            slope_F = inputs_NF.T @ (chance_N - answer_N) + weights_F
            bend_FF = inputs_NF.T @ (inputs_NF * (chance_N * (1 - chance_N))[:, None]) + np.eye(len(weights_F))
            weights_F -= np.linalg.solve(bend_FF, slope_F)
        self.weights = weights_F

    def model(self, inputs_NF: NDArray[np.float64]) -> NDArray[np.float64]:
        assert self.weights is not None
        result: NDArray[np.float64] = 1 / (1 + np.exp(-((inputs_NF - self.scale[0]) / self.scale[1]) @ self.weights))
        return result

    def of_chosen(self, records: list[TruthRecord]) -> NDArray[np.float64]:
        return np.stack([self.inputs[record.decision_id][record.chosen or 0] for record in records])

    def _learned(self, body: dict[str, Any]) -> list[float]:
        chances: list[float] = self.model(self.inputs_of(body)).tolist()
        return chances

    def _truth(self, body: dict[str, Any]) -> list[float]:
        request, candidates = body["request"], body["candidates"]
        columns = (candidates["driver_id"], candidates["pickup_distance_m"], candidates["eta_s"])
        chances = []
        for driver_id, pickup_m, eta_s in zip(*columns, strict=True):
            offer = Offer(
                request["order_id"], request["fare_cents"], request["distance_m"], pickup_m, eta_s or UNROUTED_ETA_S
            )
            chances.append(self.dispatch.behaviour.p_accept(driver_id, offer, body["as_of_ms"]))
        return chances


@pytest.fixture(scope="module")
def halves(hour: Hour) -> tuple[Arms, list[TruthRecord], list[TruthRecord]]:
    """The engine, the offers of the first half (all rounds), and the first offers of the second half."""
    print(f"seed {hour.seed}")
    engine, truth = Arms(hour.seed), TruthLog()
    dispatch = Dispatch(
        DispatchConfig(seed=hour.seed),
        hour.trips,
        zones=hour.zones,
        engine=engine,
        sink=Nowhere(),
        pacer=Pacer(None),
        truth=truth,
        history=hour.history,
    )
    engine.dispatch = dispatch
    dispatch.run(stop_after_orders=2_500)
    first, cut_ms = list(truth.records), dispatch.now_ms
    engine.fit(first)
    engine.open_arms = ARMS
    dispatch.run()
    assert dispatch.account.check() == []
    return engine, first, first_offers(truth.records, since_ms=cut_ms)


def test_the_rules_leave_something_to_learn(halves: tuple[Arms, list[TruthRecord], list[TruthRecord]]) -> None:
    _, first, second = halves
    rules = [*first_offers(first), *(record for record in second if record.arms["learned_ranking"] == "rules")]
    best = ceiling(rules)
    print(best)
    assert 0.70 <= best.best_auc <= 0.80
    assert 0.55 <= best.base_rate <= 0.70
    assert best.oracle - best.rules_like >= 0.12
    assert best.best_log_loss < best.base_log_loss - 0.05


def test_an_oracle_raises_first_offer_acceptance_over_the_rules_at_the_same_time(
    halves: tuple[Arms, list[TruthRecord], list[TruthRecord]],
) -> None:
    arms = acceptance_by_arm(halves[2], "learned_ranking")
    gain = difference(arms["oracle"], arms["rules"])
    print(arms, gain)
    assert set(arms) == set(ARMS) and all(arm.trials > 600 for arm in arms.values())
    assert gain.difference >= 0.12
    assert gain.low >= 0.08


def test_a_plain_model_on_served_features_gets_most_of_it(
    halves: tuple[Arms, list[TruthRecord], list[TruthRecord]],
) -> None:
    engine, first, second = halves
    arms = acceptance_by_arm(second, "learned_ranking")
    model, oracle = difference(arms["model"], arms["rules"]), difference(arms["oracle"], arms["rules"])
    print(len(first), model, oracle)
    assert model.difference >= 0.6 * oracle.difference
    assert model.low > 0.05
    accepted_N = np.array([record.answer == "accepted" for record in second])
    truth_N = np.array([record.p_accept[record.chosen or 0] for record in second])
    assert auc(engine.model(engine.of_chosen(second)), accepted_N) >= auc(truth_N, accepted_N) - 0.03


def test_the_streaming_feature_carries_most_of_what_can_be_learned(
    halves: tuple[Arms, list[TruthRecord], list[TruthRecord]],
) -> None:
    """Without what the driver earned and drove lately, request and candidate fields tell little."""
    engine, first, second = halves
    accepted_N = np.array([record.answer == "accepted" for record in second])
    with_stream = auc(engine.model(engine.of_chosen(second)), accepted_N)
    without_NF = engine.of_chosen(second)
    without_NF[:, 4:] = engine.of_chosen(first)[:, 4:].mean(axis=0)
    without = auc(engine.model(without_NF), accepted_N)
    print(with_stream, without)
    assert without < with_stream - 0.04


def test_the_calibration_band_of_the_truth_is_not_zero(
    halves: tuple[Arms, list[TruthRecord], list[TruthRecord]],
) -> None:
    chance_N = np.array([record.p_accept[record.chosen or 0] for record in halves[2]])
    band = ece_band(chance_N, seed=7)
    print(band)
    assert 0.01 < band.median < band.p95 < 0.05

"""The network on plain arrays: it learns a known truth, repeats itself exactly, and exports what it computes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from pipelines.training.config import TrainConfig, TrainingError
from pipelines.training.evaluate import auc, ece, ece_band, log_loss
from pipelines.training.fit import NUM_BLOCKS, Fitted, fit
from pipelines.training.model_dir import GOLDEN_ATOL
from pipelines.training.network import AcceptNetwork, predict, to_onnx, weights_of
from tests.pipelines.training.worlds import truth

CONFIG = TrainConfig(samples_dir=Path(), models_dir=Path())


def arrays(num: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, outcomes and true chances, with three inputs that say nothing and one that never changes."""
    rng = np.random.default_rng(seed)
    eta, fare, rate = rng.gamma(3, 90, num), rng.lognormal(7.2, 0.5, num), rng.beta(6, 2, num)
    hour, requested = rng.integers(0, 24, num), rng.poisson(8, num)
    p = truth(eta, fare, rate, hour, requested)
    rush = (hour >= 7) & (hour < 10)
    x = np.column_stack([eta, fare, rate, rush, requested, rng.normal(size=(num, 3)), np.full(num, 7.0)])
    return x.astype(np.float32), (rng.random(num) < p).astype(np.int64), p


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    x, y, _ = arrays(3000, 1)
    return fit(x[:1900], y[:1900], x[1900:2500], y[1900:2500], CONFIG)


def weights_hash(network: AcceptNetwork) -> str:
    digest = hashlib.sha256()
    for name, value in weights_of(network).items():
        digest.update(name.encode() + value.tobytes())
    return digest.hexdigest()


def test_known_chances_are_recovered_near_the_best_possible(fitted: Fitted) -> None:
    x, y, p = arrays(20_000, 2)
    q = predict(fitted.network, x)
    best, ours = auc(p, y), auc(q, y)
    assert best is not None and ours is not None
    assert ours > best - 0.03
    base = log_loss(np.full(len(y), y.mean()), y)
    assert (base - log_loss(q, y)) / (base - log_loss(p, y)) > 0.75  # share of what can be learned that was learned


def test_calibration_error_on_unseen_rows_is_what_a_perfect_model_would_show(fitted: Fitted) -> None:
    x, y, _ = arrays(3000, 1)
    q = predict(fitted.network, x[2500:])
    assert ece(q, y[2500:]) <= ece_band(q, seed=1).p99


def test_interaction_is_learned(fitted: Fitted) -> None:
    # a rich fare turns a long way from a deterrent into less of one: the effect of eta must differ by fare
    x, _, _ = arrays(2, 3)
    near_poor, far_poor, near_rich, far_rich = (x[:1].copy() for _ in range(4))
    for row, eta, fare in ((near_poor, 120, 900), (far_poor, 500, 900), (near_rich, 120, 2400), (far_rich, 500, 2400)):
        row[0, 0], row[0, 1] = eta, fare
    logit = {name: float(np.log(p / (1 - p))) for name, p in (
        (name, predict(fitted.network, row)[0])
        for name, row in (("np", near_poor), ("fp", far_poor), ("nr", near_rich), ("fr", far_rich)))}  # fmt: skip
    assert (logit["np"] - logit["fp"]) - (logit["nr"] - logit["fr"]) > 0.8  # the truth: about 2.9


def test_same_seed_gives_the_same_bytes_and_another_seed_does_not(fitted: Fitted) -> None:
    x, y, _ = arrays(3000, 1)
    torch.manual_seed(999)  # the caller's random state must not matter, nor be touched
    before = torch.random.get_rng_state()
    again = fit(x[:1900], y[:1900], x[1900:2500], y[1900:2500], CONFIG)
    assert torch.equal(before, torch.random.get_rng_state())
    assert weights_hash(again.network) == weights_hash(fitted.network)
    assert to_onnx(again.network) == to_onnx(fitted.network)
    other = TrainConfig(samples_dir=Path(), models_dir=Path(), seed=18, max_epochs=2)
    assert weights_hash(fit(x[:500], y[:500], x[500:700], y[500:700], other).network) != weights_hash(
        fit(
            x[:500], y[:500], x[500:700], y[500:700], TrainConfig(samples_dir=Path(), models_dir=Path(), max_epochs=2)
        ).network
    )


@pytest.mark.parametrize("num", [0, 1, 123, 1025])
def test_exported_graph_equals_torch_also_on_wild_rows(fitted: Fitted, num: int) -> None:
    session = onnxruntime.InferenceSession(to_onnx(fitted.network), providers=["CPUExecutionProvider"])
    x, _, _ = arrays(max(num, 3), 4)
    x = x[:num]
    if num > 100:
        x[0], x[1], x[2] = 1e9, -1e9, 0.0
    (p,) = session.run(["p"], {"x": x})
    assert p.shape == (num,) and p.dtype == np.float32
    assert np.abs(p - predict(fitted.network, x)).max(initial=0.0) <= GOLDEN_ATOL
    assert np.isfinite(p).all()


def test_epochs_end_when_later_rows_no_longer_gain_and_the_best_is_taken(fitted: Fitted) -> None:
    assert fitted.best_epoch == int(np.argmin(fitted.losses)) + 1
    assert fitted.epochs < CONFIG.max_epochs
    assert fitted.epochs - fitted.best_epoch <= CONFIG.patience


def test_the_newest_rows_are_learned_too() -> None:
    """The last input starts to vary among the calibration rows, and then says much: no earlier row could tell."""
    x, y, _ = arrays(1_600, 8)
    x[1_200:, 8] += np.random.default_rng(8).normal(size=400)
    y[1_200:] = np.where(np.abs(x[1_200:, 8] - 7.0) > 0.7, x[1_200:, 8] > 7.0, y[1_200:])
    high, low = x.copy(), x.copy()
    high[:, 8], low[:, 8] = 8.5, 5.5
    network = fit(x[:1_200], y[:1_200], x[1_200:], y[1_200:], CONFIG).network
    effect = float((predict(network, high) - predict(network, low)).mean())
    assert effect > 0.1, effect


def test_a_network_that_learned_by_heart_is_not_believed() -> None:
    """Labels are coin flips: unseen rows say so, and the calibration takes the learned confidence back."""
    rng = np.random.default_rng(9)
    x = rng.normal(size=(400, 6)).astype(np.float32)
    y = rng.integers(0, 2, 400)
    config = TrainConfig(samples_dir=Path(), models_dir=Path(), max_epochs=60, patience=60)
    network = fit(x[:300], y[:300], x[300:], y[300:], config).network
    fresh = rng.normal(size=(2_000, 6)).astype(np.float32)
    assert np.abs(predict(network, fresh) - y.mean()).max() < 0.1


def test_progress_hears_of_every_epoch_and_block() -> None:
    x, y, _ = arrays(400, 5)
    heard: list[tuple[int, str]] = []
    config = TrainConfig(samples_dir=Path(), models_dir=Path(), max_epochs=3)
    fit(x[:300], y[:300], x[300:], y[300:], config, lambda epoch, text: heard.append((epoch, text.split()[0])))
    assert heard[:3] == [(1, "log-loss"), (2, "log-loss"), (3, "log-loss")]
    assert heard[3:] == [(3, "calibrating")] * NUM_BLOCKS


def test_one_class_and_unfilled_inputs_are_refused_with_the_reason() -> None:
    x, y, _ = arrays(100, 6)
    with pytest.raises(TrainingError, match="all 60 training rows have accepted=1"):
        fit(x[:60], np.ones(60, dtype=np.int64), x[60:], y[60:], CONFIG)
    x[7, 2] = np.nan
    with pytest.raises(TrainingError, match="input 2 of train row 7 is nan"):
        fit(x[:60], y[:60], x[60:], y[60:], CONFIG)

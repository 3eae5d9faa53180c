"""Fit the network: seeded, one thread, early stopping on the log-loss of rows that come later than the training rows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import binary_cross_entropy_with_logits

from pipelines.training.calibration import fit_platt
from pipelines.training.config import TrainConfig, TrainingError
from pipelines.training.evaluate import Ints
from pipelines.training.network import AcceptNetwork

Inputs = NDArray[np.float32]


@dataclass(frozen=True)
class Fitted:
    """A calibrated network and how it came to be. `losses` is the calibration log-loss after each epoch, uncalibrated."""

    network: AcceptNetwork
    epochs: int
    best_epoch: int
    losses: list[float]


def fit(
    x_train: Inputs, y_train: Ints, x_cal: Inputs, y_cal: Ints, config: TrainConfig,
    on_epoch: Callable[[int, float], None] | None = None,
) -> Fitted:  # fmt: skip
    """Train on the first rows, stop by the calibration rows, then calibrate on those.

    The calibration rows choose one epoch and two numbers; what that choice is worth is judged on the test rows alone.
    Leaves torch's global random state and thread count as they were.

    Shapes: x (N, F) float32 finite, y (N,) in {0, 1}.
    Raises: TrainingError if the training rows hold one class only, or an input is not finite.
    """
    _check(x_train, y_train, "train")
    _check(x_cal, y_cal, "calibration")
    if len(np.unique(y_train)) < 2:
        raise TrainingError(
            f"all {len(y_train)} training rows have {config.label}={int(y_train[0])}: nothing can be learned; "
            "widen the time range"
        )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the same sums in the same order, and no fight with the engine for its cores
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            fitted = _descend(x_train, y_train, x_cal, y_cal, config, on_epoch)
        with torch.no_grad():
            logit_cal = fitted.network.logits(torch.from_numpy(x_cal)).double().numpy()
        fitted.network.set_calibration(*fit_platt(logit_cal, y_cal))
    finally:
        torch.set_num_threads(threads)
    fitted.network.eval()
    return fitted


def _descend(
    x_train: Inputs, y_train: Ints, x_cal: Inputs, y_cal: Ints, config: TrainConfig,
    on_epoch: Callable[[int, float], None] | None,
) -> Fitted:  # fmt: skip
    network = AcceptNetwork(x_train.shape[1], config.hidden, config.members)
    network.set_normalisation(x_train)
    optimiser = torch.optim.AdamW(network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    x, y = torch.from_numpy(x_train), torch.from_numpy(y_train).float()
    x_later, y_later = torch.from_numpy(x_cal), torch.from_numpy(y_cal).float()
    best_loss, best_epoch, best_state = float("inf"), 0, copy.deepcopy(network.state_dict())
    losses: list[float] = []
    for epoch in range(1, config.max_epochs + 1):
        _one_epoch(network, optimiser, x, y, config.batch_rows)
        with torch.no_grad():
            loss = binary_cross_entropy_with_logits(network.logits(x_later), y_later).item()
        if not np.isfinite(loss):
            raise TrainingError(
                f"the log-loss became {loss} in epoch {epoch}: lower learning_rate ({config.learning_rate})"
            )
        losses.append(loss)
        if loss < best_loss - 1e-5:
            best_loss, best_epoch, best_state = loss, epoch, copy.deepcopy(network.state_dict())
        if on_epoch is not None:
            on_epoch(epoch, loss)
        if epoch - best_epoch >= config.patience:
            break
    network.load_state_dict(best_state)
    return Fitted(network, len(losses), best_epoch, losses)


def _one_epoch(
    network: AcceptNetwork, optimiser: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor, batch_rows: int
) -> None:
    order = torch.randperm(len(x))
    for start in range(0, len(order), batch_rows):
        rows = order[start : start + batch_rows]
        logit_MN = network.member_logits(x[rows])
        loss = binary_cross_entropy_with_logits(logit_MN, y[rows].expand_as(logit_MN))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()


def _check(x: Inputs, y: Ints, split: str) -> None:
    if len(x) == 0 or len(x) != len(y):
        raise TrainingError(f"the {split} split has {len(x)} rows and {len(y)} labels")
    if not np.isfinite(x).all():
        row, column = np.argwhere(~np.isfinite(x))[0]
        raise TrainingError(f"input {column} of {split} row {row} is {x[row, column]}: the column program must fill it")

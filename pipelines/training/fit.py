"""Fit the network: later rows say for how many epochs, then all rows are learned, and each calibrates unseen.

    epochs       train on the first rows, stop by the log-loss of the rows that come later
    calibration  in turn, each block of time is predicted by a network that learned the other blocks
    network      learns all of these rows for those epochs, and gets the calibration of the blocks

So no row is spent on the calibration alone, the newest rows are learned too, and the calibration never sees a logit of a
row that its network had learned. Everything is seeded and in one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import binary_cross_entropy_with_logits

from pipelines.training.calibration import fit_platt
from pipelines.training.config import TrainConfig, TrainingError
from pipelines.training.evaluate import Floats, Ints
from pipelines.training.network import AcceptNetwork

Inputs = NDArray[np.float32]
OnEpoch = Callable[[int, str], None]

NUM_BLOCKS: Final = 4  # each network of a block then learns three quarters of the rows, near enough to all of them


@dataclass(frozen=True)
class Fitted:
    """A calibrated network and how it came to be.

    `losses` is the log-loss of the calibration rows after each epoch of the first fit, which knew none of them; the
    network itself had `best_epoch` epochs of all rows.
    """

    network: AcceptNetwork
    epochs: int
    best_epoch: int
    losses: list[float]


def fit(
    x_train: Inputs, y_train: Ints, x_cal: Inputs, y_cal: Ints, config: TrainConfig, on_epoch: OnEpoch | None = None
) -> Fitted:
    """Choose the epochs, calibrate by blocks, learn all rows; see the top of this file.

    What these choices are worth is judged on the test rows alone. `on_epoch(epoch, text)` is called as it goes.
    Leaves torch's global random state and thread count as they were.

    Shapes: x (N, F) float32 finite, y (N,) in {0, 1}; rows in order of time, the calibration rows after the others.
    Raises: TrainingError if the training rows hold one class only, or an input is not finite.
    """
    _check(x_train, y_train, "train")
    _check(x_cal, y_cal, "calibration")
    if len(np.unique(y_train)) < 2:
        raise TrainingError(
            f"all {len(y_train)} training rows have {config.label}={int(y_train[0])}: nothing can be learned; "
            "widen the time range"
        )
    tell = on_epoch or (lambda epoch, text: None)
    with _one_thread():
        losses = _losses_by_epoch(x_train, y_train, x_cal, y_cal, config, tell)
        best_epoch = _best(losses)
        x, y = np.concatenate([x_train, x_cal]), np.concatenate([y_train, y_cal])
        unseen_N = _unseen_logits(x, y, best_epoch, config, lambda text: tell(len(losses), text))
        network = _learned(x, y, best_epoch, config)
        network.set_calibration(*fit_platt(unseen_N, y))
    network.eval()
    return Fitted(network, len(losses), best_epoch, losses)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The same sums in the same order, and no fight with the engine for its cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _losses_by_epoch(
    x_train: Inputs, y_train: Ints, x_cal: Inputs, y_cal: Ints, config: TrainConfig, tell: OnEpoch
) -> list[float]:
    """Log-loss of the later rows after each epoch, until it no longer gets better."""
    x_later, y_later = torch.from_numpy(x_cal), torch.from_numpy(y_cal).float()
    losses: list[float] = []
    for network in _epochs(x_train, y_train, config.max_epochs, config):
        with torch.no_grad():
            loss = binary_cross_entropy_with_logits(network.logits(x_later), y_later).item()
        if not np.isfinite(loss):
            raise TrainingError(
                f"the log-loss became {loss} in epoch {len(losses) + 1}: lower learning_rate ({config.learning_rate})"
            )
        losses.append(loss)
        tell(len(losses), f"log-loss {loss:.4f}")
        if len(losses) - _best(losses) >= config.patience:
            break
    return losses


def _best(losses: list[float]) -> int:
    """The epoch, from 1, with the least loss; a gain below 1e-5 is none."""
    best = 0
    for at, loss in enumerate(losses):
        if loss < losses[best] - 1e-5:
            best = at
    return best + 1


def _unseen_logits(x: Inputs, y: Ints, epochs: int, config: TrainConfig, tell: Callable[[str], None]) -> Floats:
    """Each row's logit by a network that learned the other blocks of time only. Shapes: (N, F), (N,); returns (N,)."""
    logit_N = np.zeros(len(x))
    block_N = np.arange(len(x)) * NUM_BLOCKS // len(x)
    for block in np.unique(block_N):
        tell(f"calibrating on block {block + 1} of {NUM_BLOCKS}")
        row_N = block_N == block
        network = _learned(x[~row_N], y[~row_N], epochs, config)
        with torch.no_grad():
            logit_N[row_N] = network.logits(torch.from_numpy(x[row_N])).double().numpy()
    return logit_N


def _learned(x: Inputs, y: Ints, epochs: int, config: TrainConfig) -> AcceptNetwork:
    """A network after so many epochs of these rows."""
    *_, network = _epochs(x, y, epochs, config)
    return network


def _epochs(x_NF: Inputs, y_N: Ints, epochs: int, config: TrainConfig) -> Iterator[AcceptNetwork]:
    """One network, yielded after each epoch. The random state inside is the config's seed, and nobody else's."""
    x, y = torch.from_numpy(x_NF), torch.from_numpy(y_N).float()
    generator = torch.Generator().manual_seed(config.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = AcceptNetwork(x_NF.shape[1], config.hidden, config.members)
    network.set_normalisation(x_NF)
    optimiser = torch.optim.AdamW(network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    for _ in range(epochs):
        _one_epoch(network, optimiser, x, y, config.batch_rows, generator)
        yield network


def _one_epoch(
    network: AcceptNetwork, optimiser: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor, batch_rows: int,
    generator: torch.Generator,
) -> None:  # fmt: skip
    order = torch.randperm(len(x), generator=generator)
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

from __future__ import annotations

import numpy as np
import pytest

from pipelines.training.config import TrainConfig, TrainingError
from pipelines.training.split import split_by_time


def test_later_rows_are_only_in_later_splits_and_shares_hold() -> None:
    at = np.arange(1000, dtype=np.int64) * 10
    split = split_by_time(at, np.arange(1000).astype(str), (0.6, 0.2, 0.2))
    assert [len(split.train), len(split.calibration), len(split.test)] == [600, 200, 200]
    assert at[split.train].max() < at[split.calibration].min() <= at[split.calibration].max() < at[split.test].min()


@pytest.mark.parametrize("seed", range(8))
def test_no_order_and_no_instant_is_in_two_splits_and_every_row_has_one_place(seed: int) -> None:
    # orders are re-offered at random later times, and many decisions share a millisecond
    rng = np.random.default_rng(seed)
    at = np.sort(rng.integers(0, 120, 400)).astype(np.int64)
    order = rng.integers(0, 150, 400).astype(str).astype(object)
    split = split_by_time(at, order, (0.5, 0.25, 0.25))
    parts = [split.train, split.calibration, split.test]
    assert sorted(np.concatenate([*parts, split.spanning]).tolist()) == list(range(400))
    for a in range(3):
        for b in range(a + 1, 3):
            assert not set(order[parts[a]]) & set(order[parts[b]])
            assert at[parts[a]].max() < at[parts[b]].min()
    assert len(split.spanning) > 0


def test_an_order_stays_where_its_first_decision_is() -> None:
    #  time   0 1 2 3 | 4 5 | 6 7
    #  order  a b c d | a e | e f
    split = split_by_time(np.arange(8, dtype=np.int64), np.array(list("abcdaeef"), dtype=object), (0.5, 0.25, 0.25))
    assert split.train.tolist() == [0, 1, 2, 3]
    assert split.calibration.tolist() == [5]
    assert split.test.tolist() == [7]
    assert split.spanning.tolist() == [4, 6]


def test_a_split_that_stays_empty_is_an_error_that_says_why() -> None:
    with pytest.raises(TrainingError, match="train split is empty: 5 rows over 1 decision times"):
        split_by_time(np.zeros(5, dtype=np.int64), np.arange(5).astype(str), (0.6, 0.2, 0.2))
    with pytest.raises(TrainingError, match="no rows"):
        split_by_time(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=object), (0.6, 0.2, 0.2))
    with pytest.raises(ValueError, match="ascend"):
        split_by_time(np.array([2, 1]), np.array(["a", "b"]), (0.6, 0.2, 0.2))


def test_shares_that_do_not_sum_to_one_are_refused(tmp_path) -> None:
    with pytest.raises(TrainingError, match="sum to 1"):
        TrainConfig(samples_dir=tmp_path, models_dir=tmp_path, shares=(0.5, 0.2, 0.2))

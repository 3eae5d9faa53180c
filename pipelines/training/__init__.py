"""Samples to a model that may serve: read, split by time, fit, judge, publish. Read `trainer.py` for the run.

    train(TrainConfig(samples_dir=…, models_dir=…), progress) -> TrainReport
    list_models(models_dir), promote(models_dir, name, version, actor, reason), rollback(models_dir, name, actor, reason)

Importing this costs little: torch is imported only when `train` runs.
"""

from __future__ import annotations

from pipelines.training.config import EXIT_PROMOTED, EXIT_REFUSED, Progress, TrainConfig, TrainingError, TrainReport
from pipelines.training.gates import GateConfig
from pipelines.training.model_dir import PublishError
from pipelines.training.publish import (
    ModelEntry,
    Moved,
    history_of,
    list_models,
    promote,
    rollback,
)

__all__ = [
    "EXIT_PROMOTED",
    "EXIT_REFUSED",
    "GateConfig",
    "ModelEntry",
    "Moved",
    "Progress",
    "PublishError",
    "TrainConfig",
    "TrainReport",
    "TrainingError",
    "history_of",
    "list_models",
    "promote",
    "rollback",
    "train",
]


def train(config: TrainConfig, progress: Progress | None = None) -> TrainReport:
    """One run over a sample log; see `trainer.run`. `progress(stage, done, total, text)` is called as it goes."""
    try:
        from pipelines.training.trainer import run
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "onnx"):
            raise
        raise TrainingError(
            f"training needs {error.name}: install the extra `train` (pip install 'hailstream[train]')"
        ) from None
    return run(config, progress)

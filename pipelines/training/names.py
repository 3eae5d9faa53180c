"""The typed names that a column program may read: those of the strategy that will serve the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from engine.loader import load_strategy
from features.expr import Mistakes, Type
from features.loader import load_catalogue
from pipelines.training.config import TrainConfig, TrainingError

ROOT: Final = Path(__file__).resolve().parents[2]
STRATEGIES_DIR: Final = ROOT / "engine" / "strategies"
DEFINITIONS_DIR: Final = ROOT / "features" / "definitions"


def strategy_names(config: TrainConfig) -> Mapping[str, Type]:
    """Request fields, candidate fields and `role.feature` of the config's strategy, typed.

    Raises: TrainingError with all mistakes of the strategy or the definitions, or if the strategy is not there.
    """
    path = config.strategy_file or STRATEGIES_DIR / f"{config.strategy}.yaml"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.yaml")))
        raise TrainingError(f"{path}: no such strategy; {path.parent} has {known or 'none'}")
    try:
        catalogue = load_catalogue(config.definitions_dir or DEFINITIONS_DIR)
        return load_strategy(path, catalogue, schema_fingerprint="").names
    except Mistakes as error:
        raise TrainingError(f"strategy {config.strategy} does not compile:\n{error}") from None

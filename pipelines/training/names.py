"""The typed names that a column program may read: those of the strategy that will serve the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from engine.loader import load_strategy
from engine.strategy import CompiledStrategy
from features.expr import Mistakes
from features.loader import load_catalogue
from features.registry import local_registry
from pipelines.training.config import TrainConfig, TrainingError

ROOT: Final = Path(__file__).resolve().parents[2]
STRATEGIES_DIR: Final = ROOT / "engine" / "strategies"
DEFINITIONS_DIR: Final = ROOT / "features" / "definitions"


def strategy_of(config: TrainConfig) -> CompiledStrategy:
    """The config's strategy: `names` types request fields, candidate fields and `role.feature`.

    Features are those of the config's registry, else of its definitions as if they were applied for the first time.
    Raises: TrainingError with all mistakes of the strategy or the definitions, if the strategy is not there, or if the
    file declares another one than the samples are of.
    """
    path = config.strategy_file or STRATEGIES_DIR / f"{config.strategy}.yaml"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.yaml")))
        raise TrainingError(f"{path}: no such strategy; {path.parent} has {known or 'none'}")
    try:
        registry = config.registry or local_registry(load_catalogue(config.definitions_dir or DEFINITIONS_DIR))
        compiled = load_strategy(path, registry.catalogue, schema_fingerprint=registry.fingerprint)
    except Mistakes as error:
        raise TrainingError(f"strategy {config.strategy} does not compile:\n{error}") from None
    declared = compiled.strategy.name
    if declared != config.strategy:
        raise TrainingError(
            f"{path} declares strategy {declared!r}, but decisions of {config.strategy!r} are to be learned from: "
            f"give --strategy {declared}, or the file of {config.strategy}"
        )
    return compiled


def note_of_other_features(decisions: Mapping[str, int], ours: str) -> str | None:
    """What to say where decisions were made under other features than those that type the names, else None.

    `decisions` counts them by schema fingerprint. Other features may have the same names and types with another meaning,
    which nothing else would show.
    """
    others = {fingerprint: num for fingerprint, num in decisions.items() if fingerprint != ours}
    if not others:
        return None
    theirs = ", ".join(f"{fingerprint[:12]} in {num}" for fingerprint, num in sorted(others.items()))
    return (
        f"{sum(others.values())} of {sum(decisions.values())} decisions were made under other features than those that type "
        f"the column program (schema fingerprint {ours[:12]}; {theirs}). If a meaning changed, leave the older decisions "
        "out (--since-ms) or train with the features of then (--definitions)"
    )

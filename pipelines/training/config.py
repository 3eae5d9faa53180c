"""What a training run is asked to do, and what it answers. Read `trainer.py` next for the run itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipelines.training.gates import GateConfig

if TYPE_CHECKING:
    from features.registry import Registry

PROGRAMS_DIR: Final = Path(__file__).parent / "programs"
EXIT_PROMOTED: Final = 0
EXIT_REFUSED: Final = 3  # the run worked, the gate said no; 1 stays for errors, 2 for bad usage

# stage, steps done, steps in all, a line for people
Progress = Callable[[str, int, int, str], None]


class TrainingError(ValueError):
    """A training run that cannot give a model. The text says what was found, where, and what to do."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run, whole: the same config over the same samples gives the same weights."""

    samples_dir: Path  # the sample log (Parquet blocks with their manifests)
    models_dir: Path
    strategy: str = "express_dispatch"
    name: str = "accept"  # the model's name under models_dir; strategies refer to it as NAME@champion
    label: str = "accepted"
    program: Path | None = None  # column program; default: the shipped one of the strategy
    strategy_file: Path | None = None  # typed names; default: the shipped strategy of that name
    registry: Registry | None = None  # what is applied: the features of those names
    definitions_dir: Path | None = None  # their definitions where no registry is given; default: the shipped ones
    since_ms: int | None = None  # use decisions with since <= event time < until
    until_ms: int | None = None
    shares: tuple[float, float, float] = (0.6, 0.2, 0.2)  # train, calibration, test, in order of decision time
    min_rows: int = 200  # fewer usable samples than this is an error, not a weak model
    seed: int = 17
    hidden: tuple[int, ...] = (16,)
    members: int = 8  # small networks averaged inside one graph: steadier than one at a few thousand rows
    learning_rate: float = 4e-3
    weight_decay: float = 1e-2
    batch_rows: int = 256
    max_epochs: int = 120
    patience: int = 12  # epochs without a better log-loss of the calibration rows
    num_bootstrap: int = 400
    gate: GateConfig = field(default_factory=GateConfig)
    promote: bool = True  # move the champion when the gate passes
    actor: str = "trainer"
    reason: str = "gate passed"
    now_ms: int | None = None  # the wall clock of manifest and history; default: now

    def __post_init__(self) -> None:
        if len(self.shares) != 3 or min(self.shares) <= 0 or abs(sum(self.shares) - 1.0) > 1e-9:
            raise TrainingError(
                f"shares {self.shares}: give three positive shares (train, calibration, test) that sum to 1"
            )
        if self.registry is not None and self.definitions_dir is not None:
            raise TrainingError("give the registry or definitions_dir, not both: one of them types the features")
        for name in ("min_rows", "members", "batch_rows", "max_epochs", "patience", "num_bootstrap"):
            if getattr(self, name) < 1:
                raise TrainingError(f"{name} is {getattr(self, name)}: must be at least 1")
        if not self.hidden or min(self.hidden) < 1:
            raise TrainingError(f"hidden {self.hidden}: give at least one positive layer width")

    @property
    def program_file(self) -> Path:
        return self.program if self.program is not None else PROGRAMS_DIR / f"{self.strategy}.json"


@dataclass(frozen=True, kw_only=True)
class TrainReport:
    """What a run read, left out, learned and decided. `rows_in == rows_used + sum(left_out.values())` always holds."""

    name: str
    version: str
    path: str
    model_hash: str
    promoted: bool
    champion: str | None  # after the run
    rows_in: int
    rows_used: int
    left_out: dict[str, int]
    examples: dict[str, str]  # the first sample left out under each reason, and why
    splits: dict[str, dict[str, int]]  # name -> rows, orders, first_ms, last_ms
    metrics: dict[str, Any]
    gate: dict[str, Any]
    notes: list[str]  # what somebody should know who trusts this model
    epochs: int
    best_epoch: int
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        return EXIT_PROMOTED if self.gate["passed"] else EXIT_REFUSED

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"exit_code": self.exit_code}

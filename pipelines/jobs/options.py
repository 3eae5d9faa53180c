"""What a job may be told, and the Flink settings that follow from it. Pure data: nothing here knows Flink's classes.

`RunOptions` is what both jobs share, `JobOptions` is the feature job's, `SampleJobOptions` the sample job's. Read
`session.py` next for the session that these settings make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from features.spec import PROJECT

BATCH_ROWS: Final = 10_000  # rows of a Python bundle and of an Arrow batch: they must be equal (infra/DESIGN.md §4)
MIB: Final = 1 << 20
STATE_BACKENDS: Final = ("hashmap", "rocksdb")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where a job runs and what any job may cost."""

    kafka: str  # bootstrap servers
    project: str = PROJECT  # begins the job's name
    parallelism: int = 1
    buffer_ms: int = 20  # a record waits at most this long for its network buffer to fill
    checkpoint_ms: int = 2_000
    checkpoint_dir: str | None = None  # a URI; None: the cluster's execution.checkpointing.dir
    state_backend: str = "hashmap"  # "rocksdb" where the state does not fit into memory

    def __post_init__(self) -> None:
        self._positive("parallelism", "buffer_ms", "checkpoint_ms")
        if self.state_backend not in STATE_BACKENDS:
            raise ValueError(f"state_backend must be {' or '.join(STATE_BACKENDS)}, got {self.state_backend!r}")

    def _positive(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class JobOptions(RunOptions):
    """The feature job's. `project` is the registry's; it begins the transactions' names, too."""

    seam_ms: int | None = None  # of a staged version: it owns event times from here on, a backfill what is earlier
    max_outage_ms: int = 24 * 3600 * 1000  # how long the job may be down and still correct the tiles it had open
    mini_batch_ms: int = 100  # aggregates are sent on this often: freshness against rate
    mini_batch_rows: int = 20_000  # … or after this many rows
    bundle_ms: int = 50  # a Python step answers at least this often
    transaction_timeout_ms: int = 900_000  # above checkpoint + restart, and a broker's default limit

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("mini_batch_ms", "mini_batch_rows", "bundle_ms", "max_outage_ms")


@dataclass(frozen=True, kw_only=True)
class SampleJobOptions(RunOptions):
    """The sample job's."""

    topic_prefix: str = ""  # before the name of every topic: a replay or a test beside the live ones
    disorder_ms: int = 30_000  # ingest time: the clock runs this far behind the newest record of a partition
    idle_ms: int = 5_000  # wall time: a partition that is silent for so long no longer holds the clock back
    stamp_ahead_ms: int = 300_000  # an ingest time so far beyond the broker's receipt is a fault and moves no clock
    max_message_bytes: int = 16 * MIB  # before compression; a Decision of 100 candidates x 50 features has 39 kB

    @property
    def name(self) -> str:
        return f"{self.project}-samples"


def run_settings(name: str, options: RunOptions) -> dict[str, str]:
    """Flink's settings of any job of ours. Each one is paid for; why is said where it is not plain."""
    settings = {
        "pipeline.name": name,
        "parallelism.default": str(options.parallelism),
        "table.local-time-zone": "UTC",  # 2.2 loses rows in zones without daylight saving
        "pipeline.object-reuse": "true",
        "execution.buffer-timeout.interval": f"{options.buffer_ms} ms",
        "execution.checkpointing.interval": f"{options.checkpoint_ms} ms",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "state.backend.type": options.state_backend,
        "state.backend.incremental": "true" if options.state_backend == "rocksdb" else "false",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "2147483647",
        "restart-strategy.fixed-delay.delay": "1 s",
    }
    if options.checkpoint_dir is not None:  # above 5 MB of state a checkpoint without a directory fails, in silence
        settings["execution.checkpointing.dir"] = options.checkpoint_dir
    return settings


def feature_settings(name: str, dedup_horizon_ms: int, options: JobOptions) -> dict[str, str]:
    """The feature job's. `dedup_horizon_ms` is the longest of all sources: the duplicate counts live so long."""
    return {
        **run_settings(name, options),
        # A decoded record feeds several branches: without this each branch decodes it again.
        "table.optimizer.reuse-optimize-block-with-digest-enabled": "true",
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": f"{options.mini_batch_ms} ms",
        "table.exec.mini-batch.size": str(options.mini_batch_rows),
        "table.exec.state.ttl": f"{dedup_horizon_ms} ms",  # groups say their own in a hint
        "python.execution-mode": "process",  # vectorised functions run in no other
        "python.fn-execution.bundle.size": str(BATCH_ROWS),
        "python.fn-execution.arrow.batch.size": str(BATCH_ROWS),
        "python.fn-execution.bundle.time": str(options.bundle_ms),
        # While Redis is down the sink waits inside a bundle, and no checkpoint can pass it: that must not fail the job.
        "execution.checkpointing.timeout": "10 min",
        "execution.checkpointing.tolerable-failed-checkpoints": "1000000",
    }


def sample_settings(options: SampleJobOptions) -> dict[str, str]:
    """The sample job's. Thread mode is asserted by the function: Flink falls back to processes in silence."""
    return {**run_settings(options.name, options), "python.execution-mode": "thread"}

"""One training run, in the order in which things happen: read, split, fit, judge, publish, promote.

`pipelines.training.train` is the public entry; the parts are `dataset.py`, `split.py`, `fit.py`, `evaluate.py`,
`gates.py`, `model_dir.py` and `publish.py`. A refused model is kept as a version for whoever asks why, and is not promoted.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.model import ColumnProgram, Model, ModelError, champion_version, load_model, version_dir
from features.expr import Column, Mistakes, Type
from pipelines.sample_blocks import SampleLogError
from pipelines.sample_fold import fold
from pipelines.training.config import Progress, TrainConfig, TrainingError, TrainReport
from pipelines.training.dataset import Dataset, build_dataset, why_empty
from pipelines.training.evaluate import calibration_by_slice, evaluate
from pipelines.training.fit import Fitted, fit
from pipelines.training.gates import Champion, Verdict, judge, latency_p99
from pipelines.training.model_dir import ModelFiles, StagedModel
from pipelines.training.names import note_of_other_features, strategy_of
from pipelines.training.network import predict, to_onnx, weights_of
from pipelines.training.publish import promote
from pipelines.training.split import NAMES, Split, split_by_time

if TYPE_CHECKING:
    import pyarrow as pa

LATENCY_CANDIDATES = 20


def run(config: TrainConfig, progress: Progress | None = None) -> TrainReport:
    """Train, judge and publish one model; promote it if the gate passes and the config says so.

    Raises: TrainingError if there are too few usable samples or they cannot teach anything, with the reasons counted;
    PublishError if the model cannot be written; ModelError if the exported graph differs from the network.
    """
    try:
        table = fold(config.samples_dir)
    except SampleLogError as error:
        raise TrainingError(str(error)) from None
    strategy = strategy_of(config)
    return train_on(table, strategy.names, config, progress, schema_fingerprint=strategy.schema_fingerprint)


def train_on(
    table: pa.Table, names: Mapping[str, Type], config: TrainConfig, progress: Progress | None = None,
    *, schema_fingerprint: str | None = None,
) -> TrainReport:  # fmt: skip
    """`run` on samples and typed names that are at hand. `schema_fingerprint`: of the features that type the names."""
    steps = _Steps(progress)
    if table.num_rows == 0:
        raise TrainingError(
            f"the sample log {config.samples_dir} is empty: run the sample job, and write its topic to Parquet first"
        )
    entries, program = _program(config, names)
    champion, champion_problem = _champion(config, names)
    with steps.timed("read", table.num_rows, "samples"):
        data = build_dataset(
            table, names, strategy=config.strategy, label=config.label, needed=program.reads,
            wanted=champion.program.reads if champion else (), since_ms=config.since_ms, until_ms=config.until_ms,
            on_row=steps.at,
        )  # fmt: skip
    note = note_of_other_features(data.made_under, schema_fingerprint) if schema_fingerprint else None
    notes = [note] if note else []
    if data.num_rows < config.min_rows:
        raise TrainingError(". ".join([f"{config.min_rows} usable samples are needed; {why_empty(data)}", *notes]))
    split = split_by_time(data.event_time_ms, data.order_id, config.shares)
    data.left_out["order_spans_splits"] += len(split.spanning)
    x = data.inputs(program)
    with steps.timed("fit", config.max_epochs, "epochs"):
        fitted = fit(
            x[split.train], data.label[split.train], x[split.calibration], data.label[split.calibration], config,
            steps.at,
        )  # fmt: skip
    with steps.timed("evaluate", 1, "test rows"):
        metrics = _metrics(data, split, x, fitted, config)
    files = _files(data, split, x, program, entries, fitted, metrics)
    manifest = _manifest(data, split, program, metrics, config)
    with steps.timed("publish", 1, "model"), StagedModel(config.models_dir, config.name, files, manifest) as staged:
        served = load_model(staged.path)  # every hash, and the graph against the network on the golden rows
        verdict = _judge(served, data, split, metrics, champion, champion_problem, config)
        version = staged.publish(verdict.to_dict())
        promoted = verdict.passed and config.promote
        if promoted:
            promote(config.models_dir, config.name, version, config.actor, config.reason, now_ms=config.now_ms)
    return TrainReport(
        name=config.name, version=version, path=str(staged.path), model_hash=staged.model_hash, promoted=promoted,
        champion=champion_version(config.models_dir, config.name), rows_in=data.rows_in,
        rows_used=data.num_rows - len(split.spanning), left_out=_counted(data), examples=dict(data.examples),
        splits=_splits(data, split), metrics=metrics, gate=verdict.to_dict(), notes=notes,
        epochs=fitted.epochs, best_epoch=fitted.best_epoch, seconds=steps.seconds,
    )  # fmt: skip


def _program(config: TrainConfig, names: Mapping[str, Type]) -> tuple[list[dict[str, Any]], ColumnProgram]:
    path = config.program_file
    try:
        entries = json.loads(path.read_bytes())
        return entries, ColumnProgram.load(entries, names, file=str(path))
    except FileNotFoundError:
        raise TrainingError(f"{path}: no column program there; write one, or name one with --program") from None
    except json.JSONDecodeError as error:
        raise TrainingError(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from None
    except (ModelError, Mistakes) as error:
        raise TrainingError(
            f"the column program does not compile over the names of {config.strategy}:\n{error}"
        ) from None


def _champion(config: TrainConfig, names: Mapping[str, Type]) -> tuple[Model | None, str | None]:
    """The serving model, or why it cannot be compared with."""
    version = champion_version(config.models_dir, config.name)
    if version is None:
        return None, None
    try:
        model = load_model(version_dir(config.models_dir, config.name, version))
    except ModelError as error:
        return None, f"{version}: {error}"
    gone = [
        name
        for name in sorted(model.program.reads)
        if name not in names or names[name].kind != model.program.names[name].kind
    ]
    if gone:
        return None, f"{version} reads {', '.join(gone)}, which the strategy no longer has"
    if model.manifest.get("label") != config.label:
        return None, f"{version} predicts {model.manifest.get('label')!r}, not {config.label!r}"
    return model, None


def _metrics(
    data: Dataset, split: Split, x: NDArray[np.float32], fitted: Fitted, config: TrainConfig
) -> dict[str, Any]:
    """Metrics of every split; `test` is the one to believe."""
    base_rate = float(data.label[split.train].mean())
    p = predict(fitted.network, x)
    out: dict[str, Any] = {}
    for name in NAMES:
        rows = getattr(split, name)
        out[name] = evaluate(p[rows], data.label[rows], data.order_id[rows], base_rate=base_rate, seed=config.seed,
                             num_bootstrap=config.num_bootstrap)  # fmt: skip
    slices = {name: [values[row] for row in split.test] for name, values in data.slices.items()}
    out["test_slices"] = calibration_by_slice(p[split.test], data.label[split.test], slices)
    slope, shift = fitted.network.platt.tolist()
    out["calibration_map"] = {"slope": slope, "shift": shift}
    return out


def _files(
    data: Dataset, split: Split, x: NDArray[np.float32], program: ColumnProgram, entries: list[dict[str, Any]],
    fitted: Fitted, metrics: Mapping[str, Any],
) -> ModelFiles:  # fmt: skip
    golden_x = _golden_rows(x[split.test], program)
    report = {
        "rows_in": data.rows_in, "rows_used": data.num_rows - len(split.spanning), "left_out": _counted(data),
        "splits": _splits(data, split), "fingerprints": dict(sorted(Counter(data.fingerprint_N).items())),
        "epochs": fitted.epochs, "best_epoch": fitted.best_epoch, "losses": fitted.losses, "metrics": dict(metrics),
    }  # fmt: skip
    return ModelFiles(
        onnx=to_onnx(fitted.network), program=entries, golden_x=golden_x, golden_p=predict(fitted.network, golden_x),
        weights=weights_of(fitted.network), report=report,
    )  # fmt: skip


def _golden_rows(x_test: NDArray[np.float32], program: ColumnProgram, num_rows: int = 64) -> NDArray[np.float32]:
    """Test rows spread over time, each column's extremes, the all-filled row and wild values: (n, F) float32."""
    spread = x_test[np.linspace(0, len(x_test) - 1, min(num_rows, len(x_test))).astype(int)]
    fills = np.array([[fill for _, _, fill in program.columns]], dtype=np.float32)
    edges = np.stack([x_test.min(axis=0), x_test.max(axis=0)])
    return np.concatenate([spread, edges, fills, np.full_like(fills, 1e9), np.full_like(fills, -1e9)])


def _judge(
    served: Model, data: Dataset, split: Split, metrics: Mapping[str, Any], champion: Model | None,
    champion_problem: str | None, config: TrainConfig,
) -> Verdict:  # fmt: skip
    """The gate, on what the served graph says (not the network it came from)."""
    y, rows = data.label[split.test], split.test
    other = None
    if champion is not None:
        through = champion.manifest.get("trained_through_ms")
        seen = int(np.sum(data.event_time_ms[rows] <= through)) if through is not None else 0
        other = Champion(
            version=champion.version, p_N=champion.run(data.inputs(champion.program, rows)), seen_rows=seen
        )
    few = rows[np.arange(LATENCY_CANDIDATES) % len(rows)]
    columns = {
        name: Column(data.columns[name].values[few], data.columns[name].valid[few]) for name in served.program.reads
    }
    p99_ms = latency_p99(lambda: served.score(columns, LATENCY_CANDIDATES), time.thread_time)
    return judge(
        served.run(data.inputs(served.program, rows)), y, data.order_id[rows], metrics["test"], champion=other,
        champion_problem=champion_problem, latency_p99_ms=p99_ms, config=config.gate, seed=config.seed,
        num_bootstrap=config.num_bootstrap,
    )  # fmt: skip


def _manifest(
    data: Dataset, split: Split, program: ColumnProgram, metrics: Mapping[str, Any], config: TrainConfig
) -> dict[str, Any]:
    test = metrics["test"]
    created_ms = int(time.time() * 1000) if config.now_ms is None else config.now_ms
    return {
        "strategy": config.strategy,
        "label": config.label,
        "created_ms": created_ms,
        "trained_through_ms": int(data.event_time_ms[split.calibration[-1]]),
        "names": {name: str(program.names[name]) for name in sorted(program.reads)},
        # The newest: earlier rows may come from earlier catalogues, report.json counts them all.
        "schema_fingerprint": data.newest_fingerprint,
        "metrics": {
            "rows": test["rows"], "log_loss": test["log_loss"], "base_log_loss": test["base_log_loss"], "auc": test["auc"],
            "ece": test["ece"], "ece_band": test["ece_band"], "observed_rate": test["observed_rate"],
        },
    }  # fmt: skip


def _splits(data: Dataset, split: Split) -> dict[str, dict[str, int]]:
    out = {}
    for name in NAMES:
        rows = getattr(split, name)
        out[name] = {
            "rows": len(rows), "orders": len(set(data.order_id[rows])), "positives": int(data.label[rows].sum()),
            "first_ms": int(data.event_time_ms[rows[0]]), "last_ms": int(data.event_time_ms[rows[-1]]),
        }  # fmt: skip
    return out


def _counted(data: Dataset) -> dict[str, int]:
    return {reason: count for reason, count in sorted(data.left_out.items()) if count}


class _Steps:
    """Progress to the caller's callback, and the seconds of each stage."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._stage, self._total, self._unit = "", 0, ""
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timed(self, stage: str, total: int, unit: str) -> Iterator[None]:
        self._stage, self._total, self._unit = stage, total, unit
        started = time.perf_counter()
        self.at(0)
        yield
        self.seconds[stage] = round(time.perf_counter() - started, 3)
        self.at(total)

    def at(self, done: int, text: str | None = None) -> None:
        if self._progress is not None:
            self._progress(self._stage, done, self._total, text or self._unit)

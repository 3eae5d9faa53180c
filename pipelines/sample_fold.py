"""The fold: from a log of Sample versions to one row per sample. `sample_log.py` writes the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.sample_blocks import LABEL, TIME, SampleLogError, all_but_decision, read_blocks, table_of


def fold(log_dir: Path | str, *, payload: bool = True) -> pa.Table:
    """One row per sample: its latest labels, and (with `payload`) the Decision's JSON that came with version 1.

    Columns: sample_id, strategy, order_id, event_time_ms, version, kind, closed, propensity_valid, for each label `<label>` (int8,
    null: not known or not asked) and `<label>_time_ms`, and decision (bytes). Sorted by (event_time_ms, sample_id).
    The latest version is the last in the log, but never one that has fewer positives: a job that was restarted from an
    older state repeats itself behind what it wrote before, and a positive label is never taken back.
    Raises: SampleLogError for damaged or missing files, and for a sample without its version 1.
    """
    wanted = None if payload else all_but_decision
    tables = [table for _, table in read_blocks(Path(log_dir), wanted)]
    log = pa.concat_tables(tables, promote_options="default") if tables else table_of(0, [])
    names = sorted(name.removeprefix(LABEL) for name in log.column_names if name.startswith(LABEL))
    sample_of_row = log["sample_id"].combine_chunks().dictionary_encode()
    codes = np.asarray(sample_of_row.indices)
    num_positive = np.zeros(log.num_rows, np.int64)
    for name in names:
        num_positive += np.asarray(log[LABEL + name].fill_null(0)) == 1
    partition, offset = np.asarray(log["partition"]), np.asarray(log["offset"])
    order = np.lexsort((offset, partition, num_positive, codes))
    latest = order[_last_of_each(codes[order])]
    columns: dict[str, Any] = {
        name: log[name].take(latest)
        for name in (
            "sample_id",
            "strategy",
            "order_id",
            "event_time_ms",
            "version",
            "kind",
            "closed",
            "propensity_valid",
        )
    }
    for name in names:
        columns[name] = log[LABEL + name].take(latest)
        columns[f"{name}_time_ms"] = log[TIME + name].take(latest)
    if payload:
        columns["decision"] = log["decision"].take(_payload_rows(log, codes, len(latest)))
    return pa.table(columns).sort_by([("event_time_ms", "ascending"), ("sample_id", "ascending")])


def count_kinds(samples: pa.Table) -> dict[str, int]:
    """How many samples of a fold are of each kind."""
    counts = {row["values"]: row["counts"] for row in pc.value_counts(samples["kind"]).to_pylist()}
    return dict(sorted(counts.items()))


def _last_of_each(sorted_codes: np.ndarray) -> np.ndarray:
    """Positions of the last row of each run of equal codes."""
    if len(sorted_codes) == 0:
        return np.empty(0, np.int64)
    return np.flatnonzero(np.append(sorted_codes[1:] != sorted_codes[:-1], True))


def _payload_rows(log: pa.Table, codes: np.ndarray, num_samples: int) -> np.ndarray:
    """For each sample (in order of code) the row that carries its Decision: the first, should there be several."""
    with_payload = np.flatnonzero(np.asarray(log["decision"].is_valid()))
    present, first = np.unique(codes[with_payload], return_index=True)
    if len(present) < num_samples:
        lost = np.setdiff1d(np.arange(num_samples), present)
        example = log["sample_id"].take(np.flatnonzero(codes == lost[0])[:1]).to_pylist()[0]
        raise SampleLogError(
            f"{len(lost)} samples have no version 1 with the decision in this log, for example '{example}'"
        )
    return with_payload[first]

"""One run of one point-in-time join in a process of its own: `python -m tests.bench.join_variants VARIANT FOLDER`.

Prints CPU and wall seconds of the join alone (imports, the frame and a warm-up on ten rows come before) and the process's
peak memory; writes the answer beside, sorted by row, for the comparison. Used by bench_features_join.py.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

NUM_FEATURES = 10
NAMES = [f"f{i}" for i in range(NUM_FEATURES)]


def catalogue() -> Any:
    """One batch view with ten columns."""
    from features.spec import BatchSource, Catalogue, FeatureSpec, FeatureView, single_key

    driver = single_key("driver", "driver_id", "int")
    source = BatchSource(
        name="ratings", path="features.parquet", schema={"driver_id": "int", **dict.fromkeys(NAMES, "double?")},
        event_time="event_time", ingest_time="created",
    )  # fmt: skip
    features = tuple(FeatureSpec(name=name, column=name, type="double", nullable=True) for name in NAMES)
    view = FeatureView(
        name="ratings", entity=driver, source=source, key_fields=("driver_id",), max_age_ms=10**12, features=features
    )
    return Catalogue(entities={"driver": driver}, sources={"ratings": source}, views={"ratings": view})


def ours(folder: Path, *, known: bool) -> Callable[[int | None], pa.Table]:
    from features.history import history

    declared = catalogue()
    frame = pq.read_table(folder / "frame.parquet")

    def join(num_rows: int | None) -> pa.Table:
        asked = frame if num_rows is None else frame.slice(0, num_rows)
        answer = history(declared, asked, ["ratings.*"], folder=folder, event_time_only=not known)
        return answer.rename_columns([name.removeprefix("ratings.") for name in answer.column_names])

    return join


def feast(folder: Path, store: str, *, known: bool) -> Callable[[int | None], pa.Table]:
    import pandas as pd
    from feast import Entity, FeatureStore, FeatureView, Field, FileSource, RepoConfig, ValueType
    from feast.types import Float64

    config = RepoConfig(
        project="bench", provider="local", registry=str(folder / f"registry-{store}-{known}.db"), online_store=None,
        offline_store={"type": store}, entity_key_serialization_version=3, repo_path=folder,
    )  # fmt: skip
    source = FileSource(
        name="ratings",
        path=str(folder / "features.parquet"),
        timestamp_field="event_time",
        created_timestamp_column="created",
    )
    driver = Entity(name="driver", join_keys=["driver_id"], value_type=ValueType.INT64)
    view = FeatureView(
        name="ratings", entities=[driver], ttl=timedelta(0), source=source, online=False,
        schema=[Field(name=name, dtype=Float64) for name in NAMES],
    )  # fmt: skip
    features = FeatureStore(config=config)
    features.apply([driver, view])
    frame = pq.read_table(folder / "frame.parquet").to_pandas()
    frame["event_timestamp"] = pd.to_datetime(frame.pop("as_of_ms"), unit="ms", utc=True)

    def join(num_rows: int | None) -> pa.Table:
        asked = frame if num_rows is None else frame.head(num_rows)
        options: dict[str, Any] = {"filter_by_created_timestamp": True} if known else {}
        job = features.get_historical_features(asked, [f"ratings:{name}" for name in NAMES], **options)
        return job.to_arrow()

    return join


VARIANTS: dict[str, Callable[[Path], Callable[[int | None], pa.Table]]] = {
    "ours": lambda folder: ours(folder, known=False),
    "ours, as known": lambda folder: ours(folder, known=True),
    "feast dask": lambda folder: feast(folder, "dask", known=False),
    "feast duckdb": lambda folder: feast(folder, "duckdb", known=False),
    "feast duckdb, as known": lambda folder: feast(folder, "duckdb", known=True),
}


def main() -> None:
    variant, folder = sys.argv[1], Path(sys.argv[2])
    join = VARIANTS[variant](folder)
    join(10)
    cpu, wall = time.process_time(), time.perf_counter()
    answer = join(None)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    answer = answer.select(["row", *NAMES]).sort_by("row")
    pq.write_table(answer, folder / f"{variant}.parquet")
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"cpu_s": cpu, "wall_s": wall, "peak_mib": peak_mib, "rows": answer.num_rows}))


if __name__ == "__main__":
    main()

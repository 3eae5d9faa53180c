"""What a read makes of stored values, over the store in memory."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from features.loader import SHIPPED, load_catalogue
from features.read_plan import compile_read_plan
from features.registry import local_registry
from features.rows import Status
from features.store import InMemoryStore


@pytest.mark.parametrize(
    ("default", "status", "value"), [(", default: 0.8", Status.DEFAULT, 0.8), ("", Status.NULL, None)]
)
def test_nan_of_a_derived_feature_is_null(tmp_path: Path, default: str, status: Status, value: float | None) -> None:
    definitions = tmp_path / "definitions"
    shutil.copytree(SHIPPED, definitions)
    view = definitions / "views" / "driver_activity.yaml"
    derived = f'  share: {{expr: "double(accepts_24h) / double(offers_24h)"{default}}}\n'  # 0.0 / 0.0 of a new driver
    view.write_text(view.read_text().replace("features:\n", f"features:\n{derived}", 1))
    registry = local_registry(load_catalogue(definitions))
    store = InMemoryStore(registry.project)
    none = np.zeros(0, dtype=np.int64)
    for group in registry.catalogue.tile_groups():  # a heartbeat: the view is live and has no event of this driver
        partials = [none for _ in group.partials]
        store.write_tiles(
            group, registry.generation_of(group.name), [], none, none, partials, applied_through_ms=600_000
        )
    for last in registry.catalogue.last_groups():
        values: dict[str, list[object]] = {field.name: [] for field in last.fields}
        store.write_last(last, registry.generation_of(last.name), [], none, [], values, applied_through_ms=600_000)
    plan = compile_read_plan(registry, {"driver": "driver_activity"})
    batch = store.read(plan, {"driver": ["d-1"]}, 600_001)["driver"]
    at = batch.names.index("share")
    assert batch.statuses[0, at] == status
    assert (batch.columns["share"][0] if batch.valid["share"][0] else None) == value

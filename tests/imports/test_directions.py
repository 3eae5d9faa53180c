"""The arrows between the rooms point one way, heavy libraries stay in their files, and light imports stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("features", "kernels", "engine", "pipelines", "infra")
MAY_IMPORT = {
    "kernels": set[str](),
    "features": set[str](),
    "engine": {"features", "kernels"},
    "pipelines": {"features"},
    "pipelines/training": {"features", "engine", "kernels"},
    "pipelines/sim": {"features", "engine", "kernels"},
    "infra": {"features", "kernels", "engine", "pipelines"},
}
# A library with a start-up cost or a server behind it, and the only files (or folders) that may name it.
ONLY_IN = {
    "feast": {"features/feast_store.py"},
    "redis": {
        "features/redis_client.py",
        "features/redis_keys.py",
        "features/redis_scripts.py",
        "features/feast_store.py",
    },
    "duckdb": {
        "features/parquet.py",
        "features/history_joins.py",
        "features/batch_history.py",
        "features/role_history.py",
        "features/export.py",
        "features/backfill.py",
    },
    "pyflink": {"pipelines/sink.py", "pipelines/jobs"},
    "onnxruntime": {"engine/model.py"},
    "confluent_kafka": {"features/topics.py"},
    "kafka": {"features/topics.py"},
    "torch": {"pipelines/training"},
    "onnx": {"pipelines/training"},
}
HEAVY = ("torch", "feast", "pyflink", "pandas", "onnx", "duckdb")


def modules() -> Iterator[tuple[str, Path]]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path


def imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module


def bent_arrows() -> list[str]:
    bent = []
    for name, path in modules():
        room = name.split("/")[0]
        place = "/".join(name.split("/")[:2])
        allowed = MAY_IMPORT.get(place, MAY_IMPORT[room]) | {room}
        for line, module in imports(path):
            top = module.split(".")[0]
            if top in ROOMS and top not in allowed:
                bent.append(f"{name}:{line}: {room} imports {module}")
    return bent


def test_arrows_between_rooms_point_one_way() -> None:
    assert bent_arrows() == []


def test_training_never_learns_the_simulations_truth() -> None:
    for name, path in modules():
        if name.startswith("pipelines/training/"):
            for line, module in imports(path):
                assert not module.startswith("pipelines.sim"), f"{name}:{line}: training imports {module}"


def test_each_service_is_named_in_its_own_file_only() -> None:
    stray = []
    for name, path in modules():
        for line, module in imports(path):
            allowed = ONLY_IN.get(module.split(".")[0])
            if allowed is not None and not any(name == a or name.startswith(a + "/") for a in allowed):
                stray.append(f"{name}:{line}: {module} belongs in {sorted(allowed)}")
    assert stray == []


@pytest.mark.parametrize(
    "module",
    ["features.records", "features.registry", "features.history", "engine.server", "engine.client", "infra.cli"],
)
def test_light_modules_import_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert loaded.stdout.split() == []

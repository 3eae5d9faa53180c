"""The local Flink cluster: one JobManager and one TaskManager from the PyFlink wheel's own scripts.

The jars that jobs need lie in a lib folder of ours (links), not in the jobs: shipped per job, a TaskManager ran out of
metaspace at its fourth job. The Python side gets this environment's site-packages and the checkout on PYTHONPATH
before the JVM starts, or thread mode does not find `pemja` and restarts silently.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

import msgspec
import yaml

from infra.local.home import CHECKOUT
from infra.local.process import Running, start
from infra.local.programs import StackError, flink_home, jar_folder, java_home, site_packages

TASK_SLOTS = 4


def prepare_flink(folder: Path, *, rest_port: int, rpc_port: int) -> None:
    """Write configuration and lib links. Raises: StackError, also for paths that Flink's own scripts cannot take."""
    for path in (folder, flink_home()):
        if any(character.isspace() for character in str(path)):
            raise StackError(
                f"Flink's scripts do not work in a path with a space: '{path}'. Name another folder by HAILSTREAM_HOME, "
                "or move the checkout"
            )
    (folder / "conf").mkdir(parents=True, exist_ok=True)
    for name in ("checkpoints", "savepoints", "tmp"):
        (folder / name).mkdir(exist_ok=True)
    _link_jars(folder / "lib")
    _link_log_settings(folder / "conf", flink_home() / "conf")
    shipped = yaml.safe_load((flink_home() / "conf" / "config.yaml").read_text())
    config: dict[str, object] = {
        "env.java.opts.all": shipped["env"]["java"]["opts"]["all"],  # the add-opens list: extend it, never shorten it
        "jobmanager.rpc.address": "127.0.0.1",
        "jobmanager.rpc.port": rpc_port,
        "jobmanager.bind-host": "127.0.0.1",
        "jobmanager.memory.process.size": "1200m",
        "jobmanager.memory.jvm-metaspace.size": "512m",
        "taskmanager.bind-host": "127.0.0.1",
        "taskmanager.host": "127.0.0.1",
        "taskmanager.memory.process.size": "2000m",
        "taskmanager.memory.jvm-metaspace.size": "512m",
        "taskmanager.memory.managed.size": "128m",
        "taskmanager.memory.network.max": "96m",
        "taskmanager.numberOfTaskSlots": TASK_SLOTS,
        "rest.address": "127.0.0.1",
        "rest.bind-address": "127.0.0.1",
        "rest.port": rest_port,
        "parallelism.default": 1,
        "heartbeat.interval": 2000,
        "heartbeat.timeout": 10000,
        "io.tmp.dirs": str(folder / "tmp"),
        "blob.storage.directory": str(folder / "tmp" / "blobs"),
        "execution.checkpointing.dir": (folder / "checkpoints").as_uri(),
        "execution.checkpointing.savepoint-dir": (folder / "savepoints").as_uri(),
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
        "web.submit.enable": False,
    }
    (folder / "conf" / "config.yaml").write_text(
        "".join(f"{key}: {json.dumps(value)}\n" for key, value in config.items())
    )


def flink_env(folder: Path) -> dict[str, str]:
    """The environment of Flink's processes and of the clients that submit jobs to them."""
    return {
        "JAVA_HOME": str(java_home()),
        "FLINK_HOME": str(flink_home()),
        "FLINK_CONF_DIR": str(folder / "conf"),
        "FLINK_LIB_DIR": str(folder / "lib"),  # PyFlink's client overwrites it when FLINK_HOME is unset
        "FLINK_LOG_DIR": str(folder.parent / "logs"),
        "FLINK_PID_DIR": str(folder / "tmp"),
        "PYTHONPATH": f"{site_packages()}:{CHECKOUT}",
        "MALLOC_ARENA_MAX": "2",
        "OMP_NUM_THREADS": "1",
    }


def start_jobmanager(folder: Path, *, stack_id: str, log: Path) -> Running:
    """Start the JobManager. Raises: StackError."""
    return _start("jobmanager", folder, stack_id=stack_id, log=log)


def start_taskmanager(folder: Path, *, metrics_port: int, stack_id: str, log: Path) -> Running:
    """Start the TaskManager. Start it after the JobManager answers: both at once take twice as long.

    At `metrics_port` it answers `GET /metrics` with what its jobs count (pipelines/step_metrics.py), for Prometheus.
    """
    reporter = "metrics.reporter.prometheus"
    settings = {
        "metrics.reporters": "prometheus",
        f"{reporter}.factory.class": "org.apache.flink.metrics.prometheus.PrometheusReporterFactory",
        f"{reporter}.port": metrics_port,
        f"{reporter}.filterLabelValueCharacters": "false",  # a group is called here as everywhere
    }
    return _start("taskmanager", folder, *(f"-D{k}={v}" for k, v in settings.items()), stack_id=stack_id, log=log)


def num_taskmanagers(rest_port: int) -> int | None:
    """How many TaskManagers the JobManager knows, None while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{rest_port}/overview", timeout=2) as answer:
            return int(msgspec.json.decode(answer.read())["taskmanagers"])
    except (urllib.error.URLError, OSError, KeyError, msgspec.DecodeError):
        return None


def _start(name: str, folder: Path, *settings: str, stack_id: str, log: Path) -> Running:
    command = ["bash", str(flink_home() / "bin" / f"{name}.sh"), "start-foreground", *settings]
    return start(name, command, env=flink_env(folder), stack_id=stack_id, cwd=folder, log=log)


def _link_jars(lib: Path) -> None:
    lib.mkdir(exist_ok=True)
    for old in lib.iterdir():
        old.unlink()
    jars = [*(flink_home() / "lib").glob("*.jar"), *(flink_home() / "opt").glob("flink-python-*.jar")]
    jars += jar_folder("flink").glob("*.jar")
    if not any(jar.name.startswith("flink-python-") for jar in jars):
        raise StackError(
            f"no flink-python jar in {flink_home() / 'opt'}: the apache-flink package is incomplete; `make setup`"
        )
    for jar in jars:
        (lib / jar.name).symlink_to(jar.resolve())


def _link_log_settings(conf: Path, shipped: Path) -> None:
    for name in ("log4j-console.properties", "log4j-cli.properties", "log4j.properties", "log4j-session.properties"):
        target = conf / name
        target.unlink(missing_ok=True)
        target.symlink_to((shipped / name).resolve())

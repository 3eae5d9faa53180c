"""The local Kafka broker: one node in KRaft mode, straight from the Maven jars."""

from __future__ import annotations

import base64
import subprocess
import uuid
from pathlib import Path

from infra.local.process import Running, start
from infra.local.programs import StackError, jar_folder, java_home

# Small heaps and short sessions: after a kill -9 the broker waits for its own old session, 12.5 s by default.
CONFIG = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
transaction.max.timeout.ms=3600000
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
log.cleaner.dedupe.buffer.size=16777216
"""
LOG4J = """\
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{ISO8601} %p %c{1}: %m%n
rootLogger.level=WARN
rootLogger.appenderRef.console.ref=console
logger.server.name=kafka.server.KafkaRaftServer
logger.server.level=INFO
"""
STARTED = "Kafka Server started"


def start_kafka(folder: Path, port: int, controller_port: int, *, stack_id: str, log: Path) -> Running:
    """Format the storage on first use, then start the broker. Raises: StackError."""
    folder.mkdir(parents=True, exist_ok=True)
    config, log4j = folder / "server.properties", folder / "log4j2.properties"
    config.write_text(CONFIG.format(folder=folder, port=port, controller_port=controller_port))
    log4j.write_text(LOG4J)
    java = str(java_home() / "bin" / "java")
    classpath = f"{jar_folder('broker')}/*"
    if not (folder / "data" / "meta.properties").exists():
        _format(java, classpath, config, log4j)
    log.unlink(missing_ok=True)  # readiness is read from the log: an old line must not count
    command = [
        java, "-Xmx384m", "-Xms128m", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError",
        f"-Dlog4j2.configurationFile={log4j}", "-cp", classpath, "kafka.Kafka", str(config),
    ]  # fmt: skip
    env = {"MALLOC_ARENA_MAX": "2"}
    return start("kafka", command, env=env, stack_id=stack_id, cwd=folder, log=log)


def kafka_ready(log: Path) -> bool:
    """Whether the broker said that it started."""
    return log.exists() and STARTED in log.read_text(errors="replace")


def _format(java: str, classpath: str, config: Path, log4j: Path) -> None:
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    done = subprocess.run(
        [java, "-Xmx128m", f"-Dlog4j2.configurationFile={log4j}", "-cp", classpath, "kafka.tools.StorageTool", "format",
         "-t", cluster_id, "-c", str(config)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise StackError(f"Kafka's storage could not be formatted:\n{done.stdout}{done.stderr}")

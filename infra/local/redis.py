"""The local Redis: loopback, append-only file, one folder."""

from __future__ import annotations

import socket
from pathlib import Path

from infra.local.process import Running, start
from infra.local.programs import redis_server

CONFIG = """\
bind 127.0.0.1
port {port}
protected-mode yes
daemonize no
dir "{folder}"
appendonly yes
appendfsync everysec
save ""
maxmemory-policy noeviction
tcp-backlog 128
"""


def start_redis(folder: Path, port: int, *, stack_id: str, log: Path) -> Running:
    """Start Redis on `port` with its data in `folder`. Raises: StackError."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "redis.conf"
    config.write_text(CONFIG.format(port=port, folder=folder))
    return start("redis", [str(redis_server()), str(config)], env={}, stack_id=stack_id, cwd=folder, log=log)


def redis_ready(port: int) -> bool:
    """Whether Redis answers PING with PONG (while it loads its file it answers with an error)."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False

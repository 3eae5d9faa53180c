"""`hailstream serve`: the engine. Its strategies are under `infra/commands/strategies.py`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from infra.commands.output import Kafka, RedisUrl, err, kafka_or_local, plain_errors, redis_or_local
from infra.local.home import home

PORT = 8500
Strategies = Annotated[
    Path | None,
    typer.Option(envvar="HAILSTREAM_STRATEGIES", help="Folder of strategy files (default: the shipped ones)"),
]
Models = Annotated[Path | None, typer.Option(help="Folder of models (default: <home>/models)")]


def models_dir(given: Path | None) -> Path:
    return given or home() / "models"


def serve(
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = PORT,
    host: Annotated[str, typer.Option(help="Loopback only, unless --allow-remote.")] = "127.0.0.1",
    strategies: Strategies = None,
    models: Models = None,
    allow_remote: Annotated[bool, typer.Option(help="Listen beyond loopback; there is no authentication yet.")] = False,
    decision_log: Annotated[bool, typer.Option(help="Log each Decision to Kafka; off to try strategies out.")] = True,
    redis: RedisUrl = None,
    kafka: Kafka = None,
) -> None:
    """Serve decisions over HTTP until SIGTERM: POST /v1/strategies/NAME/decide (engine/WIRE.md)."""
    from engine.server import SHIPPED_STRATEGIES, ServeConfig
    from engine.server import serve as serve_engine

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with plain_errors():
        try:
            config = ServeConfig(
                redis_url=redis_or_local(redis),
                kafka=kafka_or_local(kafka) if decision_log else None,
                models_dir=models_dir(models),
                spill_dir=home() / "spill",
                fused_dir=home() / "fused",
                strategies_dir=strategies or SHIPPED_STRATEGIES,
                host=host,
                port=port,
                allow_remote=allow_remote,
            )
            serve_engine(config, announce=lambda line: print(line, flush=True))
        except (ValueError, OSError, RuntimeError) as error:
            err.print(f"error: {error}", style="red", markup=False)
            raise typer.Exit(2) from None

"""`hailstream serve` and `hailstream strategies check | list`: the engine."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from infra.commands.output import (
    Json,
    Kafka,
    RedisUrl,
    err,
    kafka_or_local,
    out,
    plain_errors,
    print_json,
    print_table,
    redis_or_local,
)
from infra.local.home import home

app = typer.Typer(no_args_is_help=True, help="Strategies: check files, list what an engine serves.")
PORT = 8500
Strategies = Annotated[Path | None, typer.Option(help="Folder of strategy files (default: the shipped ones)")]
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
                strategies_dir=strategies or SHIPPED_STRATEGIES,
                host=host,
                port=port,
                allow_remote=allow_remote,
            )
            serve_engine(config, announce=lambda line: print(line, flush=True))
        except (ValueError, OSError, RuntimeError) as error:
            err.print(f"error: {error}", style="red", markup=False)
            raise typer.Exit(2) from None


@app.command()
def check(
    folder: Annotated[Path | None, typer.Argument(help="Folder of strategy files. (default: the shipped ones)")] = None,
    definitions: Annotated[
        Path | None, typer.Option(help="Check against this folder of feature definitions, instead of what is applied.")
    ] = None,
    redis: RedisUrl = None,
    json: Json = False,
) -> None:
    """Compile every strategy and show all mistakes, each with file, line and column. Exit code 1 if there are any."""
    from engine.loader import load_strategy
    from engine.server import SHIPPED_STRATEGIES
    from features.expr import Mistakes
    from features.loader import load_catalogue
    from features.registry import load_registry, local_registry

    with plain_errors(FileNotFoundError):
        registry = local_registry(load_catalogue(definitions)) if definitions else load_registry(redis_or_local(redis))
        mistakes, found = [], []
        paths = sorted((folder or SHIPPED_STRATEGIES).glob("*.yaml"))
        for path in paths:
            try:
                compiled = load_strategy(path, registry.catalogue, schema_fingerprint=registry.fingerprint)
                strategy = compiled.strategy
                found.append(
                    {
                        "strategy": strategy.name,
                        "version": strategy.version,
                        "hash": strategy.hash[:12],
                        "file": str(path),
                    }
                )
            except Mistakes as error:
                mistakes += error.items
    if json:
        print_json({"strategies": found, "mistakes": [asdict(mistake) for mistake in mistakes]})
    else:
        print_table(found, empty=f"no strategy file (*.yaml) in {folder or SHIPPED_STRATEGIES}")
        if mistakes:
            err.print(str(Mistakes(mistakes)), style="red", markup=False)
    raise typer.Exit(1 if mistakes or not paths else 0)


@app.command("list")
def list_(
    url: Annotated[str, typer.Option(help="The engine's address.")] = f"http://127.0.0.1:{PORT}", json: Json = False
) -> None:
    """Show what a running engine serves: strategy versions, models, experiments, and what it refused."""
    from engine.client import EngineClient

    with plain_errors(), EngineClient(url) as client:
        live = client.strategies()
    if json:
        print_json(live)
        return
    print_table(
        [
            {
                "strategy": name,
                "version": strategy["version"],
                "hash": strategy["hash"][:12],
                "models": ", ".join(
                    f"{use} = {model['model'] if model else 'none yet'}" for use, model in strategy["models"].items()
                )
                or "-",
                "experiments": ", ".join(f"{e} {arms}" for e, arms in strategy["experiments"].items()) or "-",
            }
            for name, strategy in sorted(live["strategies"].items())
        ],
        empty="the engine serves no strategy",
    )
    for what, problem in live["errors"].items():
        out.print(f"not used: {what}: {problem}", style="yellow", markup=False)

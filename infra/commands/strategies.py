"""`hailstream strategies …`: check files and explain decisions. A verb with a file of its own is registered below."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.commands import strategies_switches
from infra.commands.engine import PORT, Strategies
from infra.commands.output import (
    Json,
    Kafka,
    RedisUrl,
    err,
    fail,
    kafka_or_local,
    out,
    plain_errors,
    print_json,
    print_table,
    redis_or_local,
)

if TYPE_CHECKING:
    from engine.strategy import CompiledStrategy

app = typer.Typer(no_args_is_help=True, help="Strategies: check, apply, compare, switch off, and explain decisions.")


@app.command()
def explain(
    decision: Annotated[str, typer.Argument(help="A decision_id, or an order_id for its last decision.")],
    candidate: Annotated[str | None, typer.Argument(help="Such as d-0001. (default: the chosen one)")] = None,
    strategy: Annotated[str, typer.Option(help="Whose decision, where an order is named.")] = "express_dispatch",
    strategies: Strategies = None,
    kafka: Kafka = None,
    redis: RedisUrl = None,
    json: Json = False,
) -> None:
    """Why a candidate was chosen, ranked or dropped, from the logged Decision: "why not driver X"."""
    from engine.explain import explain as explain_candidate
    from features.expr import Mistakes
    from features.records import DECISIONS, Decision, decode
    from features.topics import read_all

    with plain_errors(KeyError):
        found: Decision | None = None
        for message in read_all(kafka_or_local(kafka), DECISIONS):
            record = decode(message.value, Decision)
            if record.decision_id == decision or (record.order_id == decision and record.strategy == strategy):
                found = record
        if found is None:
            fail(f"error: no Decision {decision!r} on the topic {DECISIONS}, and no order of that id")
        if candidate is None:
            candidate = found.candidate_ids[found.chosen] if found.chosen is not None else None
        if candidate is None:
            fail(f"error: nobody was chosen; name one of {', '.join(found.candidate_ids[:10]) or 'no candidates'}")
        try:
            compiled = _compiled(found.strategy, strategies, redis)
        except (Mistakes, OSError):
            compiled = None  # the record alone explains, too
        explanation = explain_candidate(found, candidate, compiled)
    print_json({"lines": explanation.lines, **asdict(explanation)}) if json else typer.echo(
        "\n".join(explanation.lines)
    )


def _compiled(name: str, folder: Path | None, redis: str | None) -> CompiledStrategy | None:
    """The strategy file of that name, compiled against what is applied."""
    from engine.loader import load_strategy
    from engine.server import SHIPPED_STRATEGIES
    from features.registry import load_registry

    registry = load_registry(redis_or_local(redis))
    path = (folder or SHIPPED_STRATEGIES) / f"{name}.yaml"
    return load_strategy(path, registry.catalogue, schema_fingerprint=registry.fingerprint) if path.exists() else None


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
    from features.expr import Mistake, Mistakes
    from features.loader import load_catalogue
    from features.registry import load_registry, local_registry

    with plain_errors(FileNotFoundError):
        registry = local_registry(load_catalogue(definitions)) if definitions else load_registry(redis_or_local(redis))
        mistakes: list[Mistake] = []
        found: list[dict[str, Any]] = []
        paths = sorted((folder or SHIPPED_STRATEGIES).glob("*.yaml"))
        for path in paths:
            try:
                compiled = load_strategy(path, registry.catalogue, schema_fingerprint=registry.fingerprint)
                strategy = compiled.strategy
                other = next((f["file"] for f in found if f["strategy"] == strategy.name), None)
                if other is not None:
                    fail(f"error: {path}: strategy '{strategy.name}' is already in {other}; rename one of them")
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


# Verbs with a file of their own.
app.command()(strategies_switches.kill)
app.command()(strategies_switches.revive)
app.command()(strategies_switches.switches)

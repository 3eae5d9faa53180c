"""`hailstream strategies …`: check files and explain decisions. A verb with a file of its own is registered below."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.commands import (
    strategies_applied,
    strategies_missing,
    strategies_replay,
    strategies_schema,
    strategies_switches,
    strategies_test,
)
from infra.commands.engine import Strategies
from infra.commands.output import (
    Json,
    Kafka,
    RedisUrl,
    err,
    fail,
    kafka_or_local,
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
    """Why a candidate was chosen, ranked or dropped, from the logged Decision: "why not driver X", and what would have
    had to be different."""
    from engine.explain import explain as explain_candidate
    from engine.flip import find_flips
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
        at_hand = compiled is not None and compiled.strategy.hash == found.strategy_hash
        flips = find_flips(found, candidate, compiled) if compiled is not None and at_hand else None
    lines = [*explanation.lines, *(flips.lines if flips is not None else [])]
    if json:
        print_json({"lines": lines, **asdict(explanation), "flips": asdict(flips) if flips is not None else None})
    else:
        typer.echo("\n".join(lines))


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
    what: Annotated[
        Path | None, typer.Argument(help="A strategy file or a folder of them. (default: the shipped ones)")
    ] = None,
    definitions: strategies_applied.Definitions = None,
    redis: RedisUrl = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="Show what happens when a feature, a field or a model is missing.")
    ] = False,
    json: Json = False,
) -> None:
    """Compile and analyse strategies; all mistakes and warnings with file, line and column. Exit code 1 if there is a mistake."""
    from engine.check import check_files
    from engine.server import SHIPPED_STRATEGIES
    from features.expr import Mistakes

    path = what or SHIPPED_STRATEGIES
    with plain_errors(FileNotFoundError):
        paths = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
        checked = check_files(paths, strategies_applied.registry_of(definitions, redis))
    errors = [mistake for one in checked for mistake in one.errors]
    warnings = [mistake for one in checked for mistake in one.warnings]
    found = [
        {
            "strategy": one.compiled.strategy.name,
            "version": one.compiled.strategy.version,
            "hash": one.compiled.strategy.hash[:12],
            "file": str(one.path),
        }
        for one in checked
        if one.compiled is not None and not one.errors
    ]
    reported = [one.compiled for one in checked if one.compiled is not None] if missing else []
    if json:
        reports = {"missing": [strategies_missing.report_dict(compiled) for compiled in reported]} if missing else {}
        noted = [mistake.as_dict() for mistake in [*errors, *warnings]]
        print_json({"strategies": found, "mistakes": noted, **reports})
    else:
        if found or not paths:
            print_table(found, empty=f"no strategy in {path}: a strategy is a file NAME.yaml")
        for compiled in reported:
            strategies_missing.print_report(compiled)
        for mistakes, style in ((warnings, "yellow"), (errors, "red")):
            if mistakes:
                err.print(str(Mistakes(mistakes)), style=style, markup=False)
    raise typer.Exit(1 if errors or not paths else 0)


# Verbs with a file of their own.
app.command()(strategies_switches.kill)
app.command()(strategies_switches.revive)
app.command()(strategies_switches.switches)
app.command()(strategies_applied.apply)
app.command()(strategies_applied.retire)
app.command("list")(strategies_applied.list_)
app.command()(strategies_applied.show)
app.command()(strategies_applied.diff)
app.command()(strategies_schema.schema)
app.command("test")(strategies_test.test)
app.command()(strategies_test.coverage)
app.command()(strategies_replay.replay)

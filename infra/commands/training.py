"""`hailstream train` and `hailstream models list | promote | rollback`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.commands.engine import Models, models_dir
from infra.commands.output import (
    Json,
    RedisUrl,
    err,
    fail,
    out,
    plain_errors,
    print_json,
    print_table,
    progress,
    redis_or_local,
    whoami,
)
from infra.local.home import home

if TYPE_CHECKING:
    from features.registry import Registry
    from pipelines.training import TrainReport

app = typer.Typer(no_args_is_help=True, help="Models: list versions, promote one, roll back.")
Actor = Annotated[
    str | None,
    typer.Option(envvar="HAILSTREAM_ACTOR", help="Who does it; kept in the history.", show_default="the user"),
]
Name = Annotated[str, typer.Argument(help="The model's name.")]


def train(
    samples: Annotated[Path | None, typer.Option(help="Sample log.", show_default="<home>/samples")] = None,
    models: Models = None,
    strategy: Annotated[str, typer.Option(help="Whose decisions to learn from.")] = "express_dispatch",
    name: Annotated[str, typer.Option(help="The model's name; strategies use NAME@champion.")] = "accept",
    label: Annotated[str, typer.Option(help="What to predict of the offered candidate.")] = "accepted",
    program: Annotated[
        Path | None,
        typer.Option(help="Column program (JSON): the model's inputs.", show_default="the strategy's shipped one"),
    ] = None,
    strategy_file: Annotated[
        Path | None,
        typer.Option(
            help="YAML of the strategy: what a program may read, and its types.", show_default="the shipped one"
        ),
    ] = None,
    definitions: Annotated[
        Path | None,
        typer.Option(
            help="Type features by this folder of definitions, instead of what is applied.",
            show_default="what is applied; the shipped ones when Redis cannot be reached",
        ),
    ] = None,
    since_ms: Annotated[int | None, typer.Option(help="Only decisions at or after this event time.")] = None,
    until_ms: Annotated[int | None, typer.Option(help="Only decisions before this event time.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed over the same samples gives the same weights.")] = 17,
    promote: Annotated[bool, typer.Option(help="Make it the champion if the gate passes.")] = True,
    actor: Actor = None,
    redis: RedisUrl = None,
    json: Json = False,
) -> None:
    """Train a model on the sample log, judge it against the champion, publish it. Exit code 3: the gate refused it."""
    from pipelines.training import TrainConfig
    from pipelines.training import train as run_training

    with plain_errors(), progress() as bar:
        task = bar.add_task("training", total=None, note="")

        def show(stage: str, done: int, total: int, note: str) -> None:
            bar.update(task, description=stage, total=total, completed=done, note=note)

        report = run_training(
            TrainConfig(
                samples_dir=samples or home() / "samples",
                models_dir=models_dir(models),
                strategy=strategy,
                name=name,
                label=label,
                program=program,
                strategy_file=strategy_file,
                registry=_applied(redis) if definitions is None else None,
                definitions_dir=definitions,
                since_ms=since_ms,
                until_ms=until_ms,
                seed=seed,
                promote=promote,
                actor=actor or whoami(),
            ),
            show,
        )
    if json:
        print_json(report.to_dict())
    else:
        _print_report(report)
    raise typer.Exit(report.exit_code)


@app.command("list")
def list_(models: Models = None, json: Json = False) -> None:
    """Show every version of every model, which one serves, and what its gate said."""
    from pipelines.training import list_models

    with plain_errors():
        entries = [asdict(entry) for entry in list_models(models_dir(models))]
    if json:
        print_json(entries)
        return
    rows = [
        {
            "model": f"{entry['name']}@{entry['version']}",
            "champion": "champion" if entry["champion"] else "",
            "label": entry["label"],
            "created": _time(entry["created_ms"]),
            "gate": {True: "passed", False: "refused", None: None}[entry["gate_passed"]],
            "hash": (entry["model_hash"] or "-")[:12],
            "problem": entry["problem"],
        }
        for entry in entries
    ]
    print_table(rows, empty="no model yet: `hailstream train`")


@app.command()
def promote(
    name: Name,
    version: Annotated[str, typer.Argument(help="Such as v0002.")],
    reason: Annotated[str, typer.Option(help="Why; kept in the history.")],
    force: Annotated[bool, typer.Option(help="Over a refused gate; kept in the history.")] = False,
    models: Models = None,
    actor: Actor = None,
    json: Json = False,
) -> None:
    """Make a version the champion. Engines swap it in within a second, without a restart."""
    from pipelines.training import promote as promote_model

    with plain_errors():
        moved = promote_model(models_dir(models), name, version, actor=actor or whoami(), reason=reason, force=force)
    _print_move(asdict(moved), json)


@app.command()
def rollback(
    name: Name,
    reason: Annotated[str, typer.Option(help="Why; kept in the history.")],
    models: Models = None,
    actor: Actor = None,
    json: Json = False,
) -> None:
    """Make the champion before this one the champion again."""
    from pipelines.training import rollback as roll_back

    with plain_errors():
        moved = roll_back(models_dir(models), name, actor=actor or whoami(), reason=reason)
    _print_move(asdict(moved), json)


def _print_move(moved: dict[str, object], json: bool) -> None:
    if json:
        print_json(moved)
    elif moved["changed"]:
        out.print(f"{moved['name']}: {moved['before'] or 'none'} → {moved['champion']}")
    else:
        out.print(f"{moved['name']}: {moved['champion']} is the champion already")


def _applied(redis: str | None) -> Registry | None:
    """The features that are applied; None, and a line that says so, when Redis cannot be reached."""
    from features.registry import load_registry
    from features.store import FeatureError, StoreError

    try:
        return load_registry(redis_or_local(redis))
    except StoreError as error:
        err.print(f"{error}. Until then the shipped definitions type the features.", style="yellow", markup=False)
        return None
    except FeatureError as error:
        fail(f"error: {error}, or name the definitions with --definitions")


def _print_report(report: TrainReport) -> None:
    out.print(f"{report.name}@{report.version}: {report.rows_used} of {report.rows_in} samples used")
    print_table([{"samples": n, "left out": why} for why, n in sorted(report.left_out.items())], empty="none left out")
    print_table([{"split": name, **split} for name, split in report.splits.items()])
    checks = report.gate.get("checks", [])
    print_table([{"check": c["name"], "passed": "yes" if c["passed"] else "no", "why": c["text"]} for c in checks])
    for note in report.notes:
        out.print(f"note: {note}", style="yellow", markup=False)
    state = "champion" if report.promoted else "not promoted"
    out.print(f"{report.name}@{report.version} is {state}; {report.path}")


def _time(ms: int | None) -> str | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")

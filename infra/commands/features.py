"""`hailstream features …`: what a feature author does. A verb with a file of its own is registered below."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.commands import features_canary, features_history, features_plan, features_rollout
from infra.commands.features_plan import SHIPPED, Folder
from infra.commands.features_shown import format_ms, format_time
from infra.commands.output import (
    Json,
    RedisUrl,
    err,
    fail,
    out,
    plain_errors,
    print_json,
    print_table,
    redis_or_local,
)

if TYPE_CHECKING:
    from features.describe import ViewDescription

app = typer.Typer(no_args_is_help=True, help="Features: declare in YAML, check, plan, apply, read.")


@app.command()
def validate(folder: Folder = SHIPPED, json: Json = False) -> None:
    """Check all files and show all mistakes at once, each with file, line and column. Exit code 1 if there are any."""
    from features.expr import Mistakes
    from features.verbs import validate as find_mistakes

    with plain_errors(FileNotFoundError):
        mistakes = find_mistakes(folder)
    if json:
        print_json([asdict(mistake) for mistake in mistakes])
    elif mistakes:
        err.print(str(Mistakes(mistakes)), style="red", markup=False)
    else:
        out.print(f"{folder}: no mistakes")
    raise typer.Exit(1 if mistakes else 0)


@app.command()
def test(
    folder: Folder = SHIPPED,
    view: Annotated[str | None, typer.Option(help="Only this view's cases.")] = None,
    json: Json = False,
) -> None:
    """Run the YAML tests of the views on the reference: given events and a time, are the values right?"""
    from features.verbs import test as run_cases

    with plain_errors(KeyError, FileNotFoundError):
        results = run_cases(folder, view)
    failed = [result for result in results if result.failures]
    if json:
        print_json(
            [{"view": r.case.view, "name": r.case.name, "failures": [str(f) for f in r.failures]} for r in results]
        )
    else:
        for result in failed:
            err.print(
                f"{result.case.file}:{result.case.line}: {result.case.view}: {result.case.name}",
                style="red",
                markup=False,
            )
            for failure in result.failures:
                err.print(f"  {failure}", markup=False)
        out.print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    raise typer.Exit(1 if failed or not results else 0)


@app.command("list")
def list_(
    folder: Annotated[Path | None, typer.Option(help="What this folder declares, instead of what is applied.")] = None,
    redis: RedisUrl = None,
    json: Json = False,
) -> None:
    """Show every feature: its view, type, meaning, generation and where it is declared."""
    from features.verbs import list_features

    with plain_errors(FileNotFoundError):
        listed = list_features(None if folder else redis_or_local(redis), folder)
    rows = [asdict(feature) for feature in listed]
    print_json(rows) if json else print_table(rows)


@app.command()
def describe(
    name: Annotated[
        str, typer.Argument(metavar="VIEW|FEATURE", help="A view, view.feature, or a feature's name alone.")
    ],
    folder: Annotated[Path | None, typer.Option(help="What this folder declares, instead of what is applied.")] = None,
    redis: RedisUrl = None,
    json: Json = False,
) -> None:
    """Show what a view or a feature means, what feeds it, what is kept, who shares it, and every apply that moved it."""
    from features.verbs import describe as described

    with plain_errors(KeyError, FileNotFoundError):
        found = described(name, None if folder else redis_or_local(redis), folder)
    if json:
        print_json(asdict(found))
    elif name == found.view:
        _show_view(found)
    else:
        _show_feature(found)


@app.command()
def get(
    view: Annotated[str, typer.Argument(help="A view, or an entity for all of its views.")],
    keys: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY...",
            help="Such as d-0001, 263 for a zone, or zone=263,product=express where a key has several columns.",
        ),
    ],
    as_of: Annotated[
        str, typer.Option(help="Epoch milliseconds; `wall`, now; `applied`, the time through which events are applied.")
    ] = "applied",
    request: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A request field of the view, such as hour=7; repeat it."),
    ] = None,
    redis: RedisUrl = None,
    json: Json = False,
) -> None:
    """Show values as the engine would be served them, each with its status and age."""
    from features.registry import load_registry
    from features.verbs import get as read_features

    with plain_errors(KeyError, ValueError):
        url = redis_or_local(redis)
        views = load_registry(url).catalogue.views
        wanted = [view] if view in views else [v.name for v in views.values() if v.entity.name == view]
        if not wanted:
            fail(f"error: no view or entity {view!r}; views are {sorted(views)}")
        asked = dict(text.partition("=")[::2] for text in request or [])
        only = {
            name: {f: v for f, v in asked.items() if len(wanted) == 1 or f in views[name].request} for name in wanted
        }
        found = [a for name in wanted for a in read_features(url, name, keys, as_of=as_of, request=only[name])]
    if json:
        print_json([asdict(answer) for answer in found])
        return
    for answer in found:
        print_table(
            [_shown(asdict(value)) for value in answer.values],
            title=f"{answer.view} of {_key_text(answer.key)} as of {answer.as_of_ms}, applied through {answer.applied_through_ms or '-'}",
        )


@app.command()
def freshness(redis: RedisUrl = None, json: Json = False) -> None:
    """Show how long records took from Kafka to readable, per group, against the views' objective. Exit code 1 on a miss."""
    from features.verbs import freshness as measured

    with plain_errors(FileNotFoundError):
        groups = measured(redis_or_local(redis))
    rows = [
        {
            "group": group.group,
            "records_used": group.stats.used,
            "applied_through_ms": group.stats.applied_through_ms,
            "p50_ms": group.stats.freshness_p50_ms,
            "p99_ms": group.stats.freshness_p99_ms,
            "objective_p99_ms": group.slo_p99_ms,
            "met": {True: "yes", False: "no", None: None}[group.met],
        }
        for group in groups
    ]
    print_json(rows) if json else print_table(rows)
    raise typer.Exit(1 if any(group.met is False for group in groups) else 0)


def _show_view(view: ViewDescription) -> None:
    keys = ", ".join(f"{column} {kind}" for column, kind in view.keys.items())
    out.print(f"view {view.view}", style="bold", markup=False)
    facts = {
        "meaning": view.description,
        "entity": f"{view.entity}, by {keys}",
        "source": view.source,
        "owner": view.owner,
        "generation": view.generation,
        "stale after": format_ms(view.max_age_ms),
        "freshness objective": f"p99 {format_ms(view.freshness_slo_p99_ms)}" if view.freshness_slo_p99_ms else None,
        "declared in": view.place,
    }
    _show_facts(facts)
    print_table(
        [
            {
                "feature": f.name,
                "type": f.type,
                "meaning": f.meaning,
                "default": f.default,
                "unit": f.unit,
                "group": f.group and f"{f.group} g{f.group_generation or '-'}",
                "keeps": format_ms(f.span_ms),
                "shares with": ", ".join(f.shared_with),
            }
            for f in view.features
        ]
    )
    _show_history(view)


def _show_feature(view: ViewDescription) -> None:
    (f,) = view.features
    out.print(f"feature {f.view}.{f.name}", style="bold", markup=False)
    facts = {
        "meaning": f.meaning,
        "description": f.description,
        "type": f.type,
        "default": f.default,
        "unit": f.unit,
        "group": f.group,
        "generation": f.group_generation,
        "hop": format_ms(f.hop_ms),
        "keeps": format_ms(f.span_ms),
        "shares with": ", ".join(f.shared_with),
        "reads": ", ".join(f.reads),
        "read by": ", ".join(f.read_by),
        "entity": view.entity,
        "source": view.source,
        "owner": view.owner,
        "stale after": format_ms(view.max_age_ms),
        "freshness objective": f"p99 {format_ms(view.freshness_slo_p99_ms)}" if view.freshness_slo_p99_ms else None,
        "declared in": f.place,
    }
    _show_facts(facts)
    _show_history(view)


def _show_facts(facts: Mapping[str, Any]) -> None:
    for name, value in facts.items():
        if value is not None and value != "":
            out.print(f"  {name:<20} {value}", markup=False)


def _show_history(view: ViewDescription) -> None:
    rows = [
        {"when": format_time(h.time_ms), "what": h.kind, "who": h.actor, "why": h.reason, "moved": ", ".join(h.changes)}
        for h in view.history
    ]
    if rows:
        print_table(rows, title="history")


def _key_text(key: Any) -> str:
    return ",".join(map(str, key)) if isinstance(key, tuple) else str(key)


def _shown(value: dict[str, Any]) -> dict[str, Any]:
    age_ms = value.pop("age_ms")
    number = value["value"]
    return {
        **value,
        "value": f"{number:.4g}" if isinstance(number, float) else number,
        "age": None if age_ms is None else f"{age_ms / 1000:.1f} s",
    }


# Verbs with a file of their own.
app.command()(features_plan.plan)
app.command()(features_plan.apply)
app.command()(features_plan.log)
app.command()(features_rollout.rollout)
app.command()(features_rollout.switch)
app.command()(features_rollout.rebuild)
app.command()(features_rollout.drop)
app.command()(features_rollout.abort)
app.command()(features_canary.canary)
for _verb in (features_history.history, features_history.export, features_history.archive, features_history.backfill):
    app.command()(_verb)

"""`hailstream features plan | apply | log`: what an edit means, making it the applied truth, and what was done before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.commands.engine import Models, Strategies, models_dir
from infra.commands.features_shown import format_time, plan_as_dict, show_plan, show_report
from infra.commands.output import (
    Json,
    RedisUrl,
    fail,
    plain_errors,
    print_json,
    print_table,
    redis_or_local,
    whoami,
)
from infra.local.home import CHECKOUT, home

if TYPE_CHECKING:
    from features.plan import Plan
    from features.registry import Registry
    from features.spec import Catalogue
    from features.verbs import Refused

SHIPPED = CHECKOUT / "features" / "definitions"
Folder = Annotated[Path, typer.Argument(help="Folder of definitions.", show_default="the shipped ones")]
Keys = Annotated[
    int | None, typer.Option(min=0, help="Reckon with so many entities. (default: as many as the store has)")
]
REFUSED = 3


class Allow(StrEnum):
    """How severe an edit may be, each class with the milder ones."""

    safe = "safe"
    backfill = "backfill"
    breaking = "breaking"
    destructive = "destructive"


Allowed = Annotated[
    Allow, typer.Option(help="The most severe class of edits that may be applied; milder ones with it.")
]


def needed_for(refused: Refused) -> str:
    """What a person who was refused has to say."""
    needed = max((Allow(edit.risk) for edit in refused.edits), key=list(Allow).index)
    return f"refused, nothing was written: --allow {needed.value} makes it so"


@contextmanager
def refusal() -> Iterator[None]:
    """Turns an apply that was refused into a message with exit code 3."""
    from features.verbs import Refused

    try:
        yield
    except Refused as refused:
        fail(f"{refused}\n{needed_for(refused)}", code=REFUSED)


def plan(
    folder: Folder = SHIPPED,
    keys: Keys = None,
    strategies: Strategies = None,
    models: Models = None,
    redis: RedisUrl = None,
    json: Json = False,
) -> None:
    """Show what applying the folder would change: every edit with its class, what it costs, and whom it touches.

    Classes: safe (nothing that is served or stored changes), backfill (values stay right, new tiles need history), breaking
    (a value, type, default, staleness or key changes), destructive (data or a name goes away).

    Exit code: 0 nothing to change, 1 a mistake, 2 changes, 3 breaking or destructive ones.
    """
    with plain_errors(FileNotFoundError):
        found = _plan(folder, redis_or_local(redis), strategies, models, keys)
    print_json(plan_as_dict(found)) if json else show_plan(found, folder)
    raise typer.Exit(found.exit_code)


def apply(
    folder: Folder = SHIPPED,
    allow: Allowed = Allow.backfill,
    reason: Annotated[str, typer.Option(help="Why; kept in the history.")] = "",
    actor: Annotated[
        str | None, typer.Option(envvar="HAILSTREAM_ACTOR", help="Who; kept in the history. (default: the user)")
    ] = None,
    now: Annotated[
        bool,
        typer.Option(
            "--now/--stage",
            help="Serve changed groups at once, missing until they are fed, instead of staging them beside what is served.",
        ),
    ] = False,
    feast: Annotated[
        bool, typer.Option(help="Write Feast's registry as well; importing Feast takes some seconds.")
    ] = True,
    strategies: Strategies = None,
    models: Models = None,
    redis: RedisUrl = None,
    json: Json = False,
) -> None:
    """Show the plan, then make what the folder declares the applied truth, in one transaction. Again changes nothing.

    An edit that is more severe than --allow is refused and nothing is written. A group that is fed and changes is staged
    under a new generation beside the applied one: `hailstream features rollout` goes on from there.

    Exit code: 0 applied, staged or nothing to do, 1 a mistake, 3 refused.
    """
    from features.verbs import Refused, apply_catalogue, refuse_beyond

    with plain_errors(FileNotFoundError):
        url = redis_or_local(redis)
        found = _plan(folder, url, strategies, models, None)
        if not json:
            show_plan(found, folder)
        try:
            report = apply_catalogue(
                folder,
                url,
                actor=actor or whoami(),
                reason=reason,
                feast_dir=home() / "feast" if feast else None,
                now=now,
                check=refuse_beyond(allow.value),
            )
        except Refused as refused:
            if json:
                print_json(
                    {"changed": False, "refused": [asdict(edit) for edit in refused.edits], "plan": plan_as_dict(found)}
                )
            fail(needed_for(refused), code=REFUSED)
    if json:
        done = {"changed": report.changed, "staged": report.staged, "version": report.registry.version}
        print_json({**done, "changes": report.changes, "plan": plan_as_dict(found)})
    else:
        show_report(report)


def log(
    limit: Annotated[int, typer.Option(min=1, help="The last so many entries.")] = 20,
    redis: RedisUrl = None,
    json: Json = False,
) -> None:
    """Show who applied, staged, switched, rebuilt or dropped what, when and why; the last comes last."""
    from features.verbs import load_history

    with plain_errors():
        entries = load_history(redis_or_local(redis))[-limit:]
    if json:
        print_json(entries)
        return
    print_table(
        [
            {
                "when": format_time(entry.time_ms),
                "what": entry.kind,
                "version": entry.version,
                "who": entry.actor,
                "why": entry.reason,
                "moved": ", ".join(f"{c.name} {c.before or '-'} → {c.after or '-'}" for c in entry.changes),
                "note": entry.note,
            }
            for entry in entries
        ],
        empty="nothing was applied yet",
    )


def _plan(folder: Path, redis_url: str, strategies: Path | None, models: Path | None, keys: int | None) -> Plan:
    from engine.server import SHIPPED_STRATEGIES
    from features.verbs import plan as plan_folder
    from infra.commands.features_uses import uses_of

    def uses(before: Registry, after: Catalogue) -> tuple[dict[str, set[tuple[str, str]]], dict[str, str]]:
        return uses_of(strategies or SHIPPED_STRATEGIES, models_dir(models), before, after)

    return plan_folder(folder, redis_url, uses=uses, keys=keys)

"""`hailstream features plan | apply | log`: what an edit means, making it the applied truth, and what was done before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from infra.commands.engine import Models, Strategies, models_dir
from infra.commands.output import (
    Json,
    RedisUrl,
    fail,
    out,
    plain_errors,
    print_json,
    print_table,
    redis_or_local,
    whoami,
)
from infra.local.home import CHECKOUT, home

if TYPE_CHECKING:
    from features.edits import Edit
    from features.plan import Plan
    from features.registry import ApplyReport, Registry
    from features.spec import Catalogue

SHIPPED = CHECKOUT / "features" / "definitions"
Folder = Annotated[Path, typer.Argument(help="Folder of definitions.", show_default="the shipped ones")]
Keys = Annotated[
    int | None, typer.Option(min=0, help="Reckon with so many entities. (default: as many as the store has)")
]
COLOURS = {"safe": "green", "backfill": "cyan", "breaking": "yellow", "destructive": "red"}
REFUSED = 3


class Allow(StrEnum):
    """How severe an edit may be, each class with the milder ones."""

    safe = "safe"
    backfill = "backfill"
    breaking = "breaking"
    destructive = "destructive"


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
    print_json(_as_dict(found)) if json else _show(found)
    raise typer.Exit(found.exit_code)


def apply(
    folder: Folder = SHIPPED,
    allow: Annotated[
        Allow, typer.Option(help="The most severe class of edits that may be applied; milder ones with it.")
    ] = Allow.backfill,
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
            _show(found)
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
                    {"changed": False, "refused": [asdict(edit) for edit in refused.edits], "plan": _as_dict(found)}
                )
            needed = max((Allow(edit.risk) for edit in refused.edits), key=list(Allow).index)
            fail(f"refused, nothing was written: --allow {needed.value} makes it so", code=REFUSED)
    if json:
        done = {"changed": report.changed, "staged": report.staged, "version": report.registry.version}
        print_json({**done, "changes": report.changes, "plan": _as_dict(found)})
    else:
        _show_report(report)


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


def _as_dict(plan: Plan) -> dict[str, Any]:
    """For `--json`: stable keys."""
    return {
        "project": plan.project,
        "version": plan.version_before,
        "risk": plan.risk,
        "exit_code": plan.exit_code,
        "edits": [asdict(edit) for edit in plan.edits],
        "generations": plan.changes,
        "groups": [asdict(group) for group in plan.groups],
        "touched": [asdict(touched) for touched in plan.touched],
        "next": plan.steps,
    }


def _show(plan: Plan) -> None:
    if plan.risk is None:
        out.print("nothing to change: all of it is applied")
        for step in plan.steps:
            out.print(f"  {step}", markup=False)
        return
    for view, edits in _by_view(plan.edits):
        _show_edits(view, edits)
    _show_groups(plan)
    for touched in plan.touched:
        out.print(f"touches {touched.user}", style="bold", markup=False)
        for view, feature, risk in touched.features:
            out.print(Text(f"  {view}.{feature} ") + Text(risk, style=COLOURS[risk]))
        if touched.error:
            out.print(Text(f"  would not load any more: {touched.error}", style="red"))
    out.print(f"{len(plan.edits)} edits, the most severe is ", Text(plan.risk, style=COLOURS[plan.risk]), end="\n\n")
    for step in plan.steps:
        out.print(f"next: {step}", markup=False)


def _by_view(edits: Sequence[Edit]) -> Iterator[tuple[str, list[Edit]]]:
    for view in dict.fromkeys(edit.view for edit in edits):
        yield view or "", [edit for edit in edits if edit.view == view]


def _show_edits(view: str, edits: Sequence[Edit]) -> None:
    """A line an edit; what is the same for several features of the view stands once."""
    lines: dict[tuple[str, str, str, str], list[Edit]] = {}
    for edit in edits:
        same = "" if edit.kind in ("generation", "follows") else edit.place
        lines.setdefault((edit.risk, edit.what, edit.reason, same), []).append(edit)
    table = Table(title=f"view {view}" if view else "catalogue", title_justify="left", header_style="bold", box=None)
    for head in ("class", "feature", "edit", "why", "place"):
        table.add_column(head, overflow="fold")
    for (risk, what, reason, _), same_edits in lines.items():
        names = ", ".join(edit.feature for edit in same_edits if edit.feature is not None)
        place = Text(same_edits[0].place)
        table.add_row(Text(risk, style=COLOURS[risk]), Text(names or "-"), Text(what), Text(reason), place)
    out.print(table)


def _show_groups(plan: Plan) -> None:
    rows = [
        {
            "group": group.name,
            "generation": _from_to(group.generation_before, group.generation_after),
            "keeps": _from_to(_span(group.span_before_ms), _span(group.span_after_ms)),
            "keys": "-" if size is None or size.keys is None else f"{size.keys:,} ({size.keys_from})",
            "tiles a key": "-" if size is None else f"{size.units_per_key:g}",
            "bytes a tile": None if size is None else size.record_bytes,
            "in Redis": "-" if size is None else _bytes(size.redis_bytes),
            "state of the job": "-" if size is None else _bytes(size.state_bytes),
        }
        for group in plan.groups
        if group.changes
        for size in [group.size]
    ]
    if rows:
        print_table(rows, title="groups of tiles and values")
    sizes = [group.size for group in plan.groups if group.size is not None]
    if any(size.keys is None for size in sizes):
        out.print("how many entities there are is not known: --keys N gives the sizes")
    redis, state = (sum(getattr(size, name) or 0 for size in sizes) for name in ("redis_bytes", "state_bytes"))
    out.print(f"all groups together, as declared: {_bytes(redis)} in Redis, {_bytes(state)} of state")


def _show_report(report: ApplyReport) -> None:
    if not report.changed:
        out.print("nothing to do: " + ("this version is staged already" if report.staged else "all of it is applied"))
    else:
        out.print("staged; readers keep what is applied until the switch" if report.staged else "applied")
    out.print(f"version {report.registry.version}, fingerprint {report.registry.fingerprint}")
    if report.feast_written:
        out.print(f"Feast's repository is {home() / 'feast'}")


def _from_to(before: Any, after: Any) -> str:
    shown = ["-" if value is None else str(value) for value in (before, after)]
    return shown[0] if before == after else " → ".join(shown)


def format_ms(span_ms: int | None) -> str | None:
    """A duration in words; None stays None."""
    from features.window import format_duration

    return None if span_ms is None else format_duration(span_ms)


def _span(span_ms: int | None) -> str | None:
    return "the last" if span_ms == 0 else format_ms(span_ms)


def _bytes(number: int | None) -> str:
    if number is None:
        return "-"
    size, units = float(number), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.3g} {units[0]}"


def format_time(time_ms: int) -> str:
    """Epoch milliseconds as UTC, to the second."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")

"""How `hailstream features plan | apply | describe | log` show what they found: for people, and as data for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from infra.commands.output import out, print_table
from infra.local.home import home

if TYPE_CHECKING:
    from features.edits import Edit
    from features.estimates import GroupSize
    from features.plan import Plan
    from features.registry import ApplyReport

COLOURS = {"safe": "green", "backfill": "cyan", "breaking": "yellow", "destructive": "red"}


def plan_as_dict(plan: Plan) -> dict[str, Any]:
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


def show_plan(plan: Plan, folder: Path) -> None:
    """Edits by view, groups that change, who is touched, and what comes next. Places in `folder` are shown from there on."""
    if plan.risk is None:
        out.print("nothing to change: all of it is applied")
        for step in plan.steps:
            out.print(f"  {step}", markup=False)
        return
    for view, edits in _by_view(plan.edits):
        _show_edits(view, edits, folder)
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
    """The edits of entities and sources stand once, before the views that they reach."""
    whole = [edit for edit in edits if edit.view is None or edit.kind in ("entity", "source")]
    if whole:
        yield "", whole
    for view in dict.fromkeys(edit.view for edit in edits if edit not in whole):
        yield view or "", [edit for edit in edits if edit.view == view and edit not in whole]


def _show_edits(view: str, edits: Sequence[Edit], folder: Path) -> None:
    """A line an edit; what is the same for several features or views stands once."""
    lines: dict[tuple[str, str, str, str], list[Edit]] = {}
    for edit in edits:
        apart = edit.place if view and edit.kind not in ("generation", "follows") else ""
        lines.setdefault((edit.risk, edit.what, edit.reason, apart), []).append(edit)
    table = Table(title=f"view {view}" if view else "catalogue", title_justify="left", header_style="bold", box=None)
    for head in ("class", "feature" if view else "views", "edit", "why", "place"):
        table.add_column(head, overflow="fold")
    for (risk, what, reason, _), same in lines.items():
        touched = ", ".join(
            str(edit.feature if view else edit.view) for edit in same if edit.feature or (not view and edit.view)
        )
        place = same[0].place.removeprefix(f"{folder}/")
        table.add_row(Text(risk, style=COLOURS[risk]), Text(touched or "-"), Text(what), Text(reason), Text(place))
    out.print(table)


def _show_groups(plan: Plan) -> None:
    rows = [
        {
            "group": group.name,
            "generation": _from_to(group.generation_before, group.generation_after),
            "keeps": _from_to(_span(group.span_before_ms), _span(group.span_after_ms)),
            "keys": "-" if size is None or size.keys is None else f"{size.keys:,} ({size.keys_from})",
            "tiles a key": "-" if size is None else f"{_at_most(size)}{size.units_per_key:g}",
            "bytes a tile": None if size is None else size.record_bytes,
            "in Redis": "-" if size is None else _at_most(size) + _bytes(size.redis_bytes),
            "state of the job": "-" if size is None else _at_most(size) + _bytes(size.state_bytes),
        }
        for group in plan.groups
        if group.changes
        for size in [group.size]
    ]
    if rows:
        print_table(rows, title="groups of tiles and values")
    sizes = [group.size for group in plan.groups if group.size is not None]
    if any(size.keys is None for size in sizes):
        out.print("how many entities there are is not known of all groups: --keys N gives the sizes")
    redis, state = (sum(getattr(size, name) or 0 for size in sizes) for name in ("redis_bytes", "state_bytes"))
    at_most = "" if all(size.measured for size in sizes) else "at most "
    out.print(f"all groups together, as declared: {at_most}{_bytes(redis)} in Redis, {_bytes(state)} of state")


def show_report(report: ApplyReport) -> None:
    """What an apply did."""
    if not report.changed:
        out.print("nothing to do: " + ("this version is staged already" if report.staged else "all of it is applied"))
    else:
        out.print("staged; readers keep what is applied until the switch" if report.staged else "applied")
    out.print(f"version {report.registry.version}, fingerprint {report.registry.fingerprint}")
    if report.feast_written:
        out.print(f"Feast's repository is {home() / 'feast'}")


def _at_most(size: GroupSize) -> str:
    """In front of a bound: every tile of the span is taken to hold an event where nobody could look."""
    return "" if size.measured or size.keys is None else "≤ "


def _from_to(before: Any, after: Any) -> str:
    shown = ["-" if value is None else str(value) for value in (before, after)]
    return shown[0] if before == after else " → ".join(shown)


def format_ms(span_ms: int | None) -> str | None:
    """A duration in its two largest units, such as 1d 30m; None stays None."""
    from features.window import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, format_duration

    if span_ms is None:
        return None
    for unit_ms in (DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS):
        if span_ms >= unit_ms:
            rest_ms = span_ms % unit_ms
            whole = format_duration(span_ms - rest_ms)
            return f"{whole} {format_duration(rest_ms)}" if rest_ms else whole
    return f"{span_ms}ms"


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

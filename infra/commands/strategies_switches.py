"""`hailstream strategies kill | revive | switches`: what is switched off in a folder of strategies, live within a second."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from infra.commands.engine import Strategies
from infra.commands.output import Json, fail, out, plain_errors, print_json, print_table, whoami

Target = Annotated[
    str,
    typer.Argument(
        help="strategy:NAME, city:CITY, rule:STRATEGY/RULE or switch:KILL_SWITCH; all but city take @CITY, too."
    ),
]
Reason = Annotated[str, typer.Option(help="Why; kept beside the switch and in the audit log.")]
Actor = Annotated[str | None, typer.Option(help="Who. (default: you)")]


def kill(
    target: Target,
    reason: Reason,
    actor: Actor = None,
    strategies: Strategies = None,
    force: Annotated[bool, typer.Option(help="Also a target that no strategy of the folder has.")] = False,
    json: Json = False,
) -> None:
    """Switch a rule, a strategy or a city off: engines on this folder obey within a second. Twice is once."""
    from engine.outline import read_outlines
    from engine.switches import find_problem, in_utc, parse_target
    from engine.switches import kill as kill_target

    folder = _folder(strategies)
    with plain_errors(OSError):
        parsed = parse_target(target)
        outlines, broken = read_outlines(folder)
        problem = find_problem(parsed, [outline.known() for outline in outlines])
        if problem is not None and not force:
            unread = f" (not readable: {', '.join(broken)})" if broken else ""
            fail(f"error: {target} would switch nothing off in {folder}: {problem}{unread}. --force kills it anyway")
        now_ms = time.time_ns() // 1_000_000
        switch = kill_target(folder, target, actor=actor or whoami(), reason=reason, now_ms=now_ms)
    if json:
        print_json(asdict(switch) | {"changed": switch.at_ms == now_ms})
        return
    was = "is off" if switch.at_ms == now_ms else "has been off"
    out.print(f"{target} {was} since {in_utc(switch.at_ms)}, by {switch.actor}: {switch.reason}", markup=False)


def revive(
    target: Target, reason: Reason, actor: Actor = None, strategies: Strategies = None, json: Json = False
) -> None:
    """Switch a target on again, as it was written in `kill`. One that is not off stays as it is."""
    from engine.switches import read_switches
    from engine.switches import revive as revive_target
    from features.expr.errors import name_hint

    folder = _folder(strategies)
    with plain_errors(OSError):
        now_ms = time.time_ns() // 1_000_000
        ended = revive_target(folder, target, actor=actor or whoami(), reason=reason, now_ms=now_ms)
        others = read_switches(folder).killed if ended is None else {}
        hint = name_hint(target, others) if others else "nothing is"
    if json:
        print_json({"target": target, "changed": ended is not None})
    elif ended is None:
        out.print(f"{target} is not off; {hint}", markup=False)
    else:
        out.print(f"{target} is on again; {ended.actor} had switched it off: {ended.reason}", markup=False)


def switches(strategies: Strategies = None, json: Json = False) -> None:
    """Show what is switched off in a folder, by whom and why, and what of it switches nothing off any more."""
    from engine.outline import read_outlines
    from engine.switches import in_utc, read_switches

    folder = _folder(strategies)
    with plain_errors(OSError):
        found = read_switches(folder)
        unmatched = found.unmatched([outline.known() for outline in read_outlines(folder)[0]])
    if json:
        print_json([asdict(switch) | {"problem": unmatched.get(target)} for target, switch in found.killed.items()])
        return
    print_table(
        [
            {"off": target, "since": in_utc(switch.at_ms), "actor": switch.actor, "reason": switch.reason}
            for target, switch in found.killed.items()
        ],
        empty=f"nothing is switched off in {folder}",
    )
    for target, problem in unmatched.items():
        out.print(f"{target} switches nothing off: {problem}", style="yellow", markup=False)


def _folder(given: Path | None) -> Path:
    from engine.server import SHIPPED_STRATEGIES

    folder = given or SHIPPED_STRATEGIES
    if not folder.is_dir():
        fail(f"error: no folder of strategies at {folder}")
    return folder

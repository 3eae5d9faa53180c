"""`hailstream up | down | status`: the local stack."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from infra.commands.output import Json, err, out, plain_errors, print_json, print_table
from infra.local.process import tree_memory
from infra.local.stack import Stack


def up(json: Json = False) -> None:
    """Start the local Kafka, Redis and Flink and wait until they answer. A second `up` changes nothing."""
    with plain_errors():
        stack = Stack()
        stack.up(lambda text: err.print(text, style="dim"))
        _print_status(stack, json)


def down(
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove its data as well: topics, features, samples, models, logs.")
    ] = False,
    json: Json = False,
) -> None:
    """Stop what `up` started, orphaned Python workers included. Nothing else is touched."""
    with plain_errors():
        stopped = Stack().down(lambda text: err.print(text, style="dim"), clean=clean)
    if json:
        print_json({"stopped_pids": stopped})
    else:
        out.print(f"stopped {len(stopped)} processes" if stopped else "nothing was running")


def status(json: Json = False) -> None:
    """Show each program: whether it runs and answers, address, pid, log. Exit code 1 when something is down."""
    with plain_errors():
        healthy = _print_status(Stack(), json)
    raise typer.Exit(0 if healthy else 1)


def _print_status(stack: Stack, json: bool) -> bool:
    parts: dict[str, dict[str, Any]] = stack.status()
    memory_mib = round(tree_memory(stack.state.stack_id) / 2**20)
    if json:
        print_json({"folder": str(stack.folder), "memory_mib": memory_mib, "programs": parts})
    else:
        print_table([{"program": name, **{k: _yes_no(v) for k, v in part.items()}} for name, part in parts.items()])
        out.print(f"in {stack.folder}, {memory_mib} MiB resident")
    return all(part["running"] and part["answers"] for part in parts.values())


def _yes_no(value: object) -> object:
    return {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value

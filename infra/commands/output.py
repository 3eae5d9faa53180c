"""What every verb shares: tables or JSON, progress, errors without tracebacks, and where the services are."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from infra.local.stack import Stack

WIDTH = None if sys.stdout.isatty() else 180  # tables in a pipe or a log are not folded to 80 columns
out = Console(highlight=False, width=WIDTH)
err = Console(stderr=True, highlight=False, soft_wrap=True)  # carets stay under what they point at
ROOMS = {"features", "kernels", "engine", "pipelines", "infra"}

Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program instead of a table for a person.")]
Kafka = Annotated[
    str | None, typer.Option(envvar="HAILSTREAM_KAFKA", help="Kafka's host:port (default: the local stack's)")
]
RedisUrl = Annotated[
    str | None, typer.Option("--redis", envvar="HAILSTREAM_REDIS", help="Redis URL (default: the local stack's)")
]
FlinkRest = Annotated[
    str | None,
    typer.Option("--flink", envvar="HAILSTREAM_FLINK", help="URL of Flink's REST (default: the local stack's)"),
]


def kafka_or_local(given: str | None) -> str:
    return given or Stack().kafka


def redis_or_local(given: str | None) -> str:
    return given or Stack().redis_url


def flink_or_local(given: str | None) -> str:
    return given or Stack().flink_rest


def whoami() -> str:
    return os.environ.get("USER") or os.environ.get("LOGNAME") or f"uid-{os.getuid()}"


def print_json(value: Any) -> None:
    """Plain JSON on standard output, one document."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def print_table(rows: Sequence[Mapping[str, Any]], *, title: str | None = None, empty: str = "nothing to show") -> None:
    """Rows with the same keys as a table; the keys are the heads."""
    if not rows:
        out.print(empty, markup=False)
        return
    table = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for name in rows[0]:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(Text("-" if value is None else str(value)) for value in row.values()))  # Text: no markup
    out.print(table)


def fail(message: str, *, code: int = 1) -> NoReturn:
    """A mistake of the user's or of the surroundings: the message, no traceback, an exit code."""
    err.print(message, style="red", markup=False)
    raise typer.Exit(code)


@contextmanager
def plain_errors(*also: type[Exception]) -> Iterator[None]:
    """Turns the rooms' own errors, and those that a verb names, into messages with exit code 1.

    Anything else is a fault of ours and keeps its traceback.
    """
    try:
        yield
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ROOMS and not isinstance(error, also):
            raise
        located = type(error).__name__ == "Mistakes"  # its text already starts with file:line:col
        text = str(error.args[0]) if isinstance(error, KeyError) else str(error)
        if isinstance(error, FileNotFoundError) and error.filename is not None:
            text = f"there is no {error.filename}"
        fail(text if located else f"error: {text}")


def progress() -> Progress:
    """A progress bar on standard error, silent when that is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )

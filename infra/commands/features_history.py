"""`hailstream features history | export | archive | backfill`: values as they were, and the past of a new generation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import TaskID

from infra.commands.output import (
    Json,
    Kafka,
    RedisUrl,
    fail,
    kafka_or_local,
    out,
    plain_errors,
    print_json,
    print_table,
    progress,
    redis_or_local,
)
from infra.local.home import CHECKOUT, home

if TYPE_CHECKING:
    from features.history import Role
    from features.spec import Catalogue

SHIPPED = CHECKOUT / "features" / "definitions"
Folder = Annotated[
    Path,
    typer.Option(help="Folder of definitions; relative paths of sources start there.", show_default="the shipped ones"),
]
Out = Annotated[Path, typer.Option("--out", "-o", help="The Parquet file to write.")]
EventTimeOnly = Annotated[
    bool, typer.Option("--event-time-only", help="Take every record as known when it happened, whenever it arrived.")
]
Statuses = Annotated[bool, typer.Option("--statuses", help="Add a column FEATURE__status for each feature.")]
MemoryMb = Annotated[int, typer.Option(min=64, help="What DuckDB may keep in memory before it spills to disk.")]


def history(
    frame: Annotated[Path, typer.Argument(help="Parquet or CSV: the keys, as_of_ms, and anything else.")],
    features: Annotated[
        list[str],
        typer.Option("--features", "-f", help="VIEW.FEATURE, ROLE.FEATURE or VIEW.*, with commas or repeated."),
    ],
    target: Out,
    role: Annotated[
        list[str] | None, typer.Option(help="NAME=VIEW[:KEY=COLUMN,…]; the key's column is NAME by default.")
    ] = None,
    folder: Folder = SHIPPED,
    event_time_only: EventTimeOnly = False,
    statuses: Statuses = False,
    memory_mb: MemoryMb = 512,
    json: Json = False,
) -> None:
    """Join features to a frame as they were known at each row's time. One row out per row in, in the same order.

    Exit code 1 for a mistake in the frame, the features or the history's files; nothing is written then.
    """
    from features.history import history_to_parquet
    from features.parquet import Limits

    with plain_errors(FileNotFoundError), _bar(f"joining {frame.name}") as show:
        rows = history_to_parquet(
            catalogue_of(folder),
            frame,
            target,
            [name.strip() for item in features for name in item.split(",") if name.strip()],
            roles=dict(_role(text) for text in role or ()),
            folder=folder,
            event_time_only=event_time_only,
            statuses=statuses,
            limits=Limits(memory_mb=memory_mb),
            progress=show,
        )
    _wrote(rows, target, json)


def export(
    view: Annotated[str, typer.Argument(help="The view.")],
    target: Out,
    start: Annotated[str, typer.Option("--from", help="First time: 2024-09-01T00:00:00Z or epoch milliseconds.")],
    end: Annotated[str, typer.Option("--to", help="Times are below this one.")],
    every: Annotated[str, typer.Option(help="Step, such as 15m or 1h.")],
    features: Annotated[
        list[str] | None, typer.Option("--features", "-f", help="Only these features of the view.")
    ] = None,
    folder: Folder = SHIPPED,
    event_time_only: EventTimeOnly = False,
    statuses: Statuses = False,
    memory_mb: MemoryMb = 512,
    json: Json = False,
) -> None:
    """Write a view's values for every known key at every step of a stretch of time."""
    from features.export import export as export_view
    from features.parquet import Limits
    from features.window import parse_duration_ms

    with plain_errors(FileNotFoundError, ValueError), _bar(f"exporting {view}") as show:
        rows = export_view(
            catalogue_of(folder),
            view,
            target,
            from_ms=_time_ms(start),
            to_ms=_time_ms(end),
            every_ms=parse_duration_ms(every),
            features=[name.strip() for item in features or () for name in item.split(",")] or None,
            folder=folder,
            event_time_only=event_time_only,
            statuses=statuses,
            limits=Limits(memory_mb=memory_mb),
            progress=show,
        )
    _wrote(rows, target, json)


def archive(
    sources: Annotated[
        list[str] | None, typer.Argument(metavar="[SOURCE]...", help="Stream sources (default: all).")
    ] = None,
    target: Annotated[
        Path | None, typer.Option("--out", help="Folder of the archives (default: <home>/archive).")
    ] = None,
    folder: Folder = SHIPPED,
    rewrite: Annotated[bool, typer.Option("--rewrite", help="Start over from the topic's first offset.")] = False,
    kafka: Kafka = None,
    json: Json = False,
) -> None:
    """Write what sources' topics hold now to Parquet, from where the archive ends: their history.

    history, export and backfill look there for sources that name no history of their own.
    """
    from features.loader import load_catalogue
    from features.spec import Source
    from pipelines.archive import GLOB, archive_topic

    rows = []
    with plain_errors(FileNotFoundError, ValueError):
        known = {name: s for name, s in load_catalogue(folder).sources.items() if isinstance(s, Source)}
        for name in sources or sorted(known):
            if name not in known:
                fail(f"error: there is no stream source '{name}'; known are {sorted(known)}")
            place = (target or archive_dir()) / name
            report = archive_topic(kafka_or_local(kafka), known[name], place, rewrite=rewrite)
            rows.append(
                {
                    "source": name,
                    "rows_written": report.rows,
                    "rejected": report.rejected,
                    "missing": report.missing,
                    "history": str(place / GLOB),
                }
            )
    print_json(rows) if json else print_table(rows)


def backfill(
    views: Annotated[list[str] | None, typer.Argument(metavar="[VIEW]...", help="Only what these views read.")] = None,
    until: Annotated[
        str | None, typer.Option(help="The seam, for groups without a staged one: a time, or epoch ms.")
    ] = None,
    accept_gap: Annotated[
        bool,
        typer.Option(
            "--accept-gap", help="Go on though the history ends before all that lies below the seam can have arrived."
        ),
    ] = False,
    folder: Folder = SHIPPED,
    memory_mb: MemoryMb = 512,
    redis: RedisUrl = None,
    json: Json = False,
) -> None:
    """Write what lies below the seam of the staged version's new groups, from Parquet, so that it can be switched to.

    Again after an interruption: what is there already is left alone. Batch views are written as of `--until` (default: now).
    Exit code 1 where the history does not reach far enough, or nothing is to be backfilled.
    """
    from features.backfill_applied import backfill_registry
    from features.parquet import Limits

    with plain_errors(FileNotFoundError, KeyError, ValueError), progress() as bar:
        tasks: dict[str, TaskID] = {}

        def show(group: str, done: int, total: int) -> None:
            if group not in tasks:
                tasks[group] = bar.add_task(group, total=total, note="")
            bar.update(tasks[group], completed=done, total=total)

        reports = backfill_registry(
            redis_or_local(redis),
            views=views,
            until_ms=None if until is None else _time_ms(until),
            now_ms=_time_ms(until) if until else int(datetime.now(UTC).timestamp() * 1000),
            prepare=with_archives,
            folder=folder,
            accept_gap=accept_gap,
            limits=Limits(memory_mb=memory_mb),
            progress=show,
        )
    if json:
        print_json([asdict(report) for report in reports])
    else:
        print_table(
            [
                {
                    "group": r.group,
                    "generation": r.generation,
                    "seam": r.seam_ms,
                    "rows": r.rows,
                    "written": r.rows_written,
                    "records": r.records,
                    **r.fates,
                }
                for r in reports
            ],
            empty="nothing to backfill",
        )
    raise typer.Exit(0 if reports else 1)


def archive_dir() -> Path:
    return home() / "archive"


def catalogue_of(folder: Path) -> Catalogue:
    """What a folder declares, with the archives of this machine where a source names no history."""
    from features.loader import load_catalogue

    return with_archives(load_catalogue(folder))


def with_archives(catalogue: Catalogue) -> Catalogue:
    """Sources without a history read what `hailstream features archive` wrote, where it did."""
    from features.spec import Source
    from pipelines.archive import GLOB

    sources = dict(catalogue.sources)
    for name, source in sources.items():
        place = archive_dir() / name
        if isinstance(source, Source) and source.history is None and place.is_dir():
            sources[name] = replace(source, history=str(place / GLOB))
    views = {
        name: view if view.source is None else replace(view, source=sources[view.source.name])
        for name, view in catalogue.views.items()
    }
    return replace(catalogue, sources=sources, views=views)


def _role(text: str) -> tuple[str, Role]:
    from features.history import Role

    name, _, rest = text.partition("=")
    view, _, keys = rest.partition(":")
    pairs = [pair.partition("=") for pair in keys.split(",") if pair]
    if not name or not view or any(not key or not column for key, _, column in pairs):
        fail(f"error: '{text}' is no role: write NAME=VIEW or NAME=VIEW:KEY=COLUMN,KEY=COLUMN")
    return name, Role(view=view, keys={key: column for key, _, column in pairs})


def _time_ms(text: str) -> int:
    """Raises: ValueError naming both forms."""
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"'{text}' is not a time: write 2024-09-01T00:00:00Z or epoch milliseconds") from None
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


@contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None]]:
    with progress() as bar:
        task = bar.add_task(what, total=None, note="")
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _wrote(rows: int, target: Path, json: bool) -> None:
    print_json({"rows": rows, "file": str(target)}) if json else out.print(f"{rows} rows to {target}", markup=False)

"""`hailstream replay`: the shipped trips as events."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from infra.commands.output import Json, Kafka, kafka_or_local, out, plain_errors, print_json, print_table, progress

SEED = 20240901


class TripSource(StrEnum):
    """What can be replayed."""

    hvfhv = "hvfhv"
    chicago = "chicago"
    history = "history"
    green = "green"


def replay(
    source: Annotated[
        TripSource,
        typer.Argument(
            help="hvfhv: an hour of New York, drivers made up; chicago: a day of taxis; "
            "history: Chicago's day moved to end where New York's hour starts; green: a month of street hails."
        ),
    ],
    speed_up: Annotated[
        float | None, typer.Option(min=0.001, help="Simulated seconds per second; as fast as possible without it.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the file's first rows.")] = None,
    seed: Annotated[int, typer.Option(help="Of all that is made up; the same seed gives the same events.")] = SEED,
    kafka: Kafka = None,
    json: Json = False,
) -> None:
    """Publish real trips to trip_events and driver_events in order of their simulated arrival."""
    from features.topics import Producer
    from pipelines.trips.pace import Pacer
    from pipelines.trips.replay import Progress
    from pipelines.trips.replay import replay as replay_file

    with plain_errors(), progress() as bar:
        task = bar.add_task(f"replaying {source}", total=None, note="")

        def show(at: Progress) -> None:
            bar.update(task, total=at.total, completed=at.done, note=f"{at.rate:,.0f}/s")

        report = replay_file(
            source.value,
            Producer(kafka_or_local(kafka)),
            seed=seed,
            pacer=Pacer(speed_up),
            limit_rows=limit,
            progress=show,
        )
    broken = report.check()
    _print_replay(report, broken, json)
    raise typer.Exit(1 if broken else 0)


def _print_replay(report: Any, broken: list[str], json: bool) -> None:
    rows = report.rows
    if json:
        print_json({**report.plain(), "broken_sums": broken})
        return
    out.print(
        f"{rows.rows_in} rows of {rows.file}: {rows.used} used, {rows.dead.total()} to dead_letters, "
        f"{rows.set_aside.total()} set aside"
    )
    fates = [
        *({"rows": n, "what": "correction", "which": k} for k, n in sorted(rows.corrections.items())),
        *({"rows": n, "what": "dead letter", "which": k} for k, n in sorted(rows.dead.items())),
        *({"rows": n, "what": "set aside", "which": k} for k, n in sorted(rows.set_aside.items())),
    ]
    print_table(fates, empty="every row was used as it is")
    print_table([{"messages": n, "published": name} for name, n in sorted(report.published.items())])
    rate = report.published.total() / max(report.wall_s, 1e-9)
    out.print(
        f"{report.copies} of them second arrivals, {report.late} late; {report.wall_s:.1f} s, {rate:,.0f} messages/s"
    )
    for sentence in broken:
        out.print(f"does not add up: {sentence}", style="red")

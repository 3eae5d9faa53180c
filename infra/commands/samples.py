"""`hailstream samples write | stats`: the sample log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from infra.commands.output import Json, Kafka, kafka_or_local, out, plain_errors, print_json, print_table
from infra.local.home import home

app = typer.Typer(no_args_is_help=True, help="The sample log: topic to Parquet, and what it holds.")
Folder = Annotated[Path | None, typer.Option("--out", help="The sample log (default: <home>/samples)")]


@app.command()
def write(folder: Folder = None, kafka: Kafka = None, json: Json = False) -> None:
    """Write what the samples topic holds now to Parquet, in fixed offset blocks. Again adds only what is new."""
    from pipelines.sample_log import KafkaSource, SampleLogWriter, check_log

    with plain_errors():
        target = folder or home() / "samples"
        source = KafkaSource(kafka_or_local(kafka))
        with SampleLogWriter(source, target) as writer:
            ends = source.end_offsets()  # once: what arrives after this is for the next call
            report = writer.catch_up(ends)
        check = check_log(target, ends)
    if json:
        print_json({"folder": str(target), "rows": report.rows, "blocks": report.blocks_written, "holds": check.holds})
    else:
        out.print(
            f"{report.rows} new rows in {report.blocks_written} blocks of {target}; the log holds {check.rows} rows"
        )
        for what in ("rejected", "missing", "unread"):
            if getattr(check, what):
                out.print(f"{getattr(check, what)} offsets {what}", style="red")
    raise typer.Exit(0 if check.holds else 1)


@app.command()
def stats(folder: Folder = None, json: Json = False) -> None:
    """Count the samples by strategy, kind and label."""
    from pipelines.sample_log import fold

    with plain_errors():
        samples = fold(folder or home() / "samples", payload=False)
    rows: dict[tuple[Any, ...], int] = {}
    labels = [
        name.removesuffix("_time_ms")
        for name in samples.column_names
        if name.endswith("_time_ms") and name != "event_time_ms"
    ]
    for row in samples.select(["strategy", "kind", "closed", *labels]).to_pylist():
        key = tuple(row.values())
        rows[key] = rows.get(key, 0) + 1
    table = [
        dict(zip(["strategy", "kind", "closed", *labels, "samples"], [*key, n], strict=True)) for key, n in rows.items()
    ]
    table.sort(key=lambda row: (row["strategy"], row["kind"], -row["samples"]))
    if json:
        print_json(table)
    else:
        print_table(table, empty="no samples yet: `hailstream samples write`")

"""`hailstream demo`: the whole loop, with progress, a table at the end, and an exit code that tells whether the sums hold."""

from __future__ import annotations

from typing import Annotated

import typer

from infra.commands.output import Json, err, plain_errors, print_json, progress


def demo(
    speed_up: Annotated[float, typer.Option(min=1, max=30, help="Simulated seconds per second, at most 30.")] = 30.0,
    orders: Annotated[int | None, typer.Option(min=2, help="Only the hour's first so many orders.")] = None,
    seed: Annotated[int, typer.Option(help="Of all that is made up.")] = 20240901,
    force_promotion: Annotated[
        bool, typer.Option(help="Promote the model over a refused gate: for runs too short to train a good one.")
    ] = False,
    json: Json = False,
) -> None:
    """Real trips → features → decisions → samples → model → decisions, on this machine, in about eight minutes.

    Starts the local stack afresh (it refuses to remove data that no demo wrote) and leaves it up; `hailstream down` stops it.
    Exit code 1 if a sum does not hold.
    """
    from infra.demo.report import report_of
    from infra.demo.run import DemoOptions, Watch, run_demo
    from infra.demo.show import show
    from infra.local.stack import Stack

    with plain_errors(), progress() as bar:
        task = bar.add_task("starting", total=None, note="")
        watch = Watch(
            say=lambda text: err.print(text, style="dim", markup=False),
            step=lambda what, done, total, note: bar.update(
                task, description=what, completed=done, total=total, note=note
            ),
        )
        options = DemoOptions(speed_up=speed_up, num_orders=orders, seed=seed, force_promotion=force_promotion)
        report = report_of(run_demo(options, Stack(), watch))
    print_json(report) if json else show(report)
    raise typer.Exit(0 if report["ok"] else 1)

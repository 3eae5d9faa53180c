"""The `hailstream` command. Each verb lives in `infra/commands/` and calls one function of a room."""

from __future__ import annotations

import typer

from infra.commands import demo, engine, features, jobs, samples, stack, strategies, training, trips

app = typer.Typer(
    name="hailstream",
    help="Streaming features, training samples and online decisions for ride-hailing, as one loop.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
)
app.command(rich_help_panel="Start here")(demo.demo)
STACK = "Local stack"
app.command(rich_help_panel=STACK)(stack.up)
app.command(rich_help_panel=STACK)(stack.down)
app.command(rich_help_panel=STACK)(stack.status)
FEATURES = "Events and features"
app.command(rich_help_panel=FEATURES)(trips.replay)
app.add_typer(features.app, name="features", rich_help_panel=FEATURES)
app.add_typer(jobs.app, name="jobs", rich_help_panel=FEATURES)
DECISIONS = "Decisions"
app.command(rich_help_panel=DECISIONS)(engine.serve)
app.add_typer(strategies.app, name="strategies", rich_help_panel=DECISIONS)
MODELS = "Samples and models"
app.add_typer(samples.app, name="samples", rich_help_panel=MODELS)
app.command(rich_help_panel=MODELS)(training.train)
app.add_typer(training.app, name="models", rich_help_panel=MODELS)


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()

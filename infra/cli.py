"""The `hailstream` command. Each verb lives in `infra/commands/` and calls one function of a room."""

from __future__ import annotations

import typer

from infra.commands import stack

app = typer.Typer(
    name="hailstream",
    help="Streaming features, training samples and online decisions for ride-hailing, as one loop.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
)
STACK = "Local stack"
app.command(rich_help_panel=STACK)(stack.up)
app.command(rich_help_panel=STACK)(stack.down)
app.command(rich_help_panel=STACK)(stack.status)


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()

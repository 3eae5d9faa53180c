"""`hailstream strategies schema`: the JSON Schema of a strategy file, for editors."""

from __future__ import annotations


def schema() -> None:
    """Print the JSON Schema (2020-12) of a strategy file, so that an editor completes and checks it."""
    from engine.schema import schema_text

    print(schema_text(), end="")

"""`hailstream strategies check --missing`: what each strategy makes of every value that can be missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from infra.commands.output import print_table

if TYPE_CHECKING:
    from engine.analysis.missing import Missing
    from engine.strategy import CompiledStrategy


def report_dict(compiled: CompiledStrategy) -> dict[str, Any]:
    """For `--json`: stable keys."""
    from engine.analysis.missing import missing_report

    return {
        "strategy": compiled.name,
        "missing": [
            {
                "name": line.name,
                "kind": line.kind,
                "when": line.when,
                "becomes": line.becomes,
                "effects": [
                    {
                        "reader": effect.reader,
                        "codes": sorted(effect.codes),
                        "text": effect.text,
                        "declared_by": effect.declared_by,
                    }
                    for effect in line.effects
                ],
            }
            for line in missing_report(compiled)
        ],
    }


def print_report(compiled: CompiledStrategy) -> None:
    """A table: one line for every reader of every value; at its foot what no expression reads."""
    from engine.analysis.missing import missing_report

    lines = missing_report(compiled)
    rows = [row for line in lines for row in _rows(line)]
    print_table(
        rows, title=f"{compiled.name}: what is missing", empty=f"{compiled.name}: nothing that is read can be missing"
    )
    unread = [line.name for line in lines if not line.effects and line.kind != "role"]
    if unread:
        models = ", only by models" if compiled.strategy.models else ""
        print_table([], empty=f"not read{models}: {_listed(unread)}")


def _rows(line: Missing) -> list[dict[str, Any]]:
    """The name, and what it becomes, stand in the first line alone."""
    first = {"name": line.name, "is": line.when, "becomes": line.becomes}
    return [
        {
            **(first if at == 0 else dict.fromkeys(first, "")),
            "reader": effect.reader,
            "then": effect.text,
            "declared_by": effect.declared_by or "nobody",
        }
        for at, effect in enumerate(line.effects)
    ]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")

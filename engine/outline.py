"""What can be said of a strategy file without compiling it: the files it consists of, its names, and all of it as plain data.

For those who must work where the applied features cannot be read, or the file does not compile: kill switches, watching
for changes, history and diffs. `engine/loader.py` is what checks a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.strategy import Strategy
from engine.switches import Known
from features.expr import Mistakes
from features.yaml_source import MapNode, Node, ScalarNode, SeqNode, load_yaml


@dataclass(frozen=True, kw_only=True)
class Outline:
    """One file as plain data: mappings, lists, numbers and texts. `plain` keeps the order of the file."""

    plain: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.plain.get("strategy", ""))

    @property
    def version(self) -> int:
        """0 where there is none."""
        found = self.plain.get("version")
        return found if type(found) is int else 0

    @property
    def shadow_of(self) -> str | None:
        found = self.plain.get("shadow_of")
        return found if isinstance(found, str) else None

    @property
    def tables(self) -> dict[str, str]:
        """The CSV of every decision table, as written: relative to the strategy file."""
        return {
            name: rows
            for name, table in _mapping(self.plain.get("tables")).items()
            if isinstance(rows := _mapping(table).get("rows"), str)
        }

    @property
    def tests(self) -> str | None:
        """The file of its tests, as written."""
        found = self.plain.get("tests")
        return found if isinstance(found, str) else None

    @property
    def rules(self) -> dict[str, Mapping[str, Any]]:
        """Rules by id, in file order."""
        rules = self.plain.get("rules")
        found = [rule for rule in rules if isinstance(rule, dict)] if isinstance(rules, list) else []
        return {str(rule["id"]): rule for rule in found if "id" in rule}

    def known(self) -> Known:
        """What a kill switch can name."""
        switches = [rule.get("kill_switch") for rule in self.rules.values()]
        return Known(
            name=self.name,
            city=str(_mapping(self.plain.get("scope")).get("city", "*")),
            rules=tuple(self.rules),
            kill_switches=tuple(name for name in switches if isinstance(name, str)),
        )


def read_outline(path: Path, *, name: str | None = None) -> Outline:
    """Raises: Mistakes for a file that is no YAML mapping, FileNotFoundError."""
    plain = _plain(load_yaml(path, name=name))
    return Outline(plain=plain if isinstance(plain, dict) else {})


def read_outlines(folder: Path) -> tuple[list[Outline], dict[str, str]]:
    """All strategies of a folder, and what cannot be read, `{file name: why}`."""
    found: list[Outline] = []
    broken: dict[str, str] = {}
    for path in sorted(folder.glob("*.yaml")):
        try:
            found.append(read_outline(path, name=path.name))
        except (Mistakes, OSError) as error:
            broken[path.name] = str(error)
    return found, broken


def known_of(strategy: Strategy) -> Known:
    """What a kill switch can name of a strategy that was read."""
    return Known(
        name=strategy.name,
        city=strategy.scope["city"],
        rules=tuple(rule.id for rule in strategy.rules),
        kill_switches=tuple(rule.kill_switch for rule in strategy.rules if rule.kill_switch),
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _plain(node: Node) -> Any:
    if isinstance(node, MapNode):
        return {key.text: _plain(value) for key, value in node.items()}
    if isinstance(node, SeqNode):
        return [_plain(item) for item in node]
    assert isinstance(node, ScalarNode)
    return node.value

"""Where a strategy file names what has no expression of its own: parameters, models, roles."""

from __future__ import annotations

from functools import cached_property

from engine.strategy import Strategy
from features.expr import SourceText
from features.yaml_source import MapNode, parse_yaml


class Places:
    """Keys of sections. The file is read once more, and only when a place is asked for: few strategies have such findings."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

    def of(self, section: str, name: str) -> SourceText:
        """The key of an entry; the score where the file is not at hand."""
        entries = self._root.get(section) if self._root is not None else None
        key = entries.key(name) if isinstance(entries, MapNode) else None
        return key.source() if key is not None else self.strategy.score

    @cached_property
    def _root(self) -> MapNode | None:
        lines = self.strategy.score.file_lines
        root = parse_yaml("\n".join(lines), self.strategy.file) if lines else None
        return root if isinstance(root, MapNode) else None

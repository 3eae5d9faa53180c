"""All that can be said of a strategy before it runs: what does not compile, what is worth a look, what analysis finds.

`hailstream strategies check` shows it, `strategies apply` refuses by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from engine.analysis import analyse
from engine.loader import load_strategy
from engine.strategy import CompiledStrategy
from features.expr import Mistake, Mistakes

if TYPE_CHECKING:
    from features.registry import Registry

# Each looks at a strategy that compiles; a mistake of severity "error" keeps it from being applied.
ANALYSES: Final[Sequence[Callable[[CompiledStrategy], list[Mistake]]]] = (analyse,)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What was found in one file. `compiled` is None when it does not compile."""

    path: Path
    compiled: CompiledStrategy | None
    mistakes: tuple[Mistake, ...]

    @property
    def errors(self) -> list[Mistake]:
        return [mistake for mistake in self.mistakes if mistake.severity == "error"]

    @property
    def warnings(self) -> list[Mistake]:
        return [mistake for mistake in self.mistakes if mistake.severity != "error"]


def check_file(path: Path, registry: Registry, *, name: str | None = None) -> Checked:
    """Everything about one file. `name` is what messages call it. Raises: FileNotFoundError."""
    try:
        compiled = load_strategy(path, registry.catalogue, schema_fingerprint=registry.fingerprint, name=name)
    except Mistakes as error:
        return Checked(path=path, compiled=None, mistakes=tuple(error.items))
    found = [*compiled.warnings, *(mistake for analyse in ANALYSES for mistake in analyse(compiled))]
    return Checked(path=path, compiled=compiled, mistakes=tuple(Mistakes(found).items))


def check_files(paths: Sequence[Path], registry: Registry) -> list[Checked]:
    """Everything about files that are to be live together: a strategy's name may stand in one of them only."""
    out: list[Checked] = []
    holders: dict[str, Path] = {}
    for path in paths:
        checked = check_file(path, registry)
        if checked.compiled is not None:
            holder = holders.setdefault(checked.compiled.name, path)
            if holder != path:
                text = f"strategy '{checked.compiled.name}' is already in {holder}"
                taken = Mistake("duplicate", str(path), 1, 1, 2, text, "rename one of them")
                checked = replace(checked, mistakes=(taken, *checked.mistakes))
        out.append(checked)
    return out


def hash_if_good(registry: Registry) -> Callable[[Path, str], str]:
    """What `engine/applied.py` asks of a file: its hash. The function raises Mistakes with all errors."""

    def check(path: Path, name: str) -> str:
        checked = check_file(path, registry, name=name)
        if checked.errors or checked.compiled is None:
            raise Mistakes(checked.errors)
        return checked.compiled.strategy.hash

    return check

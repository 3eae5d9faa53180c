"""The strategies of a folder, compiled and kept up to date: each file with its tables is used whole or not at all.

What a file and its tables look like (time, size, inode) is taken before they are read, so that what changes meanwhile is
seen by the next look. A file that does not compile keeps its last good strategy. `engine/reload.py` makes them live.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from engine.loader import load_strategy
from engine.outline import read_outline
from engine.strategy import CompiledStrategy
from features.expr import Mistakes

if TYPE_CHECKING:
    from features.registry import Registry

logger = logging.getLogger(__name__)

GONE_LOOKS = 20  # a file must be away for so many looks: editors save by removing it and writing it again

_Look = tuple[tuple[int, ...] | None, ...]  # of the file, then of its tables; None is "not there"


class StrategyFiles:
    """Every *.yaml of a folder. `compiled` and `errors` are by path, `generation` counts what may have changed them.

    `folder_error` says that the folder is gone: what was live stays, it may be on its way to be replaced.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.compiled: dict[Path, CompiledStrategy] = {}
        self.errors: dict[Path, str] = {}
        self.folder_error = ""
        self.generation = 0
        self._tables: dict[Path, tuple[Path, ...]] = {}
        self._looks: dict[Path, _Look] = {}
        self._away: dict[Path, int] = {}  # looks for which a known file has not been there

    def refresh(self, registry: Registry, *, everything: bool) -> None:
        """Look once and compile what changed; `everything` when the applied features did."""
        paths = self._paths()
        if paths is None:
            return
        changed = [p for p in paths if everything or self._looks.get(p) != _look_at(p, self._tables.get(p, ()))]
        self._away = {path: self._away.get(path, 0) + 1 for path in set(self._looks) - set(paths)}
        gone = [path for path, looks in self._away.items() if looks >= GONE_LOOKS]
        if not changed and not gone:
            return
        self.generation += 1
        for path in gone:
            for kept in (self.compiled, self.errors, self._tables, self._looks):
                kept.pop(path, None)
        for path in changed:
            self._compile(path, registry)
        for path in set(self.errors) - set(changed):
            self._compile(path, registry)  # what stood in its way may be gone: a name that another file had

    def _paths(self) -> list[Path] | None:
        paths = sorted(self.folder.glob("*.yaml"))
        error = ""
        if not paths and not self.folder.is_dir():
            error = f"no folder of strategies at {self.folder}; what was live stays live"
        if error != self.folder_error:
            self.folder_error = error
            self.generation += 1
        return None if error else paths

    def _compile(self, path: Path, registry: Registry) -> None:
        try:
            # The folder may hold links to kept versions: tables stand beside the file itself, and all is read from there.
            real = Path(os.path.realpath(path, strict=True))  # an OSError for a circle of links
            compiled = self._load(path, real, registry)
            self._refuse_taken_name(path, compiled.name)
            before = self.compiled.get(path)
            if before is None or _identity(before) != _identity(compiled):
                self.compiled[path] = compiled
        except (Mistakes, OSError, ValueError) as error:
            if not path.exists() and not path.is_symlink():
                return  # removed since the folder was listed: the next look says so
            kept = f" (version {self.compiled[path].strategy.version} stays live)" if path in self.compiled else ""
            if self.errors.get(path) != str(error):
                logger.error("%s is not used%s:\n%s", path.name, kept, error)
            self.errors[path] = str(error)
        else:
            self.errors.pop(path, None)

    def _load(self, path: Path, real: Path, registry: Registry) -> CompiledStrategy:
        """Tables are looked at before they are read: at those of last time, which spares reading the YAML for its tables
        alone. A file that now names others, or does not compile, is read for them and compiled again.

        Raises: Mistakes, OSError.
        """
        load = partial(load_strategy, schema_fingerprint=registry.fingerprint, name=path.name)
        known = self._tables.get(path, ())
        if known and known[0].is_relative_to(real.parent):
            self._looks[path] = _look_at(real, known)
            with suppress(Mistakes):
                compiled = load(real, registry.catalogue)
                named = {real.parent / table.file for table in compiled.strategy.tables.values()}
                if named == set(known):
                    return compiled
        self._tables[path] = _tables_of(real, path.name, known)
        self._looks[path] = _look_at(real, self._tables[path])
        return load(real, registry.catalogue)

    def _refuse_taken_name(self, path: Path, name: str) -> None:
        """Raises: ValueError when another file has that strategy: this file's last good one stays, under its own name."""
        for other, compiled in self.compiled.items():
            if other != path and compiled.name == name and other.exists():
                raise ValueError(f"{path.name}: strategy '{name}' is already in {other.name}; rename one of them")


def _identity(compiled: CompiledStrategy) -> tuple[str, str]:
    """Two with the same one are the same: what has been learnt about the first (a fused form) stays true."""
    return (compiled.strategy.hash, compiled.schema_fingerprint)


def _tables_of(path: Path, name: str, before: tuple[Path, ...]) -> tuple[Path, ...]:
    """The CSV files that the strategy names, also when it does not compile. The last known ones while it is no YAML.

    Raises: OSError.
    """
    if b"tables" not in path.read_bytes():  # most have none, and reading YAML is a third of a compile
        return ()
    try:
        return tuple(path.parent / rows for rows in sorted(set(read_outline(path, name=name).tables.values())))
    except Mistakes:
        return before


def _look_at(path: Path, tables: tuple[Path, ...]) -> _Look:
    """Shape: one entry for the file and one for each table."""
    return tuple(_stat(file) for file in (path, *tables))


def _stat(path: Path) -> tuple[int, ...] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino)

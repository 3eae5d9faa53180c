"""What is kept in a folder of applied strategies: the versions in its history, and which of them are live.

`engine/applied.py` shows the folder and changes it; nothing here writes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from engine.strategy import StrategyError
from features.expr import did_you_mean

HISTORY: Final = "history"
RECORD: Final = "applied.json"


class AppliedError(StrategyError):
    """What was asked of the folder is refused; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """One version in history. `hash` is the strategy's (engine/strategy.py), `files` all it consists of."""

    strategy: str
    version: int
    hash: str
    files: list[str]
    actor: str
    reason: str
    at_ms: int
    shadow_of: str | None = None

    @property
    def label(self) -> str:
        """Such as v14-3f2c81aa90b1: the name of its folder."""
        return f"v{self.version}-{self.hash[:12]}"


def live_in(folder: Path) -> dict[str, Kept]:
    """What is live by name. Files that were not applied are not among them. Raises: AppliedError."""
    links = [path for path in sorted(folder.glob("*.yaml")) if path.is_symlink() and HISTORY in path.readlink().parts]
    return {path.stem: read_kept(folder / path.readlink().parent) for path in links}


def history_of(folder: Path, name: str) -> list[Kept]:
    """Every version that was ever applied, lowest first. Raises: AppliedError."""
    kept = [read_kept(path) for path in (folder / HISTORY / name).glob("v*") if path.is_dir()]
    return sorted(kept, key=lambda one: one.version)


def kept_version(folder: Path, name: str, version: int) -> Kept:
    """Raises: AppliedError when there is no such version."""
    history = history_of(folder, name)
    found = next((kept for kept in history if kept.version == version), None)
    if found is None:
        names = {path.name for path in (folder / HISTORY).glob("*")}
        known = f"kept are {', '.join(str(kept.version) for kept in history)}" if history else names_there(name, names)
        raise AppliedError(f"no version {version} of '{name}' in {folder / HISTORY}; {known}")
    return found


def path_of(folder: Path, kept: Kept) -> Path:
    """The strategy file of a kept version."""
    return folder / HISTORY / kept.strategy / kept.label / f"{kept.strategy}.yaml"


def names_there(name: str, names: Iterable[str]) -> str:
    names = sorted(names)
    near = did_you_mean(name, names)
    return f"did you mean '{near}'?" if near else f"there are: {', '.join(names) or 'none'}"


def read_kept(path: Path) -> Kept:
    """Raises: AppliedError."""
    try:
        return msgspec.json.decode((path / RECORD).read_bytes(), type=Kept)
    except (OSError, msgspec.DecodeError) as error:
        raise AppliedError(
            f"{path / RECORD} cannot be read ({error}); it is written by apply and by nobody else"
        ) from None

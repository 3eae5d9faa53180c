"""The models that strategies use, loaded once per version: what each champion pointer says, and the last few for a way back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from engine.model import MANIFEST, Model, ModelError, champion_version, check_names, load_model, version_dir
from engine.strategy import CHAMPION, CompiledStrategy, ModelUse

KEPT_MODELS: Final = 4  # versions kept loaded beside the ones pointed at: a rollback goes live without reading files


class ModelShelf:
    """`models` is by (name, version), last used last: what its manifest looked like, and the model, or why it does not load."""

    def __init__(self, models_dir: Path) -> None:
        self.models_dir = models_dir
        self.models: dict[tuple[str, str], tuple[Any, Model | str]] = {}

    def champions(self, strategies: Iterable[CompiledStrategy]) -> dict[str, Any]:
        """What every model in use points at now, with what would tell a repaired version from a broken one."""
        out: dict[str, Any] = {}
        for compiled in strategies:
            for use in compiled.strategy.models.values():
                ref = f"{use.model}@{use.version}"
                try:
                    version = self._version(use)
                    out[ref] = (version, version and _stat_of(version_dir(self.models_dir, use.model, version)))
                except ModelError as error:
                    out[ref] = (None, str(error))
        return out

    def _version(self, use: ModelUse) -> str | None:
        return champion_version(self.models_dir, use.model) if use.version == CHAMPION else use.version

    def get(self, use: ModelUse, compiled: CompiledStrategy, champions: Mapping[str, Any]) -> Model | None:
        """The model that a use points at, loaded once. Raises: ModelError."""
        version, stat = champions[f"{use.model}@{use.version}"]
        if version is None:
            if stat is not None:
                raise ModelError(stat)
            return None
        key = (use.model, version)
        known = self.models.pop(key, None)
        if known is None or known[0] != stat:
            known = (stat, self._load(*key))
        self.models[key] = known
        found = known[1]
        if isinstance(found, str):
            raise ModelError(found)
        check_names(found, compiled.names)
        return found

    def _load(self, name: str, version: str) -> Model | str:
        try:
            return load_model(version_dir(self.models_dir, name, version))
        except Exception as error:  # any way in which a directory can be wrong keeps the last good model
            return str(error)

    def forget(self, champions: Mapping[str, Any]) -> None:
        """Let go of versions that nothing points at, but for the last few: a process outlives many promotions."""
        pointed_at = {(ref.rpartition("@")[0], version) for ref, (version, _) in champions.items()}
        others = [key for key in self.models if key not in pointed_at]
        for key in others[:-KEPT_MODELS]:
            del self.models[key]


def fits(model: Model, compiled: CompiledStrategy) -> bool:
    """Whether the strategy has every name that the model reads, with its type."""
    try:
        check_names(model, compiled.names)
        return True
    except ModelError:
        return False


def _stat_of(directory: Path) -> tuple[int, int] | None:
    """What changes when a version's manifest is written again; None while there is no manifest."""
    try:
        stat = (directory / MANIFEST).stat()
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_ino)

"""What strategies and models read of the features that are applied, for `hailstream features plan` and `apply`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.strategy import CompiledStrategy
    from features.registry import Registry
    from features.spec import Catalogue

Uses = Mapping[str, set[tuple[str, str]]]


def uses_of(
    strategies: Path, models: Path, before: Registry, after: Catalogue
) -> tuple[dict[str, set[tuple[str, str]]], dict[str, str]]:
    """(view, feature) by `strategy NAME` and `model NAME@VERSION`; and which of them would not load with `after`, and why.

    A strategy that does not compile with what is applied is left out: what it would read, nobody is served.
    """
    from engine.loader import load_strategy
    from features.expr import Mistakes

    uses: dict[str, set[tuple[str, str]]] = {}
    broken: dict[str, str] = {}
    for path in sorted(strategies.glob("*.yaml")):
        try:
            compiled = load_strategy(path, before.catalogue, schema_fingerprint="", name=path.name)
        except Mistakes:
            continue
        user = f"strategy {compiled.name}"
        uses[user] = _read_by(compiled, _names_of(compiled))
        for ref, names in _models_of(compiled, models).items():
            uses.setdefault(f"model {ref}", set()).update(_read_by(compiled, names))
        try:
            load_strategy(path, after, schema_fingerprint="", name=path.name)
        except Mistakes as error:
            broken[user] = str(error.items[0].message)
    return uses, broken


def _names_of(compiled: CompiledStrategy) -> frozenset[str]:
    from engine.inputs import names_read

    return names_read(compiled).union(*(arms.where.names for arms in compiled.arms if arms.where is not None))


def _models_of(compiled: CompiledStrategy, models: Path) -> dict[str, frozenset[str]]:
    """The names that the column program of each model in use reads. The graph is not loaded: only its inputs matter here."""
    from engine.model import PROGRAM, ColumnProgram, ModelError, champion_version, version_dir
    from engine.strategy import CHAMPION
    from features.expr import Mistakes

    out: dict[str, frozenset[str]] = {}
    for use in compiled.strategy.models.values():
        try:
            version = champion_version(models, use.model) if use.version == CHAMPION else use.version
            if version is not None:
                path = version_dir(models, use.model, version) / PROGRAM
                program = ColumnProgram.load(json.loads(path.read_text()), compiled.names, file=str(path))
                out[f"{use.model}@{version}"] = program.reads
        except (ModelError, Mistakes, OSError, ValueError):
            continue  # a model that the engine does not load either; `strategies check` and the engine say why
    return out


def _read_by(compiled: CompiledStrategy, names: frozenset[str]) -> set[tuple[str, str]]:
    """The features among some names, those behind lets and tables included."""
    views = {role.name: role.view.name for role in compiled.strategy.roles}
    parts = [name.partition(".") for name in compiled.reached(names)]
    return {(views[role], feature) for role, dot, feature in parts if dot and role in views}

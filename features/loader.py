"""YAML to a checked Catalogue, with all mistakes of all files at once.

    entities.yaml, sources.yaml    features/source_loader.py
    views/*.yaml                   one view a file: features/view_loader.py, and its features: features/feature_loader.py
    tests/*.yaml                   cases of a view: features/view_tests.py

`load_texts` does the same for texts that travelled inside the registry. Single fields are read by
features/yaml_fields.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files as package_files
from pathlib import Path

from features.expr import Mistakes
from features.source_loader import load_entities, load_sources
from features.spec import Catalogue, FeatureView
from features.view_loader import VIEW_KEYS, load_view
from features.yaml_fields import Fields, Problems
from features.yaml_source import MapNode, Node, load_yaml, parse_yaml

ENTITIES, SOURCES, VIEWS, TESTS = "entities.yaml", "sources.yaml", "views", "tests"
SHIPPED = Path(str(package_files("features"))) / "definitions"


def load_catalogue(folder: Path | str) -> Catalogue:
    """Read a folder of definitions.

    Raises: Mistakes with every mistake of every file; FileNotFoundError naming what is missing.
    """
    catalogue, problems = read_catalogue(folder)
    problems.raise_if_any()
    return catalogue


def read_catalogue(folder: Path | str) -> tuple[Catalogue, Problems]:
    """What of a folder can be understood, and all mistakes. Raises: FileNotFoundError naming what is missing."""
    folder = Path(folder)
    for name in (ENTITIES, SOURCES, VIEWS):
        if not (folder / name).exists():
            raise FileNotFoundError(f"{folder / name} is missing: a catalogue has {ENTITIES}, {SOURCES} and {VIEWS}/")
    problems = Problems()
    nodes: dict[str, Node] = {}
    texts: dict[str, str] = {}
    for path in [folder / ENTITIES, folder / SOURCES, *sorted((folder / VIEWS).glob("*.yaml"))]:
        rel = path.relative_to(folder).as_posix()
        try:
            nodes[rel] = load_yaml(path, name=str(path))
            texts[rel] = path.read_text(encoding="utf-8-sig")
        except Mistakes as error:
            problems.extend(error.items)
    catalogue = _build(nodes, texts, problems)
    for view in catalogue.views.values():
        if view.tests is not None and not (folder / view.tests).is_file():
            node = _tests_node(nodes, view)
            problems.add(node, "tests", f"no such file: {folder / view.tests}", "tests stand under tests/")
    return catalogue, problems


def load_texts(texts: Mapping[str, str]) -> Catalogue:
    """The same from texts by relative path, as `Catalogue.files` holds them. Raises: Mistakes."""
    problems = Problems()
    nodes: dict[str, Node] = {}
    for rel, text in texts.items():
        try:
            nodes[rel] = parse_yaml(text, rel)
        except Mistakes as error:
            problems.extend(error.items)
    catalogue = _build(nodes, dict(texts), problems)
    problems.raise_if_any()
    return catalogue


def _build(nodes: Mapping[str, Node], texts: dict[str, str], problems: Problems) -> Catalogue:
    entities = load_entities(nodes.get(ENTITIES), problems)
    sources = load_sources(nodes.get(SOURCES), problems)
    known = entities if ENTITIES in nodes else None, sources if SOURCES in nodes else None
    views: dict[str, FeatureView] = {}
    for rel, node in nodes.items():
        if rel in (ENTITIES, SOURCES):
            continue
        fields = Fields(node, problems, VIEW_KEYS, "a view")
        view = load_view(fields, *known)
        if view is None:
            continue
        if view.name in views:
            other = views[view.name]
            hint = f"it is already declared in {other.file}:{other.line}; rename one of them"
            problems.add(fields.node_of("view"), "duplicate", f"duplicate view '{view.name}'", hint)
            continue
        views[view.name] = view
    return Catalogue(entities=entities, sources=sources, views=views, files=texts)


def _tests_node(nodes: Mapping[str, Node], view: FeatureView) -> Node:
    for node in nodes.values():
        if isinstance(node, MapNode) and node.file == view.file:
            return node.get("tests") or node
    raise AssertionError(f"view {view.name} came from no file")

"""What differs between two versions of a strategy: by meaning (rules, params, tables, …) and as text.

It compares files as written, not as compiled: also a version whose features are gone, or that does not compile, has a diff.
"""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engine.outline import Outline, read_outline

_LISTED: Final = ("rules",)  # lists of things with an id
_NESTED: Final = {"candidates": "fields"}  # what of a section holds its things


@dataclass(frozen=True, kw_only=True)
class Version:
    """One side: `label` is how messages call it, `texts` its files by name, the strategy's own under ""."""

    label: str
    outline: Outline
    texts: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Change:
    """`name` of `section` was `added`, `removed`, `changed` or `moved` (a rule: in the order of the file).

    `before` and `after` are as written, None where there was or is nothing. A table's rows are changes of section
    `tables.NAME.rows`, named by the CSV line.
    """

    section: str
    name: str
    what: str
    before: Any = None
    after: Any = None


@dataclass(frozen=True, kw_only=True)
class Diff:
    """`changes` is empty where only comments and layout differ; `text` is a unified diff of all files."""

    changes: list[Change]
    text: str


def read_version(path: Path, label: str) -> Version:
    """Raises: Mistakes for a file that is no YAML, OSError."""
    outline = read_outline(path)
    names = {"": path, **{name: path.parent / name for name in outline.tables.values()}}
    return Version(
        label=label, outline=outline, texts={name: file.read_text(errors="replace") for name, file in names.items()}
    )


def diff(before: Version, after: Version) -> Diff:
    """Sections in the order of the newer file, then those that it no longer has."""
    old, new = before.outline.plain, after.outline.plain
    changes: list[Change] = []
    for section in dict.fromkeys([*new, *old]):
        changes += _section(section, old.get(section), new.get(section))
    for table in dict.fromkeys([*after.outline.tables, *before.outline.tables]):
        changes += _rows(table, _csv(before, table), _csv(after, table))
    return Diff(changes=changes, text=_text(before, after))


def _section(section: str, old: Any, new: Any) -> list[Change]:
    if section in _LISTED:
        return _listed(section, _by_id(old), _by_id(new))
    if isinstance(old, dict | None) and isinstance(new, dict | None) and (old or new):
        inner = _NESTED.get(section)
        olds, news = _flat(old or {}, inner), _flat(new or {}, inner)
        return [
            _change(section, name, olds.get(name), news.get(name))
            for name in dict.fromkeys([*news, *olds])
            if (olds.get(name), name in olds) != (news.get(name), name in news)
        ]
    return [] if old == new else [_change(section, "", old, new)]


def _listed(section: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Things with an id; one that is the same but stands elsewhere among those that stayed was moved."""
    changes = [
        _change(section, name, old.get(name), new.get(name))
        for name in dict.fromkeys([*new, *old])
        if old.get(name) != new.get(name)
    ]
    stayed_before, stayed_after = [n for n in old if n in new], [n for n in new if n in old]
    still = set()
    for block in difflib.SequenceMatcher(None, stayed_before, stayed_after, autojunk=False).get_matching_blocks():
        still.update(stayed_before[block.a : block.a + block.size])
    for name in stayed_after:
        if name not in still:
            places = (list(old).index(name) + 1, list(new).index(name) + 1)
            changes.append(Change(section=section, name=name, what="moved", before=places[0], after=places[1]))
    return changes


def _rows(table: str, old: Sequence[str], new: Sequence[str]) -> list[Change]:
    """Rows of the CSV that are only on one side. A row that stands elsewhere was removed there and added here."""
    changes = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            section = f"tables.{table}.rows"
            changes += [Change(section=section, name=row, what="removed", before=row) for row in old[a:b]]
            changes += [Change(section=section, name=row, what="added", after=row) for row in new[c:d]]
    return changes


def _change(section: str, name: str, old: Any, new: Any) -> Change:
    what = "added" if old is None else "removed" if new is None else "changed"
    return Change(section=section, name=name, what=what, before=old, after=new)


def _by_id(rules: Any) -> dict[str, Any]:
    found = [rule for rule in rules if isinstance(rule, dict)] if isinstance(rules, list) else []
    return {str(rule.get("id", f"#{at}")): rule for at, rule in enumerate(found, start=1)}


def _flat(section: Mapping[str, Any], inner: str | None) -> dict[str, Any]:
    """The things of a section by name, those of `inner` with their section before the dot."""
    out = {name: value for name, value in section.items() if name != inner}
    nested = section.get(inner) if inner else None
    return out | {f"{inner}.{name}": value for name, value in nested.items()} if isinstance(nested, dict) else out


def _csv(version: Version, table: str) -> list[str]:
    """The rows of a table, each as one line without the layout of its author."""
    name = version.outline.tables.get(table)
    if name is None:
        return []
    rows = csv.reader(io.StringIO(version.texts[name]))
    return [", ".join(cell.strip() for cell in row) for row in rows if row]


def _text(before: Version, after: Version) -> str:
    out: list[str] = []
    for name in dict.fromkeys([*after.texts, *before.texts]):
        shown = name or f"{after.outline.name}.yaml"
        old, new = (version.texts.get(name, "").splitlines() for version in (before, after))
        out += difflib.unified_diff(old, new, f"{before.label}/{shown}", f"{after.label}/{shown}", lineterm="", n=2)
    return "\n".join(out)

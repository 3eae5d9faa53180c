"""Every code of a mistake that any room uses is in the table."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from features.expr.causes import CAUSES

ROOMS = ("features", "engine", "pipelines", "infra")
ROOT = Path(__file__).parents[3]
CODE = re.compile(r"[a-z]+(-[a-z]+)*")


def makers(tree: ast.AST) -> dict[str, int]:
    """What makes mistakes in a module: functions and classes with a `kind` and a `message`, and where `kind` stands."""
    out = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args) if arg.arg not in ("self", "cls")]
        elif isinstance(node, ast.ClassDef):
            fields = [part.target for part in node.body if isinstance(part, ast.AnnAssign)]
            names = [field.id for field in fields if isinstance(field, ast.Name)]
        else:
            continue
        if {"kind", "message"} <= set(names):
            out[node.name] = names.index("kind")
    return out


def codes_used() -> dict[str, list[str]]:
    """Each code with the places `file:line` that use it."""
    trees = {path: ast.parse(path.read_text()) for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))}
    made = {path: makers(tree) for path, tree in trees.items()}
    everywhere: dict[str, set[int]] = {}
    for own in made.values():
        for name, place in own.items():
            everywhere.setdefault(name, set()).add(place)
    out: dict[str, list[str]] = {}
    for path, tree in trees.items():
        own = made[path]
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                places = {own[name]} if name in own else everywhere.get(name, set())
                for code in _codes(node, places):
                    out.setdefault(code, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return out


def _codes(call: ast.Call, places: set[int]) -> Iterator[str]:
    given = [call.args[place] for place in places if place < len(call.args)]
    given += [keyword.value for keyword in call.keywords if keyword.arg == "kind" and places]
    for value in given:
        for choice in (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,):
            if isinstance(choice, ast.Constant) and isinstance(choice.value, str) and CODE.fullmatch(choice.value):
                yield choice.value


def test_every_code_is_in_the_table() -> None:
    used = codes_used()
    unknown = {code: places for code, places in used.items() if code not in CAUSES}
    assert not unknown, f"add a sentence for each to features/expr/causes.py: {unknown}"
    assert len(used) > 40  # the scan finds something


def test_a_cause_is_one_sentence() -> None:
    for code, cause in CAUSES.items():
        assert CODE.fullmatch(code)
        assert cause.endswith(".") and cause[0].isupper() and ". " not in cause and "\n" not in cause, code

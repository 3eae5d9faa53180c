"""`hailstream strategies apply | retire | list | show | diff`: a folder of applied strategies, and what an engine serves."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.commands.engine import PORT
from infra.commands.output import (
    Json,
    RedisUrl,
    fail,
    out,
    plain_errors,
    print_json,
    print_table,
    redis_or_local,
    whoami,
)

if TYPE_CHECKING:
    from engine.applied import Applied
    from engine.history import Kept
    from engine.strategy_diff import Version
    from features.registry import Registry

Folder = Annotated[
    Path | None, typer.Option("--strategies", envvar="HAILSTREAM_STRATEGIES", help="The folder of applied strategies.")
]
Definitions = Annotated[
    Path | None, typer.Option(help="Check against this folder of feature definitions, instead of what is applied.")
]
Actor = Annotated[str | None, typer.Option(help="Who. (default: you)")]
Reason = Annotated[str, typer.Option(help="Why; kept in the history and in the audit log.")]


def apply(
    what: Annotated[
        str, typer.Argument(help="A strategy file, a folder of them, or with --version a strategy's name.")
    ],
    to: Annotated[
        Path,
        typer.Option(envvar="HAILSTREAM_STRATEGIES", help="The folder that engines serve; made when it is not there."),
    ],
    reason: Reason,
    actor: Actor = None,
    version: Annotated[int | None, typer.Option(help="Go to this version from the history.")] = None,
    definitions: Definitions = None,
    redis: RedisUrl = None,
    json: Json = False,
) -> None:
    """Check strategies and make them live in a folder, each whole with its tables. The same again changes nothing."""
    from engine import applied
    from engine.check import hash_if_good

    with plain_errors(OSError):
        check = hash_if_good(registry_of(definitions, redis))
        now_ms = time.time_ns() // 1_000_000
        who = actor or whoami()
        if version is not None:
            done = [applied.restore(to, what, version, check, actor=who, reason=reason, now_ms=now_ms)]
        else:
            sources = _sources(Path(what), registry_of(definitions, redis))
            done = applied.apply(to, sources, check, actor=who, reason=reason, now_ms=now_ms)
    if json:
        print_json([asdict(one) for one in done])
        return
    for one in done:
        out.print(_said(one, to), markup=False)


def retire(name: str, reason: Reason, actor: Actor = None, strategies: Folder = None, json: Json = False) -> None:
    """Take a strategy out of service; its history stays, and `apply --version` brings it back."""
    from engine import applied

    with plain_errors(OSError):
        now_ms = time.time_ns() // 1_000_000
        kept = applied.retire(_given(strategies), name, actor=actor or whoami(), reason=reason, now_ms=now_ms)
    if json:
        print_json(asdict(kept))
    else:
        out.print(f"{name}: version {kept.version} is retired; its history stays", markup=False)


def list_(
    url: Annotated[str, typer.Option(help="The engine's address.")] = f"http://127.0.0.1:{PORT}",
    strategies: Annotated[
        Path | None, typer.Option(help="Show what is applied in this folder, instead of asking an engine.")
    ] = None,
    json: Json = False,
) -> None:
    """Show what a running engine serves, or what is applied in a folder: versions, models, shadows, kills, problems."""
    if strategies is not None:
        _list_folder(strategies, json=json)
        return
    from engine.client import EngineClient

    with plain_errors(), EngineClient(url) as client:
        live = client.strategies()
    if json:
        print_json(live)
        return
    shown = {**live["strategies"], **live["shadows"]}
    print_table([_served(name, shown[name]) for name in sorted(shown)], empty="the engine serves no strategy")
    if live["switches"] is None:
        out.print("nobody can tell what is switched off: nothing is decided", style="red", markup=False)
    for switch in live["switches"] or []:
        line = f"off: {switch['target']}, by {switch['actor']}: {switch['reason']}"
        out.print(line, style="yellow", markup=False)
    for what, problem in live["errors"].items():
        out.print(f"not used: {what}: {problem}", style="yellow", markup=False)
    for problem in (problem for problems in live["warnings"].values() for problem in problems):
        out.print(problem, style="yellow", markup=False)


def show(
    name: str,
    version: Annotated[int | None, typer.Option(help="A version from the history. (default: the live one)")] = None,
    strategies: Folder = None,
    json: Json = False,
) -> None:
    """Show one applied strategy: who applied it when and why, its history, and its text with its tables."""
    from engine.history import history_of, path_of
    from engine.strategy_diff import read_version
    from engine.switches import in_utc

    folder = _given(strategies)
    with plain_errors(OSError):
        kept = _kept(folder, name, version)
        found = read_version(path_of(folder, kept), kept.label)
        history = history_of(folder, name)
    if json:
        content: dict[str, Any] = {"content": found.outline.plain, "tables": dict(found.texts)}
        content["text"] = content["tables"].pop("")
        print_json(asdict(kept) | content | {"history": [asdict(one) for one in history]})
        return
    out.print(f"{name} version {kept.version}, hash {kept.hash}", markup=False)
    out.print(f"applied {in_utc(kept.at_ms)} by {kept.actor}: {kept.reason}", markup=False)
    out.print(f"kept versions: {', '.join(str(one.version) for one in history)}\n", markup=False)
    for file, text in found.texts.items():
        out.print(f"# {file or kept.files[0]}\n{text.rstrip()}\n", markup=False)


def diff(
    name: str,
    before: Annotated[
        str | None, typer.Argument(metavar="[A]", help="A version, or a file. (default: the one before B)")
    ] = None,
    after: Annotated[
        str | None, typer.Argument(metavar="[B]", help="A version, or a file. (default: the live one)")
    ] = None,
    strategies: Folder = None,
    json: Json = False,
) -> None:
    """Show what differs between two versions: rules, params, table rows, and the text. With one, between it and the live one."""
    from engine.strategy_diff import diff as find_diff

    folder = _given(strategies)
    with plain_errors(OSError):
        newer = _version(folder, name, after)
        older = _version(folder, name, before) if before is not None else _one_before(folder, name, newer)
        found = find_diff(older, newer)
    if json:
        print_json({"before": older.label, "after": newer.label, **asdict(found)})
        return
    print_table(
        [
            {"section": c.section, "name": c.name or "-", "change": c.what, older.label: c.before, newer.label: c.after}
            for c in found.changes
        ],
        empty="nothing differs but layout and comments" if found.text else "nothing differs",
    )
    if found.text:
        out.print("\n" + found.text, markup=False)


def registry_of(definitions: Path | None, redis: str | None) -> Registry:
    """What strategies are checked against: a folder of definitions, or what is applied."""
    from features.loader import load_catalogue
    from features.registry import load_registry, local_registry

    return local_registry(load_catalogue(definitions)) if definitions else load_registry(redis_or_local(redis))


def _sources(path: Path, registry: Registry) -> list[Any]:
    """The checked files of a file or a folder. Raises: Mistakes with those of all files together."""
    from engine.applied import read_source
    from engine.check import check_files, hash_if_good
    from features.expr import Mistakes

    paths = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    if not paths:
        fail(f"error: no strategy file (*.yaml) in {path}")
    checked = check_files(paths, registry)
    mistakes = [mistake for one in checked for mistake in one.errors]
    if mistakes:
        raise Mistakes(mistakes)
    for one in checked:
        for warning in one.warnings:
            out.print(warning.format(), style="yellow", markup=False)
    return [read_source(one, hash_if_good(registry)) for one in paths]


def _said(one: Applied, to: Path) -> str:
    version = one.kept.version
    if one.what == "unchanged":
        return f"{one.strategy}: version {version} is live already; nothing changed"
    before = f", before it {one.before.version}" if one.before else ""
    return f"{one.strategy}: version {version} is live in {to} ({one.what}, {one.kept.hash[:12]}{before})"


def _served(name: str, served: dict[str, Any]) -> dict[str, str]:
    models = [f"{use} = {model['model'] if model else 'none yet'}" for use, model in served["models"].items()]
    return {
        "strategy": name,
        "version": served["version"],
        "hash": served["hash"][:12],
        "models": ", ".join(models) or "-",
        "experiments": ", ".join(f"{e} {arms}" for e, arms in served["experiments"].items()) or "-",
        "shadow of": _beside(served) if "shadow_of" in served else "-",
    }


def _beside(served: dict[str, Any]) -> str:
    """Such as "express_dispatch: 96.5 % of 2000 agree, 3 full"."""
    rate = (
        f"{100 * served['agreed'] / served['decided']:.1f} % of {served['decided']} agree" if served["decided"] else ""
    )
    parts = [rate or "none decided yet", *(f"{count} {reason}" for reason, count in served["undecided"].items())]
    return f"{served['shadow_of']}: {', '.join(parts)}"


def _list_folder(folder: Path, *, json: bool) -> None:
    from engine.history import history_of, live_in
    from engine.switches import in_utc

    with plain_errors(OSError):
        live = live_in(folder)
        if json:
            print_json({name: asdict(kept) for name, kept in live.items()})
            return
        rows = [
            {
                "strategy": name,
                "version": kept.version,
                "hash": kept.hash[:12],
                "shadow of": kept.shadow_of or "-",
                "applied": in_utc(kept.at_ms),
                "actor": kept.actor,
                "reason": kept.reason,
                "kept": ", ".join(str(one.version) for one in history_of(folder, name)),
            }
            for name, kept in live.items()
        ]
    print_table(rows, empty=f"no strategy is applied in {folder}")


def _given(folder: Path | None) -> Path:
    if folder is None:
        fail("error: which folder? Say --strategies DIR, or set HAILSTREAM_STRATEGIES", code=2)
    return folder


def _kept(folder: Path, name: str, version: int | None) -> Kept:
    from engine.history import AppliedError, kept_version, live_in, names_there

    if version is not None:
        return kept_version(folder, name, version)
    live = live_in(folder)
    if name not in live:
        raise AppliedError(f"no strategy '{name}' is live in {folder}; {names_there(name, live)}")
    return live[name]


def _version(folder: Path, name: str, which: str | None) -> Version:
    """A side of a diff: a version from the history, a file, or the live one."""
    from engine.history import path_of
    from engine.strategy_diff import read_version

    if which is not None and not which.isdecimal():
        return read_version(Path(which), which)
    kept = _kept(folder, name, None if which is None else int(which))
    return read_version(path_of(folder, kept), kept.label)


def _one_before(folder: Path, name: str, newer: Version) -> Version:
    from engine.history import AppliedError, history_of

    below = [kept.version for kept in history_of(folder, name) if kept.version < newer.outline.version]
    if not below:
        raise AppliedError(f"no version of '{name}' before {newer.outline.version} is kept")
    return _version(folder, name, str(below[-1]))

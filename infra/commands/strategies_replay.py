"""`hailstream strategies replay`: logged Decisions through a strategy file, before it is applied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.commands.output import (
    Json,
    Kafka,
    RedisUrl,
    err,
    fail,
    kafka_or_local,
    out,
    plain_errors,
    print_json,
    print_table,
    progress,
)
from infra.commands.strategies_applied import Definitions, Folder, registry_of

if TYPE_CHECKING:
    from engine.replay_block import Block
    from engine.replay_cache import Cache
    from engine.replay_log import Log, Wanted
    from engine.rules import RuleRunner
    from engine.strategy import CompiledStrategy
    from features.registry import Registry

USAGE, BROKEN, TOO_MUCH = 2, 1, 3  # exit codes
_MOST_ROWS = 15


def replay(
    strategy: Annotated[str, typer.Argument(help="A strategy file, or the name of a shipped strategy.")],
    decisions: Annotated[
        list[Path] | None,
        typer.Option(
            help="Decisions as lines of JSON, .gz or plain; may be repeated. (default: Kafka's topic `decisions`)"
        ),
    ] = None,
    before: Annotated[
        list[Path] | None,
        typer.Option(
            help="The file of a version that decided; may be repeated. Versions in --strategies are found by themselves."
        ),
    ] = None,
    topic: Annotated[
        str, typer.Option(help="The topic to read where no file is given; `shadow_decisions` has those of shadows.")
    ] = "decisions",
    of: Annotated[
        str | None, typer.Option("--strategy", help="Whose decisions. (default: those of the strategy of that name)")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--from", help="Decisions from this event time on: 2026-11-30T08:00 (UTC) or epoch ms."),
    ] = None,
    to: Annotated[str | None, typer.Option("--to", help="Decisions before this event time.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="At most this many decisions; 0 for all there are.")] = 0,
    by: Annotated[
        list[str] | None,
        typer.Option(help="Count by this request field; may be repeated. (default: pickup_zone and city)"),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with plots to this file; it needs no network.")
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(help="Keep the decoded log in this file; the next replay of the same log starts from it."),
    ] = None,
    fused: Annotated[
        bool, typer.Option("--fused", help="Compile the rules first: seconds once, then 2 times the speed.")
    ] = False,
    max_changed: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Exit code 3 when the first choice of a larger share changes."),
    ] = None,
    strategies: Folder = None,
    definitions: Definitions = None,
    kafka: Kafka = None,
    redis: RedisUrl = None,
    json: Json = False,
) -> None:
    """Decide logged orders again with a strategy file: what would change, for whom, and which edit does it.

    An unchanged file must come to the same to the bit; every difference is listed, and the exit code is 1. For a changed
    one: the share of orders whose best-ranked candidate is another, by the rule, score, table or parameter that did it,
    by zone and by hour; candidates newly dropped and kept, score shifts, and the chosen mass that moves. What the log lacks
    (a model that nobody asked, a field that was not sent) is named, and decisions that hang on it are counted apart.

    Typical: edit a copy of a strategy, then

        hailstream strategies replay new.yaml --before old.yaml --decisions log.jsonl.gz --html replay.html

    Exit codes: 0 equal, or changed as a changed file may; 1 an unchanged file came to something else; 2 nothing could be
    replayed (a mistake in a file, an empty log); 3 more changed than --max-changed allows.
    """
    from engine.replay import DEFAULT_BY, Replay
    from engine.replay_log import Log, Wanted
    from engine.replay_report import document, page

    with _usage_errors():
        registry = registry_of(definitions, redis)
        compiled = _load(_path(strategy), registry)
        name = of or compiled.name
        old = {one.strategy.hash: one for one in (_load(path, registry) for path in before or [])}
        old |= _from_history(strategies, name, registry, known=old)
        wanted = Wanted(strategy=name, from_ms=_time(since, "--from"), to_ms=_time(to, "--to"), limit=limit)
        log = Log(_lines(decisions, kafka, topic), wanted)
        kept = _cache(cache, decisions, kafka, topic, wanted)
        runner = Replay(compiled, rules=_rules(compiled) if fused else None, before=old, by=by or DEFAULT_BY, of=name)
        _run(runner, log, kept, total=limit or None)
        report = runner.report
        if not report.decisions:
            fail(
                f"error: no decision of {name} in the log ({log.read} records, {log.num_unreadable} unreadable)",
                code=USAGE,
            )
        found = document(report, log if log.read else None)
        if html is not None:
            subtitle = f"{strategy} ({compiled.strategy.hash[:12]}) against {report.decisions:,} logged decisions"
            html.write_text(page(report, compiled, old, subtitle).html(), encoding="utf-8")
    if json:
        print_json(found)
    else:
        _show(found, log, html)
    too_much = max_changed is not None and found["changed"]["first_choice"]["share"] > max_changed
    raise typer.Exit(BROKEN if report.outcome == "broken" else TOO_MUCH if too_much else 0)


def _run(runner: Any, log: Log, kept: Cache | None, *, total: int | None) -> None:
    from engine.replay_block import blocks_of

    blocks: Iterable[Block] | None = kept.load() if kept is not None else None
    if blocks is None:
        blocks = blocks_of(log)
        if kept is not None:
            blocks = kept.keep(blocks)
    with _no_collector(), progress() as bar:
        task = bar.add_task("decisions", total=total, note="")
        for block in blocks:
            runner.add(block)
            diff = runner.report.diff
            bar.update(task, advance=block.num_decisions, note=f"{diff.first_changed} first choices change")


@contextmanager
def _no_collector() -> Iterator[None]:
    """Records hold no circles, and looking for some takes a third of the time that decoding does."""
    import gc

    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _usage_errors() -> Iterator[None]:
    """What keeps a replay from beginning is exit code 2; 1 is left to what it finds."""
    try:
        with plain_errors(OSError, EOFError, ValueError):
            yield
    except typer.Exit as stop:
        raise typer.Exit(USAGE if stop.exit_code == 1 else stop.exit_code) from None


def _path(strategy: str) -> Path:
    from engine.server import SHIPPED_STRATEGIES

    path = Path(strategy)
    if path.is_file():
        return path
    shipped = SHIPPED_STRATEGIES / f"{strategy}.yaml"
    if not shipped.is_file():
        names = ", ".join(sorted(one.stem for one in SHIPPED_STRATEGIES.glob("*.yaml")))
        fail(f"error: {strategy} is no file and no shipped strategy; shipped are {names}", code=USAGE)
    return shipped


def _load(path: Path, registry: Registry) -> CompiledStrategy:
    from engine.loader import load_strategy

    return load_strategy(path, registry.catalogue, schema_fingerprint=registry.fingerprint)


def _from_history(
    folder: Path | None, name: str, registry: Registry, *, known: Mapping[str, Any]
) -> dict[str, CompiledStrategy]:
    """The versions that were ever applied in a folder, as far as they compile against what is applied now."""
    from engine.history import history_of, path_of
    from features.expr import Mistakes

    out: dict[str, CompiledStrategy] = {}
    for kept in history_of(folder, name) if folder is not None else []:
        if kept.hash in known:
            continue
        try:
            out[kept.hash] = _load(path_of(folder, kept), registry)  # type: ignore[arg-type]
        except (Mistakes, OSError):
            err.print(
                f"version {kept.version} of {name} no longer compiles: its changes are not attributed", style="yellow"
            )
    return out


def _lines(files: Sequence[Path] | None, kafka: str | None, topic: str) -> Iterator[tuple[str, bytes]]:
    from engine.replay_log import read_files

    if files:
        yield from read_files(files)
        return
    from features.topics import read_all

    for message in read_all(kafka_or_local(kafka), topic):
        yield f"{topic}/{message.partition}@{message.offset}", message.value


def _cache(
    path: Path | None, files: Sequence[Path] | None, kafka: str | None, topic: str, wanted: Wanted
) -> Cache | None:
    """The cache of exactly this log: a file that changed or a topic that grew is another one."""
    from dataclasses import asdict

    from engine.replay_cache import Cache

    if path is None:
        return None
    signature: dict[str, Any] = {"wanted": asdict(wanted)}
    if files:
        signature["files"] = [
            [str(file.resolve()), (found := file.stat()).st_size, found.st_mtime_ns] for file in files
        ]
    else:
        from features.topics import end_offsets

        address = kafka_or_local(kafka)
        signature["topic"] = [address, topic, sorted(end_offsets(address, topic).items())]
    return Cache(path, signature)


def _rules(compiled: CompiledStrategy) -> RuleRunner:
    """The rules as machine code, once it has agreed with NumPy on made-up rows; NumPy where it cannot be had."""
    from engine.fused_cache import FusedCache
    from engine.replay_rules import fused_for_replay
    from infra.local.home import home

    runner, problem = fused_for_replay(compiled, FusedCache(home() / "fused"))
    if problem is not None:
        err.print(f"not compiled, the rules go through NumPy: {problem}", style="yellow", markup=False)
    return runner


def _time(text: str | None, option: str) -> int | None:
    """Epoch milliseconds, of a number of them or of an ISO time (UTC where it says no zone)."""
    if text is None:
        return None
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        fail(f"error: {option} {text} is no time; write 2026-11-30T08:00 or epoch milliseconds", code=USAGE)
    found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1000)


def _show(found: Mapping[str, Any], log: Log, html: Path | None) -> None:
    from engine.replay_report import caveats, percent

    same, changed = found["unchanged"], found["changed"]
    out.print(f"{found['decisions']:,} decisions of {found['candidates']:,} candidates", markup=False)
    for line in _passed_over(log):
        out.print(line, style="yellow", markup=False)
    if same["decisions"]:
        style = "red" if same["differing"] else "green"
        text = f"{same['differing']:,} differ" if same["differing"] else "equal to the bit"
        out.print(f"unchanged strategy: {same['decisions']:,} decisions, {text}", style=style, markup=False)
        shown = [{k: str(v) for k, v in one.items()} for one in same["differences"][:_MOST_ROWS]]
        if shown:
            print_table(shown, title=f"the first of {sum(same['by_part'].values())} places")
    if changed["decisions"]:
        first, moved = changed["first_choice"], changed["moved_mass"]
        out.print(
            f"first choice changes: {percent(first['share'])} of {changed['decisions']:,} decisions "
            f"({percent(first['low95'])} to {percent(first['high95'])}); chosen mass that moves: {percent(moved['mean'])}"
        )
        _show_changed(changed)
    for line in caveats(found)[: None if found["not_in_log"]["decisions"] or found["refused"] else 0]:
        out.print(line, style="yellow", markup=False)
    if html is not None:
        out.print(f"page: {html}", markup=False)


def _show_changed(changed: Mapping[str, Any]) -> None:
    from engine.replay_report import percent

    causes = [
        {"change": one["cause"], "orders": one["changed"], "share": percent(one["share"])}
        for one in changed["by_cause"][:_MOST_ROWS]
    ]
    print_table(causes, title="\nby the change that did it", empty="no first choice changes")
    rules = [
        {
            "rule": one["rule"],
            "fired then": "-" if one["rate_then"] is None else percent(one["rate_then"]),
            "fired now": "-" if one["rate_now"] is None else percent(one["rate_now"]),
            "newly dropped": one["newly_dropped"],
            "newly kept": one["newly_kept"],
        }
        for one in changed["rules"]
    ]
    print_table(rules, title="\nrules, over candidates", empty="no rules")
    for name, groups in changed["by"].items():
        rows = [
            {name: one["value"], "orders": one["decisions"], "changed": one["changed"], "share": percent(one["share"])}
            for one in groups
            if one["changed"]
        ]
        if rows:
            more = f" (the {_MOST_ROWS} with the most of {len(rows)})" if len(rows) > _MOST_ROWS else ""
            print_table(rows[:_MOST_ROWS], title=f"\nby {name}{more}")


def _passed_over(log: Log) -> Iterator[str]:
    if log.num_unreadable:
        yield f"{log.num_unreadable} records cannot be read, the first: {log.unreadable[0]}"
    if log.duplicates:
        yield f"{log.duplicates} records of decisions that were there before are left out"

"""Kill switches: what an operator has switched off, by rule, by strategy and by city.

They stand in `switches.json` in the folder of the strategies, with who, when and why. The engine looks at the file as
often as at the strategies (`engine/reload.py`), so a kill is live within a second. Targets:

    strategy:NAME       strategy:NAME@CITY      decisions of the strategy are refused (503 `killed`)
    city:CITY                                   so are all decisions in the city
    rule:STRATEGY/RULE  rule:STRATEGY/RULE@CITY the rule does not exist: it neither fires nor is unknown
    switch:NAME         switch:NAME@CITY        so do all rules with that `kill_switch`, in every strategy

A file that cannot be read is never taken for "nothing is killed".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import msgspec

from engine.files import locked, note
from features.expr import did_you_mean
from features.files import write_whole

if TYPE_CHECKING:
    from engine.strategy import CompiledStrategy, Rule

SWITCHES: Final = "switches.json"
KINDS: Final = ("strategy", "city", "rule", "switch")
_SHAPES: Final = "strategy:NAME, strategy:NAME@CITY, city:CITY, rule:STRATEGY/RULE or switch:NAME"


class SwitchError(ValueError):
    """A target that cannot be, or a switches file that cannot be read; the message says which and how to fix it."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a switch is about. `name` is the strategy (`strategy`, `rule`) or the kill switch (`switch`); `city` "" is all."""

    kind: str
    name: str = ""
    rule: str = ""
    city: str = ""


@dataclass(frozen=True, kw_only=True)
class Switch:
    """One thing that is off: `target` as written, who, why and when."""

    target: str
    actor: str
    reason: str
    at_ms: int


@dataclass(frozen=True, kw_only=True)
class Known:
    """What of one strategy a target can name, also of a file that does not compile now."""

    name: str
    city: str = "*"  # of its scope
    rules: tuple[str, ...] = ()
    kill_switches: tuple[str, ...] = ()


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    killed: list[Switch]


@dataclass(frozen=True, kw_only=True, eq=False)
class Switches:
    """Everything that is off, by target as written. Immutable: a change makes a new one."""

    killed: Mapping[str, Switch] = field(default_factory=dict)
    _masks: WeakKeyDictionary[CompiledStrategy, tuple[tuple[int, str], ...]] = field(
        default_factory=WeakKeyDictionary, repr=False
    )

    def kills(self, strategy: str, city: str) -> Switch | None:
        """The switch that refuses decisions of the strategy in the city, the widest one first."""
        if not self.killed:
            return None
        for target in (f"strategy:{strategy}", f"city:{city}", f"strategy:{strategy}@{city}"):
            if (found := self.killed.get(target)) is not None:
                return found
        return None

    def killed_bits(self, compiled: CompiledStrategy, city: str) -> int:
        """The bits of the rules that do not exist for a decision in the city."""
        if not self.killed:
            return 0
        masks = self._masks.get(compiled)
        if masks is None:
            masks = self._masks[compiled] = tuple(self._masks_of(compiled.strategy.rules, compiled.name))
        bits = 0
        for mask, where in masks:
            if where in ("", city):
                bits |= mask
        return bits

    def unmatched(self, known: Iterable[Known]) -> dict[str, str]:
        """Switches that switch nothing off, `{target: what there is instead}`: a rule was renamed, a strategy is gone."""
        strategies = list(known)
        problems = {target: find_problem(parse_target(target), strategies) for target in self.killed}
        return {target: problem for target, problem in problems.items() if problem is not None}

    def _masks_of(self, rules: Sequence[Rule], strategy: str) -> Iterable[tuple[int, str]]:
        for text in self.killed:
            target = parse_target(text)
            for bit, rule in enumerate(rules):
                by_id = target.kind == "rule" and (target.name, target.rule) == (strategy, rule.id)
                by_switch = target.kind == "switch" and bool(rule.kill_switch) and target.name == rule.kill_switch
                if by_id or by_switch:
                    yield 1 << bit, target.city


def in_utc(at_ms: int) -> str:
    """Such as 2024-08-30 06:40:00 UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def parse_target(text: str) -> Target:
    """A target as written, `kind:name[@city]`. Raises: SwitchError."""
    kind, _, rest = text.partition(":")
    if kind not in KINDS or not rest:
        near = did_you_mean(kind, KINDS)
        hint = f"did you mean '{near}:'?" if near and near != kind else f"write {_SHAPES}"
        raise SwitchError(f"'{text}' is no target of a switch: {hint}")
    if kind == "city":
        return Target(kind=kind, city=rest)
    name, at, city = rest.partition("@")
    rule = ""
    if kind == "rule":
        name, _, rule = name.partition("/")
    if not name or (kind == "rule" and not rule) or (at and not city):
        raise SwitchError(f"'{text}' names nothing: write {_SHAPES}")
    return Target(kind=kind, name=name, rule=rule, city=city)


def find_problem(target: Target, strategies: Sequence[Known]) -> str | None:
    """Why a target would switch nothing off, given all strategies there are; None when it would."""
    by_name = {strategy.name: strategy for strategy in strategies}
    if target.kind == "switch":
        names = {name for strategy in strategies for name in strategy.kill_switches}
        if target.name not in names:
            return _nothing(f"no rule has kill_switch '{target.name}'", target.name, names)
    if target.kind in ("strategy", "rule") and target.name not in by_name:
        return _nothing(f"there is no strategy '{target.name}'", target.name, by_name)
    if target.kind == "rule" and target.rule not in by_name[target.name].rules:
        rules = by_name[target.name].rules
        return _nothing(f"strategy '{target.name}' has no rule '{target.rule}'", target.rule, rules)
    if target.city:
        reached = [by_name[target.name]] if target.name in by_name and target.kind != "switch" else strategies
        cities = {strategy.city for strategy in reached}
        if not cities & {"*", target.city}:
            return _nothing(f"no strategy serves city '{target.city}'", target.city, cities)
    return None


def read_switches(folder: Path) -> Switches:
    """What is off; nothing without a file. Raises: SwitchError for a file that cannot be read or makes no sense."""
    path = folder / SWITCHES
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return Switches()
    except OSError as error:
        raise SwitchError(f"{path} cannot be read: {error.strerror}") from None
    try:
        found = msgspec.json.decode(raw, type=_File).killed
        for switch in found:
            parse_target(switch.target)
    except (msgspec.DecodeError, SwitchError, UnicodeDecodeError) as error:
        raise SwitchError(f"{path}: {error}; repair it by hand, its past is in audit.jsonl") from None
    return Switches(killed={switch.target: switch for switch in found})


def kill(folder: Path, target: str, *, actor: str, reason: str, now_ms: int) -> Switch:
    """Switch a target off. Doing it again changes nothing and returns the switch that is there.

    Raises: SwitchError for a target that cannot be or a file that cannot be read, OSError when it cannot be written.
    """
    parse_target(target)
    with locked(folder):
        killed = dict(read_switches(folder).killed)
        if target in killed:
            return killed[target]
        switch = Switch(target=target, actor=actor, reason=reason, at_ms=now_ms)
        _write(folder, [*killed.values(), switch])
        note(folder, {"event": "kill", **asdict(switch)})  # after it: a kill must not wait for the log, nor fail by it
    return switch


def revive(folder: Path, target: str, *, actor: str, reason: str, now_ms: int) -> Switch | None:
    """Switch a target on again; returns the switch that ended, None when it was not off. Raises: as `kill`."""
    parse_target(target)
    with locked(folder):
        killed = dict(read_switches(folder).killed)
        ended = killed.pop(target, None)
        if ended is not None:
            note(folder, {"event": "revive", "target": target, "actor": actor, "reason": reason, "at_ms": now_ms})
            _write(folder, list(killed.values()))
    return ended


def _write(folder: Path, killed: list[Switch]) -> None:
    """An empty list is written, too: a file that is gone was not removed by us."""
    write_whole(folder / SWITCHES, msgspec.json.format(msgspec.json.encode(_File(killed)), indent=2) + b"\n")


def _nothing(what: str, name: str, there: Iterable[str]) -> str:
    names = sorted(there)
    near = did_you_mean(name, names)
    return f"{what}; " + (f"did you mean '{near}'?" if near else f"there are: {', '.join(names[:8]) or 'none'}")

"""What is live: compiled strategies with their models, kill switches and shadows, swapped in whole, the last good ones kept.

A thread looks at the strategies folder (`engine/strategy_files.py`, `engine/switch_watch.py`), the champion pointers and
the registry, compiles aside, and replaces one reference; a request takes that reference once and so sees one state from
start to end. What cannot be used is reported under `errors` and by the log, and what was live before it stays live.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.inputs import LiveStrategy
from engine.model import Model, ModelError
from engine.model_shelf import ModelShelf, fits
from engine.outline import known_of
from engine.rule_forms import RuleForms
from engine.rules import ColumnRules, RuleRunner
from engine.shadow_fit import find_misfit
from engine.strategy import CompiledStrategy
from engine.strategy_files import StrategyFiles
from engine.switch_watch import SwitchWatch
from engine.switches import SWITCHES, Switches
from features.read_plan import compile_read_plan

if TYPE_CHECKING:
    from features.registry import Registry

logger = logging.getLogger(__name__)

REGISTRY = "registry"  # the key of `errors` under which the registry's own problem stands


@dataclass(frozen=True, kw_only=True)
class Live:
    """One state. `strategies` by name are those that answer; `shadows` by name of the one whose requests they also decide.

    `errors` by what is wrong: a file's name, `name@version` of a model, `registry`; `warnings` by a file's name. `switches` is
    None while nobody knows what is switched off: then nothing may be decided.
    """

    strategies: Mapping[str, LiveStrategy] = field(default_factory=dict)
    shadows: Mapping[str, tuple[LiveStrategy, ...]] = field(default_factory=dict)
    switches: Switches | None = None
    errors: Mapping[str, str] = field(default_factory=dict)
    warnings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    generation: int = 0

    def shadow(self, name: str) -> LiveStrategy | None:
        """The shadow strategy of that name."""
        return next((one for all_of in self.shadows.values() for one in all_of if one.compiled.name == name), None)


@dataclass(frozen=True, kw_only=True)
class LibraryConfig:
    """Where things are and how often to look."""

    strategies_dir: Path
    """Every *.yaml in it is one strategy."""
    models_dir: Path
    """<models_dir>/<name>/champion and versions/."""
    poll_s: float = 0.01
    """Files: a look at two strategies costs 40 us, and a new one is live within 50 ms (tests/engine/test_reload.py)."""
    registry_poll_s: float = 1.0
    """The registry: one read of one key in Redis."""

    def __post_init__(self) -> None:
        if not 0 < self.poll_s <= self.registry_poll_s:
            raise ValueError("poll_s must be above zero and not above registry_poll_s")
        if not self.strategies_dir.is_dir():
            raise ValueError(f"no folder of strategies at {self.strategies_dir}")


class Library:
    """Keeps `live` up to date. `fetch_registry` reads what is applied, and may raise: the last one then stays.

    `make_rules` is called once for each strategy that is new or changed; what it makes lives as long as the strategy does.
    """

    def __init__(
        self,
        config: LibraryConfig,
        fetch_registry: Callable[[], Registry],
        *,
        clock: Callable[[], float] = time.monotonic,
        make_rules: Callable[[CompiledStrategy], RuleRunner] = ColumnRules,
    ) -> None:
        self.config = config
        self.live = Live()
        self._files = StrategyFiles(config.strategies_dir)
        self._switches = SwitchWatch(config.strategies_dir)
        self._make_rules = make_rules
        self._built: dict[str, LiveStrategy] = {}  # by name, as last assembled
        self._built_for: Registry | None = None
        self._fetch_registry = fetch_registry
        self._clock = clock
        self._registry: Registry | None = None
        self._registry_due = float("-inf")
        self._registry_error = ""
        self._models = ModelShelf(config.models_dir)
        self._seen: Any = None
        self._lock = threading.Lock()  # of replacing `live`: two threads do
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Look once, then keep looking in two threads: a registry that hangs or a model that loads holds up no kill."""
        self.refresh()
        for name, look in (("reload", self.refresh), ("switches", self.refresh_switches)):
            self._threads.append(threading.Thread(target=self._run, args=(look,), name=name, daemon=True))
            self._threads[-1].start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(10)

    def refresh_switches(self) -> bool:
        """Look at the kill switches alone; returns whether `live` was replaced."""
        with self._lock:
            before = (self._switches.switches, self._switches.error)
            self._switches.refresh()
            if (self._switches.switches, self._switches.error) == before:
                return False
            self.live = self._with_switches(self.live)
            return True

    def refresh(self) -> bool:
        """Look at everything once; returns whether `live` was replaced."""
        switched = self.refresh_switches()
        registry_changed = self._look_at_registry()
        if self._registry is not None:
            self._files.refresh(self._registry, everything=registry_changed)
        champions = self._models.champions(self._files.compiled.values())
        state = (self._files.generation, champions, self._registry_error, id(self._registry))
        if state == self._seen:
            return switched
        self._seen = state
        assembled = self._assemble(champions)
        with self._lock:
            self.live = self._with_switches(assembled)
        return True

    def _run(self, look: Callable[[], bool]) -> None:
        while not self._stop.wait(self.config.poll_s):
            try:
                look()
            except Exception:  # the thread must outlive a surprise: what is live stays live
                logger.exception("looking for new strategies failed, trying again")
                self._stop.wait(1.0)

    def _look_at_registry(self) -> bool:
        if self._clock() < self._registry_due:
            return False
        try:
            found = self._fetch_registry()
        except (
            Exception
        ) as error:  # down, empty or unreadable: all of them mean "keep what we have, say why, ask again"
            self._note_registry(str(error) or type(error).__name__)
            self._registry_due = self._clock() + min(0.2, self.config.registry_poll_s)
            return False
        self._registry_due = self._clock() + self.config.registry_poll_s
        self._note_registry("")
        if self._registry is not None and found.fingerprint == self._registry.fingerprint:
            return False
        self._registry = found
        return True

    def _note_registry(self, error: str) -> None:
        if error != self._registry_error:
            logger.warning("registry: %s", error or "read again")
        self._registry_error = error

    def _assemble(self, champions: Mapping[str, Any]) -> Live:
        """A new state from what compiled and what loads; a use keeps its last good model."""
        errors = {path.name: text for path, text in self._files.errors.items()}
        if self._registry_error:
            errors[REGISTRY] = self._registry_error
        if self._files.folder_error:
            errors[str(self.config.strategies_dir)] = self._files.folder_error
        built = {
            compiled.name: self._with_models(compiled, champions, errors)
            for _, compiled in sorted(self._files.compiled.items())
        }
        self._let_go(built)
        self._built, self._built_for = built, self._registry
        self._models.forget(champions)
        strategies = {name: live for name, live in built.items() if live.compiled.strategy.shadow_of is None}
        return Live(
            strategies=strategies,
            shadows=_shadows(built, strategies, errors),
            errors=errors,
            warnings={
                path.name: tuple(warning.format() for warning in compiled.warnings)
                for path, compiled in self._files.compiled.items()
                if compiled.warnings
            },
        )

    def _with_switches(self, live: Live) -> Live:
        """The state with the switches as they are now, the next generation."""
        errors = {what: text for what, text in live.errors.items() if what != SWITCHES}
        warnings = {what: texts for what, texts in live.warnings.items() if what != SWITCHES}
        switches = self._switches.switches
        if switches is not None and live.strategies and not errors:  # what is not used may be what a switch names
            beside = [shadow for shadows in live.shadows.values() for shadow in shadows]
            known = [known_of(one.compiled.strategy) for one in (*live.strategies.values(), *beside)]
            unmatched = switches.unmatched(known).items()
            if unmatched:
                texts = [f"{SWITCHES}: warning: {target} switches nothing off: {why}" for target, why in unmatched]
                warnings[SWITCHES] = tuple(texts)
        if self._switches.error:
            errors[SWITCHES] = self._switches.error
        generation = self.live.generation + 1
        return replace(live, switches=switches, errors=errors, warnings=warnings, generation=generation)

    def _let_go(self, built: Mapping[str, LiveStrategy]) -> None:
        """Rules that are no longer live need no fused form. A request that still runs on them ends on them."""
        stay = {id(live.rules) for live in built.values()}
        for live in self._built.values():
            if isinstance(live.rules, RuleForms) and id(live.rules) not in stay:
                live.rules.close()

    def _with_models(
        self, compiled: CompiledStrategy, champions: Mapping[str, Any], errors: dict[str, str]
    ) -> LiveStrategy:
        assert self._registry is not None
        before = self._built.get(compiled.name)
        models: dict[str, Model | None] = {}
        broken = set()
        for use in compiled.strategy.models.values():
            try:
                models[use.name] = self._models.get(use, compiled, champions)
            except ModelError as error:
                last = before.models.get(use.name) if before else None
                models[use.name] = last if last is not None and fits(last, compiled) else None
                errors[f"{use.model}@{use.version}"] = str(error)
                logger.error("model %s@%s is not used: %s", use.model, use.version, error)
                if models[use.name] is None:
                    broken.add(use.name)
        same = before is not None and before.compiled is compiled and self._built_for is self._registry
        if same and before is not None:  # what its rules have learnt stays, and what did not change is not made again
            if before.models == models and before.broken_models == broken:
                return before
            return replace(before, models=models, broken_models=frozenset(broken))
        return LiveStrategy(
            compiled=compiled,
            plan=compile_read_plan(self._registry, {role.name: role.view.name for role in compiled.strategy.roles}),
            models=models,
            broken_models=frozenset(broken),
            rules=self._make_rules(compiled),
        )


def _shadows(
    built: Mapping[str, LiveStrategy], strategies: Mapping[str, LiveStrategy], errors: dict[str, str]
) -> dict[str, tuple[LiveStrategy, ...]]:
    """Every shadow under the strategy whose requests it decides; one without such a strategy is an error."""
    out: dict[str, tuple[LiveStrategy, ...]] = {}
    for name, live in built.items():
        of = live.compiled.strategy.shadow_of
        if of is None:
            continue
        if of in strategies:
            problem = find_misfit(live.compiled.strategy, strategies[of].compiled.strategy)
            if problem is None:
                out[of] = (*out.get(of, ()), live)
        else:
            problem = f"'{of}' is itself a shadow" if of in built else f"'{of}' is not live"
        if problem is not None:
            errors[name] = f"strategy '{name}' is a shadow of '{of}': {problem}"
    return out

"""Logged Decisions for the tests of replay: of random strategies and of the kitchen sink, as they come back from their topic."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import msgspec

from engine.decide import LiveStrategy, decide
from engine.request import parse
from engine.strategy import CompiledStrategy
from features.records import Decision, decode, encode
from tests.engine.random_strategies import NanFeatures, random_request, random_strategy
from tests.engine.support import (
    KITCHEN_SINK,
    RandomFeatures,
    catalogue_registry,
    compile_text,
    make_live,
    random_body,
    sink_models,
)


@dataclass(frozen=True)
class Logged:
    """A strategy and Decisions that it made: stores that are down, models that are late, rules that are off among them."""

    live: LiveStrategy
    decisions: list[Decision]

    @property
    def compiled(self) -> CompiledStrategy:
        return self.live.compiled


def random_log(seed: int, folder: Path, num_decisions: int = 30) -> Logged:
    """The random strategy of that seed, and what it decided."""
    registry = catalogue_registry()
    compiled = random_strategy(seed, folder, registry)
    live = make_live(compiled, registry, sink_models(folder / "models"))
    rng = random.Random(seed)
    num_rules = len(compiled.strategy.rules)
    killed = rng.getrandbits(num_rules) if seed % 3 == 0 else 0
    found = []
    for at in range(num_decisions):
        body = random_request(rng, compiled, rng.choice([1, 2, 9, 30]))
        request = parse(compiled, msgspec.json.encode(body))
        features = NanFeatures(compiled, seed + at, down=at % 7 == 0)
        decision = decide(live, request, features, killed=killed, clock=_clock(late=at % 5 == 0))
        found.append(decode(encode(decision), Decision))
    return Logged(live, found)


def sink_log(folder: Path, num_decisions: int, seed: int = 1, text: str = KITCHEN_SINK) -> Logged:
    """What the kitchen sink decided, with its models."""
    registry = catalogue_registry()
    compiled = compile_text(text, folder, registry)
    live = make_live(compiled, registry, sink_models(folder / f"models-{seed}"))
    rng = random.Random(seed)
    found = []
    for at in range(num_decisions):
        body = random_body(rng, compiled, rng.choice([1, 5, 20, 40])) | {"as_of_ms": 1_725_000_000_000 + at * 60_000}
        request = parse(compiled, msgspec.json.encode(body))
        decision = decide(live, request, RandomFeatures(compiled, seed + at, down=at % 17 == 0))
        found.append(decode(encode(decision), Decision))
    return Logged(live, found)


def changed_sink(folder: Path, *edits: tuple[str, str]) -> CompiledStrategy:
    """The kitchen sink, edited. Every edit must find its text."""
    text = KITCHEN_SINK.replace("version: 3", "version: 4")
    for before, after in edits:
        assert before in text, before
        text = text.replace(before, after)
    return compile_text(text, folder, catalogue_registry(), "changed.yaml")


def _clock(*, late: bool) -> Callable[[], float]:
    """Seconds; of a late one every look costs six."""
    ticks: Iterator[int] = count(0, 6 if late else 0)
    return lambda: float(next(ticks))

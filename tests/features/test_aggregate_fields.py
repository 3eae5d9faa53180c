"""Aggregates as they are written in YAML: every one is read as it was meant, and every mistake is named."""

from __future__ import annotations

import json

import pytest

from features.expr import Mistakes
from features.loader import load_texts
from features.window import format_duration
from tests.features.aggregate_cases import FEATURES, FILES, Feature, catalogue

HEAD = FILES["views/things.yaml"].partition("features:")[0] + "features:\n"


def line_of(feature: Feature) -> str:
    """The feature as an author writes it."""
    fields = {"aggregate": feature.aggregate}
    fields |= {name: asked.text for name, asked in (("of", feature.of), ("where", feature.where)) if asked is not None}
    durations = {"window": feature.window_ms, "hop": feature.hop_ms, "half_life": feature.half_life_ms}
    fields |= {name: format_duration(ms) for name, ms in durations.items() if ms is not None}
    numbers = {"q": feature.q, "resolution": feature.resolution}
    texts = [f"{name}: {json.dumps(text)}" for name, text in fields.items()]
    texts += [f"{name}: {number}" for name, number in numbers.items() if number is not None]
    return f"  {feature.name.replace('.', '_')}: {{{', '.join(texts)}}}\n"


def mistakes_of(line: str) -> list[str]:
    with pytest.raises(Mistakes) as caught:
        load_texts({**FILES, "views/things.yaml": HEAD + f"  x: {line}\n"})
    return [item.format() for item in caught.value.items]


def test_every_aggregate_is_read_as_it_is_written() -> None:
    loaded = load_texts({**FILES, "views/things.yaml": HEAD + "".join(map(line_of, FEATURES.values()))})
    made = catalogue()
    assert [g.fingerprint for g in loaded.groups()] == [g.fingerprint for g in made.groups()]
    pairs = zip(loaded.views["things"].features, made.views["things"].features, strict=True)
    for got, want in pairs:
        for name in ("type", "nullable", "aggregate", "window_ms", "hop_ms", "half_life_ms", "q", "resolution"):
            assert getattr(got, name) == getattr(want, name), (want.name, name)


def test_steps_have_a_default_by_type() -> None:
    lines = "".join(f"  {c}_{a}: {{aggregate: {a}, of: {c}, window: 1m, hop: 1m{q}}}\n" for c in "id" for a, q in (("stddev", ""), ("quantile", ", q: 0.5")))  # fmt: skip
    view = load_texts({**FILES, "views/things.yaml": HEAD + lines}).views["things"]
    assert {spec.name: spec.resolution for spec in view.features} == {
        "i_stddev": 1.0, "i_quantile": 1.0, "d_stddev": 0.001, "d_quantile": 0.001,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{aggregate: decayed_sum, of: i, window: 5m, hop: 1m}", "needs 'half_life'"),
        ("{aggregate: decayed_sum, of: i, window: 5m, hop: 1m, half_life: 0s}", "a half life must be longer than 0s"),
        ("{aggregate: sum, of: i, window: 5m, hop: 1m, half_life: 5m}", "'half_life' does not go with sum: it is for decayed_sum"),
        ("{aggregate: quantile, of: i, window: 5m, hop: 1m}", "needs 'q'"),
        ("{aggregate: quantile, of: i, window: 5m, hop: 1m, q: 95}", "q 95 is not within 0 and 1"),
        ("{aggregate: quantile, of: i, window: 5m, hop: 1m, q: 0.1234567}", "with six decimals at most"),
        ("{aggregate: quantile, of: i, window: 5m, hop: 1m, q: p95}", "q p95 is not a number"),
        ("{aggregate: quantile, of: s, window: 5m, hop: 1m, q: 0.5}", "quantile takes numbers, this is string?"),
        ("{aggregate: stddev, of: d, window: 5m, hop: 1m, resolution: 0}", "resolution 0 is not above 0"),
        ("{aggregate: stddev, of: d, window: 5m, hop: 1m, q: 0.5}", "'q' does not go with stddev: it is for quantile"),
        ("{aggregate: avg, of: d, window: 5m, hop: 1m, resolution: 1}", "it is for stddev and quantile"),
        ("{aggregate: stddev, window: 5m, hop: 1m}", "stddev needs 'of'"),
        ("{aggregate: first, of: i, window: 5m}", "'window' does not go with first: it is the oldest value"),
        ("{expr: '1', q: 0.5}", "'q' does not go with 'expr'"),
    ],
)  # fmt: skip
def test_each_mistake_is_named_at_its_place(line: str, message: str) -> None:
    found = mistakes_of(line)
    assert any(message in item and item.startswith("views/things.yaml:7:") for item in found), found

"""Units: what is an error, what is nothing, and what the result is in."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from engine.loader import load_strategy
from engine.strategy import CompiledLet
from features.expr import Facts, Program, SourceText, compile_expr, parse_type
from features.expr.units import Unit, check_units, parse_unit
from features.feature_loader import UNITS
from tests.engine.support import shipped_registry

UNIT_OF = {
    "eta_s": "s", "max_eta_s": "s", "wait_ms": "ms", "wait_min": "min", "pickup_m": "m", "trip_km": "km",
    "fare_cents": "cents", "speed_kmh": "km/h", "speed_ms": "m/s", "accept": "ratio", "trips": "trips", "idle": "drivers",
    "zone": "zone", "home_zone": "zone", "state": "status", "w": "", "points": "USD", "per_km": "cents/km",
}  # fmt: skip
INTS = {"trips", "idle", "zone", "home_zone", "state"}
TYPES = {name: parse_type("int" if name in INTS else "double") for name in UNIT_OF} | {
    "i_s": parse_type("int"),
    "i_ms": parse_type("int"),
    "late_s": parse_type("double?"),
    "ride": parse_type("duration"),
    "etas": parse_type("list(double)"),
}
FACTS = {name: Facts(unit=unit) for name, unit in UNIT_OF.items()} | {
    "i_s": Facts(unit="s"),
    "i_ms": Facts(unit="ms"),
    "late_s": Facts(unit="s"),
    "etas": Facts(unit="s"),
}


def program(text: str) -> Program:
    return compile_expr(SourceText(text, "rules.yaml"), TYPES)


@pytest.mark.parametrize(
    ("text", "at", "hint"),
    [
        ("eta_s > pickup_m", "eta_s > pickup_m", "one of the two is not what you mean"),
        ("eta_s > wait_ms", "eta_s > wait_ms", "convert one of them: eta_s * 1000.0 is in ms"),
        ("i_ms > i_s", "i_ms > i_s", "convert one of them: i_s * 1000 is in ms"),
        ("w + (trip_km + pickup_m)", "trip_km + pickup_m", "convert one of them: trip_km * 1000.0 is in m"),
        ("min(eta_s, 3.0, wait_min)", "min(eta_s, 3.0, wait_min)", "convert one of them: wait_min * 60.0 is in s"),
        ("w > 1.0 ? eta_s : pickup_m", "w > 1.0 ? eta_s : pickup_m", "one of the two is not what you mean"),
        ("late_s ?? wait_ms", "late_s ?? wait_ms", "convert one of them: late_s * 1000.0 is in ms"),
        ("1.0 - eta_s / wait_ms", "eta_s / wait_ms", "convert one of them: eta_s * 1000.0 is in ms"),
        ("pickup_m / eta_s > speed_kmh", "pickup_m / eta_s > speed_kmh", "convert one of them: (pickup_m / eta_s) * 3.6 is in km/h"),
        ("fare_cents > double(trips)", "fare_cents > double(trips)", "one of the two is not what you mean"),
        ("zone == trips", "zone == trips", "one of the two is not what you mean"),
        ("zone == state", "zone == state", "one of the two is not what you mean"),
        ("fare_cents > eta_s * speed_ms", "fare_cents > eta_s * speed_ms", "one of the two is not what you mean"),
        ("math.abs(eta_s - wait_ms) > 3.0", "eta_s - wait_ms", "convert one of them: eta_s * 1000.0 is in ms"),
        ("etas.exists(e, e > wait_ms)", "e > wait_ms", "convert one of them: e * 1000.0 is in ms"),
        ("double(ride.getMinutes()) > eta_s", "double(ride.getMinutes()) > eta_s",
         "convert one of them: double(ride.getMinutes()) * 60.0 is in s"),
    ],
)  # fmt: skip
def test_units_that_do_not_go_together_are_errors(text: str, at: str, hint: str) -> None:
    unit, mistakes = check_units(program(text), FACTS)
    assert [(m.kind, m.severity, text[m.col - 1 : m.end_col - 1], m.hint) for m in mistakes] == [
        ("unit-mismatch", "error", at, hint)
    ]
    assert unit in ("", "ratio")


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("eta_s > 600.0", ""),
        ("eta_s + 30.0", "s"),
        ("max(eta_s, max_eta_s)", "s"),
        ("1.0 - eta_s / max_eta_s", "ratio"),
        ("pickup_m / eta_s", "m/s"),
        ("speed_ms * eta_s - pickup_m", "m"),
        ("speed_ms * eta_s > pickup_m", ""),
        ("trip_km / (speed_kmh + 1.0) > 3.0", ""),
        ("speed_kmh * (trip_km / speed_kmh)", "km"),
        ("per_km * trip_km - fare_cents", "cents"),
        ("fare_cents / double(trips)", "cents"),
        ("idle > trips", ""),
        ("zone == home_zone || zone in [3, 4]", ""),
        ("0.01 * eta_s + 0.001 * pickup_m", ""),  # weights
        ("w * eta_s + pickup_m", "m"),
        ("wait_ms / 1000.0 > eta_s", ""),  # a conversion
        ("0.6 * (1.0 - eta_s / max_eta_s) + w * accept", ""),
        ("late_s ?? 900.0", "s"),
        ("points > fare_cents", ""),  # a unit that is not listed
        ("math.floor(-eta_s)", "s"),
        ("double(i_s) - eta_s", "s"),
        ("math.sqrt(accept) + accept", "ratio"),
        ("ride > duration('3m') && eta_s > 3.0", ""),
        ("math.exp(-eta_s / max_eta_s)", ""),
    ],
)
def test_an_honest_expression_is_not_nagged(text: str, unit: str) -> None:
    assert check_units(program(text), FACTS) == (unit, [])


def test_a_mistake_has_a_place_a_cause_and_the_conversion() -> None:
    _, (mistake,) = check_units(program("w > 1.0 && eta_s > wait_ms"), FACTS)
    assert mistake.format() == "\n".join(
        [
            "rules.yaml:1:12: 'eta_s' is in s and 'wait_ms' in ms: they cannot be compared",
            " 1 | w > 1.0 && eta_s > wait_ms",
            "   |            ^^^^^^^^^^^^^^^",
            " convert one of them: eta_s * 1000.0 is in ms",
        ]
    )


def test_all_mistakes_come_together() -> None:
    _, mistakes = check_units(program("eta_s > wait_ms || pickup_m < fare_cents || trip_km > pickup_m"), FACTS)
    assert len(mistakes) == 3


def test_every_unit_that_a_feature_may_have_is_known() -> None:
    assert all(parse_unit(unit) is not None for unit in UNITS)
    assert parse_unit("") is None and parse_unit("USD") is None and parse_unit("s*") is None


def test_units_are_a_small_algebra() -> None:
    kmh, ms, s, m = (parse_unit(text) for text in ("km/h", "m/s", "s", "m"))
    assert kmh is not None and ms is not None and s is not None and m is not None
    assert kmh.powers == ms.powers and ms.scale / kmh.scale == Fraction(36, 10)
    assert ms.times(s, 1).agrees(m) and m.times(s, -1).agrees(ms) and s.times(s, -1).agrees(Unit())
    squared = parse_unit("s^2")
    assert squared is not None and s.times(s, 1).agrees(squared)


def test_the_shipped_strategies_have_no_mistake_of_units() -> None:
    """With the units that their names say: a suffix _s, _ms, _m or _cents."""
    registry = shipped_registry()
    checked = 0
    for path in sorted(Path("engine/strategies").glob("*.yaml")):
        compiled = load_strategy(path, registry.catalogue, schema_fingerprint=registry.fingerprint, name=path.name)
        programs = [compiled.score, *(rule.condition for rule in (*compiled.drops, *compiled.adjusts))]
        programs += [step.program for step in compiled.steps_before if isinstance(step, CompiledLet)]
        for item in programs:
            units = {name: parse_unit(name.rpartition("_")[2]) for name in item.names}
            facts = {name: Facts(unit=unit.text) for name, unit in units.items() if unit is not None}
            assert check_units(item, facts)[1] == []
            checked += len(facts)
    assert checked >= 10

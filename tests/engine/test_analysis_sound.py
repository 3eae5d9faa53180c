"""What analysis claims of random strategies is never contradicted by what they decide, and its examples are examples."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from engine.analysis import analyse
from engine.decide import LiveStrategy
from engine.model import Model
from engine.row import RowResult, table_row
from engine.table import match_rows
from features.expr import Mistake
from tests.engine.analysed import rows_of
from tests.engine.random_strategies import random_strategy
from tests.engine.support import catalogue_registry, make_live, sink_models

RULE = re.compile(r"rule (\w+)")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    return sink_models(tmp_path_factory.mktemp("models"))


class Claims:
    """The findings of one strategy, as what must hold for every candidate."""

    def __init__(self, live: LiveStrategy, found: list[Mistake]) -> None:
        self.live = live
        self.bits = {rule.id: bit for bit, rule in enumerate(live.compiled.strategy.rules)}
        self.never: set[int] = set()
        self.always: set[int] = set()
        self.implied: list[tuple[int, int]] = []
        self.rows: set[tuple[str, int]] = set()
        for mistake in found:
            names = [self.bits[name] for name in RULE.findall(mistake.message) if name in self.bits]
            if mistake.kind in ("never-fires", "shadowed"):
                self.never.add(names[0])
            elif mistake.kind == "always-fires":
                self.always.add(names[0])
            elif mistake.kind == "overwritten":
                self.implied.append((names[0], names[1]))
            elif mistake.kind in ("unreachable-row", "duplicate-row"):
                self.rows.add((mistake.file, mistake.line))

    def check(self, result: RowResult) -> None:
        for bit in self.never:
            assert not result.fired >> bit & 1, f"rule at {bit} fires"
        for bit in self.always:
            assert not result.reached >> bit & 1 or result.fired >> bit & 1, f"rule at {bit} does not fire"
        for one, other in self.implied:
            failed = (result.reason or "").startswith("unknown:")  # then later rules are not asked
            assert failed or not result.fired >> one & 1 or result.fired >> other & 1
        for table in self.live.compiled.strategy.tables.values():
            known = all(name in result.values for name in table.inputs)  # behind the drop rules some are not
            for row in (table_row(table, result.values) or ()) if known else ():
                if table.hit != "collect":
                    assert (table.file, table.rows[row].line) not in self.rows


def check_example(live: LiveStrategy, mistake: Mistake) -> None:
    """The values that a message shows for a table do what it says."""
    shown = mistake.message.partition("for example: ")[2]
    if mistake.kind not in ("gap", "overlap") or not shown or "timestamp(" in shown or "duration(" in shown:
        return
    table = next(t for t in live.compiled.strategy.tables.values() if f"table {t.name} " in mistake.message)
    words = {
        "null": "None",
        "true": "True",
        "false": "False",
        "nan": "float('nan')",
        "inf": "float('inf')",
        "-inf": "-float('inf')",
    }
    pairs = re.findall(r"([\w.]+) = ('(?:[^'\\]|\\.)*'|[^,]+)", shown)
    values = {name: eval(words.get(text, text)) for name, text in pairs}  # our own text
    matching = match_rows(table, values)
    assert len(matching) == 0 if mistake.kind == "gap" else len(matching) > 1, (shown, matching)


def check_claims(seed: int, folder: Path, models: Mapping[str, Model], num_requests: int) -> Counter[str]:
    compiled = random_strategy(seed, folder, catalogue_registry())
    found = analyse(compiled)
    assert found == analyse(compiled)
    live = make_live(compiled, catalogue_registry(), models if seed % 2 else None)
    claims = Claims(live, found)
    for mistake in found:
        check_example(live, mistake)
    for number in range(num_requests):
        for _, result in rows_of(live, 1000 * seed + number):
            claims.check(result)
    return Counter(mistake.kind for mistake in found)


def test_claims_are_never_contradicted(tmp_path: Path, models: dict[str, Model]) -> None:
    kinds: Counter[str] = Counter()
    for seed in range(12):
        print("seed", seed)
        kinds += check_claims(seed, tmp_path, models, 3)
    assert kinds["never-fires"] and kinds["unreachable-row"] and kinds["write-conflict"]


@pytest.mark.slow
def test_claims_are_never_contradicted_in_the_long_run(tmp_path: Path, models: dict[str, Model]) -> None:
    kinds: Counter[str] = Counter()
    for seed in range(100, 250):
        print("seed", seed)
        kinds += check_claims(seed, tmp_path, models, 15)
    wanted = {"never-fires", "always-fires", "shadowed", "overwritten", "unreachable-row", "duplicate-row"}
    assert wanted <= set(kinds)


def test_a_wrong_claim_would_be_noticed(tmp_path: Path) -> None:
    """The comparison can fail: of a strategy of which something is known to fire, the opposite claim is contradicted."""
    live = make_live(random_strategy(3, tmp_path, catalogue_registry()), catalogue_registry())
    fired = [result.fired for number in range(10) for _, result in rows_of(live, number)]
    bit = next(bit for bit in range(10) if any(mask >> bit & 1 for mask in fired))
    claims = Claims(live, [])
    claims.never.add(bit)
    with pytest.raises(AssertionError, match="fires"):
        for number in range(10):
            for _, result in rows_of(live, number):
                claims.check(result)

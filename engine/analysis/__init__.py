"""Static analysis of strategies: what is certainly wrong, or worth a look, before a request comes.

One file an analysis: `tables.py` (gaps, overlaps, rows that are never reached), `rules.py` (never and always true, shadowed by
drops), `writes.py` (a set over what another rule did), `usage.py` (what nothing reads), `missing.py` (what happens when one of
`absences.py` is missing) with `faults.py` (what nobody declared). All look through `world.py`: samples find what can be, and
`features/expr/regions.py` proves what cannot. Nothing is claimed without one of the two.
"""

from __future__ import annotations

from engine.analysis.faults import check_faults
from engine.analysis.rules import check_rules
from engine.analysis.tables import check_tables
from engine.analysis.usage import check_usage
from engine.analysis.world import World
from engine.analysis.writes import check_writes
from engine.strategy import CompiledStrategy
from features.expr import Mistake, Mistakes

__all__ = ["analyse"]


def analyse(compiled: CompiledStrategy) -> list[Mistake]:
    """Errors and warnings of a strategy that compiles, by place. The same every time."""
    world = World(compiled)
    checks = (check_tables, check_rules, check_writes, check_usage, check_faults)
    return Mistakes(mistake for check in checks for mistake in check(world)).items

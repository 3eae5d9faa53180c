"""The benchmark's strategy, written once as a tree and spelled in every engine's own language.

24 rules (10 that drop, 14 that change the score), a score with nulls, strings and a small table, over candidates of which
about a third is dropped. The result of a candidate: the bits of the rules that fired (only the first one for a dropped
candidate) and the score. Peers get it as ONE expression per candidate that stops at the first drop, so they never do more than
they must; `with_bits=False` leaves the firing bits away, which none of them offers by itself.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Final

Tree = Any  # ("op", tree, …), ("name", text), or a literal

FIELDS: Final = {
    "state": "string", "tier": "string", "vehicle": "string", "eta_s": "double?", "distance_m": "double", "rating": "double?",
    "accept_rate": "double?", "trips_today": "int", "idle_s": "double?", "zone": "int", "vip": "bool", "new_driver": "bool",
}  # fmt: skip
REQUEST: Final = {"surge": "double", "hour": "int", "airport": "bool", "fare_cents": "int", "wheelchair": "bool"}


def n(name: str) -> Tree:
    return ("name", name)


def default(name: str, value: Any) -> Tree:
    return ("??", n(name), value)


DROPS: Final[list[tuple[str, Tree]]] = [
    ("not_idle", ("!=", n("state"), "idle")),
    ("unknown_eta", ("isnull", n("eta_s"))),
    ("too_far", (">", n("eta_s"), 1500.0)),
    ("long_way", ("&&", (">", n("distance_m"), 9000.0), ("!", n("airport")))),
    ("no_wheelchair", ("&&", n("wheelchair"), ("!=", n("vehicle"), "wav"))),
    ("low_rating", ("<", default("rating", 4.5), 3.2)),
    ("tired", (">", n("trips_today"), 38)),
    ("new_in_rush", ("&&", n("new_driver"), (">", n("surge"), 2.4))),
    ("pool_only", ("&&", ("in", n("vehicle"), ["scooter", "bike"]), (">", n("fare_cents"), 3000))),
    ("refuses", ("&&", ("<", default("accept_rate", 0.7), 0.12), (">", n("trips_today"), 3))),
]
ADJUSTS: Final[list[tuple[str, Tree, str, float]]] = [
    ("vip", n("vip"), "add", 0.25),
    ("gold", ("==", n("tier"), "gold"), "add", 0.10),
    ("silver", ("==", n("tier"), "silver"), "add", 0.05),
    ("near", ("<", n("eta_s"), 120.0), "add", 0.07),
    ("close", ("<", n("distance_m"), 500.0), "add", 0.03),
    ("waited", (">", default("idle_s", 0.0), 900.0), "add", 0.06),
    ("waited_long", (">", default("idle_s", 0.0), 2700.0), "multiply", 1.05),
    ("night", ("||", (">=", n("hour"), 22), ("<", n("hour"), 5)), "add", 0.02),
    ("rush", ("&&", (">=", n("hour"), 17), ("<", n("hour"), 20)), "multiply", 1.02),
    ("airport_van", ("&&", n("airport"), ("in", n("vehicle"), ["van", "suv"])), "add", 0.12),
    ("sure", (">", default("accept_rate", 0.5), 0.85), "add", 0.04),
    ("unsure", ("<", default("accept_rate", 0.5), 0.4), "add", -0.08),
    ("first_trips", ("<", n("trips_today"), 3), "add", 0.015),
    ("surge_far", ("&&", (">", n("surge"), 1.5), (">", n("eta_s"), 600.0)), "multiply", 0.95),
]
BONUS: Final = {
    ("gold", 0): 0.03,
    ("gold", 1): 0.05,
    ("silver", 0): 0.01,
    ("silver", 1): 0.02,
    ("bronze", 0): 0.0,
    ("bronze", 1): 0.005,
}
NEAR_ZONES = 100  # zones below are band 0


def _bonus() -> Tree:
    """The table as nested conditions, for engines without one in an expression."""
    tree: Tree = 0.0
    for tier in ("bronze", "silver", "gold"):
        band = ("?:", ("<", n("zone"), NEAR_ZONES), BONUS[tier, 0], BONUS[tier, 1])
        tree = ("?:", ("==", n("tier"), tier), band, tree)
    return tree


def _base(bonus: Tree) -> Tree:
    closeness = ("*", 0.6, ("-", 1.0, ("/", n("eta_s"), 1500.0)))
    reliable = ("*", 0.25, default("accept_rate", 0.6))
    liked = ("*", 0.04, default("rating", 4.5))
    return ("+", ("+", ("+", ("+", closeness, reliable), liked), ("?:", n("airport"), 0.1, 0.0)), bonus)


def score_tree(*, balanced: bool = False) -> Tree:
    """`balanced`: runs of added amounts are summed pairwise, for engines that limit how deep an expression may be; the last
    bits of the score then differ."""
    tree, run = _base(_bonus()), []
    for _, condition, effect, amount in [*ADJUSTS, ("", True, "", 0.0)]:
        if effect == "add":
            run.append(("?:", condition, amount, 0.0))
            continue
        for term in [_balanced(run)] if balanced and run else run:
            tree = ("+", tree, term)
        run = []
        if effect == "multiply":
            tree = ("*", tree, ("?:", condition, amount, 1.0))
    return tree


def bits_tree(*, balanced: bool = False) -> Tree:
    terms = [("?:", condition, float(1 << (len(DROPS) + at)), 0.0) for at, (_, condition, _, _) in enumerate(ADJUSTS)]
    if balanced:
        return _balanced(terms)
    tree = terms[0]
    for term in terms[1:]:
        tree = ("+", tree, term)
    return tree


def _balanced(terms: list[Tree]) -> Tree:
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return ("+", _balanced(terms[:half]), _balanced(terms[half:]))


def result_tree(*, with_bits: bool, balanced: bool = False) -> Tree:
    """[bits, score], the first drop first."""
    tree: Tree = ("list", bits_tree(balanced=balanced) if with_bits else 0.0, score_tree(balanced=balanced))
    for at, (_, condition) in reversed(list(enumerate(DROPS))):
        tree = ("?:", condition, ("list", float(1 << at), 0.0), tree)
    return tree


_LEVEL: Final = {
    "?:": 0,
    "||": 1,
    "&&": 2,
    "==": 3,
    "!=": 3,
    "<": 3,
    "<=": 3,
    ">": 3,
    ">=": 3,
    "in": 3,
    "+": 5,
    "-": 5,
    "*": 6,
    "/": 6,
    "!": 7,
}


def spell(tree: Tree, dialect: str) -> str:
    """The tree as text. Dialects: ours, cel, zen, rule_engine, python. No needless parentheses: CEL counts them as depth."""
    words = dialect in ("zen", "rule_engine", "python")

    def go(node: Tree, level: int = 0) -> str:
        if not isinstance(node, tuple):
            return _literal(node, dialect)
        op, *args = node
        if op == "name":
            return str(args[0])
        if op == "isnull":
            return f"({args[0][1]} is None)" if dialect == "python" else go(("==", args[0], None), level)
        if op == "list":
            return f"[{', '.join(map(go, args))}]"
        if op == "??" and dialect not in ("cel", "python"):
            return f"({go(args[0])} ?? {go(args[1])})"
        if op == "??":
            return go(("?:", ("isnull", args[0]), args[1], args[0]), level)
        mine = _LEVEL[op]
        text = _operator(op, args, mine, go)
        return f"({text})" if mine < level or (words and level) else text

    def _operator(op: str, args: list[Tree], mine: int, go: Callable[..., str]) -> str:
        if op == "?:":
            condition, then, otherwise = go(args[0], 1), go(args[1], 1), go(args[2], 0)
            return (
                f"{then} if {condition} else {otherwise}"
                if dialect == "python"
                else f"{condition} ? {then} : {otherwise}"
            )
        if op == "!":
            return f"not {go(args[0], mine)}" if words else f"!{go(args[0], mine)}"
        if op == "in":
            return f"{go(args[0], mine)} in [{', '.join(_literal(value, dialect) for value in args[1])}]"
        symbol = {"&&": "and", "||": "or"}.get(op, op) if words else op
        return f"{go(args[0], mine)} {symbol} {go(args[1], mine + 1)}"

    return go(tree)


def json_logic(tree: Tree) -> Any:
    if not isinstance(tree, tuple):
        return tree
    op, *args = tree
    if op == "name":
        return {"var": args[0]}
    if op == "isnull":
        return {"===": [json_logic(args[0]), None]}
    if op == "??":
        return {"if": [{"===": [json_logic(args[0]), None]}, args[1], json_logic(args[0])]}
    if op == "list":
        return [json_logic(arg) for arg in args]
    if op == "in":
        return {"in": [json_logic(args[0]), args[1]]}
    name = {"&&": "and", "||": "or", "?:": "if", "==": "===", "!=": "!=="}.get(op, op)
    return {name: [json_logic(arg) for arg in args]}


def strategy_yaml() -> str:
    """The same as a strategy file; the table is a real one (`bonus.csv`, see `table_csv`)."""
    lines = ["strategy: bench", "version: 1", f"request: {{{', '.join(f'{k}: {v}' for k, v in REQUEST.items())}}}"]
    fields = ", ".join(f"{name}: '{kind}'" for name, kind in FIELDS.items())
    lines += ["candidates:", "  key: driver_id", f"  fields: {{{fields}}}"]
    lines += [
        "tables:",
        "  bonus: {hit: first, on_gap: {amount: 0.0}, columns: [tier, zone, {out.amount: double}], rows: bonus.csv}",
        "rules:",
    ]
    for name, condition in DROPS:
        lines.append(f"  - {{id: {name}, drop_when: {json.dumps(spell(condition, 'ours'))}}}")
    for name, condition, effect, amount in ADJUSTS:
        lines.append(f"  - {{id: {name}, when: {json.dumps(spell(condition, 'ours'))}, {effect}: {amount}}}")
    lines += [f"score: {json.dumps(spell(_base(n('bonus.amount')), 'ours'))}", "rank: {by: score, ties: driver_id, keep: 50}",
              "explore: {kind: softmax, temperature: 0.05}"]  # fmt: skip
    return "\n".join(lines) + "\n"


def table_csv() -> str:
    rows = ["tier,zone,out.amount"]
    for (tier, band), amount in BONUS.items():
        rows.append(f"{tier},{f'< {NEAR_ZONES}' if band == 0 else f'>= {NEAR_ZONES}'},{amount}")
    return "\n".join(rows) + "\n"


def make_request(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    return {
        "surge": round(rng.uniform(1.0, 3.0), 2), "hour": rng.randrange(24), "airport": rng.random() < 0.2,
        "fare_cents": rng.randrange(500, 6000), "wheelchair": rng.random() < 0.05,
    }  # fmt: skip


def make_candidates(num: int, seed: int) -> list[dict[str, Any]]:
    """Rows as dicts; a tenth of what may be null is null."""
    rng = random.Random(seed)

    def maybe(value: float) -> float | None:
        return None if rng.random() < 0.1 else value

    return [
        {
            "state": "idle" if rng.random() < 0.88 else "on_trip",
            "tier": rng.choice(["gold", "silver", "bronze", "none"]),
            "vehicle": rng.choice(["sedan", "sedan", "suv", "van", "wav", "scooter"]),
            "eta_s": maybe(round(rng.expovariate(1 / 400), 1)),
            "distance_m": round(rng.expovariate(1 / 2500), 1),
            "rating": maybe(round(rng.uniform(3.0, 5.0), 2)),
            "accept_rate": maybe(round(rng.betavariate(4, 2), 3)),
            "trips_today": rng.randrange(42),
            "idle_s": maybe(round(rng.expovariate(1 / 1200), 1)),
            "zone": rng.randrange(265),
            "vip": rng.random() < 0.05,
            "new_driver": rng.random() < 0.1,
        }
        for _ in range(num)
    ]


def by_hand(with_bits: bool = True) -> Callable[[dict[str, Any]], list[float]]:
    """A CPython lambda of the whole expression: the honest floor of row engines, and what all results are compared with."""
    names = ", ".join((*FIELDS, *REQUEST))
    compiled = eval(f"lambda {names}: {spell(result_tree(with_bits=with_bits), 'python')}")  # our own text
    return lambda row: compiled(**row)  # type: ignore[no-any-return]


def _literal(value: Any, dialect: str) -> str:
    if value is None:
        return "None" if dialect == "python" else "null"
    if isinstance(value, bool):
        return str(value) if dialect == "python" else str(value).lower()
    if isinstance(value, str):
        return f"'{value}'"
    return repr(value) if not (isinstance(value, float) and value < 0) else f"({value!r})"

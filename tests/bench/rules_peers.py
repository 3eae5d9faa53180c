"""The peers of bench_rules.py, each in the form that suits it best: compiled outside the timed part, inputs ready.

A peer is a function from nothing to one [bits, score] per candidate. `from_rows` peers take the rows as dicts; what it costs
to make such dicts from Arrow bytes is timed by bench_rules.py and added for all of them alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.bench.rules_set import (
    ADJUSTS,
    BONUS,
    DROPS,
    FIELDS,
    NEAR_ZONES,
    REQUEST,
    by_hand,
    json_logic,
    n,
    result_tree,
    spell,
)  # fmt: skip

Rows = Sequence[dict[str, Any]]
Results = Sequence[Any]
PACKAGES = (
    "zen-engine",
    "datalogic-py",
    "cel-expr-python",
    "common-expression-language",
    "rule-engine",
    "numpy",
    "numba",
    "pyarrow",
)


def row_peers(*, with_bits: bool) -> dict[str, Callable[[Rows], Callable[[], Results]]]:
    """Name to a function that prepares for given rows and returns the timed call."""
    return {
        "zen map, dict in": lambda rows: _zen_map(rows, with_bits, text=False),
        "zen map, JSON in": lambda rows: _zen_map(rows, with_bits, text=True),
        "zen graph, static loader": lambda rows: _zen_graph(rows, with_bits),
        "datalogic, parsed batch": lambda rows: _datalogic(rows, with_bits),
        "cel-expr-python": lambda rows: _google_cel(rows, with_bits),
        "common-expression-language": lambda rows: _rust_cel(rows, with_bits),
        "rule-engine": lambda rows: _rule_engine(rows, with_bits),
        "CPython lambda": lambda rows: _lambda(rows, with_bits),
    }


def _zen_map(rows: Rows, with_bits: bool, *, text: bool) -> Callable[[], Results]:
    import zen

    tree = _prefixed(result_tree(with_bits=with_bits), "#.")
    expression = zen.compile_expression(f"map(rows, {spell(tree, 'zen')})")
    if text:
        return lambda: expression.evaluate(json.dumps({"rows": rows}))
    given = {"rows": rows}
    return lambda: expression.evaluate(given)


def _zen_graph(rows: Rows, with_bits: bool) -> Callable[[], Results]:
    """A decision graph of one expression node behind the static loader, one batch call."""
    import zen

    expression = {"id": "e1", "key": "result", "value": spell(result_tree(with_bits=with_bits), "zen")}
    nodes = [
        {"id": "in", "type": "inputNode", "name": "in"},
        {"id": "rules", "type": "expressionNode", "name": "rules", "content": {"expressions": [expression]}},
        {"id": "out", "type": "outputNode", "name": "out"},
    ]
    edges = [
        {"id": "a", "type": "edge", "sourceId": "in", "targetId": "rules"},
        {"id": "b", "type": "edge", "sourceId": "rules", "targetId": "out"},
    ]
    engine = zen.ZenEngine({"loader": {"type": "static", "content": {"bench": {"nodes": nodes, "edges": edges}}}})

    def run() -> Results:
        answers = engine.evaluate_batch([{"key": "bench", "context": row} for row in rows])
        return [one["data"]["result"]["result"] for one in answers]

    return run


def _datalogic(rows: Rows, with_bits: bool) -> Callable[[], Results]:
    """Handles parsed before, one native call; the answers come as JSON texts, so they are read too."""
    import datalogic_py

    engine = datalogic_py.Engine()
    rule = engine.compile(json_logic(result_tree(with_bits=with_bits)))
    session = engine.session()
    handles = [datalogic_py.DataHandle(row) for row in rows]
    return lambda: json.loads(f"[{','.join(session.evaluate_batch(rule, handles))}]")


def _google_cel(rows: Rows, with_bits: bool) -> Callable[[], Results]:
    from cel_expr_python import cel

    kinds = {"double": cel.Type.DOUBLE, "int": cel.Type.INT, "bool": cel.Type.BOOL, "string": cel.Type.STRING}
    declared = {**FIELDS, **REQUEST}
    env = cel.NewEnv(variables={name: kinds.get(kind, cel.Type.DYN) for name, kind in declared.items()})
    # balanced: its parser refuses what is nested more than 32 deep
    compiled = env.compile(spell(result_tree(with_bits=with_bits, balanced=True), "cel"))
    return lambda: [compiled.eval(data=row).plain_value() for row in rows]


def _rust_cel(rows: Rows, with_bits: bool) -> Callable[[], Results]:
    import cel

    program = cel.compile(spell(result_tree(with_bits=with_bits), "cel"))
    return lambda: [program.execute(row) for row in rows]


def _rule_engine(rows: Rows, with_bits: bool) -> Callable[[], Results]:
    import rule_engine

    rule = rule_engine.Rule(spell(result_tree(with_bits=with_bits), "rule_engine"))
    return lambda: [rule.evaluate(row) for row in rows]


def _lambda(rows: Rows, with_bits: bool) -> Callable[[], Results]:
    call = by_hand(with_bits)
    return lambda: [call(row) for row in rows]


def numpy_by_hand(rows: Rows) -> Callable[[], np.ndarray]:
    """What a good engineer writes for one strategy, strings coded beforehand. Shapes: returns (N, 2)."""
    columns: dict[str, Any] = {}
    for name, kind in FIELDS.items():
        values = [row[name] for row in rows]
        if kind == "string":
            names = sorted(set(values))
            columns[name] = np.array([names.index(value) for value in values], np.int8)
            columns[f"{name}:codes"] = {text: code for code, text in enumerate(names)}
        elif kind.endswith("?"):
            columns[name] = np.array([np.nan if value is None else value for value in values])
        else:
            columns[name] = np.array(values)
    return lambda: _by_numpy(columns, rows[0])


def _by_numpy(c: dict[str, Any], request: dict[str, Any]) -> np.ndarray:
    def mask(tree: Any) -> Any:
        op, *args = tree
        if op == "name":
            return c[args[0]] if args[0] in c else request[args[0]]
        if op == "isnull":
            return np.isnan(c[args[0][1]])
        if op == "??":
            values = c[args[0][1]]
            return np.where(np.isnan(values), args[1], values)
        if op == "in":
            codes = c[f"{args[0][1]}:codes"]
            return np.isin(c[args[0][1]], [codes[text] for text in args[1] if text in codes])
        if op == "!":
            return np.logical_not(value(args[0]))
        if op in ("==", "!=") and isinstance(args[1], str):
            code = c[f"{args[0][1]}:codes"].get(args[1], -1)
            return c[args[0][1]] == code if op == "==" else c[args[0][1]] != code
        return _UFUNCS[op](value(args[0]), value(args[1]))

    def value(tree: Any) -> Any:
        return mask(tree) if isinstance(tree, tuple) else tree

    size = len(c["zone"])
    bits, alive = np.zeros(size), np.ones(size, bool)
    for at, (_, condition) in enumerate(DROPS):
        dropped = mask(condition) & alive
        bits[dropped] = 1 << at
        alive &= ~dropped
    bonus = np.zeros(size)
    far = c["zone"] >= NEAR_ZONES
    for tier in ("gold", "silver", "bronze"):
        row = np.where(far, BONUS[tier, 1], BONUS[tier, 0])
        bonus = np.where(c["tier"] == c["tier:codes"].get(tier, -1), row, bonus)
    score = (
        0.6 * (1.0 - c["eta_s"] / 1500.0)
        + 0.25 * value(("??", n("accept_rate"), 0.6))
        + 0.04 * value(("??", n("rating"), 4.5))
    )
    score = score + (0.1 if request["airport"] else 0.0) + bonus
    for at, (_, condition, effect, amount) in enumerate(ADJUSTS):
        holds = mask(condition)
        bits = bits + np.where(alive & holds, float(1 << (len(DROPS) + at)), 0.0)
        score = np.where(holds, score + amount if effect == "add" else score * amount, score)
    return np.column_stack((bits, np.where(alive, score, 0.0)))


_UFUNCS: dict[str, Any] = {
    "&&": np.logical_and, "||": np.logical_or, "<": np.less, ">": np.greater, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal,
}  # fmt: skip


def _prefixed(tree: Any, prefix: str) -> Any:
    if not isinstance(tree, tuple):
        return tree
    if tree[0] == "name":
        return ("name", prefix + tree[1])
    return (tree[0], *(_prefixed(part, prefix) if isinstance(part, tuple) else part for part in tree[1:]))

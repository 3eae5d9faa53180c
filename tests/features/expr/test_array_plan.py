"""Array steps equal `evaluate`, to the bit, on random typed expressions that share one plan; codes of texts say the same."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, seed
from hypothesis import strategies as st

from features.expr import ROW_ERROR, Column, SourceText, compile_expr, evaluate, parse_type
from features.expr.array_plan import ArrayPlan, widened
from tests.features.expr import typed_expressions as typed
from tests.features.expr.test_columns import ANY_EXPRESSION, QUICK, compiled, wide_columns, wide_rows


@seed(20261201)
@QUICK
@given(texts=st.lists(ANY_EXPRESSION, min_size=1, max_size=4), row_seed=st.integers(0, 2**32))
def test_expressions_of_one_plan_equal_each_alone(texts: list[str], row_seed: int) -> None:
    """Also with row errors among what is given, and again on other rows: what was learnt of texts still holds."""
    programs = [compiled(text) for text in texts]
    plan = ArrayPlan()
    slots = [plan.add(program) for program in programs]
    rng = random.Random(row_seed)
    for num_rows in (23, 1, 0, 7):
        rows = wide_rows(rng.getrandbits(32), num_rows)
        if num_rows == 7:
            rows = [{k: ROW_ERROR if rng.random() < 0.15 else v for k, v in row.items()} for row in rows]
        columns = wide_columns(rows)
        with np.errstate(all="ignore"):
            values, masks = plan.run(dict(columns))
        for slot, program in zip(slots, programs, strict=True):
            found = widened(values[slot], masks[slot], num_rows)
            wanted = evaluate(program, columns, num_rows=num_rows)
            assert found.values.dtype == wanted.values.dtype, program
            assert len(found) == num_rows, program
            for a, b in zip(found.tolist(), wanted.tolist(), strict=True):
                assert typed.same(a, b), (a, b, program)
            none = np.zeros(num_rows, np.bool_)
            a_error, b_error = (none if one.error is None else one.error for one in (found, wanted))
            assert np.array_equal(a_error, b_error), program


def test_more_texts_than_are_remembered() -> None:
    program = compile_expr(SourceText("s.endsWith('7') || int(s) > 100"), {"s": parse_type("string")})
    plan = ArrayPlan()
    slot = plan.add(program)
    for start in (0, 3000, 6000, 0):
        values = np.array([str(at) for at in range(start, start + 3000)], np.object_)
        column = Column(values, np.ones(3000, np.bool_))
        V, M = plan.run({"s": column})
        assert M[slot] is None and np.array_equal(V[slot], evaluate(program, {"s": column}).values)


def test_more_predicates_of_a_text_than_a_word_has_bits_for() -> None:
    texts = [f"s == '{at}'" for at in range(50)]
    programs = [compile_expr(SourceText(text), {"s": parse_type("string")}) for text in texts]
    plan = ArrayPlan()
    slots = [plan.add(program) for program in programs]
    column = Column(np.array([str(at) for at in range(60)], np.object_), np.ones(60, np.bool_))
    V, _ = plan.run({"s": column})
    for at, slot in enumerate(slots):
        assert np.flatnonzero(V[slot]).tolist() == [at]


def test_arithmetic_of_named_constants_alone_is_a_column() -> None:
    plan, double = ArrayPlan(), parse_type("double")
    plan.name("demand", compile_expr(SourceText("1e308"), {}))
    plan.name("pressure", compile_expr(SourceText("-(demand / 100.0) + demand"), {"demand": double}))
    columns: dict[str, Column] = {}
    plan.run(columns)
    assert columns["pressure"].tolist() == [-(1e308 / 100.0) + 1e308]

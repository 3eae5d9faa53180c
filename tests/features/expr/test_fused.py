"""The fused loop equals the row interpreter, to the bit: random programs, every operation on every pair of edges."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.errors import NonInteractiveExampleWarning

from features.expr import (
    ROW_ERROR,
    CodedTexts,
    Column,
    Mistakes,
    Program,
    SourceText,
    compile_expr,
    evaluate,
    parse_type,
)
from features.expr.fused import Read
from features.expr.fused_machine import Kernel, Machine, MisfitError, check_layout, layout_of
from features.expr.fused_ops import compile_text
from features.expr.ssa import CHECKED, TOTAL, Input
from features.expr.text_bits import SLOTS, TextBits
from tests.features.expr import typed_expressions as typed
from tests.features.expr.coded_texts import WILD, code
from tests.features.expr.fused_programs import FusedPrograms
from tests.features.expr.test_columns import (
    ANY_EXPRESSION,
    EVERY_OPERATION,
    assert_equal_to_rows,
    wide_columns,
    wide_rows,
)

INPUTS = {name: Input(name, kind.kind, kind.nullable, fails=True) for name, kind in typed.WIDE.items()}


def random_programs(count: int, seed: int) -> list[Program]:
    """Drawn by hypothesis' strategies, with Python's seed: one compile serves them all, so there is nothing to shrink."""
    random.seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NonInteractiveExampleWarning)
        texts = [st.one_of(ANY_EXPRESSION).example() for _ in range(count)]
    programs = []
    for text in texts:
        try:
            programs.append(compile_expr(SourceText(text), typed.WIDE))
        except Mistakes as error:
            assert {mistake.kind for mistake in error.items} == {"limit"}
    return programs


def random_errors(rows: list[dict[str, object]], seed: int) -> list[dict[str, object]]:
    rng = random.Random(seed)
    return [{name: ROW_ERROR if rng.random() < 0.1 else value for name, value in row.items()} for row in rows]


def check(fused: FusedPrograms, rows: list[dict[str, object]]) -> None:
    found = fused.run(wide_columns(rows), len(rows))
    for (program, _), column in zip(fused.fused, found, strict=True):
        assert_equal_to_rows(program, rows, column)


def check_random(count: int, seed: int) -> None:
    print(f"seed {seed}")
    fused = FusedPrograms(random_programs(count, seed), INPUTS)
    assert len(fused.fused) > count // 2
    for size in (0, 1, 2, 3, 7, 8, 9, 41, 123):
        check(fused, wide_rows(seed + size, size))
    check(fused, random_errors(wide_rows(seed, 200), seed))


def test_random_programs_equal_the_interpreter_row_by_row() -> None:
    check_random(60, 20260901)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20260910, 20260925))
def test_many_random_programs_equal_the_interpreter_row_by_row(seed: int) -> None:
    check_random(100, seed)


def every_operation() -> FusedPrograms:
    texts = [text for kind in ("int", "double") for text in EVERY_OPERATION[kind]]
    texts += ["b == f", "b != b", "!b", "b in [true]", "b && f", "b || f", "b ? n : i", "n ?? i", "f == null"]
    names = {**typed.WIDE, "f": parse_type("bool?")}
    programs = []
    for text in texts:
        text = text.replace("b == f", "b == (f ?? true)")
        programs.append(compile_expr(SourceText(text), names))
    return FusedPrograms(programs, INPUTS)


def test_every_operation_on_every_pair_of_edge_values() -> None:
    rng = random.Random(3)
    ints = [(a, b) for a in typed.INTS for b in typed.INTS]
    doubles = [(a, b) for a in typed.DOUBLES for b in typed.DOUBLES]
    rows = []
    for at in range(max(len(ints), len(doubles))):
        row = wide_rows(at, 1)[0]
        row["i"], row["req.j"] = ints[at % len(ints)]
        row["x"], row["req.y"] = doubles[at % len(doubles)]
        rows.append(row)
    rng.shuffle(rows)
    fused = every_operation()
    check(fused, rows)
    missing = {step for step in TOTAL | CHECKED if step not in {value.step for value in fused.graph.values}}
    known = {step for step in missing if not step.startswith(("gt_", "ge_", "is_", "trunc", "sqrt", "same"))}
    assert known <= {"ne_bool", "eq_bool", "in_bool"}, f"no test of {sorted(known)}"


def test_products_near_the_end_of_int64_are_exact() -> None:
    rng = random.Random(7)
    pairs = [(rng.randint(-(2**33), 2**33), rng.randint(-(2**33), 2**33)) for _ in range(3000)]
    pairs += [(rng.randint(-(2**63), 2**63 - 1), rng.randint(-(2**63), 2**63 - 1)) for _ in range(2000)]
    for _ in range(3000):  # products within a few of the ends
        a = rng.choice([1, -1]) * rng.randint(1, 2**40)
        pairs.append((a, (2**63 + rng.randint(-3, 3)) // a))
    rows = [{"i": a, "req.j": b} for a, b in pairs]
    program = compile_expr(SourceText("i * req.j"), typed.WIDE)
    names = {name: INPUTS[name] for name in ("i", "req.j")}
    columns = {
        name: Column(np.array([row[name] for row in rows]), np.ones(len(rows), dtype=np.bool_)) for name in names
    }
    column = FusedPrograms([program], names).run(columns, len(rows))[0]
    assert_equal_to_rows(program, rows, column)
    assert 1000 < int((~column.valid).sum()) < len(rows) - 1000


SHARED = ("req.j", "req.y", "t", "b")


def test_what_the_request_shares_is_computed_once_and_a_row_alone_equals_it_among_others() -> None:
    inputs = {name: Input(name, k.kind, k.nullable, True, name in SHARED) for name, k in typed.WIDE.items()}
    fused = FusedPrograms(random_programs(40, 20260902), inputs)
    assert any(value.shared and value.args for value in fused.graph.values)
    assert fused.loop.head
    for seed in range(5):
        rows = wide_rows(seed, 9)
        rows = [{**row, **{name: rows[0][name] for name in SHARED}} for row in rows]
        columns = wide_columns(rows)
        shared = {name: Column(columns[name].values[:1], columns[name].valid[:1]) for name in SHARED}
        together = fused.run({**columns, **shared}, 9)
        for (program, _), column in zip(fused.fused, together, strict=True):
            assert_equal_to_rows(program, rows, column)
        alone = fused.run(wide_columns(rows[4:5]), 1)
        for one, many in zip(alone, together, strict=True):
            assert one.valid[0] == many.valid[4] and (
                not one.valid[0] or typed.same(one.values[0].item(), many.values[4].item())
            )


# Columns that are not as declared ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain() -> FusedPrograms:
    """x + y > 1 of doubles that are never null, or s is one of two texts."""
    names = {"x": parse_type("double"), "y": parse_type("double"), "s": parse_type("string?")}
    inputs = {name: Input(name, kind.kind, kind.nullable) for name, kind in names.items()}
    text = "x + y > 1.0 || (s ?? 'a') in ['b', 'πέντε']"
    return FusedPrograms([compile_expr(SourceText(text), names)], inputs)


def doubles(values: Sequence[float]) -> Column:
    return Column(np.array(values, dtype=np.float64), np.ones(len(values), dtype=np.bool_))


def texts(values: Sequence[str | None]) -> Column:
    array = np.empty(len(values), dtype=np.object_)
    array[:] = values
    return Column(array, np.array([value is not None for value in values], dtype=np.bool_))


WRONG = {
    "shorter": Column(np.zeros(3), np.ones(3, dtype=np.bool_)),
    "longer": Column(np.zeros(5), np.ones(5, dtype=np.bool_)),
    "of length one": Column(np.zeros(1), np.ones(1, dtype=np.bool_)),
    "of narrow numbers": Column(np.zeros(4, dtype=np.float32), np.ones(4, dtype=np.bool_)),
    "of ints": Column(np.zeros(4, dtype=np.int64), np.ones(4, dtype=np.bool_)),
    "of the other byte order": Column(np.zeros(4, dtype=">f8"), np.ones(4, dtype=np.bool_)),
    "with steps in memory": Column(np.zeros(8)[::2], np.ones(4, dtype=np.bool_)),
    "of two dimensions": Column(np.zeros((4, 1)), np.ones(4, dtype=np.bool_)),
    "of objects": Column(np.zeros(4, dtype=np.object_), np.ones(4, dtype=np.bool_)),
    "no array": Column([0.0] * 4, np.ones(4, dtype=np.bool_)),  # type: ignore[arg-type]
    "off its address": Column(np.frombuffer(b"\0" * 40, np.uint8)[1:33].view(np.float64), np.ones(4, dtype=np.bool_)),
    "null somewhere": Column(np.zeros(4), np.array([True, True, False, True])),
    "failed somewhere": Column(np.zeros(4), np.ones(4, dtype=np.bool_), np.array([False, True, False, False])),
    "flagged by bytes": Column(np.zeros(4), np.ones(4, dtype=np.uint8)),
    "flagged too shortly": Column(np.zeros(4), np.ones(3, dtype=np.bool_)),
}


def test_a_column_that_was_never_made_is_refused(plain: FusedPrograms) -> None:
    empty = Column.__new__(Column)
    for wrong in (empty, CodedTexts(np.zeros(4), np.array(["a"], np.object_), np.ones(4, dtype=np.bool_))):
        given = [wrong if read.name == "y" else doubles([1.0] * 4) for read in plain.loop.reads]
        with pytest.raises(MisfitError, match="y"):
            plain.kernel.run(given, [texts(["a"] * 4)], [np.empty(4, bool) for _ in range(3)], 4)


@pytest.mark.parametrize("how", WRONG)
def test_a_column_that_is_not_as_declared_is_refused_by_name(plain: FusedPrograms, how: str) -> None:
    columns = {"x": doubles([1.0] * 4), "y": WRONG[how], "s": texts(["a"] * 4)}
    given = [columns[plain.graph.values[read.number].const.name] for read in plain.loop.reads]
    outputs = [np.full(4, 9, dtype) for dtype in (bool, bool, bool)]
    with pytest.raises(MisfitError) as caught:
        plain.kernel.run(given, [columns["s"]], outputs, 4)
    assert caught.value.args[0] == "y"
    assert all(output.tolist() == [True] * 4 for output in outputs)


def test_texts_that_are_no_column_of_texts_are_refused(plain: FusedPrograms) -> None:
    for wrong in (doubles([0.0] * 4), texts(["a"] * 3), Column(np.array(["a"] * 4), np.ones(4, dtype=np.bool_))):
        with pytest.raises(MisfitError) as caught:
            plain.run({"x": doubles([0.0] * 4), "y": doubles([0.0] * 4), "s": wrong}, 4)
        assert caught.value.args[0] == "s"


def test_a_layout_names_every_column() -> None:
    assert len(layout_of([Read("x", 0, "float64", False, False, False)] * 3)) == 7 + 3 * 5


def test_another_python_or_numpy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_layout()
    monkeypatch.setattr(np, "__version__", "3.0.0")
    with pytest.raises(ValueError, match=r"NumPy 3\.0\.0"):
        check_layout()


def test_constants_that_overflow_are_row_errors() -> None:
    """Python must not compute them while it compiles the text: it has no largest int."""
    largest, lowest = 2**63 - 1, "(-9223372036854775807 - 1)"
    texts = [
        f"{largest} + 1",
        f"-2 - {largest}",
        f"{largest} * 3037000500",
        f"-({lowest})",
        f"{largest} + -1",
        f"{lowest} * 1",
    ]
    programs = [compile_expr(SourceText(text), {}) for text in texts]
    found = FusedPrograms(programs, {}).run({}, 3)
    for program, column in zip(programs, found, strict=True):
        assert_equal_to_rows(program, [{}] * 3, column)


def test_a_call_takes_every_set_of_killed_rules() -> None:
    text = (
        "def bits(inputs, outputs, killed):\n"
        "    out0 = data_of(item_of(outputs, 0))\n"
        "    put_int(out0, 0, killed, 0)\n"
        "    return killed >> 62\n"
    )
    reads = [Read("x", 0, "int64", False, False, False)]
    kernel, out = Kernel(Machine(compile_text(text, ["bits"])), "bits", reads), np.zeros(1, np.int64)
    for killed in (0, 1, 2**30, 2**60 + 5, 2**62 - 1):
        kernel.run([], [], [out], 1, killed)
        assert out[0] == killed
    with pytest.raises(MisfitError, match="x"):  # what the code returns
        kernel.run([], [], [out], 1, 2**62)


def test_threads_share_a_loop(plain: FusedPrograms) -> None:
    """Every one brings texts that none has seen."""

    def ask(number: int) -> list[bool]:
        zeros, rows = doubles([0.0] * 50), [f"{number} {row}" for row in range(48)] + ["b", "πέντε"]
        found = [plain.run({"x": zeros, "y": zeros, "s": texts(rows)}, 50)[0].values.tolist() for _ in range(20)]
        return found[0] if all(one == found[0] for one in found) else []

    with ThreadPoolExecutor(8) as threads:
        assert all(found == [False] * 48 + [True] * 2 for found in threads.map(ask, range(40)))


# Texts ---------------------------------------------------------------------------------------------------------------


def random_text(rng: random.Random) -> str:
    alphabet = rng.choice(["ab", "abcdefgh0123", "äöü", "πέντε", "🐱x", "\x00a", "\ud800z"])
    return "".join(
        rng.choice(alphabet) for _ in range(rng.choice([0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 60]))
    )


class Text(str):
    """A text that is not exactly a `str`."""


def test_texts_of_any_length_and_script_get_the_numbers_of_the_interpreter(plain: FusedPrograms) -> None:
    rng = random.Random(11)
    for _ in range(30):
        column = texts([rng.choice([None, "b", "πέντε", "a", Text("b"), random_text(rng)]) for _ in range(100)])
        found = plain.run({"x": doubles([0.0] * 100), "y": doubles([0.0] * 100), "s": column}, 100)[0]
        assert found.values.tolist() == [text in ("b", "πέντε") for text in column.tolist()]


def test_more_texts_than_are_remembered_still_get_their_numbers(plain: FusedPrograms) -> None:
    column = texts([f"unseen {number}" for number in range(6 * SLOTS)] + ["b"])
    zeros = doubles([0.0] * len(column))
    for _ in range(2):
        found = plain.run({"x": zeros, "y": zeros, "s": column}, len(column))[0]
        assert found.values.tolist() == [False] * (6 * SLOTS) + [True]


@pytest.mark.parametrize("size", [0, 1, 2, 9, 300])
def test_coded_texts_are_what_plain_texts_are(plain: FusedPrograms, size: int) -> None:
    rng = random.Random(size)
    for _ in range(20):
        rows = [rng.choice([None, "b", "πέντε", "a", "", random_text(rng)]) for _ in range(size)]
        coded = code(texts(rows), rng)
        for _ in range(2):  # the second time its numbers are known
            zeros = doubles([0.0] * size)
            found = plain.run({"x": zeros, "y": zeros, "s": coded}, size)[0]
            assert found.values.tolist() == [text in ("b", "πέντε") for text in rows]
        assert len(coded) == size and coded.tolist() == rows
        assert [value for value, text in zip(coded.values.tolist(), rows, strict=True) if text is not None] == [
            text for text in rows if text is not None
        ]


@pytest.mark.parametrize("wild", [*WILD, 2, 3])
def test_a_code_that_the_dictionary_does_not_have_is_refused(plain: FusedPrograms, wild: int) -> None:
    zeros, dictionary = doubles([0.0] * 4), np.array(["a", "b"], dtype=np.object_)
    codes, valid = np.array([0, 1, wild, 1]), np.ones(4, dtype=np.bool_)
    coded = CodedTexts(codes, dictionary, valid)
    with pytest.raises(MisfitError) as caught:
        plain.run({"x": zeros, "y": zeros, "s": coded}, 4)
    assert caught.value.args[0] == "s" and coded.numbers is None
    for read in (lambda: coded.values, coded.tolist):
        with pytest.raises(IndexError):
            read()
    behind_null = CodedTexts(codes, dictionary, np.array([True, True, False, True]))
    assert plain.run({"x": zeros, "y": zeros, "s": behind_null}, 4)[0].values.tolist() == [False, True, False, True]
    assert behind_null.tolist() == ["a", "b", None, "b"]


def test_coded_texts_of_another_length_are_refused(plain: FusedPrograms) -> None:
    dictionary, zeros = np.array(["a"], dtype=np.object_), doubles([0.0] * 4)
    for codes, valid in ((3, 4), (4, 3), (3, 3), (1, 1)):
        coded = CodedTexts(np.zeros(codes), dictionary, np.ones(valid, dtype=np.bool_))
        with pytest.raises(MisfitError, match="s"):
            plain.run({"x": zeros, "y": zeros, "s": coded}, 4)


def test_numbers_that_a_column_keeps_are_those_of_one_set_of_predicates(plain: FusedPrograms) -> None:
    """Two loops that ask different things of the same columns, in turn."""
    names = {"x": parse_type("double"), "s": parse_type("string?")}
    inputs = {name: Input(name, kind.kind, kind.nullable) for name, kind in names.items()}
    other = FusedPrograms([compile_expr(SourceText("x > 1.0 || (s ?? '') in ['a', '']"), names)], inputs)
    rows = [None, "a", "b", "", "πέντε"]
    zeros, plain_texts = doubles([0.0] * 5), texts(rows)
    for column in (plain_texts, code(plain_texts, random.Random(1))):
        for _ in range(2):
            found = plain.run({"x": zeros, "y": zeros, "s": column}, 5)[0]
            assert found.values.tolist() == [text in ("b", "πέντε") for text in rows]
            assert column.numbers is not None and column.numbers[0] is plain.loop.texts[0].bits
            found = other.run({"x": zeros, "s": column}, 5)[0]
            assert found.values.tolist() == [text in (None, "a", "") for text in rows]


def test_a_dictionary_of_more_texts_than_are_remembered(plain: FusedPrograms) -> None:
    rows = [f"one of many {number}" for number in range(6 * SLOTS)] + ["b"]
    zeros = doubles([0.0] * len(rows))
    for seed in range(2):
        coded = code(texts(rows), random.Random(seed))
        found = plain.run({"x": zeros, "y": zeros, "s": coded}, len(rows))[0]
        assert found.values.tolist() == [False] * (6 * SLOTS) + [True]


def test_coded_texts_that_failed_are_row_errors_and_numpy_reads_them(plain: FusedPrograms) -> None:
    names = {"s": parse_type("string?")}
    program = compile_expr(SourceText("(s ?? 'b') + 'x'"), names)
    rows, error = ["a", None, "πέντε", ""], np.array([False, False, True, False])
    column = texts(rows)
    column = Column(column.values, column.valid & ~error, error)
    coded = code(column, random.Random(2))
    assert (
        evaluate(program, {"s": coded}).tolist() == evaluate(program, {"s": column}).tolist() == ["ax", "bx", None, "x"]
    )
    fused = FusedPrograms(
        [compile_expr(SourceText("(s ?? '') == 'a'"), names)], {"s": Input("s", "string", True, fails=True)}
    )
    found, wanted = (fused.run({"s": one}, 4)[0] for one in (coded, column))
    for part in ("values", "valid", "error"):
        assert getattr(found, part).tolist() == getattr(wanted, part).tolist()
    assert found.error is not None and found.error.tolist() == error.tolist()


def test_a_name_has_room_for_a_limited_number_of_predicates() -> None:
    bits = TextBits("s")
    program = compile_expr(SourceText("s == 'a'"), {"s": parse_type("string")})
    places = [bits.place_for(program, flags=True) for _ in range(25)]
    assert places[:3] == [0, 3, 6] and places[-1] is None
    assert bits.bits("a") & 0b111 == 0b011 and bits.bits(ROW_ERROR) & 0b111 == 0b100

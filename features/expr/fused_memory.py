"""Arrays and texts by address: what a fused loop reads and writes, as operations for Numba (`fused_ops.py`).

What a loop is given are two lists of Python's arrays. They are read in place, without a copy, by the layout of CPython 3.11's
list and text and of NumPy 2's array (public in their headers, checked by `fused_machine.check_layout`); `misfit` refuses,
before any row is read, an array that is not as declared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from features.expr.text_bits import FACTORS, LONGEST, SLOT_WIDTH, SLOTS, TABLE_HEAD, UNSEEN

LIST_ITEMS: Final = 24  # PyListObject.ob_item
ARRAY_DATA, ARRAY_NDIM, ARRAY_SHAPE, ARRAY_STRIDES, ARRAY_DTYPE = 16, 24, 32, 40, 56  # PyArrayObject
DTYPE_ORDER, DTYPE_NUMBER = 26, 28  # PyArray_Descr
OBJECT_TYPE: Final = 8  # PyObject.ob_type
INT_DTYPE, OBJECT_DTYPE = np.dtype(np.int64).num, 17  # their numbers
FOREIGN_ORDER: Final = ord(">")
STR_LENGTH, STR_STATE, STR_ASCII_DATA, STR_DATA = 16, 32, 48, 72  # PyASCIIObject, PyCompactUnicodeObject
STR_COMPACT, STR_ASCII = 0x20, 0x40  # flags of the state; bytes a character are its bits 2 to 4
LAYOUT_HEAD, LAYOUT_WIDTH = 7, 5  # of the int64 array `layout`: see fused_machine.layout_of


def memory() -> dict[str, Any]:
    """Arrays by address. Loads and stores say that what is read is never what is written, so that the loop vectorises."""
    from llvmlite import ir
    from numba import njit, types
    from numba.extending import intrinsic

    whole = types.int64
    byte, word = ir.IntType(8), ir.IntType(64)

    def scopes(module: Any, names: Iterable[str]) -> Any:
        domain = module.add_metadata([ir.MetaDataString(module, "hailstream")])
        return module.add_metadata(
            [module.add_metadata([ir.MetaDataString(module, f"hailstream.{name}"), domain]) for name in names]
        )

    def mark(builder: Any, instruction: Any, mine: str) -> Any:
        everything = ["in", *(f"out{at}" for at in range(_MAX_OUTPUTS))]
        instruction.set_metadata("alias.scope", scopes(builder.module, [mine]))
        instruction.set_metadata("noalias", scopes(builder.module, [name for name in everything if name != mine]))
        return instruction

    def place(builder: Any, address: Any, index: Any, kind: Any) -> Any:
        return builder.gep(builder.inttoptr(address, kind.as_pointer()), [index])

    def getter(kind: Any, result: Any) -> Any:
        def typed(context: Any, address: Any, index: Any) -> Any:
            def emit(target: Any, builder: Any, sig: Any, values: Any) -> Any:
                found = mark(builder, builder.load(place(builder, values[0], values[1], kind)), "in")
                return found if kind is not byte else builder.icmp_unsigned("!=", found, byte(0))

            return result(whole, whole), emit

        return intrinsic(typed)

    def putter(kind: Any, taken: Any) -> Any:
        def typed(context: Any, address: Any, index: Any, value: Any, output: Any) -> Any:
            def emit(target: Any, builder: Any, sig: Any, values: Any) -> Any:
                given = values[2]
                if isinstance(given.type, ir.IntType) and given.type.width > kind.width:
                    given = builder.trunc(given, kind)
                elif isinstance(given.type, ir.IntType) and given.type.width < kind.width:
                    given = builder.zext(given, kind)
                stored = builder.store(given, place(builder, values[0], values[1], kind))
                mark(builder, stored, f"out{min(getattr(output, 'literal_value', _MAX_OUTPUTS), _MAX_OUTPUTS - 1)}")
                return target.get_dummy_value()

            return types.none(whole, whole, taken, output), emit

        return intrinsic(prefer_literal=True)(typed)

    def peek_of(kind: Any) -> Any:
        def typed(context: Any, address: Any) -> Any:
            def emit(target: Any, builder: Any, sig: Any, values: Any) -> Any:
                found = builder.load(builder.inttoptr(values[0], kind.as_pointer()))
                return found if kind is word else builder.zext(found, word)

            return whole(whole), emit

        return intrinsic(typed)

    peek, peek_int, peek_byte = peek_of(word), peek_of(ir.IntType(32)), peek_of(byte)

    def load(builder: Any, address: Any, offset: Any) -> Any:
        if not isinstance(offset, ir.Value):
            offset = word(offset)
        return builder.load(builder.inttoptr(builder.add(address, offset), word.as_pointer()))

    def item(builder: Any, items: Any, at: Any) -> Any:
        return load(builder, load(builder, items, LIST_ITEMS), builder.mul(at, word(8)))

    def typed_item_of(context: Any, items: Any, at: Any) -> Any:
        return whole(whole, whole), lambda target, builder, sig, values: item(builder, *values)

    def typed_data_of(context: Any, array: Any) -> Any:
        return whole(whole), lambda target, builder, sig, values: load(builder, values[0], ARRAY_DATA)

    def typed_rows_of(context: Any, array: Any) -> Any:
        return whole(whole), lambda target, builder, sig, values: load(
            builder, load(builder, values[0], ARRAY_SHAPE), 0
        )

    def typed_or_none_of(context: Any, array: Any, layout: Any, inputs: Any) -> Any:
        """The array, or the first of the inputs (zeros) in place of None."""

        def emit(target: Any, builder: Any, sig: Any, values: Any) -> Any:
            array, layout, inputs = values
            none = builder.icmp_signed("==", array, load(builder, layout, 8))
            return builder.select(none, item(builder, inputs, word(0)), array)

        return whole(whole, whole, whole), emit

    def typed_plain(context: Any, number: Any) -> Any:
        """A number as one of many: Numba would compile a function of its own for every constant it is called with."""
        return whole(whole), lambda target, builder, sig, values: values[0]

    item_of: Any = intrinsic(typed_item_of)
    data_of: Any = intrinsic(typed_data_of)
    rows_of: Any = intrinsic(typed_rows_of)
    or_none_of: Any = intrinsic(typed_or_none_of)
    plain: Any = intrinsic(typed_plain)

    @njit
    def values_of(column: int, layout: int) -> int:
        return peek(column + peek(layout + 32))

    @njit
    def valid_of(column: int, layout: int) -> int:
        return peek(column + peek(layout + 40))

    @njit
    def error_of(column: int, layout: int) -> int:
        return peek(column + peek(layout + 48))

    @njit
    def strange(array: int, number: int, size: int, rows: int, layout: int) -> bool:
        """Whether an object is anything but a plain array of that type and length."""
        if peek(array + OBJECT_TYPE) != peek(layout) or peek_int(array + ARRAY_NDIM) != 1:
            return True
        dtype = peek(array + ARRAY_DTYPE)
        if peek_int(dtype + DTYPE_NUMBER) != number or peek_byte(dtype + DTYPE_ORDER) == FOREIGN_ORDER:
            return True
        if peek(array + ARRAY_DATA) & (size - 1) != 0 or peek(peek(array + ARRAY_SHAPE)) != rows:
            return True
        return rows > 1 and peek(peek(array + ARRAY_STRIDES)) != size

    @njit
    def all_equal(array: int, rows: int, wanted: int) -> bool:
        different = 0
        address = peek(array + ARRAY_DATA)
        for row in range(rows):
            different |= peek_byte(address + row) ^ wanted
        return different == 0

    @njit
    def misfit(inputs: int, at: int, layout: int, num: int) -> int:
        """What is wrong with the column at that place, 0 for nothing."""
        here = layout + 8 * (LAYOUT_HEAD + LAYOUT_WIDTH * at)
        rows = 1 if peek(here + 16) else num
        column = item_of(inputs, at + 1)
        if peek(column + OBJECT_TYPE) != peek(layout + 24):
            return 1
        values, valid, error = values_of(column, layout), valid_of(column, layout), error_of(column, layout)
        if values == 0 or valid == 0 or error == 0:  # a column that was never made
            return 1
        if strange(values, peek(here), peek(here + 8), rows, layout) or strange(valid, 0, 1, rows, layout):
            return 1
        if not peek(here + 24) and not all_equal(valid, rows, 1):
            return 2
        if error != peek(layout + 8):
            if strange(error, 0, 1, rows, layout):
                return 3
            if not peek(here + 32) and not all_equal(error, rows, 0):
                return 4
        return 0

    real = types.float64
    return {
        "peek": peek,
        "peek_int": peek_int,
        "peek_byte": peek_byte,
        "strange": strange,
        "item_of": item_of,
        "data_of": data_of,
        "rows_of": rows_of,
        "or_none_of": or_none_of,
        "values_of": values_of,
        "valid_of": valid_of,
        "error_of": error_of,
        "plain": plain,
        "misfit": misfit,
        "get_double": getter(ir.DoubleType(), real),
        "get_int": getter(word, whole),
        "get_bool": getter(byte, types.boolean),
        "put_double": putter(ir.DoubleType(), real),
        "put_int": putter(word, whole),
        "put_short": putter(ir.IntType(16), whole),
        "put_bool": putter(byte, types.boolean),
    }


def texts(names: Mapping[str, Any]) -> dict[str, Any]:
    """Texts to their numbers, by the table of `text_bits.TextBits`: `key_of` and `slot_of` there are the same as here."""
    from numba import njit

    select, shifted = names["select"], names["shifted"]
    peek, peek_int, peek_byte = names["peek"], names["peek_int"], names["peek_byte"]
    item_of, data_of, strange, put_int = names["item_of"], names["data_of"], names["strange"], names["put_int"]
    rows_of, get_int, get_bool = names["rows_of"], names["get_int"], names["get_bool"]
    factor, other_factor = FACTORS

    # Texts differ in length from row to row, so nothing here branches on it up to 8 bytes. Reading 8 where a text has
    # fewer is sound: CPython's allocators round an object up to 16 bytes, or 8 beyond a header of theirs, and the header of a
    # text ends at a multiple of 8.
    @njit
    def number_of(text: int, table: int, str_type: int) -> int:
        state = peek_int(text + STR_STATE)
        width = (state >> 2) & 7
        size = peek(text + STR_LENGTH) * width
        if peek(text + OBJECT_TYPE) != str_type or state & STR_COMPACT == 0 or size > LONGEST:
            return UNSEEN
        data = text + select(state & STR_ASCII != 0, STR_ASCII_DATA, STR_DATA)
        tag = size * 8 + width
        long = size > 8
        first = peek(data) & shifted(-1, select(long, 0, 64 - 8 * size)) & (0 - (size != 0))
        second, third, fourth = 0, 0, 0
        if long:
            second = peek(data + size - 8)
            if size > 16:
                third, fourth = peek(data + 8), peek(data + size - 16)
        mixed = (first ^ tag) * factor
        if long:
            mixed ^= (second ^ third ^ fourth) * other_factor
        slot = (mixed >> 40) & (SLOTS - 1)
        while True:
            here = table + 8 * (TABLE_HEAD + SLOT_WIDTH * slot)
            taken = peek(here)
            if (taken ^ tag) | (peek(here + 8) ^ first) == 0:
                other = (peek(here + 16) ^ second) | (peek(here + 24) ^ third) | (peek(here + 32) ^ fourth)
                if not long or other == 0:
                    return peek(here + 40)
            if taken == 0:
                return UNSEEN
            slot = (slot + 1) & (SLOTS - 1)

    @njit
    def numbers_of_codes(codes: int, valid: int, table: int, size: int, numbers: int, rows: int) -> int:
        """Whether a code is outside of the table, 1 or 0. The first number of the table is that of null."""
        outside = 0
        for row in range(rows):
            code = get_int(codes, row)
            within = (code >= 0) & (code < size - 1)  # code + 1 may be none of 64 bits
            known = get_bool(valid, row)
            outside |= known & (not within)
            put_int(numbers, row, get_int(table, select(known & within, code + 1, 0)), _MAX_OUTPUTS - 1)
        return outside

    @njit
    def unseen_texts(inputs: int, at: int, shared: int, layout: int, num: int) -> int:
        """Write the numbers of a column of texts; how many are unseen, or -1 for what is no column of texts.

        The five items from `at` on: texts, codes, valid, the table, and where the numbers go. Texts are None where there are
        codes, and the table is then what `of_dictionary` says; both are None where the numbers are there.
        """
        rows = 1 if shared else num
        texts, codes, valid = item_of(inputs, at), item_of(inputs, at + 1), item_of(inputs, at + 2)
        table, numbers, none = item_of(inputs, at + 3), item_of(inputs, at + 4), peek(layout + 8)
        if strange(numbers, INT_DTYPE, 8, rows, layout):
            return -1
        numbers = data_of(numbers)
        if texts == none and codes == none:
            return 0
        if strange(valid, 0, 1, rows, layout):
            return -1
        if codes != none:
            if strange(codes, INT_DTYPE, 8, rows, layout):
                return -1
            return 0 - numbers_of_codes(data_of(codes), data_of(valid), data_of(table), rows_of(table), numbers, rows)
        if strange(texts, OBJECT_DTYPE, 8, rows, layout):
            return -1
        table = data_of(table)
        str_type = peek(layout + 16)
        texts, valid = data_of(texts), data_of(valid)
        unseen = 0
        for row in range(rows):
            number = number_of(peek(texts + 8 * row), table, str_type) if peek_byte(valid + row) else peek(table)
            unseen += number == UNSEEN
            put_int(numbers, row, number, _MAX_OUTPUTS - 1)
        return unseen

    return {"unseen_texts": unseen_texts}


_MAX_OUTPUTS: Final = 64  # that are known not to overlap; the last name is that of all further ones

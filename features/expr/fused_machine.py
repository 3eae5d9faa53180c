"""Machine code of a fused loop, loaded and called. No Numba: LLVM's loader alone, which starts in milliseconds.

A call gives the code two lists of arrays and reads them in place (`fused_memory.py` says how and what it refuses).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from features.expr.columns import CodedTexts, Column
from features.expr.fused import Read, TextRead
from features.expr.fused_ops import host_machine
from features.expr.text_bits import TextBits

_OBJECT_CODE: Final = (b"\x7fELF", b"\xcf\xfa\xed\xfe")  # what ELF and Mach-O files begin with
_INT64: Final = np.dtype(np.int64)  # which NumPy takes at once, where it has to look for one of `np.int64`
_FIRST_ROWS: Final = 4096  # there is room for


class _Method(ctypes.Structure):
    """What CPython calls PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_METH_FASTCALL: Final = 0x80
_new_function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)


class Machine:
    """The functions of one compiled text, by name: built-in functions to Python, of a list, a list and a number. It must
    outlive every call. The interpreter stays locked while one runs: the code reads Python's objects.
    """

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        """Raises: ValueError for what is not object code of this machine. It must be whole: LLVM does not check it."""
        import llvmlite.binding as llvm

        check_layout()
        if not all(code.startswith(_OBJECT_CODE) for code in objects.values()):
            raise ValueError("not object code")  # of which LLVM would say no more: it ends the process
        # The engine owns its description of the machine, and frees it.
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), host_machine())
        for name in ("PyLong_AsLongLong", "PyLong_FromLongLong"):  # what the code calls
            llvm.add_symbol(name, ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value)
        for code in objects.values():
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        self._methods: list[_Method] = []  # the functions point to them
        self.functions: dict[str, Any] = {}
        for name in objects:
            address = self._engine.get_function_address(name)
            if not address:
                raise ValueError(f"the code has no function {name}")
            self._methods.append(_Method(name.encode(), address, _METH_FASTCALL, None))
            self.functions[name] = _new_function(ctypes.addressof(self._methods[-1]), None, None)


def check_layout() -> None:
    """Raises: ValueError under a Python or NumPy whose objects may lie otherwise in memory than `fused_memory.py` says."""
    known = sys.implementation.name == "cpython" and sys.version_info[:2] == (3, 11) and np.__version__.startswith("2.")
    plain = not hasattr(sys, "gettotalrefcount") and sys.maxsize > 2**32 and sys.byteorder == "little"
    if not known or not plain:
        found = f"{sys.implementation.name} {sys.version.split()[0]}, NumPy {np.__version__}"
        raise ValueError(f"fused code reads the objects of 64-bit CPython 3.11 and NumPy 2; this is {found}")


class Kernel:
    """One function with the columns it reads."""

    def __init__(self, machine: Machine, name: str, reads: Sequence[Read], texts: Sequence[TextRead] = ()) -> None:
        self._machine = machine  # keeps the code where it is
        self._call = machine.functions[name]
        self._layout = layout_of(reads)
        self.reads, self.texts = tuple(reads), tuple(texts)
        self._bits = tuple(text.bits for text in texts)
        self._none_failed = np.zeros(_FIRST_ROWS, dtype=np.bool_)

    def run(
        self,
        columns: Sequence[Column],
        texts: Sequence[Column],
        outputs: list[np.ndarray],
        num_rows: int,
        killed: int = 0,
    ) -> None:
        """Fill `outputs`. The columns are in the order of `reads` and `texts`. The numbers of texts are kept in their
        columns, for the next loop that asks the same of them.

        Shapes: columns and texts (num_rows,), or (1,) where shared; outputs (num_rows,), of the types that the text puts, at
                least one.
        Raises: MisfitError for a column that is not as its `Read` says: nothing was written.
        """
        if num_rows > len(self._none_failed):
            self._none_failed = np.zeros(2 * num_rows, dtype=np.bool_)
        inputs: list[Any] = [self._none_failed, *columns]
        new = []
        for at, bits in enumerate(self._bits):  # zip would take longer than all the rest
            items = text_inputs(texts[at], bits)
            if items[3] is not None:  # the table
                new.append((texts[at], bits, len(inputs), items))
            inputs += items
        inputs.append(self._layout)
        found = self._call(inputs, outputs, killed)
        if found < 0:  # texts that were not seen before
            for _, bits, at, items in new:
                fill(bits, items)
                inputs[at : at + 4] = None, None, None, None
            found = self._call(inputs, outputs, killed)
        if found:
            raise MisfitError((*self.reads, *self.texts)[found - 1].name)
        for text, bits, _, items in new:
            text.numbers = bits, items[4]


_TextInputs = tuple[Any, Any, Any, Any, Any]


def text_inputs(text: Column, bits: TextBits) -> _TextInputs:
    """The five items that the code takes of a column of texts: texts, codes, valid, the table, and the numbers."""
    known = text.numbers
    if known is not None and known[0] is bits:
        return None, None, None, None, known[1]
    if text.error is not None and text.error.any():
        return None, None, None, None, bits.column(text).values
    numbers = np.empty(len(text.valid), _INT64)
    if type(text) is CodedTexts:
        return None, text.codes, text.valid, bits.of_dictionary(text.texts), numbers
    return text.values, None, text.valid, bits.table, numbers


def fill(bits: TextBits, items: _TextInputs) -> None:
    """The numbers of unseen texts, in place."""
    if items[0] is not None:
        bits.fill(items[0], items[4])


def slots_of_column() -> list[int]:
    """Bytes from the start of a Column to its values, valid and error: found by looking, for no one says."""
    parts = np.zeros(1), np.ones(1, np.bool_), np.zeros(1, np.bool_)
    column = Column(*parts)
    places = range(object.__basicsize__, Column.__basicsize__, ctypes.sizeof(ctypes.c_int64))
    held = {ctypes.c_int64.from_address(id(column) + place).value: place for place in places}
    return [held[id(part)] for part in parts]


class MisfitError(ValueError):
    """A column is not as the loop was compiled for. `args[0]` is its name."""


def layout_of(reads: Sequence[Read]) -> np.ndarray:
    """What the code checks its inputs against: `ndarray`, None, `str` and `Column` by address, where a column has its values,
    valid and error; then for each column the number of its dtype, bytes a value, whether shared, whether null is expected,
    whether row errors are."""
    layout: list[int] = [id(np.ndarray), id(None), id(str), id(Column), *slots_of_column()]
    for read in reads:
        dtype = np.dtype(read.dtype)
        layout += [dtype.num, dtype.itemsize, read.shared, read.nullable or read.fails, read.fails]
    return np.array(layout, dtype=np.int64)

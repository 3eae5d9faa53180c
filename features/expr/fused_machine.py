"""Machine code of a fused loop, loaded and called. No Numba: LLVM's loader alone, which starts in milliseconds.

A call gives the code two lists of arrays and reads them in place (`fused_ops.py` says how and what it refuses).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

from features.expr.columns import Column
from features.expr.fused import Read

_NONE_FAILED: Final = 4096  # rows of the array that stands in for `error is None`; it grows


class Machine:
    """The functions of one compiled text, by name. It must outlive every call."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        """Raises: ValueError for what is not object code of this machine. It must be whole: LLVM does not check it."""
        import llvmlite.binding as llvm

        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
        try:
            for code in objects.values():
                self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        except RuntimeError as error:
            raise ValueError(f"not object code: {error}") from None
        self._engine.finalize_object()
        made = ctypes.PYFUNCTYPE(
            ctypes.c_int64, ctypes.py_object, ctypes.py_object, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64
        )
        self.functions: dict[str, Any] = {}
        for name in objects:
            address = self._engine.get_function_address(name)
            if not address:
                raise ValueError(f"the code has no function {name}")
            self.functions[name] = made(address)


class Kernel:
    """One function with the columns it reads."""

    def __init__(self, machine: Machine, name: str, reads: Sequence[Read]) -> None:
        self._machine = machine  # keeps the code where it is
        self._call = machine.functions[name]
        self._layout = layout_of(reads)
        self._address = self._layout.ctypes.data
        self._none_failed = np.zeros(_NONE_FAILED, dtype=np.bool_)
        self.reads = tuple(reads)

    def run(self, columns: Sequence[Column], outputs: list[np.ndarray], num_rows: int, killed: int = 0) -> None:
        """Fill `outputs`. The columns are in the order of `reads`.

        Shapes: columns (num_rows,), or (1,) where shared; outputs (num_rows,), of the types that the text puts.
        Raises: MisfitError for a column that is not as its `Read` says: nothing was written.
        """
        if num_rows > len(self._none_failed):
            self._none_failed = np.zeros(2 * num_rows, dtype=np.bool_)
        inputs: list[Any] = [self._none_failed]
        for column in columns:
            inputs += (column.values, column.valid, column.error)
        wrong = self._call(inputs, outputs, self._address, num_rows, killed)
        if wrong:
            raise MisfitError(self.reads[wrong - 1].name)


class MisfitError(ValueError):
    """A column is not as the loop was compiled for. `args[0]` is its name."""


def layout_of(reads: Sequence[Read]) -> np.ndarray:
    """What the code checks its inputs against: the types `ndarray` and None by address, then for each column the
    number of its dtype, bytes a value, whether shared, whether null is expected, whether row errors are."""
    layout: list[int] = [id(np.ndarray), id(None)]
    for read in reads:
        dtype = np.dtype(read.dtype)
        layout += [dtype.num, dtype.itemsize, read.shared, read.nullable or read.fails, read.fails]
    return np.array(layout, dtype=np.int64)


@lru_cache(maxsize=1)
def _machine() -> Any:
    from features.expr.fused_ops import host_machine

    return host_machine()

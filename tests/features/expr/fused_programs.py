"""Many programs as one loop: what the tests of the fused form compile, because a compile costs seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from features.expr import Column, Program, evaluate
from features.expr.fused import DTYPES, Loop
from features.expr.fused_machine import Kernel, Machine
from features.expr.fused_ops import compile_text
from features.expr.ssa import Graph, Input

PUTS = {"bool": "put_bool", "int64": "put_int", "float64": "put_double"}


class FusedPrograms:
    """All programs in one loop; those that a loop cannot yield (texts, lists) are left out of `fused`."""

    def __init__(self, programs: Sequence[Program], inputs: Mapping[str, Input]) -> None:
        self.graph = Graph(inputs)
        self.loop = Loop(self.graph)
        self.fused: list[tuple[Program, str]] = []
        outputs = 0
        for program in programs:
            dtype = DTYPES.get(program.type.kind)
            if dtype is None or program.type.kind == "null":
                continue
            parts = self.loop.need(self.graph.add(program))[0]
            for put, value in ((PUTS[dtype], parts.value), ("put_bool", parts.ok), ("put_bool", parts.bad)):
                self.loop.body.append(f"{put}(out{outputs}, i, {value}, {outputs})")
                outputs += 1
            self.fused.append((program, dtype))
        self.text = self.loop.text("programs", outputs)
        self.machine = Machine(compile_text(self.text, ["programs"]))
        self.kernel = Kernel(self.machine, "programs", self.loop.reads, self.loop.texts)

    def run(self, columns: Mapping[str, Column], num_rows: int) -> list[Column]:
        """One column a program of `fused`."""
        given = []
        for read in self.loop.reads:
            value = self.graph.values[read.number]
            made = columns[value.const.name] if isinstance(value.const, Input) else evaluate(value.const, columns)
            given.append(made if read.shared or len(made) == num_rows else wide(made, num_rows))
        texts = [columns[read.name] for read in self.loop.texts]
        outputs: list[np.ndarray] = []
        for _, dtype in self.fused:
            outputs += [np.empty(num_rows, dtype), np.empty(num_rows, bool), np.empty(num_rows, bool)]
        self.kernel.run(given, texts, outputs, num_rows)
        return [Column(*outputs[at : at + 3]) for at in range(0, len(outputs), 3)]


def wide(column: Column, num_rows: int) -> Column:
    parts = (column.values, column.valid, column.error)
    return Column(*(None if part is None else np.array(np.broadcast_to(part, num_rows)) for part in parts))

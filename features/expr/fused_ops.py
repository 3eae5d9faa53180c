"""What the text of a fused loop (`fused.py`) may call, and how Numba turns that text into machine code.

Each operation is one or a few instructions, given to Numba as such: typing a call of its own is cheaper than Numba's general
routes, and none of them may branch, reassociate or contract. Only the process that compiles imports Numba; the machine
code alone goes to whoever runs it (`fused_machine.py`).

`fused_memory.py` has the ones that read and write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

from features.expr.fused_memory import memory, texts

# A function of METH_FASTCALL around the compiled one: a call through ctypes takes longer than the loop over a few dozen rows.
# Numba's functions return a status and put the result where they are told; the texts here raise nothing, so it is always 0.
_ENTRY: Final = """\
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare i32 @{native}(ptr, ptr, i64, i64, i64)

define ptr @{name}(ptr %self, ptr %args, i64 %count) {{
  %result = alloca i64
  %raised = alloca ptr
  %inputs = load i64, ptr %args
  %second = getelementptr i64, ptr %args, i64 1
  %outputs = load i64, ptr %second
  %third = getelementptr i64, ptr %args, i64 2
  %asked = load ptr, ptr %third
  %killed = call i64 @PyLong_AsLongLong(ptr %asked)
  %status = call i32 @{native}(ptr %result, ptr %raised, i64 %inputs, i64 %outputs, i64 %killed)
  %found = load i64, ptr %result
  %said = call ptr @PyLong_FromLongLong(i64 %found)
  ret ptr %said
}}
"""


def compile_text(text: str, names: Iterable[str]) -> dict[str, bytes]:
    """The functions of that text as object code for this machine's processor, each with the symbol `name`.

    Python calls that symbol as one of its own built-in functions: see `_ENTRY`.
    Takes about a second for a strategy of 24 rules; what Numba raises is the caller's to report.
    """
    import llvmlite.binding as llvm
    from numba import cfunc, types

    namespace: dict[str, Any] = dict(operations())
    exec(compile(text, "<fused>", "exec"), namespace)
    signature = types.int64(*[types.int64] * 3)
    out = {}
    for name in names:
        made = cfunc(signature, error_model="numpy")(namespace[name])
        module = llvm.parse_assembly(_without(made.inspect_llvm(), made.native_name))
        module.link_in(llvm.parse_assembly(_ENTRY.format(name=name, native=made.native_name.removeprefix("cfunc."))))
        out[name] = host_machine().emit_object(module)
    return out


def _without(text: str, name: str) -> str:
    """LLVM's text without the definition of a function.

    Numba's own entry for C calls functions that only a process with Numba has, and LLVM's loader resolves the outer names of
    an object all or none: one that is missing leaves zeros for those that are there.
    """
    kept, removed = re.subn(rf"^define [^\n]*@{re.escape(name)}\(.*?^}}\n", "", text, flags=re.DOTALL | re.MULTILINE)
    if removed != 1:
        raise ValueError(f"{removed} definitions of {name} in what Numba made")
    return kept


def host_machine() -> Any:
    """LLVM's description of this machine."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="default",
        codemodel="jitdefault",
        jit=True,
    )


@lru_cache(maxsize=1)
def operations() -> dict[str, Any]:
    """The names of the text."""
    names = {**_instructions(), **memory()}
    return {**names, **texts(names), "INF": float("inf"), "NAN": float("nan")}


def _instructions() -> dict[str, Any]:
    """Arithmetic and flags."""
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    flag, whole, real = types.boolean, types.int64, types.float64

    def operation(signature: Any, emit: Callable[..., Any]) -> Any:
        def typed(context: Any, *args: Any) -> Any:
            return signature, lambda target, builder, sig, values: emit(builder, *values)

        return intrinsic(_with_arity(typed, len(signature.args)))

    def unary(name: str) -> Any:
        def emit(builder: Any, a: Any) -> Any:
            return builder.call(builder.module.declare_intrinsic(f"llvm.{name}", [a.type]), [a])

        return operation(real(real), emit)

    def round_away(builder: Any, a: Any) -> Any:
        """Half away from zero, as interpret._round."""
        double = a.type
        trunc, fabs = (builder.module.declare_intrinsic(f"llvm.{name}", [double]) for name in ("trunc", "fabs"))
        two = ir.FunctionType(double, [double, double])
        copysign = builder.module.declare_intrinsic("llvm.copysign", [double], two)
        cut = builder.call(trunc, [a])
        rest = builder.call(fabs, [builder.fsub(a, cut)])
        away = builder.fadd(cut, builder.call(copysign, [double(1.0), a]))
        return builder.select(builder.fcmp_ordered(">=", rest, double(0.5)), away, cut)

    def select(context: Any, test: Any, a: Any, b: Any) -> Any:
        kind = types.unliteral(a)
        return kind(flag, kind, kind), lambda target, builder, sig, values: builder.select(*values)

    return {
        "both": operation(flag(flag, flag), lambda b, x, y: b.and_(x, y)),
        "either": operation(flag(flag, flag), lambda b, x, y: b.or_(x, y)),
        "differ": operation(flag(flag, flag), lambda b, x, y: b.xor(x, y)),
        "flip": operation(flag(flag), lambda b, x: b.xor(x, x.type(1))),
        "select": intrinsic(select),
        "to_double": operation(real(whole), lambda b, x: b.sitofp(x, ir.DoubleType())),
        "to_int": operation(whole(real), lambda b, x: b.fptosi(x, ir.IntType(64))),
        "to_bits": operation(whole(flag), lambda b, x: b.zext(x, ir.IntType(64))),
        "divide": operation(real(real, real), lambda b, x, y: b.fdiv(x, y)),
        "quotient": operation(whole(whole, whole), lambda b, x, y: b.sdiv(x, y)),
        "remainder": operation(whole(whole, whole), lambda b, x, y: b.srem(x, y)),
        "shifted": operation(whole(whole, whole), lambda b, x, y: b.lshr(x, b.and_(y, ir.IntType(64)(63)))),
        "raised": operation(whole(whole, whole), lambda b, x, y: b.shl(x, b.and_(y, ir.IntType(64)(63)))),
        "lowest": operation(whole(), lambda b: ir.IntType(64)(-(2**63))),
        "round_away": operation(real(real), round_away),
        **{name: unary(name) for name in ("floor", "ceil", "trunc", "fabs", "sqrt")},
    }


def _with_arity(typed: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Numba reads the number of arguments from the signature of the function."""
    forms: dict[int, Callable[..., Any]] = {
        0: lambda context: typed(context),
        1: lambda context, a: typed(context, a),
        2: lambda context, a, b: typed(context, a, b),
    }
    return forms[count]

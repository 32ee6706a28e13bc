"""What kernels are written in: numba's Python with some additions; and the object code of all of them.

`carray(floats_at(address), shape)` is the memory at an address as an array; where its dtype varies, there is one array
per dtype. All arithmetic is float32.
"""

import math
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba import from_dtype, njit, types
from numba.extending import intrinsic

from pellucid.blocks.kernel_arguments import ProductTable

EXTERNAL_SYMBOLS = {"omp_get_thread_num", "omp_get_num_threads", "sqrtf", "memset", "memcpy", "memmove"}
"""Symbols that the kernels may call: each process with PyTorch has them."""

KERNELS: dict[str, Any] = {}
"""Kernels by name: void (call *), where `call` has the type that the kernel was declared with."""

FAST_MATH = {"reassoc", "contract", "nsz", "arcp"}
"""Sums may be reordered, as in every library; NaN remains NaN."""

kernel_helper = njit(fastmath=FAST_MATH, error_model="numpy")
"""Decorator for functions that kernels call."""

float32, int8, int32, int64 = types.float32, types.int8, types.int32, types.int64

thread_number = types.ExternalFunction("omp_get_thread_num", types.int32())
thread_count = types.ExternalFunction("omp_get_num_threads", types.int32())


def _pointer_to(kind: Any) -> Any:
    """The type of pointers to this structure."""
    return types.CPointer(from_dtype(np.dtype(kind)))


def kernel(call: Any) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Decorator for a kernel whose argument is a `call` record."""
    options: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

    def register(function: Callable[[Any], None]) -> Callable[[Any], None]:
        KERNELS[function.__name__] = njit(types.void(_pointer_to(call)), fastmath=FAST_MATH, **options)(function)
        return function

    return register


def _cast(name: str, result: Any, source: Any) -> Any:
    """An LLVM cast instruction, which numba does not expose."""

    def typed(context: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, numbers: Any) -> Any:
            return getattr(builder, name)(numbers[0], context.get_value_type(result))

        return result(source), generate

    return intrinsic(typed)


floats_at = _cast("inttoptr", types.CPointer(types.float32), int64)
uint16s_at = _cast("inttoptr", types.CPointer(types.uint16), int64)
bytes_at = _cast("inttoptr", types.CPointer(types.int8), int64)
int32s_at = _cast("inttoptr", types.CPointer(types.int32), int64)
tables_at = _cast("inttoptr", _pointer_to(ProductTable), int64)
_of_bits = _cast("bitcast", types.float32, types.int32)
_bits = _cast("bitcast", types.int32, types.float32)


@kernel_helper
def from_bfloat16(half: Any) -> Any:
    """Converts bfloat16, which is the upper half of a float32."""
    return _of_bits(np.int32(np.uint32(half) << np.uint32(16)))


@kernel_helper
def to_bfloat16(number: Any) -> Any:
    """Rounds to bfloat16, to even in a tie; NaN remains NaN."""
    bits = np.uint32(_bits(number))
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.uint16(rounded if number == number else np.uint32(0x7FC0))


LOG_2_E = 1.4426950408889634

SERIES = tuple(math.log(2) ** n / math.factorial(n) for n in range(6, -1, -1))
"""Coefficients of 2^rest, the last term first: (rest ln 2)^n / n!"""


@kernel_helper
def exponential(x: Any) -> Any:
    """e^x to nearly full float32 precision, at least 2^-126: 2^whole by the exponent bits, and 2^rest, |rest| <= 1/2,
    by its series up to n = 6."""
    y = min(max(x * np.float32(LOG_2_E), np.float32(-126.0)), np.float32(128.0))
    rounded = np.rint(y)
    rest = y - rounded
    power = np.float32(SERIES[0])
    for i in range(1, len(SERIES)):
        power = power * rest + np.float32(SERIES[i])
    return power * _of_bits((np.int32(rounded) + np.int32(127)) << np.int32(23))


def object_code(machine: llvm.TargetMachine) -> bytes:
    """All kernels as one object file, each callable by its name."""
    linked = llvm.parse_assembly("")
    for name, kernel in KERNELS.items():
        module = llvm.parse_assembly(kernel.inspect_llvm(kernel.signatures[0]))
        inner = next(one.name for one in module.functions if not one.is_declaration and not one.name.startswith("NRT"))
        linked.link_in(module)
        # numba's calling convention: where the result goes, where an error goes, and the arguments
        linked.link_in(
            llvm.parse_assembly(f"""
            declare i32 @"{inner}"(ptr, ptr, ptr)
            define void @{name}(ptr %args) {{
              %result = alloca ptr
              %error = alloca ptr
              %done = call i32 @"{inner}"(ptr %result, ptr %error, ptr %args)
              ret void
            }}""")
        )
    for one in [*linked.functions, *linked.global_variables]:
        if not one.is_declaration and one.name not in KERNELS:
            one.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(linked, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    _check_self_contained(linked)
    return machine.emit_object(linked)


def _check_self_contained(linked: llvm.ModuleRef) -> None:
    """Raises RuntimeError if the code calls functions that only numba has: a later process, without numba, would not
    have them."""
    declared = [one.name for one in [*linked.functions, *linked.global_variables] if one.is_declaration]
    strange = [name for name in declared if name not in EXTERNAL_SYMBOLS and not name.startswith("llvm.")]
    if strange:
        raise RuntimeError(
            f"the kernels call {', '.join(strange)}, so numba was told not to optimize: unset NUMBA_OPT, "
            "NUMBA_DEBUGINFO and the like in the environment"
        )

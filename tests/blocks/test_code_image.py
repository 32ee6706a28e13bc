"""Position-independent machine code, compared with what LLVM's own linker makes of the same code."""

import ctypes
import platform
import sys

import pytest
import torch

from pellucid.blocks import code_image, machine_code
from pellucid.blocks.availability import usable_kernels
from pellucid.blocks.code_image import Image, link
from pellucid.blocks.kernel_calls import PlainTable
from pellucid.errors import ResourceError
from tests.torch_state import forget_kernels

llvm = pytest.importorskip("llvmlite.binding")
pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux", reason="images are of x86-64, on Linux"
)

ASSEMBLY = """
@table = {private} [4 x i64] [i64 11, i64 22, i64 33, i64 44], align 64

declare i64 @labs(i64)

define i64 @chosen(i64 %which) {
  %place = getelementptr [4 x i64], ptr @table, i64 0, i64 %which
  %number = load i64, ptr %place
  ret i64 %number
}

define i64 @distance(i64 %a, i64 %b) {
  %less = sub i64 %a, %b
  %size = call i64 @labs(i64 %less)
  ret i64 %size
}
"""


def object_code(private: str = "private unnamed_addr constant", **options: str) -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(**options)
    return machine.emit_object(llvm.parse_assembly(ASSEMBLY.replace("{private}", private)))


POSITION_INDEPENDENT = {"reloc": "pic", "codemodel": "small"}


def test_code_finds_its_constants_and_external_functions_at_any_address() -> None:
    code = link(object_code(**POSITION_INDEPENDENT))
    images = [Image(code) for _ in range(3)]
    addresses = [one.address("chosen") for one in images]
    assert len(set(addresses)) == 3
    for one in images:
        chosen = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(one.address("chosen"))
        distance = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(one.address("distance"))
        assert [chosen(i) for i in range(4)] == [11, 22, 33, 44]
        assert [distance(3, 10), distance(10, 3), distance(-5, -5)] == [7, 7, 0]


def test_relocation_inside_the_code_is_refused() -> None:
    with pytest.raises(RuntimeError, match="the compiled code has an unsupported relocation, type 1"):
        link(object_code(reloc="static", codemodel="large"))


def test_writable_data_is_refused() -> None:
    """An image is read and executed, and must never be written."""
    with pytest.raises(RuntimeError, match=r"the compiled code writes into \.data"):
        link(object_code("global", **POSITION_INDEPENDENT))


def test_process_that_may_not_execute_memory_gets_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    code = link(object_code(**POSITION_INDEPENDENT))
    monkeypatch.setattr(
        code_image.mmap, "PROT_EXEC", 1 << 20
    )  # which the system refuses just as it refuses the real flag elsewhere
    with pytest.raises(ResourceError, match="does not let a process run code that it has compiled"):
        Image(code)


@pytest.mark.parametrize("links", [True, False], ids=["image", "linked again"])
def test_kernels_run_linked_once_or_in_each_process(
    links: bool, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On other kinds of processor LLVM links the code: this one simulates it."""
    pytest.importorskip("numba")
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path))
    monkeypatch.setattr(machine_code, "LINKS_AHEAD", links)
    x, table = torch.randn(2, 96), torch.randn(40, 96)
    for _ in range(2):  # first compiled, then read from the cache
        forget_kernels()
        kernels = usable_kernels()
        assert kernels is not None and isinstance(kernels.code, Image) is links
        torch.testing.assert_close(kernels.product(x, [PlainTable(table)]), x @ table.T, rtol=1e-5, atol=1e-5)
    forget_kernels()

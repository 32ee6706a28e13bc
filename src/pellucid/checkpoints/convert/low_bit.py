"""Dequantises low-bit tables: those with a scale, and those in blocks of four or eight bits."""

import torch
from torch import Tensor

from pellucid.checkpoints.convert.constants import ConstantTensor, dequantise, dequantize_linear
from pellucid.checkpoints.convert.graph import FLOAT_TYPES, Node
from pellucid.checkpoints.convert.steps import Steps


def dequantise_lookup(steps: Steps, node: Node, table: ConstantTensor) -> tuple[ConstantTensor, str]:
    """The dequantised table of a lookup, and its output, since dequantisation may follow the lookup."""
    output = node.outputs[0]
    after = steps.graph.only_consumer(output, ["DequantizeLinear"])
    scale = steps.constants.get(after.input(1)) if after is not None and after.input(0) == output else None
    if after is None or scale is None:
        return table, output
    zero = steps.constants.get(after.input(2)) if after.input(2) else None
    numbers = dequantize_linear(after.attributes, table.numbers, scale.numbers, zero.numbers if zero else None)
    return ConstantTensor(steps.constants.count_bytes(numbers), _sources(table, scale, zero)), after.outputs[0]


def dequantise_blocks(steps: Steps, node: Node) -> ConstantTensor:
    """The table of ONNX Runtime's MatMulNBits, `[out, in]`."""
    bits, block = node.attributes.get("bits", 4), node.attributes.get("block_size", 0)
    if bits not in (4, 8) or block < 16 or block & (block - 1) or node.input(4):
        order = ", reordered (g_idx)" if node.input(4) else ""
        raise steps.not_understood_error(
            f"{node} keeps {bits} bits in blocks of {block}{order}; "
            "4 or 8 bits in plain blocks of 16, 32, 64, ... are understood"
        )
    packed, scale = (steps.constants.get(node.input(i)) for i in (1, 2))
    zero = steps.constants.get(node.input(3)) if node.input(3) else None
    if packed is None or scale is None or (node.input(3) and zero is None):
        raise steps.not_understood_error(f"{node} computes its blocks instead of holding them")
    shape = (int(node.attributes.get("N", 0)), int(node.attributes.get("K", 0)))
    try:
        table = unpack_blocks(packed.numbers, scale.numbers, zero.numbers if zero else None, shape, block, bits)
    except RuntimeError as error:
        raise steps.not_understood_error(
            f"{node} has blocks that do not make a table of {shape[0]} x {shape[1]}"
        ) from error
    return ConstantTensor(steps.constants.count_bytes(table), _sources(packed, scale, zero))


def unpack_blocks(
    packed: Tensor, scale: Tensor, zero: Tensor | None, shape: tuple[int, int], block: int, bits: int
) -> Tensor:
    """The dequantised table of `shape` `[out, in]`, whose rows consist of blocks with a scale each.

    packed: bytes `[out, blocks, block * bits / 8]`; of two values in a byte the low half is the first.
    scale: floats, `out * blocks` of them.
    zero: zero points, packed as the values are with each row padded to whole bytes, or floats like the scale; None for
        the middle, 8 of 16.
    """
    rows, width = shape
    count = -(-width // block)
    numbers = unpacked(packed.reshape(rows, count, block * bits // 8), bits)
    scale = scale.reshape(rows, count, 1)
    if zero is None:
        zero_point = torch.full_like(scale, 2 ** (bits - 1))
    elif zero.is_floating_point():
        zero_point = zero.reshape(rows, count, 1).to(scale.dtype)
    else:
        zero_point = unpacked(zero.reshape(rows, -1), bits)[:, :count, None].to(scale.dtype)
    return ((numbers.to(scale.dtype) - zero_point) * scale).reshape(rows, count * block)[:, :width]


def unpacked(packed: Tensor, bits: int) -> Tensor:
    """Unpacks bytes `[..., n]` into integers `[..., n * 8 / bits]`; the low half of a byte is the first."""
    return packed if bits == 8 else torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)


def dequantise_integer_product(steps: Steps, node: Node) -> tuple[ConstantTensor, str]:
    """The dequantised table `[in, out]` of an integer product, and the value after its scales are applied."""
    table = steps.constants.table(node.input(1))
    zero = steps.constants.get(node.input(3)) if node.input(3) else None
    cast = steps.graph.only_consumer(node.outputs[0], ["Cast"])
    cast = cast if cast and cast.attributes.get("to") in FLOAT_TYPES else None
    scaled = steps.graph.only_consumer(cast.outputs[0], ["Mul"]) if cast else None
    others = [name for name in scaled.inputs if name not in cast.outputs] if cast and scaled else []
    product = steps.graph.producers.get(others[0]) if others else None
    scales = [part for name in (product.inputs if product else ()) if (part := steps.constants.get(name))]
    producer = steps.graph.producers.get(node.input(0))
    computed = {name for name in (product.inputs if product else ()) if steps.constants.get(name) is None}
    has_dynamic_scale = (
        producer is not None
        and computed == set(producer.outputs[1:2])
        and node.input(2) in (*producer.outputs[2:3], "")
    )
    if (
        table is None
        or scaled is None
        or len(scales) != 1
        or not has_dynamic_scale
        or (product and product.op_type != "Mul")
    ):
        raise steps.not_understood_error(
            f"{node} multiplies whole numbers, and the scale of its table does not follow it"
        )
    numbers = dequantise(table.numbers, scales[0].numbers, zero.numbers if zero else None, axis=1)
    return ConstantTensor(steps.constants.count_bytes(numbers), _sources(table, scales[0], zero)), scaled.outputs[0]


def _sources(*parts: ConstantTensor | None) -> frozenset[str]:
    return frozenset().union(*(part.sources for part in parts if part is not None))

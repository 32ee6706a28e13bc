"""Reads steps with learned tensors as exporters and optimisers write them; one function per operation."""

from collections.abc import Callable, Iterable, Iterator

from pellucid.bars import progress_bar
from pellucid.checkpoints.convert.constants import Constants, ConstantTensor
from pellucid.checkpoints.convert.graph import Graph, Node, printable
from pellucid.checkpoints.convert.low_bit import dequantise_blocks, dequantise_integer_product, dequantise_lookup
from pellucid.checkpoints.convert.steps import Linear, Lookup, Norm, Step, Steps
from pellucid.errors import PellucidError


def read_steps(graph: Graph, progress: bool | None) -> Steps:
    """Every step of a graph, with its tensors; shows a progress bar where that takes more than a second."""
    found = Steps(graph, Constants(graph))
    for node in progress_bar("reading", graph.nodes, unit=" operations", shown=progress):
        if node.op_type in _STEP_READERS:
            try:
                found.by_output |= {step.output: step for step in _STEP_READERS[node.op_type](found, node)}
            except PellucidError:
                raise
            except (TypeError, ValueError, IndexError, RuntimeError, OverflowError) as error:
                raise found.not_understood_error(f"{node} has settings or inputs that it cannot have") from error
    return found


def _gather(steps: Steps, node: Node) -> Iterator[Step]:
    table = steps.constants.table(node.input(0))
    if table is not None and node.attributes.get("axis", 0) == 0:
        table, output = dequantise_lookup(steps, node, table)
        if table.numbers.is_floating_point():
            yield Lookup((node.input(1),), output, node, table)


def _matmul(steps: Steps, node: Node) -> Iterator[Step]:
    table = steps.constants.table(node.input(1))
    if table is not None and steps.constants.get(node.input(0)) is None:
        yield Linear((node.input(0),), node.outputs[0], node, table.transposed())


def _gemm(steps: Steps, node: Node) -> Iterator[Step]:
    table, attributes = steps.constants.table(node.input(1)), node.attributes
    if table is None:
        return
    if attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0 or attributes.get("transA", 0):
        raise steps.not_understood_error(f"{node} scales or transposes its input, which is not understood")
    bias = _bias(steps, node, 2)
    yield Linear(
        (node.input(0),), node.outputs[0], node, table if attributes.get("transB", 0) else table.transposed(), bias
    )


def _matmul_n_bits(steps: Steps, node: Node) -> Iterator[Step]:
    bias = _bias(steps, node, 5)
    yield Linear((node.input(0),), node.outputs[0], node, dequantise_blocks(steps, node), bias)


def _matmul_integer(steps: Steps, node: Node) -> Iterator[Step]:
    if steps.constants.table(node.input(1)) is not None:
        table, output = dequantise_integer_product(steps, node)
        yield Linear((node.input(0),), output, node, table.transposed())


def _add(steps: Steps, node: Node) -> Iterator[Step]:
    """Attaches a bias to the product before it."""
    for left, right in (node.inputs, node.inputs[::-1]):
        step, bias = steps.source_step(right), steps.constants.vector(left)
        if bias is None or not isinstance(step, Linear) or step.bias is not None:
            continue
        if step.weight.shape[0] == bias.shape[0] and steps.is_read_only_by(step, node):
            del steps.by_output[step.output]
            yield Linear(step.inputs, node.outputs[0], step.node, step.weight, bias)
            return


def _layer_normalization(steps: Steps, node: Node) -> Iterator[Step]:
    return _norm(steps, node, (node.input(0),), node.outputs[0], node.input(1), node.input(2))


def _skip_layer_normalization(steps: Steps, node: Node) -> Iterator[Step]:
    """ONNX Runtime's fused residual sum, bias of the product before it, and normalisation."""
    if node.input(4):
        _attach_bias(steps, node, node.input(0), _bias(steps, node, 4))
    yield from _norm(steps, node, node.inputs[:2], node.outputs[0], node.input(2), node.input(3), epsilon=1e-12)


def _embed_layer_normalization(steps: Steps, node: Node) -> Iterator[Step]:
    """ONNX Runtime's three fused lookups and their norm; positions are generated inside."""
    inputs = (node.input(0), node.input(8), node.input(1))
    names = [f"{node.outputs[0]}/{part}" for part in ("words", "positions", "types")]
    for indices, table, name in zip(inputs, node.inputs[2:5], names):
        if table and (found := steps.constants.table(table)):
            yield Lookup((indices,), name, node, found)
    yield from _norm(steps, node, tuple(names), node.outputs[0], node.input(5), node.input(6), epsilon=1e-12)


def _multi_head_attention(steps: Steps, node: Node) -> Iterable[Step]:
    """ONNX Runtime's attention after the query, key and value products, whose biases it may hold concatenated."""
    bias = _bias(steps, node, 3)
    if bias is not None:
        for i, value in enumerate(node.inputs[:3]):
            width = bias.shape[0] // 3
            _attach_bias(steps, node, value, ConstantTensor(bias.numbers[i * width : (i + 1) * width], bias.sources))
    return ()


def _bias_gelu(steps: Steps, node: Node) -> Iterable[Step]:
    """ONNX Runtime's fused bias and activation."""
    if node.input(1):
        _attach_bias(steps, node, node.input(0), _bias(steps, node, 1))
    return ()


def _bias(steps: Steps, node: Node, index: int) -> ConstantTensor | None:
    """The vector that an operation adds; None where it is omitted. Refuses one that is computed."""
    if not node.input(index):
        return None
    found = steps.constants.vector(node.input(index))
    if found is None:
        raise steps.not_understood_error(
            f"{node} adds something other than a vector of the file ({printable(node.input(index))})"
        )
    return found


def _attach_bias(steps: Steps, node: Node, value: str, bias: ConstantTensor | None) -> None:
    step = steps.source_step(value)
    if not isinstance(step, Linear) or step.bias is not None or bias is None:
        raise steps.not_understood_error(f"{node} adds a bias to something other than a product")
    step.bias = bias


def _attention(steps: Steps, node: Node) -> Iterator[Step]:
    """ONNX Runtime's attention that contains the query, key and value products: one table `[hidden, 3 * hidden]`."""
    table = steps.constants.table(node.input(1))
    if table is None or "num_heads" not in node.attributes:
        return
    bias, width = _bias(steps, node, 2), table.shape[1] // 3
    if node.attributes.get("qkv_hidden_sizes", [width] * 3) != [width] * 3 or table.shape[1] != 3 * width:
        raise steps.not_understood_error(
            f"{node} makes query, key and value of different widths, which is not understood"
        )
    for i in range(3):
        columns = slice(i * width, (i + 1) * width)
        own_bias = bias and ConstantTensor(bias.numbers[columns], bias.sources)
        weight = ConstantTensor(table.numbers[:, columns], table.sources).transposed()
        yield Linear((node.input(0),), f"{node.outputs[0]}/{i}", node, weight, own_bias)
    steps.fused_steps[node.outputs[0]] = tuple(f"{node.outputs[0]}/{i}" for i in range(3))


def _div(steps: Steps, node: Node) -> Iterator[Step]:
    """A decomposed normalisation: (x - mean) / sqrt(variance + epsilon) * weight + bias."""
    constants = steps.constants
    centered, root = _producer(steps.graph, node.input(0)), _producer(steps.graph, node.input(1))
    if centered is None or root is None or centered.op_type != "Sub" or root.op_type != "Sqrt":
        return
    inner = _producer(steps.graph, root.input(0))
    terms = [constants.number(name) for name in inner.inputs] if inner and inner.op_type == "Add" else []
    epsilon = next((number for number in terms if number is not None), None)
    scaled = _next_consumer(steps.graph, node.outputs[0], "Mul")
    shifted = _next_consumer(steps.graph, scaled.outputs[0], "Add") if scaled else None
    if epsilon is None or scaled is None or shifted is None:
        return
    names = [next((name for name in part.inputs if constants.vector(name)), "") for part in (scaled, shifted)]
    yield from _norm(steps, node, (centered.input(0),), shifted.outputs[0], *names, epsilon=epsilon)


def _producer(graph: Graph, name: str) -> Node | None:
    """The producer of a value, before any cast: half precision is normalised in single precision."""
    node = graph.producers.get(name)
    return graph.producers.get(node.input(0)) if node is not None and node.op_type == "Cast" else node


def _next_consumer(graph: Graph, name: str, op_type: str) -> Node | None:
    while (cast := graph.only_consumer(name, ["Cast"])) is not None:
        name = cast.outputs[0]
    return graph.only_consumer(name, [op_type])


def _norm(
    steps: Steps, node: Node, inputs: tuple[str, ...], output: str, weight: str, bias: str, *, epsilon: float = 1e-5
) -> Iterator[Step]:
    scale, shift = steps.constants.vector(weight), steps.constants.vector(bias)
    if shift is None and bias:
        raise steps.not_understood_error(f"{node} adds something other than a vector of the file ({printable(bias)})")
    if scale is not None:
        zeros = scale.numbers.new_zeros(()).expand(scale.shape)  # exporters omit an all-zero bias
        shift = shift or ConstantTensor(zeros, frozenset())
        yield Norm(inputs, output, node, scale, shift, float(node.attributes.get("epsilon", epsilon)))


_STEP_READERS: dict[str, Callable[[Steps, Node], Iterable[Step]]] = {
    "Gather": _gather,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "FusedGemm": _gemm,
    "MatMulNBits": _matmul_n_bits,
    "MatMulInteger": _matmul_integer,
    "Add": _add,
    "LayerNormalization": _layer_normalization,
    "SkipLayerNormalization": _skip_layer_normalization,
    "EmbedLayerNormalization": _embed_layer_normalization,
    "BiasGelu": _bias_gelu,
    "FastGelu": _bias_gelu,
    "Attention": _attention,
    "MultiHeadAttention": _multi_head_attention,
    "Div": _div,
}

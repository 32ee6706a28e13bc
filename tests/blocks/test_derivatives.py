"""Derivatives through models of 8 and 4 bits: compiled steps that would cut the graph are bypassed in every case."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import pellucid
from pellucid.blocks.cache import Cache
from pellucid.edits import add
from tests.checkpoints.families import TINY, save

BITS = pytest.mark.parametrize("bits", [8, 4])
POSITIONS = pytest.mark.parametrize("rows", [1, 43], ids=["few", "many"])
"""From 512 positions on, kernels compute attention, and sums with their norms."""

TOLERANCE = {8: 0.05, 4: 0.35}
"""The largest relative error of a derivative compared with float32, since the weights are rounded."""


@pytest.fixture(scope="module", params=["llama", "gpt2", "bert"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    wide = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 96, "head_dim": 16}
    sizes = {name: size for name, size in wide.items() if name in TINY[request.param]}
    return save(request.param, tmp_path_factory.mktemp("models") / request.param, **sizes)


def ids(rows: int) -> Tensor:
    return torch.randint(5, 90, (rows, 12), generator=torch.Generator().manual_seed(1))


def loss(model: pellucid.Model, rows: int) -> Tensor:
    logits = model(ids(rows)).logits.float()
    return (logits[..., 3] * torch.arange(1.0, 13)).sum()


def relative_error(found: Tensor | None, expected: Tensor | None) -> float:
    assert found is not None and expected is not None
    return float((found - expected).norm() / expected.norm())


def low_bit_error(folder: Path, bits: int, derivative: Callable[[pellucid.Model], Tensor | None]) -> float:
    """The relative difference of a result between a low-bit model and a float32 one."""
    return relative_error(*(derivative(pellucid.load(folder, dtype=dtype)) for dtype in (f"int{bits}", "float32")))


@BITS
@POSITIONS
def test_norms_get_gradients(folder: Path, rows: int, bits: int) -> None:
    found: list[dict[str, Tensor | None]] = []
    for dtype in (f"int{bits}", "float32"):
        model = pellucid.load(folder, dtype=dtype)
        model.freeze("*")
        model.unfreeze("layers.*norm*")
        loss(model, rows).backward()
        found.append({name: one.grad for name, one in model.named_parameters() if one.requires_grad})
    low_bit, float32 = found
    assert low_bit.keys() == float32.keys() and len(low_bit) >= 4
    assert max(relative_error(low_bit[name], float32[name]) for name in low_bit) < TOLERANCE[bits]


@BITS
@POSITIONS
@pytest.mark.parametrize("point", ["query", "key", "value"])
def test_inputs_of_attention_get_gradients(folder: Path, rows: int, bits: int, point: str) -> None:
    def gradient(model: pellucid.Model) -> Tensor | None:
        model.freeze("*")
        name, offsets = f"layers.0.attention.{point}", list[Tensor]()

        def add_offset(heads: Tensor) -> Tensor:
            offsets.append(torch.zeros(heads.shape[1:], requires_grad=True))
            return heads + offsets[0]

        with model.edit({name: add_offset}):
            loss(model, rows).backward()
        return offsets[0].grad

    assert low_bit_error(folder, bits, gradient) < TOLERANCE[bits]


@BITS
def test_gradient_through_a_cached_prefix(folder: Path, bits: int) -> None:
    """The gradient equals that of a single pass."""
    if folder.name == "bert":
        pytest.skip("it remembers nothing")
    model, vector, gradients = pellucid.load(folder, dtype=f"int{bits}"), torch.zeros(64, requires_grad=True), []
    whole, edit = ids(1), {"layers.0.residual.pre": add(vector, position=slice(0, 10))}
    with model.edit(edit):
        once = model.module(whole).logits
    cache = Cache(2, 12)
    with model.edit(edit):
        model.module(whole[:, :10], cache=cache)
    steps = [model.module(whole[:, i : i + 1], cache=cache).logits for i in (10, 11)]
    for last in (once[:, -1], steps[-1][:, -1]):
        vector.grad = None
        last[..., 3].sum().backward(retain_graph=True)
        gradients.append(vector.grad)
    assert relative_error(gradients[1], gradients[0]) < 0.05


@pytest.mark.parametrize("dtype", ["float32", "int8", "int4"])
@pytest.mark.parametrize("between", ["a pass without", "fewer", "another order", "more", "the same behind others"])
def test_step_without_gradients_cuts_only_its_own_part(folder: Path, dtype: str, between: str) -> None:
    """After a pass without gradients, or a selection of rows without them, the gradient of a later pass lacks only what
    the pass without gradients contributed."""
    if folder.name == "bert":
        pytest.skip("it remembers nothing")
    model, gradients = pellucid.load(folder, dtype=dtype), []
    model.freeze("*")
    chosen = {"fewer": [1], "another order": [2, 1, 0], "more": [0, 0, 1, 2], "the same behind others": [0, 2, 1]}
    for grad in (True, False):
        vector, cache = torch.zeros(64, requires_grad=True), Cache(2, 12)
        with model.edit({"layers.0.residual.pre": add(vector)}):
            model.module(ids(3)[:, :5], cache=cache)
        now = ids(3)
        with torch.set_grad_enabled(grad):
            if between == "a pass without":
                with model.edit({"layers.0.residual.pre": lambda stream: stream.detach()}):
                    model.module(now[:, 5:8], cache=cache)
            else:
                rows = torch.tensor(chosen[between])
                now = now[rows]
                cache.select_rows(rows, since=3 if between == "the same behind others" else 0)
        start = 8 if between == "a pass without" else 5
        for i in range(start, 12):
            found = model.module(now[:, i : i + 1], cache=cache).logits
        (found[:, -1, 3] * torch.arange(1.0, len(now) + 1)).sum().backward()
        gradients.append(vector.grad)
    assert relative_error(gradients[1], gradients[0]) < (1e-5 if between != "a pass without" else 0.5)
    assert gradients[1] is not None and float(gradients[1].norm()) > 0


@pytest.mark.parametrize("dtype", ["float32", "int8", "int4"])
@POSITIONS
@pytest.mark.parametrize(("attention", "layer"), [("fused", 1), ("explicit", 0)])  # PyTorch's kernel refuses
@pytest.mark.parametrize("inside", ["torch.func", "a dual level"])
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # PyTorch itself asks for it there
def test_forward_mode_derivative_equals_the_gradient(
    folder: Path, rows: int, dtype: str, attention: str, layer: int, inside: str
) -> None:
    model = pellucid.load(folder, dtype=dtype, attention=attention)
    model.freeze("*")  # with trainable weights, even an edit by zero needs gradients
    point, direction = f"layers.{layer}.residual.post", torch.randn(64, generator=torch.Generator().manual_seed(3))

    def loss_with(vector: Tensor) -> Tensor:
        with model.edit({point: add(vector)}):
            return loss(model, rows)

    start = torch.zeros(64, requires_grad=True)
    loss_with(start).backward()
    assert start.grad is not None
    if inside == "torch.func":
        _, found = torch.func.jvp(loss_with, (torch.zeros(64),), (direction,))
    else:
        with torch.autograd.forward_ad.dual_level():
            dual = loss_with(torch.autograd.forward_ad.make_dual(torch.zeros(64), direction))
            found = torch.autograd.forward_ad.unpack_dual(dual).tangent
    assert found is not None
    assert abs(float(found) - float(start.grad @ direction)) < 0.03 * float(start.grad.norm() * direction.norm())


@pytest.mark.parametrize("dtype", ["float32", "int8", "int4"])
def test_gradient_after_a_prefix_read_in_inference_mode(folder: Path, dtype: str) -> None:
    if folder.name == "bert":
        pytest.skip("it remembers nothing")
    model, vector, cache = pellucid.load(folder, dtype=dtype), torch.zeros(64, requires_grad=True), Cache(2, 12)
    with torch.inference_mode():
        model.module(ids(1)[:, :5], cache=cache)
    with model.edit({"layers.0.residual.pre": add(vector)}):
        model.module(ids(1)[:, 5:], cache=cache).logits[..., 3].sum().backward()
    assert vector.grad is not None and float(vector.grad.norm()) > 0


@BITS
def test_gradient_of_a_model_loaded_in_inference_mode(folder: Path, bits: int) -> None:
    with torch.inference_mode():
        model = pellucid.load(folder, dtype=f"int{bits}")
    vector = torch.zeros(64, requires_grad=True)
    with model.edit({"layers.0.residual.post": add(vector)}):
        loss(model, 1).backward()
    assert vector.grad is not None and float(vector.grad.norm()) > 0


@BITS
def test_empty_batch_and_state_dict_names(folder: Path, bits: int) -> None:
    model = pellucid.load(folder, dtype=f"int{bits}")
    with torch.no_grad():
        assert model(torch.zeros(0, 4, dtype=torch.long)).logits.shape == (0, 4, 96)
    assert set(model.module.state_dict()) == {name for name, _ in model.module.named_parameters(remove_duplicate=False)}

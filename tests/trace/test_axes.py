"""Values under TransformerLens's names have its axes: when read, in functions of edits, and when set."""

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pellucid
from pellucid.edits import add, change, fixed, mean, patch, scale, zero
from pellucid.errors import InputError
from pellucid.trace import points
from pellucid.trace.aliases import aliases
from pellucid.trace.axes import is_transposed
from tests.generation.writers import TOKENIZERS, writer
from tests.trace.odd_sized_models import FAMILIES, config_of
from tests.trace.small_models import small_model

TEXT = "time flies like an arrow"
ROWS_2_2 = np.array([2, 2])
HOOK_Z, HEADS_POINT = "blocks.1.attn.hook_z", "layers.1.attention.heads"


@pytest.fixture(scope="module")
def model(minilm: pellucid.Model) -> pellucid.Model:
    """GPT-2 with 4 heads for a text of 7 tokens, so that the two axes differ in length."""
    return small_model("gpt2", minilm)


def edited_logits(model: pellucid.Model, edits: dict[str, Any], text: str = TEXT) -> Tensor:
    with model.edit(edits):
        return model.trace(text)["logits"]


@pytest.mark.parametrize("family", FAMILIES)
def test_which_aliases_are_transposed(family: str) -> None:
    """Those that TransformerLens has as [batch, pos, head, ...]; scores and pattern are [batch, head, pos, pos]."""
    own = points(config_of(family))
    for theirs, ours in aliases(config_of(family)).items():
        last = theirs.rpartition(".")[2].removeprefix("hook_")
        assert is_transposed(ours, theirs) == (last in ("q", "k", "v", "z", "rot_q", "rot_k", "result")), theirs
        assert is_transposed(ours, theirs) == (own[ours][1] in ("heads", "key_heads") and own[ours][3] != "source")


@pytest.mark.parametrize("name", ["q", "k", "v", "rot_q", "rot_k", "z", "result"])
def test_values_under_aliases_have_their_axes(name: str, minilm: pellucid.Model) -> None:
    model = small_model("llama", minilm)
    ours = model.points()
    trace = model.trace(TEXT, gradients_of=lambda output: output.logits[0, -1, 5])
    own = aliases(model.config)[f"blocks.1.attn.hook_{name}"]
    heads = ours.sizes(own)["key_heads" if name in ("k", "v", "rot_k") else "heads"]
    for one in (trace, trace.row(0)):
        for requested in (f"blocks.1.attn.hook_{name}", f"blocks.1.attn.{name}"):
            assert one[requested].shape[:3] == (1, 7, heads)
            assert torch.equal(one[requested], one[own].transpose(1, 2)) and torch.equal(
                one.get(requested), one[requested]
            )
    assert torch.equal(trace["blocks.1.attn.hook_pattern"], trace["layers.1.attention.weights"])


def test_alias_axes_of_batches_cross_attention_and_generation(minilm: pellucid.Model) -> None:
    trace = small_model("t5", minilm).trace([TEXT, "time flies"], target=["flies", "an arrow flies"])
    requested = "decoder.1.cross_attn.hook_k"
    assert trace[requested].shape[:3] == (2, 7, 4) and trace.row(1)[requested].shape[:3] == (
        1,
        len(trace.row(1).tokens),
        4,
    )
    model = writer(TOKENIZERS["byte_level"](), "llama")
    step = model.trace_writing("a b c", keep="blocks.0.attn.hook_z", max_new_tokens=2).steps[0]
    assert torch.equal(step["blocks.0.attn.hook_z"], step["layers.0.attention.heads"].transpose(1, 2))


def without_head_2(z: Tensor) -> Tensor:
    z = z.clone()
    z[:, :, 2] = 0
    return z


def hooked(z: Tensor, hook: Any) -> Tensor:
    assert (hook.name, hook.layer(), hook.ctx) == (HOOK_Z, 1, {})
    z[:, :, 2] = 0
    return z


def by_keyword(z: Tensor, *, hook: Any) -> Tensor:
    return hooked(z, hook)


def hooked_head(z: Tensor, hook: Any, head: int) -> Tensor:
    z[:, :, head] = 0
    return z


def wrapped(function: Callable[..., Tensor], *arguments: Any) -> Callable[[Tensor], Tensor]:
    """A decorated function whose visible signature is not the one by which it is called."""

    @functools.wraps(function)
    def call(z: Tensor) -> Tensor:
        return function(z, *arguments)

    return call


def forwarding(function: Callable[..., Tensor], **arguments: Any) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Tensor:
        return function(*args, **kwargs, **arguments)

    return call


def without_head(z: Tensor, head: int, other: int) -> Tensor:
    assert head == other
    return hooked_head(z, None, head)


@torch.no_grad()
def undifferentiated(z: Tensor, h: Any) -> Tensor:
    return hooked(z, h)


@pytest.mark.parametrize(
    "edit",
    [
        zero(head=2), scale(0, head=2), fixed(torch.zeros(6), head=2), without_head_2, change(without_head_2), hooked,
        by_keyword, functools.partial(hooked_head, head=2), lambda z, h: hooked(z, h),
        lambda z, hook=None: hooked(z, hook), lambda z: without_head_2(z).contiguous(),
        wrapped(hooked_head, None, 2), wrapped(without_head, 2, 2),
        wrapped(lambda z, head: hooked_head(z, None, head), 2),
        forwarding(hooked_head, head=2), forwarding(without_head, head=2, other=2), forwarding(without_head_2),
        forwarding(hooked), forwarding(by_keyword), torch.no_grad()(hooked), undifferentiated,
        functools.partial(torch.no_grad()(hooked_head), head=2),
        lambda z, **hook: hooked_head(z, None, 2 + len(hook)), lambda z, *hook: hooked_head(z, None, 2 + len(hook)),
        lambda z, hook=ROWS_2_2: hooked_head(z, None, int(hook[0])),
    ],
)  # fmt: skip
def test_edits_on_alias_axes_zero_a_head(edit: Any, model: pellucid.Model) -> None:
    expected = edited_logits(model, {HEADS_POINT: zero(head=2)})
    assert not torch.equal(expected, model.trace(TEXT)["logits"])
    assert torch.equal(edited_logits(model, {HOOK_Z: edit}), expected)


def test_identity_edit_changes_no_bit(model: pellucid.Model) -> None:
    assert torch.equal(edited_logits(model, {HOOK_Z: lambda z: z}), model.trace(TEXT)["logits"])


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (lambda t, o: t, lambda t, o: t.transpose(1, 2)),
        (lambda t, o: fixed(t, head=1, position=-1), lambda t, o: fixed(t.transpose(1, 2), head=1, position=-1)),
        (lambda t, o: add(t, 0.5), lambda t, o: add(t.transpose(1, 2), 0.5)),
        (lambda t, o: add(t[0, 0]), lambda t, o: add(t[0, 0][:, None])),
        (lambda t, o: patch(t, position=3), lambda t, o: patch(t.transpose(1, 2), position=3)),
        (lambda t, o: patch(o, head=1), lambda t, o: patch(o, head=1)),
        (lambda t, o: patch(o.points, position=[2, 4]), lambda t, o: patch(o.points, position=[2, 4])),
        (lambda t, o: mean(o, o, head=3), lambda t, o: mean(o, o, head=3)),
        (lambda t, o: [zero(head=1), without_head_2], lambda t, o: zero(head=[1, 2])),
    ],
)
def test_tensors_and_traces_are_accepted_under_both_names(
    theirs: Callable[..., Any], ours: Callable[..., Any], model: pellucid.Model
) -> None:
    other = model.trace("fruit flies like a banana")
    tensor = other[HOOK_Z]
    assert tensor.shape == (1, 7, 4, 6)
    found = edited_logits(model, {HOOK_Z: theirs(tensor, other)})
    assert torch.equal(found, edited_logits(model, {HEADS_POINT: ours(tensor, other)}))
    assert not torch.equal(found, model.trace(TEXT)["logits"])


def test_globs_have_the_axes_of_their_names(model: pellucid.Model) -> None:
    expected = edited_logits(model, {"layers.*.attention.heads": zero(head=2)})
    assert torch.equal(edited_logits(model, {"blocks.*.attn.hook_z": without_head_2}), expected)
    names = []
    with model.edit({"blocks.*.attn.hook_[zq]": lambda value, hook: names.append(hook.name) or value}):
        model.trace(TEXT)
    assert names == [f"blocks.{i}.attn.hook_{name}" for i in range(3) for name in "qz"]


def test_wrong_shapes_are_reported_on_alias_axes(model: pellucid.Model) -> None:
    axes = re.escape("(batch, seq, heads, head_dim)")
    for wrong in (lambda z: z[:, 1:], torch.zeros(1, 4, 7, 6), patch(torch.zeros(1, 4, 7, 6))):
        with pytest.raises(InputError, match=f"{HOOK_Z}.* float32.1, 7, 4, 6. {axes}"):
            edited_logits(model, {HOOK_Z: wrong})


@pytest.mark.parametrize("requested", [HOOK_Z, "blocks.[1].attn.hook_z"])
def test_invalid_selections_are_reported_on_alias_axes(requested: str, model: pellucid.Model) -> None:
    with pytest.raises(InputError, match=f"{HOOK_Z} has no neurons, its axes are batch, seq, heads, head_dim$"):
        model.edit({requested: zero(neuron=3)})
    with pytest.raises(InputError, match=f"head=4 does not exist: {HOOK_Z} has 4 heads"):
        model.edit({requested: zero(head=4)})
    with pytest.raises(InputError, match=f"what was given has no {HEADS_POINT}"):
        model.edit({requested: patch({"pooled": torch.zeros(1)})})


def test_functions_with_other_arguments_are_refused(model: pellucid.Model) -> None:
    with pytest.raises(InputError, match=r"hooked_head takes \(z: .*, head: .*bind all else"):
        model.edit({HOOK_Z: hooked_head})
    with pytest.raises(InputError, match=r"hook_embed is in no layer: ask hook.layer\(\) of a point within one"):
        edited_logits(model, {"hook_embed": lambda value, hook: value * hook.layer()})


@pytest.mark.parametrize("requested", ["attentions[1]", "attentions.-2", "hidden_states[2]", HEADS_POINT, HOOK_Z])
def test_hook_has_the_layer_of_its_point(requested: str, model: pellucid.Model) -> None:
    layers = []
    edited_logits(model, {requested: lambda value, hook: layers.append((hook.name, hook.layer())) or value})
    assert layers == [(requested, 1)]


def test_values_equal_those_of_transformer_lens(tmp_path: Any) -> None:
    """Every name that both have, of GPT-2 and Llama with random gains and biases: the same values on the same axes."""
    bridge = pytest.importorskip("transformer_lens.model_bridge").TransformerBridge
    from transformers import AutoModelForCausalLM, AutoTokenizer

    for family in ("gpt2", "llama"):
        model = writer(TOKENIZERS["byte_level"](), family)
        for name, table in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                table.data.add_(torch.randn_like(table) * 0.5)
        folder = model.save(tmp_path / family)
        network = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
        tokenizer = AutoTokenizer.from_pretrained(folder)
        theirs = bridge.boot_transformers(str(folder), hf_model=network, tokenizer=tokenizer, device="cpu")
        theirs.enable_compatibility_mode(no_processing=True)
        theirs.cfg.use_attn_result = True
        trace = model.trace("a b c d e")
        _, cache = theirs.run_with_cache(torch.tensor([trace.ids]))
        both = [name for name in cache if name in trace]
        assert {"blocks.0.attn.hook_q", "blocks.1.attn.hook_result", "blocks.0.hook_resid_mid"} <= {*both}
        for name in both:
            ours, reference = (tensor.clamp(min=-1e4) for tensor in (trace[name], cache[name]))  # masked scores
            torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")

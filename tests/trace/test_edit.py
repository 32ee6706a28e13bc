"""Edits within a `with` block: what they affect, what they do not, and that none is silently ignored."""

import asyncio
import contextvars
import copy
import gc
import pickle
import re
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import pellucid
from pellucid import InputError
from pellucid.edits import add, change, fixed, mean, patch, scale, zero
from pellucid.trace import EditRecord
from tests.trace.small_models import small_model

TEXT, OTHER = "time flies like an arrow", "fruit flies like a banana"
WEIGHTS = "layers.3.attention.weights"


@pytest.fixture(scope="module")
def plain(minilm: pellucid.Model) -> "pellucid.trace.Trace":
    return minilm.trace(TEXT)


# -- what a block holds -----------------------------------------------------------------------------------------------


def test_zeroed_head_changes_only_later_points(minilm: pellucid.Model, plain: "pellucid.trace.Trace") -> None:
    with minilm.edit({WEIGHTS: zero(head=5)}) as edited:
        trace, again = minilm.trace(TEXT), edited.trace(TEXT)
    assert not trace[WEIGHTS][0, 5].any() and not trace["layers.3.attention.heads"][0, 5].any()
    others = [head for head in range(12) if head != 5]
    assert torch.equal(trace[WEIGHTS][0, others], plain[WEIGHTS][0, others])
    before = list(plain)[: list(plain).index(WEIGHTS)]
    assert all(torch.equal(trace[name], plain[name]) for name in before)
    assert not torch.equal(trace["pooled"], plain["pooled"])
    assert torch.equal(trace["pooled"], again["pooled"])
    assert trace.edits == (EditRecord("layers.3.attention.weights", "zero(head=5)"),) and plain.edits == ()
    assert torch.equal(minilm.trace(TEXT)["pooled"], plain["pooled"])


def test_edited_model_keeps_its_edits_outside_the_block(minilm: pellucid.Model, plain: "pellucid.trace.Trace") -> None:
    with minilm.edit({"pooled": zero()}) as edited:
        minilm.trace(TEXT)
    assert not edited.trace(TEXT)["pooled"].any()
    assert type(edited.module) is type(minilm.module) and edited.module.embeddings is minilm.module.embeddings
    assert torch.equal(minilm.trace(TEXT)["pooled"], plain["pooled"])


def test_function_may_return_a_sparse_tensor(minilm: pellucid.Model) -> None:
    point = "layers.3.residual.pre"
    with minilm.edit({point: lambda now: now.mul(2).to_sparse()}):
        sparse = minilm.trace(TEXT)
    with minilm.edit({point: scale(2)}):
        assert torch.equal(minilm.trace(TEXT)["layers.5.residual.post"], sparse["layers.5.residual.post"])


def test_edits_under_other_libraries_names(minilm: pellucid.Model) -> None:
    with minilm.edit({"blocks.3.attn.hook_pattern": zero(head=5), "hidden_states[6]": scale(2.0)}):
        trace = minilm.trace(TEXT)
    with minilm.edit({WEIGHTS: zero(head=5), "layers.5.residual.post": scale(2.0)}):
        assert torch.equal(minilm.trace(TEXT)["pooled"], trace["pooled"])
    assert str(trace.edits[0]) == "blocks.3.attn.hook_pattern: zero(head=5)"


def test_nested_blocks_apply_the_inner_edit_last(minilm: pellucid.Model, plain: "pellucid.trace.Trace") -> None:
    name, half = "layers.2.residual.post", plain["layers.2.residual.post"] * 0.5
    with minilm.edit({name: scale(0.5)}):
        with minilm.edit({name: add(1.0)}) as inner:
            assert torch.equal(minilm.trace(TEXT)[name], half + 1.0)
            assert len(inner.trace(TEXT).edits) == 2
        assert torch.equal(minilm.trace(TEXT)[name], half)
        with minilm.edit({name: [add(1.0), scale(2.0)]}):
            assert torch.equal(minilm.trace(TEXT)[name], (half + 1.0) * 2.0)
    with minilm.edit({name: add(1.0)}) as outer, outer.edit({name: scale(0.5)}) as both:
        torch.testing.assert_close(both.trace(TEXT)[name], half + 0.5)
        assert torch.equal(outer.trace(TEXT)[name], both.trace(TEXT)[name])
        assert torch.equal(minilm.trace(TEXT)[name], plain[name] + 1.0)


def test_edits_of_two_models_are_independent(minilm: pellucid.Model, tiny: pellucid.Model) -> None:
    ids = torch.tensor([[1, 2, 3]])
    with minilm.edit({"pooled": zero()}), tiny.edit({"pooled": fixed(2.0)}):
        assert not minilm(TEXT)["pooler_output"].any()
        assert (tiny(ids)["pooler_output"] == 2.0).all()


def test_blocks_that_end_out_of_order_leave_no_edits(
    minilm: pellucid.Model, tiny: pellucid.Model, plain: "pellucid.trace.Trace"
) -> None:
    first, second, other = (
        minilm.edit({WEIGHTS: scale(2)}),
        minilm.edit({WEIGHTS: scale(3)}),
        tiny.edit({"*": scale(1)}),
    )
    first.__enter__()
    other.__enter__()
    second.__enter__()
    minilm.trace(TEXT)
    tiny([[1, 2]])
    with pytest.raises(InputError, match="end in the reverse of the order"):
        first.__exit__(None, None, None)
    other.__exit__(None, None, None)  # the order of another model is independent
    second.__exit__(None, None, None)
    assert torch.equal(minilm.trace(TEXT)[WEIGHTS], plain[WEIGHTS])


def test_edits_of_threads_are_separate(minilm: pellucid.Model, plain: "pellucid.trace.Trace") -> None:
    barrier = threading.Barrier(4)

    def work(head: int) -> torch.Tensor:
        with minilm.edit({"layers.*.attention.heads": zero(head=head)}):
            barrier.wait(60)
            return [minilm.trace(TEXT) for _ in range(3)][-1]["pooled"]

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(work, range(4)))
    barrier = threading.Barrier(1)
    for head, one in enumerate(together):
        torch.testing.assert_close(one, work(head), rtol=0, atol=1e-5)
    assert not torch.allclose(together[0], together[1], atol=1e-4)


def test_block_affects_its_thread_and_its_model_affects_all(minilm: pellucid.Model) -> None:
    with minilm.edit({"pooled": zero()}) as edited, ThreadPoolExecutor(1) as pool:
        assert pool.submit(minilm.trace, TEXT).result()["pooled"].any()
        assert not pool.submit(edited.trace, TEXT).result()["pooled"].any()
        here = contextvars.copy_context()
        assert not pool.submit(here.run, minilm.trace, TEXT).result()["pooled"].any()


def test_ended_block_edits_nothing_in_any_context(tiny: pellucid.Model) -> None:
    """asyncio finishes an abandoned generator in a task, and so in a context, of its own."""
    ids = torch.tensor([[1, 2, 3]])
    contexts: list[contextvars.Context] = []

    async def edited() -> AsyncIterator[bool]:
        with tiny.edit({"pooled": zero()}):
            contexts.append(contextvars.copy_context())
            while True:
                yield bool(tiny(ids)["pooler_output"].any())

    async def consume() -> bool:
        async for is_nonzero in edited():
            assert not is_nonzero
            break
        gc.collect()
        await asyncio.sleep(0.1)
        return bool(tiny(ids)["pooler_output"].any())

    assert asyncio.run(consume())
    assert contexts[0].run(tiny, ids)["pooler_output"].any()


def test_training_and_moving_affect_the_original_model(tiny: pellucid.Model) -> None:
    with tiny.edit({"pooled": zero()}):
        tiny(torch.tensor([[1, 2, 3]]))
        tiny.train()
        assert tiny.module.embeddings.dropout.training
    assert tiny.module.training
    tiny.eval()
    assert not tiny.module.embeddings.dropout.training
    with tiny.edit({"pooled": add(0.5)}):
        tiny.to(dtype="float64")
        assert tiny(torch.tensor([[1, 2, 3]]))["pooler_output"].dtype == torch.float64


def test_copies_are_without_edits(tiny: pellucid.Model, tmp_path: "pytest.TempPathFactory") -> None:
    ids = torch.tensor([[1, 2, 3]])
    with tiny.edit({"pooled": zero()}) as edited:
        copied = copy.deepcopy(tiny)
        assert copied(ids)["pooler_output"].any() and not tiny(ids)["pooler_output"].any()
        assert pickle.loads(pickle.dumps(tiny))(ids)["pooler_output"].any()
        for make in (copy.deepcopy, pickle.dumps, lambda model: model.save(tmp_path / "other")):
            with pytest.raises(InputError, match="the model that it was made from"):
                make(edited)
        tiny.save(tmp_path / "saved")
    assert not (tmp_path / "other").exists()
    assert torch.equal(pellucid.load(tmp_path / "saved")(ids)["pooler_output"], tiny(ids)["pooler_output"])


@pytest.mark.parametrize("edit", [zero(head=0), add(torch.ones(3), position=1), change(torch.neg)], ids=str)
def test_edits_can_be_copied_but_not_pickled(edit: pellucid.edits.Edit) -> None:
    assert str(copy.copy(edit)) == str(copy.deepcopy([edit])[0]) == str(edit)
    with pytest.raises(InputError, match=re.escape(f"{edit} is a function and cannot be pickled: make the edit where")):
        pickle.dumps(edit)


@pytest.mark.parametrize(
    "make", [fixed, add, patch, lambda tensor: patch({"layers.0.residual.post": tensor}), lambda tensor: tensor]
)
def test_edit_keeps_its_numbers_when_the_tensor_changes(tiny: pellucid.Model, make: Callable[..., Any]) -> None:
    ids, name, values = torch.tensor([[1, 2, 3]]), "layers.0.residual.post", torch.ones(1, 3, 24)
    with tiny.edit({name: make(values)}), torch.no_grad():
        before = tiny(ids).last_hidden_state
        values.zero_()
        assert torch.equal(tiny(ids).last_hidden_state, before)
    parameter = torch.ones(24, requires_grad=True)
    with tiny.edit({name: add(parameter)}), torch.no_grad():
        before = tiny(ids).last_hidden_state
        parameter.copy_(torch.arange(24.0))
        assert not torch.equal(tiny(ids).last_hidden_state, before)


def test_gradients_go_through_edits(tiny: pellucid.Model) -> None:
    vector = torch.zeros(24, requires_grad=True)
    with tiny.edit({"layers.0.residual.post": add(vector, 2.0, position=1)}):
        tiny(torch.tensor([[1, 2, 3]]))["pooler_output"].sum().backward()
    assert vector.grad is not None and vector.grad.abs().sum() > 0


@pytest.mark.parametrize("dtype", ["int8", "int4", "bfloat16"])
def test_edits_of_low_bit_models(dtype: str) -> None:
    model = pellucid.load("all-MiniLM-L6-v2", dtype=dtype)
    plain = model.trace(TEXT)
    for name in ("layers.3.attention.heads", "layers.3.feed_forward.hidden", "layers.3.attention.query", WEIGHTS):
        with model.edit({name: lambda value: value}):
            assert torch.equal(model.trace(TEXT)["pooled"], plain["pooled"])
        with model.edit({name: scale(0.0)}):
            trace = model.trace(TEXT)
            vector = model.embed(TEXT)
        assert not trace[name].any() and not torch.equal(trace["pooled"], plain["pooled"])
        assert not torch.allclose(vector, model.embed(TEXT), atol=1e-3)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_low_bit_models_accept_float32_and_bfloat16(dtype: str) -> None:
    """The number of positions in a pass decides which of these dtypes a point has."""
    model, name = pellucid.load("all-MiniLM-L6-v2", dtype=dtype), "layers.3.attention.output"
    value = model.trace(TEXT)[name].float().bfloat16()  # values that both dtypes represent
    for wide in (value.float(), value):
        edits = (fixed(wide), patch(wide), patch({name: wide}), change(lambda now, wide=wide: wide))
        for edit in (*edits, [scale(0.0), add(wide)]):
            with model.edit({name: edit}):
                traced = model.trace(TEXT)[name]
            assert traced.dtype == model.trace(TEXT)[name].dtype and torch.equal(traced.float(), value.float()), edit
    for wrong in (fixed(value.double()), patch(value.half()), change(torch.Tensor.double)):
        with pytest.raises(InputError, match=r"float(64|16)\["), model.edit({name: wrong}):
            model.trace(TEXT)


# -- no silence -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"layers.3.attention.wieghts": zero()}, "did you mean layers.3.attention.weights"),
        ({"layers.6.residual.pre": zero()}, "did you mean layers"),
        ({"layers.9.*": zero()}, "no point is called"),
        ({WEIGHTS: zero(head=12)}, "head=12 does not exist: layers.3.attention.weights has 12 heads"),
        ({WEIGHTS: zero(head=[3, -13])}, "head=-13 does not exist"),
        ({"layers.0.residual.pre": zero(head=1)}, "has no heads, its axes are batch, seq, hidden"),
        ({"pooled": zero(position=1)}, "pooled has no positions"),
        ({"layers.0.residual.pre": zero(source=1)}, "has no sources"),
        ({"layers.0.feed_forward.hidden": zero(neuron=1536)}, "has 1536 neurons"),
        ({"pooled": zero}, r"zero is called to make an edit: zero\(...\)"),
        ({"pooled": "zero"}, "an edit is str"),
        ({"pooled": True}, "an edit is bool"),
        ({}, "edits are given as"),
        ([zero()], "edits are given as"),
        ({WEIGHTS: mean({WEIGHTS: torch.zeros(1)})}, "has no mean"),
        (
            {WEIGHTS: patch({"pooled": torch.zeros(1, 384)})},
            "what was given has no layers.3.attention.weights; it has pooled",
        ),
    ],
)
def test_invalid_edits_are_refused_before_any_pass(minilm: pellucid.Model, edits: object, message: str) -> None:
    with pytest.raises(InputError, match=message), minilm.edit(edits):  # type: ignore[arg-type]
        pytest.fail("the block was entered")


@pytest.mark.parametrize(
    "where",
    [
        {"head": True},
        {"head": []},
        {"position": 1.5},
        {"row": "1"},
        {"row": {1: 2}},
        {"head": torch.arange(12) > 6},
        {"head": np.arange(12) > 6},
        {"source": torch.tensor(True)},
    ],
)
def test_selections_must_be_integers(where: dict[str, object]) -> None:
    with pytest.raises(InputError, match="expected a whole number, several, or a slice"):
        zero(**where)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        (
            "pooled",
            lambda value: value[:, :5],
            r"returned float32\[1, 5\], expected float32\[1, 384\] \(batch, hidden\)",
        ),
        ("pooled", lambda value: value.double(), r"returned float64\[1, 384\]"),
        ("pooled", lambda value: None, "returned NoneType"),
        ("pooled", fixed(torch.zeros(5)), r"the value is float32\[5\], and pooled is float32\[1, 384\]"),
        ("pooled", fixed(torch.zeros(384).double()), "the value is float64"),
        ("pooled", fixed(torch.zeros(384).bfloat16()), "the value is bfloat16"),
        ("pooled", fixed(1e300), r"the value is 1e\+300, and pooled is float32\[1, 384\] .*: give one that fits"),
        ("layers.0.residual.pre", add(-1e300), r"the vector is -1e\+300, and layers.0.residual.pre is float32"),
        ("layers.0.residual.pre", add(torch.zeros(2, 9, 384)), r"the vector is float32\[2, 9, 384\]"),
        (WEIGHTS, patch(torch.zeros(1, 11, 7, 7)), "cannot be patched into layers.3.attention.weights"),
        (WEIGHTS, patch(torch.zeros(1, 12, 7, 7).double()), "cannot be patched into"),
        (WEIGHTS, patch(torch.zeros(1, 12, 7, 8)), "8 tokens of layers.3.attention.weights are to be patched into 7"),
        ("layers.0.residual.pre", patch(torch.zeros(1, 3, 384), position=4), "which has 3"),
    ],
)
def test_values_of_wrong_shape_or_dtype_are_refused(
    minilm: pellucid.Model, name: str, edit: object, message: str
) -> None:
    with pytest.raises(InputError, match=message), minilm.edit({name: edit}):
        minilm.trace(TEXT)
    assert minilm.trace(TEXT).edits == ()


def test_function_that_calls_its_own_edited_model_is_refused(minilm: pellucid.Model) -> None:
    message = "<lambda> at pooled calls itself without end: compute what it needs of the edited model before the edit"
    with pytest.raises(InputError, match=message), minilm.edit({"pooled": lambda value: minilm.trace(TEXT)["pooled"]}):
        minilm.trace(TEXT)
    assert minilm.trace(TEXT).edits == ()


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"layers.0.residual.pre": zero(position=7)}, "position 7 does not exist, no pass had more than 7 positions"),
        ({"layers.0.residual.pre": zero(position=[0, -8])}, "position -8 does not exist"),
        ({"layers.0.residual.pre": zero(position=slice(9, 12))}, "position 9:12 does not exist"),
        ({WEIGHTS: zero(source=7)}, "source 7 does not exist"),
        ({WEIGHTS: zero(row=1)}, "row 1 does not exist, no pass had more than 1 row there"),
    ],
)
def test_edit_that_selected_nothing_is_an_error(minilm: pellucid.Model, edits: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=f"an edit never fired, of .*{message}"), minilm.edit(edits):
        minilm.trace(TEXT)


def test_edit_whose_point_was_not_computed_is_an_error(minilm: pellucid.Model) -> None:
    message = r"never fired, of pooled: zero.*no pass was made that meets pooled"
    with pytest.raises(InputError, match=message), minilm.edit({"pooled": zero()}):
        minilm.embed(TEXT)  # which does its own pooling
    with pytest.raises(InputError, match="never fired"), minilm.edit({WEIGHTS: zero()}):
        pass


LONG = "x" * 10_000
MANY = list(range(10_000))


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({LONG: zero()}, "no point is called 'xxx"),
        ({5: zero()}, "a point is called 5, expected a name"),
        ({"pooled": zero(position=MANY)}, "position=[0, 1, 2"),
        ({f"pooled{'*' * 10_000}": zero()}, "an edit never fired, of pooled***"),
        ({WEIGHTS: change(type(LONG, (), {"__call__": lambda self, now: now})())}, "an edit never fired, of layers"),
        ({WEIGHTS: zero(source=MANY)}, "an edit never fired, of layers.3.attention.weights: zero(source=[0, 1, 2"),
    ],
)
def test_error_messages_stay_short(minilm: pellucid.Model, edits: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)) as caught, minilm.edit(edits):
        pass
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("where", [{LONG: 1}, {"head": LONG}, {"head": [LONG] * 10}])
def test_invalid_selections_are_named_briefly(where: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"an edit selects by|head is") as caught:
        zero(**where)
    assert len(str(caught.value)) < 200


def test_error_within_a_block_ends_it_and_is_raised(minilm: pellucid.Model) -> None:
    with pytest.raises(KeyError, match="mine"), minilm.edit({WEIGHTS: zero()}):
        raise KeyError("mine")
    assert minilm.module.observer is None and minilm.trace(TEXT).edits == ()


def test_edited_model_computes_in_its_own_dtype(minilm: pellucid.Model) -> None:
    with minilm.edit({WEIGHTS: zero(head=1)}) as edited:
        assert edited.module.packed_copy() is edited.module
        with pytest.raises(InputError, match="an edited model computes in its own dtype"):
            minilm.embed(TEXT, dtype="bfloat16")
        minilm.embed(TEXT, dtype="float32")


# -- what is done to a number -----------------------------------------------------------------------------------------


def test_each_edit_computes_its_definition(minilm: pellucid.Model, plain: "pellucid.trace.Trace") -> None:
    name, now = "layers.2.residual.post", plain["layers.2.residual.post"]
    vector = torch.arange(384.0)
    cases = [
        (fixed(3.0), torch.full_like(now, 3.0)),
        (fixed(vector, position=[1, -1]), now.clone().index_copy(1, torch.tensor([1, 6]), vector.expand(1, 2, 384))),
        (add(vector, -2.0), now - 2 * vector),
        (scale(0.25, neuron=slice(0, 10)), torch.cat((now[..., :10] * 0.25, now[..., 10:]), dim=-1)),
        (change(torch.neg, position=slice(-2, None)), torch.cat((now[:, :5], -now[:, 5:]), dim=1)),
        (vector, vector.expand(1, 7, 384)),
        (2, torch.full_like(now, 2.0)),
        (torch.Tensor.neg_, -now),  # a function may modify its argument in place
    ]
    for edit, expected in cases:
        with minilm.edit({name: edit}):
            assert torch.equal(minilm.trace(TEXT)[name], expected), edit
    assert torch.equal(minilm.trace(TEXT)[name], now)


def test_source_positions_can_be_selected(minilm: pellucid.Model, plain: "pellucid.trace.Trace") -> None:
    with minilm.edit({"layers.0.attention.scores": fixed(-torch.inf, source=2)}):
        weights = minilm.trace(TEXT)["layers.0.attention.weights"]
    assert not weights[..., 2].any()
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 12, 7))
    with minilm.edit({WEIGHTS: zero(head=[1, 2], position=0, source=[0, -1])}):
        edited = minilm.trace(TEXT)[WEIGHTS]
    changed = (edited != plain[WEIGHTS]).nonzero().tolist()
    assert changed == [[0, head, 0, source] for head in (1, 2) for source in (0, 6)]


def test_mean_over_other_texts(minilm: pellucid.Model) -> None:
    traces = [minilm.trace(text) for text in (TEXT, "a b", OTHER)]
    name = "layers.1.attention.heads"
    with minilm.edit({name: mean(*traces, head=3), "pooled": mean(*traces)}):
        edited = minilm.trace(TEXT)
    expected = torch.cat([trace[name][0, 3] for trace in traces]).mean(dim=0)
    torch.testing.assert_close(edited[name][0, 3], expected.expand(7, 32))
    assert torch.equal(edited[name][0, 4], traces[0][name][0, 4])
    several = minilm.trace([TEXT, "a b", OTHER])
    with minilm.edit({name: mean(several, head=3)}):
        torch.testing.assert_close(minilm.trace(TEXT)[name], edited[name], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(edited["pooled"], torch.cat([trace["pooled"] for trace in traces]).mean(0, keepdim=True))


def test_patches_move_tokens_to_the_selected_positions(minilm: pellucid.Model) -> None:
    short, name = minilm.trace("a banana"), "layers.1.residual.pre"  # 4 tokens patched into 7
    with minilm.edit({name: patch(short, position=[1, -1])}):
        edited = minilm.trace(TEXT)[name]
    before = minilm.trace(TEXT)[name]
    assert torch.equal(edited[0, 1], short[name][0, 1]) and torch.equal(edited[0, 6], short[name][0, 3])
    rest = [0, 2, 3, 4, 5]
    assert torch.equal(edited[0, rest], before[0, rest])
    with minilm.edit({WEIGHTS: patch(short, head=1, position=slice(0, 3), source=slice(0, 3))}):
        edited = minilm.trace(TEXT)[WEIGHTS]
    assert torch.equal(edited[0, 1, :3, :3], short[WEIGHTS][0, 1, :3, :3])
    for bad in (patch(short), patch(short, position=slice(1, None))):
        with pytest.raises(InputError, match="choose which with position="), minilm.edit({name: bad}):
            minilm.trace(TEXT)
    for bad in (patch(short, position=[0, 1]), patch(short, position=slice(0, 3))):  # source lengths differ
        with pytest.raises(InputError, match="choose which with source="), minilm.edit({WEIGHTS: bad}):
            minilm.trace(TEXT)


def test_patches_of_several_texts(minilm: pellucid.Model) -> None:
    name, texts = "layers.1.residual.pre", [TEXT, "fruit eats like the banana"]
    both = minilm.trace(texts)
    with minilm.edit({name: patch(both)}) as edited:
        assert torch.equal(minilm.trace(texts[::-1])["pooled"], both["pooled"])
    (edit,) = edited.module.observer.edits
    assert str(edit.edit) == f"patch(trace of {texts[0]!r}, {texts[1]!r})"
    with pytest.raises(InputError, match=r"choose one with trace.row\(0\)"):
        patch(minilm.trace([TEXT, "a banana"]))


def test_patches_of_texts_with_targets_of_different_length(minilm: pellucid.Model) -> None:
    """In a batch, a shorter target is followed by padding, whose values used to be patched in as its last token's."""
    model, targets = small_model("bart", minilm), ["fruit flies like", "a banana"]
    both = model.trace([TEXT, TEXT], target=targets)
    with pytest.raises(InputError, match=r"choose one with trace.row\(0\)"):
        patch(both, position=-1)
    for i in range(2):
        with model.edit({"decoder.layers.0.residual.post": patch(both.row(i), position=-1, row=i)}):
            again = model.trace([TEXT, TEXT], target=targets, keep="logits")
        assert torch.equal(again["logits"], both["logits"])


def test_key_heads_have_their_own_indices(minilm: pellucid.Model) -> None:
    model = small_model("llama", minilm)  # 4 query heads, 2 key-value heads
    with model.edit({"layers.1.attention.key": zero(head=1), "layers.1.attention.query": zero(head=3)}):
        trace = model.trace(TEXT)
    assert not trace["layers.1.attention.scores"][0, 2:].tril().any()
    with (
        pytest.raises(InputError, match="has 2 key and value heads"),
        model.edit({"layers.1.attention.key": zero(head=3)}),
    ):
        pass


def test_descriptions_of_edits(minilm: pellucid.Model, plain: "pellucid.trace.Trace") -> None:
    assert str(zero(head=5, position=slice(1, None))) == "zero(head=5, position=1:)"
    assert str(add(torch.zeros(3), 2.0, position=-1)) == "add(float32[3], factor=2.0, position=-1)"
    assert str(patch(plain, head=[1, 2])) == f"patch(trace of {TEXT!r}, head=[1, 2])"
    assert str(change(torch.neg)) == "change(neg)"


def test_integers_of_other_libraries_are_accepted() -> None:
    for five in (np.int64(5), torch.tensor(5), np.array(5)):
        assert str(zero(head=five)) == "zero(head=5)"
    for some in (np.array([1, 2]), torch.tensor([1, 2]), (1, 2), range(1, 3)):
        assert str(zero(head=some)) == "zero(head=[1, 2])"
    assert str(scale(np.float32(2))) == str(scale(torch.tensor(2.0))) == "scale(2.0)"
    assert str(add(np.float32(3), factor=np.int64(2))) == "add(3.0, factor=2.0)"


def test_empty_edits_are_refused(minilm: pellucid.Model) -> None:
    with pytest.raises(InputError, match=r"no edit was given for layers\.0\.attention\.weights"):
        minilm.edit({WEIGHTS.replace("3", "0"): []})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: zero(heads=5), "an edit selects by row, head, .*, not by 'heads' .did you mean head"),
        (lambda: fixed([1, 2]), "fixed takes a tensor or a number, and was given a list"),
        (lambda: add("x"), "add takes a tensor or a number"),
        (lambda: change(3), "change takes a function, and was given a int"),
        (lambda: scale(torch.ones(2)), "the factor of scale is tensor.*, expected a number"),
        (lambda: scale(True), "the factor of scale is True"),
        (lambda: scale(10**400), "the factor of scale is 1000.*, expected a number"),
        (lambda: fixed(10**400), "the number is 1000.*, expected a number"),
        (lambda: add(1.0, factor="2"), "the factor of add is '2'"),
        (lambda: add(torch.ones(3), factor=torch.arange(3.0)), "the factor of add is tensor"),
        (lambda: zero(position=slice(0, 3, 0)), "position is slice.*, expected a whole number"),
        (lambda: zero(position=slice("a", None)), "position is slice.*, expected a whole number"),
        (lambda: zero(head={1: 2}), "head is {1: 2}, expected a whole number"),
        (lambda: patch(None), "patch takes a trace or a tensor, and was given a NoneType"),
        (lambda: mean(), "mean needs a trace"),
        (lambda: mean(torch.ones(1)), "mean needs a trace"),
    ],
)
def test_invalid_arguments_of_edits_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("name", [WEIGHTS, "layers.3.attention.scores", "layers.3.attention.head_outputs"])
def test_function_may_modify_its_argument_in_place(minilm: pellucid.Model, name: str) -> None:
    def in_place(value: torch.Tensor) -> torch.Tensor:
        value[:, 5] = 0
        return value

    with minilm.edit({name: in_place}):
        pooled = minilm.trace(TEXT, keep="pooled")["pooled"]
    with minilm.edit({name: zero(head=5)}):
        assert torch.equal(minilm.trace(TEXT, keep="pooled")["pooled"], pooled)
    assert not torch.equal(minilm.trace(TEXT, keep="pooled")["pooled"], pooled)


def test_later_changes_of_a_returned_tensor_have_no_effect(minilm: pellucid.Model) -> None:
    model = small_model("bert", minilm)
    returned: list[torch.Tensor] = []

    def doubled(value: torch.Tensor) -> torch.Tensor:
        returned[:] = returned or [torch.empty_like(value)]
        return torch.mul(value, 2, out=returned[0])

    with model.edit({"layers.*.residual.post": doubled}):
        trace = model.trace(TEXT)
    with model.edit({"layers.*.residual.post": scale(2.0)}):
        expected = model.trace(TEXT)
    returned[0].fill_(0)
    assert all(torch.equal(trace[name], expected[name]) for name in expected)

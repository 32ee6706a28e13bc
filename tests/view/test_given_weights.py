"""Attention weights from anywhere: the reference's outputs and plain arrays become a page, or one clear sentence."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, T5Config, T5ForConditionalGeneration

import pellucid
from pellucid.generation.observed import TracedText
from pellucid.view.picture import draw
from tests.view.conftest import READOUT, Show
from tests.view.test_recipes import COMPUTED_WEIGHTS

TOKENS = "[CLS] time flies [SEP] like an arrow [SEP]".split()
SOURCE, TARGET = "▁time ▁flies ▁like ▁an ▁arrow </s>".split(), "<pad> ▁le ▁temps ▁file".split()


@pytest.fixture(scope="module")
def bert_attentions() -> tuple[torch.Tensor, ...]:
    """The reference's own output: for each layer a tensor [1, heads, tokens, tokens]."""
    config = BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=40,
                        attn_implementation="eager", initializer_range=0.5)  # fmt: skip
    torch.manual_seed(0)
    model = BertModel(config).eval()
    with torch.no_grad():
        return model(torch.arange(len(TOKENS))[None], output_attentions=True).attentions


@pytest.fixture(scope="module")
def t5_attentions() -> dict[str, Any]:
    config = T5Config(vocab_size=50, d_model=32, d_kv=8, num_layers=3, num_decoder_layers=2, num_heads=4, d_ff=40,
                      decoder_start_token_id=0, attn_implementation="eager")  # fmt: skip
    torch.manual_seed(0)
    model = T5ForConditionalGeneration(config).eval()
    source, target = torch.arange(1, 7)[None], torch.tensor([[0, 9, 8, 7]])
    with torch.no_grad():
        answer = model(input_ids=source, decoder_input_ids=target, output_attentions=True)
    names = ("encoder", "decoder", "cross")
    return {f"{name}_attention": getattr(answer, f"{name}_attentions") for name in names}


def test_attentions_of_the_reference_are_drawn_exactly(show: Show, bert_attentions: tuple[torch.Tensor, ...]) -> None:
    view = pellucid.view(
        attention=bert_attentions, tokens=TOKENS, sentence_b_start=4, heads=[1], include_layers=[1, 3], model="mine"
    )
    tab = show(view.html())
    for computed, layer in zip(tab.evaluate(COMPUTED_WEIGHTS), (1, 3), strict=True):
        torch.testing.assert_close(torch.tensor(computed), bert_attentions[layer][0], atol=1e-7, rtol=0)
    assert tab.get_by_label("layer", exact=True).locator("option").all_inner_texts() == ["1", "3"]
    tab.get_by_role("button", name="A → B").click()
    tab.evaluate(READOUT)
    assert tab.locator(".column.key .token").all_inner_texts() == TOKENS[4:]
    assert "stored as float32, not recomputed" in tab.locator(".legend").inner_text()
    assert "mine" in tab.locator(".model").inner_text()


def test_arrays_and_half_precision_are_accepted(show: Show, bert_attentions: tuple[torch.Tensor, ...]) -> None:
    arrays = [layer.numpy() for layer in bert_attentions]
    whole = pellucid.view(attention=arrays, tokens=TOKENS).data
    assert whole.blocks == pellucid.view(attention=bert_attentions, tokens=np.array(TOKENS).tolist()).data.blocks
    assert whole.blocks == pellucid.view(attention=np.stack(arrays), tokens=TOKENS).data.blocks
    for precision, max_error in (("int16", 2e-5), ("compact", 8e-3)):
        view = pellucid.view(attention=[layer.half() for layer in bert_attentions], tokens=TOKENS, precision=precision)
        errors = [entry["max_error"] for entry in view.data.manifest["attentions"]]
        tab = show(view.html())
        for computed, layer, error in zip(tab.evaluate(COMPUTED_WEIGHTS), bert_attentions, errors, strict=True):
            assert (torch.tensor(computed) - layer[0].half().float()).abs().max() <= error + 1e-6
            assert error <= max_error
    assert "in one byte each" in tab.locator(".legend").inner_text()


def test_given_weights_are_not_described_as_those_of_a_model(
    show: Show, bert_attentions: tuple[torch.Tensor, ...]
) -> None:
    tab = show(pellucid.view(attention=bert_attentions[:1], tokens=TOKENS).html(), "#query=1&key=2&heads=3")
    tab.evaluate(READOUT)
    assert "1 layer × 4 heads" in tab.locator(".model").inner_text()
    assert "Weights as given, stored as float32, not recomputed." in tab.locator(".legend").inner_text()
    assert "model’s own" not in tab.locator(".legend").inner_text()
    less = pellucid.view(attention=bert_attentions, tokens=TOKENS, precision="compact")
    tab = show(less.html(), "#layer=2")
    tab.evaluate(READOUT)
    assert "Largest difference from the given weights in this layer: 0.00" in tab.locator(".legend").inner_text()
    assert "Weights as given." in draw(pellucid.view(attention=bert_attentions, tokens=TOKENS).data)
    assert "Weights as given, to 0.00" in draw(less.data)


@pytest.mark.parametrize(("address", "expression"), [
    ("#of=encoder&layer=1&heads=2&query=3&key=4", "encoder_attention[1][0, 2, 3, 4]"),
    ("#of=cross&layer=0&heads=1&query=3&key=4", "cross_attention[0][0, 1, 3, 4]"),
])  # fmt: skip
def test_given_weight_is_copied_as_an_expression_of_the_argument(
    show: Show, t5_attentions: dict[str, Any], address: str, expression: str
) -> None:
    tab = show(pellucid.view(**t5_attentions, encoder_tokens=SOURCE, decoder_tokens=TARGET).html(), address)
    tab.evaluate(READOUT)
    tab.keyboard.press("c")
    tab.get_by_text(f"copied: {expression}").wait_for()
    tab.keyboard.press("Escape")
    tab.keyboard.press("c")
    tab.get_by_text("there is nothing here to copy as Python").wait_for()


def test_three_attentions_of_an_encoder_decoder_keep_their_sides(show: Show, t5_attentions: dict[str, Any]) -> None:
    view = pellucid.view(**t5_attentions, encoder_tokens=SOURCE, decoder_tokens=TARGET)
    tab = show(view.html(), "#view=matrix&of=cross&layer=1&heads=2")
    own = [layer[0] for name in ("encoder", "decoder", "cross") for layer in t5_attentions[f"{name}_attention"]]
    for computed, layer in zip(tab.evaluate(COMPUTED_WEIGHTS), own, strict=True):
        torch.testing.assert_close(torch.tensor(computed), layer, atol=1e-7, rtol=0)
    tab.evaluate(READOUT)
    assert tab.locator(".labels.query .token").all_inner_texts() == ["<pad>", "·le", "·temps", "·file"]
    assert tab.locator(".labels.key .token").all_inner_texts() == ["·time", "·flies", "·like", "·an", "·arrow", "</s>"]
    kinds = [token["kind"] for token in view.data.manifest["sequences"][0]["tokens"]]
    assert kinds == ["word"] * 5 + ["special"]
    alone = pellucid.view(
        cross_attention=t5_attentions["cross_attention"], encoder_tokens=SOURCE, decoder_tokens=TARGET
    )
    assert {entry["kind"] for entry in alone.data.manifest["attentions"]} == {"cross"}
    decoder_only = pellucid.view(decoder_attention=t5_attentions["decoder_attention"], decoder_tokens=TARGET)
    assert [sequence["name"] for sequence in decoder_only.data.manifest["sequences"]] == ["decoder"]


VALID = torch.full((1, 2, 3, 3), 1 / 3)
WITH_NAN = VALID.clone()
WITH_NAN[0, 1, 2, 0] = torch.nan
ERRORS: list[tuple[dict[str, Any], str]] = [
    ({}, "nothing to show"),
    ({"attention": [VALID]}, "tokens are missing"),
    ({"attention": [VALID], "tokens": "abc"}, "expected a list"),
    ({"attention": [VALID], "tokens": []}, "expected a list of one token or more"),
    ({"attention": [VALID], "tokens": [1, 2, 3]}, "hold 1, expected text"),
    ({"attention": [], "tokens": ["a"]}, "no layer was given"),
    ({"attention": [VALID, None], "tokens": list("abc")}, r"attention\[1\] is None: .*eager"),
    ({"attention": [VALID[0]], "tokens": list("abc")}, r"\[2, 3, 3\], expected four axes"),
    ({"attention": VALID, "tokens": list("abc")}, "expected one for each layer"),
    ({"attention": [VALID.repeat(2, 1, 1, 1)], "tokens": list("abc")}, "is of 2 texts"),
    ({"attention": [VALID], "tokens": list("abcd")}, r"tokens need \[1, heads, 4, 4\]"),
    ({"attention": [WITH_NAN], "tokens": list("abc")}, "NaN, first in head 1 from token 2 to token 0"),
    ({"attention": [VALID * 9], "tokens": list("abc")}, "holds 3, expected weights from 0 to 1"),
    ({"attention": [-VALID], "tokens": list("abc")}, "holds -0.3333"),
    ({"attention": ["words"], "tokens": list("abc")}, "is str, expected a tensor or an array"),
    ({"attention": [VALID], "tokens": list("abc"), "sentence_b_start": 3}, "from 1 to 2"),
    ({"attention": [VALID], "tokens": list("abc"), "include_layers": [1]}, "have layers 0 to 0"),
    ({"attention": [VALID], "tokens": list("abc"), "layer": 1}, "layer 1 does not exist"),
    ({"attention": [VALID], "tokens": list("abc"), "heads": [2]}, "heads 0 to 1"),
    ({"attention": [VALID], "tokens": list("abc"), "heads": []}, r"no head was selected: .* heads=\[8\]"),
    ({"attention": [VALID], "tokens": list("abc"), "tensors": "*"}, "tensors come from a trace"),
    ({"attention": [VALID], "tokens": list("abc"), "cross_attention": [VALID]}, "both given"),
    (
        {"attention": [VALID], "tokens": list("abc"), "decoder_tokens": ["x"]},
        "attention and decoder_tokens were both given",
    ),
    ({"cross_attention": [VALID], "tokens": list("abc")}, "tokens and cross_attention were both given"),
    ({"attention": [VALID], "tokens": list("abc"), "model": None}, "model is None, expected a name for the page"),
    (
        {"attention": [VALID], "tokens": list("abc"), "other": 42},
        "were given together with 'other': a page of two runs",
    ),
    ({"cross_attention": [VALID], "encoder_tokens": list("abc")}, "decoder_tokens are missing"),
    ({"attentions": [VALID], "tokens": list("abc")}, r"no argument 'attentions' \(did you mean attention"),
    ({"attention": [VALID], "tokens": list("abc"), "precision": "itn16"}, "did you mean int16"),
]


@pytest.mark.parametrize(("arguments", "sentence"), ERRORS)
def test_invalid_arguments_are_refused_in_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(pellucid.InputError, match=sentence):
        pellucid.view(**arguments).html()


def test_wrong_combinations_of_arguments_are_refused(minilm: pellucid.Model) -> None:
    with pytest.raises(pellucid.InputError, match="a trace was given together with 'tokens'"):
        pellucid.view(minilm.trace("time"), tokens=["a"])
    with pytest.raises(pellucid.InputError, match=r"^view has no argument 'layr' \(did you mean layer\?\)$"):
        pellucid.view(minilm.trace("time"), layr=1)
    with pytest.raises(pellucid.InputError, match="include_layers names no layer"):
        pellucid.view(minilm.trace("time"), include_layers=[])
    with pytest.raises(pellucid.InputError, match=r"not TracedText: view\(model.trace\(prompt \+ text\)\)"):
        pellucid.view(TracedText("The sky", " is", ()))
    with pytest.raises(pellucid.InputError, match="not tuple"):
        pellucid.view((VALID,))


def test_differing_numbers_of_heads_are_not_summarized(show: Show) -> None:
    def uniform_attention(*shape: int) -> list[torch.Tensor]:
        return [torch.full((1, *shape), 1 / shape[-1])] * 2

    sides = {"encoder_tokens": list("abcde"), "decoder_tokens": list("xyz")}
    view = pellucid.view(
        encoder_attention=uniform_attention(3, 5, 5), cross_attention=uniform_attention(4, 3, 5), **sides
    )
    assert "2 layers  ·" in show(view.html()).locator(".model").inner_text()
    view = pellucid.view(
        encoder_attention=uniform_attention(4, 5, 5), cross_attention=uniform_attention(4, 3, 5), **sides
    )
    assert "2 layers × 4 heads  ·" in show(view.html()).locator(".model").inner_text()


@pytest.mark.parametrize(
    ("other", "message"), [(2, "2 + 1 layers × 6 + 2 heads  ·"), (6, "2 + 1 layers × 6 heads of 8  ·")]
)
def test_numbers_of_heads_of_encoder_and_decoder_are_shown(
    other: int, message: str, show: Show, minilm: "pellucid.Model"
) -> None:
    facts = {"num_decoder_layers": 1, "decoder_attention_heads": other, "decoder_intermediate_size": 40}
    config = pellucid.Config.of("bart", vocab_size=len(minilm.tokenizer), hidden_size=48, num_hidden_layers=2,
                                num_attention_heads=6, intermediate_size=40, **facts)  # fmt: skip
    trace = pellucid.build(config, tokenizer=minilm.tokenizer).trace("time flies", target="le temps")
    assert message in show(pellucid.view(trace).html()).locator(".model").inner_text()

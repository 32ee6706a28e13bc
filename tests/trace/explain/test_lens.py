"""The logit lens: its last row is the model's own output, for every family that has a head over the vocabulary."""

import pytest
import torch

import pellucid
from pellucid import InputError
from pellucid.edits import scale
from tests.conftest import tiny_config
from tests.trace.explain.models import built_model, families_with_heads

TEXT = "time flies like an arrow"
FAMILIES = families_with_heads("causal-lm", "masked-lm", "sequence-to-sequence-lm")


@pytest.mark.parametrize(("family", "head"), FAMILIES)
def test_last_row_equals_the_models_output(minilm: pellucid.Model, family: str, head: str) -> None:
    model = built_model(minilm.tokenizer, family, head)
    lens = model.explain.logit_lens(TEXT, k=4)
    own = model.trace(TEXT, keep="logits")["logits"][0].log_softmax(-1).topk(4)
    assert torch.equal(lens.ids[-1], own.indices)
    torch.testing.assert_close(lens.log_probabilities[-1], own.values, rtol=0, atol=1e-12)
    assert lens.kind == ("masked token" if head == "masked-lm" else "next token")
    layers = 2 if head == "sequence-to-sequence-lm" else 3
    assert lens.ids.shape == lens.log_probabilities.shape == (layers + 1, len(lens.tokens), 4)
    side = "decoder." if head == "sequence-to-sequence-lm" else ""
    assert (
        lens.points[0] == f"{side}embeddings.output" and lens.points[-1] == f"{side}layers.{layers - 1}.residual.post"
    )
    assert set(lens.tokens_by_id) == set(lens.ids.flatten().tolist())


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_each_row_equals_the_output_of_a_truncated_model(minilm: pellucid.Model, family: str) -> None:
    head = "causal-lm" if family == "gpt2" else "sequence-to-sequence-lm"
    model = built_model(minilm.tokenizer, family, head)
    lens = model.explain.logit_lens(TEXT, k=3)
    stack = model.module.decoder if family == "t5" else model.module
    stack.layers = stack.layers[:1]  # norm and head are kept
    shallow = model.trace(TEXT, keep="logits")["logits"][0].log_softmax(-1).topk(3)
    assert torch.equal(lens.ids[1], shallow.indices)
    torch.testing.assert_close(lens.log_probabilities[1], shallow.values)


def test_trace_and_text_give_the_same_lens(minilm: pellucid.Model) -> None:
    model = built_model(minilm.tokenizer, "llama", "causal-lm")
    trace = model.trace(TEXT, keep=["embeddings.output", "*residual.post"])
    one, other = model.explain.logit_lens(trace), model.explain.logit_lens(TEXT)
    assert torch.equal(one.ids, other.ids) and torch.equal(one.log_probabilities, other.log_probabilities)
    with pytest.raises(InputError, match=r"no 'embeddings.output'"):
        model.explain.logit_lens(model.trace(TEXT, keep="*residual.post"))


def test_stored_explainers_follow_the_edits_of_a_block(minilm: pellucid.Model) -> None:
    model = built_model(minilm.tokenizer, "llama", "causal-lm")
    before, plain = model.explain, model.explain.logit_lens(TEXT).log_probabilities
    with model.edit({"layers.1.residual.post": scale(3.0)}):
        within, edited = model.explain, model.explain.logit_lens(TEXT).log_probabilities
        assert torch.equal(before.logit_lens(TEXT).log_probabilities, edited)
    assert not torch.equal(edited, plain)
    for explainer in (before, within):
        assert torch.equal(explainer.logit_lens(TEXT).log_probabilities, plain)


def test_decoder_text_can_be_passed(minilm: pellucid.Model) -> None:
    model = built_model(minilm.tokenizer, "bart", "sequence-to-sequence-lm")
    lens = model.explain.logit_lens(TEXT, decoder_text="fruit flies")
    assert lens.tokens[2:4] == ("fruit", "flies")
    assert lens.ids.shape[1] == len(lens.tokens) != len(model.tokenizer.encode([TEXT])[0].ids)


def test_answer_of_a_real_model_appears_in_later_layers(smollm: pellucid.Model) -> None:
    lens = smollm.explain.logit_lens("The capital of France is", k=3)
    rows = [[lens.tokens_by_id[i] for i in place] for place in lens.ids[:, -1].tolist()]
    assert rows[-1][0] == "ĠParis"
    assert lens.points[rows.index(rows[-1])] == "layers.29.residual.post"
    assert not any("ĠParis" in row for row in rows[:15])  # it appears only in the later half
    assert "·Paris" in repr(lens) and "Ġ" not in repr(lens) and len(repr(lens).splitlines()) == 33


def test_byte_level_tokens_are_shown_as_characters(smollm: pellucid.Model) -> None:
    shown = repr(smollm.explain.logit_lens("東京の人口 は"))
    assert all(word in shown.splitlines()[1] for word in ("の", "·", "<0x")) and "ģ" not in shown


def test_long_lens_shows_its_end_and_newlines_stay_in_their_cell(minilm: pellucid.Model) -> None:
    explain = built_model(minilm.tokenizer, "gpt2", "causal-lm").explain
    lens = explain.logit_lens("word " * 30)
    assert "the last 8 of 32 positions" in repr(lens) and "positions" not in repr(explain.logit_lens("word"))
    odd = pellucid.trace.explain.LogitLens(
        lens.kind, lens.points, ("a\nb",) * 32, lens.ids, lens.log_probabilities, lens.tokens_by_id
    )
    assert len(repr(odd).splitlines()) == len(repr(lens).splitlines())


def test_invalid_arguments_are_refused(minilm: pellucid.Model, tmp_path: object) -> None:
    model = built_model(minilm.tokenizer, "gpt2", "causal-lm")
    with pytest.raises(InputError, match=r"the logit lens needs a masked-lm or .* head, and this model has no head"):
        minilm.explain.logit_lens(TEXT)
    with pytest.raises(InputError, match="this model has a sequence-classification head"):
        built_model(minilm.tokenizer, "bert", "sequence-classification").explain.logit_lens(TEXT)
    with pytest.raises(InputError, match="text is list, expected one text"):
        model.explain.logit_lens(["one", "two"])
    with pytest.raises(InputError, match="the text is empty"):
        model.explain.logit_lens("")
    with pytest.raises(InputError, match=r"k is 0, expected a whole number from 1 to 30,522"):
        model.explain.logit_lens(TEXT, k=0)
    with pytest.raises(InputError, match="decoder_text was given, and a model of kind 'decoder'"):
        model.explain.gradient_x_input(TEXT, decoder_text="x")
    with pytest.raises(InputError, match="decoder_text was given beside a trace, which has read its own"):
        model.explain.logit_lens(model.trace(TEXT), decoder_text="fruit")
    with pytest.raises(InputError, match="602 tokens, and this model reads 512: explain it in parts"):
        model.explain.logit_lens("word " * 600)
    with pytest.raises(InputError, match=r"came without a tokenizer.* model\(ids\) alone reads ids"):
        pellucid.build(model.config).explain.logit_lens(TEXT)
    other = built_model(minilm.tokenizer, "gpt2", "causal-lm", num_hidden_layers=2)
    with pytest.raises(InputError, match="not those of this model: trace it again"):
        model.explain.logit_lens(other.trace(TEXT))


def test_untrained_head_over_a_trained_body_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    model = pellucid.load("all-MiniLM-L6-v2", head="masked-lm")
    with pytest.raises(InputError, match="would explain random numbers: the checkpoint has no masked-lm head"):
        model.explain.logit_lens(TEXT)
    assert tiny_config().head is None


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("family", "head"), [("gpt2", "causal-lm"), ("bert", "masked-lm")])
def test_trace_of_another_model_is_reported(
    minilm: pellucid.Model, family: str, head: str, dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The other model's residual stream through this model's head is the output of neither."""
    model, other = (built_model(minilm.tokenizer, family, head, dtype) for _ in range(2))
    model.explain.logit_lens(other.trace(TEXT))
    assert not caplog.messages
    with torch.no_grad():
        for one in other.module.parameters():
            one.add_(torch.randn_like(one), alpha=0.2)
    model.explain.logit_lens(other.trace(TEXT))
    assert "is the trace of a model with other weights?" in caplog.text

"""Edits over several passes: batches with padding, texts generated token by token, and their probabilities."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import pellucid
from pellucid import InputError
from pellucid.edits import Edit, add, fixed, patch, scale, zero
from pellucid.trace import EditRecord
from pellucid.trace.selection import Selection
from tests.trace.small_models import small_model

TEXTS = ["time flies like an arrow", "fruit", "a banana is a fruit that flies like time"]
DECODERS = ["gpt2", "llama", "mistral", "qwen2"]
ENCODER_DECODERS = ["bart", "t5", "transformer"]
VECTOR = torch.linspace(-1, 1, 24, dtype=torch.float64)

EDITS: dict[str, tuple[str, Edit]] = {
    "a position of the prompt": ("residual.pre", add(VECTOR, 3.0, position=2)),
    "a position that is written": ("residual.pre", add(VECTOR, 3.0, position=9)),
    "from a position on": ("attention.heads", scale(3.0, head=1, position=slice(6, None))),
    "each last token": ("feed_forward.hidden", fixed(0.25, neuron=[0, 5, 7], position=-1)),
    "a source": ("attention.weights", zero(source=1, head=[0, 2])),
    "a source of scores": ("attention.scores", fixed(-torch.inf, source=[3, 8])),
    "the first source of scores": ("attention.scores", fixed(-torch.inf, source=0)),
    "scores turned round": ("attention.scores", scale(-1.0)),
    "equal scores": ("attention.scores", zero()),
    "everything": ("attention.value", scale(0.5)),
}


@pytest.fixture(scope="module", params=DECODERS)
def model(request: pytest.FixtureRequest, minilm: pellucid.Model) -> pellucid.Model:
    """A decoder in float64, so that rounding can be told from an error."""
    return small_model(request.param, minilm, dtype="float64", pad_token_id=0)


@pytest.fixture(scope="module", params=ENCODER_DECODERS)
def pair(request: pytest.FixtureRequest, minilm: pellucid.Model) -> pellucid.Model:
    return small_model(request.param, minilm, dtype="float64", decoder_start_token_id=101)


def generate_without_cache(model: pellucid.Model, ids: list[int], steps: int) -> list[int]:
    """Greedy tokens without a cache: every pass reads the whole text again."""
    for _ in range(steps):
        ids = [*ids, int(model(torch.tensor([ids]))["logits"][0, -1].argmax())]
    return ids[-steps:]


@pytest.mark.parametrize("edit_name", EDITS)
def test_generation_with_a_cache_equals_generation_without(model: pellucid.Model, edit_name: str) -> None:
    point, edit = EDITS[edit_name]
    if edit.where.chosen.get("position") == -1:  # which is a different position when the whole text is read again
        edit = fixed(0.25, neuron=[0, 5, 7], position=slice(6, None))
    ids = model.tokenizer.encode([TEXTS[0]])[0].ids  # 7 tokens
    plain = generate_without_cache(model, ids, 5)
    with model.edit({f"layers.1.{point}": edit}):
        found = model.complete(TEXTS[0], max_new_tokens=5)
        expected = generate_without_cache(model, ids, 5)
    assert list(found.ids) == expected
    assert plain != expected or edit_name != "everything"


def test_last_position_is_the_last_token_of_each_pass(model: pellucid.Model) -> None:
    name = "layers.2.residual.post"
    with model.edit({name: fixed(VECTOR, position=-1)}):
        written = model.trace_writing(TEXTS[0], max_new_tokens=3)
    for step in written.steps:
        assert torch.equal(step[name][0, -1], VECTOR)
    assert not torch.equal(written.steps[0][name][0, -2], VECTOR)
    assert len({step.id for step in written.steps}) == 1  # equal streams give equal tokens


@pytest.mark.parametrize("edit_name", EDITS)
def test_generation_of_a_batch_equals_single_prompts(model: pellucid.Model, edit_name: str) -> None:
    point, edit = EDITS[edit_name]
    with model.edit({f"layers.1.{point}": edit}):
        together = model.generate(TEXTS, max_new_tokens=10)
        alone = [model.generate(text, max_new_tokens=10) for text in (TEXTS[0], TEXTS[2])]
        beams = model.generate(TEXTS[0], max_new_tokens=4, num_beams=3)
    assert [together[0], together[2]] == alone
    assert isinstance(beams, str)


@pytest.mark.parametrize("edit_name", EDITS)
def test_scores_of_a_batch_equal_single_texts(model: pellucid.Model, edit_name: str) -> None:
    point, edit = EDITS[edit_name]
    with model.edit({f"layers.1.{point}": edit}):
        together = model.score([TEXTS[2], TEXTS[0] + " and fruit"])
        alone = model.score(TEXTS[2])
        trace = model.trace(TEXTS[2])
    log_probabilities = trace["logits"][0].log_softmax(dim=-1)
    expected = log_probabilities[:-1].gather(1, torch.tensor(alone.ids)[1:, None]).sum()
    assert alone.total == pytest.approx(float(expected), abs=1e-9)
    assert together[0].total == pytest.approx(alone.total, abs=1e-9)


@pytest.mark.parametrize("edit", [fixed(-torch.inf, source=0), scale(-1.0), scale(0.0), zero()], ids=str)
def test_edits_of_scores_respect_the_causal_mask(model: pellucid.Model, edit: Edit) -> None:
    """The first token, which may attend only to itself, attends to nothing once that is taken away."""
    with model.edit({"layers.*.attention.scores": edit}):
        trace = model.trace(TEXTS[0])
    for layer in range(model.config.num_hidden_layers):
        weights = trace[f"layers.{layer}.attention.weights"][0]
        assert not weights.triu(1).any()
        masked = edit.description.startswith("fixed")
        assert weights[:, 0].sum(-1).tolist() == pytest.approx([0.0 if masked else 1.0] * len(weights))


@pytest.mark.parametrize("attention", ["fused", "explicit"])
def test_bias_of_minus_infinity_gives_zero_weight(minilm: pellucid.Model, attention: str) -> None:
    model = small_model("t5", minilm, dtype="float64", decoder_start_token_id=101, attention=attention)
    with model.edit({"decoder.position_bias": fixed(-torch.inf, source=0)}):
        weights = model.trace(TEXTS[0], target=TEXTS[2])["decoder.layers.0.attention.weights"][0]
    assert not weights[..., 0].any() and not weights.triu(1).any() and not weights[:, 0].any()
    assert weights[:, 1:].sum(-1).flatten().tolist() == pytest.approx([1.0] * weights[:, 1:, 0].numel())


def test_scored_logits_can_be_edited(model: pellucid.Model) -> None:
    with model.edit({"logits": zero()}):
        scored = model.score(TEXTS[0])
    vocabulary = model.config.vocab_size
    assert scored.perplexity == pytest.approx(vocabulary)


def test_edit_of_logits_that_are_not_computed_is_an_error(model: pellucid.Model) -> None:
    message = r"position 2 was not among the positions that were computed there"
    with pytest.raises(InputError, match=message), model.edit({"logits": zero(position=[2, 6])}):
        model.generate(TEXTS[0], max_new_tokens=2)  # which computes the logits of the last token only
    with model.edit({"logits": fixed(-torch.inf, position=6)}):
        model.generate(TEXTS[0], max_new_tokens=2)


@pytest.mark.parametrize("position", [0, 2, -1, slice(1, None), slice(-2, None)])
def test_positions_of_edits_do_not_count_padding(minilm: pellucid.Model, position: int | slice) -> None:
    bert, llama = small_model("bert", minilm), small_model("llama", minilm)
    stream, table = "layers.1.residual.pre", "embeddings.position"
    for model, name, left in (
        (minilm, stream, False),
        (bert, table, False),
        (llama, stream, False),
        (llama, stream, True),
    ):
        side = {"padding": "left"} if left else {}
        with model.edit({name: scale(2.0, position=position)}):
            together = model.trace(TEXTS, **side)
            for i, text in enumerate(TEXTS):
                alone, row = model.trace(text), together.row(i)
                for one in (name, "layers.2.residual.post"):
                    torch.testing.assert_close(row[one], alone[one], rtol=1e-3, atol=1e-4)


def test_embeddings_of_a_batch_equal_single_texts(minilm: pellucid.Model) -> None:
    with minilm.edit({"layers.2.attention.heads": scale(3.0, head=1, position=-2)}):
        together = minilm.embed(TEXTS)
        alone = torch.stack([minilm.embed(text) for text in TEXTS])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(together, minilm.embed(TEXTS), atol=1e-3)


def test_edit_of_one_row_of_a_batch(minilm: pellucid.Model) -> None:
    name = "layers.2.residual.post"
    with minilm.edit({name: zero(row=1)}):
        trace = minilm.trace(TEXTS)
    assert not trace[name][1].any() and torch.equal(trace[name][[0, 2]], minilm.trace(TEXTS)[name][[0, 2]])


def test_edits_of_rows_apply_to_calls_and_traces_only(model: pellucid.Model) -> None:
    message = "an edit of a row holds for calls of the model and for traces alone"
    for call in (
        lambda: model.embed(TEXTS),
        lambda: model.score(TEXTS),
        lambda: model.generate(TEXTS, max_new_tokens=2),
        lambda: model.generate(TEXTS[0], max_new_tokens=2, num_beams=2),
        lambda: list(model.stream(TEXTS[0], max_new_tokens=2)),
        lambda: model.trace_writing(TEXTS[0], max_new_tokens=2),
        lambda: model.sweep(TEXTS[0], ("banana", "arrow")),
        lambda: model.explain.integrated_gradients(TEXTS[0], "banana"),
        lambda: model.explain.gradient_x_input(TEXTS[0], "banana"),
        lambda: model.explain.head_scores(),
    ):
        with pytest.raises(InputError, match=message), model.edit({"layers.2.residual.post": scale(0.5, row=0)}):
            call()
    with model.edit({"layers.2.residual.post": scale(0.5, row=1)}):
        assert not torch.equal(model(TEXTS).logits[1], model.trace(TEXTS[1], keep="logits")["logits"][0])


def test_scaled_scores_with_left_padding_have_no_nan(model: pellucid.Model) -> None:
    for edit in (scale(1.7), scale(1.7, head=1), lambda scores: scores * 1.7):
        with model.edit({"layers.1.attention.scores": edit}):
            together = model.trace(TEXTS, padding="left")
            for i, text in enumerate(TEXTS):
                torch.testing.assert_close(together.row(i)["logits"], model.trace(text)["logits"])


def test_patch_is_applied_at_its_original_positions(model: pellucid.Model) -> None:
    name, text = "layers.1.residual.post", "fruit flies like a banana"
    later, plain = model.trace("fruit like", after="time flies"), model.trace(text)["logits"]
    begin, count = len(later.before), len(later.tokens)
    assert begin > 1 and count > 1
    for i in range(count):
        with model.edit({name: patch(later, position=begin + i)}):
            found = model.trace(text)["logits"]
        with model.edit({name: fixed(later[name][0, i], position=begin + i)}):
            assert torch.equal(found, model.trace(text)["logits"]) and not torch.equal(found, plain)
    with model.edit({name: patch(later)}):
        torch.testing.assert_close(model.trace("fruit like", after="time flies")["logits"], later["logits"])
    refused = pytest.raises(InputError, match=f"position 0 .* which has {count}, from position {begin} on")
    with refused, model.edit({name: patch(later, position=0)}):
        model.trace(text)


def test_patch_of_one_row_needs_no_match_in_the_others(model: pellucid.Model) -> None:
    name, source = "layers.1.residual.post", model.trace("fruit flies like an arrow")
    with model.edit({name: patch(source, row=0)}):
        together = model.trace(TEXTS)
    with model.edit({name: patch(source)}):
        alone = model.trace(TEXTS[0])
    torch.testing.assert_close(together.row(0)["logits"], alone["logits"])
    torch.testing.assert_close(together.row(2)["logits"], model.trace(TEXTS[2])["logits"])
    with pytest.raises(InputError, match="are to be patched into"), model.edit({name: patch(source, row=2)}):
        model.trace(TEXTS)


def test_positions_count_the_tokens_in_the_cache(minilm: pellucid.Model) -> None:
    model = small_model("llama", minilm, dtype="float64")
    with model.edit({"layers.1.residual.pre": add(VECTOR, position=[1, 5])}):
        whole = model.trace("time flies like an arrow")["logits"]
        ids = model.tokenizer.encode(["time flies like an arrow"])[0].ids
        cache = model.module.new_cache(16)
        parts = [model.module(torch.tensor([some]), cache=cache)["logits"] for some in (ids[:3], ids[3:6], ids[6:])]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


# -- pairs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("encoder.layers.1.residual.pre", add(VECTOR, 2.0, position=2)),
        ("decoder.layers.1.residual.pre", add(VECTOR, 2.0, position=3)),
        ("decoder.layers.0.cross_attention.weights", zero(source=2)),
        ("decoder.layers.0.cross_attention.key", scale(-1.0, source=-1)),
        ("decoder.layers.1.attention.weights", zero(source=0, head=1)),
        ("logits", add(5.0, position=-1)),
    ],
)
def test_generation_of_an_edited_encoder_decoder(pair: pellucid.Model, name: str, edit: Edit) -> None:
    ids = torch.tensor([pair.tokenizer.encode([TEXTS[0]])[0].ids])
    with pair.edit({name: edit}):
        found = pair.complete(TEXTS[0], max_new_tokens=5)
        generated = [101]
        for _ in range(5):
            logits = pair(ids, decoder_input_ids=torch.tensor([generated]))["logits"]
            generated.append(int(logits[0, -1].argmax()))
        several = pair.generate(TEXTS, max_new_tokens=5)
        assert several[0] == pair.generate(TEXTS[0], max_new_tokens=5)
        both = pair.score(TEXTS[:2], target=["fruit flies like", "time flies"])
        one = pair.score(TEXTS[0], target="fruit flies like")
    assert list(found.ids) == generated[1:]
    assert both[0].total == pytest.approx(one.total, abs=1e-9)


def test_patch_affects_the_prompt_but_not_generated_tokens(minilm: pellucid.Model) -> None:
    model = small_model("llama", minilm, dtype="float64")
    other, name = model.trace("fruit eats like the banana"), "layers.1.residual.pre"
    with model.edit({name: patch(other)}):
        written = model.trace_writing("time flies like an arrow", max_new_tokens=3)
    with model.edit({name: patch(other)}) as edited:
        plain = edited.trace("fruit eats like the banana", keep=name).edits
    assert written.edits == plain == (EditRecord(name, str(patch(other))),)
    assert model.trace_writing("fruit", max_new_tokens=1).edits == ()
    assert torch.equal(written.steps[0][name], other[name])
    first = written.steps[0].id
    assert first == int(other["logits"][0, -1].argmax())
    assert written.steps[1][name].shape == (1, 1, 24)
    with pytest.raises(InputError, match="position 9 of layers"), model.edit({name: patch(other, position=9)}):
        model.generate("time flies like an arrow", max_new_tokens=3)


@pytest.mark.parametrize("point", ["attention.heads", "cross_attention.heads", "cross_attention.weights"])
def test_patch_from_its_own_step_changes_no_logits(pair: pellucid.Model, point: str) -> None:
    written = pair.trace_writing(TEXTS[0], max_new_tokens=4)
    with pair.edit({f"decoder.layers.0.{point}": patch(written.steps[0])}):
        again = pair.trace_writing(TEXTS[0], max_new_tokens=4)
    assert len(written.steps) > 1
    for one, other in zip(written.steps, again.steps, strict=True):
        torch.testing.assert_close(other["logits"], one["logits"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("edit", [fixed(0.1), add(0.1), lambda weights: weights + 0.1])
@pytest.mark.parametrize("point", ["attention.weights", "attention.scores"])
def test_no_edit_gives_weight_to_padding(minilm: pellucid.Model, point: str, edit: Any) -> None:
    bert, llama = (small_model(family, minilm, dtype="float64") for family in ("bert", "llama"))
    pair = small_model("bart", minilm, dtype="float64", decoder_start_token_id=101)
    for model, side, left in (
        (bert, "", {}),
        (llama, "", {}),
        (llama, "", {"padding": "left"}),
        (pair, "encoder.", {}),
        (pair, "decoder.", {}),
    ):
        with model.edit({f"{side}layers.1.{point}": edit}):
            together, alone = model.trace(TEXTS, **left), [model.trace(text) for text in TEXTS]
        for i, one in enumerate(alone):
            for name in ("logits", f"{side}layers.1.{point}"):
                torch.testing.assert_close(together.row(i)[name], one[name])


def test_edited_embeddings_and_scores_do_not_depend_on_the_batch(minilm: pellucid.Model) -> None:
    bert, gpt2 = small_model("bert", minilm), small_model("gpt2", minilm)
    with bert.edit({"layers.0.attention.weights": fixed(0.1)}), gpt2.edit({"layers.0.attention.weights": fixed(0.1)}):
        torch.testing.assert_close(bert.embed(TEXTS)[0], bert.embed(TEXTS[0]))
        assert gpt2.score(TEXTS)[0].total == pytest.approx(gpt2.score(TEXTS[0]).total, abs=1e-4)
        assert gpt2.generate(TEXTS, max_new_tokens=3)[0] == gpt2.generate(TEXTS[0], max_new_tokens=3)


@pytest.mark.parametrize(
    "family, point",
    [
        ("gpt2", "embeddings.position"),
        ("bert", "embeddings.position"),
        ("mpnet", "position_bias"),
        ("t5", "encoder.position_bias"),
        ("bart", "decoder.embeddings.position"),
    ],
)
@pytest.mark.parametrize("texts", [TEXTS, TEXTS[:1] * 3])
def test_edit_of_one_row_of_shared_values(minilm: pellucid.Model, family: str, point: str, texts: list[str]) -> None:
    model = small_model(family, minilm, dtype="float64")
    pair = model.config.kind == "encoder-decoder"
    if pair:
        model = small_model(family, minilm, dtype="float64", decoder_start_token_id=101)
    source = model.trace(texts[2])
    for edit in (zero(row=1), add(0.5, row=1, position=0), patch(source, row=2)):
        row = edit.where.chosen["row"]
        with model.edit({point: edit}):
            together = model.trace(texts)
        with model.edit({point: replace(edit, where=Selection.from_keywords(edit.where.chosen | {"row": None}))}):
            alone = model.trace(texts[row])
        for i, text in enumerate(texts):
            expected = alone if i == row else model.trace(text)
            for name in (point, "logits"):
                torch.testing.assert_close(together.row(i)[name], expected[name])

"""Gradient x input and integrated gradients: against finite differences of the model's outputs, on every head."""

import pytest
import torch
from torch import Tensor

import pellucid
from pellucid import InputError
from tests.quick import few
from tests.trace.explain.models import built_model, families_with_heads

TEXT = "time flies like an arrow"
KINDS = ("zero", "pad", "mask")
HEADS = ("causal-lm", "masked-lm", "sequence-to-sequence-lm", "sequence-classification", "token-classification")
FAMILIES = families_with_heads(*HEADS, "question-answering", "next-sentence")


class Scaled:
    """An observer that multiplies each token's embeddings by a factor, separately for encoder and decoder."""

    def __init__(self, factors: dict[str, Tensor]) -> None:
        self.factors = factors

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return value * self.factors[name][:, None] if name in self.factors else value

    def wants(self, name: str) -> bool:
        return False


def explanation_arguments(model: pellucid.Model, text: str = TEXT) -> dict[str, object]:
    """Arguments of an explanation that suit the model's head."""
    kind = model.config.head.name
    if kind in ("sequence-classification", "next-sentence"):
        return {"text": text, "target": 1}
    target = {"token-classification": "LABEL_1", "question-answering": "end"}.get(kind, "banana")
    return {"text": text, "target": target, "position": 2}


def target_logit(model: pellucid.Model, arguments: dict[str, object], factors: dict[str, Tensor]) -> float:
    """The target logit, with the embeddings multiplied."""
    batch = model.tokenizer(str(arguments["text"]), return_tensors="pt")
    inputs = {name: ids for name, ids in batch.items() if name != "attention_mask"}
    inputs = {name: ids for name, ids in inputs.items() if name in model.module.input_names}
    with torch.no_grad():
        logits = model.module(**inputs, observer=Scaled(factors)).logits[0]
    numbers = {"banana": model.tokenizer.convert_tokens_to_ids(["banana"])[0], "LABEL_1": 1, "end": 1, 1: 1}
    row = logits if logits.dim() == 1 else logits[int(str(arguments["position"]))]
    return float(row[numbers[arguments["target"]]])


@pytest.mark.parametrize(("family", "head"), FAMILIES)
def test_gradients_equal_finite_differences(minilm: pellucid.Model, family: str, head: str) -> None:
    model = built_model(minilm.tokenizer, family, head)
    arguments = explanation_arguments(model)
    result = model.explain.gradient_x_input(**arguments)
    assert result.value == pytest.approx(target_logit(model, arguments, {}), abs=1e-9)
    sides = {"embeddings.output": result.scores}
    if model.config.kind == "encoder-decoder":
        sides = {"encoder.embeddings.output": result.scores, "decoder.embeddings.output": result.read_scores}
    assert result.scores.shape == (7,) == (len(result.tokens),) and len(result.read) == len(result.read_scores)
    for name, scores in sides.items():
        for token in (0, 2, 5):
            step = torch.zeros(7, dtype=torch.float64)
            step[token] = 1e-6
            up, down = (target_logit(model, arguments, {name: 1 + sign * step}) for sign in (1, -1))
            assert float(scores[token]) == pytest.approx((up - down) / 2e-6, rel=1e-4, abs=1e-6)
    assert result.error is None and result.baseline is None


@pytest.mark.parametrize(("family", "head"), few(FAMILIES, ["bert", "llama", ("t5", "question-answering")]))
def test_integrated_gradients_sum_to_the_difference_of_outputs(minilm: pellucid.Model, family: str, head: str) -> None:
    model = built_model(minilm.tokenizer, family, head)
    arguments = explanation_arguments(model)
    deep = family == "t5"  # many norms in two stacks: the gradient varies wildly near zero
    steps = {"baseline": "pad", "steps": 2000} if deep else {}
    result = model.explain.integrated_gradients(**arguments, **steps)
    zeros = {f"{side}embeddings.output": torch.zeros(7) for side in ("", "encoder.", "decoder.")}
    assert result.value == pytest.approx(target_logit(model, arguments, {}), abs=1e-9)
    assert deep or result.baseline == pytest.approx(target_logit(model, arguments, zeros), abs=1e-9)
    scores = torch.cat((result.scores, result.read_scores))
    total = float(scores.sum())
    assert abs(total - (result.value - result.baseline)) == pytest.approx(result.error, abs=1e-9)
    assert result.error < 0.005 * float(scores.abs().sum())


def test_integrated_gradients_equal_a_numerical_integral(minilm: pellucid.Model) -> None:
    """Against the plain sum over 200 points of the path, of slopes by finite differences."""
    model = built_model(minilm.tokenizer, "bert", "sequence-classification")
    result = model.explain.integrated_gradients(TEXT, 1)
    for token in (1, 4):
        total, step = 0.0, torch.zeros(7, dtype=torch.float64)
        step[token] = 1e-5
        for fraction in (torch.arange(200) + 0.5) / 200:
            up, down = (
                target_logit(model, {"text": TEXT, "target": 1}, {"embeddings.output": fraction + sign * step})
                for sign in (1, -1)
            )
            total += (up - down) / 2e-5 / 200
        assert float(result.scores[token]) == pytest.approx(total, abs=2e-3)


def test_baseline_of_padding_or_mask_tokens(minilm: pellucid.Model) -> None:
    model = built_model(minilm.tokenizer, "bert", "sequence-classification")
    for kind in ("pad", "mask"):
        result = model.explain.integrated_gradients(TEXT, 0, baseline=kind)
        empty = model.tokenizer(TEXT, return_tensors="pt")
        empty["input_ids"] = empty.input_ids.clone()
        empty["input_ids"][0, 1:-1] = model.tokenizer.special_ids and getattr(model.tokenizer, f"{kind}_token_id")
        with torch.no_grad():
            expected = model.module(empty.input_ids, token_type_ids=empty.token_type_ids).logits[0, 0]
        assert result.baseline == pytest.approx(float(expected), abs=1e-9)
        assert result.scores[0] == result.scores[-1] == 0  # special tokens are the same in text and baseline
        assert result.error < 0.005 * float(result.scores.abs().sum())


def test_positions_stay_the_same_along_the_path_from_padding(minilm: pellucid.Model) -> None:
    """RoBERTa numbers tokens other than padding; along the path from padding, positions stay those of the text."""
    pad = minilm.tokenizer.pad_token_id
    model = built_model(minilm.tokenizer, "roberta", "sequence-classification", pad_token_id=pad)
    assert model.config.skip_padding, "else there is nothing to count"
    row = model.module.embeddings.token(torch.tensor([pad]))
    inner = torch.tensor([[0], *[[1]] * 5, [0]], dtype=torch.bool)
    with model.edit({"embeddings.token": lambda value: row.where(inner, value)}) as edited, torch.no_grad():
        expected = float(edited(TEXT).logits[0, 1])
    result = model.explain.integrated_gradients(TEXT, 1, baseline="pad")
    assert result.baseline == pytest.approx(expected, abs=1e-9)
    assert result.error < 0.005 * float(result.scores.abs().sum())


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_path_ends_at_the_text_in_bfloat16(minilm: pellucid.Model, family: str) -> None:
    """In bfloat16, the baseline and the difference added to it do not sum exactly to the text."""
    head = {"bert": "sequence-classification", "gpt2": "causal-lm"}.get(family, "sequence-to-sequence-lm")
    model = built_model(minilm.tokenizer, family, head, "bfloat16")
    target = 1 if family == "bert" else "banana"
    values = {kind: model.explain.integrated_gradients(TEXT, target, baseline=kind, steps=32).value for kind in KINDS}
    assert len(set(values.values())) == 1, values


def test_text_equal_to_its_baseline_has_zero_scores(minilm: pellucid.Model) -> None:
    model = built_model(minilm.tokenizer, "bert", "masked-lm")
    result = model.explain.integrated_gradients("[MASK]", "banana", baseline="mask")
    assert torch.equal(result.scores, torch.zeros(3, dtype=torch.float64)) and result.error < 1e-12


def test_targets_and_positions_are_inferred(minilm: pellucid.Model) -> None:
    masked = built_model(minilm.tokenizer, "bert", "masked-lm").explain
    result = masked.gradient_x_input("time [MASK] like an arrow", "flies")
    assert result.target == "logit of 'flies' at position 2"
    assert result.value == masked.gradient_x_input("time [MASK] like an arrow", "flies", position=-5).value
    labels = built_model(minilm.tokenizer, "bert", "sequence-classification", labels=("bad", "good"))
    logits = labels.trace(TEXT, keep="logits")["logits"][0]
    likeliest = labels.explain.gradient_x_input(TEXT)
    assert likeliest.target == f"logit of {labels.config.labels[int(logits.argmax())]!r}"
    both = labels.explain.gradient_x_input(TEXT, "good", against="bad")
    assert both.target == "logit of 'good' minus that of 'bad'"
    assert both.value == pytest.approx(float(logits[1] - logits[0]), abs=1e-9)
    pair = labels.explain.gradient_x_input("time flies", "good", pair="fruit flies")
    assert len(pair.tokens) == 7 and pair.tokens[3] == "[SEP]"
    writer = built_model(minilm.tokenizer, "t5", "sequence-to-sequence-lm").explain
    with_decoder = writer.gradient_x_input(TEXT, "banana", decoder_text="fruit flies like")
    assert (
        len(with_decoder.tokens) == 7
        and with_decoder.read[2:4] == ("fruit", "flies")
        and len(with_decoder.read_scores) == 5
    )
    assert (with_decoder.scores != 0).all() and with_decoder.target.endswith("at position 4")
    assert [row.split()[0] for row in repr(with_decoder).splitlines()[1:8]] == list(with_decoder.tokens)
    assert with_decoder.strongest(1)[0][2] == float(with_decoder.scores[with_decoder.scores.abs().argmax()])


def test_parameters_get_no_gradient(minilm: pellucid.Model) -> None:
    model = built_model(minilm.tokenizer, "gpt2", "causal-lm")
    expected = model.explain.integrated_gradients(TEXT, "banana", steps=8).scores
    for setting in (torch.no_grad(), torch.inference_mode()):  # the caller's own mode has no effect
        with setting:
            assert torch.equal(model.explain.integrated_gradients(TEXT, "banana", steps=8).scores, expected)
            assert not model.explain.gradient_x_input(TEXT, "banana").scores.is_inference()
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    model.train()
    again = model.explain.gradient_x_input(TEXT, "banana")
    assert model.module.training
    assert torch.equal(again.scores, model.eval().explain.gradient_x_input(TEXT, "banana").scores)


def test_rounding_of_half_precision_is_reported(minilm: pellucid.Model, caplog: pytest.LogCaptureFixture) -> None:
    model = built_model(minilm.tokenizer, "gpt2", "causal-lm").to(dtype="bfloat16")
    model.explain.integrated_gradients("time flies like an arrow", " a", steps=16)
    assert "load the model in float32" in caplog.text


@pytest.mark.slow
def test_gradients_of_a_real_model(smollm: pellucid.Model, caplog: pytest.LogCaptureFixture) -> None:
    arguments, warned = {"text": "The capital of France is", "target": " Paris"}, False
    result = smollm.explain.gradient_x_input(**arguments)
    assert result.value == pytest.approx(float(smollm.trace(arguments["text"], keep="logits")["logits"][0, -1].max()))
    assert result.tokens == ("The", "Ġcapital", "Ġof", "ĠFrance", "Ġis") and (result.scores != 0).all()
    assert [row.split()[0] for row in repr(result).splitlines()[1:]] == ["The", "·capital", "·of", "·France", "·is"]
    assert result.target == "logit of ' Paris' at position 4"
    for steps in (4, 8, 12):  # far too few for a deep model, as the warning states
        caplog.clear()
        approximate = smollm.explain.integrated_gradients(**arguments, steps=steps)
        assert approximate.baseline == 0  # without biases, zero embeddings give zero logits
        assert ("take more steps or another baseline" in caplog.text) == (approximate.error > 0.05 * approximate.value)
        warned = warned or bool(caplog.text)
    assert warned


def test_invalid_arguments_are_refused(minilm: pellucid.Model) -> None:
    labels = built_model(minilm.tokenizer, "bert", "sequence-classification", labels=("bad", "good")).explain
    masked = built_model(minilm.tokenizer, "bert", "masked-lm").explain
    tagger = built_model(minilm.tokenizer, "bert", "token-classification").explain
    with pytest.raises(
        InputError, match=r"gradient x input needs a classification or language model head, and .* no head"
    ):
        minilm.explain.gradient_x_input(TEXT, 0)
    with pytest.raises(
        InputError, match=r"target 'god' is not a label of this model \(did you mean good\?\): it has bad, good"
    ):
        labels.gradient_x_input(TEXT, "god")
    with pytest.raises(InputError, match="against is label 2, expected 0 to 1"):
        labels.gradient_x_input(TEXT, 1, against=2)
    with pytest.raises(InputError, match="target and against are both 'good'"):
        labels.gradient_x_input(TEXT, "good", against=1)
    with pytest.raises(InputError, match="position is 2, and a sequence-classification head has one answer"):
        labels.gradient_x_input(TEXT, "good", position=2)
    with pytest.raises(InputError, match=r"has 0 mask tokens, expected one: write \[MASK\] in place of one word"):
        masked.gradient_x_input(TEXT, "banana")
    with pytest.raises(InputError, match="has 2 mask tokens, expected one"):
        masked.gradient_x_input("[MASK] [MASK]", "banana")
    with pytest.raises(
        InputError, match="token-classification head answers at every token: choose one with position=0 to 6"
    ):
        tagger.gradient_x_input(TEXT, 0)
    with pytest.raises(InputError, match="steps is 3, expected a whole number from 4"):
        labels.integrated_gradients(TEXT, 0, steps=3)
    with pytest.raises(InputError, match="baseline is 'noise', expected 'zero', 'pad' or 'mask'"):
        labels.integrated_gradients(TEXT, 0, baseline="noise")
    with pytest.raises(InputError, match="text is Trace, expected one text"):
        labels.integrated_gradients(minilm.trace(TEXT, keep="pooled"), 0)
    with pytest.raises(InputError, match="the text is empty"):
        labels.integrated_gradients("   ", 0)


@pytest.mark.slow
def test_invalid_arguments_for_a_real_model_are_refused(smollm: pellucid.Model) -> None:
    with pytest.raises(InputError, match="this tokenizer has no mask token: choose another baseline"):
        smollm.explain.integrated_gradients("The sky is", " blue", baseline="mask")
    with pytest.raises(InputError, match=r"target ' the sky' is 2 tokens \('Ġthe', 'Ġsky'\)"):
        smollm.explain.gradient_x_input("The sky is", " the sky")
    with pytest.raises(InputError, match="text 0 has no tokens"):
        smollm.explain.gradient_x_input("", " blue")
    quantized = pellucid.load("SmolLM2-135M-Instruct", dtype="int4")
    with pytest.raises(InputError, match="gradient x input needs float weights, and this model has 4-bit ones"):
        quantized.explain.gradient_x_input("The sky is", " blue")

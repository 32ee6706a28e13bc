"""Direct logit attribution: the parts sum to the logit, and each belongs to the component that it names."""

import numpy as np
import pytest
import torch

import pellucid
from pellucid import InputError
from pellucid.edits import Edit, scale, zero
from tests.trace.explain.models import built_model, families_with_heads

TEXT = "time flies like an arrow"
PRE_NORM = [
    (f, h) for f, h in families_with_heads("causal-lm", "sequence-to-sequence-lm") if f not in ("bart", "transformer")
]


@pytest.mark.parametrize(("family", "head"), PRE_NORM)
@pytest.mark.parametrize(("dtype", "exact"), [("float64", 1e-9), ("float32", 1e-4)])
def test_parts_sum_to_the_logit(minilm: pellucid.Model, family: str, head: str, dtype: str, exact: float) -> None:
    model = built_model(minilm.tokenizer, family, head, dtype)
    logits = model.trace(TEXT, keep="logits")["logits"][0].double()
    banana, arrow = model.tokenizer.convert_tokens_to_ids(["banana", "arrow"])
    for position in (-1, 2):
        plain = model.explain.direct_logit_attribution(TEXT, "banana", position=position)
        assert plain.logit == pytest.approx(float(logits[position, banana]), abs=1e-12)
        assert plain.error < exact and plain.total == pytest.approx(plain.logit, abs=exact)
        both = model.explain.direct_logit_attribution(TEXT, "banana", "arrow", position=position)
        assert both.logit == pytest.approx(float(logits[position, banana] - logits[position, arrow]), abs=1e-12)
        assert both.error < exact
    assert plain.position == 2
    layers, heads = (2, 3) if head == "sequence-to-sequence-lm" else (3, 4)
    assert plain.heads.shape == (layers, heads) and plain.feed_forward.shape == (layers,)
    assert (plain.cross_heads is None) == (head != "sequence-to-sequence-lm")


def test_each_part_is_the_contribution_of_its_component(minilm: pellucid.Model) -> None:
    """Computed in another way: the last norm, its mean and scale fixed, is applied to each part of the stream alone."""
    model = built_model(minilm.tokenizer, "gpt2", "causal-lm")
    trace, module = model.trace(TEXT), model.module
    result = model.explain.direct_logit_attribution(trace, 1000)
    stream, norm = trace["layers.2.residual.post"][0, -1], module.norm
    scale = (stream - stream.mean()).square().mean().add(norm.eps).rsqrt()

    def logit_of(part: torch.Tensor) -> float:
        return (((part - part.mean()) * scale * norm.weight) @ module.head.decoder.weight[1000]).item()

    for layer in range(3):
        for head in range(4):
            part = trace[f"layers.{layer}.attention.head_outputs"][0, head, -1]
            assert float(result.heads[layer, head]) == pytest.approx(logit_of(part), abs=1e-9)
        part = trace[f"layers.{layer}.feed_forward.output"][0, -1]
        assert float(result.feed_forward[layer]) == pytest.approx(logit_of(part), abs=1e-9)
        bias = module.layers[layer].attention.output.bias
        assert result.biases[f"layers.{layer}.attention.output.bias"] == pytest.approx(logit_of(bias), abs=1e-9)
    for name in ("embeddings.token", "embeddings.position"):
        assert result.embeddings[name] == pytest.approx(logit_of(trace[name][0, -1]), abs=1e-9)
    assert set(result.embeddings) == {"embeddings.token", "embeddings.position"}
    assert result.biases["norm.bias"] == pytest.approx((norm.bias @ module.head.decoder.weight[1000]).item(), abs=1e-9)


def test_output_bias_is_included(minilm: pellucid.Model) -> None:
    model = built_model(minilm.tokenizer, "t5", "sequence-to-sequence-lm")
    model.module.head.bias = torch.nn.Parameter(torch.arange(len(model.tokenizer)) / 1000.0)
    result = model.explain.direct_logit_attribution(TEXT, 3000, 1000)
    assert result.biases["head.bias"] == pytest.approx(2.0, abs=1e-6) and result.error < 1e-6


def test_tokens_and_positions_may_be_integers_of_arrays(minilm: pellucid.Model) -> None:
    explain = built_model(minilm.tokenizer, "gpt2", "causal-lm").explain
    result = explain.direct_logit_attribution(TEXT, torch.tensor(3000), np.int64(1000), position=np.int64(2))
    assert result.parts == explain.direct_logit_attribution(TEXT, 3000, 1000, position=2).parts
    labels = built_model(minilm.tokenizer, "bert", "sequence-classification").explain
    assert torch.equal(labels.gradient_x_input(TEXT, np.int64(1)).scores, labels.gradient_x_input(TEXT, 1).scores)


@pytest.mark.parametrize("facts", [{"embedding_norm": True}, {"embedding_size": 12, "tie_word_embeddings": False}])
def test_normed_or_projected_embeddings_are_one_part(minilm: pellucid.Model, facts: dict[str, object]) -> None:
    result = built_model(minilm.tokenizer, "gpt2", "causal-lm", **facts).explain.direct_logit_attribution(TEXT, 3000)
    assert [*result.embeddings] == ["embeddings.output"] and result.error < 1e-9


def test_repr_lists_the_strongest_parts_and_counts_the_rest(minilm: pellucid.Model) -> None:
    result = built_model(minilm.tokenizer, "gpt2", "causal-lm").explain.direct_logit_attribution(
        TEXT, "banana", "arrow"
    )
    weights = [abs(value) for _, value in result.strongest(6)]
    assert weights == sorted(weights, reverse=True) and weights[0] == max(map(abs, result.parts.values()))
    assert len(result.parts) == 2 + 3 * (4 + 1 + 1) + 1
    lines = repr(result).splitlines()
    assert "logit of 'banana' minus that of 'arrow' at position 6" in lines[0] and lines[-1].startswith("11 others")


def test_attribution_of_a_real_model(smollm: pellucid.Model) -> None:
    text = "The capital of France is"
    result = smollm.explain.direct_logit_attribution(text, " Paris", " Berlin")
    assert result.target == "logit of ' Paris' minus that of ' Berlin'"
    assert result.logit > 3 and result.error < 1e-4
    assert result.heads.shape == (30, 9)
    alone = smollm.explain.direct_logit_attribution(text, "ĠParis")
    assert alone.logit == pytest.approx(float(smollm.trace(text, keep="logits")["logits"][0, -1].max()))
    # a head of a late layer, attending to France, moves it there
    (layer, head) = divmod(int(result.heads.argmax()), 9)
    assert layer >= 15
    assert smollm.trace(text)[f"layers.{layer}.attention.weights"][0, head, -1, 3] > 0.2


@pytest.mark.parametrize(
    ("point", "edit", "has_edits_part"),
    [
        ("attention.heads", zero(head=1), False),
        ("attention.head_outputs", zero(head=1), False),
        ("feed_forward.output", scale(0.5), False),
        ("attention.output", zero(), True),
        ("residual.mid", scale(1.1), True),
    ],
)
@pytest.mark.parametrize(("family", "head"), PRE_NORM)
def test_parts_of_an_edited_pass_include_the_edit(
    minilm: pellucid.Model, family: str, head: str, point: str, edit: Edit, has_edits_part: bool
) -> None:
    model = built_model(minilm.tokenizer, family, head, "float64")
    side = "decoder." if head == "sequence-to-sequence-lm" else ""
    with model.edit({f"{side}layers.*.{point}": edit}):
        logits = model.trace(TEXT, target=TEXT if side else None, keep="logits")["logits"][0, -1]
        result = model.explain.direct_logit_attribution(TEXT, "banana")
    assert result.logit == pytest.approx(float(logits[model.tokenizer.convert_tokens_to_ids(["banana"])[0]]), abs=1e-9)
    assert result.total == pytest.approx(result.logit, abs=1e-9)
    assert ("edits" in result.parts and abs(result.parts["edits"]) > 1e-6) == has_edits_part
    if point.endswith(("heads", "head_outputs")):
        assert not result.heads[:, 1].any() and result.heads[:, 0].any()


def test_edited_trace_of_another_model_is_reported(minilm: pellucid.Model, caplog: pytest.LogCaptureFixture) -> None:
    model, other = (built_model(minilm.tokenizer, "llama", "causal-lm", "float64") for _ in range(2))
    with model.edit({"layers.1.feed_forward.output": scale(1.1)}):
        trace = model.trace(TEXT)
    assert other.explain.direct_logit_attribution(trace, "banana").error < 1e-9 and not caplog.records
    with torch.no_grad():
        other.module.norm.weight.mul_(1.5)
    assert other.explain.direct_logit_attribution(trace, "banana").error > 1e-3
    assert "is the trace of a model with other weights?" in caplog.text


def test_invalid_arguments_are_refused(minilm: pellucid.Model) -> None:
    model = built_model(minilm.tokenizer, "gpt2", "causal-lm")
    attribute = model.explain.direct_logit_attribution
    for family, head in (("bart", "sequence-to-sequence-lm"), ("transformer", "sequence-to-sequence-lm")):
        with pytest.raises(InputError, match=f"needs a stream that is a sum, and {family} norms it in every layer"):
            built_model(minilm.tokenizer, family, head).explain.direct_logit_attribution(TEXT, "banana")
    with pytest.raises(
        InputError, match="needs a causal-lm or sequence-to-sequence-lm head, and this model has a masked"
    ):
        built_model(minilm.tokenizer, "bert", "masked-lm").explain.direct_logit_attribution(TEXT, "banana")
    with pytest.raises(InputError, match=r"token 'pellucidity' is 5 tokens \('pe', '##ll', .*\): give one of them"):
        attribute(TEXT, "pellucidity")
    with pytest.raises(InputError, match="token '' is not in this vocabulary of 30,522 tokens"):
        attribute(TEXT, "")
    with pytest.raises(InputError, match="token '☃☃' is not in this vocabulary"):
        attribute(TEXT, "☃☃")
    with pytest.raises(InputError, match="against is id 30522, expected 0 to 30521"):
        attribute(TEXT, "banana", 30522)
    with pytest.raises(InputError, match="token and against are both 'banana': their difference is 0 everywhere"):
        attribute(TEXT, "banana", "banana")
    with pytest.raises(InputError, match=r"token is 1\.5, expected a token or its id"):
        attribute(TEXT, 1.5)
    with pytest.raises(InputError, match="position is 7, expected -7 to 6 among 7 tokens"):
        attribute(TEXT, "banana", position=7)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_trace_of_another_model_is_reported(
    minilm: pellucid.Model, dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, other = (built_model(minilm.tokenizer, "gpt2", "causal-lm", dtype) for _ in range(2))
    model.explain.direct_logit_attribution(other.trace(TEXT), "banana", "arrow")
    assert not caplog.messages
    with torch.no_grad():
        other.module.layers[1].attention.output.weight.mul_(3)
    model.explain.direct_logit_attribution(other.trace(TEXT), "banana", "arrow")
    assert "the parts miss the logit by" in caplog.text and "is the trace of a model with other weights?" in caplog.text

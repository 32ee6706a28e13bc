"""Parity with the reference on tiny random models: float64 to 1e-9, float32 to the last bit, loaded and saved again."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import pellucid
from pellucid.checkpoints.families import families
from tests.matrix_products import has_fixed_sum_order
from tests.parity.reference import TINY, batch, in_full, tiny

_GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
_LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "BertModel": {},
    "BertForMaskedLM": {"hidden_act": "gelu_new"},
    "BertForNextSentencePrediction": {},
    "BertForSequenceClassification": {"hidden_act": "relu"},
    "BertForTokenClassification": {},
    "BertForQuestionAnswering": {"num_labels": 2},
    "DistilBertModel": {"activation": "relu"},
    "DistilBertForMaskedLM": {},
    "DistilBertForSequenceClassification": {},
    "DistilBertForTokenClassification": {},
    "DistilBertForQuestionAnswering": {"num_labels": 2},
    "RobertaModel": {},
    "RobertaForMaskedLM": {},
    "RobertaForSequenceClassification": {},
    "RobertaForTokenClassification": {},
    "RobertaForQuestionAnswering": {"num_labels": 2},
    "XLMRobertaForSequenceClassification": {},
    "CamembertForMaskedLM": {},
    "AlbertModel": {},
    "AlbertForMaskedLM": {"hidden_act": "gelu", "num_hidden_groups": 1},
    "AlbertForSequenceClassification": {},
    "AlbertForTokenClassification": {"embedding_size": 24},
    "AlbertForQuestionAnswering": {"num_labels": 2},
    "ElectraModel": {},
    "ElectraForMaskedLM": {"embedding_size": 24, "hidden_act": "relu"},
    "ElectraForSequenceClassification": {},
    "ElectraForTokenClassification": {"embedding_size": 24},
    "ElectraForQuestionAnswering": {"num_labels": 2},
    "MPNetModel": {},
    "MPNetForMaskedLM": {},
    "MPNetForSequenceClassification": {},
    "MPNetForTokenClassification": {},
    "MPNetForQuestionAnswering": {"num_labels": 2},
    "GPT2Model": {},
    "GPT2LMHeadModel": {"n_inner": 50},
    "GPT2ForSequenceClassification": {},
    "GPT2ForTokenClassification": {},
    "GPT2ForQuestionAnswering": {"num_labels": 2},
    "LlamaModel": {"num_key_value_heads": 4, "head_dim": None},
    "LlamaForCausalLM": {"rope_parameters": {"rope_theta": 500.0} | _LLAMA3 | {"original_max_position_embeddings": 16}},
    "LlamaForSequenceClassification": {"attention_bias": True, "mlp_bias": True},
    "LlamaForTokenClassification": {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}},
    "LlamaForQuestionAnswering": {"num_labels": 2},
    "MistralForCausalLM": {"tie_word_embeddings": True},
    "MistralForQuestionAnswering": {"num_labels": 2},
    "Qwen2ForCausalLM": {},
    "BartModel": {},
    "BartForConditionalGeneration": {"scale_embedding": True},
    "BartForSequenceClassification": {},
    "BartForQuestionAnswering": {"num_labels": 2},
    "T5Model": {},
    "T5ForConditionalGeneration": {},
    "T5ForSequenceClassification": _GATED,
    "T5ForQuestionAnswering": _GATED | {"num_labels": 2},
}
"""One row per family and head, each with facts that differ from the defaults."""

SAME_HEADS = ("XLMRoberta", "Camembert", "Mistral", "Qwen2")
"""Families whose heads are another's, tensor by tensor: one row each is enough."""

WITHOUT_ROW = {"BertForPreTraining", "AlbertForPreTraining", "ElectraForPreTraining"}
"""Architectures that are read as the first of their two heads, or as the body, which has its own row."""

PATHS = {"fused": "sdpa", "explicit": "eager"}
ENCODER_DECODERS = ("Bart", "T5")
NO_KERNEL = ("MPNet",)
"""Families that the reference computes only with eager attention."""

EXCEPTIONS = {"MPNet": "attention_scores = attention_scores / math.sqrt(self.attention_head_size)"}
"""Families that differ in the last bits, each with the line of the reference that causes it."""


def test_every_family_and_head_has_a_row() -> None:
    known = {name: family for name, family in families().items() if name != "transformer"}  # it has no reference
    assert TINY.keys() == known.keys()
    pages = {page.architecture for family in known.values() for page in family.heads}
    assert ARCHITECTURES.keys() <= pages
    assert {name for name in pages - ARCHITECTURES.keys() if not name.startswith(SAME_HEADS)} == WITHOUT_ROW
    assert all(any(row.startswith(stem) for row in ARCHITECTURES) for stem in SAME_HEADS)


def test_heads_without_a_row_use_the_reference_s_body_prefix() -> None:
    import transformers

    for family in families().values():
        for page in family.heads:
            if page.head is not None and page.architecture.startswith(SAME_HEADS):
                names = family.names_with(page, lambda family=family: family.defaults)
                assert names.prefix == f"{getattr(transformers, page.architecture).base_model_prefix}."


def reference_attention(architecture: str, attention: str) -> str:
    """The reference's name of this attention implementation."""
    return "eager" if architecture.startswith(NO_KERNEL) else PATHS[attention]


@pytest.fixture(params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    return request.param


def inputs_for(architecture: str, padded: bool = True) -> dict[str, torch.Tensor]:
    """Ids and a mask, types if the family has them, and decoder ids if it has a decoder."""
    types = architecture.startswith(("Bert", "Albert", "Electra"))
    pad = 1 if architecture.startswith(("Roberta", "XLM", "Camembert", "MPNet", "Bart")) else 0
    inputs = batch(padded=padded, pad=pad, types=types)
    if architecture.startswith(ENCODER_DECODERS):
        ends = inputs["attention_mask"].sum(1) - 1
        inputs["input_ids"][torch.arange(3), ends] = 1 if pad == 0 else 2  # one end token in each row
        if "SequenceClassification" not in architecture:
            inputs["decoder_input_ids"] = batch(length=11, padded=False)["input_ids"]
    return inputs


def reference_outputs(model: Any, inputs: dict[str, torch.Tensor], **settings: bool) -> dict[str, Any]:
    """The reference's output under our names; without its cache, which changes the layout of keys and so the
    rounding."""
    if getattr(model.config, "use_cache", False):
        settings["use_cache"] = False
    with torch.no_grad():
        out = model(**inputs, output_hidden_states=True, **settings)
    states = out.decoder_hidden_states if "decoder_hidden_states" in out else out.hidden_states
    answer = {"last_hidden_state": states[-1], "hidden_states": states}
    if "encoder_last_hidden_state" in out:
        answer["encoder_last_hidden_state"] = out.encoder_last_hidden_state
        answer["encoder_hidden_states"] = out.encoder_hidden_states
    if "pooler_output" in out:
        answer["pooler_output"] = out.pooler_output
    if "start_logits" in out:
        answer["logits"] = torch.stack((out.start_logits, out.end_logits), dim=-1)
    if "logits" in out:
        answer["logits"] = out.logits
    if settings.get("output_attentions"):
        names = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
        answer |= {name: out[name] for name in names if name in out}
    return answer


def compared_names(expected: dict[str, Any]) -> list[str]:
    return [name for name in expected if not name.endswith(("hidden_states", "attentions"))]


@pytest.mark.parametrize("attention", PATHS)
def test_float64_agrees_to_1e_9(architecture: str, attention: str, tmp_path: Path) -> None:
    facts = ARCHITECTURES[architecture]
    reference = tiny(
        tmp_path, architecture, dtype=torch.float64, attention=reference_attention(architecture, attention), **facts
    )
    model = pellucid.load(tmp_path, dtype="float64", attention=attention)
    inputs = inputs_for(architecture)
    with in_full():
        expected = reference_outputs(reference, inputs)
    found = model(**inputs)
    for name in compared_names(expected):
        assert expected[name].dtype == torch.float64
        assert_close(found[name], expected[name])


@pytest.mark.parametrize("attention", PATHS)
@pytest.mark.parametrize("padded", [True, False])
def test_float32_is_equal_bit_for_bit(architecture: str, attention: str, padded: bool, tmp_path: Path) -> None:
    if reference_attention(architecture, attention) != PATHS[attention]:
        pytest.skip("the reference has no kernel here, so there is no equal path")
    facts = ARCHITECTURES[architecture]
    reference = tiny(tmp_path, architecture, dtype=torch.float32, attention=PATHS[attention], **facts)
    model = pellucid.load(tmp_path, attention=attention)
    inputs = inputs_for(architecture, padded)
    with torch.no_grad():
        expected, found = reference_outputs(reference, inputs), model(**inputs)
    for name in compared_names(expected):
        if architecture.startswith(tuple(EXCEPTIONS)) or not has_fixed_sum_order():
            torch.testing.assert_close(found[name], expected[name], rtol=0, atol=5e-6)
        else:
            assert torch.equal(found[name], expected[name]), name


def test_hidden_states_and_attention_weights_equal_the_reference_s(architecture: str, tmp_path: Path) -> None:
    facts = ARCHITECTURES[architecture]
    reference = tiny(tmp_path, architecture, dtype=torch.float64, attention="eager", **facts)
    model = pellucid.load(tmp_path, dtype="float64", attention="explicit")
    inputs = inputs_for(architecture)
    recorded = Recorder()
    model.module(**inputs, observer=recorded)
    with in_full():
        expected = reference_outputs(reference, inputs, output_attentions=True)
    has_two_sides = architecture.startswith(ENCODER_DECODERS)
    for ours, prefix in {"encoder.": "encoder_", "decoder.": "decoder_"}.items() if has_two_sides else [("", "")]:
        states = expected["hidden_states"] if prefix == "decoder_" else expected[f"{prefix}hidden_states"]
        assert_close(recorded[f"{ours}embeddings.output"], states[0])
        for i, state in enumerate(states[1:-1] if f"{ours}norm.output" in recorded else states[1:]):
            assert_close(recorded[f"{ours}layers.{i}.residual.post"], state)
        for i, weights in enumerate(expected[f"{prefix}attentions"]):
            assert_close(recorded[f"{ours}layers.{i}.attention.weights"], weights)
    for i, weights in enumerate(expected.get("cross_attentions", ())):
        assert_close(recorded[f"decoder.layers.{i}.cross_attention.weights"], weights)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_saved_weights_are_equal_bit_for_bit(architecture: str, tmp_path: Path) -> None:
    facts, kind = ARCHITECTURES[architecture], reference_attention(architecture, "fused")
    reference = tiny(tmp_path / "theirs", architecture, dtype=torch.float32, attention=kind, **facts)
    pellucid.load(tmp_path / "theirs").save(tmp_path / "ours")
    before, after = (load_file(tmp_path / side / "model.safetensors") for side in ("theirs", "ours"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    reloaded = type(reference).from_pretrained(tmp_path / "ours", attn_implementation=kind).eval()
    inputs = inputs_for(architecture)
    expected, found = reference_outputs(reference, inputs), reference_outputs(reloaded, inputs)
    assert torch.equal(expected["last_hidden_state"], found["last_hidden_state"])


def test_pickled_model_saves_the_same_weights(architecture: str, tmp_path: Path) -> None:
    facts, kind = ARCHITECTURES[architecture], reference_attention(architecture, "fused")
    tiny(tmp_path / "a", architecture, dtype=torch.float32, attention=kind, **facts)
    model = pellucid.load(tmp_path / "a")
    model.save(tmp_path / "b")
    pickle.loads(pickle.dumps(model)).save(tmp_path / "c")
    before, after = (tmp_path / side / "model.safetensors" for side in "bc")
    assert before.read_bytes() == after.read_bytes()


def test_saved_config_is_equal(architecture: str, tmp_path: Path) -> None:
    facts, kind = ARCHITECTURES[architecture], reference_attention(architecture, "fused")
    tiny(tmp_path / "a", architecture, dtype=torch.float32, attention=kind, **facts)
    model = pellucid.load(tmp_path / "a")
    model.save(tmp_path / "b")
    assert pellucid.load(tmp_path / "b").config == model.config


def test_untrained_weights_have_the_reference_s_distribution(tmp_path: Path) -> None:
    """The same distribution for each parameter: means and deviations agree, constants are equal."""
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 4000}
    expected = BertForMaskedLM(BertConfig(**sizes)).bert.state_dict()
    from pellucid.config import MaskedLM

    model = pellucid.build(pellucid.Config.of("bert", **sizes, head=MaskedLM()), seed=5)
    names = model.loaded.family.names
    for ours, found in model.module.state_dict().items():
        if ours.startswith("head."):
            continue
        reference = expected[names.location_of(ours, prefixed=False).tensor_name]
        tolerance = 6 * 0.02 / found.numel() ** 0.5  # six standard errors
        assert abs(found.mean() - reference.mean()) <= tolerance
        assert abs(found.std() - reference.std()) <= tolerance
    assert model.module.embeddings.token.weight[0].abs().sum() == 0
    assert torch.equal(model.module.embeddings.token.weight, model.module.head.decoder.weight)


class Recorder(dict[str, torch.Tensor]):
    """An observer that records every value."""

    def __call__(self, name: str, value: torch.Tensor) -> torch.Tensor:
        self[name] = value
        return value

    def wants(self, name: str) -> bool:
        return True

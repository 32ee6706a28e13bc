"""Facts that a file contains twice, or whose computation rounds: read as the reference reads them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import pellucid
from pellucid.errors import CheckpointMismatchError, CorruptFileError, InputError
from tests.parity.reference import batch, in_full, tiny

_SLOW = {"type": "linear", "factor": 3.0}
_LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def hidden_states(reference: Any, folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference's hidden states and ours: Float64[Tensor, "batch seq hidden"] each."""
    inputs = batch(padded=False, types=False)
    if reference.config.is_encoder_decoder:
        inputs |= {"decoder_input_ids": inputs["input_ids"]}
    with torch.no_grad(), in_full():
        expected = reference(**inputs).last_hidden_state
    return expected, pellucid.load(folder, dtype="float64")(**inputs).last_hidden_state


@pytest.mark.parametrize(("depth", "groups"), [(4, 3), (18, 14)])
def test_albert_layers_are_in_the_same_groups_as_in_the_reference(depth: int, groups: int, tmp_path: Path) -> None:
    """The reference divides twice and truncates: layer 9 of 18 is in group 6 of 14, though 9 x 14 / 18 is 7."""
    shape = {"num_hidden_layers": depth, "num_hidden_groups": groups}
    reference = tiny(tmp_path, "AlbertModel", dtype=torch.float64, **shape)
    expected, found = hidden_states(reference, tmp_path)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "rope_facts",
    [
        {"rope_scaling": _SLOW},
        {"rope_scaling": {}, "rope_parameters": _SLOW | {"rope_theta": 40.0}},
        {"rope_scaling": _SLOW, "rope_parameters": {"rope_type": "default", "rope_theta": 40.0}},
        {"rope_scaling": _SLOW, "rope_parameters": {}, "rope_theta": 40.0},
    ],
)
def test_rope_scaling_takes_precedence_over_rope_parameters(rope_facts: dict[str, Any], tmp_path: Path) -> None:
    """Model cards advise to add `rope_scaling` to a file that may already contain `rope_parameters`."""
    reference = tiny(tmp_path, "LlamaModel", dtype=torch.float64)
    facts = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    del facts["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(facts | rope_facts), encoding="utf-8")
    reference = type(reference).from_pretrained(tmp_path, dtype=torch.float64).eval()
    expected, found = hidden_states(reference, tmp_path)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("architecture", "key", "neutral", "other"),
    [
        ("Qwen2Model", "head_dim", 6, 8),
        ("GPT2Model", "head_dim", 6, 64),  # by its own keys of width and heads
        ("DistilBertModel", "head_dim", 6, 64),
        ("BertModel", "num_key_value_heads", 4, 2),
        ("DistilBertModel", "num_key_value_heads", 4, 2),
        ("RobertaModel", "embedding_size", 24, 16),
        ("Qwen2Model", "attention_bias", True, 1),
        ("LlamaModel", "partial_rotary_factor", 1.0, 0.5),
        ("LlamaModel", "rope_parameters", *({"rope_type": "default", "partial_rotary_factor": n} for n in (1.0, 0.5))),
        ("LlamaModel", "layer_types", ["full_attention"] * 3, ["sliding_attention"] * 3),
        ("MistralModel", "layer_types", ["sliding_attention"] * 3, ["full_attention"] * 3),
    ],
)
def test_redundant_fact_is_accepted_only_with_its_neutral_value(
    architecture: str, key: str, neutral: object, other: object, tmp_path: Path
) -> None:
    reference = tiny(tmp_path, architecture, dtype=torch.float64)
    facts = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(facts | {key: neutral}), encoding="utf-8")
    reference = type(reference).from_pretrained(tmp_path, dtype=torch.float64).eval()
    expected, found = hidden_states(reference, tmp_path)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    (tmp_path / "config.json").write_text(json.dumps(facts | {key: other}), encoding="utf-8")
    with pytest.raises((CheckpointMismatchError, CorruptFileError), match="would change the numbers"):
        pellucid.load(tmp_path)


@pytest.mark.parametrize("padding", [-1, None, 1, 5, "left out"])
@pytest.mark.parametrize("architecture", ["RobertaModel", "XLMRobertaModel", "CamembertModel"])
def test_positions_follow_the_padding_id_or_the_file_is_refused(
    architecture: str, padding: object, tmp_path: Path
) -> None:
    """With -1 the reference's first position is 0; with null its first pass fails."""
    tiny(tmp_path, architecture, dtype=torch.float64)
    facts = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    del facts["pad_token_id"]
    changes = {} if padding == "left out" else {"pad_token_id": padding}
    (tmp_path / "config.json").write_text(json.dumps(facts | changes), encoding="utf-8")
    if padding in (-1, None):
        with pytest.raises(CorruptFileError, match=f"config.json: pad_token_id is {padding}, .*expected the id of a"):
            pellucid.load(tmp_path)
        return
    kind = getattr(transformers, architecture)
    expected, found = hidden_states(kind.from_pretrained(tmp_path, dtype=torch.float64).eval(), tmp_path)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_config_with_positions_after_padding_requires_a_padding_id() -> None:
    """Otherwise it would be saved as one that the reference cannot run."""
    with pytest.raises(InputError, match="pad_token_id is None, and positions are counted from it"):
        pellucid.Config.of("roberta").replace(pad_token_id=None)
    assert pellucid.Config.of("bert", pad_token_id=None).pad_token_id is None


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("inside", [None, 8])
@pytest.mark.parametrize("beside", [None, 16])
def test_original_max_position_embeddings_is_read_from_any_of_its_places(
    beside: int | None, inside: int | None, key: str, tmp_path: Path
) -> None:
    """The key beside the object takes precedence over that in it; without either, it is the model's maximum length."""
    reference = tiny(tmp_path, "LlamaModel", dtype=torch.float64)
    facts = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    del facts["rope_parameters"]
    name, rope_facts = "original_max_position_embeddings", _LLAMA3 | {"rope_theta": 40.0}
    facts |= {key: rope_facts if inside is None else rope_facts | {name: inside}} | (
        {} if beside is None else {name: beside}
    )
    (tmp_path / "config.json").write_text(json.dumps(facts), encoding="utf-8")
    reference = type(reference).from_pretrained(tmp_path, dtype=torch.float64).eval()
    expected, found = hidden_states(reference, tmp_path)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    again = pellucid.load(pellucid.load(tmp_path).save(tmp_path / "again")).config
    assert again.rope_scaling.original_max_position_embeddings == (beside or inside or 33)


@pytest.mark.parametrize("tables", [1, 2])
def test_t5_v1_1_is_saved_with_as_many_embedding_tables_as_it_has(tables: int, tmp_path: Path) -> None:
    """Version 5 of the reference writes `tie_word_embeddings: true` into every such file."""
    name = "T5ForConditionalGeneration"
    shape: dict[str, Any] = {"tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"}
    reference = tiny(tmp_path / "first", name, dtype=torch.float64, **shape)
    if tables == 2:
        reference.lm_head.weight = torch.nn.Parameter(2 * reference.shared.weight.detach().flip(0))
    reference.save_pretrained(tmp_path / "one")
    saved = json.loads((tmp_path / "one" / "config.json").read_text(encoding="utf-8"))
    assert saved["tie_word_embeddings"] and not saved["scale_decoder_outputs"]
    reference = type(reference).from_pretrained(tmp_path / "one", dtype=torch.float64).eval()
    assert (reference.lm_head.weight is reference.shared.weight) == (tables == 1)
    inputs = batch(padded=False, types=False) | {"decoder_input_ids": batch(padded=False, types=False)["input_ids"]}
    model = pellucid.load(tmp_path / "one", dtype="float64")
    again = pellucid.load(model.save(tmp_path / "two"), dtype="float64")
    with torch.no_grad(), in_full():
        expected = reference(**inputs).logits
        theirs = type(reference).from_pretrained(tmp_path / "two", dtype=torch.float64).eval()(**inputs).logits
    for found in (model(**inputs).logits, again(**inputs).logits, theirs):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("architecture", ["BartForSequenceClassification", "T5ForSequenceClassification"])
def test_classification_of_a_text_without_an_end_token_is_refused(architecture: str, tmp_path: Path) -> None:
    reference = tiny(tmp_path, architecture, dtype=torch.float64)
    ids = torch.tensor([[5, 9, reference.config.eos_token_id], [7, 8, 9]])
    with pytest.raises(ValueError, match="<eos>"):
        reference(ids)
    model = pellucid.load(tmp_path, dtype="float64")
    with pytest.raises(InputError, match=f"row 1 of input_ids has no token {reference.config.eos_token_id}, by whose"):
        model(ids)
    with torch.no_grad(), in_full():
        torch.testing.assert_close(model(ids[:1]).logits, reference(ids[:1]).logits, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("word", "ours"), [("swish", "silu"), ("gelu_fast", "gelu_new"), ("gelu_python", "gelu")])
def test_alternative_activation_names_are_read(word: str, ours: str, tmp_path: Path) -> None:
    reference = tiny(tmp_path, "BertModel", dtype=torch.float64, hidden_act=word)
    expected, found = hidden_states(reference, tmp_path)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    assert pellucid.load(tmp_path).config.hidden_act == ours


@pytest.mark.parametrize("word", ["swish", "gelu_fast", "gelu_python", "silu", "gelu_new", "gelu", "tanh"])
@pytest.mark.parametrize("gate", ["", "gated-"])
def test_t5_accepts_every_activation_name(gate: str, word: str, tmp_path: Path) -> None:
    reference = tiny(tmp_path / "a", "T5Model", dtype=torch.float64, feed_forward_proj=gate + word)
    expected, found = hidden_states(reference, tmp_path / "a")
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    model = pellucid.load(tmp_path / "a")
    model.save(tmp_path / "b")
    assert pellucid.load(tmp_path / "b").config.feed_forward == model.config.feed_forward


@pytest.mark.parametrize("word", ["gelu_10", "quick_gelu", "gelu_accurate", "relu2"])
def test_activation_with_a_merely_similar_name_is_refused(word: str, tmp_path: Path) -> None:
    tiny(tmp_path, "BertModel", dtype=torch.float32, hidden_act=word)
    with pytest.raises(CorruptFileError, match=f"hidden_act is '{word}', expected one of gelu, "):
        pellucid.load(tmp_path)


def test_per_layer_config_is_refused(tmp_path: Path) -> None:
    tiny(tmp_path, "LlamaModel", dtype=torch.float32)
    facts = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    facts["per_layer_config"] = {"1": {"intermediate_size": 48}}
    (tmp_path / "config.json").write_text(json.dumps(facts), encoding="utf-8")
    with pytest.raises(CheckpointMismatchError, match="per_layer_config would change the numbers"):
        pellucid.load(tmp_path)

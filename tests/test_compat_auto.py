"""The study documents' calls with one import changed, against a local hub; compared with the reference's answers."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import pellucid
from pellucid import compat
from pellucid.checkpoints.families import families
from pellucid.compat import neuron_view
from tests import document_cells
from tests.checkpoints.hub import Hub, run_pellucid, running_hub
from tests.matrix_products import has_fixed_sum_order
from tests.parity.reference import tiny

TOKENIZERS = Path(__file__).parent / "parity" / "golden" / "tokenizers"
SIZES = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 12, "intermediate_size": 40}
TINY = {"vocab_size": 601, "max_position_embeddings": 98, "initializer_range": 0.15}
SENTIMENT = {"dim": 48, "n_layers": 2, "n_heads": 12, "hidden_dim": 40, "id2label": {0: "NEGATIVE", 1: "POSITIVE"}}
NLI = SIZES | {"id2label": {0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"}, "type_vocab_size": 1}
NAMES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "bert-base-uncased": ("BertForPreTraining", SIZES, "bert", "BertTokenizer"),
    "distilbert-base-uncased-finetuned-sst-2-english": (
        "DistilBertForSequenceClassification",
        SENTIMENT,
        "bert",
        "DistilBertTokenizer",
    ),
    "sentence-transformers/multi-qa-mpnet-base-dot-v1": ("MPNetModel", SIZES, "mpnet", "MPNetTokenizer"),
    "bert-base-cased": ("BertForMaskedLM", SIZES, "bert-cased", "BertTokenizer"),
    "FacebookAI/roberta-large-mnli": ("RobertaForSequenceClassification", NLI, "roberta", "RobertaTokenizer"),
}
"""Every name that the documents load, with the class of its tiny model, its facts, vocabulary and tokenizer class."""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which each of the names is a checkpoint, as the reference writes it."""
    root = tmp_path_factory.mktemp("checkpoints")
    for number, (name, (architecture, facts, vocabulary, tokenizer_class)) in enumerate(NAMES.items()):
        torch.manual_seed(number)
        model = getattr(transformers, architecture)
        model(model.config_class(**TINY | facts)).save_pretrained(root / name)
        shutil.copyfile(TOKENIZERS / vocabulary / "tokenizer.json", root / name / "tokenizer.json")
        settings = json.loads((TOKENIZERS / vocabulary / "tokenizer_config.json").read_text())
        (root / name / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_class": tokenizer_class}))
    (root / "distilbert").mkdir()
    shutil.copytree(root / document_cells.SENTIMENT, root / "distilbert" / document_cells.SENTIMENT)
    return root


@pytest.fixture
def hub_folder(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of checkpoints as the current folder, where each library finds the names as folders."""
    monkeypatch.chdir(checkpoints)
    return checkpoints


def assert_nearly_equal(found: Any, expected: Any) -> None:
    """Asserts equality, with tensors to 2e-6 of their largest value."""
    if isinstance(expected, torch.Tensor):
        scale = max(1.0, expected.abs().max().item()) if expected.is_floating_point() else 0.0
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-6 * scale)
    elif isinstance(expected, dict):
        assert set(found) == set(expected)
        for name in expected:
            assert_nearly_equal(found[name], expected[name])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            assert_nearly_equal(one, other)
    else:
        assert found == expected


# -- the documents ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hub(checkpoints: Path) -> Iterator[Hub]:
    with running_hub() as server:
        for name in NAMES:
            server.add(name, checkpoints / name)
        server.add(f"distilbert/{document_cells.SENTIMENT}", checkpoints / document_cells.SENTIMENT)
        yield server


@pytest.mark.timeout(120)
def test_study_documents_run_with_one_import_changed(hub: Hub, hub_folder: Path, tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    program = f"""
import os, sys
sys.path.insert(0, {str(root)!r})
os.chdir({str(tmp_path)!r})
import torch, pellucid.compat
from tests import document_cells
torch.save(document_cells.run(pellucid.compat), "found.pt")
"""
    result = run_pellucid(hub.url, tmp_path / "home", "-c", program)
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
    found = torch.load(tmp_path / "found.pt", weights_only=False)
    assert set(found) == set(document_cells.CELLS)
    for name, function in document_cells.CELLS.items():
        assert_nearly_equal(found[name], function(transformers))
    assert (tmp_path / "cache" / "models--bert-base-uncased" / "snapshots").is_dir()
    assert {line.split("/")[1] for line in hub.requests if "/resolve/" in line} >= {
        "bert-base-uncased",
        document_cells.SENTIMENT,
    }


def test_attention_views_accept_model_outputs(hub_folder: Path) -> None:
    tokenizer = compat.AutoTokenizer.from_pretrained(document_cells.BERT)
    model = compat.AutoModel.from_pretrained(document_cells.BERT, output_attentions=True)
    inputs = tokenizer(*document_cells.PAIR, return_tensors="pt")
    attention, tokens = model(**inputs).attentions, tokenizer.convert_ids_to_tokens(inputs.input_ids[0])
    start = (inputs.token_type_ids == 0).sum(dim=1)
    view = compat.head_view(attention, tokens, start, heads=[8])
    assert view.data.manifest["show"]["heads"] == [8]
    segments = [token["segment"] for token in view.data.manifest["sequences"][0]["tokens"]]
    assert segments == inputs.token_type_ids[0].tolist()
    neuron = neuron_view.show(
        compat.BertModel.from_pretrained(document_cells.BERT),
        "bert",
        tokenizer,
        document_cells.PAIR[0],
        display_mode="light",
        head=8,
    )
    assert neuron.data.manifest["show"]["view"] == "neuron"


def test_pipeline_infers_its_task_and_accepts_loaded_objects(hub_folder: Path) -> None:
    answers = compat.pipeline(model=document_cells.NLI)("This restaurant is awesome")
    assert answers == compat.pipeline("text-classification", model=document_cells.NLI)("This restaurant is awesome")
    model = compat.AutoModelForSequenceClassification.from_pretrained(document_cells.NLI)
    tokenizer = compat.AutoTokenizer.from_pretrained(document_cells.NLI)
    assert compat.pipeline(model=model, tokenizer=tokenizer)("This restaurant is awesome") == answers
    with pytest.raises(pellucid.InputError, match="neither a task nor a model was given"):
        compat.pipeline()


# -- models -----------------------------------------------------------------------------------------------------------

SMALL_SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
PAIRED_SIZES = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": SMALL_SIZES,
    "distilbert": {"dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 40},
    "roberta": SMALL_SIZES | {"type_vocab_size": 1},
    "albert": SMALL_SIZES | {"embedding_size": 16},
    "mpnet": SMALL_SIZES | {"pad_token_id": 1},
    "gpt2": {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 98, "bos_token_id": 1, "eos_token_id": 2},
    "llama": SMALL_SIZES | {"num_key_value_heads": 2},
    "bart": PAIRED_SIZES | {"d_model": 24, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40},
    "t5": {"d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0},
}
EXACT = ("bert", "distilbert", "roberta", "albert", "llama", "bart")
"""Families whose explicit attention takes the reference's steps; others differ in an order or a transposition."""

TASKS = ("", "SequenceClassification", "TokenClassification", "QuestionAnswering", "MaskedLM", "CausalLM", "Seq2SeqLM")
UNSUPPORTED_TASKS = {
    *((encoder, task) for encoder in ("bert", "roberta") for task in ("CausalLM", "Seq2SeqLM")),
    *((encoder, task) for encoder in ("distilbert", "albert", "mpnet") for task in ("CausalLM", "Seq2SeqLM")),
    *((decoder, task) for decoder in ("gpt2", "llama") for task in ("MaskedLM", "Seq2SeqLM")),
    *(("bart", task) for task in ("TokenClassification", "MaskedLM", "CausalLM")),
    *(("t5", task) for task in ("SequenceClassification", "TokenClassification", "MaskedLM", "CausalLM")),
    ("t5", "QuestionAnswering"),
}
CASES = [(family, task) for family in FAMILIES for task in TASKS if (family, task) not in UNSUPPORTED_TASKS]


def reference_model(family: str, task: str, folder: Path, **facts: Any) -> Any:
    """A tiny model of the reference with eager attention, also saved in the folder."""
    sizes = {"vocab_size": 90, "max_position_embeddings": 98, "pad_token_id": 0} | FAMILIES[family] | facts
    sizes.pop("max_position_embeddings" if family in ("gpt2", "t5") else "", None)
    config = transformers.AutoConfig.for_model(family, num_labels=2 if task == "QuestionAnswering" else 3, **sizes)
    torch.manual_seed(7)
    auto_class = getattr(transformers, f"AutoModelFor{task}" if task else "AutoModel")
    model = auto_class.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    return auto_class.from_pretrained(folder, attn_implementation="eager")


def our_model(task: str, folder: Path, **options: Any) -> Any:
    auto_class = getattr(compat, f"AutoModelFor{task}" if task else "AutoModel")
    return auto_class.from_pretrained(folder, attn_implementation="eager", **options)


def model_inputs(task: str, encoder_decoder: bool) -> dict[str, torch.Tensor]:
    ids = torch.arange(3, 21).view(2, 9)
    ids[:, 5] = 20
    inputs = {"input_ids": ids, "attention_mask": (torch.arange(9) < torch.tensor([[9], [6]])).long()}
    inputs["input_ids"] = ids.masked_fill(inputs["attention_mask"] == 0, 0)
    labels = {"SequenceClassification": torch.tensor([2, 0]), "TokenClassification": ids % 3}
    if task == "QuestionAnswering":
        return inputs | {"start_positions": torch.tensor([1, 30]), "end_positions": torch.tensor([4, 2])}
    if encoder_decoder and not task:
        return inputs | {"decoder_input_ids": ids[:, :4]}
    if task:
        inputs["labels"] = labels.get(task, ids.masked_fill(ids % 4 == 0, -100))
    return inputs


@pytest.mark.parametrize(("family", "task"), CASES)
def test_outputs_match_the_reference(family: str, task: str, tmp_path: Path) -> None:
    theirs = reference_model(family, task, tmp_path, **({"eos_token_id": 20} if family == "bart" else {}))
    model = our_model(task, tmp_path)
    assert type(model).__name__ == type(theirs).__name__
    inputs = model_inputs(task, family in ("bart", "t5"))
    requested = {"output_attentions": True, "output_hidden_states": True}
    expected, found = theirs(**inputs, **requested), model(**inputs, **requested)
    cache_names = ("past_key_values", "cache")  # the cache, by its name until transformers 5.23 and its name since
    names = [name for name in expected if name not in cache_names and expected[name] not in ((), None)]
    assert list(found) == names
    for name in names:
        expected_values = expected[name] if isinstance(expected[name], tuple) else (expected[name],)
        actual_values = found[name] if isinstance(expected[name], tuple) else (found[name],)
        assert len(actual_values) == len(expected_values), name
        for one, other in zip(actual_values, expected_values):
            if family in EXACT and has_fixed_sum_order():
                assert torch.equal(one, other), name
            assert_nearly_equal(one, other)


@pytest.mark.parametrize("padded", [slice(0, 3), slice(2, 4), slice(4, 6)], ids=["left", "within", "right"])
@pytest.mark.parametrize("family", ["bart", "t5"])
def test_decoder_padding_matches_the_reference(family: str, padded: slice, tmp_path: Path) -> None:
    theirs = reference_model(family, "Seq2SeqLM", tmp_path)
    inputs, decoder_ids = model_inputs("", True), torch.arange(24, 36).view(2, 6)
    mask = torch.ones_like(decoder_ids)
    mask[1, padded] = 0
    inputs |= {"decoder_input_ids": decoder_ids, "decoder_attention_mask": mask}
    found, expected = our_model("Seq2SeqLM", tmp_path)(**inputs).logits, theirs(**inputs).logits
    assert_nearly_equal(found[mask.bool()], expected[mask.bool()])


def test_left_padding_takes_no_positions_of_a_decoder(tmp_path: Path) -> None:
    """The reference gets the positions as `position_ids`."""
    theirs = reference_model("gpt2", "CausalLM", tmp_path)
    ids, mask = torch.tensor([[0, 0, 5, 6], [5, 6, 7, 8]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    position_ids = (mask.cumsum(dim=1) - 1).clamp(min=0)
    with torch.no_grad():
        found = our_model("CausalLM", tmp_path)(ids, mask).logits[mask.bool()]
        expected = theirs(ids, attention_mask=mask, position_ids=position_ids).logits[mask.bool()]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_real_model_matches_the_reference_on_a_pair(minilm_folder: Path) -> None:
    answers = []
    for library in (compat, transformers):
        tokenizer = library.AutoTokenizer.from_pretrained(minilm_folder)
        model = library.AutoModel.from_pretrained(minilm_folder, attn_implementation="eager", output_attentions=True)
        inputs = tokenizer(*document_cells.PAIR, return_tensors="pt")
        output = model(**inputs, output_hidden_states=True)
        answers.append((inputs.input_ids, output.last_hidden_state, *output.attentions, *output.hidden_states))
    assert len(answers[0]) == len(answers[1]) == 2 + 6 + 7
    assert all(torch.equal(one, other) for one, other in zip(*answers))


def test_output_set_as_an_attribute_is_set_as_an_item_too() -> None:
    """The reference's Trainer reads the loss by its name or index, and got the old one."""
    found = []
    for output in (
        compat.ModelOutput({"loss": 1, "logits": 2, "hidden_states": None}),
        transformers.modeling_outputs.SequenceClassifierOutput(loss=1, logits=2),
    ):
        output.loss, output.hidden_states = 3, (4,)
        found.append((output.loss, output["loss"], output[0], output.hidden_states, dict(output), output.to_tuple()))
    assert found[0] == found[1] and found[0][-1] == (3, 2, (4,))


def test_output_without_a_value_has_no_item_for_it() -> None:
    """The reference keeps the old item, so that the attribute and the item differ."""
    output = compat.ModelOutput({"loss": 1, "logits": 2})
    output.loss = None
    assert output.to_tuple() == (2,) and output.loss is None
    output["extra"], output.loss = 4, 3
    assert output.to_tuple() == (3, 2, 4)


def test_output_is_read_by_name_index_and_as_a_tuple(tmp_path: Path) -> None:
    reference_model("bert", "SequenceClassification", tmp_path)
    model, inputs = our_model("SequenceClassification", tmp_path), model_inputs("", False)
    output = model(**inputs)
    assert output.loss is None and output.attentions is None and list(output) == ["logits"]
    assert torch.equal(output[0], output.logits) and torch.equal(output["logits"], output[:1][0])
    (logits,) = model(**inputs, return_dict=False)
    assert torch.equal(logits, output.logits)
    with pytest.raises(AttributeError, match="this output has no 'pooled'; it has loss, logits"):
        print(output.pooled)
    assert "attentions=None" in repr(output)


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("float_labels", [False, True])
def test_loss_type_follows_the_labels(labels: int, float_labels: bool, tmp_path: Path) -> None:
    folder = tmp_path / "one"
    reference_model("distilbert", "", folder)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=labels)
    theirs.save_pretrained(tmp_path / "two")
    model = compat.AutoModelForSequenceClassification.from_pretrained(tmp_path / "two")
    target = torch.rand(2, labels).squeeze(-1) if float_labels else torch.zeros(2, dtype=torch.long)
    inputs = model_inputs("", False) | {"labels": target}
    expected = theirs(**inputs | {"labels": target.float() if labels == 1 else target})
    torch.testing.assert_close(model(**inputs).loss, expected.loss, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("architecture", "labels"),
    [
        ("LlamaForCausalLM", torch.arange(24).view(2, 12)),
        ("GPT2LMHeadModel", torch.arange(24).view(2, 12)),
        ("LlamaForTokenClassification", torch.arange(24).view(2, 12) % 3),
        ("BertForSequenceClassification", torch.tensor([[0.3, 1.0, 0.0], [1.0, 0.7, 0.1]])),
        ("DistilBertForSequenceClassification", torch.tensor([0.3, -1.7])),
    ],
)
def test_half_precision_loss_is_summed_in_float32(
    architecture: str, labels: torch.Tensor, dtype: torch.dtype, tmp_path: Path
) -> None:
    """As in the reference: a bfloat16 loss has two digits, and a perplexity computed from it is 2 % off."""
    tiny(tmp_path, architecture, dtype=torch.float32, num_labels=1 if labels.dim() == 1 else 3)
    inputs = {"input_ids": torch.arange(5, 29).view(2, 12), "labels": labels}
    theirs, model = (
        getattr(library, architecture).from_pretrained(tmp_path, dtype=dtype) for library in (transformers, compat)
    )
    found, expected = model(**inputs).loss, theirs.eval()(**inputs).loss
    assert found.dtype == expected.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=torch.finfo(dtype).eps / 4, atol=0)


def test_training_losses_match_the_reference(tmp_path: Path) -> None:
    facts = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
    losses = []
    for model in (
        reference_model("distilbert", "SequenceClassification", tmp_path, **facts),
        our_model("SequenceClassification", tmp_path),
    ):
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        own_losses = []
        for _ in range(4):
            loss = model(**model_inputs("SequenceClassification", False)).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            own_losses.append(loss.item())
        losses.append(own_losses)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[1][-1] < losses[1][0]


def test_missing_head_is_random_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reference_model("bert", "", tmp_path)
    names = {0: "bad", 1: "fair", 2: "good", 3: "best"}
    model = compat.AutoModelForSequenceClassification.from_pretrained(
        tmp_path, num_labels=4, id2label=names, label2id={name: i for i, name in names.items()}, hidden_dropout_prob=0.3
    )
    assert "holds no trained weights for its head" in caplog.text
    assert model(**model_inputs("", False)).logits.shape == (2, 4)
    assert model.config.id2label == names == model.pellucid.config.id2label
    assert model.config.hidden_dropout_prob == model.pellucid.config.dropout.hidden_dropout_prob == 0.3
    with pytest.raises(pellucid.InputError, match="not trained"):
        pellucid.pipeline("text-classification", model.pellucid)


@pytest.mark.parametrize("family", ["distilbert", "gpt2"])
def test_saved_checkpoint_opens_in_the_reference(family: str, tmp_path: Path) -> None:
    theirs = reference_model(family, "SequenceClassification", tmp_path / "one", vocab_size=601)
    model = our_model("SequenceClassification", tmp_path / "one")
    model.config.id2label = {0: "no", 1: "perhaps", 2: "yes"}
    tokenizer = compat.AutoTokenizer.from_pretrained(TOKENIZERS / "bert")
    tokenizer.save_pretrained(tmp_path / "two")
    model.save_pretrained(tmp_path / "two")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "two", attn_implementation="eager"
    )
    inputs = model_inputs("", False)
    assert torch.equal(again(**inputs).logits, theirs(**inputs).logits)
    assert again.config.label2id == {"no": 0, "perhaps": 1, "yes": 2}
    both = [library.AutoTokenizer.from_pretrained(tmp_path / "two") for library in (compat, transformers)]
    assert (
        both[0]("The sky is blue.").input_ids
        == both[1]("The sky is blue.").input_ids
        == tokenizer("The sky is blue.").input_ids
    )


def test_config_dict_is_a_copy() -> None:
    """As in the reference, whose dicts are deep copies."""
    config, generation_config = (
        compat.BertConfig(architectures=["BertModel"]),
        compat.GenerationConfig(eos_token_id=[1, 2]),
    )
    config.to_dict()["architectures"].append("another")
    generation_config.to_dict()["eos_token_id"].append(3)
    assert config.architectures == ["BertModel"] and generation_config.eos_token_id == [1, 2]


def test_config_is_written_as_json_and_updated_by_name(tmp_path: Path) -> None:
    config = compat.BertConfig(num_hidden_layers=3)
    config.update({"num_hidden_layers": 2, "num_labels": 5})
    assert (config.num_hidden_layers, config.num_labels) == (2, 5)
    with pytest.raises(pellucid.InputError, match=r"no fact 'num_hiden_layers' of a BertConfig \(did you mean num_hid"):
        config.update({"num_hiden_layers": 2})
    text = config.to_json_string()
    assert json.loads(text) == json.loads(config.to_json_string(use_diff=False)) == config.to_dict()
    (tmp_path / "config.json").write_text(text)
    for library in (compat, transformers):
        again = library.AutoConfig.from_pretrained(tmp_path)
        assert (again.num_hidden_layers, again.num_labels) == (2, 5)
    with pytest.raises(AttributeError, match=r"this BertConfig has no 'to_diff_dict': to_dict\(\) gives every key"):
        config.to_diff_dict()


def test_config_accepts_numbers_of_numpy_and_shows_any_value(tmp_path: Path) -> None:
    """`num_labels=labels.max() + 1` is one."""
    config = compat.BertConfig(hidden_size=np.int64(24), num_labels=np.int64(3), layer_norm_eps=np.float64(1e-5))
    assert repr(config) == repr(compat.BertConfig(hidden_size=24, num_labels=3, layer_norm_eps=1e-5))
    config.save_pretrained(tmp_path)
    assert compat.AutoConfig.from_pretrained(tmp_path, num_labels=np.int64(4)).num_labels == 4
    assert compat.T5Config(num_layers=np.int64(3)).num_decoder_layers == 3
    assert compat.BertConfig.from_dict({"num_hidden_layers": np.int64(3)}).num_hidden_layers == 3
    assert '"hidden_size": "{16}"' in repr(compat.BertConfig(hidden_size={16}))


def test_num_labels_of_a_config_keeps_matching_labels() -> None:
    config = compat.BertConfig(id2label={0: "no", 1: "yes"})
    config.num_labels = 2
    assert config.id2label == {0: "no", 1: "yes"} and config.label2id == {"no": 0, "yes": 1}


def test_model_is_built_from_a_config(tmp_path: Path) -> None:
    small = SMALL_SIZES | {"vocab_size": 90}
    config, expected = compat.BertConfig(**small), transformers.BertConfig(**small)
    reference_facts = expected.to_dict()
    assert {
        key: value
        for key, value in config.to_dict().items()
        if key in reference_facts and key not in ("architectures", "id2label")
    } == {
        key: reference_facts[key]
        for key in config.to_dict()
        if key in reference_facts and key not in ("architectures", "id2label")
    }
    model = compat.BertModel(config)
    assert model.num_parameters() == transformers.BertModel(expected).num_parameters()
    assert not model.training and isinstance(config, compat.PretrainedConfig)
    torch.manual_seed(4)
    first = compat.AutoModelForMaskedLM.from_config(config)
    torch.manual_seed(4)
    second = compat.BertForMaskedLM(config)
    assert type(first) is type(second)
    ids = torch.arange(5)[None]
    assert torch.equal(first(ids).logits, second(ids).logits)
    config.save_pretrained(tmp_path)
    for one in (config, compat.AutoTokenizer.from_pretrained(TOKENIZERS / "bert")):
        with pytest.raises(pellucid.InputError, match=r"^cannot write .*config\.json"):
            one.save_pretrained(tmp_path / "config.json")
    assert compat.AutoConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()
    assert repr(config).startswith('BertConfig {\n  "')
    assert compat.AutoConfig.for_model("distilbert", dim=24).hidden_size == 24


CONFIG_OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("GPT2Config", {"n_embd": 24, "n_head": 3}),
    ("GPT2Config", {"n_embd": 24, "n_inner": 5}),
    ("T5Config", {"num_layers": 2}),
    ("T5Config", {"num_layers": 2, "num_decoder_layers": 1}),
    ("T5Config", {"num_hidden_layers": 2}),
    ("T5Config", {"feed_forward_proj": "gated-gelu"}),
    ("BertConfig", {"hidden_size": 24}),
    ("BartConfig", {}),
    ("XLMRobertaConfig", {}),
    ("CamembertConfig", {}),
]


@pytest.mark.parametrize(("name", "options"), CONFIG_OPTIONS, ids=str)
def test_derived_config_facts_match_the_reference(name: str, options: dict[str, Any]) -> None:
    """T5's decoder has as many layers as its encoder, and GPT-2's feed-forward is four times as wide as its hidden
    states; both used to keep the sizes of the family's own models."""
    found, expected = (getattr(library, name)(**options) for library in (compat, transformers))
    facts = "vocab_size num_labels n_inner num_layers num_decoder_layers d_ff feed_forward_proj intermediate_size"
    for fact in facts.split():
        if hasattr(expected, fact) and not (name == "GPT2Config" and fact == "intermediate_size"):
            assert getattr(found, fact) == getattr(expected, fact), fact


@pytest.mark.parametrize("family", sorted(families().keys() & set(transformers.CONFIG_MAPPING)))
def test_config_of_every_family_matches_the_reference(family: str) -> None:
    found, expected = (library.AutoConfig.for_model(family) for library in (compat, transformers))
    for fact in ("num_hidden_layers", "hidden_size", "vocab_size", "num_labels"):
        assert getattr(found, fact) == getattr(expected, fact), fact
    assert compat.AutoConfig.for_model(family, hidden_size=48).hidden_size == 48


def test_gpt2_feed_forward_size_follows_the_hidden_size(tmp_path: Path) -> None:
    sizes = []
    for library in (compat, transformers):
        config = library.GPT2Config(n_embd=24, n_head=3, n_layer=1, vocab_size=50)
        config.n_embd = 48
        config.save_pretrained(tmp_path / library.__name__)
        again = library.AutoConfig.from_pretrained(tmp_path / library.__name__, n_embd=36)
        sizes.append([library.GPT2Model(one).num_parameters() for one in (config, again)])
    assert sizes[0] == sizes[1]


def test_model_works_as_a_torch_module(tmp_path: Path) -> None:
    import copy
    import pickle

    reference_model("bert", "", tmp_path)
    model = compat.AutoModel.from_pretrained(tmp_path, torch_dtype=torch.float64, device_map="cpu")
    sequential = torch.nn.Sequential(model)
    assert len(list(sequential.parameters())) == len(list(model.pellucid.parameters()))
    assert model.dtype == torch.float64 and model.device.type == "cpu"
    ids = torch.arange(5)[None]
    expected = model(ids).last_hidden_state
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(copied(ids).last_hidden_state, expected)
        copied.half()
        assert copied.dtype == torch.float16 == copied.pellucid.dtype and model.dtype == torch.float64
    assert model.get_input_embeddings().weight.shape == (90, 24)


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        (
            {"output_attention": True},
            r"no argument and no fact 'output_attention' of a BertConfig \(did you mean output_att",
        ),
        (
            {"attn_implementation": "quick"},
            "attn_implementation is 'quick', expected None, 'sdpa' or 'eager'",
        ),
        ({"from_tf": True}, "from_tf is True, which is not supported here"),
        ({"num_hidden_layers": 3}, "missing"),
    ],
)
def test_unknown_arguments_are_refused(options: dict[str, Any], fragment: str, tmp_path: Path) -> None:
    reference_model("bert", "", tmp_path)
    with pytest.raises(pellucid.PellucidError, match=fragment):
        compat.AutoModel.from_pretrained(tmp_path, **options)


def test_num_labels_beside_label_names_is_accepted(tmp_path: Path) -> None:
    reference_model("bert", "SequenceClassification", tmp_path)
    facts = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"num_labels": 2} | facts))
    assert our_model("SequenceClassification", tmp_path).config.num_labels == 3


def test_unsupported_calls_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reference_model("bert", "", tmp_path)
    model = compat.AutoModel.from_pretrained(tmp_path, trust_remote_code=True, low_cpu_mem_usage=True)
    assert "runs no code of a checkpoint" in caplog.text
    with pytest.raises(pellucid.InputError, match="position_ids was given, which is not supported"):
        model(torch.arange(4)[None], position_ids=torch.arange(4)[None])
    with pytest.raises(pellucid.InputError, match="is a bert, not a distilbert: open it with an Auto class"):
        compat.DistilBertModel.from_pretrained(tmp_path)
    with pytest.raises(pellucid.InputError, match="bert has no head 'causal-lm'"):
        compat.AutoModelForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(pellucid.InputError, match="to generate text, a decoder needs a head for the next token"):
        model.generate(torch.arange(4)[None])
    with pytest.raises(ImportError, match="BertForMagic"):
        exec("from pellucid.compat import BertForMagic")

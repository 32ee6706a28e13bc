"""Idioms of code for the reference: resized embeddings, streamers, device maps, folders that already contain a
tokenizer; compared with the reference."""

import enum
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import pellucid
from pellucid import compat
from pellucid.checkpoints.adapter_save import base_name
from pellucid.compat.arguments import resolve_device
from tests.parity import tiny
from tests.test_compat_auto import TOKENIZERS, assert_nearly_equal, model_inputs, our_model, reference_model

CASES = [("bert", "MaskedLM"), ("gpt2", "CausalLM"), ("llama", "CausalLM"), ("bart", "Seq2SeqLM"), ("t5", "Seq2SeqLM")]
IDS = torch.tensor([[5, 9, 14, 33, 21]])


@pytest.mark.parametrize(("family", "task"), [*CASES, ("bert", ""), ("llama", "SequenceClassification")])
@pytest.mark.parametrize("rows", [97, 60])
def test_embeddings_are_resized_as_in_the_reference(family: str, task: str, rows: int, tmp_path: Path) -> None:
    theirs, model = reference_model(family, task, tmp_path / "one"), our_model(task, tmp_path / "one")
    inputs = model_inputs("", family in ("bart", "t5"))
    before, old_parameters = model(**inputs), dict(model.named_parameters())
    table, expected = model.resize_token_embeddings(rows), theirs.resize_token_embeddings(rows)
    assert table is model.get_input_embeddings() and table.weight.shape == expected.weight.shape
    assert model.config.vocab_size == theirs.config.vocab_size == model.pellucid.config.vocab_size == rows
    top, expected_top = model.get_output_embeddings(), theirs.get_output_embeddings()
    assert (top is None) == (expected_top is None)
    assert top is None or top.weight.shape == expected_top.weight.shape
    after = model(**inputs)
    if task == "SequenceClassification" or not task:
        assert torch.equal(after[0], before[0])
    else:
        torch.testing.assert_close(after.logits, theirs(**inputs).logits, rtol=0, atol=5e-3)
        assert torch.equal(after.logits[..., : min(rows, 90)], before.logits[..., : min(rows, 90)])
    if rows > 90:  # the reference draws new rows within 1e-4 of their mean
        torch.testing.assert_close(table.weight[90:], expected.weight[90:], rtol=0, atol=1e-3)
    replaced = [name for name, one in model.named_parameters() if one is not old_parameters[name]]
    assert replaced and all("token" in name or "head" in name for name in replaced)
    model.save_pretrained(tmp_path / "two")
    again = our_model(task, tmp_path / "two")
    assert torch.equal(again(**inputs)[0], after[0])
    assert torch.equal(again.get_input_embeddings().weight, table.weight)


def test_resized_embeddings_can_be_trained(tmp_path: Path) -> None:
    reference_model("gpt2", "CausalLM", tmp_path)
    model = our_model("CausalLM", tmp_path)
    assert model.resize_token_embeddings(90) is model.get_input_embeddings()
    assert base_name(model.pellucid.loaded) == str(tmp_path)
    model.resize_token_embeddings(91, pad_to_multiple_of=np.int64(8))
    with pytest.raises(pellucid.InputError, match=r"an adapter names its base.*save it and load it first"):
        base_name(model.pellucid.loaded)  # the files contain other embedding tables
    assert model.config.vocab_size == 96 and model.resize_token_embeddings().weight.shape[0] == 96
    ids = torch.tensor([[5, 93, 7, 95]])
    model(ids, labels=ids).loss.backward()
    assert model.get_input_embeddings().weight.grad[93].abs().sum() > 0
    assert model.generate(ids, max_new_tokens=3).shape == (1, 7)
    for options, fragment in (
        ({"new_num_tokens": "x"}, "new_num_tokens is 'x', expected a whole number"),
        ({"new_num_tokens": 0}, "new_num_tokens is 0, expected a whole number"),
        ({"pad_to_multiple_of": "x"}, "pad_to_multiple_of is 'x', expected a whole number"),
        ({"mean_resizing": False}, "mean_resizing is False, and new rows are the mean"),
        ({"new_num_tokens": -3}, "new_num_tokens is -3"),
    ):
        with pytest.raises(pellucid.InputError, match=fragment):
            model.resize_token_embeddings(**options)


def test_added_tokens_are_saved_with_model_and_tokenizer(tmp_path: Path) -> None:
    reference_model("bert", "MaskedLM", tmp_path / "one", vocab_size=600)
    shutil.copytree(TOKENIZERS / "bert", tmp_path / "words")
    model, tokenizer = our_model("MaskedLM", tmp_path / "one"), compat.AutoTokenizer.from_pretrained(tmp_path / "words")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<city>"]})
    model.resize_token_embeddings(len(tokenizer))
    for saved in ((tokenizer, model), (model, tokenizer)):
        folder = tmp_path / type(saved[0]).__name__
        for one in saved:
            one.save_pretrained(folder)
        again = pellucid.load(folder, head="masked-lm")
        assert again.tokenizer is not None and again.tokenizer("<city>").input_ids == [2, 600, 3]
        assert transformers.AutoTokenizer.from_pretrained(folder)("<city>").input_ids == [2, 600, 3]
        assert (
            transformers.AutoModelForMaskedLM.from_pretrained(folder)(torch.tensor([[2, 600, 3]])).logits.shape[-1]
            == 601
        )


def test_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    reference_model("bert", "", tmp_path / "one")
    model, tokenizer = our_model("", tmp_path / "one"), compat.AutoTokenizer.from_pretrained(TOKENIZERS / "mpnet")
    tokenizer.save_pretrained("~/two")
    model.config.save_pretrained("~/two")
    compat.AutoTokenizer.from_pretrained(TOKENIZERS / "bert").save_pretrained("~/three")
    assert (tmp_path / "two" / "tokenizer.json").exists() and (tmp_path / "two" / "config.json").exists()
    with pytest.raises(pellucid.CheckpointMismatchError, match="gives ids up to 599"):  # by that folder's tokenizer
        model.save_pretrained("~/three")


def test_tokenizer_of_the_target_folder_is_checked_when_saving(tmp_path: Path) -> None:
    reference_model("mpnet", "MaskedLM", tmp_path / "one", vocab_size=602)
    model = our_model("MaskedLM", tmp_path / "one")
    (tmp_path / "two").mkdir()
    vocab = compat.AutoTokenizer.from_pretrained(TOKENIZERS / "mpnet").get_vocab()
    (tmp_path / "two" / "vocab.txt").write_text("\n".join(sorted(vocab, key=lambda token: vocab[token])) + "\n")
    model.save_pretrained(tmp_path / "two")  # vocab.txt alone does not show that its special tokens are MPNet's
    saved = json.loads((tmp_path / "two" / "tokenizer_config.json").read_text())
    assert saved["cls_token"] == "<s>" and saved["model_max_length"] == model.pellucid.config.max_sequence_length
    compat.AutoTokenizer.from_pretrained(TOKENIZERS / "bert").save_pretrained(tmp_path / "three")
    reference_model("bert", "", tmp_path / "four")
    with pytest.raises(
        pellucid.CheckpointMismatchError, match="gives ids up to 599, the model's table of tokens has 90"
    ):
        our_model("", tmp_path / "four").save_pretrained(tmp_path / "three")


class RecordingStreamer:
    """Records what a streamer of the reference receives."""

    def __init__(self) -> None:
        self.received: list[list[int]] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.received.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended = True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("family", "task"), [("gpt2", "CausalLM"), ("bart", "Seq2SeqLM")])
def test_streamer_receives_every_token(family: str, task: str, tmp_path: Path) -> None:
    theirs = reference_model(family, task, tmp_path, eos_token_id=2, bos_token_id=1)
    model, our_streamer, reference_streamer = our_model(task, tmp_path), RecordingStreamer(), RecordingStreamer()
    options: dict[str, Any] = {"max_new_tokens": 5, "num_beams": 1, "stopping_criteria": [], "past_key_values": None}
    options |= {"cache_implementation": None, "tokenizer": None}
    found = model.generate(input_ids=IDS, streamer=our_streamer, **options)
    theirs.generate(input_ids=IDS, max_new_tokens=5, num_beams=1, streamer=reference_streamer)
    assert our_streamer.received == reference_streamer.received and our_streamer.ended and reference_streamer.ended
    assert [token for ids in our_streamer.received for token in ids] == found[0].tolist()
    for inputs, invalid, fragment in (
        (IDS.repeat(2, 1), {}, "a streamer takes one text, and 2 are written"),
        (IDS, {"num_beams": 2}, "beams are certain only at the end"),
    ):
        with pytest.raises(pellucid.InputError, match=fragment):
            model.generate(inputs, streamer=RecordingStreamer(), max_new_tokens=2, **invalid)


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        (
            {"output_scores": True},
            r"output_scores is True, which is not supported here: model.pellucid.trace_writing\(prompt\)",
        ),
        (
            {"stop_strings": ["x"]},
            r"stop_strings is \['x'\], which is not supported here: model.pellucid.generate\(prompt, stop=",
        ),
        (
            {"logits_processor": [len]},
            "logits_processor is .<built-in.*, which is not supported here: rules are given by name",
        ),
        ({"stop_strings": "x", "output_scores": True}, "^stop_strings is"),
        ({"output_scores": True, "stop_strings": "x"}, "^output_scores is"),
        ({"cache": ()}, r"^cache is \(\), which is not supported here: a prompt is read whole"),
        ({"past_key_values": ()}, r"past_key_values is \(\), which is not supported here: a prompt is read whole"),
    ],
)
def test_unsupported_generate_options_are_refused(options: dict[str, Any], fragment: str, tmp_path: Path) -> None:
    reference_model("gpt2", "CausalLM", tmp_path)
    with pytest.raises(pellucid.InputError, match=fragment):
        our_model("CausalLM", tmp_path).generate(IDS, **options)


def test_loading_and_saving_options(tmp_path: Path) -> None:
    reference_model("bert", "", tmp_path, vocab_size=600)
    shutil.copytree(TOKENIZERS / "bert", tmp_path, dirs_exist_ok=True)
    for device in ("cpu", {"": "cpu"}, {"": torch.device("cpu")}):
        assert our_model("", tmp_path, device_map=device).device.type == "cpu"
    for device in ("auto", "balanced", "sequential"):
        assert our_model("", tmp_path, device_map=device).device == our_model("", tmp_path, device_map="auto").device
    model = our_model(
        "", tmp_path, subfolder="", variant=None, load_in_8bit=False, offload_folder="x", max_memory={0: "1GB"}
    )
    assert model.name_or_path == str(tmp_path)
    model.save_pretrained(tmp_path / "two", safe_serialization=True, max_shard_size="5GB", is_main_process=False)
    assert not (tmp_path / "two").exists()
    model.save_pretrained(tmp_path / "two", is_main_process=True, save_function=torch.save, state_dict=None)
    compat.AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path / "two", legacy_format=False)
    pipe = compat.pipeline(
        "feature-extraction", model=str(tmp_path), device_map="auto", batch_size=8, torch_dtype="auto"
    )
    assert pipe.device == pipe.model.device
    for invalid, fragment in (
        ({"device_map": {"embeddings": 0, "layers": "cpu"}}, "device_map names 2 devices, and a model is on one"),
        (
            {"load_in_8bit": True},
            "load_in_8bit is True, which is not supported here: pass dtype='int8' or dtype='int4'",
        ),
        ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}, which is not supported"),
        ({"subfolder": "unet"}, "subfolder is 'unet', which is not supported here"),
        ({"ignore_mismatched_sizes": "yes"}, "^ignore_mismatched_sizes is 'yes', expected true or false"),
    ):
        with pytest.raises(pellucid.InputError, match=fragment):
            our_model("", tmp_path, **invalid)
    for options, fragment in (
        ({"safe_serialization": False}, "safe_serialization is False, and no pickle is written here"),
        ({"state_dict": model.state_dict()}, "state_dict is .* which is not supported here: what the model holds"),
        ({"push_to_hub": True}, "push_to_hub is True, which is not supported here: the hub's own command"),
        ({"max_shard_sizes": 1}, r"no argument 'max_shard_sizes' for saving \(did you mean max_shard_size"),
    ):
        with pytest.raises(pellucid.InputError, match=fragment):
            model.save_pretrained(tmp_path / "three", **options)
    assert not (tmp_path / "three").exists()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "usual"),
        (0, "cuda:0"),
        (1, "cuda:1"),
        (-1, "cpu"),
        ({"": 0}, "cuda:0"),
        ({"a": "cpu", "b": "cpu"}, "cpu"),
        ({"": torch.device("cpu")}, torch.device("cpu")),
        ({"a": torch.device("cuda:0"), "b": 0, "c": "cuda:0"}, "cuda:0"),
        ({"a": "cuda", "b": 0}, "cuda:0"),
        ("balanced", "auto"),
        ("cuda:1", "cuda:1"),
    ],
)
def test_device_map_gives_a_device(value: Any, expected: Any) -> None:
    assert resolve_device("device_map", value, "usual") == expected


def test_number_as_device_is_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference_model("bert", "", tmp_path, vocab_size=600)
    shutil.copytree(TOKENIZERS / "bert", tmp_path, dirs_exist_ok=True)
    assert our_model("", tmp_path, device_map=-1).device.type == "cpu"
    assert compat.pipeline("feature-extraction", model=str(tmp_path), device=-1).device.type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for number in (0, 1):
        with pytest.raises(pellucid.InputError, match="this PyTorch sees no CUDA GPU"):
            our_model("", tmp_path, device_map=number)
        with pytest.raises(pellucid.InputError, match="this PyTorch sees no CUDA GPU"):
            compat.pipeline("feature-extraction", model=str(tmp_path), device=number)
    with pytest.raises(pellucid.InputError, match="device_map names 0 devices, and a model is on one"):
        our_model("", tmp_path, device_map={})
    with pytest.raises(pellucid.InputError, match=r"device is \['cpu'\], expected 'cpu', 'cuda', 'mps' or 'auto'"):
        our_model("", tmp_path, device_map={"": ["cpu"]})


def test_missing_attributes_are_explained(tmp_path: Path) -> None:
    reference_model("bert", "", tmp_path)
    model = our_model("", tmp_path)
    with pytest.raises(AttributeError, match=r"this BertModel has no 'pooler'.*are in .network.*in .pellucid$"):
        print(model.pooler)
    with pytest.raises(AttributeError, match=r"this BertModel has no 'push_to_hub': save_pretrained.*`hf upload NAME"):
        model.push_to_hub("somewhere")
    assert not hasattr(model, "encoder") and hasattr(model, "generate")
    assert not hasattr(model, "prepare_decoder_input_ids_from_labels")  # by which a collator detects a decoder
    with pytest.raises(
        pellucid.InputError, match="base_model is for freezing its parts, and cannot be called: call the whole"
    ):
        model.base_model(torch.tensor([[5, 6]]))
    with pytest.raises(AttributeError, match=r"a GenerationConfig has no 'update': set attributes; to_dict\(\) gives"):
        model.generation_config.update(max_new_tokens=3)
    with pytest.raises(AttributeError, match=r"this tokenizer has no 'train_new_from_iterator': pellucid.train_tok"):
        compat.AutoTokenizer.from_pretrained(TOKENIZERS / "bert").train_new_from_iterator(["one"], 90)
    with pytest.raises(AttributeError, match=r"this tokenizer has no 'push_to_hub': save_pretrained.*`hf upload"):
        compat.AutoTokenizer.from_pretrained(TOKENIZERS / "bert").push_to_hub("somewhere")


@pytest.mark.filterwarnings("ignore")
def test_changed_config_is_saved(tmp_path: Path) -> None:
    reference_model("gpt2", "SequenceClassification", tmp_path / "one")
    model = our_model("SequenceClassification", tmp_path / "one")
    model.config.problem_type, model.config.pad_token_id = "multi_label_classification", 5
    model.save_pretrained(tmp_path / "two")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "two")
    assert (theirs.config.problem_type, theirs.config.pad_token_id) == ("multi_label_classification", 5)
    again = our_model("SequenceClassification", tmp_path / "two")
    assert (again.config.problem_type, again.pellucid.config.pad_token_id) == ("multi_label_classification", 5)


def test_given_config_is_not_modified(tmp_path: Path) -> None:
    """As in the reference, so that one config can serve several models."""
    reference_model("bert", "SequenceClassification", tmp_path)
    config = compat.AutoConfig.from_pretrained(tmp_path)
    before, kind = config.to_dict(), compat.AutoModelForSequenceClassification
    first, second = (kind.from_pretrained(tmp_path, config=config, output_attentions=flag) for flag in (True, False))
    first(torch.tensor([[5, 6]]), labels=torch.tensor([1]))
    assert first.config.problem_type == "single_label_classification" and first.config.output_attentions
    assert second.config.problem_type is None and config.to_dict() == before


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_pad_token_set_later_is_skipped_in_classification(family: str, tmp_path: Path) -> None:
    theirs = reference_model(family, "SequenceClassification", tmp_path, pad_token_id=None)
    model, ids = our_model("SequenceClassification", tmp_path), torch.tensor([[5, 9, 14, 33, 21], [5, 9, 14, 0, 0]])
    theirs.config.pad_token_id = model.config.pad_token_id = 0
    torch.testing.assert_close(model(ids).logits, theirs(ids).logits, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["bert-feelings", "roberta-toxic", "bart-nli", "gpt2-feelings"])
def test_head_with_other_labels_is_initialized_anew(name: str, tmp_path: Path, caplog: Any) -> None:
    """All other weights of the head are kept, as by the reference."""
    tiny.write(name, tmp_path / "one")
    load = compat.AutoModelForSequenceClassification.from_pretrained
    with pytest.raises(
        pellucid.errors.CheckpointMismatchError, match=r"expected \[7\b.*; ignore_mismatched_sizes=True"
    ):
        load(tmp_path / "one", num_labels=7)
    caplog.clear()
    model = load(tmp_path / "one", num_labels=7, ignore_mismatched_sizes=True)
    tensor_name = "head.classifier" if name in ("roberta-toxic", "bart-nli") else "head"
    assert f"for its {tensor_name}: they are random" in caplog.text and model.pellucid.loaded.untrained == (
        tensor_name,
    )
    reference_class = transformers.AutoModelForSequenceClassification
    expected = reference_class.from_pretrained(tmp_path / "one", num_labels=7, ignore_mismatched_sizes=True)
    random_weights = {f"network.head.classifier.{kind}" for kind in ("weight", "bias")}
    other = load(tmp_path / "one", num_labels=7, ignore_mismatched_sizes=True)
    other.load_state_dict(expected.state_dict())
    for tensor_name, weights in other.state_dict().items():
        assert (
            torch.equal(weights, model.state_dict()[tensor_name]) == (tensor_name not in random_weights)
            or not weights.any()
        ), tensor_name
    model.save_pretrained(tmp_path / "two")
    ids = torch.tensor([[0, 5, 6, 2]])
    assert_nearly_equal(pellucid.load(tmp_path / "two")(ids).logits, model(ids).logits)
    with pytest.warns(UserWarning, match=r"^the random weights of head\.classifier are frozen"):
        model.network.head.requires_grad_(False)
        model.train()(ids, labels=torch.ones(1, 7) if name == "roberta-toxic" else torch.tensor([3]))
    reloaded = load(tmp_path / "one", ignore_mismatched_sizes=True)
    assert_nearly_equal(reloaded(ids).logits, load(tmp_path / "one")(ids).logits)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("export", ["torch.jit.trace", "torch.export"])
def test_export_is_refused(export: str, tmp_path: Path) -> None:
    """It used to fail inside torch, at a value that is unknown while tracing."""
    reference_model("gpt2", "CausalLM", tmp_path)
    model, inputs = our_model("CausalLM", tmp_path), {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    with pytest.raises(
        pellucid.InputError, match=r"^a pass checks the values of its ids and masks, .*for transformers"
    ):
        if export == "torch.export":
            torch.export.export(model, (), inputs)
        else:
            torch.jit.trace(model, tuple(inputs.values()), strict=False)


@pytest.mark.parametrize("family", ["bert", "distilbert", "gpt2", "llama", "t5"])
def test_configs_of_equal_facts_are_equal(family: str, tmp_path: Path) -> None:
    reference_model(family, "", tmp_path)
    config, again = (compat.AutoConfig.from_pretrained(tmp_path) for _ in range(2))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    assert config == again and config != theirs
    assert type(config).from_dict(config.to_dict()) == config == compat.PretrainedConfig.from_dict(config.to_dict())
    assert config != type(config).from_dict(config.to_dict(), num_labels=7)
    found, expected = (
        one.GenerationConfig.from_model_config(facts) for one, facts in ((compat, config), (transformers, theirs))
    )
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"):
        assert getattr(found, name) == getattr(expected, name)


def test_facts_of_another_family_are_refused() -> None:
    with pytest.raises(pellucid.InputError, match="model_type is 'gpt2', which is not for BertConfig: use GPT2Config"):
        compat.BertConfig.from_dict({"model_type": "gpt2"})
    assert compat.BertConfig.from_dict({"num_hidden_layers": 3}) == compat.BertConfig(num_hidden_layers=3)
    with pytest.raises(pellucid.InputError, match="has no model_type, which names the arch"):
        compat.PretrainedConfig.from_dict({"num_hidden_layers": 3})


@pytest.mark.parametrize("key", ["x", "²", None, 1.5])
def test_labels_are_by_number(key: Any) -> None:
    with pytest.raises(pellucid.InputError, match=r"^id2label is .*, expected labels by number"):
        compat.BertConfig(id2label={0: "no", key: "yes"})


class Feeling(enum.Enum):
    SAD = "sad"
    GLAD = "glad"


@pytest.mark.parametrize(
    ("id2label", "label2id", "labels"),
    [
        ({0: Feeling.SAD, 1: Feeling.GLAD}, {Feeling.SAD: 0, Feeling.GLAD: 1}, ["sad", "glad"]),
        ({False: "no", True: "yes"}, {"no": False, "yes": np.True_}, ["no", "yes"]),
        ({"0": 5, np.int64(1): np.int64(6)}, {5: "0", "6": np.int64(1)}, ["5", "6"]),
    ],
    ids=["enum", "bool", "text"],
)
def test_labels_are_the_same_however_a_config_gets_them(
    id2label: Any, label2id: Any, labels: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    facts = {"id2label": id2label, "label2id": label2id}
    assigned = compat.BertConfig()
    assigned.id2label, assigned.label2id = id2label, label2id
    for config in (compat.BertConfig(**facts), compat.BertConfig.from_dict(facts), assigned):
        assert config.id2label == dict(enumerate(labels)) and config.to_config().labels == tuple(labels)
        assert json.dumps(config.label2id) == json.dumps({label: i for i, label in enumerate(labels)})
    assert not caplog.records


def test_config_shows_and_writes_labels_of_any_type(caplog: pytest.LogCaptureFixture) -> None:
    """Those of different types could not be sorted, and the class reported ids that are no text as wrong."""
    names: dict[int, Any] = {0: "none", 1: 1, 2: None, 3: np.int64(4)}
    for config in (compat.BertConfig(id2label=names), compat.BertConfig.from_dict({"id2label": names})):
        shown = json.loads(repr(config).removeprefix("BertConfig "))
        assert shown == config.to_dict() == json.loads(config.to_json_string())
        assert shown["label2id"] == {"none": 0, "1": 1, "None": 2, "4": 3}
        assert config.to_config().labels == ("none", "1", "None", "4")
    assert compat.BertConfig(label2id={"none": 0, 1: 1}).to_dict()["label2id"] == {"none": 0, "1": 1}
    assert "id2label" not in caplog.text
    with pytest.raises(pellucid.InputError, match=r"^id2label is \{0: \['a'\]\}, expected a name for each number$"):
        compat.BertConfig(id2label={0: ["a"]})


@pytest.mark.parametrize("facts", [{3: 4}, {"vocab_size": 9, None: 1}, None, "x"], ids=repr)
def test_config_dict_has_names(facts: Any) -> None:
    with pytest.raises(pellucid.InputError, match=r"^config_dict is .*, expected values by name"):
        compat.BertConfig.from_dict(facts)


def test_labels_are_saved_in_order(tmp_path: Path) -> None:
    reference_model("bert", "SequenceClassification", tmp_path / "one")
    model = our_model("SequenceClassification", tmp_path / "one")
    model.config.id2label = {2: "perhaps", 1: "yes", 0: "no"}
    model.save_pretrained(tmp_path / "two")
    for again in (pellucid.load(tmp_path / "two"), transformers.AutoModel.from_pretrained(tmp_path / "two")):
        assert again.config.id2label == {0: "no", 1: "yes", 2: "perhaps"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("file", [True, False], ids=["generation_config", "config"])
def test_changed_generation_config_is_saved(file: bool, tmp_path: Path) -> None:
    reference_model("gpt2", "CausalLM", tmp_path / "one", bos_token_id=1, eos_token_id=2, pad_token_id=0)
    if not file:
        (tmp_path / "one" / "generation_config.json").unlink()
    model = our_model("CausalLM", tmp_path / "one")
    model.save_pretrained(tmp_path / "same")
    assert (tmp_path / "same" / "generation_config.json").exists() == file
    model.generation_config.max_new_tokens, model.generation_config.no_repeat_ngram_size = 4, 2
    model.save_pretrained(tmp_path / "two")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "two")
    ids = model_inputs("", False)["input_ids"][:1]
    expected = model.generate(ids)
    assert expected.shape[1] <= ids.shape[1] + 4
    assert torch.equal(theirs.generate(ids), expected) and torch.equal(
        our_model("CausalLM", tmp_path / "two").generate(ids), expected
    )

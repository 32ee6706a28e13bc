"""The study documents' calls with one import changed, against a local hub; compared with the reference's answers."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import pellucid
from pellucid import compat
from pellucid.checkpoints.families import families
from pellucid.compat import neuron_view
from tests import cells
from tests.checkpoints.hub import Hub, run_pellucid, running
from tests.parity.reference import tiny
from tests.products import one_order

WORDS = Path(__file__).parent / "parity" / "golden" / "tokenizers"
SIZES = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 12, "intermediate_size": 40}
TINY = {"vocab_size": 601, "max_position_embeddings": 98, "initializer_range": 0.15}
FEELINGS = {"dim": 48, "n_layers": 2, "n_heads": 12, "hidden_dim": 40, "id2label": {0: "NEGATIVE", 1: "POSITIVE"}}
NLI = SIZES | {"id2label": {0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"}, "type_vocab_size": 1}
NAMES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "bert-base-uncased": ("BertForPreTraining", SIZES, "bert", "BertTokenizer"),
    "distilbert-base-uncased-finetuned-sst-2-english": (
        "DistilBertForSequenceClassification",
        FEELINGS,
        "bert",
        "DistilBertTokenizer",
    ),
    "sentence-transformers/multi-qa-mpnet-base-dot-v1": ("MPNetModel", SIZES, "mpnet", "MPNetTokenizer"),
    "bert-base-cased": ("BertForMaskedLM", SIZES, "bert-cased", "BertTokenizer"),
    "FacebookAI/roberta-large-mnli": ("RobertaForSequenceClassification", NLI, "roberta", "RobertaTokenizer"),
}
"""Every name that the documents load, with the class of its tiny model, its facts, vocabulary and tokenizer class."""


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which each of the names is a checkpoint, as the reference writes it."""
    root = tmp_path_factory.mktemp("shelf")
    for number, (name, (architecture, facts, words, kind)) in enumerate(NAMES.items()):
        torch.manual_seed(number)
        model = getattr(transformers, architecture)
        model(model.config_class(**TINY | facts)).save_pretrained(root / name)
        shutil.copyfile(WORDS / words / "tokenizer.json", root / name / "tokenizer.json")
        settings = json.loads((WORDS / words / "tokenizer_config.json").read_text())
        (root / name / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_class": kind}))
    (root / "distilbert").mkdir()
    shutil.copytree(root / cells.FEELINGS, root / "distilbert" / cells.FEELINGS)
    return root


@pytest.fixture
def beside(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shelf as the current folder, where each library finds the names as folders."""
    monkeypatch.chdir(shelf)
    return shelf


def alike(found: Any, wanted: Any) -> None:
    """Asserts equality, with tensors to 2e-6 of their largest value."""
    if isinstance(wanted, torch.Tensor):
        scale = max(1.0, wanted.abs().max().item()) if wanted.is_floating_point() else 0.0
        torch.testing.assert_close(found, wanted, rtol=0, atol=2e-6 * scale)
    elif isinstance(wanted, dict):
        assert set(found) == set(wanted)
        for name in wanted:
            alike(found[name], wanted[name])
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted):
            alike(one, other)
    else:
        assert found == wanted


# -- the documents ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hub(shelf: Path) -> Iterator[Hub]:
    with running() as found:
        for name in NAMES:
            found.add(name, shelf / name)
        found.add(f"distilbert/{cells.FEELINGS}", shelf / cells.FEELINGS)
        yield found


@pytest.mark.timeout(120)
def test_the_documents_run_with_one_import_changed(hub: Hub, beside: Path, tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    program = f"""
import os, sys
sys.path.insert(0, {str(root)!r})
os.chdir({str(tmp_path)!r})
import torch, pellucid.compat
from tests import cells
torch.save(cells.run(pellucid.compat), "found.pt")
"""
    done = run_pellucid(hub.url, tmp_path / "home", "-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    found = torch.load(tmp_path / "found.pt", weights_only=False)
    assert set(found) == set(cells.CELLS)
    for name, function in cells.CELLS.items():
        alike(found[name], function(transformers))
    assert (tmp_path / "cache" / "models--bert-base-uncased" / "snapshots").is_dir()
    assert {line.split("/")[1] for line in hub.asked if "/resolve/" in line} >= {"bert-base-uncased", cells.FEELINGS}


def test_the_views_take_what_a_model_answers(beside: Path) -> None:
    tokenizer = compat.AutoTokenizer.from_pretrained(cells.BERT)
    model = compat.AutoModel.from_pretrained(cells.BERT, output_attentions=True)
    inputs = tokenizer(*cells.PAIR, return_tensors="pt")
    attention, tokens = model(**inputs).attentions, tokenizer.convert_ids_to_tokens(inputs.input_ids[0])
    start = (inputs.token_type_ids == 0).sum(dim=1)
    view = compat.head_view(attention, tokens, start, heads=[8])
    assert view.data.manifest["show"]["heads"] == [8]
    segments = [token["segment"] for token in view.data.manifest["sequences"][0]["tokens"]]
    assert segments == inputs.token_type_ids[0].tolist()
    shown = neuron_view.show(
        compat.BertModel.from_pretrained(cells.BERT), "bert", tokenizer, cells.PAIR[0], display_mode="light", head=8
    )
    assert shown.data.manifest["show"]["view"] == "neuron"


def test_a_pipeline_finds_its_task_and_takes_what_was_opened(beside: Path) -> None:
    found = compat.pipeline(model=cells.NLI)("This restaurant is awesome")
    assert found == compat.pipeline("text-classification", model=cells.NLI)("This restaurant is awesome")
    model = compat.AutoModelForSequenceClassification.from_pretrained(cells.NLI)
    tokenizer = compat.AutoTokenizer.from_pretrained(cells.NLI)
    assert compat.pipeline(model=model, tokenizer=tokenizer)("This restaurant is awesome") == found
    with pytest.raises(pellucid.InputError, match="neither a task nor a model was given"):
        compat.pipeline()


# -- models -----------------------------------------------------------------------------------------------------------

SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
PAIRED = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": SMALL,
    "distilbert": {"dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 40},
    "roberta": SMALL | {"type_vocab_size": 1},
    "albert": SMALL | {"embedding_size": 16},
    "mpnet": SMALL | {"pad_token_id": 1},
    "gpt2": {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 98, "bos_token_id": 1, "eos_token_id": 2},
    "llama": SMALL | {"num_key_value_heads": 2},
    "bart": PAIRED | {"d_model": 24, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40},
    "t5": {"d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0},
}
EXACT = ("bert", "distilbert", "roberta", "albert", "llama", "bart")
"""Families whose explicit attention takes the reference's steps; others differ in an order or a transposition."""

TASKS = ("", "SequenceClassification", "TokenClassification", "QuestionAnswering", "MaskedLM", "CausalLM", "Seq2SeqLM")
WITHOUT = {
    *((encoder, task) for encoder in ("bert", "roberta") for task in ("CausalLM", "Seq2SeqLM")),
    *((encoder, task) for encoder in ("distilbert", "albert", "mpnet") for task in ("CausalLM", "Seq2SeqLM")),
    *((decoder, task) for decoder in ("gpt2", "llama") for task in ("MaskedLM", "Seq2SeqLM")),
    *(("bart", task) for task in ("TokenClassification", "MaskedLM", "CausalLM")),
    *(("t5", task) for task in ("SequenceClassification", "TokenClassification", "MaskedLM", "CausalLM")),
    ("t5", "QuestionAnswering"),
}
CASES = [(family, task) for family in FAMILIES for task in TASKS if (family, task) not in WITHOUT]


def reference(family: str, task: str, folder: Path, **facts: Any) -> Any:
    """A tiny model of the reference with eager attention, also saved in the folder."""
    sizes = {"vocab_size": 90, "max_position_embeddings": 98, "pad_token_id": 0} | FAMILIES[family] | facts
    sizes.pop("max_position_embeddings" if family in ("gpt2", "t5") else "", None)
    config = transformers.AutoConfig.for_model(family, num_labels=2 if task == "QuestionAnswering" else 3, **sizes)
    torch.manual_seed(7)
    kind = getattr(transformers, f"AutoModelFor{task}" if task else "AutoModel")
    model = kind.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    return kind.from_pretrained(folder, attn_implementation="eager")


def ours(task: str, folder: Path, **said: Any) -> Any:
    kind = getattr(compat, f"AutoModelFor{task}" if task else "AutoModel")
    return kind.from_pretrained(folder, attn_implementation="eager", **said)


def given(task: str, pair: bool) -> dict[str, torch.Tensor]:
    ids = torch.arange(3, 21).view(2, 9)
    ids[:, 5] = 20
    inputs = {"input_ids": ids, "attention_mask": (torch.arange(9) < torch.tensor([[9], [6]])).long()}
    inputs["input_ids"] = ids.masked_fill(inputs["attention_mask"] == 0, 0)
    whole = {"SequenceClassification": torch.tensor([2, 0]), "TokenClassification": ids % 3}
    if task == "QuestionAnswering":
        return inputs | {"start_positions": torch.tensor([1, 30]), "end_positions": torch.tensor([4, 2])}
    if pair and not task:
        return inputs | {"decoder_input_ids": ids[:, :4]}
    if task:
        inputs["labels"] = whole.get(task, ids.masked_fill(ids % 4 == 0, -100))
    return inputs


@pytest.mark.parametrize(("family", "task"), CASES)
def test_a_model_answers_as_the_reference_does(family: str, task: str, tmp_path: Path) -> None:
    theirs = reference(family, task, tmp_path, **({"eos_token_id": 20} if family == "bart" else {}))
    model = ours(task, tmp_path)
    assert type(model).__name__ == type(theirs).__name__
    inputs = given(task, family in ("bart", "t5"))
    looks = {"output_attentions": True, "output_hidden_states": True}
    wanted, found = theirs(**inputs, **looks), model(**inputs, **looks)
    memory = ("past_key_values", "cache")  # the cache, by its name until transformers 5.23 and its name since
    names = [name for name in wanted if name not in memory and wanted[name] not in ((), None)]
    assert list(found) == names
    for name in names:
        several = wanted[name] if isinstance(wanted[name], tuple) else (wanted[name],)
        seen = found[name] if isinstance(wanted[name], tuple) else (found[name],)
        assert len(seen) == len(several), name
        for one, other in zip(seen, several):
            if family in EXACT and one_order():
                assert torch.equal(one, other), name
            alike(one, other)


@pytest.mark.parametrize("padded", [slice(0, 3), slice(2, 4), slice(4, 6)], ids=["left", "within", "right"])
@pytest.mark.parametrize("family", ["bart", "t5"])
def test_padding_of_what_a_decoder_reads_counts_as_in_the_reference(family: str, padded: slice, tmp_path: Path) -> None:
    theirs = reference(family, "Seq2SeqLM", tmp_path)
    inputs, written = given("", True), torch.arange(24, 36).view(2, 6)
    mask = torch.ones_like(written)
    mask[1, padded] = 0
    inputs |= {"decoder_input_ids": written, "decoder_attention_mask": mask}
    found, wanted = ours("Seq2SeqLM", tmp_path)(**inputs).logits, theirs(**inputs).logits
    alike(found[mask.bool()], wanted[mask.bool()])


def test_padding_before_a_text_takes_no_place_of_a_decoder(tmp_path: Path) -> None:
    """The reference gets the positions as `position_ids`."""
    theirs = reference("gpt2", "CausalLM", tmp_path)
    ids, mask = torch.tensor([[0, 0, 5, 6], [5, 6, 7, 8]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    places = (mask.cumsum(dim=1) - 1).clamp(min=0)
    with torch.no_grad():
        found = ours("CausalLM", tmp_path)(ids, mask).logits[mask.bool()]
        wanted = theirs(ids, attention_mask=mask, position_ids=places).logits[mask.bool()]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_a_real_model_on_a_real_pair(minilm_folder: Path) -> None:
    answers = []
    for library in (compat, transformers):
        tokenizer = library.AutoTokenizer.from_pretrained(minilm_folder)
        model = library.AutoModel.from_pretrained(minilm_folder, attn_implementation="eager", output_attentions=True)
        inputs = tokenizer(*cells.PAIR, return_tensors="pt")
        output = model(**inputs, output_hidden_states=True)
        answers.append((inputs.input_ids, output.last_hidden_state, *output.attentions, *output.hidden_states))
    assert len(answers[0]) == len(answers[1]) == 2 + 6 + 7
    assert all(torch.equal(one, other) for one, other in zip(*answers))


def test_an_answer_is_read_by_name_by_place_and_as_a_tuple(tmp_path: Path) -> None:
    reference("bert", "SequenceClassification", tmp_path)
    model, inputs = ours("SequenceClassification", tmp_path), given("", False)
    output = model(**inputs)
    assert output.loss is None and output.attentions is None and list(output) == ["logits"]
    assert torch.equal(output[0], output.logits) and torch.equal(output["logits"], output[:1][0])
    (logits,) = model(**inputs, return_dict=False)
    assert torch.equal(logits, output.logits)
    with pytest.raises(AttributeError, match="this output has no 'pooled'; it has loss, logits"):
        print(output.pooled)
    assert "attentions=None" in repr(output)


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("real", [False, True])
def test_a_loss_is_what_the_labels_are(labels: int, real: bool, tmp_path: Path) -> None:
    folder = tmp_path / "one"
    reference("distilbert", "", folder)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=labels)
    theirs.save_pretrained(tmp_path / "two")
    model = compat.AutoModelForSequenceClassification.from_pretrained(tmp_path / "two")
    target = torch.rand(2, labels).squeeze(-1) if real else torch.zeros(2, dtype=torch.long)
    inputs = given("", False) | {"labels": target}
    wanted = theirs(**inputs | {"labels": target.float() if labels == 1 else target})
    torch.testing.assert_close(model(**inputs).loss, wanted.loss, rtol=1e-6, atol=1e-6)


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
def test_a_loss_of_half_precision_is_summed_up_in_float32(
    architecture: str, labels: torch.Tensor, dtype: torch.dtype, tmp_path: Path
) -> None:
    """As in the reference: a bfloat16 loss has two digits, and a perplexity computed from it is 2 % off."""
    tiny(tmp_path, architecture, dtype=torch.float32, num_labels=1 if labels.dim() == 1 else 3)
    inputs = {"input_ids": torch.arange(5, 29).view(2, 12), "labels": labels}
    theirs, model = (
        getattr(library, architecture).from_pretrained(tmp_path, dtype=dtype) for library in (transformers, compat)
    )
    found, wanted = model(**inputs).loss, theirs.eval()(**inputs).loss
    assert found.dtype == wanted.dtype == torch.float32
    torch.testing.assert_close(found, wanted, rtol=torch.finfo(dtype).eps / 4, atol=0)


def test_it_learns_as_the_reference_does(tmp_path: Path) -> None:
    facts = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
    losses = []
    for model in (
        reference("distilbert", "SequenceClassification", tmp_path, **facts),
        ours("SequenceClassification", tmp_path),
    ):
        model.train()
        steps = torch.optim.AdamW(model.parameters(), lr=1e-3)
        told = []
        for _ in range(4):
            loss = model(**given("SequenceClassification", False)).loss
            loss.backward()
            steps.step()
            steps.zero_grad()
            told.append(loss.item())
        losses.append(told)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[1][-1] < losses[1][0]


def test_a_head_that_is_not_there_is_new_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reference("bert", "", tmp_path)
    names = {0: "bad", 1: "fair", 2: "good", 3: "best"}
    model = compat.AutoModelForSequenceClassification.from_pretrained(
        tmp_path, num_labels=4, id2label=names, label2id={name: i for i, name in names.items()}, hidden_dropout_prob=0.3
    )
    assert "holds no trained weights for its head" in caplog.text
    assert model(**given("", False)).logits.shape == (2, 4)
    assert model.config.id2label == names == model.pellucid.config.id2label
    assert model.config.hidden_dropout_prob == model.pellucid.config.dropout.hidden_dropout_prob == 0.3
    with pytest.raises(pellucid.InputError, match="not trained"):
        pellucid.pipeline("text-classification", model.pellucid)


@pytest.mark.parametrize("family", ["distilbert", "gpt2"])
def test_what_is_saved_opens_in_the_reference(family: str, tmp_path: Path) -> None:
    theirs = reference(family, "SequenceClassification", tmp_path / "one", vocab_size=601)
    model = ours("SequenceClassification", tmp_path / "one")
    model.config.id2label = {0: "no", 1: "perhaps", 2: "yes"}
    tokenizer = compat.AutoTokenizer.from_pretrained(WORDS / "bert")
    tokenizer.save_pretrained(tmp_path / "two")
    model.save_pretrained(tmp_path / "two")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "two", attn_implementation="eager"
    )
    inputs = given("", False)
    assert torch.equal(again(**inputs).logits, theirs(**inputs).logits)
    assert again.config.label2id == {"no": 0, "perhaps": 1, "yes": 2}
    both = [library.AutoTokenizer.from_pretrained(tmp_path / "two") for library in (compat, transformers)]
    assert (
        both[0]("The sky is blue.").input_ids
        == both[1]("The sky is blue.").input_ids
        == tokenizer("The sky is blue.").input_ids
    )


def test_what_is_done_to_a_configs_dict_does_not_reach_the_config() -> None:
    """As in the reference, whose dicts are deep copies."""
    config, writing = compat.BertConfig(architectures=["BertModel"]), compat.GenerationConfig(eos_token_id=[1, 2])
    config.to_dict()["architectures"].append("another")
    writing.to_dict()["eos_token_id"].append(3)
    assert config.architectures == ["BertModel"] and writing.eos_token_id == [1, 2]


def test_a_config_is_told_as_a_text_and_changed_by_names(tmp_path: Path) -> None:
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


def test_a_config_makes_a_model(tmp_path: Path) -> None:
    small = SMALL | {"vocab_size": 90}
    config, wanted = compat.BertConfig(**small), transformers.BertConfig(**small)
    said = wanted.to_dict()
    assert {
        key: value
        for key, value in config.to_dict().items()
        if key in said and key not in ("architectures", "id2label")
    } == {key: said[key] for key in config.to_dict() if key in said and key not in ("architectures", "id2label")}
    model = compat.BertModel(config)
    assert model.num_parameters() == transformers.BertModel(wanted).num_parameters()
    assert not model.training and isinstance(config, compat.PretrainedConfig)
    torch.manual_seed(4)
    first = compat.AutoModelForMaskedLM.from_config(config)
    torch.manual_seed(4)
    second = compat.BertForMaskedLM(config)
    assert type(first) is type(second)
    ids = torch.arange(5)[None]
    assert torch.equal(first(ids).logits, second(ids).logits)
    config.save_pretrained(tmp_path)
    for one in (config, compat.AutoTokenizer.from_pretrained(WORDS / "bert")):
        with pytest.raises(pellucid.InputError, match=r"^cannot write .*config\.json"):
            one.save_pretrained(tmp_path / "config.json")
    assert compat.AutoConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()
    assert repr(config).startswith('BertConfig {\n  "')
    assert compat.AutoConfig.for_model("distilbert", dim=24).hidden_size == 24


SAID: list[tuple[str, dict[str, Any]]] = [
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


@pytest.mark.parametrize(("name", "said"), SAID, ids=str)
def test_facts_follow_from_those_that_are_said(name: str, said: dict[str, Any]) -> None:
    """T5's decoder has as many layers as its encoder, and GPT-2's feed-forward is four times as wide as its hidden
    states; both used to keep the sizes of the family's own models."""
    found, wanted = (getattr(library, name)(**said) for library in (compat, transformers))
    facts = "vocab_size num_labels n_inner num_layers num_decoder_layers d_ff feed_forward_proj intermediate_size"
    for fact in facts.split():
        if hasattr(wanted, fact) and not (name == "GPT2Config" and fact == "intermediate_size"):
            assert getattr(found, fact) == getattr(wanted, fact), fact


@pytest.mark.parametrize("family", sorted(families().keys() & set(transformers.CONFIG_MAPPING)))
def test_a_config_of_every_family_is_made(family: str) -> None:
    found, wanted = (library.AutoConfig.for_model(family) for library in (compat, transformers))
    for fact in ("num_hidden_layers", "hidden_size", "vocab_size", "num_labels"):
        assert getattr(found, fact) == getattr(wanted, fact), fact
    assert compat.AutoConfig.for_model(family, hidden_size=48).hidden_size == 48


def test_gpt2_stays_four_times_as_wide_where_its_stream_is_made_another(tmp_path: Path) -> None:
    made = []
    for library in (compat, transformers):
        config = library.GPT2Config(n_embd=24, n_head=3, n_layer=1, vocab_size=50)
        config.n_embd = 48
        config.save_pretrained(tmp_path / library.__name__)
        again = library.AutoConfig.from_pretrained(tmp_path / library.__name__, n_embd=36)
        made.append([library.GPT2Model(one).num_parameters() for one in (config, again)])
    assert made[0] == made[1]


def test_a_model_is_a_module_among_others(tmp_path: Path) -> None:
    import copy
    import pickle

    reference("bert", "", tmp_path)
    model = compat.AutoModel.from_pretrained(tmp_path, torch_dtype=torch.float64, device_map="cpu")
    own = torch.nn.Sequential(model)
    assert len(list(own.parameters())) == len(list(model.pellucid.parameters()))
    assert model.dtype == torch.float64 and model.device.type == "cpu"
    ids = torch.arange(5)[None]
    wanted = model(ids).last_hidden_state
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(ids).last_hidden_state, wanted)
        twin.half()
        assert twin.dtype == torch.float16 == twin.pellucid.dtype and model.dtype == torch.float64
    assert model.get_input_embeddings().weight.shape == (90, 24)


@pytest.mark.parametrize(
    ("said", "fragment"),
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
def test_an_argument_that_means_nothing_is_refused(said: dict[str, Any], fragment: str, tmp_path: Path) -> None:
    reference("bert", "", tmp_path)
    with pytest.raises(pellucid.PellucidError, match=fragment):
        compat.AutoModel.from_pretrained(tmp_path, **said)


def test_a_file_that_counts_its_labels_opens(tmp_path: Path) -> None:
    reference("bert", "SequenceClassification", tmp_path)
    facts = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"num_labels": 2} | facts))
    assert ours("SequenceClassification", tmp_path).config.num_labels == 3


def test_what_is_not_read_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reference("bert", "", tmp_path)
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

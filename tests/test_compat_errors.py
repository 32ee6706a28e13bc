"""Wrong calls of `pellucid.compat`, whose errors name the wrong argument; and options that change no token."""

import inspect
import pydoc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pellucid
from pellucid import compat
from tests.test_compat_auto import our_model, reference_model
from tests.test_compat_tokenizer import TOKENIZERS

IDS = torch.tensor([[5, 9, 14, 33, 21]])
USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}


def tokenizer_of(kind: str = "bert") -> Any:
    return compat.AutoTokenizer.from_pretrained(TOKENIZERS / kind)


def test_use_cache_and_synced_gpus_change_no_token(tmp_path: Path) -> None:
    reference_model("gpt2", "CausalLM", tmp_path)
    model = our_model("CausalLM", tmp_path)
    plain = model.generate(IDS, max_new_tokens=6)
    for name in ("do_sample", "num_beams", "return_dict_in_generate"):
        with pytest.raises(pellucid.InputError, match=f"^{name} is array"):
            model.generate(IDS, **{name: np.array([1, 2])})
    for options in ({"use_cache": False}, {"synced_gpus": True}, {"synced_gpus": False, "use_cache": True}):
        assert torch.equal(model.generate(IDS, max_new_tokens=6, **options), plain)


def test_model_needs_a_valid_config() -> None:
    with pytest.raises(
        pellucid.InputError, match=r"BertModel is made of a config, not of 'bert-base-uncased': BertModel."
    ):
        compat.BertModel("bert-base-uncased")
    with pytest.raises(pellucid.InputError, match="BertConfig: hidden_size 50 cannot be divided evenly among"):
        compat.BertModel(compat.BertConfig(hidden_size=50))


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("BertForPreTraining", "BertForMaskedLM"),
        ("AlbertForPreTraining", "AlbertForMaskedLM"),
        ("ElectraForPreTraining", "ElectraModel"),
    ],
)
def test_class_with_unread_heads_does_not_exist(name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=f"has no '{name}', of whose heads not all are read: take {instead}$"):
        getattr(compat, name)
    assert hasattr(compat, instead)


def test_mask_with_gaps_is_refused(tmp_path: Path) -> None:
    """In the reference a token that is left out keeps its position, here it does not; at either end both agree."""
    theirs, model = reference_model("llama", "CausalLM", tmp_path), our_model("CausalLM", tmp_path)
    for row in ([0, 0, 1, 1, 1], [1, 1, 1, 1, 0], [0, 1, 1, 0, 0], [1, 1, 1, 1, 1]):
        mask = torch.tensor([row])
        found, expected = model(IDS, mask).logits[mask.bool()], theirs(IDS, attention_mask=mask).logits[mask.bool()]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    with pytest.raises(
        pellucid.InputError, match="attention_mask leaves out tokens within row 1: remove them from inp"
    ):
        model(IDS.repeat(2, 1), torch.tensor([[1, 1, 1, 1, 0], [1, 0, 1, 1, 0]]))


def test_labels_without_a_head_are_refused(tmp_path: Path) -> None:
    reference_model("bert", "", tmp_path)
    with pytest.raises(pellucid.InputError, match=r"^labels were given, and this model has no head"):
        compat.AutoModel.from_pretrained(tmp_path)(IDS, labels=IDS)


@pytest.mark.parametrize(
    ("family", "task", "labels", "fragment"),
    [
        ("gpt2", "CausalLM", torch.tensor([5, 6, 7]), r"labels have the shape \[3\], expected \[batch, seq\]"),
        ("gpt2", "CausalLM", torch.tensor([[5, 6]]), r"labels have the shape \[1, 1\] for logits of \[1, 2\] tokens"),
        ("gpt2", "CausalLM", [[5, 6, 7]], "labels are list, expected a tensor"),
        ("t5", "Seq2SeqLM", torch.tensor([5, 6, 7]), r"labels have the shape \[3\], expected \[batch, seq\]"),
        ("t5", "Seq2SeqLM", [[5, 6, 7]], "labels are list, expected a tensor"),
        ("t5", "Seq2SeqLM", torch.tensor([[5, 6]] * 2), r"labels have the shape \[2, 2\] and input_ids \[1, 3\]: give"),
        ("bert", "MaskedLM", torch.tensor([[5, 6]]), r"labels have the shape \[1, 2\] for logits of \[1, 3\] tokens"),
    ],
)
def test_labels_of_a_wrong_shape_are_refused(
    family: str, task: str, labels: Any, fragment: str, tmp_path: Path
) -> None:
    reference_model(family, task, tmp_path)
    with pytest.raises(pellucid.InputError, match=fragment):
        our_model(task, tmp_path)(torch.tensor([[5, 6, 7]]), labels=labels)


@pytest.mark.parametrize("head", ["causal-lm", "sequence-to-sequence-lm"])
def test_available_heads_are_listed_once(head: str) -> None:
    with pytest.raises(pellucid.InputError, match="it has ") as error:
        pellucid.load("all-MiniLM-L6-v2", head=head)
    names = str(error.value).partition("it has ")[2].split(", ")
    assert "masked-lm" in names and len(names) == len(set(names))


def test_large_tensor_as_tokens_is_shortened_in_the_error() -> None:
    with pytest.raises(pellucid.InputError, match=r"^tokens hold ") as error:
        compat.head_view(["a"], torch.zeros(2, 5, 9, 9))
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("streamer", [True, print, {}, compat.GenerationConfig, "text"])
def test_invalid_streamer_is_refused(streamer: Any, tmp_path: Path) -> None:
    reference_model("gpt2", "CausalLM", tmp_path)
    with pytest.raises(pellucid.InputError, match=r"^streamer is .*, expected an object that has put\(ids\) and end\("):
        our_model("CausalLM", tmp_path).generate(IDS, streamer=streamer)


@pytest.mark.parametrize("rows", [{"new_num_tokens": 0}, {"new_num_tokens": "a"}, {"pad_to_multiple_of": -8}])
def test_invalid_embedding_sizes_are_refused(rows: dict[str, Any], tmp_path: Path) -> None:
    reference_model("gpt2", "CausalLM", tmp_path)
    model = our_model("CausalLM", tmp_path)
    (name,) = rows
    with pytest.raises(pellucid.InputError, match=f"^{name} is {rows[name]!r}, expected a whole number from 1"):
        model.resize_token_embeddings(**rows)
    assert model.config.vocab_size == len(model.get_input_embeddings().weight) == 90


def test_refused_resize_changes_no_table(tmp_path: Path) -> None:
    reference_model("gpt2", "CausalLM", tmp_path, pad_token_id=7)
    model = our_model("CausalLM", tmp_path)
    with pytest.raises(pellucid.InputError, match=r"^pad_token_id is 7, expected the id of a token, 0 to 6"):
        model.resize_token_embeddings(7)
    assert model.config.vocab_size == len(model.get_input_embeddings().weight) == 90


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        ({"output_scores": True}, r"output_scores is True, .*: pipe.model.trace_writing\(prompt\) shows every step"),
        ({"logits_processor": [len]}, "logits_processor is .*: rules are given by name"),
        ({"past_key_values": ((),)}, "past_key_values is .*: a prompt is read whole, and by this model alone"),
        ({"streamer": print}, r"streamer is .*: pipe.model.stream\(prompt\) gives a text piece by piece"),
        ({"truncation_side": "left"}, r"truncation_side is 'left', .*: pass tokenizer=AutoTokenizer.from_pretrained\("),
        ({"max_new_token": 3}, r"^text-generation has no option 'max_new_token' \(did you mean max_new_tokens[^:]*$"),
        ({"qqq": 3}, "^text-generation has no option 'qqq': it has return_tensors, .* and [0-9]+ more$"),
    ],
)
def test_pipeline_refuses_the_options_that_generate_refuses(
    options: dict[str, Any], fragment: str, checkpoint: Callable[[str], Path]
) -> None:
    pipe = compat.pipeline("text-generation", model=str(checkpoint("gpt2")))
    with pytest.raises(pellucid.InputError, match=fragment):
        pipe("Once upon a time", **options)
    with pytest.raises(pellucid.InputError, match=fragment):
        compat.pipeline("text-generation", model=str(checkpoint("gpt2")), **options)


def test_pipeline_accepts_options_without_effect(checkpoint: Callable[[str], Path]) -> None:
    pipe = compat.pipeline("text-generation", model=str(checkpoint("gpt2")), output_scores=False)
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 4}
    ignored = {"use_cache": False, "disable_compile": True, "low_memory": True, "prompt_lookup_num_tokens": 3}
    ignored |= {"synced_gpus": True, "streamer": None, "stopping_criteria": []}
    assert pipe("Once upon a time", **options, **ignored) == pipe("Once upon a time", **options)
    fill_mask = compat.pipeline("fill-mask", model=str(checkpoint("bert-filler")))
    with pytest.raises(pellucid.InputError, match="truncation_side is 'left', which is not supported here"):
        fill_mask("A [MASK].", truncation_side="left")


@pytest.mark.parametrize(
    ("name", "value", "fragment"),
    [
        ("model_max_length", "x", "model_max_length is 'x', expected a whole number from 1"),
        ("model_max_length", -3, "model_max_length is -3, expected a whole number from 1"),
        ("model_max_length", True, "model_max_length is True, expected a whole number from 1"),
        ("pad_token_id", "zqx", "pad_token_id is 'zqx', expected the id of a token"),
        ("clean_up_tokenization_spaces", "yes", "clean_up_tokenization_spaces is 'yes', expected true or false"),
    ],
)
def test_tokenizer_attributes_are_checked_when_set(name: str, value: Any, fragment: str) -> None:
    tokenizer = tokenizer_of()
    before = getattr(tokenizer, name)
    with pytest.raises(pellucid.InputError, match=f"^{fragment}"):
        setattr(tokenizer, name, value)
    assert getattr(tokenizer, name) == before
    with pytest.raises(pellucid.InputError, match=f"^{name.removesuffix('_id')}"):
        compat.AutoTokenizer.from_pretrained(TOKENIZERS / "bert", **{name.removesuffix("_id"): value})


def test_tokenizer_without_length_does_not_truncate() -> None:
    tokenizer, text = tokenizer_of(), "a dog " * 40
    for model_max_length, expected in ((5, 5), (int(1e30), 82), (None, 82)):
        tokenizer.model_max_length = model_max_length
        assert len(tokenizer(text, truncation=True).input_ids) == expected


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        ({"truncation_side": "left"}, "truncation_side is 'left', .*: set tokenizer.truncation_side, which holds for"),
        ({"truncation": "left"}, "^truncation is 'left', expected True, False, None, 'longest_first'"),
        ({"truncation": 3}, "^truncation is 3, expected True"),
        ({"truncation": np.array([1, 2])}, r"^truncation is array\(\[1, 2\]\), expected True"),
        ({"padding": torch.tensor([1, 2])}, r"^padding is tensor\(\[1, 2\]\), expected True"),
        ({"return_tensors": np.array([1, 2])}, "^return_tensors is array"),
        ({"add_special_tokens": None}, "^add_special_tokens is None, expected true or false"),
        ({"return_offsets_mapping": [1, 2]}, r"^return_offsets_mapping is \[1, 2\], expected true or false"),
        ({"max_length": {}}, r"^max_length is \{\}, expected a whole number from 0"),
        ({"stride": object()}, "^stride is <object"),
        ({"pad_to_multiple_of": -8, "padding": True}, "^pad_to_multiple_of is -8, expected a whole number from 1"),
        ({"return_offset_mapping": True}, r"no option 'return_offset_mapping' \(did you mean return_offsets_mapping"),
    ],
)
def test_invalid_tokenizer_options_are_refused(options: dict[str, Any], fragment: str) -> None:
    with pytest.raises(pellucid.InputError, match=fragment):
        tokenizer_of()("one two", **options)
    assert tokenizer_of()("one two", truncation_side=None).input_ids == tokenizer_of()("one two").input_ids


def test_misspelt_options_get_a_suggestion() -> None:
    known = inspect.signature(compat.AutoTokenizer.__call__).parameters.values()
    names = [one.name for one in known if one.kind is one.KEYWORD_ONLY and one.name not in ("text_target", "verbose")]
    assert len(names) > 9
    for name in names:
        with pytest.raises(pellucid.InputError, match=rf"no option '{name[:-1]}' \(did you mean .*{name}"):
            tokenizer_of()("one two", **{name[:-1]: True})
    with pytest.raises(pellucid.InputError, match="a tokenizer has no option 'src_lang'"):
        tokenizer_of()("one two", src_lang="en")


@pytest.mark.parametrize(
    ("conversation", "fragment"),
    [
        (USER, "^conversation is a dict, expected a list of messages"),
        ("hi", "^conversation is a str, expected a list of messages"),
        ([], "^conversation is empty, expected a list of messages"),
        ([[]], "^conversation 0 is empty, expected a list of messages"),
        ([[USER], USER], "^conversation 1 is a dict, expected a list of messages"),
        ([[USER], [USER, 3]], "^conversation 1: message 1 is 3"),
        (["hi"], "^message 0 is 'hi'"),
    ],
)
def test_invalid_conversations_are_refused(conversation: Any, fragment: str) -> None:
    with pytest.raises(pellucid.InputError, match=fragment):
        tokenizer_of("chat").apply_chat_template(conversation)


def test_generation_prompt_and_continuation_exclude_each_other() -> None:
    tokenizer, options = tokenizer_of("chat"), {"tokenize": False, "continue_final_message": True}
    assert tokenizer.apply_chat_template([USER, ANSWER], **options).endswith("yes")
    with pytest.raises(pellucid.InputError, match="add_generation_prompt and continue_final_message are True"):
        tokenizer.apply_chat_template([USER, ANSWER], add_generation_prompt=True, **options)


@pytest.mark.parametrize(
    ("call", "fragment"),
    [
        (lambda t: t.add_special_tokens(["<a>"]), r"^special_tokens_dict is \['<a>'\], expected a dict of tokens by"),
        (lambda t: t.add_special_tokens({"pad_token": None}), "^pad_token is None, expected a text of at least one"),
        (lambda t: t.add_tokens(""), "^a token to be added is '', expected a text of at least one character"),
        (lambda t: t.add_tokens(["x", 3]), "^a token to be added is 3, expected a text"),
        (lambda t: t.pad({"input_id": [[3]]}), "^the rows to be padded hold input_id, expected input_ids"),
        (
            lambda t: t.pad([{"input_ids": [1]}, {"attention_mask": [1]}]),
            "^row 1 .* holds attention_mask, and no 'input_",
        ),
        (lambda t: t.pad([{1: 2}]), "^the rows to be padded hold 1, expected input_ids"),
        (lambda t: t.save_pretrained("a\0b"), "is not a valid path here: .*embedded null"),
        (lambda t: t.pad([]), "^the rows to be padded hold nothing, expected input_ids"),
        (lambda t: t.pad({"input_ids": [[3]], "labels": None}), "^labels of the rows to be padded is None, expected a"),
        (lambda t: t(["one"]).token_to_chars(9, 1), "^there is no text 9 here: this batch is of 1 text"),
        (lambda t: t(["one"]).word_to_tokens(1, 0), "^there is no text 1 here"),
        (lambda t: t.pad({"input_ids": [[3]]}).tokens(), "^there is no text 0 here: this batch is of 0 texts"),
    ],
)
def test_invalid_tokens_and_rows_are_refused(call: Callable[[Any], Any], fragment: str) -> None:
    tokenizer = tokenizer_of()
    size = len(tokenizer)
    with pytest.raises(pellucid.InputError, match=fragment):
        call(tokenizer)
    assert len(tokenizer) == size


def test_edit_is_checked_when_requested(tmp_path: Path) -> None:
    reference_model("gpt2", "CausalLM", tmp_path)
    model = our_model("CausalLM", tmp_path).pellucid
    for invalid_edit in ("a" * 500, {"layers.99.mlp.output": 0.0}, {}):
        with pytest.raises(pellucid.InputError):
            model.edit(invalid_edit)


UNSUPPORTED_NAMES = "MarianMTModel CLIPModel GemmaForCausalLM DebertaV2Model DebertaV2Tokenizer ViTConfig".split()


def test_output_explains_that_it_has_no_cache(tmp_path: Path) -> None:
    reference_model("gpt2", "CausalLM", tmp_path)
    output = our_model("CausalLM", tmp_path)(torch.tensor([[5, 6]]), use_cache=True)
    with pytest.raises(
        AttributeError, match="no 'past_key_values', since caches are not exposed: generate has its own"
    ):
        print(output.past_key_values)
    with pytest.raises(KeyError, match="no 'past_key_values', since caches are not exposed"):
        output["past_key_values"]
    with pytest.raises(IndexError, match="no index 1: it has logits, since caches are not exposed"):
        output[1]
    assert output[0] is output[-1] is output.logits and output[:3] == (output.logits,)


@pytest.mark.parametrize(("task", "shape"), [("SequenceClassification", (1,)), ("TokenClassification", (1, 3))])
def test_label_out_of_range_is_refused(task: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    reference_model("bert", task, tmp_path)
    with pytest.raises(pellucid.InputError, match=r"^labels hold 7, and the model has 3: give 0 to 2, or -100"):
        our_model(task, tmp_path)(torch.tensor([[5, 6, 7]]), labels=torch.full(shape, 7))


@pytest.mark.parametrize(
    ("name", "fragment"),
    [
        ("BertForPreTraining", "of whose heads not all are read: take BertForMaskedLM$"),
        ("BertFrMaskedLM", r"\(did you mean BertForMaskedLM"),
        ("AutoModelForMaskdLM", r"\(did you mean AutoModelForMaskedLM"),
        ("BertForPictures", r"^pellucid.compat has no 'BertForPictures' \(did you mean BertForPreTraining\?\)$"),
        ("pipelin", r"\(did you mean pipeline"),
        ("Trainer", "'Trainer': take it from transformers"),
        ("DataCollatorWithPadding", "take it from transformers"),
        ("TextStreamer", "take it from transformers"),
        ("SentenceTransformer", r"pellucid.load\(NAME\).embed\(texts\) gives its vectors"),
        ("CrossEncoder", r'pellucid.pipeline\("text-ranking", model=NAME\)'),
        ("StoppingCriteria", r"a pipeline at stop_strings=.*pellucid.generate\(prompt, stop="),
        ("AutoModelForMultipleChoice", "no head that chooses among several texts is read"),
        ("AddedToken", "'AddedToken': use tokenizers.AddedToken"),
        ("DynamicCache", "'DynamicCache': caches are not exposed"),
        ("cos_sim", "cosine_similarity vectors"),
        ("T5EncoderModel", "no encoder is loaded without its decoder: T5Model"),
        *((name, "its architectures are Albert, .*, XLMRoberta$") for name in UNSUPPORTED_NAMES),
        ("logging", r"Python's logging.getLogger\('pellucid'\)"),
        ("os", "^pellucid.compat has no 'os'$"),
        ("Model", "it is pellucid.Model$"),
    ],
)
def test_unavailable_name_is_explained_on_import(name: str, fragment: str) -> None:
    with pytest.raises(ImportError, match=fragment) as error:
        exec(f"from pellucid.compat import {name}")
    assert error.value.name == name
    with pytest.raises(AttributeError, match=fragment):
        getattr(compat, name)
    assert not hasattr(compat, name) and getattr(compat, name, None) is None


def test_misspelt_name_gets_a_suggestion() -> None:
    exported = re.findall(r" as (\w+)$", inspect.getsource(compat), re.MULTILINE)
    assert {"AutoModel", "ModelOutput", "head_view"} <= set(exported)
    for name in exported:
        with pytest.raises(AttributeError, match=rf"\(did you mean [^?]*\b{name}\b"):
            getattr(compat, f"{name}z")


def test_compat_works_as_a_module() -> None:
    namespace: dict[str, Any] = {}
    exec("from pellucid.compat import *", namespace)
    assert namespace["AutoModel"] is compat.AutoModel and namespace["BatchEncoding"] is type(tokenizer_of()("one"))
    exec("from pellucid.compat import pipeline_reading, BertTokenizerFast, T5Config", namespace)
    assert namespace["T5Config"] is compat.T5Config and inspect.ismodule(namespace["pipeline_reading"])
    assert inspect.unwrap(compat) is compat and pydoc.render_doc(compat)

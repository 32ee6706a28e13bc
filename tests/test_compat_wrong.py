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
from tests.test_compat_auto import ours, reference
from tests.test_compat_tokenizer import WORDS

IDS = torch.tensor([[5, 9, 14, 33, 21]])
USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}


def words(kind: str = "bert") -> Any:
    return compat.AutoTokenizer.from_pretrained(WORDS / kind)


def test_options_of_training_change_no_word(tmp_path: Path) -> None:
    reference("gpt2", "CausalLM", tmp_path)
    model = ours("CausalLM", tmp_path)
    plain = model.generate(IDS, max_new_tokens=6)
    for name in ("do_sample", "num_beams", "return_dict_in_generate"):
        with pytest.raises(pellucid.InputError, match=f"^{name} is array"):
            model.generate(IDS, **{name: np.array([1, 2])})
    for said in ({"use_cache": False}, {"synced_gpus": True}, {"synced_gpus": False, "use_cache": True}):
        assert torch.equal(model.generate(IDS, max_new_tokens=6, **said), plain)


def test_a_model_is_made_of_a_config_that_can_be() -> None:
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
def test_no_class_answers_with_fewer_heads_than_its_name_says(name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=f"has no '{name}', of whose heads not all are read: take {instead}$"):
        getattr(compat, name)
    assert hasattr(compat, instead)


def test_a_decoder_takes_no_mask_that_leaves_out_a_token_between_others(tmp_path: Path) -> None:
    """In the reference a token that is left out keeps its position, here it does not; at either end both agree."""
    theirs, model = reference("llama", "CausalLM", tmp_path), ours("CausalLM", tmp_path)
    for row in ([0, 0, 1, 1, 1], [1, 1, 1, 1, 0], [0, 1, 1, 0, 0], [1, 1, 1, 1, 1]):
        mask = torch.tensor([row])
        found, wanted = model(IDS, mask).logits[mask.bool()], theirs(IDS, attention_mask=mask).logits[mask.bool()]
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    with pytest.raises(
        pellucid.InputError, match="attention_mask leaves out tokens within row 1: remove them from inp"
    ):
        model(IDS.repeat(2, 1), torch.tensor([[1, 1, 1, 1, 0], [1, 0, 1, 1, 0]]))


def test_labels_for_a_model_without_a_head_are_refused(tmp_path: Path) -> None:
    reference("bert", "", tmp_path)
    with pytest.raises(pellucid.InputError, match=r"^labels were given, and this model has no head"):
        compat.AutoModel.from_pretrained(tmp_path)(IDS, labels=IDS)


@pytest.mark.parametrize(
    ("family", "task", "labels", "said"),
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
def test_labels_of_another_shape_are_told(family: str, task: str, labels: Any, said: str, tmp_path: Path) -> None:
    reference(family, task, tmp_path)
    with pytest.raises(pellucid.InputError, match=said):
        ours(task, tmp_path)(torch.tensor([[5, 6, 7]]), labels=labels)


@pytest.mark.parametrize("head", ["causal-lm", "sequence-to-sequence-lm"])
def test_heads_that_there_are_are_listed_once(head: str) -> None:
    with pytest.raises(pellucid.InputError, match="it has ") as raised:
        pellucid.load("all-MiniLM-L6-v2", head=head)
    names = str(raised.value).partition("it has ")[2].split(", ")
    assert "masked-lm" in names and len(names) == len(set(names))


def test_a_table_in_place_of_tokens_is_not_shown_whole() -> None:
    with pytest.raises(pellucid.InputError, match=r"^tokens hold ") as raised:
        compat.head_view(["a"], torch.zeros(2, 5, 9, 9))
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("streamer", [True, print, {}, compat.GenerationConfig, "text"])
def test_what_cannot_hear_is_no_streamer(streamer: Any, tmp_path: Path) -> None:
    reference("gpt2", "CausalLM", tmp_path)
    with pytest.raises(pellucid.InputError, match=r"^streamer is .*, expected an object that has put\(ids\) and end\("):
        ours("CausalLM", tmp_path).generate(IDS, streamer=streamer)


@pytest.mark.parametrize("rows", [{"new_num_tokens": 0}, {"new_num_tokens": "a"}, {"pad_to_multiple_of": -8}])
def test_a_table_is_resized_by_whole_numbers(rows: dict[str, Any], tmp_path: Path) -> None:
    reference("gpt2", "CausalLM", tmp_path)
    model = ours("CausalLM", tmp_path)
    (name,) = rows
    with pytest.raises(pellucid.InputError, match=f"^{name} is {rows[name]!r}, expected a whole number from 1"):
        model.resize_token_embeddings(**rows)
    assert model.config.vocab_size == len(model.get_input_embeddings().weight) == 90


def test_a_size_that_is_refused_changes_no_table(tmp_path: Path) -> None:
    reference("gpt2", "CausalLM", tmp_path, pad_token_id=7)
    model = ours("CausalLM", tmp_path)
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
def test_a_pipeline_answers_wrong_options_as_generate_does(
    options: dict[str, Any], fragment: str, checkpoint: Callable[[str], Path]
) -> None:
    write = compat.pipeline("text-generation", model=str(checkpoint("gpt2")))
    with pytest.raises(pellucid.InputError, match=fragment):
        write("Once upon a time", **options)
    with pytest.raises(pellucid.InputError, match=fragment):
        compat.pipeline("text-generation", model=str(checkpoint("gpt2")), **options)


def test_a_pipeline_takes_what_changes_no_word(checkpoint: Callable[[str], Path]) -> None:
    write = compat.pipeline("text-generation", model=str(checkpoint("gpt2")), output_scores=False)
    how: dict[str, Any] = {"do_sample": False, "max_new_tokens": 4}
    idle = {"use_cache": False, "disable_compile": True, "low_memory": True, "prompt_lookup_num_tokens": 3}
    idle |= {"synced_gpus": True, "streamer": None, "stopping_criteria": []}
    assert write("Once upon a time", **how, **idle) == write("Once upon a time", **how)
    fill = compat.pipeline("fill-mask", model=str(checkpoint("bert-filler")))
    with pytest.raises(pellucid.InputError, match="truncation_side is 'left', which is not supported here"):
        fill("A [MASK].", truncation_side="left")


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
def test_a_setting_is_checked_where_it_is_set(name: str, value: Any, fragment: str) -> None:
    tokenizer = words()
    before = getattr(tokenizer, name)
    with pytest.raises(pellucid.InputError, match=f"^{fragment}"):
        setattr(tokenizer, name, value)
    assert getattr(tokenizer, name) == before
    with pytest.raises(pellucid.InputError, match=f"^{name.removesuffix('_id')}"):
        compat.AutoTokenizer.from_pretrained(WORDS / "bert", **{name.removesuffix("_id"): value})


def test_a_tokenizer_without_a_greatest_length_cuts_nothing() -> None:
    tokenizer, text = words(), "a dog " * 40
    for least, most in ((5, 5), (int(1e30), 82), (None, 82)):
        tokenizer.model_max_length = least
        assert len(tokenizer(text, truncation=True).input_ids) == most


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
def test_a_call_of_a_tokenizer_says_what_is_wrong(options: dict[str, Any], fragment: str) -> None:
    with pytest.raises(pellucid.InputError, match=fragment):
        words()("one two", **options)
    assert words()("one two", truncation_side=None).input_ids == words()("one two").input_ids


def test_every_misspelt_option_is_answered_with_a_near_one() -> None:
    known = inspect.signature(compat.AutoTokenizer.__call__).parameters.values()
    names = [one.name for one in known if one.kind is one.KEYWORD_ONLY and one.name not in ("text_target", "verbose")]
    assert len(names) > 9
    for name in names:
        with pytest.raises(pellucid.InputError, match=rf"no option '{name[:-1]}' \(did you mean .*{name}"):
            words()("one two", **{name[:-1]: True})
    with pytest.raises(pellucid.InputError, match="a tokenizer has no option 'src_lang'"):
        words()("one two", src_lang="en")


@pytest.mark.parametrize(
    ("given", "fragment"),
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
def test_a_conversation_is_a_list_of_messages(given: Any, fragment: str) -> None:
    with pytest.raises(pellucid.InputError, match=fragment):
        words("chat").apply_chat_template(given)


def test_a_text_goes_on_or_begins_anew() -> None:
    tokenizer, how = words("chat"), {"tokenize": False, "continue_final_message": True}
    assert tokenizer.apply_chat_template([USER, ANSWER], **how).endswith("yes")
    with pytest.raises(pellucid.InputError, match="add_generation_prompt and continue_final_message are True"):
        tokenizer.apply_chat_template([USER, ANSWER], add_generation_prompt=True, **how)


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
        (lambda t: t.save_pretrained("a\0b"), "is not a valid path here: embedded null"),
        (lambda t: t.pad([]), "^the rows to be padded hold nothing, expected input_ids"),
        (lambda t: t(["one"]).token_to_chars(9, 1), "^there is no text 9 here, 1 were tokenised in this batch"),
        (lambda t: t(["one"]).word_to_tokens(1, 0), "^there is no text 1 here"),
        (lambda t: t.pad({"input_ids": [[3]]}).tokens(), "^there is no text 0 here, 0 were tokenised"),
    ],
)
def test_tokens_and_rows_that_are_not_there_are_told(call: Callable[[Any], Any], fragment: str) -> None:
    tokenizer = words()
    size = len(tokenizer)
    with pytest.raises(pellucid.InputError, match=fragment):
        call(tokenizer)
    assert len(tokenizer) == size


def test_an_edit_is_checked_where_it_is_asked_for(tmp_path: Path) -> None:
    reference("gpt2", "CausalLM", tmp_path)
    model = ours("CausalLM", tmp_path).pellucid
    for wrong in ("a" * 500, {"layers.99.mlp.output": 0.0}, {}):
        with pytest.raises(pellucid.InputError):
            model.edit(wrong)


OTHERS = "MarianMTModel CLIPModel GemmaForCausalLM DebertaV2Model DebertaV2Tokenizer ViTConfig".split()


def test_an_answer_says_that_it_has_no_cache(tmp_path: Path) -> None:
    reference("gpt2", "CausalLM", tmp_path)
    answer = ours("CausalLM", tmp_path)(torch.tensor([[5, 6]]), use_cache=True)
    with pytest.raises(
        AttributeError, match="no 'past_key_values', since caches are not exposed: generate has its own"
    ):
        print(answer.past_key_values)
    with pytest.raises(KeyError, match="no 'past_key_values', since caches are not exposed"):
        answer["past_key_values"]
    with pytest.raises(IndexError, match="no index 1: it has logits, since caches are not exposed"):
        answer[1]
    assert answer[0] is answer[-1] is answer.logits and answer[:3] == (answer.logits,)


@pytest.mark.parametrize(("task", "shape"), [("SequenceClassification", (1,)), ("TokenClassification", (1, 3))])
def test_a_label_that_is_none_is_told(task: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    reference("bert", task, tmp_path)
    with pytest.raises(pellucid.InputError, match=r"^labels hold 7, and the model has 3: give 0 to 2, or -100"):
        ours(task, tmp_path)(torch.tensor([[5, 6, 7]]), labels=torch.full(shape, 7))


@pytest.mark.parametrize(
    ("name", "fragment"),
    [
        ("BertForPreTraining", "of whose heads not all are read: take BertForMaskedLM$"),
        ("BertFrMaskedLM", r"\(did you mean BertForMaskedLM"),
        ("AutoModelForMaskdLM", r"\(did you mean AutoModelForMaskedLM"),
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
        *((name, "its architectures are Albert, .*, XLMRoberta$") for name in OTHERS),
        ("logging", r"Python's logging.getLogger\('pellucid'\)"),
        ("os", "^pellucid.compat has no 'os'$"),
        ("Model", "it is pellucid.Model$"),
    ],
)
def test_a_name_that_is_elsewhere_is_told_to_who_imports_it(name: str, fragment: str) -> None:
    with pytest.raises(ImportError, match=fragment) as caught:
        exec(f"from pellucid.compat import {name}")
    assert caught.value.name == name
    with pytest.raises(AttributeError, match=fragment):
        getattr(compat, name)
    assert not hasattr(compat, name) and getattr(compat, name, None) is None


def test_every_name_is_a_hint_for_one_that_is_nearly_it() -> None:
    taken = re.findall(r" as (\w+)$", inspect.getsource(compat), re.MULTILINE)
    assert {"AutoModel", "ModelOutput", "head_view"} <= set(taken)
    for name in taken:
        with pytest.raises(AttributeError, match=rf"\(did you mean [^?]*\b{name}\b"):
            getattr(compat, f"{name}z")


def test_a_module_of_names_is_one_among_others() -> None:
    held: dict[str, Any] = {}
    exec("from pellucid.compat import *", held)
    assert held["AutoModel"] is compat.AutoModel and held["BatchEncoding"] is type(words()("one"))
    exec("from pellucid.compat import pipeline_reading, BertTokenizerFast, T5Config", held)
    assert held["T5Config"] is compat.T5Config and inspect.ismodule(held["pipeline_reading"])
    assert inspect.unwrap(compat) is compat and pydoc.render_doc(compat)

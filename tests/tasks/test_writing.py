"""Summaries, translations and other texts of an encoder-decoder: the reference's, and long texts in order."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid import compat
from pellucid.checkpoints.convert import convert
from pellucid.errors import CorruptFileError, InputError
from pellucid.pipeline import pipeline
from pellucid.tasks.writing import Summarization, TextToText, Translation
from tests.checkpoints.convert.plain_transformer import NAMES
from tests.tasks.text_generators import changed_checkpoint, folder, keys, model, reference_texts, spans

PLAIN = "The mountain is high, the valley is deep."
OTHER = "I love this film: the story is wonderful, the actors are brilliant."
SHORT = {"max_new_tokens": 9}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def transliteration(shared: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> pellucid.Model:
    """A real model that transliterates Arabic names into Latin letters."""
    converted = convert(shared("models/aren-transliteration"), tmp_path_factory.mktemp("names") / "aren", heads=8)
    return pellucid.load(converted.folder)


# -- the reference -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bart", "bart-settings", "t5-tied", "t5-gated"])
@pytest.mark.parametrize("options", [{"num_beams": 1}, {"num_beams": 4, "num_return_sequences": 3}])
def test_generated_texts_equal_the_reference_s(name: str, options: dict[str, Any]) -> None:
    answer = pipeline("text2text-generation", model(name))(PLAIN, **SHORT, **options)
    assert keys(answer, "generated_text") == reference_texts(name, PLAIN, **SHORT, **options)
    assert answer == {"generated_text": keys(answer, "generated_text")[0]}


def test_several_texts_give_the_same_answers_as_one_by_one() -> None:
    write = pipeline("text2text-generation", model("bart"), num_beams=2, **SHORT)
    texts = [PLAIN, "a", OTHER * 2, PLAIN, "Berlin."] * 3
    assert write(texts) == [write(text) for text in texts] == list(write.many(iter(texts)))
    assert write([]) == []
    assert write({"text": PLAIN}) == write(text=PLAIN) == write(PLAIN)


def test_real_model_transliterates_names(transliteration: pellucid.Model) -> None:
    write = pipeline("text2text-generation", transliteration)
    found = write(list(NAMES))
    assert [one["generated_text"] for one in found] == list(NAMES.values())
    assert {one.finish_reason for one in found} == {"end"}
    assert [len(one.ids) for one in found] == [len(name) + 1 for name in NAMES.values()]


# -- where settings come from ------------------------------------------------------------------------------------------


def test_caller_overrides_task_settings_generation_config_and_defaults(tmp_path: Path) -> None:
    task_params = {"summarization": {"max_length": 8, "num_beams": 2, "prefix": "sum: "}}
    generation = {"max_new_tokens": 5, "num_beams": 3, "no_repeat_ngram_size": 2}
    loaded = pellucid.load(
        changed_checkpoint("bart", tmp_path, generation=generation, task_specific_params=task_params)
    ).loaded
    from_task = Summarization.resolve_options(loaded, {})
    assert (from_task["settings"].max_new_tokens, from_task["settings"].num_beams, from_task["prefix"]) == (
        7,
        2,
        "sum: ",
    )
    assert len(from_task["settings"].rules) == len(TextToText.resolve_options(loaded, {})["settings"].rules) > 0
    from_caller = Summarization.resolve_options(loaded, {"num_beams": 5, "prefix": "", "max_new_tokens": 3})
    assert (from_caller["settings"].num_beams, from_caller["settings"].max_new_tokens, from_caller["prefix"]) == (
        5,
        3,
        "",
    )
    from_file = TextToText.resolve_options(loaded, {})
    assert (from_file["settings"].num_beams, from_file["settings"].max_new_tokens, from_file["prefix"]) == (3, 5, None)
    default = TextToText.resolve_options(model("bart").loaded, {})["settings"]
    assert (default.num_beams, default.max_new_tokens) == (4, 256)


def test_max_length_20_of_a_task_is_used(tmp_path: Path) -> None:
    task_params = {"summarization": {"max_length": 20}}
    loaded = pellucid.load(changed_checkpoint("bart", tmp_path, task_specific_params=task_params)).loaded
    assert Summarization.resolve_options(loaded, {})["settings"].max_new_tokens == 19


def test_sampling_overrides_the_beams_of_the_checkpoint() -> None:
    sampling = pipeline("text2text-generation", model("bart"), do_sample=True, seed=1, **SHORT)
    assert sampling(PLAIN) == sampling(PLAIN) != sampling(PLAIN, seed=2)
    assert keys(sampling(PLAIN, num_return_sequences=3), "generated_text")[0] == sampling(PLAIN)["generated_text"]


def test_prefix_is_read_before_the_text(tmp_path: Path) -> None:
    summary = pipeline("summarization", model("t5-tasks"), **SHORT)
    plain = pipeline("text2text-generation", model("t5-tasks"), no_repeat_ngram_size=3, min_length=8, **SHORT)
    options = {"length_penalty": 2.0, "early_stopping": True}
    assert summary(PLAIN)["summary_text"] == plain(f"summarize: {PLAIN}", **options)["generated_text"]
    assert summary(PLAIN, prefix="")["summary_text"] == plain(PLAIN, **options)["generated_text"]
    assert summary(PLAIN)["summary_text"] != plain(PLAIN, **options)["generated_text"]
    spaced = pellucid.load(changed_checkpoint("bart", tmp_path, prefix=" "))
    assert TextToText.resolve_options(spaced.loaded, {})["prefix"] == " "


def test_prefix_in_the_config_gives_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pellucid.load(changed_checkpoint("bart", tmp_path, prefix=" ", task_specific_params={}))
    assert not caplog.records


def test_token_ids_of_a_single_task_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They were silently ignored; those that equal the model's own are not reported."""
    same_ids = {"eos_token_id": 2, "decoder_start_token_id": 2}
    task_params = {
        "summarization": same_ids,
        "translation_en_to_de": {"eos_token_id": [2, 5], "decoder_start_token_id": 7},
    }
    loaded = pellucid.load(changed_checkpoint("bart", tmp_path, task_specific_params=task_params)).loaded
    assert Summarization.resolve_options(loaded, {}) and not caplog.records
    Translation.resolve_options(loaded, {"src_lang": "en", "tgt_lang": "de"})
    (message,) = caplog.messages
    assert message == (
        f"{tmp_path / 'config.json'}: task_specific_params sets eos_token_id, decoder_start_token_id for one task "
        "only; that is ignored, so texts may differ. To use it, set it in generation_config.json"
    )


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"task_specific_params": [1]}, "task_specific_params is [1], expected an object of objects"),
        ({"task_specific_params": {"summarization": 3}}, "expected an object of objects"),
        ({"task_specific_params": {"summarization": {"prefix": 7}}}, "prefix is 7, expected a text"),
        ({"task_specific_params": {"summarization": {"prefix": "x" * 10_001}}}, "at most 10,000 characters"),
        ({"task_specific_params": {"summarization": {"num_beams": "4"}}}, "num_beams is '4', expected a whole number"),
        ({"task_specific_params": {"summarization": {"num_beams": 0}}}, "num_beams is 0"),
        ({"task_specific_params": {"summarization": {"max_length": 1}}}, "max_new_tokens is 0"),
        ({"task_specific_params": {"summarization": {"repetition_penalty": -1.0}}}, "repetition_penalty is -1.0"),
        ({"prefix": {"a": 1}}, "prefix is {'a': 1}, expected a text"),
    ],
)
def test_invalid_task_settings_are_refused_by_file(tmp_path: Path, facts: dict[str, Any], message: str) -> None:
    loaded = pellucid.load(changed_checkpoint("bart", tmp_path, **facts))
    with pytest.raises(CorruptFileError) as caught:
        pipeline("summarization", loaded)
    assert str(tmp_path / "config.json") in str(caught.value)
    assert message in str(caught.value)


def test_invalid_generation_config_is_refused_by_file(tmp_path: Path) -> None:
    loaded = pellucid.load(changed_checkpoint("bart", tmp_path, generation={"num_beams": 0}))
    with pytest.raises(CorruptFileError, match=r"generation_config.json: num_beams is 0"):
        pipeline("summarization", loaded)
    with pytest.raises(InputError, match="top_p is 7") as caught:  # the caller's error: no file is blamed
        pipeline("summarization", model("bart"), do_sample=True, top_p=7)
    assert not isinstance(caught.value, CorruptFileError)


# -- languages ---------------------------------------------------------------------------------------------------------


def test_languages_select_the_prefix_of_the_checkpoint() -> None:
    loaded = model("t5-tasks").loaded
    prefix = "translate English to {}: "
    pairs: list[tuple[dict[str, str], str]] = [
        ({"src_lang": "en", "tgt_lang": "fr"}, prefix.format("French")),
        ({"src_lang": "English", "tgt_lang": "German"}, prefix.format("German")),
        ({"src_lang": "EN", "tgt_lang": "french"}, prefix.format("French")),
        ({}, prefix.format("German")),
        ({"src_lang": "en", "tgt_lang": "ro"}, prefix.format("Romanian")),  # the checkpoint does not name this language
        ({"src_lang": "German", "tgt_lang": "fr"}, "translate German to French: "),
    ]
    for options, expected in pairs:
        assert Translation.resolve_options(loaded, options)["prefix"] == expected
    for options in (pairs[0][0], {"src_lang": "EN", "tgt_lang": "french"}):
        assert Translation.resolve_options(loaded, options)["settings"].num_beams == 2
    named = pipeline("translation_en_to_fr", model("t5-tasks"))(PLAIN)
    assert named == pipeline("translation", model("t5-tasks"), src_lang="en", tgt_lang="French")(PLAIN)
    assert list(named) == ["translation_text"]
    assert named != pipeline("translation_en_to_de", model("t5-tasks"))(PLAIN)


def test_model_without_task_settings_has_no_prefix() -> None:
    plain = pipeline("text2text-generation", model("bart"), **SHORT)(PLAIN)
    assert (
        pipeline("translation_en_to_xx", model("bart"), **SHORT)(PLAIN)["translation_text"] == plain["generated_text"]
    )
    assert Translation.resolve_options(model("t5-tied").loaded, {})["prefix"] is None


def with_language_token(folder: Path, **facts: Any) -> pellucid.Model:
    """With a language token as in MADLAD: `<2de> The house.`"""
    path = changed_checkpoint("t5-tied", folder, **facts) / "tokenizer.json"
    tokenizer_json = json.loads(path.read_text(encoding="utf-8"))
    language_token = next(token for token in tokenizer_json["added_tokens"] if token["content"] == "<extra_id_0>") | {
        "content": "<2de>"
    }
    path.write_text(
        json.dumps(tokenizer_json | {"added_tokens": [*tokenizer_json["added_tokens"][:-1], language_token]}),
        encoding="utf-8",
    )
    return pellucid.load(folder)


def prompt_ids(task: str, model: pellucid.Model, text: str = PLAIN, **options: Any) -> list[int]:
    pipe_task = pipeline(task, model, **options)._make_task({})
    (prompt,) = pipe_task.prompts(pellucid.tasks.task.Work(model.loaded), text, 0)
    return prompt.portion.ids


def test_language_token_is_added_for_the_target_language(tmp_path: Path) -> None:
    loaded = with_language_token(tmp_path)
    (token_id,) = loaded.tokenizer.convert_tokens_to_ids(["<2de>"])
    for language in ("de", "German", "DE", "german"):
        assert prompt_ids("translation", loaded, src_lang="en", tgt_lang=language)[0] == token_id
        assert prompt_ids("translation", loaded, tgt_lang=language)[0] == token_id
    assert (
        prompt_ids("translation", loaded, f"{PLAIN} <2de>", tgt_lang="de").count(token_id) == 1
    )  # a typed one is plain text
    for others in ({}, {"src_lang": "en"}):  # it has no prefix sentence
        with pytest.raises(InputError, match="tgt_lang is 'French', and this model has no token for it, such as <2de>"):
            pipeline("translation", loaded, tgt_lang="French", **others)


@pytest.mark.parametrize("task", ["translation", "summarization", "text2text-generation"])
def test_special_tokens_of_a_prefix_are_parsed(tmp_path: Path, task: str) -> None:
    """They were read as plain text where special tokens typed in a text are."""
    loaded = with_language_token(tmp_path, prefix="<2de> say: ")
    expected = loaded.tokenizer([f"<2de> say: {PLAIN}"]).input_ids[0]
    assert prompt_ids(task, loaded) == prompt_ids(task, loaded, prefix="<2de> say: ") == expected
    answer = pipeline(task, loaded, long="windows", max_length=40, max_new_tokens=1)(f"{PLAIN} {OTHER}")
    assert spans(f"{PLAIN} {OTHER}", answer)[0] == PLAIN


def test_unknown_languages_are_refused() -> None:
    with pytest.raises(InputError, match=r"tgt_lang is 'Germann' \(did you mean German\?\)"):
        pipeline("translation", model("t5-tied"), src_lang="en", tgt_lang="Germann")
    with pytest.raises(InputError, match=r"tgt_lang is 'x{39}…', expected a code such as 'de'"):
        pipeline("translation", model("t5-tied"), src_lang="en", tgt_lang="x" * 41)
    with pytest.raises(InputError, match="this model needs both languages: pass src_lang=CODE too"):
        pipeline("translation", model("t5-tied"), tgt_lang="de")
    with pytest.raises(InputError, match="src_lang is 'en', and this model needs both languages: pass tgt_lang=CODE"):
        pipeline("translation", model("t5-tasks"), src_lang="en")
    with pytest.raises(InputError, match="src_lang is '', expected a language"):
        pipeline("translation", model("bart"), src_lang="")


# -- long texts --------------------------------------------------------------------------------------------------------


def test_long_text_of_names_follows_each_rule(transliteration: pellucid.Model) -> None:
    """Each window holds one name, since two exceed the model's limit."""
    text, limit = " ".join([*NAMES] * 9), max(map(len, NAMES))
    write = pipeline("text2text-generation", transliteration, max_length=limit, num_beams=1)
    single = {name: write(name)["generated_text"] for name in NAMES}
    answer = write(text, long="windows")
    assert spans(text, answer) == [*NAMES] * 9
    assert answer["generated_text"] == " ".join([*single.values()] * 9)
    assert (answer.read.cut, answer.finish_reason) == (0, "end")
    truncated, letters = write(text, long="truncate"), len(text.replace(" ", ""))  # spaces are not tokens here
    (text_read,) = spans(text, truncated)
    assert text.startswith(text_read) and len(text_read.replace(" ", "")) == limit
    assert truncated["generated_text"] == write(text_read)["generated_text"]
    assert truncated.read.cut == truncated.whole()["cut"] == letters - limit
    with pytest.raises(InputError, match=rf"item 1 has {letters - limit} tokens more than the {limit} that are read"):
        write(["محمد", text])


def test_ten_thousand_words_follow_each_rule() -> None:
    words = [f"Sentence {i} is about the town of Berlin." for i in range(1_250)]
    words[700] = "The word that was planted is Zanzibar."
    text, write = " ".join(words), pipeline("summarization", model("bart"), num_beams=1, max_new_tokens=4)
    full_length, limit = len(model("bart").tokenizer([text]).input_ids[0]), model("bart").tokenizer.model_max_length
    truncated, windowed = write(text, long="truncate"), write(text, long="windows")
    assert (truncated.read.cut, windowed.read.cut) == (full_length - limit, 0)
    assert " ".join(spans(text, windowed)) == text
    (window,) = [stretch for stretch in spans(text, windowed) if "Zanzibar" in stretch]
    assert window not in spans(text, truncated)[0]
    assert write(window)["summary_text"].strip() in windowed["summary_text"]
    first = write(spans(text, windowed)[0])["summary_text"].strip()
    assert first and windowed["summary_text"].startswith(first)


def test_windows_end_at_sentences_and_start_with_the_prefix() -> None:
    text = " ".join(f"Sentence {i} is about the town of Berlin." for i in range(12))
    write = pipeline("summarization", model("t5-tasks"), max_new_tokens=4, long="windows", max_length=80)
    answer = write(text, num_return_sequences=2)
    assert all(window.endswith("Berlin.") for window in spans(text, answer))
    assert " ".join(spans(text, answer)) == text
    single = [write(window, num_return_sequences=2) for window in spans(text, answer)]
    for rank in (0, 1):
        joined = " ".join(filter(None, (one.all[rank]["summary_text"].strip() for one in single)))
        assert answer.all[rank]["summary_text"] == joined


def test_max_length_of_a_model_without_a_limit_is_the_caller_s(tmp_path: Path) -> None:
    write = pipeline("text2text-generation", model("t5-tied"), max_new_tokens=3)
    text = "The town of Berlin is large. " * 30
    with pytest.raises(InputError, match="more than the 96 that are read at once"):
        write(text)
    assert write(text, max_length=1_000).read.windows == ((0, len(text)),)
    assert len(pipeline("text2text-generation", model("bart"), max_new_tokens=3)(text, long="windows").read.windows) > 3
    limit = model("bart").loaded.config.max_sequence_length
    with pytest.raises(InputError, match=f"more than the {limit} that are read at once"):
        pipeline("text2text-generation", model("bart"), max_length=1_000)(text * 2)


def test_stride_between_windows_is_refused() -> None:
    with pytest.raises(InputError, match="stride is 3, and windows of summarization do not overlap"):
        pipeline("summarization", model("bart"), stride=3)
    with pytest.raises(InputError, match="item 0: the prefix leaves no room for the text in 3 tokens"):
        pipeline("summarization", model("t5-tasks"), max_length=3, long="windows")(PLAIN)


# -- everything else ---------------------------------------------------------------------------------------------------


def test_empty_text_is_answered_and_marked() -> None:
    write = pipeline("summarization", model("bart"), **SHORT)
    for text in ("", "   "):
        answer = write(text)
        assert answer.read.empty and isinstance(answer["summary_text"], str)
        assert answer.whole()["empty"] is True
    assert not write("a").read.empty
    assert write("")["summary_text"] == reference_texts("bart", "", num_beams=4, **SHORT)[0]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([PLAIN, None], "item 1 is NoneType, expected a text"),
        ([PLAIN, PLAIN, ("a", "b")], "item 2 is tuple, expected a text"),
        ([{"text": PLAIN}, {"txt": PLAIN}], "item 1 has the keys txt, expected a text"),
        ([b"x"], "item 0 is bytes, expected a text"),
        (["x" * 10_000_001], "item 0 has 10,000,001 characters"),
    ],
)
def test_invalid_items_are_refused_by_number(items: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        pipeline("text2text-generation", model("bart"), **SHORT)(items)


def test_options_are_those_of_generation() -> None:
    write = pipeline("summarization", model("bart"))
    assert {"max_new_tokens", "num_beams", "temperature", "seed", "stop", "prefix", "long"} <= {*write.options()}
    assert "settings" not in write.options()
    with pytest.raises(InputError, match=r"no option 'num_beam' \(did you mean num_beams"):
        write(PLAIN, num_beam=2)
    with pytest.raises(InputError, match=r"temperature is 0\.5 and nothing is sampled: pass do_sample=True"):
        write(PLAIN, temperature=0.5)
    with pytest.raises(InputError, match="eos_token_id is -1"):
        write(PLAIN, eos_token_id=-1)


def test_special_token_in_the_input_is_parsed_by_text2text_only() -> None:
    text = "The <extra_id_0> is high."
    loaded = model("t5-tied").loaded
    ids = {
        task_class: task_class(**task_class.resolve_options(loaded, SHORT))
        .prompts(pellucid.tasks.task.Work(loaded), text, 0)[0]
        .portion.ids
        for task_class in (TextToText, Summarization)
    }
    (token_id,) = loaded.tokenizer.convert_tokens_to_ids(["<extra_id_0>"])
    assert token_id in ids[TextToText] and token_id not in ids[Summarization]


def test_generation_ends_at_stop_strings_and_end_tokens() -> None:
    write = pipeline("text2text-generation", model("bart"), num_beams=1, max_new_tokens=12)
    full = write(PLAIN)
    stop = full["generated_text"][3:6]
    stopped = write(PLAIN, stop=stop)
    assert stopped["generated_text"] == full["generated_text"].partition(stop)[0]
    assert stopped.finish_reason == "stop"
    with_stop = write(PLAIN, stop=stop, keep_stop=True)
    assert with_stop["generated_text"] == write.model.tokenizer.decode(stopped.ids, skip_special_tokens=True)
    assert with_stop.ids == stopped.ids and with_stop["generated_text"].startswith(stopped["generated_text"] + stop)
    pipe = compat.pipeline("text2text-generation", write.model, num_beams=1, max_new_tokens=12)
    assert pipe(PLAIN, stop_strings=[stop]) == [with_stop] and pipe(PLAIN, stop=stop) == [stopped]
    third = full.ids[2]
    at_end_token = write(PLAIN, eos_token_id=[third])
    assert (at_end_token.finish_reason, at_end_token.ids) == ("end", full.ids[: full.ids.index(third) + 1])


def test_clean_up_tokenization_spaces_removes_spaces() -> None:
    text, tokenizers = "It is high , is it ?", {name: model(name).tokenizer for name in ("t5-tied", "bart")}
    ids = {name: tokenizers[name](text, add_special_tokens=False).input_ids for name in tokenizers}
    cleaning, plain = TextToText(clean_up_tokenization_spaces=True), TextToText()
    assert cleaning.decode(tokenizers["t5-tied"], ids["t5-tied"]) == "It is high, is it?"
    assert cleaning.decode(tokenizers["bart"], ids["bart"]) == plain.decode(tokenizers["bart"], ids["bart"]) == text
    assert plain.decode(tokenizers["t5-tied"], ids["t5-tied"]) == text


def test_attribution_covers_each_token_that_was_read() -> None:
    write = pipeline("summarization", model("t5-tasks"), explain=True, **SHORT)
    answer = write(PLAIN)
    input_ids = model("t5-tasks").tokenizer([f"summarize: {PLAIN}"]).input_ids[0]
    assert len(answer.why.tokens) == len(answer.why.scores) == len(input_ids)
    assert any(answer.why.scores)
    assert write(PLAIN, explain=False).why is None
    assert json.loads(json.dumps(answer.whole()))["why"]["target"] == answer.why.target


def test_bfloat16_runs_on_the_packed_copy() -> None:
    pipe = pipeline("text2text-generation", folder("bart"), dtype="bfloat16")
    packed = pipe.model.loaded.module.packed_copy(torch.bfloat16)
    assert pipe.model.dtype == torch.float32 and packed.packed_copy() is packed
    found = pipe(PLAIN, num_beams=1, max_new_tokens=2)  # the last token is forced
    input_ids = torch.tensor([pipe.model.tokenizer([PLAIN]).input_ids[0]])
    start = torch.tensor([[pipe.model.config.decoder.decoder_start_token_id]])
    assert found.ids[0] == packed(input_ids, None, start).logits[0, -1].argmax()


def test_model_with_another_head_is_refused() -> None:
    with pytest.raises(InputError, match="causal-lm head, and summarization needs sequence-to-sequence-lm"):
        pipeline("summarization", model("gpt2"))
    with pytest.raises(InputError, match="text-generation needs causal-lm"):
        pipeline("text-generation", model("bart"))

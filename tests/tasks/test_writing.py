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
from tests.tasks.writers import changed, folder, keys, model, spans, written_by_reference

PLAIN = "The mountain is high, the valley is deep."
OTHER = "I love this film: the story is wonderful, the actors are brilliant."
SHORT = {"max_new_tokens": 9}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def names(shared: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> pellucid.Model:
    """A real model that transliterates Arabic names into Latin letters."""
    made = convert(shared("models/aren-transliteration"), tmp_path_factory.mktemp("names") / "aren", heads=8)
    return pellucid.load(made.folder)


# -- the reference -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bart", "bart-settings", "t5-tied", "t5-gated"])
@pytest.mark.parametrize("options", [{"num_beams": 1}, {"num_beams": 4, "num_return_sequences": 3}])
def test_writes_what_the_reference_writes(name: str, options: dict[str, Any]) -> None:
    answer = pipeline("text2text-generation", model(name))(PLAIN, **SHORT, **options)
    assert keys(answer, "generated_text") == written_by_reference(name, PLAIN, **SHORT, **options)
    assert answer == {"generated_text": keys(answer, "generated_text")[0]}


def test_several_are_answered_in_their_order_as_if_alone() -> None:
    write = pipeline("text2text-generation", model("bart"), num_beams=2, **SHORT)
    texts = [PLAIN, "a", OTHER * 2, PLAIN, "Berlin."] * 3
    assert write(texts) == [write(text) for text in texts] == list(write.many(iter(texts)))
    assert write([]) == []
    assert write({"text": PLAIN}) == write(text=PLAIN) == write(PLAIN)


def test_real_names(names: pellucid.Model) -> None:
    write = pipeline("text2text-generation", names)
    found = write(list(NAMES))
    assert [one["generated_text"] for one in found] == list(NAMES.values())
    assert {one.finish_reason for one in found} == {"end"}
    assert [len(one.ids) for one in found] == [len(name) + 1 for name in NAMES.values()]


# -- where settings come from ------------------------------------------------------------------------------------------


def test_what_was_asked_is_over_the_task_over_the_file_over_our_own(tmp_path: Path) -> None:
    params = {"summarization": {"max_length": 8, "num_beams": 2, "prefix": "sum: "}}
    general = {"max_new_tokens": 5, "num_beams": 3, "no_repeat_ngram_size": 2}
    loaded = pellucid.load(changed("bart", tmp_path, generation=general, task_specific_params=params)).loaded
    fitted = Summarization.resolve_options(loaded, {})
    assert (fitted["settings"].max_new_tokens, fitted["settings"].num_beams, fitted["prefix"]) == (7, 2, "sum: ")
    assert len(fitted["settings"].rules) == len(TextToText.resolve_options(loaded, {})["settings"].rules) > 0
    resolved = Summarization.resolve_options(loaded, {"num_beams": 5, "prefix": "", "max_new_tokens": 3})
    assert (resolved["settings"].num_beams, resolved["settings"].max_new_tokens, resolved["prefix"]) == (5, 3, "")
    other = TextToText.resolve_options(loaded, {})
    assert (other["settings"].num_beams, other["settings"].max_new_tokens, other["prefix"]) == (3, 5, None)
    plain = TextToText.resolve_options(model("bart").loaded, {})["settings"]
    assert (plain.num_beams, plain.max_new_tokens) == (4, 256)


def test_a_length_that_files_never_meant_is_meant_where_a_task_says_it(tmp_path: Path) -> None:
    params = {"summarization": {"max_length": 20}}
    loaded = pellucid.load(changed("bart", tmp_path, task_specific_params=params)).loaded
    assert Summarization.resolve_options(loaded, {})["settings"].max_new_tokens == 19


def test_who_asks_to_draw_is_not_made_to_search() -> None:
    drawn = pipeline("text2text-generation", model("bart"), do_sample=True, seed=1, **SHORT)
    assert drawn(PLAIN) == drawn(PLAIN) != drawn(PLAIN, seed=2)
    assert keys(drawn(PLAIN, num_return_sequences=3), "generated_text")[0] == drawn(PLAIN)["generated_text"]


def test_the_prefix_is_read_before_the_text(tmp_path: Path) -> None:
    summary = pipeline("summarization", model("t5-tasks"), **SHORT)
    plain = pipeline("text2text-generation", model("t5-tasks"), no_repeat_ngram_size=3, min_length=8, **SHORT)
    how = {"length_penalty": 2.0, "early_stopping": True}
    assert summary(PLAIN)["summary_text"] == plain(f"summarize: {PLAIN}", **how)["generated_text"]
    assert summary(PLAIN, prefix="")["summary_text"] == plain(PLAIN, **how)["generated_text"]
    assert summary(PLAIN)["summary_text"] != plain(PLAIN, **how)["generated_text"]
    spaced = pellucid.load(changed("bart", tmp_path, prefix=" "))
    assert TextToText.resolve_options(spaced.loaded, {})["prefix"] == " "


def test_a_prefix_in_a_file_is_nothing_strange(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pellucid.load(changed("bart", tmp_path, prefix=" ", task_specific_params={}))
    assert not caplog.records


def test_tokens_that_one_task_alone_cannot_have_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They were silently ignored; those that equal the model's own are not reported."""
    own = {"eos_token_id": 2, "decoder_start_token_id": 2}
    params = {"summarization": own, "translation_en_to_de": {"eos_token_id": [2, 5], "decoder_start_token_id": 7}}
    loaded = pellucid.load(changed("bart", tmp_path, task_specific_params=params)).loaded
    assert Summarization.resolve_options(loaded, {}) and not caplog.records
    Translation.resolve_options(loaded, {"src_lang": "en", "tgt_lang": "de"})
    (record,) = caplog.messages
    assert record == (
        f"{tmp_path / 'config.json'}: task_specific_params sets eos_token_id, decoder_start_token_id for one task "
        "only; that is ignored, so texts may differ. To use it, set it in generation_config.json"
    )


@pytest.mark.parametrize(
    ("facts", "said"),
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
def test_a_hostile_file_is_named(tmp_path: Path, facts: dict[str, Any], said: str) -> None:
    opened = pellucid.load(changed("bart", tmp_path, **facts))
    with pytest.raises(CorruptFileError) as caught:
        pipeline("summarization", opened)
    assert str(tmp_path / "config.json") in str(caught.value)
    assert said in str(caught.value)


def test_a_file_at_fault_for_all_writing_is_named(tmp_path: Path) -> None:
    opened = pellucid.load(changed("bart", tmp_path, generation={"num_beams": 0}))
    with pytest.raises(CorruptFileError, match=r"generation_config.json: num_beams is 0"):
        pipeline("summarization", opened)
    with pytest.raises(InputError, match="top_p is 7") as caught:  # the caller's error: no file is blamed
        pipeline("summarization", model("bart"), do_sample=True, top_p=7)
    assert not isinstance(caught.value, CorruptFileError)


# -- languages ---------------------------------------------------------------------------------------------------------


def test_languages_choose_what_the_checkpoint_tells() -> None:
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
    for options, wanted in pairs:
        assert Translation.resolve_options(loaded, options)["prefix"] == wanted
    for options in (pairs[0][0], {"src_lang": "EN", "tgt_lang": "french"}):
        assert Translation.resolve_options(loaded, options)["settings"].num_beams == 2
    named = pipeline("translation_en_to_fr", model("t5-tasks"))(PLAIN)
    assert named == pipeline("translation", model("t5-tasks"), src_lang="en", tgt_lang="French")(PLAIN)
    assert list(named) == ["translation_text"]
    assert named != pipeline("translation_en_to_de", model("t5-tasks"))(PLAIN)


def test_a_model_of_one_pair_is_told_nothing() -> None:
    plain = pipeline("text2text-generation", model("bart"), **SHORT)(PLAIN)
    assert (
        pipeline("translation_en_to_xx", model("bart"), **SHORT)(PLAIN)["translation_text"] == plain["generated_text"]
    )
    assert Translation.resolve_options(model("t5-tied").loaded, {})["prefix"] is None


def with_a_language_token(folder: Path, **facts: Any) -> pellucid.Model:
    """With a language token as in MADLAD: `<2de> The house.`"""
    path = changed("t5-tied", folder, **facts) / "tokenizer.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    word = next(token for token in whole["added_tokens"] if token["content"] == "<extra_id_0>") | {"content": "<2de>"}
    path.write_text(json.dumps(whole | {"added_tokens": [*whole["added_tokens"][:-1], word]}), encoding="utf-8")
    return pellucid.load(folder)


def read_of(task: str, model: pellucid.Model, text: str = PLAIN, **options: Any) -> list[int]:
    question = pipeline(task, model, **options)._make_task({})
    (prompt,) = question.prompts(pellucid.tasks.task.Work(model.loaded), text, 0)
    return prompt.portion.ids


def test_a_language_that_is_a_token(tmp_path: Path) -> None:
    opened = with_a_language_token(tmp_path)
    (mark,) = opened.tokenizer.convert_tokens_to_ids(["<2de>"])
    for said in ("de", "German", "DE", "german"):
        assert read_of("translation", opened, src_lang="en", tgt_lang=said)[0] == mark
        assert read_of("translation", opened, tgt_lang=said)[0] == mark
    assert read_of("translation", opened, f"{PLAIN} <2de>", tgt_lang="de").count(mark) == 1  # a typed one is plain text
    for others in ({}, {"src_lang": "en"}):  # it has no prefix sentence
        with pytest.raises(InputError, match="tgt_lang is 'French', and this model has no token for it, such as <2de>"):
            pipeline("translation", opened, tgt_lang="French", **others)


@pytest.mark.parametrize("task", ["translation", "summarization", "text2text-generation"])
def test_special_tokens_of_a_prefix_are_tokens_whoever_wrote_the_text(tmp_path: Path, task: str) -> None:
    """They were read as plain text where special tokens typed in a text are."""
    opened = with_a_language_token(tmp_path, prefix="<2de> say: ")
    wanted = opened.tokenizer([f"<2de> say: {PLAIN}"]).input_ids[0]
    assert read_of(task, opened) == read_of(task, opened, prefix="<2de> say: ") == wanted
    answer = pipeline(task, opened, long="windows", max_length=40, max_new_tokens=1)(f"{PLAIN} {OTHER}")
    assert spans(f"{PLAIN} {OTHER}", answer)[0] == PLAIN


def test_languages_nobody_knows() -> None:
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


def test_a_long_text_of_real_names_under_each_rule(names: pellucid.Model) -> None:
    """Each window holds one name, since two exceed the model's limit."""
    text, room = " ".join([*NAMES] * 9), max(map(len, NAMES))
    write = pipeline("text2text-generation", names, max_length=room, num_beams=1)
    alone = {name: write(name)["generated_text"] for name in NAMES}
    answer = write(text, long="windows")
    assert spans(text, answer) == [*NAMES] * 9
    assert answer["generated_text"] == " ".join([*alone.values()] * 9)
    assert (answer.read.cut, answer.finish_reason) == (0, "end")
    kept, letters = write(text, long="truncate"), len(text.replace(" ", ""))  # spaces are not tokens here
    (read,) = spans(text, kept)
    assert text.startswith(read) and len(read.replace(" ", "")) == room
    assert kept["generated_text"] == write(read)["generated_text"]
    assert kept.read.cut == kept.whole()["cut"] == letters - room
    with pytest.raises(InputError, match=rf"item 1 has {letters - room} tokens more than the {room} that are read"):
        write(["محمد", text])


def test_ten_thousand_words_are_read_to_the_end() -> None:
    words = [f"Sentence {i} is about the town of Berlin." for i in range(1_250)]
    words[700] = "The word that was planted is Zanzibar."
    text, write = " ".join(words), pipeline("summarization", model("bart"), num_beams=1, max_new_tokens=4)
    whole, most = len(model("bart").tokenizer([text]).input_ids[0]), model("bart").tokenizer.model_max_length
    kept, every = write(text, long="truncate"), write(text, long="windows")
    assert (kept.read.cut, every.read.cut) == (whole - most, 0)
    assert " ".join(spans(text, every)) == text
    (planted,) = [stretch for stretch in spans(text, every) if "Zanzibar" in stretch]
    assert planted not in spans(text, kept)[0]
    assert write(planted)["summary_text"].strip() in every["summary_text"]
    first = write(spans(text, every)[0])["summary_text"].strip()
    assert first and every["summary_text"].startswith(first)


def test_stretches_end_with_sentences_and_begin_with_the_prefix() -> None:
    text = " ".join(f"Sentence {i} is about the town of Berlin." for i in range(12))
    write = pipeline("summarization", model("t5-tasks"), max_new_tokens=4, long="windows", max_length=80)
    answer = write(text, num_return_sequences=2)
    assert all(stretch.endswith("Berlin.") for stretch in spans(text, answer))
    assert " ".join(spans(text, answer)) == text
    alone = [write(stretch, num_return_sequences=2) for stretch in spans(text, answer)]
    for rank in (0, 1):
        joined = " ".join(filter(None, (one.all[rank]["summary_text"].strip() for one in alone)))
        assert answer.all[rank]["summary_text"] == joined


def test_a_model_without_a_limit_reads_what_it_is_told_to(tmp_path: Path) -> None:
    write = pipeline("text2text-generation", model("t5-tied"), max_new_tokens=3)
    text = "The town of Berlin is large. " * 30
    with pytest.raises(InputError, match="more than the 96 that are read at once"):
        write(text)
    assert write(text, max_length=1_000).read.windows == ((0, len(text)),)
    assert len(pipeline("text2text-generation", model("bart"), max_new_tokens=3)(text, long="windows").read.windows) > 3
    places = model("bart").loaded.config.max_sequence_length
    with pytest.raises(InputError, match=f"more than the {places} that are read at once"):
        pipeline("text2text-generation", model("bart"), max_length=1_000)(text * 2)


def test_a_stretch_shares_nothing() -> None:
    with pytest.raises(InputError, match="stride is 3, and windows of summarization do not overlap"):
        pipeline("summarization", model("bart"), stride=3)
    with pytest.raises(InputError, match="item 0: the prefix leaves no room for the text in 3 tokens"):
        pipeline("summarization", model("t5-tasks"), max_length=3, long="windows")(PLAIN)


# -- everything else ---------------------------------------------------------------------------------------------------


def test_nothing_to_read_is_answered_and_told() -> None:
    write = pipeline("summarization", model("bart"), **SHORT)
    for text in ("", "   "):
        answer = write(text)
        assert answer.read.empty and isinstance(answer["summary_text"], str)
        assert answer.whole()["empty"] is True
    assert not write("a").read.empty
    assert write("")["summary_text"] == written_by_reference("bart", "", num_beams=4, **SHORT)[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([PLAIN, None], "item 1 is NoneType, expected a text"),
        ([PLAIN, PLAIN, ("a", "b")], "item 2 is tuple, expected a text"),
        ([{"text": PLAIN}, {"txt": PLAIN}], "item 1 has the keys txt, expected a text"),
        ([b"x"], "item 0 is bytes, expected a text"),
        (["x" * 10_000_001], "item 0 has 10,000,001 characters"),
    ],
)
def test_what_is_no_text_is_named_by_its_number(given: list[Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        pipeline("text2text-generation", model("bart"), **SHORT)(given)


def test_options_are_those_of_writing() -> None:
    write = pipeline("summarization", model("bart"))
    assert {"max_new_tokens", "num_beams", "temperature", "seed", "stop", "prefix", "long"} <= {*write.options()}
    assert "settings" not in write.options()
    with pytest.raises(InputError, match=r"no option 'num_beam' \(did you mean num_beams"):
        write(PLAIN, num_beam=2)
    with pytest.raises(InputError, match=r"temperature is 0\.5 and nothing is sampled: pass do_sample=True"):
        write(PLAIN, temperature=0.5)
    with pytest.raises(InputError, match="eos_token_id is -1"):
        write(PLAIN, eos_token_id=-1)


def test_a_special_token_that_was_typed() -> None:
    text = "The <extra_id_0> is high."
    loaded = model("t5-tied").loaded
    ids = {
        kind: kind(**kind.resolve_options(loaded, SHORT))
        .prompts(pellucid.tasks.task.Work(loaded), text, 0)[0]
        .portion.ids
        for kind in (TextToText, Summarization)
    }
    (mark,) = loaded.tokenizer.convert_tokens_to_ids(["<extra_id_0>"])
    assert mark in ids[TextToText] and mark not in ids[Summarization]


def test_a_text_ends_where_it_is_told_to() -> None:
    write = pipeline("text2text-generation", model("bart"), num_beams=1, max_new_tokens=12)
    whole = write(PLAIN)
    stop = whole["generated_text"][3:6]
    cut = write(PLAIN, stop=stop)
    assert cut["generated_text"] == whole["generated_text"].partition(stop)[0]
    assert cut.finish_reason == "stop"
    kept = write(PLAIN, stop=stop, keep_stop=True)
    assert kept["generated_text"] == write.model.tokenizer.decode(cut.ids, skip_special_tokens=True)
    assert kept.ids == cut.ids and kept["generated_text"].startswith(cut["generated_text"] + stop)
    ask = compat.pipeline("text2text-generation", write.model, num_beams=1, max_new_tokens=12)
    assert ask(PLAIN, stop_strings=[stop]) == [kept] and ask(PLAIN, stop=stop) == [cut]
    third = whole.ids[2]
    ended = write(PLAIN, eos_token_id=[third])
    assert (ended.finish_reason, ended.ids) == ("end", whole.ids[: whole.ids.index(third) + 1])


def test_spaces_are_tidied_on_request() -> None:
    text, words = "It is high , is it ?", {name: model(name).tokenizer for name in ("t5-tied", "bart")}
    ids = {name: words[name](text, add_special_tokens=False).input_ids for name in words}
    tidy, plain = TextToText(clean_up_tokenization_spaces=True), TextToText()
    assert tidy.decode(words["t5-tied"], ids["t5-tied"]) == "It is high, is it?"
    assert tidy.decode(words["bart"], ids["bart"]) == plain.decode(words["bart"], ids["bart"]) == text
    assert plain.decode(words["t5-tied"], ids["t5-tied"]) == text


def test_what_mattered_is_told_for_each_token_that_was_read() -> None:
    write = pipeline("summarization", model("t5-tasks"), explain=True, **SHORT)
    answer = write(PLAIN)
    read = model("t5-tasks").tokenizer([f"summarize: {PLAIN}"]).input_ids[0]
    assert len(answer.why.tokens) == len(answer.why.scores) == len(read)
    assert any(answer.why.scores)
    assert write(PLAIN, explain=False).why is None
    assert json.loads(json.dumps(answer.whole()))["why"]["target"] == answer.why.target


def test_in_bfloat16() -> None:
    quick = pipeline("text2text-generation", folder("bart"), dtype="bfloat16")
    twin = quick.model.loaded.module.packed_copy(torch.bfloat16)
    assert quick.model.dtype == torch.float32 and twin.packed_copy() is twin
    found = quick(PLAIN, num_beams=1, max_new_tokens=2)  # the last token is forced
    read = torch.tensor([quick.model.tokenizer([PLAIN]).input_ids[0]])
    start = torch.tensor([[quick.model.config.decoder.decoder_start_token_id]])
    assert found.ids[0] == twin(read, None, start).logits[0, -1].argmax()


def test_another_head_is_refused() -> None:
    with pytest.raises(InputError, match="causal-lm head, and summarization needs sequence-to-sequence-lm"):
        pipeline("summarization", model("gpt2"))
    with pytest.raises(InputError, match="text-generation needs causal-lm"):
        pipeline("text-generation", model("bart"))

"""Words for masks: as the reference finds them, among targets, in long texts."""

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers

import pellucid
from pellucid.errors import InputError
from pellucid.models import Output
from pellucid.pipeline import Pipeline, pipeline
from tests.parity import tiny
from tests.tasks import masked_model

FILLERS = ("distilbert-filler", "roberta-filler", "xlm-roberta-filler", "albert-filler", "mpnet-filler")
Load = Callable[[str], Pipeline]


@pytest.fixture(scope="module")
def load(checkpoint: Callable[[str], Path]) -> Load:
    """Loads a tiny masked language model by name."""
    return cache(lambda name: pipeline("fill-mask", checkpoint(name)))


@pytest.fixture(scope="module")
def trained_pipe(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return pipeline("fill-mask", masked_model.trained_checkpoint(tmp_path_factory.mktemp("trained")))


def mask_token(pipe: Pipeline) -> str:
    return pipe.model.tokenizer.mask_token


# -- against the reference ---------------------------------------------------------------------------------------------


def reference(pipe: Pipeline) -> transformers.Pipeline:
    """The reference with the same files and a generic tokenizer, since those of a family are built differently."""
    folder = pipe.model.loaded.source.folder
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    options = {name: value for name, value in settings.items() if name not in ("tokenizer_class", "mask_token")}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), mask_token=mask_token(pipe), **options
    )
    tokenizer.model_input_names = [
        "input_ids",
        "attention_mask",
    ]  # BERT and ALBERT use token type 0 where none is given
    return transformers.pipeline("fill-mask", model=str(folder), tokenizer=tokenizer, device="cpu")


def assert_same_answers(ours: list, theirs: list) -> None:
    expected = [one for row in theirs for one in (row if isinstance(row, list) else [row])]
    assert [{**dict(one), "score": 0} for one in ours] == [{**one, "score": 0} for one in expected]
    assert [one["score"] for one in ours] == pytest.approx([one["score"] for one in expected], abs=1e-5)


@pytest.mark.parametrize("name", FILLERS[:4])
def test_answers_equal_the_reference_s(load: Load, name: str) -> None:
    ours = load(name)
    theirs, token = reference(ours), mask_token(ours)
    for text in (
        f"The capital of France is {token}, and it is old.",
        f"{token} and {token}\t🙂 {token}!",
        f"a{token}b",
    ):
        assert_same_answers(ours(text, decoded=True), theirs(text))
        assert_same_answers(ours(text, decoded=True, top_k=2), theirs(text, top_k=2))


@pytest.mark.filterwarnings("ignore:the target:UserWarning")
def test_answers_for_targets_equal_the_reference_s(load: Load) -> None:
    for name in FILLERS[:3]:
        ours = load(name)
        theirs, text = reference(ours), f"London is the {mask_token(ours)} of England."
        for targets in ("capital", ["capital", " capital", "city", "river"], ["zzz", "Berlin", "tokenization"]):
            expected = theirs(text, targets=targets)
            assert_same_answers(ours(text, decoded=True, targets=targets, partial_targets=True), expected)


def test_target_of_several_tokens_warns(load: Load) -> None:
    pipe = load("distilbert-filler")
    with pytest.warns(UserWarning, match="'tokenization' is not a token of the vocabulary: 'to' is used"):
        (found,) = pipe("a [MASK]", targets="tokenization", partial_targets=True)
    assert found["token_str"] == "to"


# -- targets -----------------------------------------------------------------------------------------------------------


def predicted_tokens(pipe: Pipeline, text: str, *targets: str) -> set[str]:
    found = pipe(text.replace("*", mask_token(pipe)), targets=list(targets), top_k=50)
    return set(pipe.model.tokenizer.convert_ids_to_tokens([one["token"] for one in found]))


def test_target_is_tokenized_as_in_its_context(load: Load) -> None:
    roberta, unigram, wordpiece = (load(name) for name in ("roberta-filler", "xlm-roberta-filler", "distilbert-filler"))
    assert predicted_tokens(roberta, "It is * of it", "the", "in") == {"Ġthe", "Ġin"}
    assert predicted_tokens(roberta, "It is * of it", " the", "Ġthe") == {"Ġthe"}
    assert predicted_tokens(roberta, "It is*of it", "in") == {"in"}
    assert predicted_tokens(roberta, "* is it", "The") == {"The"}
    assert predicted_tokens(unigram, "It is * of it", "the", "in", "▁the") == {"▁the", "▁in"}
    assert predicted_tokens(unigram, "It is*of it", "s") == {"s"}
    assert predicted_tokens(wordpiece, "It * of it", "The", "the", "##s") == {"the", "##s"}


def test_target_without_a_token_at_one_mask_is_refused(load: Load) -> None:
    """The vocabulary has ` capital` but not `capital`: one mask can hold it, the other cannot."""
    roberta = load("roberta-filler")
    assert predicted_tokens(roberta, "the * of it", "capital") == {"Ġcapital"}
    with pytest.raises(InputError, match="the target 'capital' is 3 tokens"):
        predicted_tokens(roberta, "the *, in*", "capital")


def test_scores_of_targets_are_probabilities_over_the_vocabulary(load: Load) -> None:
    pipe = load("roberta-filler")
    all_scores = {one["token"]: one["score"] for one in pipe("the <mask> of", top_k=601)}
    assert sum(all_scores.values()) == pytest.approx(1, abs=1e-5) and len(all_scores) == 601
    found = pipe("the <mask> of", targets=["in", "the", "is", "in"])
    assert [one["score"] for one in found] == sorted((all_scores[one["token"]] for one in found), reverse=True)
    assert len(found) == 3 and len(pipe("the <mask> of", targets=["in", "the", "is"], top_k=2)) == 2


# -- the text ----------------------------------------------------------------------------------------------------------


def test_text_around_the_mask_is_unchanged(load: Load) -> None:
    """The text around the mask is unchanged, and the token decides whether a space is added."""

    def filled(name: str, text: str, target: str) -> str:
        pipe = load(name)
        (found,) = pipe(text.replace("*", mask_token(pipe)), targets=target)
        return found["sequence"]

    for name in FILLERS:
        assert filled(name, "  The FIRST\t* of  Zürich 🙂\n", "the") == "  The FIRST\tthe of  Zürich 🙂\n"
        assert filled(name, "* is Here", "it") == "it is Here"
    assert filled("distilbert-filler", "The Dog * in", "##s") == "The Dogs in"
    assert filled("distilbert-filler", "Here (*).", "it") == "Here (it)."
    assert filled("distilbert-filler", "Here*Now", "it") == "Here it Now"
    assert filled("distilbert-filler", "Here*Now", "##s") == "Heres Now"
    assert filled("distilbert-filler", "(*)Now", "it") == "(it)Now"
    assert filled("roberta-filler", "Here*Now", "Ġthe") == "Here theNow"
    assert filled("roberta-filler", "Here*Now", "s") == "HeresNow"
    assert filled("albert-filler", "Here*Now", "▁the") == "Here the Now"
    for text in ("Here *, now", "Here *.", "*'s house", "the *-like", "the *?"):
        for name, word in zip(FILLERS, ("the", "Ġthe", "▁the", "▁the", "the"), strict=True):
            assert filled(name, text, word) == text.replace("*", "the")


def test_other_masks_are_unchanged(load: Load) -> None:
    found = load("distilbert-filler")("[MASK] and [MASK]", targets="the")
    assert [(one["sequence"], one.mask) for one in found] == [("the and [MASK]", 0), ("[MASK] and the", 1)]
    assert [one["mask"] for one in found.whole()] == [0, 1]


def test_special_tokens_in_the_input_are_plain_text(load: Load) -> None:
    pipe = load("distilbert-filler")
    (found,) = pipe("[SEP] a [MASK] [CLS]", targets="the")
    assert found["sequence"] == "[SEP] a the [CLS]"
    (plain,) = pipe("[ SEP ] a [MASK] [ CLS ]", targets="the")
    assert found["score"] == pytest.approx(plain["score"], abs=1e-6)


def test_answers_have_one_shape_for_all_options(load: Load) -> None:
    for text in ("a [MASK]", "[MASK] [MASK] b"):
        for options in ({}, {"top_k": 1}, {"targets": "the"}, {"decoded": True}):
            found = load("distilbert-filler")(text, **options)
            assert all(list(one) == ["score", "token", "token_str", "sequence"] for one in found)
            assert len(found) == text.count("[MASK]") * {"{}": 5, "{'decoded': True}": 5}.get(str(options), 1)
            json.dumps(found.whole(), allow_nan=False)


# -- only the masks are computed ---------------------------------------------------------------------------------------


def test_logits_of_masks_equal_those_of_a_full_pass(load: Load) -> None:
    pipe = load("xlm-roberta-filler")
    texts = ["one <mask> and two <mask>", "a <mask>", "<mask> " * 7, "a longer text with a <mask> in its middle"]
    together = pipe(texts, top_k=502)
    for text, found in zip(texts, together):
        batch = pipe.model.tokenizer(text, return_tensors="pt")
        logits = pipe.model(batch["input_ids"]).logits[0][batch["input_ids"][0] == pipe.model.tokenizer.mask_token_id]
        for index, row in enumerate(logits.softmax(-1)):
            ours = {one["token"]: one["score"] for one in found if one.mask == index}
            assert [ours[i] for i in range(502)] == pytest.approx(row.tolist(), abs=1e-5)


def test_edits_change_the_answers(load: Load) -> None:
    pipe = load("distilbert-filler")
    plain = pipe("The [MASK] is high.", top_k=1)[0]
    with pipe.model.edit({"logits": lambda logits: -logits}):
        other = pipe("The [MASK] is high.", top_k=1)[0]
    assert other["token"] != plain["token"] and pipe("The [MASK] is high.", top_k=1)[0]["token"] == plain["token"]


def test_hook_on_the_whole_model_changes_the_answers(load: Load) -> None:
    pipe = load("distilbert-filler")
    plain = pipe("The [MASK] is high.", top_k=1)[0]
    hook = pipe.model.module.register_forward_hook(
        lambda _part, _given, found: Output({**found, "logits": -found.logits})
    )
    other = pipe("The [MASK] is high.", top_k=1)[0]
    hook.remove()
    assert other["token"] != plain["token"] and pipe("The [MASK] is high.", top_k=1)[0] == plain


def test_attribution_sums_to_the_change_of_the_logit(load: Load) -> None:
    pipe = load("distilbert-filler")
    (found,) = pipe("The [MASK] is high.", targets="house", explain=True)
    model = transformers.AutoModelForMaskedLM.from_pretrained(pipe.model.loaded.source.folder)
    tokenizer = pipe.model.tokenizer
    (row,) = tokenizer.encode(["The [MASK] is high."], parse_special_tokens=True)
    padded = [i if i in tokenizer.special_ids - {tokenizer.unk_token_id} else tokenizer.pad_token_id for i in row.ids]
    position = row.ids.index(tokenizer.mask_token_id)
    logit, padded_logit = (
        model(torch.tensor([ids])).logits[0, position, found["token"]].item() for ids in (row.ids, padded)
    )
    assert sum(found.why.scores) == pytest.approx(logit - padded_logit, rel=0.02)


# -- long texts --------------------------------------------------------------------------------------------------------


def text_with_masks(pipe: Pipeline, words: int, every: int) -> tuple[str, list[str]]:
    """A long text with a mask now and then, and the words that are hidden there."""
    masked_words, neutral = masked_model.cue_words(pipe.model.tokenizer)
    generator, expected = random.Random(5), []
    text = generator.choices(neutral, k=words)
    for i in range(30, words, every):
        cue = generator.choice(list(masked_words))
        text[i] = masked_model.masked_sentence(generator, cue, neutral)
        expected.append(masked_words[cue])
    return " ".join(text), expected


@pytest.mark.slow
def test_ten_thousand_words_follow_each_rule(trained_pipe: Pipeline) -> None:
    text, hidden = text_with_masks(trained_pipe, 10_000, 500)
    with pytest.raises(InputError, match=r"item 0 has .* tokens more than the 96 that are read at once"):
        trained_pipe(text)
    found = trained_pipe(text, long="windows", max_length=40, top_k=1)
    assert [one["token_str"] for one in found] == hidden and len(hidden) == 20
    assert [one.mask for one in found] == list(range(20)) and len(found.read.windows) == 20
    for one in found:
        start, end = found.read.windows[one.window]
        assert "[MASK]" in text[start:end] and one["sequence"].count("[MASK]") == 19
    short = trained_pipe(text, long="truncate", top_k=1)
    assert [one["token_str"] for one in short] == hidden[:1] and short.read.cut > 9_000
    with pytest.raises(InputError, match=r"^item 1: its mask is in the part that is cut off: pass long='windows'"):
        trained_pipe(["a [MASK]", text[500:]], long="truncate")


def test_each_mask_is_filled_from_the_window_with_most_context(trained_pipe: Pipeline) -> None:
    """However a text is cut, a cue word and its mask are together in one window."""
    text, hidden = text_with_masks(trained_pipe, 300, 60)
    for size in range(30, 42):
        found = trained_pipe(text, long="windows", max_length=size, stride=14, top_k=1)
        assert [one["token_str"] for one in found] == hidden


# -- refused inputs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "options", "message"),
    [
        ("no mask", {}, "^item 0 has no mask: write <mask> where a word is to be predicted$"),
        (["<mask>", "[MASK]"], {}, "^item 1 has no mask: write <mask>"),
        ("", {}, "^item 0 has no mask"),
        ("  ", {}, "^item 0 has no mask"),
        (["<mask>", None], {}, "^item 1 is NoneType, expected a text$"),
        ([b"<mask>"], {}, "^item 0 is bytes, expected a text$"),
        ("<mask>", {"top_k": 0}, "top_k is 0, expected a whole number from 1"),
        ("<mask>", {"targets": []}, r"targets is \[\], expected a word or several"),
        ("<mask>", {"targets": ""}, "targets is '', expected a word or several"),
        ("<mask>", {"targets": ["a", " "]}, "targets is .* expected a word or several"),
        ("<mask>", {"targets": 5}, "targets is 5, expected a word or several"),
        ("<mask>", {"targets": [5]}, r"targets is \[5\], expected a word or several"),
        (
            "a <mask>",
            {"targets": "captial"},
            r"'captial' is \d tokens \(.*\).* \(did you mean capital",
        ),
        ("a <mask>", {"target": "the"}, "has no option 'target' .*did you mean targets"),
        ("<mask>", {"decoded": "yes"}, "decoded is 'yes', expected true or false"),
    ],
)
def test_invalid_input_is_refused_in_one_sentence(load: Load, item: object, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load("roberta-filler")(item, **options)
    assert "\n" not in str(caught.value)


def test_target_without_any_token_is_refused(load: Load) -> None:
    with pytest.raises(InputError, match="the target '☃' is not in the vocabulary"):
        load("distilbert-filler")("a [MASK]", targets="☃")
    with pytest.raises(InputError, match="the vocabulary has no token for any of them"), pytest.warns(UserWarning):
        load("distilbert-filler")("a [MASK]", targets="\x00", partial_targets=True)


def test_models_without_mask_token_or_head_are_refused(minilm: "pellucid.Model", tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no head, and fill-mask needs masked-lm"):
        pipeline("fill-mask", minilm)
    folder = tiny.write("distilbert-filler", tmp_path)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["mask_token"] = None  # none at all, not even its class's default
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match="tokenizer has no mask token"):
        pipeline("fill-mask", folder)


def test_unusual_characters_are_kept(load: Load) -> None:
    for name in FILLERS:
        pipe = load(name)
        for text in (
            "\ud800 * \udc00",
            "\x00*\u202e",
            "e\u0301" * 3 + "*" + "\u0301",
            "🙂*👩‍👩‍👧",
            "北京*上海",
            "*" * 9,
        ):
            found = pipe(text.replace("*", mask_token(pipe)), top_k=2)
            assert len(found) == 2 * text.count("*")
            json.dumps(found.whole(), ensure_ascii=False).encode()
            for one in found:
                assert one["sequence"].count(mask_token(pipe)) == text.count("*") - 1

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
from tests.tasks import filler

FILLERS = ("distilbert-filler", "roberta-filler", "xlm-roberta-filler", "albert-filler", "mpnet-filler")
Load = Callable[[str], Pipeline]


@pytest.fixture(scope="module")
def load(checkpoint: Callable[[str], Path]) -> Load:
    """Loads a tiny masked language model by name."""
    return cache(lambda name: pipeline("fill-mask", checkpoint(name)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return pipeline("fill-mask", filler.trained(tmp_path_factory.mktemp("trained")))


def mask(pipe: Pipeline) -> str:
    return pipe.model.tokenizer.mask_token


# -- against the reference ---------------------------------------------------------------------------------------------


def reference(pipe: Pipeline) -> transformers.Pipeline:
    """The reference with the same files and a generic tokenizer, since those of a family are built differently."""
    folder = pipe.model.loaded.source.folder
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    kept = {name: value for name, value in settings.items() if name not in ("tokenizer_class", "mask_token")}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), mask_token=mask(pipe), **kept
    )
    tokenizer.model_input_names = [
        "input_ids",
        "attention_mask",
    ]  # BERT and ALBERT use token type 0 where none is given
    return transformers.pipeline("fill-mask", model=str(folder), tokenizer=tokenizer, device="cpu")


def alike(ours: list, theirs: list) -> None:
    flat = [one for row in theirs for one in (row if isinstance(row, list) else [row])]
    assert [{**dict(one), "score": 0} for one in ours] == [{**one, "score": 0} for one in flat]
    assert [one["score"] for one in ours] == pytest.approx([one["score"] for one in flat], abs=1e-5)


@pytest.mark.parametrize("name", FILLERS[:4])
def test_as_the_reference(load: Load, name: str) -> None:
    ours = load(name)
    theirs, here = reference(ours), mask(ours)
    for text in (f"The capital of France is {here}, and it is old.", f"{here} and {here}\t🙂 {here}!", f"a{here}b"):
        alike(ours(text, decoded=True), theirs(text))
        alike(ours(text, decoded=True, top_k=2), theirs(text, top_k=2))


@pytest.mark.filterwarnings("ignore:the target:UserWarning")
def test_targets_as_the_reference(load: Load) -> None:
    for name in FILLERS[:3]:
        ours = load(name)
        theirs, text = reference(ours), f"London is the {mask(ours)} of England."
        for targets in ("capital", ["capital", " capital", "city", "river"], ["zzz", "Berlin", "tokenization"]):
            wanted = theirs(text, targets=targets)
            alike(ours(text, decoded=True, targets=targets, partial_targets=True), wanted)


def test_a_target_that_is_several_tokens_says_so(load: Load) -> None:
    pipe = load("distilbert-filler")
    with pytest.warns(UserWarning, match="'tokenization' is not a token of the vocabulary: 'to' is used"):
        (found,) = pipe("a [MASK]", targets="tokenization", partial_targets=True)
    assert found["token_str"] == "to"


# -- targets -----------------------------------------------------------------------------------------------------------


def asked(pipe: Pipeline, text: str, *targets: str) -> set[str]:
    found = pipe(text.replace("*", mask(pipe)), targets=list(targets), top_k=50)
    return set(pipe.model.tokenizer.convert_ids_to_tokens([one["token"] for one in found]))


def test_a_word_is_meant_as_it_would_stand_there(load: Load) -> None:
    roberta, unigram, wordpiece = (load(name) for name in ("roberta-filler", "xlm-roberta-filler", "distilbert-filler"))
    assert asked(roberta, "It is * of it", "the", "in") == {"Ġthe", "Ġin"}
    assert asked(roberta, "It is * of it", " the", "Ġthe") == {"Ġthe"}
    assert asked(roberta, "It is*of it", "in") == {"in"}
    assert asked(roberta, "* is it", "The") == {"The"}
    assert asked(unigram, "It is * of it", "the", "in", "▁the") == {"▁the", "▁in"}
    assert asked(unigram, "It is*of it", "s") == {"s"}
    assert asked(wordpiece, "It * of it", "The", "the", "##s") == {"the", "##s"}


def test_a_word_may_be_meant_in_one_place_only(load: Load) -> None:
    """The vocabulary has ` capital` but not `capital`: one mask can hold it, the other cannot."""
    pipe = load("roberta-filler")
    assert asked(pipe, "the * of it", "capital") == {"Ġcapital"}
    with pytest.raises(InputError, match="the target 'capital' is 3 tokens"):
        asked(pipe, "the *, in*", "capital")


def test_scores_are_those_among_all_tokens(load: Load) -> None:
    pipe = load("roberta-filler")
    every = {one["token"]: one["score"] for one in pipe("the <mask> of", top_k=601)}
    assert sum(every.values()) == pytest.approx(1, abs=1e-5) and len(every) == 601
    found = pipe("the <mask> of", targets=["in", "the", "is", "in"])
    assert [one["score"] for one in found] == sorted((every[one["token"]] for one in found), reverse=True)
    assert len(found) == 3 and len(pipe("the <mask> of", targets=["in", "the", "is"], top_k=2)) == 2


# -- the text ----------------------------------------------------------------------------------------------------------


def test_the_text_stays_as_it_was(load: Load) -> None:
    """The text around the mask is unchanged, and the token decides whether a space is added."""

    def filled(name: str, text: str, target: str) -> str:
        pipe = load(name)
        (found,) = pipe(text.replace("*", mask(pipe)), targets=target)
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


def test_the_other_masks_stay(load: Load) -> None:
    found = load("distilbert-filler")("[MASK] and [MASK]", targets="the")
    assert [(one["sequence"], one.mask) for one in found] == [("the and [MASK]", 0), ("[MASK] and the", 1)]
    assert [one["mask"] for one in found.whole()] == [0, 1]


def test_special_tokens_that_somebody_typed_are_text(load: Load) -> None:
    pipe = load("distilbert-filler")
    (found,) = pipe("[SEP] a [MASK] [CLS]", targets="the")
    assert found["sequence"] == "[SEP] a the [CLS]"
    (plain,) = pipe("[ SEP ] a [MASK] [ CLS ]", targets="the")
    assert found["score"] == pytest.approx(plain["score"], abs=1e-6)


def test_one_shape(load: Load) -> None:
    for text in ("a [MASK]", "[MASK] [MASK] b"):
        for options in ({}, {"top_k": 1}, {"targets": "the"}, {"decoded": True}):
            found = load("distilbert-filler")(text, **options)
            assert all(list(one) == ["score", "token", "token_str", "sequence"] for one in found)
            assert len(found) == text.count("[MASK]") * {"{}": 5, "{'decoded': True}": 5}.get(str(options), 1)
            json.dumps(found.whole(), allow_nan=False)


# -- only the masks are computed ---------------------------------------------------------------------------------------


def test_the_masks_alone_get_the_logits_of_a_whole_pass(load: Load) -> None:
    pipe = load("xlm-roberta-filler")
    texts = ["one <mask> and two <mask>", "a <mask>", "<mask> " * 7, "a longer text with a <mask> in its middle"]
    together = pipe(texts, top_k=502)
    for text, found in zip(texts, together):
        batch = pipe.model.tokenizer(text, return_tensors="pt")
        logits = pipe.model(batch["input_ids"]).logits[0][batch["input_ids"][0] == pipe.model.tokenizer.mask_token_id]
        for number, row in enumerate(logits.softmax(-1)):
            ours = {one["token"]: one["score"] for one in found if one.mask == number}
            assert [ours[i] for i in range(502)] == pytest.approx(row.tolist(), abs=1e-5)


def test_an_edited_model_answers_as_edited(load: Load) -> None:
    pipe = load("distilbert-filler")
    plain = pipe("The [MASK] is high.", top_k=1)[0]
    with pipe.model.edit({"logits": lambda logits: -logits}):
        other = pipe("The [MASK] is high.", top_k=1)[0]
    assert other["token"] != plain["token"] and pipe("The [MASK] is high.", top_k=1)[0]["token"] == plain["token"]


def test_a_hook_on_the_whole_model_is_heard(load: Load) -> None:
    pipe = load("distilbert-filler")
    plain = pipe("The [MASK] is high.", top_k=1)[0]
    hook = pipe.model.module.register_forward_hook(
        lambda _part, _given, found: Output({**found, "logits": -found.logits})
    )
    other = pipe("The [MASK] is high.", top_k=1)[0]
    hook.remove()
    assert other["token"] != plain["token"] and pipe("The [MASK] is high.", top_k=1)[0] == plain


def test_why(load: Load) -> None:
    pipe = load("distilbert-filler")
    (found,) = pipe("The [MASK] is high.", targets="house", explain=True)
    model = transformers.AutoModelForMaskedLM.from_pretrained(pipe.model.loaded.source.folder)
    tokenizer = pipe.model.tokenizer
    (row,) = tokenizer.encode(["The [MASK] is high."], parse_special_tokens=True)
    padded = [
        one if one in tokenizer.special_ids - {tokenizer.unk_token_id} else tokenizer.pad_token_id for one in row.ids
    ]
    number = row.ids.index(tokenizer.mask_token_id)
    logit, bare = (model(torch.tensor([ids])).logits[0, number, found["token"]].item() for ids in (row.ids, padded))
    assert sum(found.why.scores) == pytest.approx(logit - bare, rel=0.02)


# -- long texts --------------------------------------------------------------------------------------------------------


def planted(pipe: Pipeline, words: int, every: int) -> tuple[str, list[str]]:
    """A long text with a mask now and then, and the words that are hidden there."""
    told, dull = filler.pairs(pipe.model.tokenizer)
    chance, hidden = random.Random(5), []
    text = chance.choices(dull, k=words)
    for i in range(30, words, every):
        tells = chance.choice(list(told))
        text[i] = filler.sentence(chance, tells, dull)
        hidden.append(told[tells])
    return " ".join(text), hidden


@pytest.mark.slow
def test_ten_thousand_words(trained: Pipeline) -> None:
    text, hidden = planted(trained, 10_000, 500)
    with pytest.raises(InputError, match=r"item 0 has .* tokens more than the 96 that are read at once"):
        trained(text)
    found = trained(text, long="windows", max_length=40, top_k=1)
    assert [one["token_str"] for one in found] == hidden and len(hidden) == 20
    assert [one.mask for one in found] == list(range(20)) and len(found.read.windows) == 20
    for one in found:
        start, end = found.read.windows[one.window]
        assert "[MASK]" in text[start:end] and one["sequence"].count("[MASK]") == 19
    short = trained(text, long="truncate", top_k=1)
    assert [one["token_str"] for one in short] == hidden[:1] and short.read.cut > 9_000
    with pytest.raises(InputError, match=r"^item 1: its mask is in the part that is cut off: pass long='windows'"):
        trained(["a [MASK]", text[500:]], long="truncate")


def test_each_mask_is_filled_where_most_is_read_around_it(trained: Pipeline) -> None:
    """However a text is cut, a cue word and its mask are together in one window."""
    text, hidden = planted(trained, 300, 60)
    for size in range(30, 42):
        found = trained(text, long="windows", max_length=size, stride=14, top_k=1)
        assert [one["token_str"] for one in found] == hidden


# -- refused inputs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "options", "message"),
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
def test_one_sentence(load: Load, given: object, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load("roberta-filler")(given, **options)
    assert "\n" not in str(caught.value)


def test_a_target_that_nothing_can_write(load: Load) -> None:
    with pytest.raises(InputError, match="the target '☃' is not in the vocabulary"):
        load("distilbert-filler")("a [MASK]", targets="☃")
    with pytest.raises(InputError, match="the vocabulary has no token for any of them"), pytest.warns(UserWarning):
        load("distilbert-filler")("a [MASK]", targets="\x00", partial_targets=True)


def test_models_without_a_mask_or_its_head_are_refused(minilm: "pellucid.Model", tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no head, and fill-mask needs masked-lm"):
        pipeline("fill-mask", minilm)
    folder = tiny.write("distilbert-filler", tmp_path)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["mask_token"] = None  # none at all, not even its class's default
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match="tokenizer has no mask token"):
        pipeline("fill-mask", folder)


def test_odd_characters(load: Load) -> None:
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
            found = pipe(text.replace("*", mask(pipe)), top_k=2)
            assert len(found) == 2 * text.count("*")
            json.dumps(found.whole(), ensure_ascii=False).encode()
            for one in found:
                assert one["sequence"].count(mask(pipe)) == text.count("*") - 1

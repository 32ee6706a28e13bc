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
def feelings(checkpoint: Checkpoint) -> "pellucid.Pipeline":
    return pellucid.pipeline("text-classification", checkpoint("bert-feelings"))


def reference(folder: Path) -> Any:
    """The reference's pipeline. Transformers 5 no longer gives ALBERT the token types of a pair; version 4 did."""
    names = ["input_ids", "token_type_ids", "attention_mask"]
    reader = transformers.PreTrainedTokenizerFast
    tokenizer = reader.from_pretrained(folder, model_input_names=names) if "albert" in folder.name else None
    return transformers.pipeline("text-classification", folder, tokenizer=tokenizer)


def close(found: Any, wanted: Any) -> None:
    """Checks the labels, in order, and their scores to 1e-5."""
    assert [one["label"] for one in found] == [one["label"] for one in wanted]
    torch.testing.assert_close(
        torch.tensor([one["score"] for one in found]),
        torch.tensor([one["score"] for one in wanted]),
        rtol=0,
        atol=1e-5,
    )


# -- the reference's answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_scores_are_the_references(checkpoint: Checkpoint, name: str) -> None:
    folder = checkpoint(name)
    ours, theirs = pellucid.pipeline("text-classification", folder), reference(folder)
    for answer, wanted in zip(ours(TEXTS), theirs(TEXTS, top_k=None)):
        assert len(answer.all) == KINDS[name] and answer == answer.all[0]
        close(answer.all, wanted)
    close(ours(PAIR).all, theirs({"text": PAIR[0], "text_pair": PAIR[1]}, top_k=None))


@pytest.mark.parametrize("function", ["softmax", "sigmoid", "none"])
@pytest.mark.parametrize("name", ["bert-feelings", "bert-stars", "albert-similarity"])
def test_functions_are_the_references(checkpoint: Checkpoint, name: str, function: str) -> None:
    folder = checkpoint(name)
    ours, theirs = pellucid.pipeline("text-classification", folder), reference(folder)
    for text in TEXTS[:2]:
        wanted = theirs(text, top_k=None, function_to_apply=function)
        close(ours(text, function_to_apply=function).all, wanted)


def test_a_token_that_somebody_typed(checkpoint: Checkpoint) -> None:
    """It is plain text, unless special tokens are to be parsed, as in the reference."""
    folder, text = checkpoint("bert-feelings"), "a typed [SEP] token"
    ours, theirs = pellucid.pipeline("text-classification", folder), reference(folder)
    close(ours(text, parse_special_tokens=True).all, theirs(text, top_k=None))
    assert ours(text).all[0]["score"] != pytest.approx(ours(text, parse_special_tokens=True).all[0]["score"], abs=1e-3)


def test_a_question_of_its_own_name(checkpoint: Checkpoint) -> None:
    folder = checkpoint("bert-feelings")
    named, plain = pellucid.pipeline("sentiment-analysis", folder), pellucid.pipeline("text-classification", folder)
    assert named(GOOD) == plain(GOOD) and named.task == "text-classification"


# -- shapes ------------------------------------------------------------------------------------------------------------


def test_the_shape_is_the_same_whatever_the_options(feelings: "pellucid.Pipeline") -> None:
    assert set(feelings(GOOD)) == {"label", "score"}
    for top_k in (1, 2, 3, 7, None):
        answer = feelings(GOOD, top_k=top_k)
        assert set(answer) == {"label", "score"} and answer == feelings(GOOD)
        assert len(answer.all) == min(top_k or 3, 3)
    assert [type(one["score"]) for one in feelings(GOOD).all] == [float] * 3
    assert feelings([]) == [] and feelings([GOOD]) == [feelings(GOOD)]


@pytest.mark.parametrize(
    "item", [PAIR, {"text": PAIR[0], "text_pair": PAIR[1]}], ids=["a tuple", "a dict by the task's names"]
)
def test_pairs_however_they_are_given(feelings: "pellucid.Pipeline", item: Any) -> None:
    wanted = feelings(*PAIR)
    assert feelings(item) == wanted and feelings([item, item]) == [wanted, wanted]
    assert feelings(text=PAIR[0], text_pair=PAIR[1]) == wanted
    assert wanted != feelings(" ".join(PAIR)), "a pair is no text of two sentences"
    many = feelings(text=[PAIR[0], GOOD], text_pair=[PAIR[1], math.nan])
    close(many[0].all, wanted.all)
    close(many[1].all, feelings(GOOD).all)


def test_company_and_order_change_nothing(feelings: "pellucid.Pipeline") -> None:
    texts = [f"{text} {i}" for i in range(20) for text in TEXTS]
    together = feelings(texts)
    for alone, beside, back in zip([feelings(text) for text in texts], together, reversed(feelings(texts[::-1]))):
        close(alone.all, beside.all)
        close(alone.all, back.all)


def test_what_is_read_twice_is_run_once(feelings: "pellucid.Pipeline", monkeypatch: pytest.MonkeyPatch) -> None:
    from pellucid.tasks.text_classification import TextClassification

    rows: list[int] = []
    look = TextClassification.forward_batch
    monkeypatch.setattr(
        TextClassification,
        "forward_batch",
        lambda self, work, module, batch: rows.append(len(batch["input_ids"])) or look(self, work, module, batch),
    )
    answers = feelings([GOOD, TEXTS[1], GOOD, GOOD])
    assert sum(rows) == 2 and answers[0] == answers[2] == answers[3] != answers[1]


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_an_empty_text_is_answered_and_told(feelings: "pellucid.Pipeline", text: str) -> None:
    answer = feelings(text)
    assert answer["label"] in ("negative", "neutral", "positive") and answer.read.empty
    assert not feelings(GOOD).read.empty and not feelings(("", GOOD)).read.windows[0][1]


# -- long texts --------------------------------------------------------------------------------------------------------


def test_a_long_text_is_refused_unless_a_rule_is_given(feelings: "pellucid.Pipeline") -> None:
    with pytest.raises(pellucid.InputError, match=r"item 1 has \d+ tokens more than the 96 .*long='windows'"):
        feelings([GOOD, GOOD * 10])


def test_truncated_is_the_reference_truncated(checkpoint: Checkpoint) -> None:
    folder = checkpoint("bert-feelings")
    ours, theirs = pellucid.pipeline("text-classification", folder), reference(folder)
    answer = ours(GOOD * 10, long="truncate", max_length=40)
    close(answer.all, theirs(GOOD * 10, top_k=None, truncation=True, max_length=40))
    whole = len(ours.model.tokenizer.encode([GOOD * 10])[0].ids)
    assert answer.read.cut == whole - 40 and len(answer.read.windows) == 1
    assert GOOD.startswith((GOOD * 10)[: answer.read.windows[0][1]][:20]) and answer.whole()["cut"] == whole - 40


def test_stretches_are_merged_by_the_mean_of_their_logits(feelings: "pellucid.Pipeline") -> None:
    text = " ".join(TEXTS) * 4
    answer = feelings(text, long="windows", max_length=30, stride=6, function_to_apply="none")
    tokenizer = feelings.model.tokenizer
    rows = tokenizer._backend.encode(text, add_special_tokens=False)
    rows.truncate(28, stride=6)
    total, weights = torch.zeros(3), 0
    for one in (rows, *rows.overflowing):
        ids = [tokenizer.cls_token_id, *one.ids, tokenizer.sep_token_id]
        with torch.no_grad():
            total += feelings.model([ids]).logits[0] * len(ids)
        weights += len(ids)
    found = {one["label"]: one["score"] for one in answer.all}
    wanted = dict(zip(feelings.model.config.labels, (total / weights).tolist()))
    assert found == pytest.approx(wanted, abs=1e-5)
    assert len(answer.read.windows) == 1 + len(rows.overflowing) > 5
    assert answer.read.windows[0][0] == 0 and answer.read.windows[-1][1] == len(text) and answer.window is None


def test_of_a_pair_the_longer_is_cut(feelings: "pellucid.Pipeline") -> None:
    for pair in ((GOOD * 10, PAIR[1]), (PAIR[1], GOOD * 10)):
        answer = feelings(pair, long="truncate", max_length=40)
        whole = len(feelings.model.tokenizer.encode([pair[0]], [pair[1]])[0].ids)
        assert answer.read.cut == whole - 40
    with pytest.raises(pellucid.InputError, match="leaves no room for the text in 10 tokens"):
        feelings((GOOD, PAIR[1] * 3), long="windows", max_length=10)


# -- refused inputs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("item", [None, 5, b"bytes", ["a"], {"label": "x"}, ("a", 5), ("a", "b", "c"), {}])
def test_what_is_no_text_is_refused_by_its_number(feelings: "pellucid.Pipeline", item: Any) -> None:
    with pytest.raises(pellucid.InputError, match="item 2"):
        feelings([GOOD, PAIR, item])


@pytest.mark.parametrize(
    ("options", "match"),
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
def test_options_that_cannot_be(feelings: "pellucid.Pipeline", options: dict[str, Any], match: str) -> None:
    with pytest.raises(pellucid.InputError, match=match):
        feelings(GOOD, **options)


def test_a_model_that_cannot_answer_is_refused(minilm: "pellucid.Model", minilm_folder: Path) -> None:
    with pytest.raises(pellucid.InputError, match="has no head, and text-classification needs sequence-classification"):
        pellucid.pipeline("text-classification", minilm)
    random = pellucid.load(minilm_folder, head="sequence-classification")
    with pytest.raises(pellucid.InputError, match=r"not trained \(head\): its answers would be random"):
        pellucid.pipeline("text-classification", random)
    with pytest.raises(pellucid.InputError, match="did you mean text-classification"):
        pellucid.pipeline("text-clasification", minilm)


# -- planted facts -----------------------------------------------------------------------------------------------------


NEUTRAL = "the mountain is high and a small house near sea of story they read in Vienna".split()


def review(chance: random.Random, label: int, size: int) -> str:
    """Neutral words, and here and there one that decides the label."""
    words = chance.choices(NEUTRAL, k=size)
    for place in chance.sample(range(size), max(size // 12, 1)):
        words[place] = ("boring", "wonderful")[label]
    return " ".join(words)


@pytest.fixture(scope="module")
def sentiment(tmp_path_factory: pytest.TempPathFactory) -> "pellucid.Pipeline":
    """A small model trained on such reviews, saved and opened as a checkpoint."""
    tokenizer = open_tokenizer(VOCABULARY, max_length=96)
    facts = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    facts |= {"vocab_size": 600, "max_position_embeddings": 96, "initializer_range": 0.2}
    head = {"head": SequenceClassification(), "labels": ("NEGATIVE", "POSITIVE")}
    model = pellucid.build(pellucid.Config.of("bert", **facts, **head), seed=0, tokenizer=tokenizer)
    optimizer, chance = torch.optim.AdamW(model.parameters(), lr=1e-2), random.Random(0)
    goal = torch.arange(24) % 2
    for _ in range(45):
        texts = [review(chance, int(label), chance.choice((8, 16, 30))) for label in goal]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(texts).logits, goal).backward()
        optimizer.step()
    return pellucid.pipeline("text-classification", model.save(tmp_path_factory.mktemp("sentiment") / "model"))


def test_ten_thousand_words_under_each_rule(sentiment: "pellucid.Pipeline") -> None:
    """Praise at the start, followed by 9,700 words of blame; truncated, only praise is read."""
    chance = random.Random(1)
    text = f"{review(chance, 1, 300)} {review(chance, 0, 9_700)}"
    with pytest.raises(pellucid.InputError, match="tokens more than the 96"):
        sentiment(text)
    cut, whole = sentiment(text, long="truncate"), sentiment(text, long="windows", stride=0, explain=True)
    assert cut["label"] == "POSITIVE" and cut["score"] > 0.9 and cut.read.cut > 10_000
    assert whole["label"] == "NEGATIVE" and whole["score"] > 0.9 and whole.read.cut == 0
    assert len(whole.read.windows) > 100 and whole.read.windows[-1][1] == len(text)
    assert whole.why is not None and whole.why.target.startswith("logit of 'NEGATIVE' in window ")
    strongest = max(zip(whole.why.scores, whole.why.tokens))[1]
    assert strongest in ("bor", "##ing"), "the word that tells is the one that mattered"

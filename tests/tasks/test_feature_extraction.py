"""The hidden state of every token: the reference's, for every kind of model, also for texts beyond its limit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import pellucid

TEXT = "The dog sleeps, and nobody wakes it 🙂."
BODIES = ("bert", "distilbert", "roberta", "xlm-roberta", "albert", "mpnet", "gpt2", "llama", "mistral", "qwen2")

Checkpoint = Callable[[str], Path]


@pytest.fixture(scope="module")
def bert(checkpoint: Checkpoint) -> "pellucid.Pipeline":
    return pellucid.pipeline("feature-extraction", checkpoint("bert-body"))


def assert_close(found: Any, expected: torch.Tensor) -> None:
    torch.testing.assert_close(torch.tensor(found), expected, rtol=0, atol=1e-5)


def reference_states(folder: Path, ids: list[int], **options: Any) -> Any:
    """The last hidden states of the reference's body for these ids: Float32[Tensor, "seq hidden"]"""
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return (model.encoder if options.get("encoder") else model)(torch.tensor([ids]))[0][0]


@pytest.mark.parametrize("name", BODIES)
def test_states_equal_the_reference_s(checkpoint: Checkpoint, name: str) -> None:
    folder = checkpoint(f"{name}-body")
    pipe = pellucid.pipeline("feature-extraction", folder)
    answer, ids = pipe(TEXT), pipe.model.tokenizer.encode([TEXT])[0].ids
    assert_close(answer, reference_states(folder, ids))
    assert len(answer) == len(ids) and all(type(number) is float for number in answer[0])


def test_side_selects_encoder_or_decoder_states(checkpoint: Checkpoint) -> None:
    folder = checkpoint("bart-body")
    pipe = pellucid.pipeline("feature-extraction", folder)
    ids = pipe.model.tokenizer.encode([TEXT])[0].ids
    assert_close(pipe(TEXT), reference_states(folder, ids, encoder=True))
    assert_close(pipe(TEXT, side="decoder"), reference_states(folder, ids))
    assert pipe(TEXT, side="encoder") == pipe(TEXT)


def test_checkpoints_with_a_head_give_states_of_their_body(checkpoint: Checkpoint) -> None:
    """Whatever head a checkpoint was trained with, its body has hidden states."""
    for name in ("bert-filler", "bert-feelings", "bert-people", "bert-reader", "gpt2"):
        folder = checkpoint(name)
        pipe = pellucid.pipeline("feature-extraction", folder)
        assert_close(pipe(TEXT), reference_states(folder, pipe.model.tokenizer.encode([TEXT])[0].ids))


def test_several_texts_give_the_same_states_as_one_by_one(bert: "pellucid.Pipeline") -> None:
    texts = [TEXT, "dog", TEXT, "The dog sleeps. " * 5]
    together = bert(texts)
    for text, answer in zip(texts, together):
        assert_close(answer, torch.tensor(bert(text)))
    assert json.loads(json.dumps(together[1])) == together[1]
    assert bert([]) == [] and bert({"text": "dog"}) == bert("dog") == bert(text="dog")


def test_states_of_minilm_pool_to_its_embedding(minilm: "pellucid.Model") -> None:
    answer = pellucid.pipeline("feature-extraction", minilm)(TEXT)
    with torch.no_grad():
        assert_close(answer, minilm(TEXT).last_hidden_state[0])
    vector = torch.nn.functional.normalize(torch.tensor(answer).mean(dim=0), dim=0)
    torch.testing.assert_close(vector, minilm.embed(TEXT), rtol=0, atol=1e-6)


def test_empty_text_gives_states_of_its_special_tokens(bert: "pellucid.Pipeline", checkpoint: Checkpoint) -> None:
    answer = bert("")
    assert len(answer) == 2 and answer.read.empty
    with pytest.raises(pellucid.InputError, match="item 1 has no tokens"):
        pellucid.pipeline("feature-extraction", checkpoint("gpt2-body"))([TEXT, ""])


# -- long texts --------------------------------------------------------------------------------------------------------


def test_long_text_follows_each_rule(bert: "pellucid.Pipeline") -> None:
    text = " ".join(f"word{i}" for i in range(60))
    tokenizer = bert.model.tokenizer
    (row,) = tokenizer.encode([text])
    with pytest.raises(pellucid.InputError, match=r"item 0 has .* long='windows'"):
        bert(text)
    truncated = bert(text, long="truncate", max_length=20)
    assert_close(truncated, plain_states(bert, row.ids[:19] + row.ids[-1:]))
    assert truncated.read.cut == len(row.ids) - 20
    windowed = bert(text, long="windows", max_length=32, stride=10)
    assert len(windowed) == len(row.ids) and windowed.read.cut == 0 and windowed.read.windows[-1][1] == len(text)


def test_each_token_is_taken_from_the_window_with_most_context(bert: "pellucid.Pipeline") -> None:
    text = " ".join(f"word{i}" for i in range(20))
    (row,) = bert.model.tokenizer.encode([text])
    inner, window_size, stride = row.ids[1:-1], 30, 10
    windowed = bert(text, long="windows", max_length=window_size + 2, stride=stride)
    starts = [i for i in range(0, len(inner), window_size - stride) if i == 0 or i + stride < len(inner)]
    states = [plain_states(bert, [row.ids[0], *inner[i : i + window_size], row.ids[-1]]) for i in starts]
    assert_close(windowed[0], states[0][0])
    assert_close(windowed[-1], states[-1][-1])
    for position in range(len(inner)):
        windows = [i for i, start in enumerate(starts) if start <= position < start + window_size]
        first, last = windows[0], windows[-1]
        before_the_cut = starts[first] + window_size - 1 - position
        chosen = first if before_the_cut >= position - starts[last] else last
        assert_close(windowed[1 + position], states[chosen][1 + position - starts[chosen]])


@pytest.mark.parametrize("name", ["roberta-body", "xlm-roberta-body", "gpt2-body", "llama-body", "bart-body"])
def test_no_token_is_lost_in_ten_thousand_words(checkpoint: Checkpoint, name: str) -> None:
    pipe = pellucid.pipeline("feature-extraction", checkpoint(name))
    text = "The dog 🙂 sleeps near Zürich. " * 1_700
    answer = pipe(text, long="windows", max_length=96, stride=8)
    assert len(answer) == len(pipe.model.tokenizer.encode([text])[0].ids) > 10_000


def plain_states(pipe: "pellucid.Pipeline", ids: list[int]) -> torch.Tensor:
    """The plain module's states for these ids: Float32[Tensor, "seq hidden"]"""
    with torch.no_grad():
        return pipe.model([ids]).last_hidden_state[0]


# -- refused inputs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("item", [None, 5, b"bytes", ("a", "b"), {"txt": "a"}, ["a"]])
def test_invalid_item_is_refused_by_number(bert: "pellucid.Pipeline", item: Any) -> None:
    with pytest.raises(pellucid.InputError, match="item 1"):
        bert([TEXT, item])


def test_invalid_options_are_refused(bert: "pellucid.Pipeline", tiny: "pellucid.Model") -> None:
    with pytest.raises(pellucid.InputError, match="no score that could be explained"):
        bert(TEXT, explain=True)
    with pytest.raises(pellucid.InputError, match="side is 'decoder', and this model is of kind 'encoder'"):
        bert(TEXT, side="decoder")
    with pytest.raises(pellucid.InputError, match="side is 'left'"):
        bert(TEXT, side="left")
    with pytest.raises(pellucid.InputError, match=r"is not trained \(all\)"):
        pellucid.pipeline("feature-extraction", tiny)

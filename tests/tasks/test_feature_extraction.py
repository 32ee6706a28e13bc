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


def close(found: Any, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(torch.tensor(found), wanted, rtol=0, atol=1e-5)


def reference(folder: Path, ids: list[int], **made: Any) -> Any:
    """The last hidden states of the reference's body for these ids: Float32[Tensor, "seq hidden"]"""
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return (model.encoder if made.get("encoder") else model)(torch.tensor([ids]))[0][0]


@pytest.mark.parametrize("name", BODIES)
def test_states_are_the_references(checkpoint: Checkpoint, name: str) -> None:
    folder = checkpoint(f"{name}-body")
    pipe = pellucid.pipeline("feature-extraction", folder)
    answer, ids = pipe(TEXT), pipe.model.tokenizer.encode([TEXT])[0].ids
    close(answer, reference(folder, ids))
    assert len(answer) == len(ids) and all(type(number) is float for number in answer[0])


def test_either_side_of_an_encoder_decoder(checkpoint: Checkpoint) -> None:
    folder = checkpoint("bart-body")
    pipe = pellucid.pipeline("feature-extraction", folder)
    ids = pipe.model.tokenizer.encode([TEXT])[0].ids
    close(pipe(TEXT), reference(folder, ids, encoder=True))
    close(pipe(TEXT, side="decoder"), reference(folder, ids))
    assert pipe(TEXT, side="encoder") == pipe(TEXT)


def test_a_head_is_left_alone(checkpoint: Checkpoint) -> None:
    """Whatever head a checkpoint was trained with, its body has hidden states."""
    for name in ("bert-filler", "bert-feelings", "bert-people", "bert-reader", "gpt2"):
        folder = checkpoint(name)
        pipe = pellucid.pipeline("feature-extraction", folder)
        close(pipe(TEXT), reference(folder, pipe.model.tokenizer.encode([TEXT])[0].ids))


def test_one_text_and_several(bert: "pellucid.Pipeline") -> None:
    texts = [TEXT, "dog", TEXT, "The dog sleeps. " * 5]
    together = bert(texts)
    for text, answer in zip(texts, together):
        close(answer, torch.tensor(bert(text)))
    assert json.loads(json.dumps(together[1])) == together[1]
    assert bert([]) == [] and bert({"text": "dog"}) == bert("dog") == bert(text="dog")


def test_states_of_the_real_model(minilm: "pellucid.Model") -> None:
    answer = pellucid.pipeline("feature-extraction", minilm)(TEXT)
    with torch.no_grad():
        close(answer, minilm(TEXT).last_hidden_state[0])
    vector = torch.nn.functional.normalize(torch.tensor(answer).mean(dim=0), dim=0)
    torch.testing.assert_close(vector, minilm.embed(TEXT), rtol=0, atol=1e-6)


def test_an_empty_text_has_its_special_tokens(bert: "pellucid.Pipeline", checkpoint: Checkpoint) -> None:
    answer = bert("")
    assert len(answer) == 2 and answer.read.empty
    with pytest.raises(pellucid.InputError, match="item 1 has no tokens"):
        pellucid.pipeline("feature-extraction", checkpoint("gpt2-body"))([TEXT, ""])


# -- long texts --------------------------------------------------------------------------------------------------------


def test_a_long_text_under_each_rule(bert: "pellucid.Pipeline") -> None:
    text = " ".join(f"word{i}" for i in range(60))
    tokenizer = bert.model.tokenizer
    (row,) = tokenizer.encode([text])
    with pytest.raises(pellucid.InputError, match=r"item 0 has .* long='windows'"):
        bert(text)
    cut = bert(text, long="truncate", max_length=20)
    close(cut, reference_of(bert, row.ids[:19] + row.ids[-1:]))
    assert cut.read.cut == len(row.ids) - 20
    whole = bert(text, long="windows", max_length=32, stride=10)
    assert len(whole) == len(row.ids) and whole.read.cut == 0 and whole.read.windows[-1][1] == len(text)


def test_each_token_from_the_stretch_in_which_it_stands_deepest(bert: "pellucid.Pipeline") -> None:
    text = " ".join(f"word{i}" for i in range(20))
    (row,) = bert.model.tokenizer.encode([text])
    inner, size, stride = row.ids[1:-1], 30, 10
    whole = bert(text, long="windows", max_length=size + 2, stride=stride)
    starts = [i for i in range(0, len(inner), size - stride) if i == 0 or i + stride < len(inner)]
    states = [reference_of(bert, [row.ids[0], *inner[i : i + size], row.ids[-1]]) for i in starts]
    close(whole[0], states[0][0])
    close(whole[-1], states[-1][-1])
    for number in range(len(inner)):
        holding = [i for i, start in enumerate(starts) if start <= number < start + size]
        first, last = holding[0], holding[-1]
        before_the_cut = starts[first] + size - 1 - number
        chosen = first if before_the_cut >= number - starts[last] else last
        close(whole[1 + number], states[chosen][1 + number - starts[chosen]])


@pytest.mark.parametrize("name", ["roberta-body", "xlm-roberta-body", "gpt2-body", "llama-body", "bart-body"])
def test_no_token_is_lost_in_ten_thousand_words(checkpoint: Checkpoint, name: str) -> None:
    pipe = pellucid.pipeline("feature-extraction", checkpoint(name))
    text = "The dog 🙂 sleeps near Zürich. " * 1_700
    answer = pipe(text, long="windows", max_length=96, stride=8)
    assert len(answer) == len(pipe.model.tokenizer.encode([text])[0].ids) > 10_000


def reference_of(pipe: "pellucid.Pipeline", ids: list[int]) -> torch.Tensor:
    """The plain module's states for these ids: Float32[Tensor, "seq hidden"]"""
    with torch.no_grad():
        return pipe.model([ids]).last_hidden_state[0]


# -- refused inputs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("item", [None, 5, b"bytes", ("a", "b"), {"txt": "a"}, ["a"]])
def test_what_is_no_text_is_refused_by_its_number(bert: "pellucid.Pipeline", item: Any) -> None:
    with pytest.raises(pellucid.InputError, match="item 1"):
        bert([TEXT, item])


def test_options_that_cannot_be(bert: "pellucid.Pipeline", tiny: "pellucid.Model") -> None:
    with pytest.raises(pellucid.InputError, match="no score that could be explained"):
        bert(TEXT, explain=True)
    with pytest.raises(pellucid.InputError, match="side is 'decoder', and this model is of kind 'encoder'"):
        bert(TEXT, side="decoder")
    with pytest.raises(pellucid.InputError, match="side is 'left'"):
        bert(TEXT, side="left")
    with pytest.raises(pellucid.InputError, match=r"is not trained \(all\)"):
        pellucid.pipeline("feature-extraction", tiny)

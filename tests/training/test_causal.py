"""Next-token training: predicted positions, packing without leaks, loss on answers only, and the reference's loss."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import pellucid
from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import InputError
from pellucid.training.causal import TextGeneration
from pellucid.training.data import read
from pellucid.training.learner import Learner
from pellucid.training.losses import IGNORED
from pellucid.training.objective import Example
from pellucid.training.sequence_packing import cut_chunks, pack_rows
from pellucid.training.settings import Settings
from tests.text.chat_templates import SMOLLM2

TEXTS = [
    "the dog came home late",
    "time flies like an arrow and fruit flies like a banana",
    "we met",
    "people want food",
]
ROWS = [{"text": text} for text in TEXTS]
STILL = Settings(precision="float32", dropout=0.0, attention_dropout=0.0)


@pytest.fixture
def gpt2(opened: Callable[..., pellucid.Model]) -> Loaded:
    return _still(opened("gpt2").loaded)


def _still(loaded: Loaded) -> Loaded:
    for part in loaded.module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return loaded


def _loss(loaded: Loaded, objective: TextGeneration, examples: list[Example]) -> tuple[torch.Tensor, float]:
    batch = objective.collate(loaded, examples, np.random.default_rng(0))
    learner = Learner(loaded, STILL)
    learner.seed_dropout(0, 0)
    return objective.loss(learner, batch), objective.weight(batch)


# -- predicted positions ----------------------------------------------------------------------------------------------


def test_each_token_but_the_first_is_said_once_by_the_one_before_it() -> None:
    pieces = list(cut_chunks(list(range(10, 21)), [True] * 11, 4))
    assert [piece.ids.tolist() for piece in pieces] == [[10, 11, 12, 13], [14, 15, 16, 17], [18, 19]]
    assert [piece.labels.tolist() for piece in pieces] == [[11, 12, 13, 14], [15, 16, 17, 18], [19, 20]]


@pytest.mark.parametrize("packing", ["documents", "stream", "none"])
def test_longer_rows_than_the_model_reads_are_refused_before_anything_is_read(gpt2: Loaded, packing: str) -> None:
    with pytest.raises(InputError, match="max_length is 321, and this model reads 320 tokens at once at most"):
        TextGeneration(packing=packing, max_length=321).examples(gpt2, ROWS)


@pytest.mark.parametrize("packing", ["documents", "none"])
def test_an_end_token_is_learned_behind_each_text(gpt2: Loaded, packing: str) -> None:
    objective = TextGeneration(packing=packing)
    assert gpt2.tokenizer is not None
    end = gpt2.tokenizer.eos_token_id
    asked: list[list[int]] = []
    for example in objective.examples(gpt2, ROWS):
        labels, segments = example.target
        asked += [labels[segments == number].tolist() for number in range(1, segments.max() + 1)]
    wanted = [[*row.ids, end][1:] for row in gpt2.tokenizer.encode(TEXTS)]
    assert sorted(asked) == sorted(wanted)


def test_texts_share_rows_that_are_nearly_full() -> None:
    sizes = np.random.default_rng(1).integers(1, 90, 400).tolist()
    rows = pack_rows(sizes, 128)
    assert sorted(i for row in rows for i in row) == list(range(400))
    held = [sum(sizes[i] for i in row) for row in rows]
    assert max(held) <= 128 and sum(sizes) / (128 * len(rows)) > 0.97


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_packed_texts_have_the_loss_that_they_have_alone(opened: Callable[..., pellucid.Model], name: str) -> None:
    loaded = _still(opened(name).loaded)
    packed, alone = TextGeneration(max_length=40), TextGeneration(packing="none", max_length=40)
    rows, lines = packed.examples(loaded, ROWS), alone.examples(loaded, ROWS)
    assert len(rows) < len(lines) == 4
    found, weight = _loss(loaded, packed, rows)
    wanted, same = _loss(loaded, alone, lines)
    assert weight == same == sum(len(line.target.labels) for line in lines)
    assert abs(float((found - wanted).detach())) < 1e-5 * float(wanted.detach())


def test_nothing_leaks_from_one_text_to_another(gpt2: Loaded) -> None:
    objective = TextGeneration(max_length=64)
    (row,) = objective.examples(gpt2, ROWS)
    batch = objective.collate(gpt2, [row], np.random.default_rng(0))
    changed = {**batch, "input_ids": batch["input_ids"].where(batch["segments"] != 2, 7)}
    learner = Learner(gpt2, STILL)
    states = []
    for given in (batch, changed):
        learner.seed_dropout(0, 0)
        states.append(learner.training_copy.states(input_ids=given["input_ids"], segments=given["segments"]).detach())
    others = batch["segments"] != 2
    assert torch.equal(states[0][others], states[1][others])
    assert not torch.equal(states[0][~others], states[1][~others])


def test_one_text_in_each_row_needs_no_mask(gpt2: Loaded) -> None:
    objective = TextGeneration(packing="none")
    batch = objective.collate(gpt2, objective.examples(gpt2, ROWS), np.random.default_rng(0))
    assert set(batch) == {"input_ids", "labels"}  # causal attention hides the padding that follows a text


# -- one long text ----------------------------------------------------------------------------------------------------


def test_a_stream_is_the_text_itself(gpt2: Loaded) -> None:
    objective = TextGeneration(packing="stream", max_length=7, random_starts=False)
    assert objective.ordered
    examples = objective.examples(gpt2, ROWS)
    assert gpt2.tokenizer is not None
    (whole,) = gpt2.tokenizer.encode(["\n".join(TEXTS)], add_special_tokens=False)
    parts = [objective.collate(gpt2, [example], np.random.default_rng(0)) for example in examples]
    assert [i for part in parts for i in part["input_ids"][0].tolist()] == whole.ids[:-1]
    assert [i for part in parts for i in part["labels"][0].tolist()] == whole.ids[1:]


def test_rows_of_a_stream_begin_elsewhere_each_time(gpt2: Loaded) -> None:
    objective = TextGeneration(packing="stream", max_length=9)
    examples = objective.examples(gpt2, [{"text": " ".join(TEXTS * 30)}])
    text = examples[0].target.text.tolist()
    seen = set()
    for seed in range(40):
        batch = objective.collate(gpt2, examples, np.random.default_rng(seed))
        assert batch["input_ids"].shape == (len(examples), 9)
        for ids, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist()):
            assert ids[1:] == labels[:-1]
        first = batch["input_ids"][3].tolist()
        places = [at for at in range(27, 36) if text[at : at + 9] == first]
        assert len(places) == 1  # the random shift is less than a row
        seen.add(places[0])
    assert seen == set(range(27, 36))
    again = objective.collate(gpt2, examples, np.random.default_rng(39))
    assert torch.equal(again["input_ids"], batch["input_ids"])


def test_between_the_rows_of_a_stream_may_stand_the_end_token(gpt2: Loaded) -> None:
    examples = TextGeneration(packing="stream", between=None, max_length=300).examples(gpt2, ROWS)
    assert gpt2.tokenizer is not None
    end = gpt2.tokenizer.eos_token_id
    wanted = [i for row in gpt2.tokenizer.encode(TEXTS, add_special_tokens=False) for i in [*row.ids, end]]
    assert examples[0].target.text.tolist() == wanted


def test_pieces_of_a_step_read_the_very_same_rows(gpt2: Loaded) -> None:
    objective = TextGeneration(packing="stream", max_length=9)
    examples = objective.examples(gpt2, [{"text": " ".join(TEXTS * 9)}])[:12]
    whole = objective.collate(gpt2, examples, np.random.default_rng((3, 9)))
    for i in range(4):
        part = objective.collate(gpt2, examples[i::4], np.random.default_rng((3, 9)))
        assert all(torch.equal(part[name], whole[name][i::4]) for name in part)


# -- loss on answers only ---------------------------------------------------------------------------------------------


def _learned(loaded: Loaded, rows: list[dict[str, Any]], **options: Any) -> list[str]:
    assert loaded.tokenizer is not None
    found = TextGeneration(packing="none", **options).examples(loaded, rows)
    return [loaded.tokenizer.decode([i for i in one.target.labels.tolist() if i != IGNORED]) for one in found]


def test_of_a_prompt_and_its_completion_the_completion_is_learned(gpt2: Loaded) -> None:
    assert gpt2.tokenizer is not None
    rows = [{"prompt": "the dog came", "completion": " home late"}, {"prompt": "", "completion": "we met"}]
    first, second = _learned(gpt2, rows)
    assert first == f" home late{gpt2.tokenizer.eos_token}"
    assert second.endswith(f"met{gpt2.tokenizer.eos_token}")  # nothing precedes its first token


TALK = [
    {"role": "user", "content": "Who wrote it?"},
    {"role": "assistant", "content": "She did."},
    {"role": "user", "content": "When?"},
    {"role": "assistant", "content": "Late."},
]


@pytest.fixture
def chat(opened: Callable[..., pellucid.Model]) -> Loaded:
    loaded = opened("qwen2-chat").loaded
    assert loaded.tokenizer is not None
    loaded.tokenizer.settings["chat_template"] = SMOLLM2
    return loaded


def test_of_a_conversation_the_answers_are_learned(chat: Loaded) -> None:
    assert _learned(chat, [{"messages": TALK}]) == ["She did.<|im_end|>\nLate.<|im_end|>\n"]


def test_a_template_that_forgets_gives_each_answer_a_row(chat: Loaded) -> None:
    assert chat.tokenizer is not None
    chat.tokenizer.settings["chat_template"] = (  # drops all answers but the last
        "{% for m in messages %}{% if m.role == 'user' or loop.last %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    assert _learned(chat, [{"messages": TALK}]) == ["She did.<|im_end|>\n", "Late.<|im_end|>\n"]


@pytest.mark.parametrize("answer", ["d", "end", "a"])
def test_a_short_answer_is_not_sought_in_the_marks_around_it(chat: Loaded, answer: str) -> None:
    assert chat.tokenizer is not None
    asks = "<|im_start|>assistant\n"
    chat.tokenizer.settings["chat_template"] = SMOLLM2.replace(asks, f"{asks}<think>\n")
    talk = [TALK[0], {"role": "assistant", "content": answer}]
    assert _learned(chat, [{"messages": talk}]) == [f"{answer}<|im_end|>\n"]
    assert _learned(chat, [{"messages": talk[1:]}]) == [f"{answer}<|im_end|>\n"]


def test_an_answer_that_is_too_long_is_cut_and_never_parted_from_its_question(
    chat: Loaded, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"prompt": "time flies", "completion": " like an arrow" * 9}]
    (example,) = TextGeneration(packing="none", max_length=12).examples(chat, rows)
    assert example.length == 12 and "1 text longer than 12 tokens: the rest was cut off" in caplog.text
    assert TextGeneration(packing="none", max_length=1).examples(chat, rows) == []
    assert "left out: 1 text without anything to learn" in caplog.text


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"texts": "a"}, r"row 0: no column 'text' \(did you mean texts\?\)"),
        ({"text": None, "source": "b"}, "row 0: 'text' is empty: fill it in, or leave the row out"),
        ({"prompt": "a"}, "row 0: no column 'completion'"),
        ({"text": 5}, "row 0: 'text' is int, expected a text"),
        ({"messages": [TALK[0]]}, "row 0: its messages hold no answer"),
        ({"messages": "hello"}, "^row 0: messages is 'hello'"),
        ({"messages": [{"role": "assistant"}]}, "^row 0: message 0 has the content None"),
        ({"messages": 5}, "^row 0: messages is 5"),
    ],
)
def test_bad_rows_are_named(chat: Loaded, row: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        TextGeneration().examples(chat, read([row]).rows)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"packing": "streams"}, r"did you mean stream\?"), ({"max_length": 0}, "max_length is 0")],
)
def test_bad_options_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        TextGeneration(**options)


def test_an_encoder_says_no_next_token(body: pellucid.Model) -> None:
    with pytest.raises(InputError, match="this model is of kind 'encoder'"):
        TextGeneration().head(body.loaded)


# -- losses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2-chat"])
def test_the_loss_is_the_reference_s(checkpoint: Callable[[str], Any], name: str) -> None:
    from transformers import AutoModelForCausalLM

    loaded = _still(pellucid.load(checkpoint(name)).loaded)
    objective = TextGeneration(packing="none")
    examples = objective.examples(loaded, ROWS)
    found, weight = _loss(loaded, objective, examples)
    (found / weight).backward()
    reference = AutoModelForCausalLM.from_pretrained(checkpoint(name)).eval()
    whole = [[*example.ids[0].tolist(), example.target.labels[-1]] for example in examples]  # type: ignore[union-attr]
    longest = max(map(len, whole))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in whole])
    labels = torch.tensor([row + [IGNORED] * (longest - len(row)) for row in whole])
    wanted = reference(input_ids=ids, labels=labels).loss
    wanted.backward()
    assert abs(float((found / weight - wanted).detach())) < 1e-6 * float(wanted.detach())
    ours = loaded.module.embeddings.token.weight.grad
    theirs = reference.get_input_embeddings().weight.grad
    assert ours is not None and float((ours - theirs).abs().max()) < 1e-5 * float(theirs.abs().max())


def test_the_score_is_the_mean_over_all_tokens(gpt2: Loaded) -> None:
    objective = TextGeneration(max_length=20)
    examples = objective.examples(gpt2, ROWS)
    found = objective.score(gpt2, examples)
    loss, weight = _loss(gpt2, objective, examples)
    assert math.isclose(found["loss"], float(loss.detach()) / weight, rel_tol=1e-5)
    assert math.isclose(found["perplexity"], math.exp(found["loss"]))
    with pytest.raises(InputError, match="have no token to predict"):
        objective.score(gpt2, [])


def test_a_decoder_learns_characters_from_scratch_and_writes_them(tmp_path: Any) -> None:
    text = "abcdefgh" * 60
    words = pellucid.train_tokenizer(texts=[text], kind="characters")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = pellucid.Config.of(
        "llama", vocab_size=len(words), bos_token_id=None, eos_token_id=None, tie_word_embeddings=True, **sizes
    )
    model = pellucid.build(config, tokenizer=words)
    told: dict[str, Any] = {"packing": "stream", "max_length": 16, "batch_size": 8, "max_steps": 150, "warmup": 10}
    made = pellucid.train(
        model, {"text": [text]}, "text-generation", learning_rate=1e-2, out=tmp_path / "out",
        validation={"text": [text[:50]]}, seed=1, **told,
    )  # fmt: skip
    found = pellucid.load(tmp_path / "out")
    assert found.generate("cde", max_new_tokens=10, do_sample=False) == "fghabcdefg"
    assert made.generate("cde", max_new_tokens=10, do_sample=False) == "fghabcdefg"
    ids = torch.tensor([found.tokenizer.encode([text[:41]])[0].ids])  # type: ignore[union-attr]
    loss = functional.cross_entropy(found(ids).logits[0, 10:-1], ids[0, 11:])
    assert float(loss.detach()) < 0.1

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
NO_DROPOUT = Settings(precision="float32", dropout=0.0, attention_dropout=0.0)


@pytest.fixture
def gpt2(load_tiny: Callable[..., pellucid.Model]) -> Loaded:
    return _without_dropout(load_tiny("gpt2").loaded)


def _without_dropout(loaded: Loaded) -> Loaded:
    for part in loaded.module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return loaded


def _loss(loaded: Loaded, objective: TextGeneration, examples: list[Example]) -> tuple[torch.Tensor, float]:
    batch = objective.collate(loaded, examples, np.random.default_rng(0))
    learner = Learner(loaded, NO_DROPOUT)
    learner.seed_dropout(0, 0)
    return objective.loss(learner, batch), objective.weight(batch)


# -- predicted positions ----------------------------------------------------------------------------------------------


def test_each_token_after_the_first_is_predicted_once() -> None:
    pieces = list(cut_chunks(list(range(10, 21)), [True] * 11, 4))
    assert [piece.ids.tolist() for piece in pieces] == [[10, 11, 12, 13], [14, 15, 16, 17], [18, 19]]
    assert [piece.labels.tolist() for piece in pieces] == [[11, 12, 13, 14], [15, 16, 17, 18], [19, 20]]


@pytest.mark.parametrize("packing", ["documents", "stream", "none"])
def test_max_length_above_the_model_s_limit_is_refused(gpt2: Loaded, packing: str) -> None:
    with pytest.raises(InputError, match="max_length is 321, and this model reads 320 tokens at once at most"):
        TextGeneration(packing=packing, max_length=321).examples(gpt2, ROWS)


@pytest.mark.parametrize("packing", ["documents", "none"])
def test_end_token_is_predicted_after_each_text(gpt2: Loaded, packing: str) -> None:
    objective = TextGeneration(packing=packing)
    assert gpt2.tokenizer is not None
    end = gpt2.tokenizer.eos_token_id
    predicted: list[list[int]] = []
    for example in objective.examples(gpt2, ROWS):
        labels, segments = example.target
        predicted += [labels[segments == number].tolist() for number in range(1, segments.max() + 1)]
    expected = [[*row.ids, end][1:] for row in gpt2.tokenizer.encode(TEXTS)]
    assert sorted(predicted) == sorted(expected)


def test_packing_fills_rows_almost_completely() -> None:
    sizes = np.random.default_rng(1).integers(1, 90, 400).tolist()
    rows = pack_rows(sizes, 128)
    assert sorted(i for row in rows for i in row) == list(range(400))
    lengths = [sum(sizes[i] for i in row) for row in rows]
    assert max(lengths) <= 128 and sum(sizes) / (128 * len(rows)) > 0.97


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_packed_texts_have_the_same_loss_as_separate_ones(load_tiny: Callable[..., pellucid.Model], name: str) -> None:
    loaded = _without_dropout(load_tiny(name).loaded)
    packed, separate = TextGeneration(max_length=40), TextGeneration(packing="none", max_length=40)
    rows, lines = packed.examples(loaded, ROWS), separate.examples(loaded, ROWS)
    assert len(rows) < len(lines) == 4
    found, weight = _loss(loaded, packed, rows)
    expected, expected_weight = _loss(loaded, separate, lines)
    assert weight == expected_weight == sum(len(line.target.labels) for line in lines)
    assert abs(float((found - expected).detach())) < 1e-5 * float(expected.detach())


def test_packed_texts_do_not_attend_to_each_other(gpt2: Loaded) -> None:
    objective = TextGeneration(max_length=64)
    (row,) = objective.examples(gpt2, ROWS)
    batch = objective.collate(gpt2, [row], np.random.default_rng(0))
    changed = {**batch, "input_ids": batch["input_ids"].where(batch["segments"] != 2, 7)}
    learner = Learner(gpt2, NO_DROPOUT)
    states = []
    for inputs in (batch, changed):
        learner.seed_dropout(0, 0)
        states.append(learner.training_copy.states(input_ids=inputs["input_ids"], segments=inputs["segments"]).detach())
    unchanged = batch["segments"] != 2
    assert torch.equal(states[0][unchanged], states[1][unchanged])
    assert not torch.equal(states[0][~unchanged], states[1][~unchanged])


def test_unpacked_batch_has_no_attention_mask(gpt2: Loaded) -> None:
    objective = TextGeneration(packing="none")
    batch = objective.collate(gpt2, objective.examples(gpt2, ROWS), np.random.default_rng(0))
    assert set(batch) == {"input_ids", "labels"}  # causal attention hides the padding that follows a text


# -- one long text ----------------------------------------------------------------------------------------------------


def test_stream_rows_join_to_the_whole_text(gpt2: Loaded) -> None:
    objective = TextGeneration(packing="stream", max_length=7, random_starts=False)
    assert objective.ordered
    examples = objective.examples(gpt2, ROWS)
    assert gpt2.tokenizer is not None
    (whole,) = gpt2.tokenizer.encode(["\n".join(TEXTS)], add_special_tokens=False)
    parts = [objective.collate(gpt2, [example], np.random.default_rng(0)) for example in examples]
    assert [i for part in parts for i in part["input_ids"][0].tolist()] == whole.ids[:-1]
    assert [i for part in parts for i in part["labels"][0].tolist()] == whole.ids[1:]


def test_stream_rows_start_at_random_positions(gpt2: Loaded) -> None:
    objective = TextGeneration(packing="stream", max_length=9)
    examples = objective.examples(gpt2, [{"text": " ".join(TEXTS * 30)}])
    text = examples[0].target.text.tolist()
    starts = set()
    for seed in range(40):
        batch = objective.collate(gpt2, examples, np.random.default_rng(seed))
        assert batch["input_ids"].shape == (len(examples), 9)
        for ids, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist()):
            assert ids[1:] == labels[:-1]
        first = batch["input_ids"][3].tolist()
        positions = [position for position in range(27, 36) if text[position : position + 9] == first]
        assert len(positions) == 1  # the random shift is less than a row
        starts.add(positions[0])
    assert starts == set(range(27, 36))
    repeated = objective.collate(gpt2, examples, np.random.default_rng(39))
    assert torch.equal(repeated["input_ids"], batch["input_ids"])


def test_texts_of_a_stream_can_be_separated_by_the_end_token(gpt2: Loaded) -> None:
    examples = TextGeneration(packing="stream", between=None, max_length=300).examples(gpt2, ROWS)
    assert gpt2.tokenizer is not None
    end = gpt2.tokenizer.eos_token_id
    expected = [i for row in gpt2.tokenizer.encode(TEXTS, add_special_tokens=False) for i in [*row.ids, end]]
    assert examples[0].target.text.tolist() == expected


def test_micro_batches_read_the_same_rows_as_the_whole_batch(gpt2: Loaded) -> None:
    objective = TextGeneration(packing="stream", max_length=9)
    examples = objective.examples(gpt2, [{"text": " ".join(TEXTS * 9)}])[:12]
    whole = objective.collate(gpt2, examples, np.random.default_rng((3, 9)))
    for i in range(4):
        part = objective.collate(gpt2, examples[i::4], np.random.default_rng((3, 9)))
        assert all(torch.equal(part[name], whole[name][i::4]) for name in part)


# -- loss on answers only ---------------------------------------------------------------------------------------------


def _predicted_texts(loaded: Loaded, rows: list[dict[str, Any]], **options: Any) -> list[str]:
    assert loaded.tokenizer is not None
    found = TextGeneration(packing="none", **options).examples(loaded, rows)
    return [loaded.tokenizer.decode([i for i in example.target.labels.tolist() if i != IGNORED]) for example in found]


def test_only_completions_are_predicted(gpt2: Loaded) -> None:
    assert gpt2.tokenizer is not None
    rows = [{"prompt": "the dog came", "completion": " home late"}, {"prompt": "", "completion": "we met"}]
    first, second = _predicted_texts(gpt2, rows)
    assert first == f" home late{gpt2.tokenizer.eos_token}"
    assert second.endswith(f"met{gpt2.tokenizer.eos_token}")  # nothing precedes its first token


CONVERSATION = [
    {"role": "user", "content": "Who wrote it?"},
    {"role": "assistant", "content": "She did."},
    {"role": "user", "content": "When?"},
    {"role": "assistant", "content": "Late."},
]


@pytest.fixture
def chat(load_tiny: Callable[..., pellucid.Model]) -> Loaded:
    loaded = load_tiny("qwen2-chat").loaded
    assert loaded.tokenizer is not None
    loaded.tokenizer.settings["chat_template"] = SMOLLM2
    return loaded


def test_only_the_assistant_s_messages_are_predicted(chat: Loaded) -> None:
    assert _predicted_texts(chat, [{"messages": CONVERSATION}]) == ["She did.<|im_end|>\nLate.<|im_end|>\n"]


def test_template_that_drops_earlier_answers_gives_one_row_per_answer(chat: Loaded) -> None:
    assert chat.tokenizer is not None
    chat.tokenizer.settings["chat_template"] = (  # drops all answers but the last
        "{% for m in messages %}{% if m.role == 'user' or loop.last %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    assert _predicted_texts(chat, [{"messages": CONVERSATION}]) == ["She did.<|im_end|>\n", "Late.<|im_end|>\n"]


@pytest.mark.parametrize("answer", ["d", "end", "a"])
def test_short_answer_is_not_confused_with_template_text(chat: Loaded, answer: str) -> None:
    assert chat.tokenizer is not None
    header = "<|im_start|>assistant\n"
    chat.tokenizer.settings["chat_template"] = SMOLLM2.replace(header, f"{header}<think>\n")
    conversation = [CONVERSATION[0], {"role": "assistant", "content": answer}]
    assert _predicted_texts(chat, [{"messages": conversation}]) == [f"{answer}<|im_end|>\n"]
    assert _predicted_texts(chat, [{"messages": conversation[1:]}]) == [f"{answer}<|im_end|>\n"]


def test_long_answer_is_cut_at_the_end_of_its_row(chat: Loaded, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"prompt": "time flies", "completion": " like an arrow" * 9}]
    (example,) = TextGeneration(packing="none", max_length=12).examples(chat, rows)
    assert example.length == 12 and "1 text longer than 12 tokens: the rest was cut off" in caplog.text
    assert TextGeneration(packing="none", max_length=1).examples(chat, rows) == []
    assert "left out: 1 text without anything to learn" in caplog.text


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"texts": "a"}, r"row 0: no column 'text' \(did you mean texts\?\)"),
        ({"text": None, "source": "b"}, "row 0: 'text' is empty: fill it in, or leave the row out"),
        ({"prompt": "a"}, "row 0: no column 'completion'"),
        ({"text": 5}, "row 0: 'text' is int, expected a text"),
        ({"messages": [CONVERSATION[0]]}, "row 0: its messages hold no answer"),
        ({"messages": "hello"}, "^row 0: messages is 'hello'"),
        ({"messages": [{"role": "assistant"}]}, "^row 0: message 0 has the content None"),
        ({"messages": 5}, "^row 0: messages is 5"),
    ],
)
def test_invalid_rows_are_refused_by_number(chat: Loaded, row: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TextGeneration().examples(chat, read([row]).rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"packing": "streams"}, r"did you mean stream\?"), ({"max_length": 0}, "max_length is 0")],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TextGeneration(**options)


def test_encoder_is_refused(body: pellucid.Model) -> None:
    with pytest.raises(InputError, match="this model is of kind 'encoder'"):
        TextGeneration().head(body.loaded)


# -- losses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2-chat"])
def test_loss_equals_the_reference_s(checkpoint: Callable[[str], Any], name: str) -> None:
    from transformers import AutoModelForCausalLM

    loaded = _without_dropout(pellucid.load(checkpoint(name)).loaded)
    objective = TextGeneration(packing="none")
    examples = objective.examples(loaded, ROWS)
    found, weight = _loss(loaded, objective, examples)
    (found / weight).backward()
    reference = AutoModelForCausalLM.from_pretrained(checkpoint(name)).eval()
    whole = [[*example.ids[0].tolist(), example.target.labels[-1]] for example in examples]  # type: ignore[union-attr]
    longest = max(map(len, whole))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in whole])
    labels = torch.tensor([row + [IGNORED] * (longest - len(row)) for row in whole])
    expected = reference(input_ids=ids, labels=labels).loss
    expected.backward()
    assert abs(float((found / weight - expected).detach())) < 1e-6 * float(expected.detach())
    ours = loaded.module.embeddings.token.weight.grad
    theirs = reference.get_input_embeddings().weight.grad
    assert ours is not None and float((ours - theirs).abs().max()) < 1e-5 * float(theirs.abs().max())


def test_score_is_the_mean_over_all_tokens(gpt2: Loaded) -> None:
    objective = TextGeneration(max_length=20)
    examples = objective.examples(gpt2, ROWS)
    found = objective.score(gpt2, examples)
    loss, weight = _loss(gpt2, objective, examples)
    assert math.isclose(found["loss"], float(loss.detach()) / weight, rel_tol=1e-5)
    assert math.isclose(found["perplexity"], math.exp(found["loss"]))
    with pytest.raises(InputError, match="have no token to predict"):
        objective.score(gpt2, [])


def test_decoder_trained_from_scratch_generates_the_sequence(tmp_path: Any) -> None:
    text = "abcdefgh" * 60
    tokenizer = pellucid.train_tokenizer(texts=[text], kind="characters")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = pellucid.Config.of(
        "llama", vocab_size=len(tokenizer), bos_token_id=None, eos_token_id=None, tie_word_embeddings=True, **sizes
    )
    model = pellucid.build(config, tokenizer=tokenizer)
    settings: dict[str, Any] = {"packing": "stream", "max_length": 16, "batch_size": 8, "max_steps": 150, "warmup": 10}
    trained = pellucid.train(
        model, {"text": [text]}, "text-generation", learning_rate=1e-2, out=tmp_path / "out",
        validation={"text": [text[:50]]}, seed=1, **settings,
    )  # fmt: skip
    reloaded = pellucid.load(tmp_path / "out")
    assert reloaded.generate("cde", max_new_tokens=10, do_sample=False) == "fghabcdefg"
    assert trained.generate("cde", max_new_tokens=10, do_sample=False) == "fghabcdefg"
    ids = torch.tensor([reloaded.tokenizer.encode([text[:41]])[0].ids])  # type: ignore[union-attr]
    loss = functional.cross_entropy(reloaded(ids).logits[0, 10:-1], ids[0, 11:])
    assert float(loss.detach()) < 0.1

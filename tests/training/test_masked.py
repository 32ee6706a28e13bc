"""Masked training: how many tokens are hidden, which, what replaces them, and the reference's loss for the same."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import pellucid
from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import InputError
from pellucid.training.data import read
from pellucid.training.learner import Learner
from pellucid.training.losses import IGNORED, vocabulary_loss
from pellucid.training.masked import FillMask
from pellucid.training.objective import Example
from pellucid.training.settings import Settings
from tests.tasks.planted_facts import WORDS

NO_DROPOUT = Settings(precision="float32", dropout=0.0, attention_dropout=0.0)
TEXTS = [" ".join(WORDS[i : i + 5 + i % 9]) for i in range(0, 60, 3)]
ROWS = [{"text": text} for text in TEXTS]


@pytest.fixture
def bert(load_tiny: Callable[..., pellucid.Model]) -> Loaded:
    return _without_dropout(load_tiny("bert-filler").loaded)


def _without_dropout(loaded: Loaded) -> Loaded:
    for part in loaded.module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return loaded


def _masked_draws(
    loaded: Loaded, objective: FillMask, examples: list[Example], draws: int = 400
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Over many draws: the token ids, their word numbers, the ids that replace them, and the labels."""
    generator = np.random.default_rng(7)
    ids, words, inputs, labels = [], [], [], []
    for _ in range(draws):
        for example in examples:
            ids.append(np.asarray(example.ids[0]))
            words.append(example.target.words)
            drawn = objective.mask_tokens(loaded, example, generator)
            inputs.append(drawn[0])
            labels.append(drawn[1])
    return tuple(map(np.concatenate, (ids, words, inputs, labels)))  # type: ignore[return-value]


# -- hidden tokens ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "mask", "other", "whole_words"), [(0.15, 0.8, 0.1, False), (0.4, 0.5, 0.3, False), (0.15, 0.8, 0.1, True)]
)
def test_mask_shares_equal_the_settings(
    bert: Loaded, share: float, mask: float, other: float, whole_words: bool
) -> None:
    objective = FillMask(
        mlm_probability=share, mask_replace_prob=mask, random_replace_prob=other, whole_word_mask=whole_words
    )
    ids, words, inputs, labels = _masked_draws(bert, objective, objective.examples(bert, ROWS))
    assert bert.tokenizer is not None
    selected = labels != IGNORED
    assert not selected[words < 0].any()  # special tokens are never hidden
    assert (inputs[~selected] == ids[~selected]).all() and (labels[selected] == ids[selected]).all()
    count = int((words >= 0).sum())
    if not whole_words:  # the tokens of a word are drawn together, so they are not independent
        assert (
            stats.chisquare([selected.sum(), count - selected.sum()], [share * count, (1 - share) * count]).pvalue
            > 1e-4
        )
    masks = int((inputs[selected] == bert.tokenizer.mask_token_id).sum())
    unchanged = int((inputs[selected] == ids[selected]).sum())
    hidden = int(selected.sum())
    ordinary = 600 - len(bert.tokenizer.special_ids)
    equal_by_chance = other / ordinary  # a random token is sometimes the same one
    expected = [mask * hidden, (1 - mask - other + equal_by_chance) * hidden, (other - equal_by_chance) * hidden]
    assert stats.chisquare([masks, unchanged, hidden - masks - unchanged], expected).pvalue > 1e-4


def test_random_replacements_are_uniform_over_ordinary_tokens(bert: Loaded) -> None:
    objective = FillMask(mlm_probability=1.0, mask_replace_prob=0.0, random_replace_prob=1.0)
    _, words, inputs, _ = _masked_draws(bert, objective, objective.examples(bert, ROWS), draws=300)
    assert bert.tokenizer is not None
    counts = np.bincount(inputs[words >= 0], minlength=600)
    special = sorted(bert.tokenizer.special_ids)
    assert counts[special].sum() == 0
    assert stats.chisquare(np.delete(counts, special)).pvalue > 1e-4


def test_chi_square_test_detects_a_wrong_share() -> None:
    generator = np.random.default_rng(0)
    found = int((generator.random(40_000) < 0.16).sum())
    assert stats.chisquare([found, 40_000 - found], [6_000, 34_000]).pvalue < 1e-4


def test_whole_word_mask_masks_all_tokens_of_a_word(bert: Loaded) -> None:
    objective = FillMask(whole_word_mask=True, mlm_probability=0.3)
    examples = objective.examples(bert, [{"text": "Eiffelturm antidisestablishment walk Siemens unbelievably"}])
    (example,) = examples
    generator, split = np.random.default_rng(3), 0
    words = example.target.words
    assert max(np.bincount(words[words >= 0])) > 1  # some words are several tokens
    for _ in range(200):
        _, labels = objective.mask_tokens(bert, example, generator)
        _, single = FillMask(mlm_probability=0.3).mask_tokens(bert, example, generator)
        for word in set(words[words >= 0].tolist()):
            assert len(set((labels[words == word] != IGNORED).tolist())) == 1
            split += len(set((single[words == word] != IGNORED).tolist())) > 1
    assert split  # without the option, words are split


def test_masks_depend_on_the_seed_of_the_step(bert: Loaded) -> None:
    objective = FillMask()
    examples = objective.examples(bert, ROWS)
    first, repeated, other = (objective.collate(bert, examples, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], repeated[name]) for name in first)
    assert not torch.equal(first["labels"], other["labels"])
    assert objective.weight(first) == int((first["labels"] != IGNORED).sum())


# -- rows -------------------------------------------------------------------------------------------------------------


def test_long_texts_are_split_into_rows(bert: Loaded) -> None:
    long = " ".join(WORDS)
    examples = FillMask(max_length=20).examples(bert, [{"text": long}])
    assert len(examples) > 3 and max(example.length for example in examples) <= 20
    assert bert.tokenizer is not None
    (whole,) = bert.tokenizer.encode([long], add_special_tokens=False)
    assert [i for example in examples for i in np.asarray(example.ids[0])[example.target.words >= 0]] == whole.ids


def test_text_with_too_many_characters_is_refused_by_line(
    bert: Loaded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("pellucid.text.truncation.MAX_CHARACTERS", 20)
    (tmp_path / "a.txt").write_text("a dog\nthe dog of the house of the people\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"^a\.txt, line 2 has 34 characters, expected at most 20"):
        FillMask().examples(bert, read(tmp_path / "a.txt").rows)


def test_empty_texts_are_left_out(bert: Loaded, caplog: pytest.LogCaptureFixture) -> None:
    assert len(FillMask().examples(bert, [{"text": "we met"}, {"text": " "}, {"text": ""}])) == 1
    assert "left out: 2 texts without anything to learn" in caplog.text
    with pytest.raises(InputError, match="row 1: no column 'text'"):
        FillMask().examples(bert, read([{"text": "we met"}, {"words": "we met"}]).rows)


def test_stream_packing_fills_all_rows(bert: Loaded) -> None:
    examples = FillMask(packing="stream", max_length=24).examples(bert, ROWS)
    assert bert.tokenizer is not None
    first, last = bert.tokenizer.cls_token_id, bert.tokenizer.sep_token_id
    assert all(example.length == 24 for example in examples[:-1])
    assert all((example.ids[0][0], example.ids[0][-1]) == (first, last) for example in examples)
    found = [int(i) for example in examples for i in example.ids[0][1:-1]]
    texts = bert.tokenizer.encode(TEXTS, add_special_tokens=False)
    assert found == [i for text in texts for i in [*text.ids, last]]
    hidden = [example.target.words[np.isin(example.ids[0], [first, last])] for example in examples]
    assert all((words == -1).all() for words in hidden)


def test_packed_texts_do_not_attend_to_each_other(bert: Loaded) -> None:
    packed, separate = FillMask(packing="documents", max_length=60), FillMask(max_length=60)
    rows, lines = packed.examples(bert, ROWS), separate.examples(bert, ROWS)
    assert len(rows) < len(lines)
    batch = packed.collate(bert, rows, np.random.default_rng(0))
    assert set(batch) == {"input_ids", "token_type_ids", "labels", "segments"}
    states = bert.module.states(batch["input_ids"], None, batch["token_type_ids"], segments=batch["segments"])
    for row, (ids, segments) in enumerate(zip(batch["input_ids"], batch["segments"])):
        for number in range(1, int(segments.max()) + 1):
            positions = segments == number
            expected = bert.module.states(ids[positions][None])
            assert float((states[row, positions] - expected[0]).detach().abs().max()) < 1e-5


# -- losses -----------------------------------------------------------------------------------------------------------


def _loss(loaded: Loaded, objective: FillMask, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    learner = Learner(loaded, NO_DROPOUT)
    learner.seed_dropout(0, 0)
    return objective.loss(learner, batch) / objective.weight(batch)


@pytest.mark.parametrize("name", ["bert", "distilbert", "roberta", "albert", "mpnet"])
def test_loss_for_the_same_masks_equals_the_reference_s(checkpoint: Callable[[str], Any], name: str) -> None:
    from transformers import AutoModelForMaskedLM

    folder = checkpoint(f"{name}-filler")
    loaded, objective = _without_dropout(pellucid.load(folder).loaded), FillMask()
    batch = objective.collate(loaded, objective.examples(loaded, ROWS), np.random.default_rng(0))
    found = _loss(loaded, objective, batch)
    found.backward()
    reference = AutoModelForMaskedLM.from_pretrained(folder).eval()
    expected = reference(**batch).loss
    expected.backward()
    assert abs(float((found - expected).detach())) < 1e-6 * float(expected.detach())
    ours, theirs = loaded.module.embeddings.token.weight.grad, reference.get_input_embeddings().weight.grad
    assert ours is not None and float((ours - theirs).abs().max()) < 1e-5 * float(theirs.abs().max())


def test_float64_loss_equals_the_reference_s_to_1e_9(bert: Loaded, checkpoint: Callable[[str], Any]) -> None:
    from transformers import AutoModelForMaskedLM

    objective = FillMask()
    batch = objective.collate(bert, objective.examples(bert, ROWS), np.random.default_rng(0))
    module: Any = bert.module.double()
    selected = batch["labels"] != IGNORED
    states = module.states(**{name: tensor for name, tensor in batch.items() if name != "labels"})[selected]
    total = vocabulary_loss(module.head.features(states), *module.head.output_embedding, batch["labels"][selected])
    found = total / int(selected.sum())
    reference = AutoModelForMaskedLM.from_pretrained(checkpoint("bert-filler")).eval().double()
    expected = reference(**batch).loss
    assert found.dtype == torch.float64
    assert abs(float((found - expected).detach())) < 1e-9


def test_max_length_above_the_model_s_limit_is_refused(bert: Loaded) -> None:
    with pytest.raises(InputError, match="max_length is 99, and this model reads 98 tokens at once at most"):
        FillMask(max_length=99).examples(bert, ROWS)


def test_held_out_rows_without_masks_are_refused_before_training(
    load_tiny: Callable[..., pellucid.Model], tmp_path: Path
) -> None:
    settings = {"out": tmp_path / "new", "max_steps": 1, "mlm_probability": 0.01, "progress": False}
    with pytest.raises(
        InputError, match=r"^the held-out examples have no token to predict: give more of them, or longer ones"
    ):
        pellucid.train(load_tiny("bert-body"), ROWS, "fill-mask", validation=[{"text": "film"}], **settings)
    assert not list(tmp_path.rglob("log.jsonl"))
    pellucid.train(load_tiny("bert-body"), ROWS, "fill-mask", validation=ROWS * 9, **settings)
    assert (tmp_path / "new" / "log.jsonl").read_text()


def test_score_uses_the_same_masks_each_time(bert: Loaded) -> None:
    objective = FillMask()
    examples = objective.examples(bert, ROWS)
    first = objective.score(bert, examples)
    assert first == objective.score(bert, examples)
    assert first != FillMask(score_seed=1).score(bert, examples)
    assert math.isclose(first["perplexity"], math.exp(first["loss"])) and 0 <= first["accuracy"] <= 1


def test_score_applies_edits_of_the_model(bert: Loaded) -> None:
    objective = FillMask()
    examples = objective.examples(bert, ROWS)
    with pellucid.Model(bert).edit({"logits": lambda logits: 0 * logits}) as edited:
        found = objective.score(edited.loaded, examples)
    assert math.isclose(found["perplexity"], bert.config.vocab_size, rel_tol=1e-5)


def test_accumulation_does_not_change_the_training(scratch: pellucid.Model) -> None:
    settings: dict[str, Any] = {"batch_size": 8, "max_steps": 4, "precision": "float32", "validation": 0}
    whole, accumulated = (
        pellucid.train(scratch, ROWS, "fill-mask", accumulation=count, **settings) for count in (1, 4)
    )
    for found, expected in zip(accumulated.parameters(), whole.parameters()):
        assert float((found - expected).detach().abs().max()) < 1e-6


def test_trained_model_predicts_the_masked_words(scratch: pellucid.Model) -> None:
    rows = [{"text": "people love good music"}, {"text": "we found little water today"}] * 20
    settings: dict[str, Any] = {"learning_rate": 1e-2, "batch_size": 20, "max_steps": 120, "warmup": 10}
    trained = pellucid.train(scratch, rows, "fill-mask", validation=rows, **settings)
    fill = pellucid.pipeline("fill-mask", trained)
    assert fill("people love good [MASK]")[0]["token_str"] == "music"
    assert fill("we found little [MASK] today")[0]["token_str"] == "water"


def test_micro_batches_use_the_masks_of_the_whole_batch(bert: Loaded) -> None:
    objective = FillMask()
    examples = objective.examples(bert, ROWS)
    whole = objective.collate(bert, examples, np.random.default_rng((3, 9)))
    parts = [objective.collate(bert, examples[i::3], np.random.default_rng((3, 9))) for i in range(3)]
    assert sum(map(objective.weight, parts)) == objective.weight(whole)
    learner = Learner(bert, NO_DROPOUT)
    learner.seed_dropout(0, 0)
    expected = objective.loss(learner, whole)
    found = sum(objective.loss(learner, part) for part in parts)
    assert abs(float((found - expected).detach())) < 1e-6 * float(expected.detach())


def test_loss_against_an_identical_teacher_is_zero(bert: Loaded) -> None:
    objective = FillMask(teacher=bert, teacher_share=1.0, temperature=1.0)
    batch = objective.collate(bert, objective.examples(bert, ROWS), np.random.default_rng(0))
    assert abs(float(_loss(bert, objective, batch).detach())) < 1e-5
    mixed = FillMask(teacher=bert, teacher_share=0.5)
    label_loss = _loss(bert, FillMask(), batch)
    assert abs(float((2 * _loss(bert, mixed, batch) / label_loss).detach()) - 1) < 1e-5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask_replace_prob": 0.9, "random_replace_prob": 0.2}, "1.1 together, expected at most 1"),
        ({"mlm_probability": 0.0}, "mlm_probability is 0.0"),
        ({"mask_replace_prob": -0.1}, "mask_replace_prob is -0.1"),
        ({"packing": "stram"}, r"did you mean stream\?"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FillMask(**options)


def test_decoder_is_refused(load_tiny: Callable[..., pellucid.Model]) -> None:
    with pytest.raises(InputError, match="this model is of kind 'decoder'"):
        FillMask().head(load_tiny("gpt2").loaded)

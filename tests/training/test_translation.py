"""Sequence to sequence: inputs and targets, the loss beside the reference's, and generated texts."""

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import pellucid
from pellucid.checkpoints.loaded import Loaded
from pellucid.config import SequenceToSequenceLM
from pellucid.errors import InputError
from pellucid.tasks.task import Work
from pellucid.tasks.task_settings import prefix_of
from pellucid.tasks.writing import Translation as TranslationPipeline
from pellucid.text.tokenizer_training import train_tokenizer
from pellucid.training.data import read
from pellucid.training.learner import Learner
from pellucid.training.losses import IGNORED
from pellucid.training.names import objective_named
from pellucid.training.settings import Settings
from pellucid.training.start import model_for_training
from pellucid.training.writing import TextToText, Translation
from tests.parity.reference import in_full

LoadTiny = Callable[..., "pellucid.Model"]

ROWS = [
    {"text": "The dog saw a house.", "target": "A good day!"},
    {"text": "Yes", "target": "The film was very bad, and the people went home."},
    {"text": "the people of the city hate this film", "target": "no"},
]
SPECIAL_TOKENS = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}


class PlainLearner:
    """The plain module as a learner without dropout, in its own dtype."""

    def __init__(self, loaded: Loaded) -> None:
        self.module = loaded.module
        self.dtype = next(loaded.module.parameters()).dtype

    def before_head(self, **batch: Any) -> Tensor:
        return self.module.before_head(**{name: one for name, one in batch.items() if name != "labels"})

    def features(self, stream: Tensor) -> Tensor:
        return self.module.head.features(stream)


def batch_of(loaded: Loaded, objective: TextToText, rows: Any = ROWS) -> dict[str, Tensor]:
    return objective.collate(loaded, objective.examples(loaded, rows), np.random.default_rng(0))


def mean_loss(loaded: Loaded, objective: TextToText, rows: Any = ROWS) -> Tensor:
    batch = batch_of(loaded, objective, rows)
    learner: Any = PlainLearner(loaded)
    return objective.loss(learner, batch) / objective.weight(batch)


# -- against the reference --------------------------------------------------------------------------------------------


def load_reference(folder: Path) -> tuple[Any, Any]:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float64).eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def reference_batch(tokenizer: Any, rows: Any = ROWS, prefix: str = "") -> dict[str, Tensor]:
    """A batch as a collator of the reference makes it."""
    sources = tokenizer([prefix + row["text"] for row in rows], padding=True, return_tensors="pt")
    targets = tokenizer([row["target"] for row in rows], padding=True, return_tensors="pt")
    labels = targets.input_ids.masked_fill(targets.attention_mask == 0, IGNORED)
    return {"input_ids": sources.input_ids, "attention_mask": sources.attention_mask, "labels": labels}


@pytest.mark.parametrize("name", ["bart", "t5-tied", "t5-gated"])
def test_loss_and_gradients_equal_the_reference_s(checkpoint: Callable[[str], Path], name: str) -> None:
    theirs, tokenizer = load_reference(checkpoint(name))
    ours = pellucid.load(checkpoint(name), dtype="float64").loaded
    batch = reference_batch(tokenizer)
    with in_full():
        expected = theirs(**batch).loss
    expected.backward()
    our_batch = batch_of(ours, TextToText())
    assert torch.equal(our_batch["input_ids"], batch["input_ids"])
    assert torch.equal(our_batch["labels"], batch["labels"])
    found = mean_loss(ours, TextToText())
    found.backward()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    table = ours.module.encoder.embeddings.token.weight.grad
    torch.testing.assert_close(table, theirs.get_input_embeddings().weight.grad, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["bart", "bart-body"])
def test_logits_bias_stays_fixed_as_in_the_reference(checkpoint: Callable[[str], Path], name: str) -> None:
    settings: dict[str, Any] = {"generate": False, "validation": 0, "max_steps": 2, "learning_rate": 0.1, "warmup": 0}
    base = pellucid.load(checkpoint(name)).loaded
    trained = pellucid.train(checkpoint(name), ROWS, "translation", progress=False, **settings).loaded
    bias = dict(trained.module.named_parameters())["head.bias"]
    before = base.module.state_dict().get("head.bias", torch.zeros_like(bias))
    assert torch.equal(bias.detach(), before)
    theirs, _ = load_reference(checkpoint("bart"))
    assert sum(p.requires_grad for p in trained.module.parameters()) == len(list(theirs.parameters()))


@pytest.mark.parametrize("name", ["bart", "t5-tied"])
def test_decoder_inputs_are_shifted_as_in_the_reference(checkpoint: Callable[[str], Path], name: str) -> None:
    theirs, tokenizer = load_reference(checkpoint(name))
    batch = reference_batch(tokenizer)
    expected = theirs.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
    our_batch = batch_of(pellucid.load(checkpoint(name)).loaded, TextToText())
    assert torch.equal(our_batch["decoder_input_ids"], expected)


def test_training_uses_the_start_token_of_generation(checkpoint: Callable[[str], Path]) -> None:
    """Otherwise a model trains with one start token and generates with another."""
    loaded = dataclasses.replace(pellucid.load(checkpoint("bart")).loaded, generation={"decoder_start_token_id": 5})
    assert batch_of(loaded, TextToText())["decoder_input_ids"][:, 0].unique().tolist() == [5]


def test_label_smoothing_equals_the_reference_s(checkpoint: Callable[[str], Path]) -> None:
    theirs, tokenizer = load_reference(checkpoint("bart"))
    from transformers.trainer_pt_utils import LabelSmoother

    batch = reference_batch(tokenizer)
    logits = theirs(**batch).logits
    found = mean_loss(pellucid.load(checkpoint("bart"), dtype="float64").loaded, TextToText(label_smoothing=0.1))
    expected = functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=0.1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    smoothed = LabelSmoother(0.1)({"logits": logits}, batch["labels"])
    torch.testing.assert_close(found, smoothed.double(), rtol=0, atol=1e-5)  # the reference sums in float32


def test_loss_of_a_marian_model_equals_the_reference_s() -> None:
    """Its facts are those of the family `transformer`: post-norm, sinusoids in halves, SiLU, a logits bias."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    sizes = {
        "d_model": 16,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24,
        "max_position_embeddings": 40,
        "vocab_size": 40,
    }
    sizes |= {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    tokens = {"pad_token_id": 39, "eos_token_id": 0, "decoder_start_token_id": 39, "bos_token_id": None}
    config = transformers.MarianConfig(
        **sizes, **tokens, activation_function="silu", scale_embedding=True, init_std=0.3
    )
    theirs = transformers.MarianMTModel(config).double().eval()
    theirs.final_logits_bias.normal_()
    ours = marian_as_ours(theirs)
    labels = torch.tensor([[5, 6, 7, 0], [8, 0, IGNORED, IGNORED]])
    batch = {"input_ids": torch.tensor([[3, 4, 0], [9, 0, 39]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    shifted = theirs.prepare_decoder_input_ids_from_labels(labels)
    learner: Any = PlainLearner(ours)
    found = TextToText().loss(learner, batch | {"decoder_input_ids": shifted, "labels": labels}) / 6
    torch.testing.assert_close(found, theirs(**batch, labels=labels).loss, rtol=0, atol=1e-9)


def marian_as_ours(theirs: Any) -> Loaded:
    """The same weights in our module."""
    facts = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 40, "waves": "halves"}
    side = {"num_decoder_layers": 2, "decoder_attention_heads": 4, "decoder_intermediate_size": 24}
    tokens = {"pad_token_id": 39, "eos_token_id": 0, "decoder_start_token_id": 39, "bos_token_id": None}
    facts |= {"intermediate_size": 24, "hidden_act": "silu", "head": SequenceToSequenceLM(logits_bias=True)}
    model = pellucid.build(pellucid.Config.of("transformer", **facts, **side, **tokens), dtype="float64")
    for part in (theirs.model.encoder, theirs.model.decoder):  # theirs are rounded to float32
        positions, width = part.embed_positions.weight.shape
        angle = torch.arange(positions)[:, None] / 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
        part.embed_positions.weight.data = torch.cat((angle.sin(), angle.cos()), dim=1)
    renamed = {"self_attn": "attention", "encoder_attn": "cross_attention", "q_proj": "query", "k_proj": "key"}
    renamed |= {"v_proj": "value", "out_proj": "output", "fc1": "feed_forward.up", "fc2": "feed_forward.down"}
    renamed |= {"_layer_norm": "_norm", "final_norm": "feed_forward_norm", "embed_tokens": "embeddings.token"}
    state = {}
    for name, tensor in theirs.model.state_dict().items():
        for old, new in renamed.items():
            name = name.replace(old, new)
        state[name] = tensor
    state = {
        name: tensor for name, tensor in state.items() if "embed_positions" not in name and name != "shared.weight"
    }
    state |= {"head.bias": theirs.final_logits_bias[0], "head.decoder.weight": theirs.lm_head.weight}
    model.module.load_state_dict(state)
    return model.loaded


# -- training copy ----------------------------------------------------------------------------------------------------


def gradients(loaded: Loaded, learner: Any) -> dict[str, Tensor]:
    objective = TextToText(label_smoothing=0.1)
    loaded.module.zero_grad()
    objective.loss(learner, batch_of(loaded, objective)).backward()
    return {name: p.grad.double() for name, p in loaded.module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", ["bart", "t5-tied", "t5-gated"])
def test_learner_is_as_exact_as_the_plain_module(checkpoint: Callable[[str], Path], name: str) -> None:
    """Both in float32, against the gradients of the plain module in float64."""
    settings = Settings(dropout=0.0, attention_dropout=0.0, precision="float32")
    loaded = model_for_training(pellucid.load(checkpoint(name)).loaded, TextToText(), settings)
    exact = pellucid.load(checkpoint(name), dtype="float64").loaded
    expected = gradients(exact, PlainLearner(exact))
    found, plain = gradients(loaded, Learner(loaded, settings)), gradients(loaded, PlainLearner(loaded))
    assert found.keys() == plain.keys() == expected.keys()
    largest = max(one.abs().max() for one in expected.values())
    for one, truth in expected.items():
        ours, theirs = (found[one] - truth).abs().max(), (plain[one] - truth).abs().max()
        assert ours <= 4 * theirs + 1e-6 * largest, one


def test_losses_and_weights_of_micro_batches_sum_to_the_batch_s(checkpoint: Callable[[str], Path]) -> None:
    loaded, objective = pellucid.load(checkpoint("bart"), dtype="float64").loaded, TextToText(label_smoothing=0.1)
    learner: Any = PlainLearner(loaded)
    batches = [batch_of(loaded, objective, rows) for rows in (ROWS, ROWS[:1], ROWS[1:])]
    whole, *parts = [objective.loss(learner, batch) for batch in batches]
    torch.testing.assert_close(sum(parts), whole, rtol=0, atol=1e-9)
    weights = [objective.weight(batch) for batch in batches]
    assert weights[0] == sum(weights[1:])


# -- rows to examples -------------------------------------------------------------------------------------------------


def test_prefix_is_added_to_each_source(checkpoint: Callable[[str], Path]) -> None:
    _, tokenizer = load_reference(checkpoint("t5-tasks"))
    loaded = pellucid.load(checkpoint("t5-tasks")).loaded
    prefix = "translate English to German: "
    for objective in (TextToText(prefix=prefix), TextToText(src_lang="en", tgt_lang="German")):
        batch = batch_of(loaded, objective)
        assert torch.equal(batch["input_ids"], reference_batch(tokenizer, prefix=prefix)["input_ids"])
    assert torch.equal(batch_of(loaded, TextToText(prefix=""))["input_ids"], reference_batch(tokenizer)["input_ids"])


def test_scored_texts_use_the_task_settings_of_the_checkpoint(checkpoint: Callable[[str], Path]) -> None:
    loaded = pellucid.load(checkpoint("t5-tasks")).loaded
    task_settings = {
        "translation_en_to_de": {"prefix": "translate: ", "num_beams": 3, "max_length": 7, "length_penalty": 2.0}
    }
    config = loaded.config.replace(inert={**loaded.config.inert, "task_specific_params": task_settings})
    model = pellucid.Model(dataclasses.replace(loaded, config=config))
    answer = pellucid.pipeline("translation", model)
    rows = [{"text": text, "target": answer(text)["translation_text"]} for text in ("time flies", "the dog came home")]
    for objective in (Translation(), TextToText(src_lang="en", tgt_lang="de")):
        assert objective.final_scores(model.loaded, objective.examples(model.loaded, rows))["exact_match"] == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length_penalty": 0.8}, "length_penalty is 0.8 and there are no beams"),
        ({"num_beams": 2000}, "num_beams is 2000, expected a whole number from 1 to 1,000"),
        ({"num_beams": 2, "length_penalty": float("nan")}, "length_penalty is nan"),
    ],
)
@pytest.mark.parametrize("generate", [None, True])
def test_invalid_generation_options_are_refused_before_training(
    checkpoint: Callable[[str], Path], tmp_path: Path, options: dict[str, Any], message: str, generate: bool | None
) -> None:
    """Otherwise training would end and its model be lost."""
    model = pellucid.load(checkpoint("t5-tied"))
    settings = {"out": tmp_path / "new", "max_steps": 1, "validation": ROWS, "generate": generate, "progress": False}
    with pytest.raises(InputError, match=message):
        pellucid.train(model, ROWS, "text2text-generation", **settings, **options)
    assert not list(tmp_path.rglob("log.jsonl"))
    if (
        generate is None and "length_penalty" in options and "num_beams" not in options
    ):  # generates nothing: not refused
        pellucid.train(model, ROWS, "text2text-generation", **settings | {"validation": 0}, **options)
        assert len((tmp_path / "new" / "log.jsonl").read_text().splitlines()) == 1


def test_prefix_of_training_is_saved(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    model = pellucid.load(checkpoint("t5-tied"))
    with_prefix = TextToText(prefix="simplify: ").with_task_settings(model.loaded)
    pellucid.Model(with_prefix).save(tmp_path / "model")
    reloaded = pellucid.load(tmp_path / "model")
    first, second = (
        pellucid.pipeline("text2text-generation", one, max_new_tokens=8, **options)("The dog saw a house.")
        for one, options in ((reloaded, {}), (model, {"prefix": "simplify: "}))
    )
    assert first.ids == second.ids
    assert first.ids != pellucid.pipeline("text2text-generation", model, max_new_tokens=8)("The dog saw a house.").ids


def test_empty_prefix_of_training_is_saved(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    with_prefix = TextToText(prefix="simplify: ").with_task_settings(pellucid.load(checkpoint("t5-tied")).loaded)
    pellucid.Model(TextToText(prefix="").with_task_settings(with_prefix)).save(tmp_path / "model")
    assert prefix_of(pellucid.load(tmp_path / "model").loaded, ["text2text-generation"]) == ""
    assert TextToText().with_task_settings(with_prefix) is with_prefix


@pytest.mark.parametrize(
    ("task", "options", "run_options"),
    [
        ("summarization", {}, {}),
        ("summarization", {"prefix": "tl;dr: "}, {}),
        ("summarization", {"prefix": ""}, {}),
        ("translation", {}, {}),
        ("translation", {"prefix": "say: "}, {}),
        ("translation", {"src_lang": "en", "tgt_lang": "fr"}, {}),
        ("translation", {"src_lang": "en", "tgt_lang": "ru"}, {}),
        ("translation", {"src_lang": "en", "tgt_lang": "ru"}, {"src_lang": "en", "tgt_lang": "ru"}),
        ("translation", {"src_lang": "en", "tgt_lang": "fr", "prefix": "say: "}, {"src_lang": "en", "tgt_lang": "fr"}),
        ("text2text-generation", {"prefix": "say: "}, {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["t5-tasks", "t5-tied"])
def test_inference_reads_the_same_tokens_as_training(
    checkpoint: Callable[[str], Path], tmp_path: Path, name: str, task: str, options: Any, run_options: Any
) -> None:
    """Inference used the task's own prefix, in place of the one that the model was trained with."""
    base, text = pellucid.load(checkpoint(name)).loaded, "The <extra_id_0> saw."
    objective = objective_named(task).objective()(**options)
    (one,) = objective.examples(base, [{"text": text, "target": "no"}])
    pellucid.Model(objective.with_task_settings(base)).save(tmp_path / "model")
    reloaded = pellucid.load(tmp_path / "model").loaded
    task_of_run = objective.task_class(**objective.task_class.resolve_options(reloaded, run_options))
    (prompt,) = task_of_run.prompts(Work(reloaded), text, 0)
    assert prompt.portion.ids == one.ids[0]
    (scored,) = objective.__class__().examples(reloaded, [{"text": text, "target": "no"}])
    assert scored.ids == one.ids


def test_other_language_pair_uses_its_own_prefix(checkpoint: Callable[[str], Path]) -> None:
    trained = Translation(src_lang="en", tgt_lang="fr").with_task_settings(pellucid.load(checkpoint("t5-tied")).loaded)
    other_pair = {"src_lang": "en", "tgt_lang": "de"}
    assert TranslationPipeline.resolve_options(trained, {})["prefix"] == "translate English to French: "
    assert TranslationPipeline.resolve_options(trained, other_pair)["prefix"] == "translate English to German: "
    assert (
        Translation(**other_pair).with_task_settings(trained).config.inert["prefix"] == "translate English to German: "
    )


def test_language_tokens_are_added_to_source_and_target() -> None:
    tokenizer = train_tokenizer(
        None,
        "characters",
        texts=["abc "],
        special_tokens=SPECIAL_TOKENS,
        extra_tokens=["__en__", "__de__"],
        add_eos=True,
    )
    loaded = small_model(tokenizer).loaded
    for parse in (False, True):
        objective = TextToText(src_lang="en", tgt_lang="de", parse_special_tokens=parse)
        (example,) = objective.examples(loaded, [{"text": "ab", "target": "c"}])
        tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in example.ids]
        assert tokens == [["__en__", "a", "b", "</s>"], ["__de__", "c", "</s>"]]
    assert objective.with_task_settings(loaded).config.inert["prefix"] == "__en__"


def test_each_language_token_is_one_of_its_own_tokenizer() -> None:
    source_tokenizer, decoder_tokenizer = (
        train_tokenizer(None, "characters", texts=["abc"], special_tokens=SPECIAL_TOKENS, extra_tokens=[token])
        for token in ("__en__", "__de__")
    )
    loaded = small_model(source_tokenizer, target_tokenizer=decoder_tokenizer).loaded
    (example,) = TextToText(src_lang="en", tgt_lang="de").examples(loaded, [{"text": "a", "target": "c"}])
    assert source_tokenizer.convert_ids_to_tokens(example.ids[0]) == ["__en__", "a"]
    assert decoder_tokenizer.convert_ids_to_tokens(example.ids[1]) == ["__de__", "c", "</s>"]


def test_targets_use_the_target_tokenizer_and_an_end_token() -> None:
    source_tokenizer = train_tokenizer(None, "characters", texts=["abc"], special_tokens=SPECIAL_TOKENS)
    decoder_tokenizer = train_tokenizer(None, "characters", texts=["xyz"], special_tokens=SPECIAL_TOKENS)
    loaded = small_model(source_tokenizer, target_tokenizer=decoder_tokenizer).loaded
    (example,) = TextToText().examples(loaded, [{"text": "ab", "target": "zx"}])
    assert example.ids == ([4, 5], [6, 4, 2])  # neither tokenizer adds an end token: the target's comes from the config
    assert example.target == "zx"
    batch = batch_of(loaded, TextToText(), [{"text": "ab", "target": "zx"}])
    assert batch["decoder_input_ids"].tolist() == [[1, 6, 4]]
    assert "attention_mask" not in batch  # no padding


def test_long_texts_are_truncated_and_keep_the_end_token(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = train_tokenizer(None, "characters", texts=["abc"], special_tokens=SPECIAL_TOKENS, add_eos=True)
    for decoder_tokenizer in (
        tokenizer,
        train_tokenizer(None, "characters", texts=["abc"], special_tokens=SPECIAL_TOKENS),
    ):
        loaded = small_model(tokenizer, target_tokenizer=decoder_tokenizer).loaded
        objective = TextToText(max_length=4, max_target_length=3)
        rows = [{"text": "abcabc", "target": "cbacba"}, {"text": "abc", "target": "cb"}]
        long, short = objective.examples(loaded, rows)
        assert long.ids == short.ids == ([4, 5, 6, 2], [6, 5, 2])
    assert "1 of 2 texts was cut to 4 tokens" in caplog.text
    assert "1 of 2 targets was cut to 3 tokens" in caplog.text


def test_targets_need_room_for_their_special_tokens() -> None:
    tokenizer = train_tokenizer(
        None, "characters", texts=["abc"], special_tokens=SPECIAL_TOKENS, add_bos=True, add_eos=True
    )
    model = small_model(tokenizer).loaded
    for length in (1, 2):
        with pytest.raises(InputError, match=rf"^a target may have {length} tokens?, and 2 are special ones"):
            TextToText(max_target_length=length).examples(model, [{"text": "abc", "target": "cb"}])


def test_line_aligned_files_are_read_as_pairs(tmp_path: Path) -> None:
    english, german = tmp_path / "a.en", tmp_path / "a.de"
    english.write_text("one\n\ntwo\n", encoding="utf-8")
    german.write_text("eins\n\nzwei\n", encoding="utf-8")
    rows = read((english, german), objective=TextToText()).rows
    assert [dict(row) for row in rows] == [{"text": "one", "target": "eins"}, {"text": "two", "target": "zwei"}]
    german.write_text("eins\n\n \n", encoding="utf-8")
    with pytest.raises(InputError, match=r"a\.en \(text\) and a\.de \(target\), line 3: 'target' is empty"):
        TextToText(generate=False).fitted(read((english, german), objective=TextToText()).rows)
    german.write_text("eins\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"a\.de ends after line 1, and .*a\.en continues"):
        read((english, german), objective=TextToText())


def test_rows_with_texts_by_language_are_read() -> None:
    tokenizer = train_tokenizer(None, "characters", texts=["abc"], special_tokens=SPECIAL_TOKENS, add_eos=True)
    loaded = small_model(tokenizer).loaded
    rows = read([{"translation": {"en": "ab", "de": "c", "fr": "b"}}], objective=TextToText).rows
    (one,) = TextToText(src_lang="en", tgt_lang="de").examples(loaded, rows)
    assert one.ids == ([4, 5, 2], [6, 2])
    with pytest.raises(InputError, match=r"row 0: 'translation' has no 'es'.*; it has en, de, fr"):
        TextToText(src_lang="en", tgt_lang="es").examples(loaded, rows)
    with pytest.raises(InputError, match="say which are meant with src_lang=CODE and tgt_lang=CODE"):
        TextToText(generate=False).fitted(rows)
    with pytest.raises(InputError, match="'translation' is str"):
        TextToText(src_lang="en", tgt_lang="de").fitted(read([{"translation": "ab"}]).rows)


INVALID: dict[str, tuple[Any, str]] = {
    "no target": ([{"text": "a"}], "no column 'target'"),
    "misspelt": ([{"text": "a", "Target": "b"}], "did you mean Target"),
    "empty": ([{"text": "a", "target": "b"}, {"text": "", "target": "b"}], "row 1: 'text' is empty"),
    "number": ([{"text": "a", "target": 3}], "'target' is int, expected a text"),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_rows_are_refused(name: str) -> None:
    rows, message = INVALID[name]
    with pytest.raises(InputError, match=message):
        TextToText(generate=False).fitted(read(rows).rows)


@pytest.mark.parametrize(
    "options",
    [{"label_smoothing": 1.0}, {"label_smoothing": -0.1}, {"num_beams": 0}, {"tgt_lang": " "}, {"prefix": 3}],
    ids=str,
)
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        TextToText(**options)


def test_model_without_a_decoder_is_refused(load_tiny: LoadTiny) -> None:
    with pytest.raises(InputError, match="needs a model with an encoder and a decoder, and this one is an encoder"):
        TextToText().head(load_tiny("bert-body").loaded)


def test_model_without_an_end_token_is_refused() -> None:
    tokenizer = train_tokenizer(None, "characters", texts=["abc"], special_tokens=SPECIAL_TOKENS)
    model = small_model(tokenizer)
    loaded = model.saying(model.config.replace(eos_token_id=None), {}).loaded
    with pytest.raises(InputError, match="name its eos_token_id"):
        TextToText().examples(loaded, [{"text": "a", "target": "b"}])


# -- scores -----------------------------------------------------------------------------------------------------------


def test_scores_do_not_depend_on_the_batch(checkpoint: Callable[[str], Path]) -> None:
    loaded = pellucid.load(checkpoint("bart")).loaded
    objective = TextToText(generate=False)
    examples = objective.examples(loaded, ROWS)
    found = objective.score(loaded, examples)
    assert set(found) == {"loss", "perplexity", "accuracy"}
    assert found["loss"] == pytest.approx(mean_loss(loaded, objective).item(), abs=1e-5)
    separate = [objective.score(loaded, [one])["loss"] * len(one.ids[1]) for one in examples]
    assert sum(separate) / sum(len(one.ids[1]) for one in examples) == pytest.approx(found["loss"], abs=1e-5)
    assert TextToText(label_smoothing=0.1, generate=False).score(loaded, examples) == found  # without smoothing


def test_generated_texts_are_scored_according_to_the_generate_option(checkpoint: Callable[[str], Path]) -> None:
    loaded = pellucid.load(checkpoint("bart")).loaded
    generation_scores = {"bleu", "chrf", "exact_match"}
    for generate, in_evaluations, in_final_scores in ((None, False, True), (True, True, True), (False, False, False)):
        objective = TextToText(generate=generate, max_new_tokens=None if generate is False else 4)
        examples = objective.examples(loaded, ROWS)
        assert (generation_scores <= set(objective.score(loaded, examples))) is in_evaluations
        assert (generation_scores <= set(objective.final_scores(loaded, examples))) is in_final_scores


def test_evaluation_uses_the_languages_of_training(tmp_path: Path) -> None:
    """The token before a target is stored in the recipe alone."""
    tokenizer = train_tokenizer(
        None,
        "characters",
        texts=["abc"],
        special_tokens=SPECIAL_TOKENS,
        extra_tokens=["__en__", "__de__"],
        add_eos=True,
    )
    rows = [{"text": "ab", "target": "c"}, {"text": "cb", "target": "a"}]
    options: dict[str, Any] = {"src_lang": "en", "tgt_lang": "de", "generate": False}
    settings: dict[str, Any] = {"validation": 0, "max_steps": 2, "learning_rate": 0.1, "warmup": 0}
    pellucid.train(small_model(tokenizer), rows, "translation", out=tmp_path / "model", **options, **settings)
    expected = pellucid.evaluate(tmp_path / "model", rows, "translation", **options)
    for task in (None, "translation", "text2text-generation"):
        assert pellucid.evaluate(tmp_path / "model", rows, task, generate=False) == expected
    (tmp_path / "model" / "recipe.toml").unlink()
    assert pellucid.evaluate(tmp_path / "model", rows, generate=False) != expected


def small_model(tokenizer: Any, target_tokenizer: Any = None, **facts: Any) -> "pellucid.Model":
    """An untrained encoder-decoder, 1 + 1 layers, hidden size 16."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    sizes |= {"num_decoder_layers": 1, "decoder_attention_heads": 2, "decoder_intermediate_size": 16, "vocab_size": 12}
    config = pellucid.Config.of("transformer", head=SequenceToSequenceLM(), **(sizes | facts))
    model = pellucid.build(config, tokenizer=tokenizer)
    if target_tokenizer is None:
        return model
    from dataclasses import replace

    return pellucid.Model(replace(model.loaded, target_tokenizer=target_tokenizer))


# -- training results -------------------------------------------------------------------------------------------------

DIGITS = "0123456789"


def rows_of_digits(count: int, seed: int, length: int) -> list[dict[str, str]]:
    generator = random.Random(seed)
    texts = ["".join(generator.choices(DIGITS, k=length)) for _ in range(count)]
    return [{"text": text, "target": text} for text in texts]


def vanilla_transformer(residual: str, layers: int, hidden: int) -> "pellucid.Model":
    """A small "Attention Is All You Need" model for digits: sinusoids, ReLU, one embedding table."""
    special = {"pad": "<pad>", "bos": "<s>", "eos": "</s>"}
    tokenizer = train_tokenizer(None, "characters", texts=[DIGITS], special_tokens=special, add_eos=True)
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_decoder_layers": layers, "vocab_size": 13}
    sizes |= {"num_attention_heads": 4, "decoder_attention_heads": 4}
    sizes |= {"intermediate_size": 2 * hidden, "decoder_intermediate_size": 2 * hidden}
    facts = {"residual": residual, "initializer_range": 0.1, "head": SequenceToSequenceLM()}
    return pellucid.build(pellucid.Config.of("transformer", **sizes, **facts), seed=1, tokenizer=tokenizer)


@pytest.mark.slow
def test_vanilla_transformer_learns_to_copy_unseen_rows(tmp_path: Path) -> None:
    """Each of 200 unseen rows, digit by digit (the first task of Rush, 2018, "The Annotated Transformer")."""
    training_rows = rows_of_digits(2000, 1, length=8)
    seen = {row["text"] for row in training_rows}
    held_out = [row for row in rows_of_digits(220, 2, length=8) if row["text"] not in seen][:200]
    settings = {"batch_size": 48, "max_steps": 250, "learning_rate": 3e-3, "warmup": 50, "schedule": "cosine"}
    model = pellucid.train(
        vanilla_transformer("post", 2, 64), training_rows, "translation", validation=held_out, out=tmp_path / "copy",
        dropout=0.0, precision="float32", **settings,
    )  # fmt: skip
    assert model.report.scores["exact_match"] == 1.0
    assert model.report.scores["loss"] < 0.1
    reloaded = pellucid.load(tmp_path / "copy")
    assert reloaded.generate("31415926", max_new_tokens=12) == "31415926"
    assert pellucid.evaluate(reloaded, held_out[:20], "translation", num_beams=3)["exact_match"] == 1.0


@pytest.mark.slow
def test_pre_norm_needs_no_warmup_at_a_high_learning_rate() -> None:
    """Six layers on each side; a model of the token frequencies alone has a loss of 2.3."""
    rows = rows_of_digits(2000, 1, length=4)
    settings = {"batch_size": 32, "max_steps": 100, "learning_rate": 1e-2, "schedule": "constant", "dropout": 0.0}

    def final_loss(residual: str, warmup: int) -> float:
        model = pellucid.train(
            vanilla_transformer(residual, 6, 32), rows, "translation", validation=0, warmup=warmup, precision="float32",
            generate=False, **settings,
        )  # fmt: skip
        return sum(line["loss"] for line in model.report.log[-10:]) / 10

    assert final_loss("pre", 0) < 1.8
    assert final_loss("post", 0) > 2.0
    assert final_loss("post", 60) < 1.8

"""The reference's `generate`: the same ids, after the prompt and before the padding."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import pellucid
from pellucid import compat
from pellucid.compat.generation_config import NOT_IN_REFERENCE
from pellucid.generation import loop
from pellucid.generation.checkpoint_settings import SETTINGS_KEYS, UNSUPPORTED
from pellucid.generation.rules import OPTIONS
from tests.test_compat_auto import our_model, reference_model

IDS = torch.tensor([[5, 9, 14, 33, 21], [0, 0, 7, 8, 40]])
MASK = (IDS != 0).long()
CALLS: list[dict[str, Any]] = [
    {},
    {"max_new_tokens": 7},
    {"max_length": 12},
    {"num_beams": 3, "max_new_tokens": 9},
    {"num_beams": 4, "num_return_sequences": 2, "max_new_tokens": 9, "early_stopping": True, "length_penalty": 0.5},
    {"max_new_tokens": 12, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    {"max_new_tokens": 8, "eos_token_id": [33, 40, 61], "pad_token_id": 3},
    {"max_new_tokens": 9, "min_new_tokens": 5, "bad_words_ids": [[12], [7, 8]]},
    {"max_new_tokens": 9, "min_length": 9, "eos_token_id": list(range(2, 60))},
    {"max_new_tokens": 2, "min_length": 1},
    {"max_new_tokens": 9, "min_length": 9, "min_new_tokens": 2, "eos_token_id": list(range(2, 60))},
    {"max_new_tokens": 4, "do_sample": False, "use_cache": True, "temperature": 0.7, "length_penalty": 2.0},
]
SAMPLED = {"do_sample": True, "max_new_tokens": 6, "num_return_sequences": 3, "top_k": 20, "temperature": 1.5}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["gpt2", "llama", "bart", "t5"])
def test_generated_ids_match_the_reference(family: str, tmp_path: Path) -> None:
    encoder_decoder = family in ("bart", "t5")
    task = "Seq2SeqLM" if encoder_decoder else "CausalLM"
    theirs = reference_model(family, task, tmp_path, eos_token_id=2, bos_token_id=1)
    model = our_model(task, tmp_path)
    ids = IDS.flip(1) if encoder_decoder else IDS  # encoders are padded on the right, decoders on the left
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    for options in CALLS:
        expected, found = theirs.generate(**inputs, **options), model.generate(**inputs, **options)
        assert found.tolist() == expected.tolist(), options
    one = ids[:1] if not encoder_decoder else ids[:1, :5]
    assert torch.equal(model.generate(one, max_new_tokens=3), theirs.generate(one, max_new_tokens=3))
    torch.manual_seed(3)
    sampled = model.generate(inputs, **SAMPLED)
    torch.manual_seed(3)
    assert torch.equal(sampled, model.generate(inputs, **SAMPLED))
    assert len(sampled) == 6 and len({tuple(row) for row in sampled.tolist()}) > 2


def test_generation_settings_of_the_checkpoint_apply(tmp_path: Path) -> None:
    theirs = reference_model("gpt2", "CausalLM", tmp_path)
    settings = transformers.GenerationConfig(max_new_tokens=5, repetition_penalty=1.5, eos_token_id=2, pad_token_id=4)
    settings.save_pretrained(tmp_path)
    theirs.generation_config = settings
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    model = our_model("CausalLM", tmp_path)
    ids = model.generate(**inputs)
    assert torch.equal(ids, theirs.generate(**inputs)) and ids.shape[1] <= 10
    model.generation_config.max_new_tokens = theirs.generation_config.max_new_tokens = 2
    output = model.generate(**inputs, return_dict_in_generate=True)
    assert torch.equal(output.sequences, theirs.generate(**inputs)) and output.sequences.shape[1] == 7
    settings_objects = [
        kind(max_new_tokens=6, num_beams=2) for kind in (compat.GenerationConfig, transformers.GenerationConfig)
    ]
    ids, expected = (
        model.generate(**inputs, generation_config=settings_objects[0]),
        theirs.generate(**inputs, generation_config=settings_objects[1]),
    )
    assert torch.equal(ids, expected)


@pytest.mark.filterwarnings("ignore")
def test_without_end_token_generation_goes_to_the_limit(tmp_path: Path) -> None:
    theirs = reference_model("llama", "CausalLM", tmp_path, eos_token_id=2)
    first = theirs.generate(IDS[:1], max_new_tokens=1)[0, -1].item()
    theirs = reference_model("llama", "CausalLM", tmp_path, eos_token_id=first)
    assert our_model("CausalLM", tmp_path).generate(IDS[:1]).shape == theirs.generate(IDS[:1]).shape == (1, 6)
    theirs.generation_config = transformers.GenerationConfig(max_new_tokens=4)
    theirs.generation_config.save_pretrained(tmp_path)
    found = our_model("CausalLM", tmp_path).generate(IDS[:1])
    assert torch.equal(found, theirs.generate(IDS[:1])) and found.shape == (1, 9)


TOKEN_SETTINGS = {"eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 2}


def models_with_settings(family: str, folder: Path, settings: dict[str, Any], **facts: Any) -> tuple[Any, Any]:
    """The reference's model and ours, of a checkpoint with these generation settings."""
    task = "Seq2SeqLM" if family in ("bart", "t5") else "CausalLM"
    reference_model(family, task, folder, eos_token_id=2, bos_token_id=1, **facts)
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return getattr(transformers, f"AutoModelFor{task}").from_pretrained(folder), our_model(task, folder)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"repetition_penalty": 3.0}, {"repetition_penalty": None}),
        ({"max_new_tokens": 9}, {"max_new_tokens": None}),
        ({"max_new_tokens": 9}, {"max_length": 7}),
        ({}, {"pad_token_id": 7, "attention_mask": None}),
        ({"pad_token_id": 7}, {"attention_mask": None}),
        ({"pad_token_id": None, "eos_token_id": [33, 40, 61]}, {"max_new_tokens": 12}),
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_options_of_a_call_override_the_checkpoint(
    settings: dict[str, Any], options: dict[str, Any], family: str, tmp_path: Path
) -> None:
    theirs, model = models_with_settings(family, tmp_path, TOKEN_SETTINGS | settings)
    ids = torch.tensor([[5, 9, 14, 33, 21], [7, 7, 7, 8, 40]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **options}
    assert model.generate(**inputs).tolist() == theirs.generate(**inputs).tolist()


@pytest.mark.filterwarnings("ignore")
def test_reference_settings_object_keeps_our_settings(tmp_path: Path) -> None:
    theirs, model = models_with_settings("llama", tmp_path, TOKEN_SETTINGS)
    end = theirs.generate(IDS[:1], max_new_tokens=4)[0, -1].item()
    model.generation_config.eos_token_id = theirs.generation_config.eos_token_id = end
    settings = transformers.GenerationConfig(max_new_tokens=9)
    expected = theirs.generate(IDS[:1], generation_config=settings)
    assert torch.equal(model.generate(IDS[:1], generation_config=settings), expected) and expected[0, -1] == end


def test_top_k_defaults_match_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """50 tokens by default, all if the call passes None; PyTorch's seed decides even if the file requests sampling."""
    _, model = models_with_settings("llama", tmp_path, TOKEN_SETTINGS | {"do_sample": True, "max_new_tokens": 8})
    candidate_counts: list[int] = []
    sample_tokens = loop.sample_tokens

    def counted_sampling(logits: torch.Tensor, sources: Any) -> torch.Tensor:
        candidate_counts.extend((logits > -torch.inf).sum(dim=1).tolist())
        return sample_tokens(logits, sources)

    monkeypatch.setattr(loop, "sample_tokens", counted_sampling)
    for options, count in (({}, 50), ({"top_k": None}, 90), ({"top_k": 0}, 90), ({"top_k": 7}, 7)):
        sampled = []
        for _ in range(2):
            torch.manual_seed(3)
            sampled.append(model.generate(IDS[:1], **options))
        assert set(candidate_counts) == {count} and torch.equal(*sampled)
        candidate_counts.clear()
    model.generation_config.do_sample = None
    model.generate(IDS[:1], do_sample=True)
    assert set(candidate_counts) == {50}


def test_rows_of_a_batch_are_sampled_independently(tmp_path: Path) -> None:
    """Even if all prompts are equal; `torch.manual_seed` determines all rows, as in the reference."""
    theirs, model = models_with_settings("llama", tmp_path, TOKEN_SETTINGS)
    options = {"input_ids": IDS[:1].repeat(8, 1), "do_sample": True, "max_new_tokens": 8}

    def sampled_texts(**overrides: Any) -> set[tuple[int, ...]]:
        torch.manual_seed(3)
        return {tuple(row) for row in model.generate(**options, **overrides).tolist()}

    assert len(sampled_texts()) == len({tuple(row) for row in theirs.generate(**options).tolist()}) == 8
    assert sampled_texts() == sampled_texts() and len(sampled_texts(num_return_sequences=3)) == 24
    assert len(sampled_texts(seed=5)) == 1, "one that is given is that of each prompt, as in Model.generate"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("family", "options"), [("gpt2", {}), ("gpt2", {"num_beams": 2}), ("bart", {})], ids=str)
def test_last_token_needs_no_position(family: str, options: dict[str, Any], tmp_path: Path) -> None:
    """It is chosen but never read; without `max_new_tokens` a text ends one token earlier, as in the reference."""
    theirs, model = models_with_settings(family, tmp_path, TOKEN_SETTINGS | {"eos_token_id": None})
    longest = theirs.config.max_position_embeddings
    for length in (longest, longest - 7) if family == "gpt2" else (5,):
        ids = torch.arange(length)[None] % 80 + 5
        new_tokens = longest + 1 - length if family == "gpt2" else longest
        expected = theirs.generate(ids, max_new_tokens=new_tokens, **options)
        assert model.generate(ids, max_new_tokens=new_tokens, **options).tolist() == expected.tolist()
        assert expected.shape[1] == longest + 1
    if family == "gpt2":
        assert model.generate(ids, **options).tolist() == theirs.generate(ids, **options).tolist()
        full_ids = torch.arange(longest)[None] % 80 + 5
        with pytest.raises(ValueError, match="max_length"):
            theirs.generate(full_ids, **options)
        with pytest.raises(
            pellucid.InputError, match=f"the prompt has {longest} tokens already, and this model has {longest}"
        ):
            model.generate(full_ids, **options)


def test_differences_from_the_reference_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, model = models_with_settings("llama", tmp_path, TOKEN_SETTINGS | {"do_sample": True})
    model.generate(IDS[:1], num_beams=2, max_new_tokens=3)
    assert "do_sample and num_beams do not go together" in caplog.text and "this searches" in caplog.text
    model.generate(IDS[:1], do_sample=False, max_new_tokens=200)
    assert "200 new tokens are requested, and this model has positions for 94 more" in caplog.text
    model.generation_config.max_new_tokens = 2
    model.generate(IDS[:1], do_sample=False, max_length=50)
    assert "max_length is ignored beside max_new_tokens, which is 2: give max_new_tokens alone" in caplog.text
    model.generation_config.stop_strings = "a"
    for options in ({}, {"stop": ["b"]}):
        with pytest.raises(
            pellucid.InputError, match=r"generation is to stop at \('[ab]',\), and ids are not text: model.pel"
        ):
            model.generate(IDS[:1], **options)
    assert model.generate(IDS[:1], stop_strings=None, max_new_tokens=1).shape == (1, 6)
    _, encoder_decoder = models_with_settings("bart", tmp_path, TOKEN_SETTINGS)
    with pytest.raises(pellucid.InputError, match="attention_mask leaves out tokens within row 1"):
        encoder_decoder.generate(IDS, attention_mask=torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 1, 0]]))
    left_padded = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    with pytest.raises(pellucid.InputError, match="row 1 is padded on the left, which takes positions of this encoder"):
        encoder_decoder.generate(IDS, attention_mask=left_padded)
    theirs, ours = models_with_settings("t5", tmp_path / "t5", TOKEN_SETTINGS)  # has no limit of positions
    arguments: dict[str, Any] = {"attention_mask": left_padded, "max_new_tokens": 5, "do_sample": False}
    assert ours.generate(IDS, **arguments).tolist() == theirs.generate(IDS, **arguments).tolist()
    constraints = {"bad_words_ids": [[i] for i in range(89)], "num_beams": 3, "num_return_sequences": 3}
    with pytest.raises(pellucid.InputError, match="the rules leave 2 texts for prompt 0"):
        encoder_decoder.generate(IDS[:1], max_new_tokens=1, **constraints)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["llama", "bart"])
def test_attention_mask_may_be_one_row_for_all(family: str, tmp_path: Path) -> None:
    theirs, model = models_with_settings(family, tmp_path, TOKEN_SETTINGS)
    ids, row = IDS.flip(1)[:, :4] + 3, torch.tensor([[1, 1, 1, 0]] if family == "bart" else [[0, 1, 1, 1]])
    expected = theirs.generate(ids, attention_mask=row.repeat(2, 1), max_new_tokens=4)
    assert (
        model.generate(ids, attention_mask=row, max_new_tokens=4).tolist() == expected.tolist() and len(expected) == 2
    )
    for mask in (row[:, :3], torch.ones(2, 3), torch.ones(3, 4), torch.ones(2, 5), torch.ones(4)):
        with pytest.raises(
            pellucid.InputError, match=r"attention_mask is .* expected the shape of input_ids, \[2, 4\]"
        ):
            model.generate(ids, attention_mask=mask)
    with pytest.raises(pellucid.InputError, match="attention_mask holds 2, expected 0 and 1 alone"):
        model.generate(ids, attention_mask=row + 1)


UNSUPPORTED_OPTIONS: dict[str, Any] = {
    "guidance_scale": 1.5,
    "exponential_decay_length_penalty": (1, 1.9),
    "encoder_repetition_penalty": 2.0,
    "encoder_no_repeat_ngram_size": 2,
    "renormalize_logits": True,
    "num_beam_groups": 2,
    "force_words_ids": [[5]],
    "watermarking_config": {"bias": 2.0},
    "top_h": 0.4,
}


@pytest.mark.parametrize("name", UNSUPPORTED_OPTIONS)
def test_unsupported_options_are_refused_in_every_form(name: str, tmp_path: Path) -> None:
    _, model = models_with_settings("llama", tmp_path, TOKEN_SETTINGS)
    plain = model.generate(IDS[:1], max_new_tokens=4)
    expected_error = pytest.raises(
        pellucid.InputError, match=f"^{name} is .*, which is not supported here: leave it out"
    )
    options = {name: UNSUPPORTED_OPTIONS[name], "num_beams": 2}
    for settings in (compat.GenerationConfig, transformers.GenerationConfig):
        with expected_error:
            model.generate(IDS[:1], generation_config=settings(**options))
    with expected_error:
        model.generate(IDS[:1], **options)
    setattr(model.generation_config, name, UNSUPPORTED_OPTIONS[name])
    with expected_error:
        model.generate(IDS[:1])
    for default in (None, UNSUPPORTED[name]):
        assert torch.equal(model.generate(IDS[:1], max_new_tokens=4, **{name: default}), plain)
    settings = compat.GenerationConfig(max_new_tokens=4, **{name: UNSUPPORTED[name]})
    assert name not in settings.to_dict() or torch.equal(model.generate(IDS[:1], generation_config=settings), plain)


@pytest.mark.filterwarnings("ignore")
def test_settings_objects_apply_and_ids_may_be_tensors(tmp_path: Path) -> None:
    theirs, model = models_with_settings("llama", tmp_path, TOKEN_SETTINGS)
    end = theirs.generate(IDS[:1], max_new_tokens=2)[:, -1]
    for end_ids in (end, end[0]):
        found = model.generate(IDS[:1], eos_token_id=end_ids, max_new_tokens=9)
        assert found.tolist() == theirs.generate(IDS[:1], eos_token_id=end_ids, max_new_tokens=9).tolist()
        assert found[0, -1] == end
    settings = transformers.GenerationConfig(return_dict_in_generate=True, max_new_tokens=2)
    assert torch.equal(
        model.generate(IDS[:1], generation_config=settings).sequences,
        theirs.generate(IDS[:1], generation_config=settings).sequences,
    )
    for wrong in ({"max_new_tokens": 3}, transformers.GenerationConfig, "greedy"):
        with pytest.raises(pellucid.InputError, match=r"generation_config is .*, expected settings such as"):
            model.generate(IDS[:1], generation_config=wrong)
    with pytest.raises(pellucid.InputError, match="output_scores is True, which is not supported here"):
        model.generate(IDS[:1], generation_config=transformers.GenerationConfig(output_scores=True))


def test_settings_of_a_model_may_be_tensors_and_arrays(tmp_path: Path) -> None:
    """Which were shown, used and saved with errors of NumPy and of `json`."""
    _, model = models_with_settings("llama", tmp_path / "one", {})
    (end,) = model.generate(IDS[:1], max_new_tokens=1)[:, -1].tolist()
    for end_ids in (torch.tensor([end, 3]), np.array([end, 3]), (end, 3)):
        model.generation_config.eos_token_id, model.generation_config.max_new_tokens = end_ids, np.int64(9)
        assert model.generate(IDS[:1])[0, IDS.shape[1] :].tolist() == [end]
        model.save_pretrained(tmp_path / "two")
        saved = compat.GenerationConfig.from_pretrained(tmp_path / "two")
        assert (saved.eos_token_id, saved.max_new_tokens) == ([end, 3], 9)
        assert json.loads(repr(model.generation_config).partition(" ")[2]) == saved.to_dict()
    model.generation_config.bad_words_ids = [(3,), np.array([4])]
    model.generation_config.sequence_bias = {(5,): -100.0}
    assert model.current_model().loaded.generation["sequence_bias"] == [[[5], -100.0]]
    model.save_pretrained(tmp_path / "two")
    saved = compat.GenerationConfig.from_pretrained(tmp_path / "two")
    assert (saved.bad_words_ids, saved.sequence_bias) == ([[3], [4]], [[[5], -100.0]])
    model.generation_config.odd = {9}
    assert '"odd": "{9}"' in repr(model.generation_config)


@pytest.mark.parametrize(("name", "value"), [("max_new_tokens", {9}), ("top_k", 3.0), ("num_beams", torch.Tensor)])
def test_generation_setting_of_a_wrong_type_is_refused_where_it_is_set(name: str, value: Any) -> None:
    message = re.escape(f"{name} is {value}, expected a whole number")
    with pytest.raises(pellucid.InputError, match=f"^{message}$"):
        setattr(compat.GenerationConfig(), name, value)
    with pytest.raises(pellucid.InputError, match=f"^{message}$"):
        compat.GenerationConfig(**{name: value})


def test_options_of_generate_may_be_numbers_of_numpy(tmp_path: Path) -> None:
    _, model = models_with_settings("llama", tmp_path, {})
    plain: dict[str, Any] = {"num_beams": 2, "max_length": IDS.shape[1] + 3, "do_sample": False}
    arrays = {name: np.bool_(one) if type(one) is bool else np.int64(one) for name, one in plain.items()}
    assert torch.equal(model.generate(IDS[:1], **arrays), model.generate(IDS[:1], **plain))


@pytest.mark.filterwarnings("ignore")
def test_log_names_the_file_of_an_unsupported_setting(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reference_model("llama", "CausalLM", tmp_path, eos_token_id=2)
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    facts = json.loads((tmp_path / "config.json").read_text()) | {"exponential_decay_length_penalty": [1, 1.9]}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    our_model("CausalLM", tmp_path).generate(IDS[:1], max_new_tokens=1)
    assert f"{tmp_path / 'config.json'} says exponential_decay_length_penalty" in caplog.text


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("foreign", [{"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"logit_bias": {"7": 9.0}}])
def test_our_own_option_names_in_a_file_are_ignored(foreign: dict[str, Any], tmp_path: Path) -> None:
    assert set(NOT_IN_REFERENCE) == {*OPTIONS, *SETTINGS_KEYS} - vars(transformers.GenerationConfig()).keys()
    theirs, model = models_with_settings("llama", tmp_path, TOKEN_SETTINGS | foreign)
    found = model.generate(IDS[:1])
    assert found.tolist() == theirs.generate(IDS[:1]).tolist() != model.generate(IDS[:1], **foreign).tolist()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("settings", [{}, {"decoder_start_token_id": None}, {"decoder_start_token_id": 5}], ids=str)
def test_start_token_follows_call_settings_and_config(settings: dict[str, Any], tmp_path: Path) -> None:
    """By the call, else by the generation config, which may name only a `bos_token_id`, else by `config.json`."""
    theirs, model = models_with_settings("bart", tmp_path, TOKEN_SETTINGS | settings)
    ids = IDS[:1]
    starts = set()
    for options in ({}, {"num_beams": 2}, {"decoder_start_token_id": 7}, {"repetition_penalty": 1.5}):
        expected = theirs.generate(ids, max_new_tokens=5, **options)
        assert model.generate(ids, max_new_tokens=5, **options).tolist() == expected.tolist()
        starts.add(int(expected[0, 0]))
    assert len(starts) == 2 and 7 in starts
    (tmp_path / "generation_config.json").unlink()
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert torch.equal(our_model("Seq2SeqLM", tmp_path).generate(ids), theirs.generate(ids))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{}, {"num_beams": 2}], ids=str)
def test_decoder_starts_with_its_prompt(options: dict[str, Any], tmp_path: Path) -> None:
    """50256 is the default of GPT-2's config, and few small vocabularies have that token."""
    theirs, model = models_with_settings(
        "gpt2", tmp_path, {"bos_token_id": 50256, "eos_token_id": 50256, "pad_token_id": 0}
    )
    expected = theirs.generate(IDS[:1], max_new_tokens=5, **options)
    assert model.generate(IDS[:1], max_new_tokens=5, **options).tolist() == expected.tolist()


def test_set_seed() -> None:
    compat.set_seed(42)
    first = torch.rand(2)
    transformers.set_seed(42)
    assert torch.equal(first, torch.rand(2))


@pytest.mark.parametrize(
    ("inputs", "options", "fragment"),
    [
        (
            IDS,
            {"max_length": 5},
            "max_length is 5, expected more than the 5 tokens before the first new one: raise it",
        ),
        (IDS, {"num_beam": 3}, r"no generation option 'num_beam' \(did you mean num_beams"),
        (IDS, {"output_scores": True}, "output_scores is True, which is not supported here: model.pellucid.trace"),
        (None, {}, "generate needs input_ids"),
        (IDS[0], {}, r"input_ids are int64\[5\], expected int64 or int32 numbers of shape \[batch, seq\]"),
        (IDS, {"attention_mask": [[1]]}, "attention_mask is list, expected a tensor"),
        (IDS, {"max_new_tokens": 0}, "max_new_tokens is 0"),
    ],
)
def test_invalid_calls_are_refused(inputs: Any, options: dict[str, Any], fragment: str, tmp_path: Path) -> None:
    reference_model("gpt2", "CausalLM", tmp_path)
    with pytest.raises(pellucid.InputError, match=fragment):
        our_model("CausalLM", tmp_path).generate(inputs, **options)


def test_trained_model_generates_its_training_text(tmp_path: Path) -> None:
    reference_model("gpt2", "CausalLM", tmp_path)
    model = our_model("CausalLM", tmp_path)
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12]])
    before = model.generate(ids[:, :3], max_new_tokens=5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(40):
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert model.generate(ids[:, :3], max_new_tokens=5).tolist() == ids.tolist() != before.tolist()
    model.save_pretrained(tmp_path / "learned")
    again = compat.AutoModelForCausalLM.from_pretrained(tmp_path / "learned")
    assert again.generate(ids[:, :3], max_new_tokens=5).tolist() == ids.tolist()

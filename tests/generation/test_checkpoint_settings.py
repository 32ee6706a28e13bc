"""A checkpoint's own settings of generation: read, followed, saved again, and refused where they are invalid."""

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import pellucid
from pellucid.checkpoints.generation import FILE, LEGACY_KEYS, MAX_ENTRIES
from pellucid.errors import CorruptFileError, InputError
from pellucid.generation.checkpoint_settings import (
    SETTINGS_KEYS,
    UNSUPPORTED,
    checkpoint_options,
    decoder_start_token,
    settings_of,
)
from pellucid.generation.reader import prefill
from pellucid.generation.rules import OPTIONS
from pellucid.models import Output
from pellucid.tasks.attribution import attribute_generation
from tests.checkpoints.families import facts_of
from tests.generation.writers import byte_level, one_thread, writer
from tests.parity.reference import tiny

BART_SETTINGS = {"num_beams": 4, "max_length": 14, "min_length": 6, "length_penalty": 2.0, "no_repeat_ngram_size": 3}
BART_SETTINGS |= {"early_stopping": True, "forced_bos_token_id": 0, "forced_eos_token_id": 2}


def test_saying_checks_config_and_generation_settings(tiny: pellucid.Model) -> None:
    for wrong in (None, {}, "bert"):
        with pytest.raises(InputError, match=r"^config is .*, expected a pellucid\.Config"):
            tiny.saying(wrong, {})  # pyrefly: ignore
    for wrong in (None, 5, "x" * 1000, [("a", 1)]):
        with pytest.raises(InputError, match=r"^generation is .{1,90}, expected a dictionary, as generation_config"):
            tiny.saying(tiny.config, wrong)  # pyrefly: ignore
    settings: dict[str, Any] = {"max_new_tokens": np.int64(1), "eos_token_id": (1, 2)}
    other = tiny.saying(tiny.config, settings)
    settings["max_new_tokens"] = 5
    assert json.dumps(other.loaded.generation) == '{"max_new_tokens": 1, "eos_token_id": [1, 2]}'


def test_old_key_forces_the_start_token_unless_a_newer_one_does() -> None:
    model = writer(byte_level())
    config, old = model.config.replace(bos_token_id=1), {"force_bos_token_to_be_generated": True}
    for settings, forced in ((old, 1), (old | {"forced_bos_token_id": 3}, 3)):
        assert checkpoint_options(model.saying(config, settings).loaded) == {"forced_bos_token_id": forced}


def test_wrong_type_in_given_generation_settings_is_refused() -> None:
    model = writer(byte_level())
    with pytest.raises(InputError, match=r"^num_beams is '4', expected a whole number$"):
        model.saying(model.config, {"do_sample": True, "num_beams": "4"})
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InputError, match=r"^bad_words_ids holds lists within lists too deeply, or a list that holds"):
        model.saying(model.config, {"bad_words_ids": endless})


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def saved_decoder(path: Path, settings: dict[str, Any] | None = None, facts: dict[str, Any] | None = None) -> Path:
    """A small decoder with a tokenizer. settings: its generation_config.json.  facts: changes of config.json."""
    folder = writer(byte_level(), max_position_embeddings=64).save(path)
    if settings is not None:
        (folder / FILE).write_text(json.dumps(settings))
    if facts is not None:
        (folder / "config.json").write_text(json.dumps(facts_of(folder) | facts))
    return folder


@pytest.mark.parametrize("legacy", [False, True])
def test_default_generation_matches_the_reference(
    legacy: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """BART's own settings, from `generation_config.json` or, as in older files, from `config.json`."""
    theirs = tiny(tmp_path, "BartForConditionalGeneration", dtype=torch.float64)
    settings_in_file = json.loads((tmp_path / FILE).read_text()) | BART_SETTINGS
    (tmp_path / FILE).write_text(json.dumps(settings_in_file))
    if legacy:
        (tmp_path / FILE).unlink()
        (tmp_path / "config.json").write_text(json.dumps(facts_of(tmp_path) | BART_SETTINGS))
    with caplog.at_level(logging.WARNING, logger="pellucid"):
        model = pellucid.load(tmp_path, dtype="float64")
    assert not caplog.records
    theirs.generation_config = transformers.GenerationConfig(**settings_in_file)
    ids = [5, 17, 31, 8, 44]
    expected = theirs.generate(torch.tensor([ids]))[0, 1:].tolist()
    from pellucid.generation.beam import beam_search

    settings = settings_of(model.loaded, {})
    assert (settings.num_beams, settings.max_new_tokens, settings.length_penalty) == (4, 13, 2.0)
    assert list(beam_search(model.loaded, [ids], settings)[0][0].ids) == expected
    assert expected[0] == 0 and len(expected) >= 5


@pytest.mark.parametrize("legacy", [False, True])
def test_settings_survive_saving_and_loading(legacy: bool, tmp_path: Path) -> None:
    settings = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 50, "num_beams": 1}
    more = {
        "eos_token_id": [2, 7],
        "transformers_version": "5.0",
        "pad_token_id": None,
        "cache_implementation": "static",
    }
    first = saved_decoder(tmp_path / "a", None if legacy else settings | more, settings if legacy else None)
    model = pellucid.load(first)
    again = pellucid.load(model.save(tmp_path / "b"))
    assert model.loaded.generation == again.loaded.generation
    assert model.loaded.generation.items() >= settings.items()
    assert (tmp_path / "b" / FILE).exists() is not legacy
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "b").generation_config
    assert {name: getattr(theirs, name) for name in settings} == settings
    assert theirs.eos_token_id == (2 if legacy else [2, 7])
    writer(byte_level()).save(tmp_path / "b", overwrite=True)
    assert not (tmp_path / "b" / FILE).exists(), "it would belong to another model"


def test_options_of_a_call_override_the_file(tmp_path: Path) -> None:
    file_settings = {
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 5,
        "max_new_tokens": 7,
        "max_length": 3,
        "stop_strings": "x",
    }
    loaded = pellucid.load(saved_decoder(tmp_path / "a", file_settings)).loaded
    settings = settings_of(loaded, {})
    assert (settings.do_sample, settings.max_new_tokens, settings.stop, len(settings.rules)) == (True, 7, ("x",), 2)
    settings = settings_of(loaded, {"do_sample": False, "max_new_tokens": 9})
    assert (settings.do_sample, settings.max_new_tokens, settings.rules) == (False, 9, ())
    assert settings_of(loaded, {"top_k": 0}).rules != settings_of(loaded, {}).rules
    assert settings_of(loaded, {"num_beams": 2}).num_beams == 2
    assert (
        settings_of(pellucid.load(saved_decoder(tmp_path / "b", {"max_length": 4096})).loaded, {}).max_new_tokens == 256
    )


def test_end_tokens_of_the_file_end_a_text(tmp_path: Path) -> None:
    plain = pellucid.load(saved_decoder(tmp_path / "a"))
    ids = plain.complete("the house", max_new_tokens=12).ids
    end = next(i for i in ids[2:] if i not in ids[:2])
    model = pellucid.load(saved_decoder(tmp_path / "b", {"eos_token_id": [2, end]}))
    ended = model.complete("the house", max_new_tokens=12)
    assert ended.ids == ids[: ids.index(end) + 1] and ended.finish_reason == "end"
    longer = model.complete("the house", max_new_tokens=12, min_new_tokens=12)
    assert len(longer.ids) == 12 and end not in longer.ids, "the rules know it too"
    assert model.config.eos_token_id == 2, "the architecture stays what the file says"


def test_every_option_that_is_a_reference_key_has_a_type() -> None:
    keys = {*SETTINGS_KEYS, *OPTIONS} & vars(transformers.GenerationConfig()).keys()
    assert "top_p" in keys and keys <= LEGACY_KEYS and not keys & UNSUPPORTED.keys()


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_settings_are_reported_by_name(
    name: str, legacy: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It would change the reference's output; the reference's own default is not reported."""
    value = {"exponential_decay_length_penalty": [2, 3.0], "num_beam_groups": 2, "encoder_no_repeat_ngram_size": 2}
    changed = value.get(name, True if UNSUPPORTED[name] is False else 0.5)
    for setting in (changed, UNSUPPORTED[name]):
        file, facts = ({}, {name: setting}) if legacy else ({name: setting}, None)
        model = pellucid.load(saved_decoder(tmp_path / str(setting), None if legacy else file, facts))
        caplog.clear()
        assert model.generate("the", max_new_tokens=1) is not None
        if not (legacy and name not in LEGACY_KEYS):  # there it was reported on loading
            assert (f"says {name}, which is not supported" in caplog.text) == (setting is changed)


def test_start_token_of_the_file_is_the_first_decoder_input(caplog: pytest.LogCaptureFixture) -> None:
    """It takes precedence over that of `config.json`, as in the reference, in every way of generating."""
    exact = writer(byte_level(), "t5", decoder_start_token_id=0, dtype="float64")
    model = pellucid.Model(replace(exact.loaded, generation={"decoder_start_token_id": 5}))
    other = writer(byte_level(), "t5", decoder_start_token_id=5, dtype="float64")
    other.module.load_state_dict(exact.module.state_dict())
    for options in ({}, {"num_beams": 2}, {"repetition_penalty": 1.4}):
        requested = {"max_new_tokens": 5, "alternatives": 2, **options}
        assert (
            model.complete("the", **requested)
            == other.complete("the", **requested)
            != exact.complete("the", **requested)
        )
    traced = model.trace_writing("the", max_new_tokens=2)
    assert traced.steps[0].before == tuple(model.tokenizer.convert_ids_to_tokens([5]))
    assert model.score("the", "house") == other.score("the", "house") != exact.score("the", "house")
    attributions = [attribute_generation(one.loaded, [6, 7, 1], [8, 9]).scores for one in (model, other, exact)]
    assert attributions[0] == attributions[1] != attributions[2]
    assert not caplog.records
    for start, fragment in ((7000, "decoder_start_token_id is 7000, expected the id of a token"), ([3], None)):
        changed = pellucid.Model(replace(exact.loaded, generation={"decoder_start_token_id": start}))
        if fragment is None:
            assert changed.generate("the", max_new_tokens=5) == exact.generate("the", max_new_tokens=5)
            assert "says decoder_start_token_id, which is not supported" in caplog.text
        else:
            with pytest.raises(CorruptFileError, match=f"generation_config.json: {fragment}"):
                changed.generate("the")


def test_without_start_token_generation_scores_and_attributions_are_refused() -> None:
    model = writer(byte_level(), "t5", decoder_start_token_id=None, bos_token_id=None)
    for call in (
        lambda: model.generate("the", max_new_tokens=2),
        lambda: model.complete("the", num_beams=2),
        lambda: model.trace_writing("the"),
        lambda: model.score("the", "house"),
        lambda: attribute_generation(model.loaded, [6, 7, 1], [8, 9]),
    ):
        with pytest.raises(
            InputError, match="this model has no decoder_start_token_id, the first input of its decoder"
        ):
            call()


@pytest.mark.parametrize("family", ["Bart", "T5"])
@pytest.mark.parametrize(
    "generation_config", [None, {}, {"bos_token_id": 5}, {"bos_token_id": 5, "decoder_start_token_id": 6}]
)
@pytest.mark.parametrize("start", [None, 7])
def test_start_token_matches_the_reference(
    family: str, generation_config: dict[str, int] | None, start: int | None, tmp_path: Path
) -> None:
    """generation_config: the file of that name, which replaces these keys of `config.json` if it exists."""
    sizes = {"d_model": 8, "d_ff": 8, "d_kv": 4, "num_heads": 2, "num_layers": 1} if family == "T5" else {
        "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 16}  # fmt: skip
    ends = {"bos_token_id": 4, "eos_token_id": 2, "pad_token_id": 1, "forced_eos_token_id": None}
    config = getattr(transformers, f"{family}Config")(vocab_size=9, decoder_start_token_id=start, **ends, **sizes)
    getattr(transformers, f"{family}ForConditionalGeneration")(config).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    if generation_config is not None:
        (tmp_path / "generation_config.json").write_text(
            json.dumps({"eos_token_id": 2, "pad_token_id": 1} | generation_config)
        )
    theirs = getattr(transformers, f"{family}ForConditionalGeneration").from_pretrained(tmp_path)
    ours = decoder_start_token(pellucid.load(tmp_path).loaded)
    if generation_config == {}:  # where the reference refuses because neither is set, we fall back to `config.json`
        with pytest.raises(ValueError, match="decoder_start_token_id"):
            theirs.generate(torch.tensor([[3, 2]]), max_new_tokens=1)
        assert ours == (start or 4)
    else:
        assert ours == theirs.generate(torch.tensor([[3, 2]]), max_new_tokens=1)[0, 0]


def test_error_names_the_invalid_key() -> None:
    model = writer(byte_level(), "bart", decoder_start_token_id=None, bos_token_id=4)
    changed = pellucid.Model(replace(model.loaded, generation={"bos_token_id": 7000}))
    with pytest.raises(
        CorruptFileError, match=r"generation_config.json: bos_token_id is 7000, expected the id of a token"
    ):
        changed.generate("the")


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_hook_on_the_whole_model_runs_when_scoring(family: str) -> None:
    model = writer(byte_level(), family)
    texts = ("the", "house") if family == "t5" else ("the house",)
    before = model.score(*texts).total
    hook = model.module.register_forward_hook(
        lambda _module, _inputs, output: Output({**output, "logits": -output.logits})
    )
    assert model.score(*texts).total != pytest.approx(before, abs=0.01)
    hook.remove()
    assert model.score(*texts).total == before


def test_hook_on_the_whole_model_runs_when_prompts_are_packed() -> None:
    model, ids = writer(byte_level(), "llama"), [[3], [4, 5]]
    _, expected = prefill(model.module, ids, 1)
    model.module.register_forward_hook(lambda _module, _inputs, output: Output({**output, "logits": -output.logits}))
    assert torch.equal(prefill(model.module, ids, 1)[1], -expected)


WRONG: dict[str, tuple[str, Any, str]] = {
    "a word for a number": ("num_beams", "four", "num_beams is 'four', expected a whole number"),
    "a number for a truth": ("do_sample", 1, "do_sample is 1, expected true or false"),
    "a truth for a number": ("temperature", True, "temperature is True, expected a number"),
    "a half token": ("eos_token_id", [2, 2.5], "eos_token_id is list, expected the id of a token, or a list of ids"),
    "a word for a token": (
        "decoder_start_token_id",
        "five",
        "decoder_start_token_id is 'five', expected the id of a token, or a list of ids",
    ),
    "ids within ids": ("eos_token_id", [[2]], "eos_token_id is list, expected the id of a token, or a list of ids"),
    "words for ids": ("bad_words_ids", [["no"]], "bad_words_ids is list, expected a list of numbers"),
    "an object": ("suppress_tokens", {"a": 1}, "suppress_tokens is dict, expected a list of numbers"),
    "a list without end": (
        "suppress_tokens",
        [1] * (MAX_ENTRIES + 1),
        "suppress_tokens holds more than 100,000 entries",
    ),
    "an unknown list without end": ("surprise", [[1] * 10] * MAX_ENTRIES, "surprise holds more than 100,000 entries"),
    "numbers for stops": ("stop_strings", [5], "stop_strings is list, expected a text, or a list of texts"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("legacy", [False, True])
def test_value_of_the_wrong_type_is_reported_with_its_file(name: str, legacy: bool, tmp_path: Path) -> None:
    key, value, fragment = WRONG[name]
    if legacy and key in ("eos_token_id", "decoder_start_token_id", "stop_strings", "surprise"):
        return  # in config.json these mean something else, or nothing
    folder = saved_decoder(tmp_path / "a", None if legacy else {key: value}, {key: value} if legacy else None)
    with pytest.raises(CorruptFileError) as error:
        pellucid.load(folder)
    assert str(error.value) == f"{folder / ('config.json' if legacy else FILE)}: {fragment}"


@pytest.mark.parametrize(
    ("file_settings", "options", "fragment"),
    [
        ({"do_sample": True, "temperature": -1}, {"temperature": 0.5, "seed": 0}, "temperature is -1"),
        ({"num_beams": 10**9}, {"num_beams": 1}, "num_beams is 1000000000, expected a whole number from 1 to 1,000"),
        ({"eos_token_id": -4}, None, "eos_token_id is -4"),
        ({"num_return_sequences": 3}, {"num_return_sequences": 1}, "num_return_sequences is 3"),
        ({"stop_strings": ["x" * 2000]}, {"stop": "y"}, "a text of 2,000 characters"),
    ],
)
def test_value_out_of_range_is_reported_when_used(
    file_settings: dict[str, Any], options: dict[str, Any] | None, fragment: str, tmp_path: Path
) -> None:
    folder = saved_decoder(tmp_path / "a", file_settings)
    model = pellucid.load(folder)
    with pytest.raises(CorruptFileError) as error:
        model.complete("the house", max_new_tokens=2)
    assert str(error.value).startswith(f"{folder / FILE}: ") and fragment in str(error.value)
    if options is not None:
        assert len(model.complete("the house", max_new_tokens=2, **options).ids) == 2, (
            "where it is not used, it is harmless"
        )


@pytest.mark.parametrize(
    ("file_settings", "options", "texts"),
    [
        ({"do_sample": True}, {"do_sample": False}, 1),
        ({"num_beams": 3}, {"num_beams": 1}, 1),
        ({"num_beams": 3}, {"num_beams": 2}, 2),
        ({"num_beams": 3}, {"do_sample": False}, 3),
        ({"num_beams": 3}, {"do_sample": True}, 3),
    ],
)
def test_num_return_sequences_is_limited_to_what_a_call_can_return(
    file_settings: dict[str, Any], options: dict[str, Any], texts: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that requests more texts than a call's method can return is not invalid."""
    model = pellucid.load(saved_decoder(tmp_path / "a", file_settings | {"num_return_sequences": 3}))
    assert len(model.complete("the house", max_new_tokens=2, **options).sequences) == texts
    assert ("num_return_sequences 3, and this call gives at most" in caplog.text) == (texts < 3)
    with pytest.raises(InputError, match=r"^num_return_sequences is 3 and num_beams 2"):
        model.complete("the house", max_new_tokens=2, num_beams=2, num_return_sequences=3, do_sample=False)


def test_invalid_settings_files_are_refused(tmp_path: Path) -> None:
    folder = saved_decoder(tmp_path / "a")
    for text, fragment in (
        ("[1]", "holds a list, expected an object"),
        ("{", "is not JSON"),
        ('{"a":1,"a":2}', "twice"),
    ):
        (folder / FILE).write_text(text)
        with pytest.raises(CorruptFileError, match=fragment):
            pellucid.load(folder)
    (folder / FILE).write_text("[" * 100_000)
    with pytest.raises(CorruptFileError, match="is not JSON"):
        pellucid.load(folder)


def test_settings_that_run_code_are_neither_read_nor_saved(tmp_path: Path) -> None:
    folder = saved_decoder(tmp_path / "a", {"custom_generate": "someone/else", "trust_remote_code": True, "top_k": 3})
    model = pellucid.load(folder)
    assert model.loaded.generation == {"top_k": 3}
    assert json.loads((model.save(tmp_path / "b") / FILE).read_text()) == {"top_k": 3}


@pytest.mark.parametrize(
    ("file_settings", "options", "decoding"),
    [
        ({"do_sample": True}, {"num_beams": 2}, "searches"),
        ({"num_beams": 3}, {"do_sample": True}, "draws"),
        ({"num_beams": 3}, {"do_sample": True, "num_beams": 1}, None),
        ({"do_sample": True}, {"do_sample": False, "num_beams": 2}, None),
        ({"do_sample": True, "num_beams": 3}, {"do_sample": True}, "draws"),
        ({"do_sample": True, "num_beams": 3}, {"num_beams": 1}, None),
        ({"do_sample": True}, {}, None),
        ({"num_beams": 1}, {"do_sample": True}, None),
        ({}, {"num_beams": 2}, None),
    ],
    ids=str,
)
def test_conflict_with_the_options_of_a_call_is_logged(
    file_settings: dict[str, Any], options: dict[str, Any], decoding: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    model = writer(byte_level())
    pellucid.Model(replace(model.loaded, generation=file_settings)).generate("the", max_new_tokens=1, **options)
    assert ("do_sample and num_beams do not go together" in caplog.text) == (decoding is not None)
    assert decoding is None or caplog.text.count(f"the checkpoint says one of them: this {decoding}") == 1


def test_do_sample_with_num_beams_becomes_beam_search(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loaded = pellucid.load(saved_decoder(tmp_path / "a", {"do_sample": True, "num_beams": 4})).loaded
    with caplog.at_level(logging.WARNING, logger="pellucid"):
        settings = settings_of(loaded, {})
    assert (settings.do_sample, settings.num_beams) == (False, 4)
    assert "do not go together, and the checkpoint says both: this searches" in caplog.text
    assert settings_of(loaded, {"num_beams": 1}).do_sample  # as in the reference

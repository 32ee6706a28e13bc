"""Folders of sentence-transformers: every setting that changes a vector is read or refused, and saving loses none."""

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer

import pellucid
from pellucid.checkpoints.save import save_checkpoint
from pellucid.checkpoints.sentence_transformers import SENTENCE_CONFIG, TRANSFORMER_CONFIGS, read_pooling
from pellucid.config.pooling import Pooling
from pellucid.errors import CheckpointMismatchError, CorruptFileError
from tests.checkpoints.builders import MODULES, edit_json, module_entries
from tests.checkpoints.families import save
from tests.parity.tiny import write

TEXTS = ["Time flies like AN Arrow", "a", "The City has a Large river", "   "]
POOLED = "1_Pooling/config.json"
PROMPTS = {"query": "query: ", "document": "", "Ünlike": "x"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny sentence encoder with a cased vocabulary."""
    plain = pellucid.load(write("bert-cased-body", tmp_path / "plain")).loaded
    return pellucid.Model(dataclasses.replace(plain, pooling=Pooling(normalize=True))).save(tmp_path / "model")


def edit(folder: Path, name: str, **values: Any) -> None:
    edit_json(folder / name, lambda found: found.update(values))


def reference_vectors(folder: Path, **options: Any) -> torch.Tensor:
    return torch.tensor(SentenceTransformer(str(folder), device="cpu").encode(TEXTS, **options))


def set_lower_case(folder: Path) -> None:
    edit(folder, TRANSFORMER_CONFIGS[0], do_lower_case=True)


def set_length_in_another_file(folder: Path) -> None:
    (folder / TRANSFORMER_CONFIGS[0]).rename(folder / "sentence_roberta_config.json")
    edit(folder, "sentence_roberta_config.json", max_seq_length=4)


def set_truncation(folder: Path) -> None:
    edit(folder, SENTENCE_CONFIG, truncate_dim=7)


def set_several_modes(folder: Path) -> None:
    (folder / POOLED).write_text(json.dumps({"embedding_dimension": 32, "pooling_mode": ["mean", "cls"]}))


def set_prompts(folder: Path) -> None:
    edit(folder, SENTENCE_CONFIG, prompts=PROMPTS, default_prompt_name="document")
    edit(folder, POOLED, include_prompt=False)


@pytest.mark.parametrize(
    "change", [set_lower_case, set_length_in_another_file, set_truncation, set_several_modes, set_prompts]
)
def test_settings_match_the_reference_and_are_saved(folder: Path, change: Any) -> None:
    plain = reference_vectors(folder)
    change(folder)
    model, expected = pellucid.load(folder), reference_vectors(folder)
    assert change is set_prompts or expected.shape != plain.shape or not torch.allclose(expected, plain, atol=1e-2)
    torch.testing.assert_close(model.embed(TEXTS), expected, rtol=0, atol=1e-5)
    model.save(again := folder.parent / "again")
    torch.testing.assert_close(reference_vectors(again), expected, rtol=0, atol=1e-5)
    assert pellucid.load(again).loaded.pooling == model.loaded.pooling


def test_truncated_vectors_are_compared_and_normalised(folder: Path) -> None:
    edit(folder, SENTENCE_CONFIG, truncate_dim=7)
    model, theirs = pellucid.load(folder), SentenceTransformer(str(folder), device="cpu")
    scaled = reference_vectors(folder, normalize_embeddings=True)
    torch.testing.assert_close(model.embed(TEXTS, normalize=True), scaled, rtol=0, atol=1e-5)
    expected = theirs.similarity(*(theirs.encode([text]) for text in TEXTS[:2])).item()
    assert pellucid.pipeline("sentence-similarity", model)(*TEXTS[:2])["score"] == pytest.approx(expected, abs=1e-5)
    index = pellucid.Index.build(model, TEXTS[:3], folder.parent / "index")
    assert index.manifest.encoder.dimension == 7
    assert index.search(TEXTS[2], k=1, mode="dense")[0].similarity == pytest.approx(1.0)


def test_prompts_are_saved(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    set_prompts(folder)
    with caplog.at_level(logging.WARNING, "pellucid"):
        pellucid.load(folder).save(again := folder.parent / "again")
    assert "include_prompt is false" in caplog.text
    query = {"prompt_name": "query"}
    torch.testing.assert_close(reference_vectors(again, **query), reference_vectors(folder, **query), rtol=0, atol=1e-6)
    assert read_pooling(again).prompts == PROMPTS


def test_a_prompt_before_every_text_is_refused(folder: Path) -> None:
    edit(folder, SENTENCE_CONFIG, prompts=PROMPTS, default_prompt_name="query")
    with pytest.raises(CheckpointMismatchError, match="default_prompt_name is 'query', a prompt before every text"):
        pellucid.load(folder)


def test_chat_template_for_texts_is_refused(tmp_path: Path) -> None:
    """The library saves a model so if its tokenizer has a template; without that setting, as advised, both agree."""
    theirs = SentenceTransformer(str(write("qwen2-feelings", tmp_path / "plain")), device="cpu")
    theirs.save_pretrained(str(folder := tmp_path / "theirs"))
    with pytest.raises(
        CheckpointMismatchError,
        match=r"modality_config is .*'message'.*without a chat template, for its last_hidden_state",
    ):
        pellucid.load(folder)
    edit_json(folder / TRANSFORMER_CONFIGS[0], lambda found: found.pop("modality_config"))
    expected = torch.tensor(SentenceTransformer(str(folder), device="cpu").encode(TEXTS[:3]))
    torch.testing.assert_close(pellucid.load(folder).embed(TEXTS[:3]), expected, rtol=0, atol=1e-5)
    assert not torch.allclose(expected, torch.tensor(theirs.encode(TEXTS[:3])), atol=1e-2)


@pytest.mark.parametrize(
    "modality_config",
    [["text"], *({"text": {"method": "forward", "method_output_name": name}} for name in ("pooler_output", "logits"))],
)
def test_other_modality_configs_are_refused(folder: Path, modality_config: Any) -> None:
    edit(folder, TRANSFORMER_CONFIGS[0], modality_config=modality_config)
    with pytest.raises(CheckpointMismatchError, match=r"modality_config is .*texts as they are"):
        pellucid.load(folder)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        (SENTENCE_CONFIG, {"truncate_dim": 0}, "truncate_dim is 0, expected a whole number"),
        (SENTENCE_CONFIG, {"prompts": ["query: "]}, "prompts is .*, expected texts by name"),
        (SENTENCE_CONFIG, {"prompts": {"query": 5}}, "prompts is .*, expected texts by name"),
        (TRANSFORMER_CONFIGS[0], {"do_lower_case": "no"}, "do_lower_case is 'no', expected true or false"),
        (POOLED, {"include_prompt": 1}, "include_prompt is 1, expected true or false"),
    ],
)
def test_values_of_another_type_are_refused(folder: Path, name: str, values: dict[str, Any], message: str) -> None:
    edit(folder, name, **values)
    with pytest.raises(CorruptFileError, match=message):
        read_pooling(folder)


def test_unknown_keys_are_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    edit(
        folder,
        TRANSFORMER_CONFIGS[0],
        colour="blue",
        model_args={},
        model_kwargs={"torch_dtype": "float16", "use_cache": False},
    )
    with caplog.at_level(logging.WARNING, "pellucid"):
        read_pooling(folder)
    assert f"{TRANSFORMER_CONFIGS[0]}: these keys are unknown and were ignored: colour" in caplog.text
    assert f"{TRANSFORMER_CONFIGS[0]}: these keys are unknown and were ignored: model_kwargs.torch_dtype" in caplog.text


@pytest.mark.parametrize(
    ("key", "setting"),
    [
        ("config_args", {"hidden_act": "relu"}),
        ("config_kwargs", {"hidden_act": "relu"}),
        ("model_args", {"add_pooling_layer": False}),
        ("model_kwargs", {"add_pooling_layer": False}),
        ("tokenizer_args", {"model_max_length": 5}),
        ("processor_kwargs", {"model_max_length": 5}),
        ("processing_kwargs", {"text": {"max_length": 5}}),
    ],
)
def test_a_setting_that_overrules_other_files_is_refused(folder: Path, key: str, setting: dict[str, Any]) -> None:
    edit(folder, TRANSFORMER_CONFIGS[0], **{key: setting | {"trust_remote_code": False}})
    with pytest.raises(CheckpointMismatchError, match=f"{key} sets '{next(iter(setting))}', which is not supported"):
        pellucid.load(folder)


@pytest.mark.parametrize(
    "kinds",
    [[], ["Transformer"], ["Transformer", "Normalize", "Pooling"], ["Pooling", "Transformer"], ["Transformer"] * 2],
)
def test_modules_in_another_order_are_refused(folder: Path, kinds: list[str]) -> None:
    (folder / "modules.json").write_text(json.dumps(module_entries(*(MODULES + kind for kind in kinds))))
    found = ", ".join(kinds) or "none"
    with pytest.raises(CheckpointMismatchError, match=f"modules.json: the modules are {found}; only Transformer, Pool"):
        pellucid.load(folder)


@pytest.mark.parametrize(("root", "pooling"), [("", "1_Pooling/"), (".", "1_Pooling"), ("./", "1_Pooling/")])
def test_module_paths_of_other_tools_are_read(folder: Path, root: str, pooling: str) -> None:
    expected = reference_vectors(folder)

    def change(found: list[dict[str, Any]]) -> None:
        found[0]["path"], found[1]["path"] = root, pooling

    edit_json(folder / "modules.json", change)
    torch.testing.assert_close(reference_vectors(folder), expected)
    torch.testing.assert_close(pellucid.load(folder).embed(TEXTS), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("root", ["/", "..", "../"])
def test_transformer_outside_the_folder_is_refused(folder: Path, root: str) -> None:
    edit_json(folder / "modules.json", lambda found: found[0].update(path=root))
    with pytest.raises(CheckpointMismatchError, match=r"modules.json says that the Transformer is in"):
        pellucid.load(folder)


@pytest.mark.parametrize("alone", [True, False])
def test_a_transformer_in_a_folder_of_its_own_is_refused(folder: Path, alone: bool) -> None:
    """With another model beside modules.json, or without one."""
    edit_json(folder / "modules.json", lambda found: found[0].update(path="0_Transformer"))
    if alone:
        (folder / "config.json").unlink()
    with pytest.raises(CheckpointMismatchError, match=r"modules.json says that the Transformer is in '0_Transformer'"):
        pellucid.load(folder)


def test_max_seq_length_overrides_the_tokenizer(folder: Path) -> None:
    edit(folder, "tokenizer_config.json", model_max_length=4)
    short = reference_vectors(folder)
    edit(folder, TRANSFORMER_CONFIGS[0], max_seq_length=7)
    expected = reference_vectors(folder)
    assert not torch.allclose(short, expected, atol=1e-2)
    model = pellucid.load(folder)
    torch.testing.assert_close(model.embed(TEXTS), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(reference_vectors(model.save(folder.parent / "again")), expected, rtol=0, atol=1e-5)
    edit(folder, TRANSFORMER_CONFIGS[0], max_seq_length=None)
    torch.testing.assert_close(pellucid.load(folder).embed(TEXTS), short, rtol=0, atol=1e-5)


@pytest.mark.parametrize("value", ["false", 1, -1, []])
def test_a_flag_is_true_or_false(folder: Path, value: object) -> None:
    edit(folder, POOLED, pooling_mode_mean_tokens=value)
    with pytest.raises(CorruptFileError, match=r"pooling_mode_mean_tokens is .*, expected true or false"):
        pellucid.load(folder)
    edit(folder, POOLED, pooling_mode_mean_tokens=None)
    pellucid.load(folder)


def test_pooling_of_another_dimension_is_refused(folder: Path) -> None:
    edit(folder, POOLED, word_embedding_dimension=7)
    with pytest.raises(CheckpointMismatchError, match=r"the pooling is for states of 7 numbers, the model's have \d+"):
        pellucid.load(folder)


@pytest.mark.parametrize("family", ["bart", "t5", "bert"])
def test_other_pooling_of_encoder_decoders_is_reported(
    family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = pellucid.load(save(family, tmp_path / "plain", head=False))
    loaded = dataclasses.replace(model.loaded, pooling=Pooling())
    folder = save_checkpoint(loaded, tmp_path / "model")
    pellucid.load(folder)
    assert caplog.text.count("sentence-transformers takes the decoder's") == (2 if family == "bart" else 0)


def test_lone_surrogates_are_replaced(folder: Path) -> None:
    (folder / SENTENCE_CONFIG).write_text(json.dumps({"prompts": {"query": "a\ud800"}}))
    edit(folder, "tokenizer_config.json", chat_template="{{messages}}\ud800")
    model = pellucid.load(folder)
    again = pellucid.load(model.save(folder.parent / "again"))
    assert again.loaded.pooling is not None and again.loaded.pooling.prompts == {"query": "a\ufffd"}
    assert again.tokenizer.settings["chat_template"] == "{{messages}}\ufffd"

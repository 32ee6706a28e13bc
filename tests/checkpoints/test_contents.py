"""What is read of a checkpoint: only what is requested, and only what belongs together."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import pellucid
from pellucid.checkpoints import contents
from pellucid.checkpoints.contents import read_contents
from pellucid.checkpoints.inventory import _state
from pellucid.checkpoints.load import read_config, read_tokenizer
from pellucid.checkpoints.source import locate
from pellucid.config import SequenceToSequenceLM
from pellucid.errors import CheckpointMismatchError, InputError, NotFoundError
from tests.checkpoints.builders import (
    PICKLED,
    TOKEN_TABLE,
    WEIGHTS,
    convert_to_bin,
    edit_json,
    valid_checkpoint,
    vocabulary,
    with_file,
    with_tensors,
)
from tests.checkpoints.families import save
from tests.generation.writers import byte_level, pieces
from tests.parity.reference import tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny BERT with a vocabulary."""
    folder = valid_checkpoint(tmp_path / "model", vocab_size=70)
    with_file("vocab.txt", "\n".join(vocabulary()))(folder)
    return folder


# -- what is read ------------------------------------------------------------------------------------------------------


def test_config_and_tokenizer_are_read_without_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    tokenizer = read_tokenizer(folder)
    assert tokenizer is not None and tokenizer.encode(["a b"])[0].tokens == ["[CLS]", "a", "b", "[SEP]"]
    assert read_config(folder).vocab_size == 70
    with pytest.raises(NotFoundError, match="holds no weights"):
        pellucid.load(folder)


def test_interrupted_training_is_named(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "training").mkdir()
    with pytest.raises(NotFoundError, match="holds a training that was interrupted, and no model: resume it first"):
        pellucid.load(folder)


def test_weights_under_other_names_are_named(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "model.fp16.safetensors")
    with pytest.raises(NotFoundError, match=r"it holds model\.fp16\.safetensors, which .* rename"):
        pellucid.load(folder)


@pytest.mark.parametrize("head", ["own", None, "masked-lm"])
@pytest.mark.parametrize("architectures", [None, []], ids=["none", "empty"])
def test_head_without_an_architecture_is_reported(
    architectures: object, head: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save("bert", tmp_path / "model")
    edit_json(folder / "config.json", lambda found: found.update(architectures=architectures))
    model = pellucid.load(folder, head=head)
    assert (model.config.head is None) == (head != "masked-lm")
    message = "names no architecture: its body is read without a head, and cls.predictions.bias, "
    assert (message in caplog.text) == (head == "own")


@pytest.mark.parametrize(
    ("architecture", "read_as", "unread"),
    [
        ("BertForPreTraining", "BertForMaskedLM", "bert.pooler.dense.bias, bert.pooler.dense.weight, cls.seq_rel"),
        ("AlbertForPreTraining", "AlbertForMaskedLM", "albert.pooler.bias, albert.pooler.weight, sop_classifier."),
        ("ElectraForPreTraining", "ElectraModel", "discriminator_predictions.dense.bias, "),
    ],
)
def test_unread_head_of_a_pretraining_architecture_is_reported(
    architecture: str, read_as: str, unread: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny(tmp_path, architecture, dtype=torch.float32)
    pellucid.load(tmp_path).save(tmp_path / "saved")
    assert f"names {architecture}, which is read as {read_as}: {unread}" in caplog.text
    caplog.clear()
    pellucid.load(tmp_path / "saved")
    pellucid.load(tmp_path, head=None)
    assert "which is read as" not in caplog.text


def test_reading_a_tokenizer_reads_no_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert_to_bin(folder)
    (folder / PICKLED).write_bytes(b"no weights at all")

    def read(folder: Path) -> None:
        raise AssertionError("the weights were looked at")

    monkeypatch.setattr(contents, "stored_tensors", read)
    assert read_tokenizer(folder) is not None and read_config(folder).kind == "encoder"
    with pytest.raises(AssertionError, match="the weights were looked at"):
        _ = read_contents(locate(folder)).tensors


# -- what a new head reads ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [("weight", "bias"), ("bias",)])
def test_new_head_adds_a_missing_pooler(parts: tuple[str, ...], folder: Path) -> None:
    with_tensors(lambda tensors: [tensors.pop(f"pooler.dense.{part}") for part in parts])(folder)
    if len(parts) == 1:
        with pytest.raises(CheckpointMismatchError, match=r"1 missing \(bert.pooler.dense.bias\)|1 missing \(pooler"):
            pellucid.load(folder, head="sequence-classification")
        return
    model = pellucid.load(folder, head="sequence-classification")
    assert model.loaded.untrained == ("head", "pooler") and "pooler" in repr(model.loaded.untrained)
    assert float(model.module.pooler.dense.weight.detach().std()) > 0.01
    assert torch.isfinite(model(torch.ones(1, 3, dtype=torch.long))["logits"]).all()
    assert pellucid.load(folder, head="token-classification").loaded.untrained == ("head",)


@pytest.mark.parametrize(
    ("number", "stored_dtype", "dtype", "wider"),
    [
        (-1e5, torch.float32, "float16", "float32"),
        (1e5, torch.bfloat16, "float16", "float32"),
        (3.4e38, torch.float32, "bfloat16", "float32"),
        (1e300, torch.float64, "float32", "float64"),
        (1e300, torch.float64, "float16", "float64"),
    ],
)
def test_values_beyond_a_narrower_dtype_are_refused(
    number: float, stored_dtype: torch.dtype, dtype: str, wider: str, folder: Path
) -> None:
    """They would silently become infinite, and every answer NaN."""

    def enlarge(tensors: dict[str, torch.Tensor]) -> None:
        tensors[TOKEN_TABLE] = tensors[TOKEN_TABLE].to(stored_dtype)
        tensors[TOKEN_TABLE][0, 0] = number

    with_tensors(enlarge)(folder)
    with pytest.raises(
        InputError, match=rf"{TOKEN_TABLE} holds .*the largest number of {dtype} is .*: pass dtype='{wider}'"
    ):
        pellucid.load(folder, dtype=dtype)
    found = pellucid.load(folder, dtype=wider).module.get_parameter("embeddings.token.weight")[0, 0].item()
    assert found == pytest.approx(number, rel=0.01)


def test_failed_dtype_conversion_leaves_the_model_unchanged(tiny: pellucid.Model) -> None:
    weight = tiny.module.get_parameter("embeddings.token.weight")
    with torch.no_grad():
        weight[0, 0] = 65520
    with pytest.raises(InputError, match="weight holds 65520, and the largest number of float16 is 65504"):
        tiny.to(dtype="float16")
    assert tiny.dtype == torch.float32 == weight.dtype
    assert tiny.to(dtype="bfloat16").dtype == torch.bfloat16


def test_a_head_that_the_family_lacks_is_named(folder: Path) -> None:
    with pytest.raises(InputError, match="bert has no head 'causal-lm'; it has"):
        pellucid.load(folder, head="causal-lm")
    for odd in (0, True, ["masked-lm"]):
        with pytest.raises(InputError, match=r"head is .*, expected one of .*token-classification.*, or None"):
            pellucid.load(folder, head=odd)


# -- vocabularies and embedding tables ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (500, 500, None),
        (300, 500, "the tokenizer gives ids up to 419, the model's table of tokens has 300 rows"),
        (500, 150, "the tokenizer of the decoder gives ids up to 199, the model's table of tokens has 150 rows"),
    ],
)
def test_vocabularies_must_fit_their_embedding_tables(
    source: int, target: int, message: str | None, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    sizes |= {"num_decoder_layers": 1, "decoder_attention_heads": 2, "decoder_intermediate_size": 16}
    tables = {"vocab_size": target, "source_vocab_size": source, "share_embeddings": False}
    tables["decoder_start_token_id"] = target - 1  # within the decoder's table, which may be the larger one
    config = pellucid.Config.of("transformer", head=SequenceToSequenceLM(), **sizes, **tables)
    model = pellucid.build(config).reading(byte_level())
    pellucid.Model(replace(model.loaded, target_tokenizer=pieces())).save(tmp_path / "a")
    if message is None:
        assert pellucid.load(tmp_path / "a").loaded.target_tokenizer is not None
        return
    with pytest.raises(CheckpointMismatchError, match=message):
        pellucid.load(tmp_path / "a")


# -- the list of models ------------------------------------------------------------------------------------------------


def test_odd_folders_have_a_state_in_the_model_list(folder: Path, tmp_path: Path) -> None:
    assert _state(folder) == "ready"
    adapter, weights = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    adapter.write_text('{"base_model_name_or_path": "no/such", "peft_type": "LORA"}')
    assert _state(folder) == "incomplete: no weights"
    weights.touch()
    assert _state(folder) == "ready"  # the base is in the same folder, whatever the adapter names
    adapter.write_text("{")
    assert _state(folder) == "incomplete: no readable adapter_config.json"
    adapter.unlink()
    edit_json(folder / "config.json", lambda facts: facts.update(model_type=["x"]))
    assert _state(folder) == "family ['x'] is not known yet"
    (folder / "config.json").write_text("[" * 100_000)
    assert _state(folder) == "incomplete: no readable config.json"
    several = tmp_path / "several"
    several.mkdir()
    (several / "a.gguf").touch()
    (several / "mmproj-F16.gguf").touch()
    assert _state(several) == "ready" and locate(several).file == several / "a.gguf"
    (several / "b.gguf").touch()
    assert _state(several) == "holds several .gguf files: open one by its path"
    with pytest.raises(InputError, match=r"holds a\.gguf, b\.gguf: give the path of one, such as /.*/a\.gguf$"):
        locate(several)

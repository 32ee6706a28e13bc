"""Every valid form of a checkpoint loads, with the same weights."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

import pellucid
from pellucid.config import SequenceClassification
from pellucid.errors import InputError, PellucidError
from tests.checkpoints.builders import (
    PICKLED,
    WEIGHTS,
    assert_one_sentence,
    convert_to_bin,
    edit_json,
    save_bin,
    split_into_shards,
    valid_checkpoint,
    with_bytes,
    with_config,
    with_tensors,
)
from tests.checkpoints.families import save
from tests.parity.reference import tiny as reference
from tests.trace.odd_sized_models import config_of

Numbers = dict[str, torch.Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return valid_checkpoint(tmp_path / "model")


def loaded_weights(folder: Path, **settings: object) -> Numbers:
    """The state dict of what loads."""
    return pellucid.load(folder, **settings).module.state_dict()


def same_tensors(found: Numbers, expected: Numbers) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


# -- names -------------------------------------------------------------------------------------------------------------


def add_prefix(tensors: Numbers) -> None:
    for name in list(tensors):
        tensors[f"bert.{name}"] = tensors.pop(name)


def use_legacy_names(tensors: Numbers) -> None:
    for name in [name for name in tensors if "LayerNorm" in name]:
        other = name.replace(".weight", ".gamma").replace(".bias", ".beta")
        tensors[other] = tensors.pop(name)


def add_position_ids(tensors: Numbers) -> None:
    tensors["embeddings.position_ids"] = torch.arange(32)[None]


def add_position_ids_and_prefix(tensors: Numbers) -> None:
    add_position_ids(tensors)
    add_prefix(tensors)


def add_foreign_head(tensors: Numbers) -> None:
    tensors["classifier.weight"], tensors["classifier.bias"] = torch.ones(2, 24), torch.ones(2)
    tensors["cls.seq_relationship.weight"] = torch.ones(2, 24)


@pytest.mark.parametrize(
    "change", [len, add_prefix, use_legacy_names, add_position_ids, add_position_ids_and_prefix, add_foreign_head]
)
def test_every_spelling_of_the_names_loads(change: Callable[[Numbers], None], folder: Path) -> None:
    expected = loaded_weights(folder)
    with_tensors(change)(folder)
    assert same_tensors(loaded_weights(folder), expected)
    assert same_tensors(loaded_weights(folder, head=None), expected)


# -- forms -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_shards_load(form: str, folder: Path) -> None:
    expected = loaded_weights(folder)
    split_into_shards(folder, form)
    assert not (folder / WEIGHTS).exists()
    assert same_tensors(loaded_weights(folder), expected)


def test_safetensors_take_precedence_over_bin(folder: Path) -> None:
    expected = loaded_weights(folder)
    save_bin({"not": "opened"}, folder / PICKLED)
    assert same_tensors(loaded_weights(folder), expected)


def test_views_of_one_storage_load_and_are_saved_at_their_own_size(folder: Path, tmp_path: Path) -> None:
    expected = load_file(folder / WEIGHTS)
    size = (folder / WEIGHTS).stat().st_size
    storage = torch.cat([value.flatten() for value in expected.values()])
    pieces = storage.split([value.numel() for value in expected.values()])
    convert_to_bin(folder)
    save_bin({n: p.view(v.shape) for (n, v), p in zip(expected.items(), pieces, strict=True)}, folder / PICKLED)
    pellucid.load(folder).save(tmp_path / "copy")
    assert same_tensors(load_file(tmp_path / "copy" / WEIGHTS), expected)
    assert (tmp_path / "copy" / WEIGHTS).stat().st_size == pytest.approx(size, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_every_dtype_becomes_float32(dtype: torch.dtype, form: str, folder: Path) -> None:
    expected = {name: value.to(dtype) for name, value in loaded_weights(folder).items()}
    with_tensors(lambda tensors: tensors.update({n: v.to(dtype) for n, v in tensors.items()}))(folder)
    if form == "bin":
        convert_to_bin(folder)
    assert same_tensors(loaded_weights(folder), {name: value.float() for name, value in expected.items()})
    assert same_tensors(loaded_weights(folder, dtype="checkpoint"), expected)


def test_a_folder_behind_a_link_loads(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder, target_is_directory=True)
    assert same_tensors(loaded_weights(tmp_path / "link"), loaded_weights(folder))


def test_a_link_inside_the_folder_loads(folder: Path) -> None:
    expected = loaded_weights(folder)
    (folder / WEIGHTS).rename(folder / "real.safetensors")
    (folder / WEIGHTS).symlink_to("real.safetensors")
    assert same_tensors(loaded_weights(folder), expected)


def test_a_config_with_a_byte_order_mark_loads(folder: Path) -> None:
    with_bytes(lambda raw: b"\xef\xbb\xbf" + raw, "config.json")(folder)
    assert pellucid.load(folder).config.vocab_size == 60


def test_the_architecture_names_the_family_where_no_model_type_does(folder: Path, tmp_path: Path) -> None:
    """As in files older than that key, such as ProtBERT's."""
    expected = loaded_weights(folder)
    edit_json(folder / "config.json", lambda config: config.pop("model_type"))
    assert same_tensors(loaded_weights(folder), expected)
    saved = pellucid.load(folder).save(tmp_path / "saved")
    assert json.loads((saved / "config.json").read_text(encoding="utf-8"))["model_type"] == "bert"


def test_padding_id_of_minus_one_means_none(tmp_path: Path) -> None:
    """As in the first files of LLaMA, which the reference opens."""
    folder = save("llama", tmp_path / "model", pad_token_id=None)
    ids = torch.tensor([[5, 6, 7]])
    expected = pellucid.load(folder)(ids).logits
    with_config(pad_token_id=-1)(folder)
    theirs = LlamaForCausalLM.from_pretrained(folder).eval()
    ours = pellucid.load(folder)
    assert ours.config.pad_token_id is None
    assert torch.equal(ours(ids).logits, expected)
    torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("labels", [{}, {"1": "a", "2": "b"}, {"0": "a", "1": "a"}, ["a", "b"]])
@pytest.mark.parametrize("architecture", ["BertModel", "BertForMaskedLM", "BertForQuestionAnswering"])
def test_invalid_labels_that_nothing_reads_are_reported(
    architecture: str, labels: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save("bert", tmp_path / "model")
    expected = pellucid.load(folder, head=None)(torch.tensor([[5, 6, 7]])).last_hidden_state
    with_config(id2label=labels, label2id={"a": 1}, architectures=[architecture])(folder)
    caplog.clear()
    found = pellucid.load(folder, head=None)
    assert torch.equal(found(torch.tensor([[5, 6, 7]])).last_hidden_state, expected)
    assert found.config.labels == ("LABEL_0", "LABEL_1")
    messages = [line for line in caplog.messages if "label" in line]
    assert (
        len(messages) == 1
        and "no two alike; it is left alone, and a head with labels calls them LABEL_0" in messages[0]
    )
    with_config(architectures=["BertForTokenClassification"])(folder)
    with pytest.raises(PellucidError, match=r"id2label is|labels are"):
        pellucid.load(folder, head=None)


def test_ignored_labels_keep_their_number_for_a_new_head(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = config_of("bert", SequenceClassification(), labels=("a", "b", "c"))
    folder = pellucid.build(config, seed=1).save(tmp_path / "model")
    ids = torch.tensor([[5, 6, 7]])
    expected = pellucid.load(folder)(ids).logits
    with_config(id2label={"0": "a", "1": "a", "2": "b"}, architectures=["BertForMaskedLM"])(folder)
    found = pellucid.load(folder, head="sequence-classification")
    assert torch.equal(found(ids).logits, expected) and found.config.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert "id2label is {'0': 'a', '1': 'a', '2': 'b'}" in caplog.text


def test_surplus_layers_are_unexpected_tensors(folder: Path) -> None:
    with_config(num_hidden_layers=1)(folder)
    with pytest.raises(pellucid.CheckpointMismatchError, match=r"unexpected tensors \(.*") as caught:
        pellucid.load(folder)
    assert "state dict" not in str(caught.value)


def test_twenty_thousand_unexpected_tensors_are_counted(folder: Path) -> None:
    """Quickly: time is linear in the size of the file."""
    more = {f"n{i}": torch.zeros(0) for i in range(20_000)}
    with_tensors(lambda tensors: tensors.update(more))(folder)
    with pytest.raises(pellucid.CheckpointMismatchError, match="20,000 unexpected"):
        pellucid.load(folder)


# -- heads and parts ---------------------------------------------------------------------------------------------------


def test_a_head_in_the_file_is_left_out_on_request(tmp_path: Path) -> None:
    reference(tmp_path, "BertForSequenceClassification", dtype=torch.float32)
    body = pellucid.load(tmp_path, head=None)
    assert body.config.head is None
    assert not [name for name in body.module.state_dict() if name.startswith("head.")]
    tensors = load_file(tmp_path / WEIGHTS)
    assert torch.equal(body.module.embeddings.token.weight, tensors["bert.embeddings.word_embeddings.weight"])


@pytest.mark.parametrize(
    ("name", "head"), [("llama-reader", "token-classification"), ("t5-feelings", "question-answering")]
)
def test_body_names_with_a_head_prefix_are_read(name: str, head: str, checkpoint: Callable[[str], Path]) -> None:
    """Only files with a head prefix the names of the body with "transformer."."""
    whole = pellucid.load(checkpoint(name))
    body, other = (pellucid.load(checkpoint(name), head=one) for one in (None, head))
    expected = {key: value for key, value in whole.module.state_dict().items() if not key.startswith("head.")}
    assert same_tensors(body.module.state_dict(), expected)
    assert same_tensors({key: other.module.state_dict()[key] for key in expected}, expected)


def test_new_head_is_shown_as_untrained(folder: Path) -> None:
    model = pellucid.load(folder, head="sequence-classification")
    assert "sequence-classification head (UNTRAINED)" in repr(model)
    assert "UNTRAINED" not in repr(pellucid.load(folder))
    assert same_tensors(
        loaded_weights(folder, head="sequence-classification"), model.module.state_dict()
    )  # random, yet equal


def test_a_head_of_the_file_is_trained(tmp_path: Path) -> None:
    reference(tmp_path, "BertForSequenceClassification", dtype=torch.float32)
    assert "UNTRAINED" not in repr(pellucid.load(tmp_path, head="sequence-classification"))


def test_a_checkpoint_without_a_pooler_loads(folder: Path) -> None:
    with_tensors(lambda tensors: [tensors.pop(f"pooler.dense.{part}") for part in ("weight", "bias")])(folder)
    output = pellucid.load(folder)(torch.ones(1, 3, dtype=torch.long))
    assert "pooler_output" not in output
    assert output.last_hidden_state.shape == (1, 3, 24)


def test_tied_table_stored_twice_is_one(tmp_path: Path) -> None:
    """As in old `.bin` files: the decoder has a name of its own too."""
    theirs = reference(tmp_path, "BertForMaskedLM", dtype=torch.float32)
    tensors = theirs.state_dict()
    assert torch.equal(tensors["cls.predictions.decoder.weight"], tensors["bert.embeddings.word_embeddings.weight"])
    (tmp_path / WEIGHTS).unlink()
    save_bin(tensors, tmp_path / PICKLED)
    module = pellucid.load(tmp_path).module
    assert torch.equal(module.head.decoder.weight, module.embeddings.token.weight)


# -- texts -------------------------------------------------------------------------------------------------------------


def test_without_a_tokenizer_only_texts_are_refused(folder: Path) -> None:
    model = pellucid.load(folder)
    assert model(torch.ones(1, 3, dtype=torch.long)).last_hidden_state.shape == (1, 3, 24)
    with pytest.raises(InputError, match="tokenizer"):
        model.embed("a text")


def test_unknown_keys_are_named_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with_config(colour="blue", taste=None, torch_dtype="float32")(folder)
    with caplog.at_level(logging.WARNING, logger="pellucid"):
        pellucid.load(folder)
    (record,) = caplog.records
    assert "colour, taste" in record.getMessage()
    assert "torch_dtype" not in record.getMessage()


@pytest.mark.parametrize(
    ("model_type", "facts"),
    [
        ("bert", {"directionality": "bidi", "pooler_fc_size": 768, "pooler_type": "first_token_transform"}),
        ("distilbert", {"tie_weights_": True}),
        ("gpt2", {"predict_special_tokens": True, "_num_labels": 1}),
        ("bart", {"_num_labels": 3}),
        ("llama", {"max_sequence_length": 2048}),
        ("qwen2", {"use_mrope": False}),
    ],
)
def test_common_harmless_keys_give_no_warning(
    model_type: str, facts: dict[str, object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save(model_type, tmp_path / "model")
    with_config(**facts)(folder)
    with caplog.at_level(logging.WARNING, logger="pellucid"):
        pellucid.load(folder)
    assert not caplog.records


@pytest.mark.parametrize("facts", [{"a\n\x1b[2J" * 99: 1}, {"architectures": ["\x1b[2J" * 999]}])
def test_a_warning_is_one_line_whatever_the_file_says(
    facts: dict[str, object], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with_config(**facts)(folder)
    with caplog.at_level(logging.WARNING, logger="pellucid"):
        pellucid.load(folder)
    (record,) = caplog.records
    assert_one_sentence(record.getMessage(), folder)


def test_valid_config_gives_no_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="pellucid"):
        pellucid.load(folder)
    assert not caplog.records


def test_the_hubs_links_into_its_blobs_are_followed_and_no_others(folder: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models--a--b"
    snapshot = repository / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for path in folder.iterdir():
        shutil.copy(path, repository / "blobs" / path.name)
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    assert same_tensors(loaded_weights(snapshot), loaded_weights(folder))
    (snapshot / WEIGHTS).unlink()
    (snapshot / WEIGHTS).symlink_to(folder / WEIGHTS)
    with pytest.raises(pellucid.UnsafeFileError, match="outside the checkpoint"):
        pellucid.load(snapshot)


def test_folder_name_is_escaped_in_html(tmp_path: Path) -> None:
    folder = valid_checkpoint(tmp_path / "m<img src=x onerror=alert(1)>")
    shown = pellucid.load(folder)._repr_html_()
    assert "<img" not in shown and "m&lt;img src=x onerror=alert(1)&gt;" in shown

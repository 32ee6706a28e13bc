"""The reference's aliases of a family's keys: read, or refused beside a different value."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel

import pellucid
from pellucid.checkpoints.families import families
from pellucid.checkpoints.family_page import Family
from pellucid.errors import CheckpointMismatchError, CorruptFileError
from tests.parity.reference import TINY, batch, in_full, tiny

ALIASES = [(name, alias) for name, page in families().items() for alias in page.keys.aliases]
MODELS = {"bart": "BartModel", "distilbert": "DistilBertModel", "gpt2": "GPT2Model", "t5": "T5Model"}

aliased = pytest.mark.parametrize(("family", "alias"), ALIASES)


def own_key(page: Family, alias: str) -> str:
    """The family's own key of a fact."""
    return next(key for key, ours in page.keys.renamed.items() if ours == alias)


def edit_config(folder: Path, change: dict[str, Any], without: str = "") -> None:
    path = folder / "config.json"
    facts = json.loads(path.read_text(encoding="utf-8"))
    facts.pop(without, None)
    path.write_text(json.dumps(facts | change), encoding="utf-8")


@pytest.mark.parametrize("family", TINY)
def test_family_page_lists_every_alias_of_the_reference(family: str) -> None:
    page = families()[family]
    theirs = type(AutoConfig.for_model(family)).attribute_map
    assert {alias: own_key(page, alias) for alias in page.keys.aliases} == theirs


@aliased
def test_alias_without_the_own_key_is_read_and_saved_under_the_own_key(family: str, alias: str, tmp_path: Path) -> None:
    tiny(tmp_path / "theirs", MODELS[family], dtype=torch.float64)
    key = own_key(families()[family], alias)
    value = TINY[family][key]
    edit_config(tmp_path / "theirs", {alias: value}, without=key)
    theirs = AutoModel.from_pretrained(tmp_path / "theirs", dtype=torch.float64).eval()
    inputs = batch(padded=False, types=False)
    inputs |= {"decoder_input_ids": inputs["input_ids"]} if theirs.config.is_encoder_decoder else {}
    model = pellucid.load(tmp_path / "theirs", dtype="float64")
    with torch.no_grad(), in_full():
        expected = theirs(**inputs).last_hidden_state
    torch.testing.assert_close(model(**inputs).last_hidden_state, expected, rtol=0, atol=1e-9)
    saved = json.loads((model.save(tmp_path / "ours") / "config.json").read_text(encoding="utf-8"))
    assert saved[key] == value
    assert alias not in saved


@aliased
def test_alias_with_the_same_value_is_ignored_and_with_another_is_refused(
    family: str, alias: str, tmp_path: Path
) -> None:
    tiny(tmp_path, MODELS[family], dtype=torch.float64)
    key = own_key(families()[family], alias)
    value = TINY[family][key]
    plain = pellucid.load(tmp_path).config
    edit_config(tmp_path, {alias: value})
    assert pellucid.load(tmp_path).config == plain
    edit_config(tmp_path, {alias: value + 1})
    with pytest.raises(
        CheckpointMismatchError, match=f"{key} is {value} and {alias}, the same fact, is {value + 1}; correct"
    ):
        pellucid.load(tmp_path)


def test_error_about_an_alias_uses_the_name_in_the_file(tmp_path: Path) -> None:
    tiny(tmp_path, "DistilBertModel", dtype=torch.float32)
    edit_config(tmp_path, {"num_hidden_layers": None}, without="n_layers")
    with pytest.raises(CorruptFileError, match="json: num_hidden_layers is None, expected a whole number"):
        pellucid.load(tmp_path)
    edit_config(tmp_path, {"num_hidden_layers": 0})
    with pytest.raises(CorruptFileError, match="json: num_hidden_layers is 0, expected a whole number"):
        pellucid.load(tmp_path)


def test_t5_alias_for_layers_does_not_change_the_decoder_layers(tmp_path: Path) -> None:
    """The reference copies the number, still its default, to the decoder before it reads the alias."""
    theirs = tiny(tmp_path, "T5Model", dtype=torch.float64, num_decoder_layers=6).config
    edit_config(tmp_path, {"num_decoder_layers": None, "num_hidden_layers": 3}, without="num_layers")
    assert AutoConfig.from_pretrained(tmp_path).num_decoder_layers == theirs.num_decoder_layers == 6
    config = pellucid.load(tmp_path).config
    assert (config.num_hidden_layers, config.num_decoder_layers) == (3, 6)

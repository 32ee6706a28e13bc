"""Adapters of token embeddings, which many models tie to the head: PEFT changes some in place and copies others."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pellucid
from pellucid.checkpoints.adapter_facts import FILE
from pellucid.checkpoints.load import open_checkpoint
from pellucid.errors import CheckpointMismatchError, InputError
from pellucid.training.low_rank import attach_adapters
from pellucid.training.settings import Settings
from tests.checkpoints import peft_files
from tests.checkpoints.builders import edit_json, with_tensors
from tests.checkpoints.test_adapter import IDS, adapted, answer, base_of


@torch.no_grad()
def ours(folder: Path) -> Tensor:
    model = pellucid.load(folder)
    given = {"decoder_input_ids": IDS} if model.config.kind == "encoder-decoder" else {}
    out = model.module(IDS, **given)
    return out["last_hidden_state"] if model.config.head is None else out["logits"]


SAVED = [
    ("distilbert", "masked-lm", ["q_lin"]),
    ("gpt2", "causal-lm", ["c_fc"]),
    ("llama", "causal-lm", ["q_proj"]),
    ("bart", "sequence-to-sequence-lm", ["v_proj"]),
    ("t5", "sequence-to-sequence-lm", ["q"]),
]


@pytest.mark.parametrize(("kind", "head", "targets"), SAVED)
def test_words_that_are_saved_beside_an_adapter(kind: str, head: str, targets: list[str], tmp_path: Path) -> None:
    """`save_embedding_layers`: read into the base's own embeddings, which stay tied to the head and the other side."""
    facts = {"tie_word_embeddings": True} if kind == "llama" else {}
    base, folder = base_of(tmp_path, kind, head, **facts), tmp_path / "adapter"
    model = peft_files.written(base, folder, head, target_modules=targets)
    before = peft_files.answer(model, IDS, head)
    with torch.no_grad():
        model.get_base_model().get_input_embeddings().weight.mul_(1.5)
    with peft_files.spoken():
        model.save_pretrained(folder, save_embedding_layers=True)
    wanted = peft_files.answer(peft_files.opened(base, folder, head), IDS, head)
    assert not torch.allclose(wanted, before, atol=1e-2)
    torch.testing.assert_close(ours(folder), wanted, rtol=1e-4, atol=1e-4)


MORE: list[tuple[str, str, dict[str, Any]]] = [
    ("llama", "causal-lm", {"target_modules": ["q_proj"]}),
    ("llama", "causal-lm", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}),
    ("bert", "masked-lm", {"target_modules": ["query"]}),
    ("t5", "sequence-to-sequence-lm", {"target_modules": ["q"]}),
]


@pytest.mark.parametrize(("kind", "head", "config"), MORE)
def test_an_adapter_may_know_more_tokens(kind: str, head: str, config: dict[str, Any], tmp_path: Path) -> None:
    base, folder = base_of(tmp_path, kind, head), tmp_path / "adapter"
    tokens = pellucid.load(base).config.vocab_size + 3
    wanted = peft_files.written(base, folder, head, tokens=tokens, **config)
    model, ids = pellucid.load(folder), torch.tensor([[5, tokens - 1, 9]])
    assert model.config.vocab_size == tokens
    given = {"decoder_input_ids": ids} if kind == "t5" else {}
    found = model(ids, **given).logits.detach()
    torch.testing.assert_close(found, peft_files.answer(wanted, ids, head), rtol=1e-4, atol=1e-4)


def test_more_tokens_in_one_table_of_two_are_refused(tmp_path: Path) -> None:
    base, folder = base_of(tmp_path, "llama", "causal-lm"), tmp_path / "adapter"
    peft_files.written(base, folder, "causal-lm", tokens=63, target_modules=["q_proj", "embed_tokens"])
    with pytest.raises(CheckpointMismatchError, match=r"adapter_model.* a table of 63 tokens, and no lm_head\.weight"):
        pellucid.load(folder)


ONE_SIDE: list[tuple[str, str | None, dict[str, Any], str]] = [
    ("bart", None, {"target_modules": ["encoder.embed_tokens"]}, "encoder.embed_tokens"),
    ("bart", "sequence-classification", {"target_modules": ["model.shared", "fc1"]}, "model.shared"),
    ("t5", None, {"target_modules": ["encoder.embed_tokens", "wo"]}, "encoder.embed_tokens"),
    ("bart", None, {"target_modules": ["fc2"], "modules_to_save": ["encoder"]}, "encoder.embed_tokens.weight"),
    ("bart", None, {"target_modules": ["fc2"], "modules_to_save": ["shared"]}, "shared.weight"),
]


@pytest.mark.parametrize(("kind", "head", "config", "named"), ONE_SIDE)
def test_one_side_alone_is_refused(
    kind: str, head: str | None, config: dict[str, Any], named: str, tmp_path: Path
) -> None:
    """PEFT changes what the encoder reads, or what nothing reads; tied embeddings cannot express that."""
    base = base_of(tmp_path, kind, head)
    peft_files.written(base, tmp_path / "adapter", head, **config)
    with pytest.raises(CheckpointMismatchError, match=rf"it changes {named}, whose table is shared"):
        pellucid.load(tmp_path / "adapter")


PLACES: list[tuple[str, str, dict[str, Any], str]] = [
    ("llama", "causal-lm", {"target_modules": ["q_proj", "embed_tokens"]}, "with a copy of the table as its head"),
    ("gpt2", "causal-lm", {"target_modules": ["c_attn", "lm_head"]}, "with a copy of the table as its head"),
    ("gpt2", "causal-lm", {"target_modules": ["wte"], "ensure_weight_tying": True}, "an adapter that leaves it out"),
    ("t5", "sequence-to-sequence-lm", {"target_modules": ["shared"]}, "an adapter that leaves it out"),
    ("t5", "sequence-to-sequence-lm", {"target_modules": ["q"], "modules_to_save": ["shared"]}, "that leaves it out"),
    ("llama", "causal-lm", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, "merge it with the library"),
    ("gpt2", "causal-lm", {"target_modules": ["c_attn"], "modules_to_save": ["wte"]}, "merge it with the library"),
]


@pytest.mark.parametrize(("kind", "head", "config", "advised"), PLACES)
def test_what_is_advised_for_one_place_of_two(
    kind: str, head: str, config: dict[str, Any], advised: str, tmp_path: Path
) -> None:
    """Copying or merging, as advised, gives the adapter's outputs; neither is if a merge would change both uses."""
    base, folder = base_of(tmp_path, kind, head, tie_word_embeddings=True), tmp_path / "adapter"
    wanted = peft_files.answer(peft_files.written(base, folder, head, **config), IDS, head)
    with pytest.raises(CheckpointMismatchError, match=f"whose table is shared .*{advised}"):
        pellucid.load(folder)
    if "leaves" in advised:
        return
    if "copy" in advised:
        apart = peft_files.reference(base, head)
        apart.config.tie_word_embeddings = False
        apart.lm_head.weight = torch.nn.Parameter(apart.lm_head.weight.detach().clone())
        apart.save_pretrained(tmp_path / "apart")
        edit_json(folder / FILE, lambda said: said.update(base_model_name_or_path=str(tmp_path / "apart")))
    else:
        model = peft_files.opened(base, folder, head)
        with peft_files.spoken():
            model.merge_and_unload().save_pretrained(folder := tmp_path / "merged")
    torch.testing.assert_close(ours(folder), wanted, rtol=1e-4, atol=1e-4)


BESIDE: list[tuple[str, str, dict[str, Any], tuple[str, ...]]] = [
    ("bert", "sequence-classification", {}, ("embeddings.*",)),
    ("gpt2", "token-classification", {}, ("embeddings.token.weight",)),
    ("bert", "masked-lm", {}, ("head.dense.*", "head.norm.*")),
    ("bert", "masked-lm", {"tie_word_embeddings": False}, ("head.*",)),
    ("distilbert", "masked-lm", {"tie_word_embeddings": False}, ("head.decoder.bias",)),
]


@pytest.mark.parametrize(("kind", "head", "facts", "names"), BESIDE)
def test_what_learns_whole_is_written_whole(
    kind: str, head: str, facts: dict[str, Any], names: tuple[str, ...], tmp_path: Path
) -> None:
    """A matrix that no head reads is saved like any other; PEFT saves a module with everything below it."""
    base = base_of(tmp_path, kind, head, **facts)
    settings = Settings(lora=2, lora_targets=("query",), lora_beside=names, adapter_only=True)
    folder, model = adapted(base, tmp_path / "adapter", settings)
    torch.testing.assert_close(ours(folder), answer(model, head), rtol=0, atol=1e-5)
    theirs = peft_files.answer(peft_files.opened(base, folder, head), IDS, head)
    torch.testing.assert_close(theirs, ours(folder), rtol=0, atol=1e-5)


UNSAYABLE: list[tuple[str, str, str, str]] = [
    ("gpt2", "causal-lm", "embeddings.*", r"with all of transformer\.wte, which holds a shared table"),
    ("distilbert", "masked-lm", "head.decoder.bias", "with all of vocab_projector, which holds a shared table"),
    ("bert", "masked-lm", "head.*", r"with all of cls\.predictions, which holds a shared table"),
    ("bart", "sequence-to-sequence-lm", "head.bias", "head.bias belongs to no module of the file"),
    ("bert", "sequence-classification", "*bias", "nothing else of .* is left: name less in lora_beside"),
]


@pytest.mark.parametrize(("kind", "head", "name", "says"), UNSAYABLE)
def test_what_the_format_cannot_say_is_told_before_it_learns(
    kind: str, head: str, name: str, says: str, tmp_path: Path
) -> None:
    base = base_of(tmp_path, kind, head)
    said: dict[str, Any] = {"lora": 2, "lora_beside": (name,)}
    with pytest.raises(InputError, match=f"{says}.*pass adapter_only=False, by which the whole model is written"):
        attach_adapters(open_checkpoint(base), Settings(**said, adapter_only=True))
    attach_adapters(open_checkpoint(base), Settings(**said))


def test_what_the_base_lacks_is_said(tmp_path: Path) -> None:
    """Nothing is tied there: the base was saved without a pooler, which the reference would initialise at random."""
    base = base_of(tmp_path, "bert", None)
    with_tensors(lambda tensors: [tensors.pop(name) for name in list(tensors) if "pooler" in name])(base)
    peft_files.written(base, tmp_path / "adapter", None, target_modules=["pooler.dense"])
    with pytest.raises(CheckpointMismatchError, match=r"it adds to pooler\.dense, for which .* holds no weights"):
        pellucid.load(tmp_path / "adapter")

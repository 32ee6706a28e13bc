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
from tests.checkpoints.test_adapter import IDS, model_output, random_adapter, save_base


@torch.no_grad()
def our_output(folder: Path) -> Tensor:
    model = pellucid.load(folder)
    inputs = {"decoder_input_ids": IDS} if model.config.kind == "encoder-decoder" else {}
    out = model.module(IDS, **inputs)
    return out["last_hidden_state"] if model.config.head is None else out["logits"]


SAVED = [
    ("distilbert", "masked-lm", ["q_lin"]),
    ("gpt2", "causal-lm", ["c_fc"]),
    ("llama", "causal-lm", ["q_proj"]),
    ("bart", "sequence-to-sequence-lm", ["v_proj"]),
    ("t5", "sequence-to-sequence-lm", ["q"]),
]


@pytest.mark.parametrize(("kind", "head", "targets"), SAVED)
def test_embeddings_saved_with_an_adapter_are_read(kind: str, head: str, targets: list[str], tmp_path: Path) -> None:
    """`save_embedding_layers`: read into the base's own embeddings, which stay tied to the head and the other side."""
    facts = {"tie_word_embeddings": True} if kind == "llama" else {}
    base, folder = save_base(tmp_path, kind, head, **facts), tmp_path / "adapter"
    model = peft_files.write_adapter(base, folder, head, target_modules=targets)
    before = peft_files.model_output(model, IDS, head)
    with torch.no_grad():
        model.get_base_model().get_input_embeddings().weight.mul_(1.5)
    with peft_files.quiet_peft():
        model.save_pretrained(folder, save_embedding_layers=True)
    expected = peft_files.model_output(peft_files.open_adapter(base, folder, head), IDS, head)
    assert not torch.allclose(expected, before, atol=1e-2)
    torch.testing.assert_close(our_output(folder), expected, rtol=1e-4, atol=1e-4)


MORE_TOKENS: list[tuple[str, str, dict[str, Any]]] = [
    ("llama", "causal-lm", {"target_modules": ["q_proj"]}),
    ("llama", "causal-lm", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}),
    ("bert", "masked-lm", {"target_modules": ["query"]}),
    ("t5", "sequence-to-sequence-lm", {"target_modules": ["q"]}),
]


@pytest.mark.parametrize(("kind", "head", "config"), MORE_TOKENS)
def test_adapter_with_additional_tokens_opens(kind: str, head: str, config: dict[str, Any], tmp_path: Path) -> None:
    base, folder = save_base(tmp_path, kind, head), tmp_path / "adapter"
    tokens = pellucid.load(base).config.vocab_size + 3
    expected = peft_files.write_adapter(base, folder, head, tokens=tokens, **config)
    model, ids = pellucid.load(folder), torch.tensor([[5, tokens - 1, 9]])
    assert model.config.vocab_size == tokens
    inputs = {"decoder_input_ids": ids} if kind == "t5" else {}
    found = model(ids, **inputs).logits.detach()
    torch.testing.assert_close(found, peft_files.model_output(expected, ids, head), rtol=1e-4, atol=1e-4)


def test_additional_tokens_in_one_of_two_tables_are_refused(tmp_path: Path) -> None:
    base, folder = save_base(tmp_path, "llama", "causal-lm"), tmp_path / "adapter"
    peft_files.write_adapter(base, folder, "causal-lm", tokens=63, target_modules=["q_proj", "embed_tokens"])
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
def test_adapter_of_one_side_of_tied_embeddings_is_refused(
    kind: str, head: str | None, config: dict[str, Any], named: str, tmp_path: Path
) -> None:
    """PEFT changes what the encoder reads, or what nothing reads; tied embeddings cannot express that."""
    base = save_base(tmp_path, kind, head)
    peft_files.write_adapter(base, tmp_path / "adapter", head, **config)
    with pytest.raises(CheckpointMismatchError, match=rf"it changes {named}, whose table is shared"):
        pellucid.load(tmp_path / "adapter")


TIED_TABLES: list[tuple[str, str, dict[str, Any], str]] = [
    ("llama", "causal-lm", {"target_modules": ["q_proj", "embed_tokens"]}, "with a copy of the table as its head"),
    ("gpt2", "causal-lm", {"target_modules": ["c_attn", "lm_head"]}, "with a copy of the table as its head"),
    ("gpt2", "causal-lm", {"target_modules": ["wte"], "ensure_weight_tying": True}, "an adapter that leaves it out"),
    ("t5", "sequence-to-sequence-lm", {"target_modules": ["shared"]}, "an adapter that leaves it out"),
    ("t5", "sequence-to-sequence-lm", {"target_modules": ["q"], "modules_to_save": ["shared"]}, "that leaves it out"),
    ("llama", "causal-lm", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, "merge it with the library"),
    ("gpt2", "causal-lm", {"target_modules": ["c_attn"], "modules_to_save": ["wte"]}, "merge it with the library"),
]


@pytest.mark.parametrize(("kind", "head", "config", "advised"), TIED_TABLES)
def test_advice_for_tied_tables_gives_the_output_of_the_adapter(
    kind: str, head: str, config: dict[str, Any], advised: str, tmp_path: Path
) -> None:
    """Copying or merging, as advised, gives the adapter's outputs; neither is if a merge would change both uses."""
    base, folder = save_base(tmp_path, kind, head, tie_word_embeddings=True), tmp_path / "adapter"
    expected = peft_files.model_output(peft_files.write_adapter(base, folder, head, **config), IDS, head)
    with pytest.raises(CheckpointMismatchError, match=f"whose table is shared .*{advised}"):
        pellucid.load(folder)
    if "leaves" in advised:
        return
    if "copy" in advised:
        untied = peft_files.reference(base, head)
        untied.config.tie_word_embeddings = False
        untied.lm_head.weight = torch.nn.Parameter(untied.lm_head.weight.detach().clone())
        untied.save_pretrained(tmp_path / "apart")
        edit_json(folder / FILE, lambda config: config.update(base_model_name_or_path=str(tmp_path / "apart")))
    else:
        model = peft_files.open_adapter(base, folder, head)
        with peft_files.quiet_peft():
            model.merge_and_unload().save_pretrained(folder := tmp_path / "merged")
    torch.testing.assert_close(our_output(folder), expected, rtol=1e-4, atol=1e-4)


TRAINED_MODULES: list[tuple[str, str | None, dict[str, Any], tuple[str, ...]]] = [
    ("bert", "sequence-classification", {}, ("embeddings.*",)),
    ("gpt2", "token-classification", {}, ("embeddings.token.weight",)),
    ("bert", "masked-lm", {}, ("head.dense.*", "head.norm.*")),
    ("bert", "masked-lm", {"tie_word_embeddings": False}, ("head.*",)),
    ("distilbert", "masked-lm", {"tie_word_embeddings": False}, ("head.decoder.bias",)),
    ("llama", None, {}, ("norm.weight",)),  # to PEFT, layers.0.input_layernorm as well
]


@pytest.mark.parametrize(("kind", "head", "facts", "names"), TRAINED_MODULES)
def test_fully_trained_modules_are_saved_whole(
    kind: str, head: str | None, facts: dict[str, Any], names: tuple[str, ...], tmp_path: Path
) -> None:
    """A matrix that no head reads is saved like any other; PEFT saves a module with everything below it."""
    base = save_base(tmp_path, kind, head, **facts)
    settings = Settings(lora=2, lora_targets=("query",), lora_beside=names, adapter_only=True)
    folder, model = random_adapter(base, tmp_path / "adapter", settings)
    torch.testing.assert_close(our_output(folder), model_output(model, head), rtol=0, atol=1e-5)
    theirs = peft_files.model_output(peft_files.open_adapter(base, folder, head), IDS, head)
    torch.testing.assert_close(theirs, our_output(folder), rtol=0, atol=1e-5)


UNSUPPORTED: list[tuple[str, str, str, str]] = [
    ("gpt2", "causal-lm", "embeddings.*", r"with all of transformer\.wte, which holds a shared table"),
    ("distilbert", "masked-lm", "head.decoder.bias", "with all of vocab_projector, which holds a shared table"),
    ("bert", "masked-lm", "head.*", r"with all of cls\.predictions, which holds a shared table"),
    ("bart", "sequence-to-sequence-lm", "head.bias", "head.bias belongs to no module of the file"),
    ("bert", "sequence-classification", "*bias", "nothing else of .* is left: name less in lora_beside"),
]


@pytest.mark.parametrize(("kind", "head", "name", "message"), UNSUPPORTED)
def test_unsupported_targets_are_refused_before_training(
    kind: str, head: str, name: str, message: str, tmp_path: Path
) -> None:
    base = save_base(tmp_path, kind, head)
    settings: dict[str, Any] = {"lora": 2, "lora_beside": (name,)}
    with pytest.raises(InputError, match=f"{message}.*pass adapter_only=False, by which the whole model is written"):
        attach_adapters(open_checkpoint(base), Settings(**settings, adapter_only=True))
    attach_adapters(open_checkpoint(base), Settings(**settings))


def test_missing_base_weights_are_named(tmp_path: Path) -> None:
    """Nothing is tied there: the base was saved without a pooler, which the reference would initialise at random."""
    base = save_base(tmp_path, "bert", None)
    with_tensors(lambda tensors: [tensors.pop(name) for name in list(tensors) if "pooler" in name])(base)
    peft_files.write_adapter(base, tmp_path / "adapter", None, target_modules=["pooler.dense"])
    with pytest.raises(CheckpointMismatchError, match=r"it adds to pooler\.dense, for which .* holds no weights"):
        pellucid.load(tmp_path / "adapter")

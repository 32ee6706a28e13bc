"""Saving a checkpoint: other libraries open it, nothing is lost on the way, and a save that fails changes nothing."""

import copy
import ctypes
import errno
import hashlib
import json
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import parametrize, prune

import pellucid
from pellucid.checkpoints.convert import convert
from pellucid.checkpoints.folder import atomic_folder, write_tensors
from pellucid.checkpoints.network import check_network
from pellucid.checkpoints.tensors import read_metadata, tensor_spans
from pellucid.config import Head, MaskedLM, SequenceClassification, TokenClassification
from pellucid.errors import InputError, NotFoundError
from pellucid.files import write_atomically
from tests.checkpoints.builders import (
    MODULES,
    PICKLED,
    POOLING_CONFIG,
    WEIGHTS,
    assert_one_sentence,
    convert_to_bin,
    edit_json,
    module_entries,
    paths_below,
    save_bin,
    split_into_shards,
    valid_checkpoint,
    vocabulary,
    with_file,
    with_tensors,
)
from tests.checkpoints.families import TINY
from tests.conftest import tiny_config
from tests.models.test_packable import doubled_linear
from tests.parity.reference import tiny as reference
from tests.search.child_processes import KILLED, exit_code_of, start_fork
from tests.text.tokenizer_files import train_sentencepiece
from tests.unprivileged import as_nobody, open_folder

TEXTS = ["time flies like an arrow", "fruit flies like a banana", "Köln, 東京 & 👩‍👩‍👧", "", "word " * 400]


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file below a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


# -- other libraries open it -------------------------------------------------------------------------------------------


def test_the_reference_opens_a_body(tmp_path: Path) -> None:
    from transformers import AutoModel

    model = pellucid.load(valid_checkpoint(tmp_path / "model"))
    theirs = AutoModel.from_pretrained(tmp_path / "model", attn_implementation="sdpa").eval()
    ids = torch.tensor([[2, 7, 9, 3]])
    with torch.no_grad():
        assert torch.equal(theirs(ids).last_hidden_state, model(ids).last_hidden_state)


def test_the_reference_opens_a_head_with_its_labels(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    labels = ("sad", "so-so", "glad")
    model = pellucid.build(tiny_config(head=SequenceClassification(), labels=labels), seed=3)
    theirs = AutoModelForSequenceClassification.from_pretrained(model.save(tmp_path / "model")).eval()
    assert theirs.config.id2label == dict(enumerate(labels))
    assert theirs.config.label2id == {label: i for i, label in enumerate(labels)}
    ids = torch.tensor([[2, 7, 9, 3]])
    with torch.no_grad():
        found = theirs(ids).logits  # from weights that lie in memory as they do in the file
    assert torch.allclose(found, model(ids).logits, rtol=0.0, atol=1e-7)
    assert pellucid.load(tmp_path / "model").config.labels == labels


def test_untrained_weights_are_recorded(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    tokenizer = pellucid.load(checkpoint("bert-body")).tokenizer
    built = pellucid.build(tiny_config(vocab_size=len(tokenizer)), seed=3, tokenizer=tokenizer).save(tmp_path / "built")
    assert "UNTRAINED" in repr(pellucid.load(built)) and pellucid.load(built).loaded.untrained == ("all",)
    with pytest.raises(InputError, match=r"not trained|UNTRAINED|untrained"):
        pellucid.Index.build(built, ["a cat"])
    headed = pellucid.load(checkpoint("bert-body"), head="sequence-classification").save(tmp_path / "headed")
    again = pellucid.load(headed)
    assert "head" in again.loaded.untrained and "head" not in pellucid.load(headed, head=None).loaded.untrained
    with pytest.raises(InputError, match="not trained"):
        pellucid.pipeline("text-classification", headed)
    by_hand = pellucid.build(tiny_config(vocab_size=len(tokenizer)), seed=3, tokenizer=tokenizer)
    torch.optim.SGD(by_hand.parameters(), lr=0.1).step()  # without gradients no weight changes
    assert pellucid.load(by_hand.save(tmp_path / "idle")).loaded.untrained == ("all",)
    by_hand(torch.tensor([[2, 7, 9, 3]])).last_hidden_state.sum().backward()
    torch.optim.SGD(by_hand.parameters(), lr=0.1).step()
    assert pellucid.load(by_hand.save(tmp_path / "by hand")).loaded.untrained == ()
    rows = [{"text": "a cat", "label": "good"}, {"text": "a dog", "label": "bad"}] * 4
    out = tmp_path / "trained"
    pellucid.train(headed, rows, "classify", epochs=1, out=out, progress=False)
    assert pellucid.load(out).loaded.untrained == () and "UNTRAINED" not in repr(pellucid.load(out))
    lora = {"lora": 2, "adapter_only": True, "lora_beside": ("pooler.*",)}
    pellucid.train(headed, rows, "classify", epochs=1, out=tmp_path / "adapter", progress=False, **lora)
    assert pellucid.load(tmp_path / "adapter").loaded.untrained == ()


@pytest.mark.parametrize("note", ["[", "7", '["a", 7]', "[" * 100_000])
def test_damaged_record_of_untrained_weights_is_refused(note: str, tmp_path: Path) -> None:
    pellucid.build(tiny_config(), seed=3).save(tmp_path / "built")
    path = tmp_path / "built" / "model.safetensors"
    save_file(load_file(path), path, metadata={"format": "pt", "pellucid.untrained": note})
    with pytest.raises(pellucid.CorruptFileError, match=r"model.safetensors has a damaged note in its header"):
        pellucid.load(tmp_path / "built")


@pytest.mark.parametrize(
    ("family", "facts", "name"),
    [
        ("bert", {"head": MaskedLM(activation="relu")}, "activation"),
        ("bert", {"embedding_size": 12}, "embedding_size"),
        ("albert", {"embedding_projection": False}, "embedding_projection"),
        ("mpnet", {"relative_attention_max_distance": 64}, "relative_attention_max_distance"),
        ("mpnet", {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets"),
    ],
)
def test_facts_without_a_config_key_are_refused(family: str, facts: dict[str, Any], name: str, tmp_path: Path) -> None:
    """Others would open a model that differs from the saved one."""
    model = pellucid.build(pellucid.Config.of(family, **TINY[family]).replace(**facts))
    with pytest.raises(InputError, match=f"cannot be saved: its {name} is "):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("attention.scale", 3.0),
        ("feed_forward.activation", torch.sin),
        ("feed_forward.activation", nn.Tanh()),
        ("attention_norm.eps", 1.0),
    ],
    ids=["scale", "function", "module", "eps"],
)
@pytest.mark.parametrize("family", ["llama", "bert", "gpt2"])
def test_changed_attributes_are_refused(family: str, path: str, new: object, tmp_path: Path) -> None:
    """It would be lost in the files, and in training."""
    model = pellucid.build(pellucid.Config.of(family, **TINY[family]))
    part, _, name = f"layers.1.{path}".rpartition(".")
    setattr(model.module.get_submodule(part), name, new)
    with pytest.raises(InputError, match=f"cannot be saved: {name} of {part} is not what its config says"):
        model.save(tmp_path / "model")
    with pytest.raises(InputError, match=f"cannot be trained: {name} of {part} is not what its config says"):
        check_network(model.loaded, "trained")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("architecture", ["BertModel", "RobertaForMaskedLM"])
def test_body_without_a_pooler_round_trips(architecture: str, tmp_path: Path) -> None:
    """Sentence encoders are often saved so, and a body taken from under a head has no pooler."""
    from transformers import AutoModel

    reference(tmp_path / "theirs", architecture, dtype=torch.float32)
    if architecture == "BertModel":
        with_tensors(lambda tensors: [tensors.pop(f"pooler.dense.{part}") for part in ("weight", "bias")])(
            tmp_path / "theirs"
        )
    model, ids = pellucid.load(tmp_path / "theirs", head=None), torch.tensor([[5, 9, 2]])
    again = pellucid.load(model.save(tmp_path / "ours"))
    assert again.config == model.config and not model.config.pooler
    with torch.no_grad():
        theirs = AutoModel.from_pretrained(tmp_path / "ours", attn_implementation="eager")(ids)
        assert torch.equal(again(ids).last_hidden_state, model(ids).last_hidden_state)
        assert torch.allclose(theirs.last_hidden_state, model(ids).last_hidden_state, atol=1e-5)


@pytest.mark.parametrize("labels", [1, 3])
def test_reference_opens_a_question_answering_head_in_place_of_a_classifier(labels: int, tmp_path: Path) -> None:
    from transformers import AutoModelForQuestionAnswering

    reference(tmp_path / "theirs", "RobertaForSequenceClassification", dtype=torch.float32, num_labels=labels)
    model = pellucid.load(tmp_path / "theirs", head="question-answering")
    saved, ids = model.save(tmp_path / "ours"), torch.tensor([[5, 9, 2]])
    assert pellucid.load(saved).config == model.config
    with torch.no_grad():
        theirs = AutoModelForQuestionAnswering.from_pretrained(saved, attn_implementation="eager")(ids)
        found = model(ids).logits
    assert torch.allclose(torch.stack((theirs.start_logits, theirs.end_logits), -1), found, atol=1e-5)


@pytest.mark.parametrize("head", [MaskedLM(), TokenClassification()])
def test_a_head_that_reads_no_pooler_needs_none(head: Head, tmp_path: Path) -> None:
    """As training leaves it on a body without a pooler."""
    model = pellucid.build(pellucid.Config.of("bert", **TINY["bert"]).replace(head=head, pooler=False))
    ids = torch.tensor([[5, 9, 2]])
    assert torch.equal(pellucid.load(model.save(tmp_path / "model"))(ids).logits, model(ids).logits)


def test_sentence_transformers_opens_a_saved_encoder(minilm: pellucid.Model, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = minilm.save(tmp_path / "model")
    theirs = SentenceTransformer(str(folder), device="cpu")
    assert theirs.max_seq_length == 256
    expected, found = torch.from_numpy(theirs.encode(TEXTS)), minilm.embed(TEXTS)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert torch.equal(pellucid.load(folder).embed(TEXTS), found)
    theirs.save(str(tmp_path / "theirs"))
    assert torch.equal(pellucid.load(tmp_path / "theirs").embed(TEXTS), found)


def test_saving_never_changes_the_umask(tiny: pellucid.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads share it: of two that changed it at once, one could restore the other's value for good."""

    def never(_: int) -> int:
        raise AssertionError("the umask was set")

    monkeypatch.setattr(os, "umask", never)
    plain = tmp_path / "plain"
    plain.touch()
    folder, whole = tiny.save(tmp_path / "model"), write_atomically(tmp_path / "whole", lambda file: file.write(b"1"))
    for path in (folder / "config.json", folder / WEIGHTS, whole):
        assert path.stat().st_mode == plain.stat().st_mode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "plain", "whole"]


@pytest.mark.parametrize("permissions", [0o600, 0o640, 0o666, 0o755])
def test_overwritten_file_keeps_its_permissions(permissions: int, tmp_path: Path) -> None:
    modes: list[int] = []
    (path := tmp_path / "private").touch()
    path.chmod(permissions)

    def write(file: IO[bytes]) -> None:
        modes.append(os.fstat(file.fileno()).st_mode & 0o777)

    assert write_atomically(path, write).stat().st_mode & 0o777 == permissions and modes == [permissions]


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_saved_files_follow_the_umask(umask: int, tmp_path: Path) -> None:
    """They have the permissions of every new file, which the umask determines."""
    before = os.umask(umask)
    try:
        folder = valid_checkpoint(tmp_path / "model")
        pellucid.load(folder).save(folder, overwrite=True)
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == dict.fromkeys(
        ("config.json", WEIGHTS), 438 & ~umask
    )
    assert folder.stat().st_mode & 0o777 == 0o777 & ~umask


# -- round trips -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_weights_round_trip_bit_for_bit(dtype: str, tmp_path: Path) -> None:
    model = pellucid.build(tiny_config(), seed=2, dtype=dtype)
    folder = model.save(tmp_path / "model")
    again = pellucid.load(folder, dtype="checkpoint")
    assert str(again.dtype) == f"torch.{dtype}"
    for name, value in model.module.state_dict().items():
        assert torch.equal(again.module.state_dict()[name], value), name
    assert json.loads((folder / "config.json").read_text())["dtype"] == dtype


def test_unknown_keys_round_trip(tmp_path: Path) -> None:
    folder = valid_checkpoint(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text()) | {"colour": {"a": [1, None]}}
    (folder / "config.json").write_text(json.dumps(config))
    pellucid.load(folder).save(tmp_path / "copy")
    assert json.loads((tmp_path / "copy" / "config.json").read_text()) == config


def test_outdated_num_labels_is_not_written(tmp_path: Path) -> None:
    """The reference trusts it over the names of the labels, and then cannot open the file."""
    from transformers import AutoModelForSequenceClassification

    folder = valid_checkpoint(tmp_path / "model")
    edit_json(folder / "config.json", lambda found: found.update(num_labels=2))
    loaded = pellucid.load(folder).loaded
    config = loaded.config.replace(labels=("a", "b", "c"), head=SequenceClassification())
    other = pellucid.build(config).save(tmp_path / "copy")
    theirs = AutoModelForSequenceClassification.from_pretrained(other)
    assert theirs.config.id2label == {0: "a", 1: "b", 2: "c"}


def test_a_tied_decoder_is_written_once(tmp_path: Path) -> None:
    model = pellucid.build(tiny_config(head=MaskedLM()))
    tensors = load_file(model.save(tmp_path / "model") / WEIGHTS)
    assert "bert.embeddings.word_embeddings.weight" in tensors
    assert "cls.predictions.decoder.weight" not in tensors
    module = pellucid.load(tmp_path / "model").module
    assert module.head.decoder.weight is module.embeddings.token.weight


def test_an_untied_decoder_is_written(tmp_path: Path) -> None:
    model = pellucid.build(tiny_config(head=MaskedLM(), tie_word_embeddings=False))
    tensors = load_file(model.save(tmp_path / "model") / WEIGHTS)
    assert not torch.equal(tensors["cls.predictions.decoder.weight"], tensors["bert.embeddings.word_embeddings.weight"])
    module = pellucid.load(tmp_path / "model").module
    assert torch.equal(module.head.decoder.weight, model.module.head.decoder.weight)


def test_tied_decoder_stored_twice_is_written_once(tmp_path: Path) -> None:
    theirs = reference(tmp_path / "model", "BertForMaskedLM", dtype=torch.float32)
    save_bin(theirs.state_dict(), tmp_path / "model" / PICKLED)
    (tmp_path / "model" / WEIGHTS).unlink()
    model = pellucid.load(tmp_path / "model")
    assert model.module.head.decoder.weight is model.module.embeddings.token.weight
    assert "cls.predictions.decoder.weight" not in load_file(model.save(tmp_path / "copy") / WEIGHTS)


def _prune(module: torch.nn.Module) -> None:
    prune.random_unstructured(module.get_submodule("layers.1.attention.query"), "weight", amount=0.5)


def _double(path: str) -> Callable[[torch.nn.Module], None]:
    def change(module: torch.nn.Module) -> None:
        old = module.get_submodule(path)
        assert isinstance(old, nn.Linear)
        module.set_submodule(path, doubled_linear(old))

    return change


def _forward(path: str) -> Callable[[torch.nn.Module], None]:
    def change(module: torch.nn.Module) -> None:
        part = module.get_submodule(path)
        of_class = part.forward
        part.forward = lambda *arguments, **options: of_class(*arguments, **options)

    return change


def _untie(module: torch.nn.Module) -> None:
    with torch.no_grad():
        decoder = module.get_submodule("head.decoder")
        decoder.weight = torch.nn.Parameter(2 * decoder.get_parameter("weight"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_prune, "layers.1.attention.query.weight.* no longer fit its config"),
        (lambda module: module.layers.__delitem__(1), "no longer fit its config"),
        (lambda module: module.layers.append(module.layers[0]), "no longer fit its config"),
        (_untie, "head.decoder.weight and embeddings.token.weight are one table by its config"),
        (_double("layers.1.attention.query"), "layers.1.attention.query is a Twice, which does not compute what its"),
        (_double("head.dense"), "head.dense is a Twice, which does not compute what its config says, which would"),
        (lambda module: module.embeddings.set_submodule("dropout", nn.Tanh()), "embeddings.dropout is a Tanh, which"),
        (_forward("layers.1.feed_forward"), "a forward of its own was set on layers.1.feed_forward, which would be"),
        (
            _forward(""),
            "a forward of its own was set on the network, which would be lost; remove it with `del part.forward`$",
        ),
    ],
)
def test_changed_networks_are_not_saved(
    change: Callable[[torch.nn.Module], None], message: str, tmp_path: Path
) -> None:
    model = pellucid.build(tiny_config(head=MaskedLM()), seed=1)
    change(model.module)
    with pytest.raises(InputError, match=message):
        model.save(tmp_path / "model")
    assert paths_below(tmp_path) == []
    with pytest.raises(InputError, match=message):
        check_network(model.loaded, "trained")


def test_equivalent_changes_are_saved(tmp_path: Path) -> None:
    """A subclass with the same forward, a shared module, a pruned and a once parametrised weight, a hook, a packed
    copy, explicit attention, a forward that was replaced and restored, and dropout that was removed."""

    class Named(nn.Linear):
        pass

    model = pellucid.build(tiny_config(head=MaskedLM()), seed=1, attention="explicit")
    module, ids, calls = model.module, torch.tensor([[2, 7, 9, 3]]), []
    new = Named(24, 24)
    module.set_submodule("layers.1.attention.query", new)
    module.layers[0].attention = module.layers[1].attention
    prune.random_unstructured(new, "weight", amount=0.5)
    prune.remove(new, "weight")
    parametrize.register_parametrization(new, "bias", nn.Tanh())
    parametrize.remove_parametrizations(new, "bias")
    new.register_forward_hook(lambda *arguments: calls.append(arguments))
    module.packed_copy()
    wrapped = module.layers[0].feed_forward
    of_class = wrapped.forward
    wrapped.forward = lambda *arguments: of_class(*arguments)
    wrapped.forward = of_class
    module.embeddings.set_submodule("dropout", nn.Identity())
    again = pellucid.load(model.save(tmp_path / "model"), attention="explicit")
    assert torch.equal(again(ids).logits, model(ids).logits) and calls


# -- files that are already there --------------------------------------------------------------------------------------


def test_a_folder_with_files_is_refused(tmp_path: Path, tiny: pellucid.Model) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "diary.txt").write_text("mine")
    with pytest.raises(InputError, match="already holds files: choose a new folder or pass overwrite=True"):
        tiny.save(tmp_path / "model")
    assert paths_below(tmp_path) == ["model", "model/diary.txt"]
    tiny.save(tmp_path / "model", overwrite=True)
    assert (tmp_path / "model" / "diary.txt").read_text() == "mine"
    assert paths_below(tmp_path) == ["model", *(f"model/{name}" for name in ("config.json", "diary.txt", WEIGHTS))]


def test_empty_name_is_refused(tmp_path: Path, tiny: pellucid.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pellucid.InputError, match=r"^the name is empty, expected the path of a file or folder$"):
        tiny.save("")
    assert not list(tmp_path.iterdir())


def test_current_and_parent_folders_are_accepted(
    tmp_path: Path, tiny: pellucid.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    tiny.save(".", overwrite=True)
    monkeypatch.chdir(tmp_path / "here" / "below")
    tiny.save("..", overwrite=True)
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(["below", "config.json", "here", WEIGHTS])


def test_an_empty_folder_is_used(tmp_path: Path, tiny: pellucid.Model) -> None:
    (tmp_path / "model").mkdir()
    assert tiny.save(tmp_path / "model") == tmp_path / "model"
    assert pellucid.load(tmp_path / "model").config == tiny.config


def test_a_model_is_saved_over_itself(tmp_path: Path) -> None:
    folder = valid_checkpoint(tmp_path / "model")
    before = digests(folder)
    model = pellucid.load(folder)
    model.save(folder, overwrite=True)
    assert digests(folder) == before
    with torch.no_grad():
        model.module.embeddings.token.weight.add_(1)
    model.save(folder, overwrite=True)
    assert torch.equal(pellucid.load(folder).module.embeddings.token.weight, model.module.embeddings.token.weight)
    assert paths_below(tmp_path) == ["model", "model/config.json", f"model/{WEIGHTS}"]


@pytest.mark.parametrize("older", ["bin", "shards", "shards of bin", "sentence encoder", "vocabulary", "sentencepiece"])
def test_model_saved_over_another_is_the_one_that_loads(older: str, tmp_path: Path, tiny: pellucid.Model) -> None:
    """No file of the older model may affect the new one."""
    folder = valid_checkpoint(tmp_path / "model", vocab_size=70)
    if older == "bin":
        convert_to_bin(folder)
    elif older.startswith("shards"):
        split_into_shards(folder, "bin" if "bin" in older else "safetensors")
    elif older == "sentence encoder":
        with_file("modules.json", module_entries(f"{MODULES}Transformer", f"{MODULES}Pooling"))(folder)
        with_file(POOLING_CONFIG, {"pooling_mode": "mean"})(folder)
    elif older == "sentencepiece":
        lines = ["some words of an older model"]
        shutil.copyfile(
            train_sentencepiece(lines, tmp_path / "a.model", model_type="bpe", vocab_size=25),
            folder / "tokenizer.model",
        )
        backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"older": 0}, unk_token="older"))
        with_file("target_tokenizer.json", backend.to_str())(folder)
    else:
        with_file("vocab.txt", "\n".join([*vocabulary(), *(f"w{i}" for i in range(13))]))(folder)
        (folder / "additional_chat_templates").mkdir()
        with_file("additional_chat_templates/tool_use.jinja", "an older one")(folder)
    pellucid.load(folder)
    (folder / "1_mine").mkdir()
    with_file("1_mine/config.json", "{}")(folder)
    tiny.save(folder, overwrite=True)
    model = pellucid.load(folder)
    assert model.config == tiny.config
    assert model.tokenizer is None
    assert model.loaded.target_tokenizer is None
    assert model.loaded.pooling is None
    assert set(paths_below(folder)) == {"config.json", WEIGHTS, "1_mine", "1_mine/config.json"}


# -- a save that fails -------------------------------------------------------------------------------------------------


def test_parent_that_is_a_file_is_refused(tmp_path: Path, tiny: pellucid.Model) -> None:
    (tmp_path / "file").write_text("mine")
    for target in (tmp_path / "file", tmp_path / "file" / "model", tmp_path / "file" / "a" / "b"):
        with pytest.raises(InputError) as caught:
            tiny.save(target)
        assert str(target) in str(caught.value)
        assert_one_sentence(str(caught.value), target)
    assert digests(tmp_path) == {"file": hashlib.sha256(b"mine").hexdigest()}


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "~nobody-at-all/x"])
def test_invalid_paths_are_refused(name: str, tiny: pellucid.Model) -> None:
    for write in (tiny.save, lambda path: convert(path, "new")):
        with pytest.raises(InputError, match="is not a valid path here: ") as caught:
            write(name)
        assert_one_sentence(str(caught.value), Path())


SAVE_SCRIPT = """
import resource, signal, sys
import pellucid
model = pellucid.load(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    model.save(sys.argv[2], overwrite=True)
except pellucid.PellucidError as error:
    print(type(error).__name__, error)
"""


def fail_moves(monkeypatch: pytest.MonkeyPatch, after: int, error: BaseException, times: int = 1) -> list[str]:
    """Makes `Path.replace` fail after so many files have been moved; returns the names of those that were."""
    moved: list[str] = []
    replace = Path.replace

    def broken(path: Path, target: Path) -> Path:
        moved.append(path.name)
        if after < len(moved) <= after + times:
            raise error
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", broken)
    return moved


STEPS = ["config.json", WEIGHTS, "vocab.txt", WEIGHTS, "config.json"]
"""In what order a folder of three files takes two others: the config leaves first and arrives last."""


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")], ids=["^C", "full"])
@pytest.mark.parametrize("after", range(len(STEPS) + 1))
def test_interrupted_move_restores_the_old_files(
    after: int, error: BaseException, tmp_path: Path, tiny: pellucid.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another model of the same shapes, its weights beside the old config and vocabulary, would open silently."""
    folder = valid_checkpoint(tmp_path / "model", num_labels=3)
    with_file("vocab.txt", "\n".join(vocabulary()))(folder)
    (folder / "notes.txt").write_text("mine")
    before = digests(tmp_path)
    moved = fail_moves(monkeypatch, after, error)
    if after == len(STEPS):
        tiny.save(folder, overwrite=True)
        assert moved == STEPS and pellucid.load(folder).config == tiny.config
        assert sorted(path.name for path in folder.iterdir()) == ["config.json", WEIGHTS, "notes.txt"]
        return
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else pellucid.ResourceError):
        tiny.save(folder, overwrite=True)
    assert moved[: after + 1] == STEPS[: after + 1]
    assert digests(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("after", range(1, len(STEPS)))
def test_files_that_cannot_be_restored_are_kept_and_do_not_open(
    after: int, tmp_path: Path, tiny: pellucid.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = valid_checkpoint(tmp_path / "model", num_labels=3)
    with_file("vocab.txt", "\n".join(vocabulary()))(folder)
    before = sorted(digests(folder).values())
    fail_moves(monkeypatch, after, OSError(5, "the power is gone"), times=2)
    with pytest.raises(
        InputError, match=r"holds no whole model now \(the power is gone\): its previous content is in "
    ) as caught:
        tiny.save(folder, overwrite=True)
    old = Path(str(caught.value).rpartition(" is in ")[2])
    assert sorted([*digests(folder).values(), *digests(old).values()]) == before
    with pytest.raises(pellucid.PellucidError):
        pellucid.load(folder)


def save_until_killed(folder: Path, step: int) -> None:
    """Saves over a folder, and is killed once `step` files have been moved."""
    model, replace, moved = pellucid.build(tiny_config(), seed=2), Path.replace, []

    def broken(path: Path, target: Path) -> Path:
        if len(moved) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        moved.append(path)
        return replace(path, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", broken)
        model.save(folder, overwrite=True)


@pytest.mark.parametrize("step", range(1, 4))
def test_files_left_by_a_kill_are_named_and_removed(step: int, tmp_path: Path, tiny: pellucid.Model) -> None:
    folder = valid_checkpoint(tmp_path / "model", num_labels=3)
    before = digests(folder)
    assert exit_code_of(start_fork(lambda: save_until_killed(folder, step))) == KILLED
    with pytest.raises(NotFoundError, match=r"holds no whole model: a save into it was interrupted") as caught:
        pellucid.load(folder)
    old = Path(str(caught.value).partition("files in ")[2].removesuffix(" back"))
    if step == 2:
        with pytest.raises(
            InputError, match=r"its previous content is in .*: choose a new folder or pass overwrite=True"
        ):
            tiny.save(folder)
    lock = {".model.lock": hashlib.sha256(b"").hexdigest()}
    assert {**digests(folder), **digests(old)} == before | lock or step == 3
    other = valid_checkpoint(tmp_path / "model-b")
    for left in (tmp_path / ".model-b-abcdefgh", tmp_path / ".model-mine"):
        left.mkdir()
    tiny.save(folder, overwrite=True)
    assert pellucid.load(folder).config == tiny.config and pellucid.load(other)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".model-b-abcdefgh", ".model-mine", "model", "model-b"]


def test_a_second_process_does_not_save_into_the_same_folder(tmp_path: Path, tiny: pellucid.Model) -> None:
    folder = valid_checkpoint(tmp_path / "model")
    before = digests(tmp_path)
    with pytest.raises(ZeroDivisionError), atomic_folder(folder):
        refused = "another process saves into .*model: wait until it is done, or choose a new folder"
        with pytest.raises(InputError, match=refused):
            tiny.save(folder, overwrite=True)
        tiny.save(tmp_path / "model-b")
        shutil.rmtree(tmp_path / "model-b")
        raise ZeroDivisionError
    assert digests(tmp_path) == before
    tiny.save(folder, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_folder_in_place_of_a_file_is_refused(tmp_path: Path, tiny: pellucid.Model) -> None:
    folder = valid_checkpoint(tmp_path / "model")
    (folder / "vocab.txt").mkdir()
    (folder / "vocab.txt" / "mine").write_text("mine")
    before = digests(tmp_path)
    with pytest.raises(InputError, match=r"vocab\.txt is a folder there, expected a file"):
        tiny.save(folder, overwrite=True)
    assert digests(tmp_path) == before


def test_a_full_disk_leaves_the_old_files(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the full disk: either way the system refuses to write."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    folder, source = valid_checkpoint(tmp_path / "model"), valid_checkpoint(tmp_path / "source", vocab_size=50)
    assert (folder / WEIGHTS).stat().st_size > 20_000
    before = digests(tmp_path)
    for target in (folder, tmp_path / "new"):
        command = [sys.executable, "-c", SAVE_SCRIPT, str(source), str(target), "20000"]
        result = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), timeout=60, check=False)
        assert result.returncode == 0, result.stderr
        assert result.stdout.startswith("ResourceError the limit on the size of a file"), result.stdout
        assert_one_sentence(result.stdout.strip(), target)
    assert digests(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "source"]
    shutil.rmtree(tmp_path / "source")
    assert pellucid.load(folder).config.vocab_size == 60


def test_metadata_is_written_in_one_order(tmp_path: Path) -> None:
    """The library's order is random; odd characters must not change the length of the header."""
    odd = 'é "quoted" \\ \n\t\x00\x1f\x7f\u2028 東京 😀'
    note = dict.fromkeys("fbadec", odd) | {odd: "key"}
    tensors = {"b": torch.ones(3), "a": torch.zeros(2, 2, dtype=torch.bfloat16)}
    for i in range(6):
        write_tensors(tensors, tmp_path / str(i), note)
    assert len({(tmp_path / str(i)).read_bytes() for i in range(6)}) == 1
    assert read_metadata(tmp_path / "0") == note | {"format": "pt"} and list(read_metadata(tmp_path / "0"))[:2] == [
        "a",
        "b",
    ]
    assert set(tensor_spans(tmp_path / "0")) == {"a", "b"} and torch.equal(
        load_file(tmp_path / "0")["b"], torch.ones(3)
    )


@torch.no_grad()
@pytest.mark.parametrize("change", ["to", "copied", "pickled", "moved", "shared", "none"])
def test_copied_or_converted_untrained_weights_stay_untrained_until_changed(
    change: str, tmp_path: Path, checkpoint: Callable[[str], Path]
) -> None:
    model = pellucid.load(checkpoint("bert-body"), head="sequence-classification")
    match change:
        case "to":
            model.to(dtype="bfloat16")
        case "copied":
            model = copy.deepcopy(model)
        case "pickled":
            model = pickle.loads(pickle.dumps(model))
        case "moved":
            model.module.double()
        case "shared":
            model.module.share_memory()
    assert pellucid.load(model.save(tmp_path / "saved")).loaded.untrained == ("head",)
    for parameter in model.parameters():
        parameter.add_(1.0) if change in ("to", "moved") else parameter.data.add_(1.0)  # which PyTorch does not count
    assert pellucid.load(model.save(tmp_path / "trained")).loaded.untrained == ()


def test_frozen_untrained_head_is_recorded(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    rows = [{"text": "a cat", "label": "good"}, {"text": "a dog", "label": "bad"}] * 4
    settings = {"max_steps": 1, "validation": 0, "progress": False, "freeze": ("head.*",)}
    model = pellucid.train(checkpoint("bert-body"), rows, "classify", out=tmp_path / "model", **settings)
    assert model.loaded.untrained == pellucid.load(tmp_path / "model").loaded.untrained
    assert "head.classifier.weight" in model.loaded.untrained


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="only Linux has folders in which no file can be made")
def test_folder_that_cannot_be_created_is_named(tiny: pellucid.Model) -> None:
    with pytest.raises(InputError, match=r"cannot write /proc/here: No such file"):
        tiny.save("/proc/here")


# -- where no folder can be made ---------------------------------------------------------------------------------------


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_model_is_saved_into_a_folder_whose_parent_is_not_writable(tiny: pellucid.Model) -> None:
    def work() -> None:
        tiny.save(own)
        tiny.save(own, overwrite=True)
        assert file_names(own) == ["config.json", WEIGHTS]
        before = digests(own)
        with pytest.MonkeyPatch.context() as patch:
            fail_moves(patch, 2, OSError(errno.EIO, "the power is gone"))
            with pytest.raises(InputError, match="the power is gone"):
                tiny.save(own, overwrite=True)
        assert digests(own) == before and file_names(own) == ["config.json", WEIGHTS]
        message = (
            rf"cannot write {parent / 'other'}: Permission denied in {parent}: choose another folder, or let this user"
        )
        with pytest.raises(InputError, match=message):
            tiny.save(parent / "other")
        with pytest.raises(InputError, match=rf"cannot read {parent / 'closed'}: Permission denied"):
            tiny.save(parent / "closed")
        with pytest.raises(
            InputError, match=rf"cannot write {parent / 'read'}: Permission denied in {parent / 'read'}"
        ):
            tiny.save(parent / "read")

    with open_folder() as parent:
        (own := parent / "own").mkdir()
        (parent / "closed").mkdir(mode=0o700)
        (parent / "read").mkdir()
        as_nobody(work, own)
        assert file_names(parent) == ["closed", "own", "read"] and pellucid.load(own).config == tiny.config


def test_second_user_without_write_access_is_refused(tiny: pellucid.Model) -> None:
    """The first may write beside the folder, the second only inside it."""

    def work() -> None:
        with pytest.raises(InputError, match=r"another process saves into|cannot write .*lock: Permission denied"):
            tiny.save(shared)

    with open_folder() as parent:
        (shared := parent / "shared").mkdir()
        shared.chmod(0o777)
        with atomic_folder(shared) as new:
            as_nobody(work)
            (new / "config.json").write_text("{}")
        assert file_names(shared) == ["config.json"] and file_names(parent) == ["shared"]


def test_temporary_folder_of_another_user_is_ignored(tiny: pellucid.Model) -> None:
    with open_folder() as parent:
        for folder in (own := parent / "own", left := parent / ".own-abcd1234"):
            folder.mkdir()
        left.chmod(0o700)
        as_nobody(lambda: tiny.save(own), own)
        assert pellucid.load(own).config == tiny.config and left.is_dir()


def test_link_to_itself_is_refused(tiny: pellucid.Model, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InputError, match=r"loop: it is a link that leads nowhere or in a circle; choose another"):
        tiny.save(tmp_path / "loop")
    assert file_names(tmp_path) == ["loop"]


def test_model_is_saved_through_a_link(tiny: pellucid.Model, tmp_path: Path) -> None:
    (tmp_path / "model").symlink_to(tmp_path / "real", target_is_directory=True)
    for overwrite in (False, True):
        tiny.save(tmp_path / "model", overwrite=overwrite)
        assert file_names(tmp_path / "real") == ["config.json", WEIGHTS] and file_names(tmp_path) == ["model", "real"]
    assert exit_code_of(start_fork(lambda: save_until_killed(tmp_path / "model", 2))) == KILLED
    for folder in (tmp_path / "model", tmp_path / "real"):
        with pytest.raises(NotFoundError, match=r"holds no whole model: a save into it was interrupted"):
            pellucid.load(folder)


def test_model_is_saved_into_a_mounted_volume(tiny: pellucid.Model, tmp_path: Path) -> None:
    """A folder that is a volume of its own, into which nothing can be moved from beside it."""
    (volume := tmp_path / "volume").mkdir()

    def work() -> None:
        library = ctypes.CDLL(None, use_errno=True)
        if library.unshare(0x20000) or library.mount(b"none", b"/", None, 0x44000, None):
            os._exit(77)
        if library.mount(b"tmpfs", str(volume).encode(), b"tmpfs", 0, b"size=4m"):
            os._exit(77)
        for overwrite in (False, True):
            tiny.save(volume, overwrite=overwrite)
            assert file_names(volume) == ["config.json", WEIGHTS] and file_names(tmp_path) == ["volume"]
        assert exit_code_of(start_fork(lambda: save_until_killed(volume, 2))) == KILLED
        with pytest.raises(NotFoundError, match=r"holds no whole model: a save into it was interrupted"):
            pellucid.load(volume)
        assert pellucid.load(tiny.save(volume, overwrite=True)).config == tiny.config
        assert file_names(volume) == ["config.json", WEIGHTS]

    if (code := exit_code_of(start_fork(work))) == 77:
        pytest.skip("this machine allows no mounts")
    assert code == 0

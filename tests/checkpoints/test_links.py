"""No file of a checkpoint, in whichever form, is read through a link that leads out of the folder."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import pellucid
from pellucid.checkpoints.convert import convert
from pellucid.checkpoints.inventory import _licence, _state
from pellucid.checkpoints.load import read_config, read_plan, read_tokenizer
from tests.checkpoints.builders import (
    UNSAFE,
    convert_to_bin,
    paths_below,
    save_bin,
    sentence_encoder,
    split_into_shards,
    valid_checkpoint,
    vocabulary,
)
from tests.checkpoints.convert.onnx_exports import export, tiny_bert
from tests.checkpoints.convert.test_onnx_hostile import external_data, with_graph
from tests.checkpoints.families import save
from tests.checkpoints.opened_files import opened_paths
from tests.checkpoints.test_adapter import random_adapter
from tests.checkpoints.test_fuzz_families import save_as_gguf

Shared = Callable[[str], Path]
Form = Callable[[Path, Shared], object]
Use = Callable[[Path], object]

pytestmark = pytest.mark.timeout(120)


def complete_encoder(folder: Path, _: Shared) -> None:
    """A sentence encoder with every file that a folder may hold beside its weights."""
    sentence_encoder(folder)
    (folder / "vocab.txt").write_text("\n".join(vocabulary()))
    files: dict[str, Any] = {
        "tokenizer_config.json": {"do_lower_case": True},
        "special_tokens_map.json": {"mask_token": "[MASK]"},
        "added_tokens.json": {"[X]": 57},
        "config_sentence_transformers.json": {"similarity_fn_name": "dot"},
        "generation_config.json": {"max_new_tokens": 3},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "additional_chat_templates").mkdir()
    for template in ("chat_template.jinja", "additional_chat_templates/tool_use.jinja"):
        (folder / template).write_text("{{ messages[0].content }}")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")


def saved_in_shards(folder: Path, shared: Shared) -> None:
    """As pellucid saves it, with a tokenizer.json, and in shards."""
    complete_encoder(folder.parent / "first", shared)
    pellucid.load(folder.parent / "first").save(folder)
    split_into_shards(folder)


def byte_pairs(folder: Path, _: Shared) -> None:
    save("roberta", folder)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    vocabulary = {token: i for i, token in enumerate((*special, "a", "b", "ab"))}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))


def sentence_pieces(folder: Path, shared: Shared) -> None:
    save("albert", folder, vocab_size=30_000)
    shutil.copyfile(shared("data/tokenizers/albert-spiece.model"), folder / "spiece.model")


def adapter(folder: Path, shared: Shared) -> None:
    complete_encoder(folder.parent / "base", shared)
    pellucid.load(folder.parent / "base").save(folder.parent / "whole")
    random_adapter(folder.parent / "whole", folder)


def pickled_adapter(folder: Path, shared: Shared) -> None:
    adapter(folder, shared)
    save_bin(load_file(folder / "adapter_model.safetensors"), folder / "adapter_model.bin")
    (folder / "adapter_model.safetensors").unlink()


def onnx(folder: Path, _: Shared) -> None:
    """With weights in a file of their own, as large models have them."""
    export(tiny_bert("base"), folder, "traced", name="onnx/model.onnx")
    shutil.move(folder / "onnx" / "model.onnx", folder / "model.onnx")
    (folder / "numbers").write_bytes(bytes(61 * 32 * 4))
    with_graph(external_data("numbers"))(folder)
    for name in ("model.onnx", "numbers"):
        shutil.move(folder / name, folder / "onnx" / name)
    (folder / "LICENSE").write_text("do what you want")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")


def ctranslate2(folder: Path, shared: Shared) -> None:
    folder.mkdir()
    for path in shared("models/aren-transliteration").iterdir():
        shutil.copyfile(path, folder / path.name)


def converted(folder: Path, shared: Shared) -> None:
    convert(shared("models/aren-transliteration"), folder, heads=8)


FORMS: dict[str, Form] = {
    "vocabulary": complete_encoder,
    "shards": saved_in_shards,
    "bin": lambda folder, _: convert_to_bin(valid_checkpoint(folder)),
    "bin-shards": lambda folder, _: split_into_shards(valid_checkpoint(folder), "bin"),
    "byte pairs": byte_pairs,
    "sentence pieces": sentence_pieces,
    "adapter": adapter,
    "bin-adapter": pickled_adapter,
    "gguf": lambda folder, _: save_as_gguf("llama", folder.parent).rename(folder),
    "converted": converted,
}
FOREIGN: dict[str, Form] = {"onnx": onnx, "ctranslate2": ctranslate2}

READERS: tuple[Use, ...] = (pellucid.load, read_plan, read_config, read_tokenizer, _state, _licence)


def convert_beside(folder: Path) -> object:
    """Converts into a folder beside this one."""
    heads = None if (folder / "config.json").exists() else 8
    return convert(folder, folder.parent / "ours", heads=heads, overwrite=True)


# -- which files are opened --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def linked_outside(folder: Path, name: str) -> Iterator[Path]:
    """Puts a link to a file outside in place of a file, for the duration of the block; yields the path outside."""
    path, target = folder / name, folder.parent / f"outside{Path(name).suffix}"
    path.rename(target)
    path.symlink_to(target)
    try:
        yield target
    finally:
        path.unlink()
        target.rename(path)


def opened_names(folder: Path, use: Use) -> set[str]:
    """The names of the files of a folder that a use of it opens."""
    with opened_paths() as paths:
        use(folder)
    return {str(path.relative_to(folder)) for path in paths if path.is_relative_to(folder)} & set(paths_below(folder))


def assert_links_are_refused(folder: Path, uses: tuple[Use, ...], unlinked: set[str]) -> None:
    """Every file is opened by some use, and by none once it is a link out of the folder.

    unlinked: names of files that are then silently left out; all others are refused.
    """
    all_names, all_opened = {name for name in paths_below(folder) if (folder / name).is_file()}, set[str]()
    for use in uses:
        for name in sorted(opened := opened_names(folder, use)):
            with linked_outside(folder, name) as target, opened_paths() as paths:
                silent = use in (_state, _licence) or name in unlinked
                with contextlib.nullcontext() if silent else pytest.raises(UNSAFE, match="is a link to"):
                    use(folder)
                followed = {os.path.realpath(path) for path in paths}
                assert str(target) not in followed, f"{use.__name__} followed {name}"
        all_opened |= opened
    assert all_opened == all_names


@pytest.mark.parametrize("form", FORMS)
def test_loading_follows_no_link_out_of_the_folder(form: str, tmp_path: Path, shared: Shared) -> None:
    folder = tmp_path / "model"
    FORMS[form](folder, shared)
    assert_links_are_refused(folder, READERS, set())


@pytest.mark.parametrize("form", FOREIGN)
def test_converting_follows_no_link_out_of_the_folder(form: str, tmp_path: Path, shared: Shared) -> None:
    folder = tmp_path / "model"
    FOREIGN[form](folder, shared)
    assert_links_are_refused(folder, (convert_beside,), {"LICENSE"})


def test_linked_export_folder_is_not_entered(tmp_path: Path, shared: Shared) -> None:
    folder = tmp_path / "model"
    onnx(folder, shared)
    convert_beside(folder)
    (folder / "onnx").rename(tmp_path / "elsewhere")
    (folder / "onnx").symlink_to(tmp_path / "elsewhere")
    with opened_paths() as paths, pytest.raises(UNSAFE, match=r"is a link to .*elsewhere/model\.onnx, outside"):
        convert_beside(folder)
    assert not [path for path in paths if path.suffix == ".onnx"]

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
from tests.checkpoints.builders import UNSAFE, as_bin, good, listing, save_bin, sentence, shards, vocabulary
from tests.checkpoints.convert.exports import export, tiny_bert
from tests.checkpoints.convert.test_onnx_hostile import graph, outside
from tests.checkpoints.families import save
from tests.checkpoints.test_adapter import adapted
from tests.checkpoints.test_fuzz_families import as_gguf
from tests.checkpoints.watched import opened

Shared = Callable[[str], Path]
Form = Callable[[Path, Shared], object]
Use = Callable[[Path], object]

pytestmark = pytest.mark.timeout(120)


def worded(folder: Path, _: Shared) -> None:
    """A sentence encoder with every file that a folder may hold beside its weights."""
    sentence(folder)
    (folder / "vocab.txt").write_text("\n".join(vocabulary()))
    beside: dict[str, Any] = {
        "tokenizer_config.json": {"do_lower_case": True},
        "special_tokens_map.json": {"mask_token": "[MASK]"},
        "added_tokens.json": {"[X]": 57},
        "config_sentence_transformers.json": {"similarity_fn_name": "dot"},
        "generation_config.json": {"max_new_tokens": 3},
    }
    for name, said in beside.items():
        (folder / name).write_text(json.dumps(said))
    (folder / "additional_chat_templates").mkdir()
    for template in ("chat_template.jinja", "additional_chat_templates/tool_use.jinja"):
        (folder / template).write_text("{{ messages[0].content }}")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")


def saved(folder: Path, shared: Shared) -> None:
    """As pellucid saves it, with a tokenizer.json, and in shards."""
    worded(folder.parent / "first", shared)
    pellucid.load(folder.parent / "first").save(folder)
    shards(folder)


def pairs(folder: Path, _: Shared) -> None:
    save("roberta", folder)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    words = {word: i for i, word in enumerate((*special, "a", "b", "ab"))}
    (folder / "vocab.json").write_text(json.dumps(words))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))


def pieces(folder: Path, shared: Shared) -> None:
    save("albert", folder, vocab_size=30_000)
    shutil.copyfile(shared("data/tokenizers/albert-spiece.model"), folder / "spiece.model")


def adapter(folder: Path, shared: Shared) -> None:
    worded(folder.parent / "base", shared)
    pellucid.load(folder.parent / "base").save(folder.parent / "whole")
    adapted(folder.parent / "whole", folder)


def pickled_adapter(folder: Path, shared: Shared) -> None:
    adapter(folder, shared)
    save_bin(load_file(folder / "adapter_model.safetensors"), folder / "adapter_model.bin")
    (folder / "adapter_model.safetensors").unlink()


def onnx(folder: Path, _: Shared) -> None:
    """With weights in a file of their own, as large models have them."""
    export(tiny_bert("base"), folder, "traced", name="onnx/model.onnx")
    shutil.move(folder / "onnx" / "model.onnx", folder / "model.onnx")
    (folder / "numbers").write_bytes(bytes(61 * 32 * 4))
    graph(outside("numbers"))(folder)
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
    "words": worded,
    "shards": saved,
    "bin": lambda folder, _: as_bin(good(folder)),
    "bin-shards": lambda folder, _: shards(good(folder), "bin"),
    "pairs": pairs,
    "pieces": pieces,
    "adapter": adapter,
    "bin-adapter": pickled_adapter,
    "gguf": lambda folder, _: as_gguf("llama", folder.parent).rename(folder),
    "converted": converted,
}
FOREIGN: dict[str, Form] = {"onnx": onnx, "ctranslate2": ctranslate2}

READ: tuple[Use, ...] = (pellucid.load, read_plan, read_config, read_tokenizer, _state, _licence)


def converts(folder: Path) -> object:
    """Converts into a folder beside this one."""
    heads = None if (folder / "config.json").exists() else 8
    return convert(folder, folder.parent / "ours", heads=heads, overwrite=True)


# -- which files are opened --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def moved_out(folder: Path, name: str) -> Iterator[Path]:
    """Puts a link to a file outside in place of a file, for the duration of the block; yields the path outside."""
    path, away = folder / name, folder.parent / f"outside{Path(name).suffix}"
    path.rename(away)
    path.symlink_to(away)
    try:
        yield away
    finally:
        path.unlink()
        away.rename(path)


def names_of(folder: Path, use: Use) -> set[str]:
    """The names of the files of a folder that a use of it opens."""
    with opened() as paths:
        use(folder)
    return {str(path.relative_to(folder)) for path in paths if path.is_relative_to(folder)} & set(listing(folder))


def check_uses(folder: Path, uses: tuple[Use, ...], unlinked: set[str]) -> None:
    """Every file is opened by some use, and by none once it is a link out of the folder.

    unlinked: names of files that are then silently left out; all others are refused.
    """
    every, seen = {name for name in listing(folder) if (folder / name).is_file()}, set[str]()
    for use in uses:
        for name in sorted(found := names_of(folder, use)):
            with moved_out(folder, name) as away, opened() as paths:
                silent = use in (_state, _licence) or name in unlinked
                with contextlib.nullcontext() if silent else pytest.raises(UNSAFE, match="is a link to"):
                    use(folder)
                followed = {os.path.realpath(path) for path in paths}
                assert str(away) not in followed, f"{use.__name__} followed {name}"
        seen |= found
    assert seen == every


@pytest.mark.parametrize("form", FORMS)
def test_nothing_that_is_read_is_followed_out_of_the_folder(form: str, tmp_path: Path, shared: Shared) -> None:
    folder = tmp_path / "model"
    FORMS[form](folder, shared)
    check_uses(folder, READ, set())


@pytest.mark.parametrize("form", FOREIGN)
def test_nothing_that_is_converted_is_followed_out_of_the_folder(form: str, tmp_path: Path, shared: Shared) -> None:
    folder = tmp_path / "model"
    FOREIGN[form](folder, shared)
    check_uses(folder, (converts,), {"LICENSE"})


def test_a_folder_of_exports_that_lies_elsewhere_is_not_entered(tmp_path: Path, shared: Shared) -> None:
    folder = tmp_path / "model"
    onnx(folder, shared)
    converts(folder)
    (folder / "onnx").rename(tmp_path / "elsewhere")
    (folder / "onnx").symlink_to(tmp_path / "elsewhere")
    with opened() as paths, pytest.raises(UNSAFE, match=r"is a link to .*elsewhere/model\.onnx, outside"):
        converts(folder)
    assert not [path for path in paths if path.suffix == ".onnx"]

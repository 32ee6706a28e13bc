"""Thousands of small damages: each one loads or raises an error of pellucid within two seconds, and nothing else."""

import logging
import random
import time
import zipfile
from collections import Counter
from pathlib import Path

import pytest

import pellucid
from pellucid.errors import PellucidError
from tests.checkpoints.builders import (
    PICKLED,
    WEIGHTS,
    Damage,
    convert_to_bin,
    split_into_shards,
    valid_checkpoint,
    vocabulary,
    with_file,
)
from tests.quick import few

pytestmark = pytest.mark.timeout(300)

ODD_VALUES = [
    "-1",
    "0",
    "1e400",
    "NaN",
    "null",
    "true",
    '""',
    "[]",
    "{}",
    '"\\u0000"',
    "9" * 30,
    "0.5",
    '"x"',
    "[[[[]]]]",
    '"bert"',
]
EIGHT_BYTES = [b"\xff" * 8, bytes(8), (2**62).to_bytes(8, "little"), (2**31).to_bytes(8, "little")]


def damaged_bytes(raw: bytes, generator: random.Random) -> bytes:
    """Changes, deletes, repeats or cuts off a few bytes; in JSON, sometimes replaces a value with an odd one."""
    changed = bytearray(raw)
    for _ in range(generator.choice([1, 1, 1, 2, 5, 20])):
        position, choice = generator.randrange(len(changed) or 1), generator.random()
        if choice < 0.5:
            changed[position : position + 1] = bytes([generator.randrange(256)])
        elif choice < 0.6:
            del changed[position : position + generator.randrange(1, 20)]
        elif choice < 0.7:
            changed[position:position] = changed[position : position + generator.randrange(1, 40)]
        elif choice < 0.75:
            del changed[position:]
        elif choice < 0.85:
            changed[position : position + 8] = generator.choice(EIGHT_BYTES)
        else:
            end = changed.find(b",", position)
            begin = changed.rfind(b":", 0, end)
            if 0 <= begin < end:
                changed[begin + 1 : end] = generator.choice(ODD_VALUES).encode()
    return bytes(changed)


def damage_pickle(raw: bytes, generator: random.Random, path: Path) -> None:
    """Damages the pickle inside a zip, whose checksums are then valid again."""
    path.write_bytes(raw)
    with zipfile.ZipFile(path) as old:
        entries = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, content in entries.items():
            new.writestr(name, damaged_bytes(content, generator) if name.endswith("data.pkl") else content)


def add_sentence_modules(folder: Path) -> None:
    types = [f"sentence_transformers.models.{kind}" for kind in ("Transformer", "Pooling")]
    with_file("modules.json", [{"type": one, "path": path} for one, path in zip(types, ("", "1_x"))])(folder)
    with_file("1_x/config.json", {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False})(folder)


def add_vocabulary(folder: Path) -> None:
    with_file("vocab.txt", "\n".join(vocabulary()))(folder)


def add_tokenizer(folder: Path) -> None:
    add_vocabulary(folder)
    found = pellucid.load(folder).tokenizer
    assert found is not None
    with_file("tokenizer.json", found.to_json())(folder)


def add_tokenizer_settings(folder: Path) -> None:
    add_vocabulary(folder)
    with_file("tokenizer_config.json", {"do_lower_case": True, "pad_token": "[PAD]", "model_max_length": 32})(folder)


KINDS: dict[str, tuple[str, Damage]] = {
    "weights": (WEIGHTS, lambda folder: None),
    "config": ("config.json", lambda folder: None),
    "bin": (PICKLED, convert_to_bin),
    "pickle": (PICKLED, convert_to_bin),
    "index": ("model.safetensors.index.json", split_into_shards),
    "modules": ("modules.json", add_sentence_modules),
    "pooling": ("1_x/config.json", add_sentence_modules),
    "words": ("vocab.txt", add_vocabulary),
    "tokenizer": ("tokenizer.json", add_tokenizer),
    "settings": ("tokenizer_config.json", add_tokenizer_settings),
}
"""By kind, the file to damage and what makes a folder with it."""


@pytest.mark.filterwarnings("ignore::UserWarning:torch")  # PyTorch warns about some damaged pickles
@pytest.mark.parametrize("kind", few(KINDS, ["weights", "config", "pickle", "tokenizer"]))
@pytest.mark.parametrize("rounds", [150, pytest.param(3000, marks=pytest.mark.slow)])
def test_damage_raises_only_our_errors(
    kind: str, rounds: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, prepare = KINDS[kind]
    folder = valid_checkpoint(tmp_path / "model")
    prepare(folder)
    caplog.set_level(logging.CRITICAL, logger="pellucid")
    raw, generator, outcomes = (folder / name).read_bytes(), random.Random(f"{kind} {rounds}"), Counter[str]()
    for _ in range(rounds):
        if kind == "pickle":
            damage_pickle(raw, generator, folder / name)
        else:
            (folder / name).write_bytes(damaged_bytes(raw, generator))
        started = time.process_time()
        outcomes[loading_outcome(folder)] += 1
        assert time.process_time() - started < 2
    assert len(outcomes) >= 2, outcomes  # the damage is neither too small nor too large


def loading_outcome(folder: Path) -> str:
    """The class of the error, or "loaded"."""
    try:
        pellucid.load(folder)
    except PellucidError as error:
        assert str(error).isprintable(), str(error)
        return type(error).__name__
    return "loaded"

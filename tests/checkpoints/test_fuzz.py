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
from tests.checkpoints.builders import PICKLED, WEIGHTS, Damage, as_bin, good, shards, vocabulary, with_file
from tests.quick import few

pytestmark = pytest.mark.timeout(300)

ODD = [
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
EIGHT = [b"\xff" * 8, bytes(8), (2**62).to_bytes(8, "little"), (2**31).to_bytes(8, "little")]


def spoil(raw: bytes, chance: random.Random) -> bytes:
    """Changes, deletes, repeats or cuts off a few bytes; in JSON, sometimes replaces a value with an odd one."""
    changed = bytearray(raw)
    for _ in range(chance.choice([1, 1, 1, 2, 5, 20])):
        place, way = chance.randrange(len(changed) or 1), chance.random()
        if way < 0.5:
            changed[place : place + 1] = bytes([chance.randrange(256)])
        elif way < 0.6:
            del changed[place : place + chance.randrange(1, 20)]
        elif way < 0.7:
            changed[place:place] = changed[place : place + chance.randrange(1, 40)]
        elif way < 0.75:
            del changed[place:]
        elif way < 0.85:
            changed[place : place + 8] = chance.choice(EIGHT)
        else:
            end = changed.find(b",", place)
            begin = changed.rfind(b":", 0, end)
            if 0 <= begin < end:
                changed[begin + 1 : end] = chance.choice(ODD).encode()
    return bytes(changed)


def rezip(raw: bytes, chance: random.Random, path: Path) -> None:
    """Damages the pickle inside a zip, whose checksums are then valid again."""
    path.write_bytes(raw)
    with zipfile.ZipFile(path) as old:
        entries = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, content in entries.items():
            new.writestr(name, spoil(content, chance) if name.endswith("data.pkl") else content)


def sentence(folder: Path) -> None:
    types = [f"sentence_transformers.models.{kind}" for kind in ("Transformer", "Pooling")]
    with_file("modules.json", [{"type": one, "path": path} for one, path in zip(types, ("", "1_x"))])(folder)
    with_file("1_x/config.json", {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False})(folder)


def words(folder: Path) -> None:
    with_file("vocab.txt", "\n".join(vocabulary()))(folder)


def tokenizer(folder: Path) -> None:
    words(folder)
    found = pellucid.load(folder).tokenizer
    assert found is not None
    with_file("tokenizer.json", found.to_json())(folder)


def settings(folder: Path) -> None:
    words(folder)
    with_file("tokenizer_config.json", {"do_lower_case": True, "pad_token": "[PAD]", "model_max_length": 32})(folder)


KINDS: dict[str, tuple[str, Damage]] = {
    "weights": (WEIGHTS, lambda folder: None),
    "config": ("config.json", lambda folder: None),
    "bin": (PICKLED, as_bin),
    "pickle": (PICKLED, as_bin),
    "index": ("model.safetensors.index.json", shards),
    "modules": ("modules.json", sentence),
    "pooling": ("1_x/config.json", sentence),
    "words": ("vocab.txt", words),
    "tokenizer": ("tokenizer.json", tokenizer),
    "settings": ("tokenizer_config.json", settings),
}
"""By kind, the file to damage and what makes a folder with it."""


@pytest.mark.filterwarnings("ignore::UserWarning:torch")  # PyTorch warns about some damaged pickles
@pytest.mark.parametrize("kind", few(KINDS, ["weights", "config", "pickle", "tokenizer"]))
@pytest.mark.parametrize("rounds", [150, pytest.param(3000, marks=pytest.mark.slow)])
def test_damage_is_an_error_of_ours_or_none(
    kind: str, rounds: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, prepare = KINDS[kind]
    folder = good(tmp_path / "model")
    prepare(folder)
    caplog.set_level(logging.CRITICAL, logger="pellucid")
    raw, chance, ends = (folder / name).read_bytes(), random.Random(f"{kind} {rounds}"), Counter[str]()
    for _ in range(rounds):
        if kind == "pickle":
            rezip(raw, chance, folder / name)
        else:
            (folder / name).write_bytes(spoil(raw, chance))
        started = time.process_time()
        ends[load(folder)] += 1
        assert time.process_time() - started < 2
    assert len(ends) >= 2, ends  # the damage is neither too small nor too large


def load(folder: Path) -> str:
    """The class of the error, or "loaded"."""
    try:
        pellucid.load(folder)
    except PellucidError as error:
        assert str(error).isprintable(), str(error)
        return type(error).__name__
    return "loaded"

"""Tiny checkpoints and every way to damage one, written byte by byte so that the repository holds no binary files."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import pellucid
from pellucid.errors import CheckpointMismatchError, CorruptFileError, NotFoundError, PellucidError, UnsafeFileError
from tests.conftest import as_trained, tiny_config

CORRUPT, MISMATCH = CorruptFileError, CheckpointMismatchError
UNSAFE, ABSENT = UnsafeFileError, NotFoundError

WEIGHTS = "model.safetensors"
PICKLED = "pytorch_model.bin"
MODULES = "sentence_transformers.models."
POOLING_CONFIG = "1_Pooling/config.json"
TOKEN_TABLE = "embeddings.word_embeddings.weight"
NORM = "embeddings.LayerNorm.weight"

Header = dict[str, Any]
Damage = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """A damaged checkpoint: the damage, the error that loading must raise, and a text that its message must contain."""

    name: str
    damage: Damage
    error: type[PellucidError]
    message: str
    max_length: int = 400
    """Longest message allowed, in characters; higher only where it lists two sets of names."""


def parametrize_cases(cases: list[Case]) -> pytest.MarkDecorator:
    """Parametrises a test over cases, with their names as ids."""
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])


def valid_checkpoint(folder: Path, **facts: object) -> Path:
    """A valid tiny BERT."""
    return as_trained(pellucid.build(tiny_config(**facts), seed=1)).save(folder)


def assert_refused(folder: Path, case: Case, seconds: float = 2.0) -> None:
    """Loading raises the case's error within `seconds` of CPU time, in one short line, and leaves no file behind."""
    before, started = paths_below(folder.parent), time.process_time()
    with pytest.raises(PellucidError) as caught:
        pellucid.load(folder)
    took, message = time.process_time() - started, str(caught.value)
    assert type(caught.value) is case.error, message
    assert_one_sentence(message, folder, case.max_length)
    assert case.message in message
    assert took < seconds
    assert paths_below(folder.parent) == before


def assert_one_sentence(message: str, folder: Path, max_length: int = 400) -> None:
    """The message is one complete, printable line of sensible length, not counting the path of the folder."""
    assert message.isprintable(), repr(message)
    assert 20 < len(message.replace(str(folder), "")) < max_length
    assert not message.endswith((".", ":", " "))


def paths_below(folder: Path) -> list[str]:
    """Every path below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# -- safetensors, byte by byte -----------------------------------------------------------------------------------------


def read_raw(path: Path) -> tuple[Header, bytes]:
    """The header of a safetensors file as JSON, and the bytes after it."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def write_raw(path: Path, header: Header | bytes, body: bytes = b"", length: int | None = None) -> None:
    """Writes any header before any bytes; `length` is the size that the file claims for its header."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + body)


def with_bytes(change: Callable[[bytes], bytes], name: str = WEIGHTS) -> Damage:
    """Applies a change to the bytes of a file."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def with_header(change: Callable[[Header], object], name: str = WEIGHTS) -> Damage:
    """Changes the header in place and leaves the tensor data alone."""

    def damage(folder: Path) -> None:
        header, body = read_raw(folder / name)
        change(header)
        write_raw(folder / name, header, body)

    return damage


def with_text(change: Callable[[str], str]) -> Damage:
    """Changes the header as text, for what a dict cannot express."""

    def damage(folder: Path) -> None:
        header, body = read_raw(folder / WEIGHTS)
        write_raw(folder / WEIGHTS, change(json.dumps(header)).encode(), body)

    return damage


def with_entry(name: str = NORM, **values: Any) -> Damage:
    """Changes the header's entry of one tensor."""
    return with_header(lambda header: header[name].update(values))


def with_tensors(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Changes the tensors by name and writes a well-formed file."""

    def damage(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file({name: value.contiguous() for name, value in tensors.items()}, folder / WEIGHTS)

    return damage


# -- other files -------------------------------------------------------------------------------------------------------


def with_config(**values: Any) -> Damage:
    """Sets keys of `config.json`."""
    return lambda folder: edit_json(folder / "config.json", lambda config: config.update(values))


def with_file(name: str, content: object) -> Damage:
    """Writes a file of the folder: text, bytes, or anything else as JSON."""

    def damage(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        raw = content if isinstance(content, str | bytes) else json.dumps(content)
        (folder / name).write_bytes(raw.encode() if isinstance(raw, str) else raw)

    return damage


def edit_json(path: Path, change: Callable[[Any], object]) -> None:
    """Changes a JSON file in place."""
    found = json.loads(path.read_text(encoding="utf-8"))
    change(found)
    path.write_text(json.dumps(found), encoding="utf-8")


def split_into_shards(folder: Path, form: str = "safetensors") -> dict[str, str]:
    """Splits the weights of a folder into two shards with an index, and returns the shard of each tensor."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    stem, names = "model" if form == "safetensors" else "pytorch_model", sorted(tensors)
    halves = {f"{stem}-0000{i + 1}-of-00002.{form}": names[i::2] for i in range(2)}
    for shard, part in halves.items():
        tensors_of_shard = {name: tensors[name] for name in part}
        save_file(tensors_of_shard, folder / shard) if form == "safetensors" else save_bin(
            tensors_of_shard, folder / shard
        )
    table = {name: shard for shard, part in halves.items() for name in part}
    index = f"{stem}.{form}.index.json"
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": table}), encoding="utf-8")
    return table


def save_bin(value: object, path: Path, **settings: Any) -> None:
    import torch

    torch.save(value, path, **settings)


def convert_to_bin(folder: Path) -> Path:
    """Turns the weights of a folder into a `.bin`."""
    from safetensors.torch import load_file

    save_bin(load_file(folder / WEIGHTS), folder / PICKLED)
    (folder / WEIGHTS).unlink()
    return folder


def module_entries(*kinds: str, path: object = "1_Pooling") -> list[dict[str, Any]]:
    """The contents of `modules.json` for these types; `path` is the folder of each module but the first."""
    return [{"idx": i, "name": str(i), "path": path if i else "", "type": kind} for i, kind in enumerate(kinds)]


def sentence_encoder(folder: Path) -> Path:
    """A tiny sentence encoder."""
    with_file("modules.json", module_entries(f"{MODULES}Transformer", f"{MODULES}Pooling"))(valid_checkpoint(folder))
    with_file(POOLING_CONFIG, {"word_embedding_dimension": 24, "pooling_mode_mean_tokens": True})(folder)
    with_file("sentence_bert_config.json", {"max_seq_length": 16})(folder)
    return folder


def vocabulary(size: int = 60) -> list[str]:
    """A tiny vocabulary: special tokens, letters, and letters that continue a word."""
    letters = [chr(ord("a") + i) for i in range(26)]
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)][:size]

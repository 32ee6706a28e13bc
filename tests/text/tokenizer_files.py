"""Folders with tokenizers in older formats: real files, or small ones trained on real text."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers


def tokenizer_folder(folder: Path, model_type: str, files: dict[str, Path], **settings: Any) -> Path:
    """A checkpoint's folder with these files under these names, a config.json and a tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in files.items():
        shutil.copyfile(source, folder / name)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def train_sentencepiece(lines: list[str], target: Path, **options: Any) -> Path:
    """Trains a SentencePiece model, by default of 800 pieces, and writes it to `target`."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(target.with_suffix("")),
        minloglevel=2,
        num_threads=2,
        **({"vocab_size": 800} | options),
    )
    path = target.with_suffix(".model")
    return path if path == target else path.rename(target)


def train_bpe(lines: list[str], folder: Path, special: list[str]) -> dict[str, Path]:
    """Trains byte-level BPE with 800 tokens, and saves it as `vocab.json` and `merges.txt`."""
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(lines, vocab_size=800, min_frequency=2, special_tokens=special, show_progress=False)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_model(str(folder))
    return {name: folder / name for name in ("vocab.json", "merges.txt")}


def wikitext_lines(path: Path, limit: int = 3000) -> list[str]:
    """The first lines of wikitext with more than 40 characters."""
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if len(line) > 40][:limit]


def xquad_paragraphs(folder: Path) -> list[str]:
    """All 720 paragraphs of XQuAD: English, German, Spanish."""
    return [
        paragraph["context"]
        for name in ("en", "de", "es")
        for article in json.loads((folder / f"xquad.{name}.json").read_text(encoding="utf-8"))["data"]
        for paragraph in article["paragraphs"]
    ]


def protobuf_field(number: int, value: bytes | int | float) -> bytes:
    """A field of a message in the wire format of Protocol Buffers."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def varint(value: int) -> bytes:
    """An integer as a varint, in groups of seven bits."""
    digits = []
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def encoded_piece(text: str | bytes, score: float = -1.0, kind: int = 1) -> bytes:
    """A piece as the file of a SentencePiece model stores it."""
    raw = text if isinstance(text, bytes) else text.encode()
    return protobuf_field(1, protobuf_field(1, raw) + protobuf_field(2, score) + protobuf_field(3, kind))

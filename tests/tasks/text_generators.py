"""Small checkpoints that generate text, loaded by both libraries."""

import functools
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transformers

import pellucid
from tests.parity import tiny

_FOLDERS = tempfile.TemporaryDirectory(prefix="pellucid-writers-")


@functools.cache
def folder(name: str) -> Path:
    """A checkpoint of `tests/parity/recipes.py`."""
    return tiny.write(name, Path(_FOLDERS.name) / name)


@functools.cache
def model(name: str) -> pellucid.Model:
    return pellucid.load(folder(name))


@functools.cache
def reference(name: str) -> tuple[Any, Any]:
    """The same checkpoint in the reference: model and tokenizer."""
    model_class = transformers.AutoModelForCausalLM if _is_decoder(name) else transformers.AutoModelForSeq2SeqLM
    loaded = model_class.from_pretrained(folder(name), dtype="float32").eval()
    return loaded, transformers.AutoTokenizer.from_pretrained(folder(name))


def reference_texts(name: str, text: str, **options: Any) -> list[str]:
    """The reference's generated texts, the best first; those of a decoder without the prompt."""
    loaded, tokenizer = reference(name)
    encoded = tokenizer(text, return_tensors="pt")
    length = encoded.input_ids.shape[1] if _is_decoder(name) else 0
    generated = loaded.generate(input_ids=encoded.input_ids, attention_mask=encoded.attention_mask, **options)
    return [tokenizer.decode(ids[length:], skip_special_tokens=True) for ids in generated]


def changed_checkpoint(name: str, to: Path, *, generation: dict[str, Any] | None = None, **facts: Any) -> Path:
    """A copy of a checkpoint with other facts and, if given, other generation settings."""
    tiny.write(name, to)
    path = to / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | facts), encoding="utf-8")
    if generation is not None:
        (to / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return to


def keys(answer: Any, key: str) -> list[str]:
    """Field `key` of an answer and of its alternatives."""
    return [each[key] for each in answer.all or (answer,)]


def spans(text: str, answer: Any) -> list[str]:
    """The windows of a text that were read."""
    windows: Sequence[tuple[int, int]] = answer.read.windows
    return [text[start:end] for start, end in windows]


def _is_decoder(name: str) -> bool:
    return not name.startswith(("t5", "bart"))

"""A tokenizer from the files of a checkpoint: `tokenizer.json`, or the older `vocab.txt`."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from pellucid.errors import CorruptFileError
from pellucid.text.tokenizer import Tokenizer

_BERT_SPECIAL = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_ROLES = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
_FLAGS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
_MOST_BYTES = 20_000_000
_ENDLESS = 1_000_000_000
"""Files write a huge number where they mean "no limit"."""


def open_tokenizer(folder: Path, *, max_length: int | None, token_types: bool) -> Tokenizer | None:
    """The tokenizer of a checkpoint folder, or None where there is none.

    max_length: the model's own limit in tokens; the file's is used where it is smaller.
    """
    settings = _settings(folder)
    if (folder / "tokenizer.json").is_file():
        backend = _from_json(folder / "tokenizer.json")
    elif (folder / "vocab.txt").is_file():
        backend = _from_vocabulary(folder / "vocab.txt", settings)
        settings = {f"{role}_token": token for role, token in _BERT_SPECIAL.items()} | settings
    else:
        return None
    stated: Any = settings.get("model_max_length")
    limits = [int(n) for n in (max_length, stated) if isinstance(n, int | float) and 1 <= n < _ENDLESS]
    return Tokenizer(backend, settings=settings, max_length=min(limits, default=None), token_types=token_types)


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json`, which the reference opens."""
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"} | tokenizer.settings
    if tokenizer.model_max_length is not None:
        settings["model_max_length"] = tokenizer.model_max_length
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _settings(folder: Path) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = folder / name
        if not path.is_file():
            continue
        if path.stat().st_size > _MOST_BYTES:
            raise CorruptFileError(f"{path} has {path.stat().st_size:,} bytes, expected at most {_MOST_BYTES:,}")
        try:
            found = json.loads(path.read_text(encoding="utf-8-sig"))
        except (UnicodeDecodeError, ValueError, RecursionError) as error:
            raise CorruptFileError(f"{path} is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise CorruptFileError(f"{path} holds a {type(found).__name__}, expected an object")
        merged |= _checked(found, path)
    return merged


def _checked(settings: dict[str, Any], path: Path) -> dict[str, Any]:
    """The settings that are read, each of the kind that it must be; null counts as not said."""
    for name in _FLAGS:
        if not isinstance(settings.get(name), bool | None):
            raise CorruptFileError(f"{path}: {name} is {repr(settings[name])[:60]}, expected true or false")
    for name in (f"{role}_token" for role in _ROLES):
        token = settings.get(name)
        if not isinstance(token.get("content") if isinstance(token, dict) else token or "", str):
            raise CorruptFileError(f"{path}: {name} is {repr(token)[:60]}, expected a token")
    return {name: value for name, value in settings.items() if value is not None or name not in _FLAGS}


def _from_json(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # the library panics on hostile files, and a panic is not an Exception
        raise CorruptFileError(f"{path} is not a tokenizer: {ascii(str(error))[1:-1][:120]}") from error


def _from_vocabulary(path: Path, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    """The WordPiece tokenizer of BERT (Devlin et al., 2018) from its list of words."""
    try:
        words = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")  # splitlines would split at U+2028 too
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"{path} is not UTF-8 text: {error}") from error
    vocabulary = {word: i for i, word in enumerate(words)}
    missing = [token for token in ("[UNK]", "[CLS]", "[SEP]") if token not in vocabulary]
    if missing:
        raise CorruptFileError(f"{path} lacks {', '.join(missing)}, which every BERT vocabulary has")
    lower = settings.get("do_lower_case", True)
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=lower,
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.add_special_tokens([token for token in _BERT_SPECIAL.values() if token in vocabulary])
    return backend

"""CTranslate2's vocabularies, one token per line, as tokenizers that every library opens."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pellucid.errors import CheckpointMismatchError, CorruptFileError, NotFoundError
from pellucid.files import check_byte_count
from pellucid.text.files import TARGET_TOKENIZER_FILE

UNKNOWN = "<unk>"
SPECIAL = ("<blank>", "<s>", "</s>", UNKNOWN)


@dataclass(frozen=True)
class Vocabularies:
    """The tokens of both languages in the order of their ids; the unknown token comes last where no line has it."""

    folder: Path
    source: tuple[str, ...]
    target: tuple[str, ...]

    def check(self, source_rows: int, target_rows: int) -> None:
        """Refuses tables with more or fewer rows than there are tokens."""
        for name, tokens, rows in (("source", self.source, source_rows), ("target", self.target, target_rows)):
            if len(tokens) != rows:
                raise CheckpointMismatchError(
                    f"{self.folder}: the {name} vocabulary has {len(tokens)} tokens with {UNKNOWN}, its table {rows}"
                )

    def target_id(self, token: str) -> int:
        """The id of a token with which the decoder starts or ends."""
        if token not in self.target:
            raise CheckpointMismatchError(f"{self.folder}: the target vocabulary lacks {token}")
        return self.target.index(token)

    def tokenizer_files(self) -> dict[str, str]:
        """tokenizer.json for the input, target_tokenizer.json for the output, and their settings."""
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": UNKNOWN,
            **({"pad_token": SPECIAL[0]} if SPECIAL[0] in self.source else {}),
            "clean_up_tokenization_spaces": False,
        }
        return {
            "tokenizer.json": _tokenizer_json(self.source),
            TARGET_TOKENIZER_FILE: _tokenizer_json(self.target),
            "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
        }


def read_vocabularies(folder: Path) -> Vocabularies:
    """Both vocabularies of a folder, or the shared one for both."""
    found = {}
    for side in ("source", "target"):
        names = [f"{side}_vocabulary.txt", "shared_vocabulary.txt", f"{side}_vocabulary.json", "shared_vocabulary.json"]
        path = next((folder / name for name in names if (folder / name).is_file()), None)
        if path is None:
            raise NotFoundError(f"{folder} has no {names[0]}: without its vocabulary nothing can be read or written")
        found[side] = _read_tokens(path)
    return Vocabularies(folder, found["source"], found["target"])


def _read_tokens(path: Path) -> tuple[str, ...]:
    check_byte_count(path)
    try:
        text = path.read_text(encoding="utf-8")
        tokens = json.loads(text) if path.suffix == ".json" else text.removesuffix("\n").split("\n")
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path} is not a list of tokens in UTF-8") from error
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise CorruptFileError(f"{path} is not a list of tokens")
    tokens = [token.removesuffix("\r") for token in tokens]
    if len(set(tokens)) < len(tokens):
        raise CorruptFileError(f"{path} names a token twice, so its lines cannot be counted as ids")
    return tuple(tokens if UNKNOWN in tokens else [*tokens, UNKNOWN])


def _tokenizer_json(tokens: tuple[str, ...]) -> str:
    """A tokenizer that looks up whole tokens: characters where all tokens are single characters, else words."""
    ordinary_tokens = [token for token in tokens if token not in SPECIAL]
    by_character = all(len(token) == 1 for token in ordinary_tokens)
    whitespace_split: dict[str, Any] = {"type": "WhitespaceSplit"}
    character_split = {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(i, token) for i, token in enumerate(tokens) if token in SPECIAL],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [whitespace_split, character_split]}
        if by_character
        else whitespace_split,
        "post_processor": None,
        "decoder": {"type": "Fuse"} if by_character else None,
        "model": {"type": "WordLevel", "vocab": {token: i for i, token in enumerate(tokens)}, "unk_token": UNKNOWN},
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _added_token(i: int, token: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": i, "content": token, **flags}

"""The vocabulary inside a GGUF file: the pieces, their kinds, and how they merge."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pellucid.errors import CorruptFileError, join_names
from pellucid.text.spm import PieceKind

_ROLES = {
    "bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding", "cls": "cls", "mask": "mask",
}  # fmt: skip
_DEFAULT_IDS = {
    "llama": {"unk": 0, "bos": 1, "eos": 2},
    "bert": {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103},
}
"""The ids of roles without a key in the file, as in llama.cpp."""

_FLAGS = (
    "add_bos_token", "add_eos_token", "add_space_prefix", "normalizer.lowercase", "normalizer.strip_accents"
)  # fmt: skip
_NO_ID = (-1, 2**32 - 1)
"""Values that some writers use for a role without a token."""

_MAX_PIECE_CHARACTERS = 1_000
_MAX_CHARACTERS = 16_000_000
"""Of all tokens together; deriving the merges of a SentencePiece vocabulary takes a step for each."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer data in a GGUF file.

    source: the file, for messages.
    model: "gpt2" (byte-level BPE), "llama" (SentencePiece's BPE) or "bert" (WordPiece).
    pre_tokenizer_name: the file's name for how texts are split first.  tokens: as in the file.
    kinds, scores: one for each token, or empty; kinds are numbered as in `PieceKind`.
    merges: "left right", the highest priority first.  special: the ids of roles ("bos", "pad" ...).
    flags: add_bos_token, add_eos_token, add_space_prefix, normalizer.lowercase and normalizer.strip_accents, where the
        file has them.
    """

    source: str
    model: str
    pre_tokenizer_name: str | None
    tokens: Sequence[str]
    kinds: Sequence[int]
    scores: Sequence[float]
    merges: Sequence[str]
    special: dict[str, int]
    flags: dict[str, bool]
    chat_template: str | None

    def token_names(self) -> Iterator[str]:
        """The tokens in order, empty ones renamed: as keys, two empty ones would collide."""
        return (token or _name_of_empty(i) for i, token in enumerate(self.tokens))

    def token_ids(self) -> dict[str, int]:
        """The tokens, empty ones renamed, and their ids."""
        return {token: i for i, token in enumerate(self.token_names())}

    def tokens_and_kinds(self) -> Iterator[tuple[str, int]]:
        """The tokens in order, each with its kind: NORMAL where the file has no kinds."""
        return zip(self.token_names(), self.kinds or itertools.repeat(PieceKind.NORMAL))

    def token_of_role(self, role: str) -> str | None:
        """The token in a role."""
        i = self.special.get(role)
        return None if i is None else self.tokens[i] or _name_of_empty(i)


def _name_of_empty(index: int) -> str:
    return f"[EMPTY_{index}]"


def read_vocabulary(metadata: Mapping[str, Any], source: str) -> Vocabulary | None:
    """The vocabulary in a file's metadata, with types checked; None where the file has none."""

    def stated(key: str, kind: type, default: Any) -> Any:
        value = metadata.get(f"tokenizer.{key}", default)
        if value is not default and type(value) is not kind:
            raise CorruptFileError(f"{source}: tokenizer.{key} is {repr(value)[:40]}, expected a {kind.__name__}")
        return value

    def strings(key: str) -> Sequence[str]:
        found = metadata.get(f"tokenizer.ggml.{key}", ())
        if isinstance(found, str) or not isinstance(found, Sequence):
            raise CorruptFileError(f"{source}: tokenizer.ggml.{key} is {repr(found)[:40]}, expected a list of strings")
        return found

    def numbers(key: str) -> Sequence[Any]:
        found = metadata.get(f"tokenizer.ggml.{key}")
        if found is None:
            return []
        if isinstance(found, Sequence) or not hasattr(found, "__len__") or len(found) not in (0, len(tokens)):
            raise CorruptFileError(f"{source}: tokenizer.ggml.{key} is not one number for each of {len(tokens)} tokens")
        return found.tolist()

    model = stated("ggml.model", str, None)
    tokens = strings("tokens")
    if model in (None, "no_vocab", "none") or not tokens:
        return None
    _check_tokens(tokens, source)
    kinds = numbers("token_type")
    return Vocabulary(
        source=source,
        model=model,
        pre_tokenizer_name=stated("ggml.pre", str, None),
        tokens=tokens,
        kinds=kinds,
        scores=numbers("scores"),
        merges=strings("merges"),
        special=_default_special_ids(model, kinds, metadata) | _stated_special_ids(metadata, len(tokens), source),
        flags={flag: value for flag in _FLAGS if (value := stated(f"ggml.{flag}", bool, None)) is not None},
        chat_template=stated("chat_template", str, None),
    )


def _check_tokens(stated: Sequence[str], source: str) -> None:
    tokens = list(stated)
    if not all(type(token) is str and len(token) <= _MAX_PIECE_CHARACTERS for token in tokens):
        raise CorruptFileError(
            f"{source}: tokenizer.ggml.tokens are not all strings of at most {_MAX_PIECE_CHARACTERS:,} characters"
        )
    if sum(map(len, tokens)) > _MAX_CHARACTERS:
        raise CorruptFileError(f"{source}: tokenizer.ggml.tokens has more than {_MAX_CHARACTERS:,} characters")
    seen: set[str] = set()
    twice = [token for token in tokens if token and (token in seen or seen.add(token))]
    if twice:
        raise CorruptFileError(f"{source}: tokenizer.ggml.tokens has {join_names(map(ascii, twice), 3)} twice")


def _default_special_ids(model: str, kinds: Sequence[int], metadata: Mapping[str, Any]) -> dict[str, int]:
    """The default ids of roles that the file does not name, where that token is a control or unknown token."""
    return {
        role: token
        for role, token in _DEFAULT_IDS.get(model, {}).items()
        if f"tokenizer.ggml.{_ROLES[role]}_token_id" not in metadata
        and token < len(kinds)
        and kinds[token] in (PieceKind.UNKNOWN, PieceKind.CONTROL)
    }


def _stated_special_ids(metadata: Mapping[str, Any], count: int, source: str) -> dict[str, int]:
    ids = {role: token_id(metadata, f"{name}_token_id", count, source) for role, name in _ROLES.items()}
    found = {role: token for role, token in ids.items() if token is not None}
    if metadata["tokenizer.ggml.model"] == "bert":  # cls and sep are also stored as bos and eos, in some files only so
        begins, ends = found.pop("bos", None), found.pop("eos", None)
        found = {role: i for role, i in (("cls", begins), ("sep", ends)) if i is not None} | found
    return found


def token_id(metadata: Mapping[str, Any], key: str, count: int, source: str) -> int | None:
    """The token id stored under a key of the tokenizer, one of `count`; None where there is none."""
    found = metadata.get(f"tokenizer.ggml.{key}")
    if found is None or (type(found) is int and found in _NO_ID):
        return None
    if type(found) is not int or not 0 <= found < count:
        raise CorruptFileError(
            f"{source}: tokenizer.ggml.{key} is {str(found)[:40]}, expected the number of one of {count:,} tokens"
        )
    return found

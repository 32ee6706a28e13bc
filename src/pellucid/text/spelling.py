"""How a vocabulary spells its tokens, and what they are as text."""

from collections.abc import Iterable
from typing import Any

import tokenizers

from pellucid.config.checks import require_names

_GAPS = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
"""Spaces that are inserted by decoders of words, and removed again; in " ' " both."""


def without_gaps(text: str) -> str:
    """The text without the spaces before `.`, `,`, `n't` and the like, as the reference cleans it.

    >>> without_gaps("It is n't , is it ?")
    "It isn't, is it?"
    """
    for gap in _GAPS:
        text = text.replace(gap, gap.strip())
    return text


class Spelling:
    """How the tokens of a tokenizer are spelled."""

    settings: dict[str, Any]
    _backend: tokenizers.Tokenizer

    @property
    def subword_prefix(self) -> str | None:
        """The prefix of tokens that continue a word, such as "##"; None where there is none."""
        model: Any = self._backend.model
        return getattr(model, "continuing_subword_prefix", None) or None

    @property
    def by_bytes(self) -> bool:
        """Whether characters in tokens represent bytes, as "Ġ" does a space; elsewhere it is a Maltese letter."""
        decoder = self._backend.decoder
        return decoder is not None and decoder.decode(["aĠa"]) == "a a"

    @property
    def space_marker(self) -> str | None:
        """The character in a token for the space before it, such as "Ġ"; None where there is none."""
        mark = "Ġ" if self.by_bytes else "▁"
        return mark if self.subword_prefix is None and self._backend.token_to_id(mark) is not None else None

    def convert_tokens_to_string(self, tokens: Iterable[str]) -> str:
        """Tokens, as spelled in the vocabulary, decoded to text."""
        decoder, token_list = self._backend.decoder, list(require_names("tokens", tokens, "tokens"))
        return " ".join(token_list) if decoder is None else decoder.decode(token_list)

    @property
    def clean_up_tokenization_spaces(self) -> bool:
        """Whether the files ask for `without_gaps` after decoding."""
        return bool(self.settings.get("clean_up_tokenization_spaces"))

    @property
    def keeps_spaces(self) -> bool:
        """Whether tokens contain every space of a text, as BPE's do, so that none may be removed."""
        forced = self.settings.get("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output")
        return isinstance(self._backend.model, tokenizers.models.BPE) and not forced

    def cleaned(self, text: str, clean_up_spaces: bool | None = None) -> str:
        """A decoded text, cleaned as in version 5 of the reference: the one rule, for `decode` and for tasks.

        clean_up_spaces: whether to remove spaces; by default as the files state. BPE texts are never changed.
        """
        cleans = self.clean_up_tokenization_spaces if clean_up_spaces is None else clean_up_spaces
        return without_gaps(text) if cleans and not self.keeps_spaces else text

    @property
    def vocab(self) -> dict[str, int]:
        """All tokens and their ids, added ones included."""
        return self._backend.get_vocab()

    @property
    def added_vocab(self) -> dict[str, int]:
        """The added tokens and their ids, special ones included, in the order of the ids."""
        return {token.content: i for i, token in sorted(self._backend.get_added_tokens_decoder().items())}

    @property
    def own_vocab(self) -> dict[str, int]:
        """All tokens and their ids, without added ones."""
        return self._backend.get_vocab(with_added_tokens=False)

    @property
    def vocab_size(self) -> int:
        """The number of tokens without added ones."""
        return self._backend.get_vocab_size(with_added_tokens=False)


def tokens_of(tokenizer: Spelling | None, ids: Iterable[int]) -> tuple[str, ...]:
    """The token of each id; `<7>` without a tokenizer, or where its vocabulary does not have the id."""
    id_list = [int(i) for i in ids]
    known = id_list if tokenizer is None else [tokenizer._backend.id_to_token(i) for i in id_list]
    return tuple(token if isinstance(token, str) else f"<{i}>" for i, token in zip(id_list, known))


def token_text(token: str, by_bytes: bool) -> str:
    """A token as text: `▁the` is " the". Where characters represent bytes so is `Ġthe`, and bytes that are not valid
    UTF-8 become `<0xE2>`."""
    if not by_bytes:
        return token.replace("▁", " ")
    if token.isascii() or any(letter not in BYTES for letter in token):
        return token.replace("▁", " ")
    raw = bytes(BYTES[letter] for letter in token)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(chr(b) if 32 <= b < 127 else f"<0x{b:02X}>" for b in raw)


def _byte_letters() -> dict[str, int]:
    """The characters that represent bytes in byte-level vocabularies (Radford et al., 2019, in their code)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTES = _byte_letters()
"""The byte that each character represents."""

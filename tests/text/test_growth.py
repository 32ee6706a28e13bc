"""How many characters a tokenizer may make of one: the bound for each kind of step, beside what it really makes."""

import json
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from pellucid.errors import CorruptFileError
from pellucid.text import growth
from pellucid.text.growth import GROWTH, MAX_GROWTH, check_growth

PATH = Path("tokenizer.json")
HARD = ("\ufdfa", "\u0130", "\u00e9", "\u1f82", "\ufb2c", "\u3400", "\U0001f600", "a", " ", ".", "7", "\u2581")
"""Characters that become many under Unicode normalisation, in lower case or as bytes, and plain ones."""
PARTS = {"normalizer": normalizers, "pre_tokenizer": pre_tokenizers, "decoder": decoders}
ABSTRACT = ("Normalizer", "PreTokenizer", "Decoder", "DecodeStream", "Sequence")


def table(word: str) -> bytes:
    """A character map of SentencePiece that turns "a" into a word: a trie of 256 units, then the word."""
    units = [0] * 256
    units[ord("a")] = ord("a") | 1 << 8 | 1 << 10  # a key ends here, and the unit beside it holds where its word is
    units[ord("a") ^ 1] = 1 << 31
    return struct.pack("<257I", 1024, *units) + word.encode() + b"\0"


GIVEN: dict[str, tuple[Any, ...]] = {
    "Precompiled": (table("abc"),),
    "Prepend": ("ab",),
    "Replace": (Regex(""), "xy"),
    "CharDelimiterSplit": (".",),
    "Split": (Regex(""), "isolated"),
    "BPEDecoder": ("",),
    "CTC": ("\0", "", True),
}
KINDS = [
    (what, name)
    for what, module in PARTS.items()
    for name, value in vars(module).items()
    if isinstance(value, type) and name not in ABSTRACT
]


def length(what: str, part: Any, text: str) -> int:
    """How many characters a step makes of a text."""
    if what == "normalizer":
        return len(part.normalize_str(text))
    if what == "pre_tokenizer":
        return sum(len(piece) for piece, _ in part.pre_tokenize_str(text))
    return len(part.decode([text, "a"])) - len(part.decode(["a"]))  # the end of a text may be treated otherwise


def backend(**parts: Any) -> Any:
    made = Backend(models.BPE())
    for name, part in parts.items():
        setattr(made, name, part)
    return made


@pytest.mark.parametrize(("what", "name"), KINDS)
def test_no_kind_makes_more_of_a_character_than_the_table_says(what: str, name: str) -> None:
    part = getattr(PARTS[what], name)(*GIVEN.get(name, ()))
    known: Any = GROWTH[what][name]
    most = known(json.loads(part.__getstate__())) if callable(known) else known
    real = max(length(what, part, character) for character in HARD)
    assert real <= most
    assert max(real, 1) == most  # no bound is larger than it need be
    check_growth(backend(**{what: part}), PATH)


def test_the_table_holds_no_kind_that_is_not_there() -> None:
    assert {(what, name) for what, kinds in GROWTH.items() for name in kinds} == set(KINDS)


def test_sequences_within_sequences_multiply() -> None:
    steps = normalizers.Sequence([normalizers.NFKD()])
    for _ in range(10):
        steps = normalizers.Sequence([steps])
    check_growth(backend(normalizer=steps), PATH)
    twice = normalizers.Sequence([steps, normalizers.Sequence([normalizers.NFKC(), normalizers.ByteLevel()])])
    check_growth(backend(normalizer=twice), PATH)
    pieces = pre_tokenizers.Sequence([pre_tokenizers.Sequence([pre_tokenizers.ByteLevel()])])
    with pytest.raises(CorruptFileError, match="normalizer and pre_tokenizer may make 6,480 characters of one"):
        check_growth(backend(normalizer=twice, pre_tokenizer=pieces), PATH)


def test_a_kind_that_is_not_known_is_named() -> None:
    """A later version of the library may have one."""
    strange = SimpleNamespace(__getstate__=lambda: b'{"type": "Thrice"}')
    with pytest.raises(CorruptFileError, match="json: decoder has a step 'Thrice', whose growth of a text is unknown"):
        growth._greatest_growth(PATH, "decoder", strange)


def test_albert_s_chain_is_followed() -> None:
    """The longest in use: quotes, NFKD, accents, case, and a character map that contains Unicode forms too."""
    longest = normalizers.Precompiled(table("a" * 18))
    chain = [normalizers.Replace("``", '"'), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    chain += [longest, normalizers.Replace(Regex(" {2,}"), " ")]
    albert = backend(normalizer=normalizers.Sequence(chain), pre_tokenizer=pre_tokenizers.Metaspace())
    check_growth(albert, PATH)
    assert growth._greatest_growth(PATH, "normalizer", albert.normalizer) * 2 == 3888 <= MAX_GROWTH

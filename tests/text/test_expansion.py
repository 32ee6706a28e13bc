"""The bound on the characters that each step of a tokenizer makes of one, compared with the actual number."""

import json
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from pellucid.errors import CorruptFileError
from pellucid.text import expansion
from pellucid.text.expansion import GROWTH, MAX_GROWTH, check_growth

PATH = Path("tokenizer.json")
EXPANDING_CHARACTERS = (
    "\ufdfa",
    "\u0130",
    "\u00e9",
    "\u1f82",
    "\ufb2c",
    "\u3400",
    "\U0001f600",
    "a",
    " ",
    ".",
    "7",
    "\u2581",
)
"""Characters that become many under Unicode normalisation, in lower case or as bytes, and plain ones."""
STEP_MODULES = {"normalizer": normalizers, "pre_tokenizer": pre_tokenizers, "decoder": decoders}
ABSTRACT_CLASSES = ("Normalizer", "PreTokenizer", "Decoder", "DecodeStream", "Sequence")


def character_map(word: str) -> bytes:
    """A character map of SentencePiece that turns "a" into a word: a trie of 256 units, then the word."""
    units = [0] * 256
    units[ord("a")] = (
        ord("a") | 1 << 8 | 1 << 10
    )  # a key ends here, and the unit beside it contains the offset of its word
    units[ord("a") ^ 1] = 1 << 31
    return struct.pack("<257I", 1024, *units) + word.encode() + b"\0"


STEP_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "Precompiled": (character_map("abc"),),
    "Prepend": ("ab",),
    "Replace": (Regex(""), "xy"),
    "CharDelimiterSplit": (".",),
    "Split": (Regex(""), "isolated"),
    "BPEDecoder": ("",),
    "CTC": ("\0", "", True),
}
STEP_CLASSES = [
    (step, name)
    for step, module in STEP_MODULES.items()
    for name, value in vars(module).items()
    if isinstance(value, type) and name not in ABSTRACT_CLASSES
]


def length_after(step: str, instance: Any, text: str) -> int:
    """The number of characters that a step makes of a text."""
    if step == "normalizer":
        return len(instance.normalize_str(text))
    if step == "pre_tokenizer":
        return sum(len(piece) for piece, _ in instance.pre_tokenize_str(text))
    return len(instance.decode([text, "a"])) - len(instance.decode(["a"]))  # the end of a text may be treated otherwise


def backend_with(**parts: Any) -> Any:
    backend = Backend(models.BPE())
    for name, part in parts.items():
        setattr(backend, name, part)
    return backend


@pytest.mark.parametrize(("step", "name"), STEP_CLASSES)
def test_each_step_grows_a_character_by_exactly_its_bound(step: str, name: str) -> None:
    instance = getattr(STEP_MODULES[step], name)(*STEP_ARGUMENTS.get(name, ()))
    entry: Any = GROWTH[step][name]
    bound = entry(json.loads(instance.__getstate__())) if callable(entry) else entry
    actual = max(length_after(step, instance, character) for character in EXPANDING_CHARACTERS)
    assert actual <= bound
    assert max(actual, 1) == bound  # no bound is larger than it need be
    check_growth(backend_with(**{step: instance}), PATH)


def test_bounds_exist_for_existing_steps_only() -> None:
    assert {(step, name) for step, kinds in GROWTH.items() for name in kinds} == set(STEP_CLASSES)


def test_bounds_of_nested_sequences_are_multiplied() -> None:
    steps = normalizers.Sequence([normalizers.NFKD()])
    for _ in range(10):
        steps = normalizers.Sequence([steps])
    check_growth(backend_with(normalizer=steps), PATH)
    twice = normalizers.Sequence([steps, normalizers.Sequence([normalizers.NFKC(), normalizers.ByteLevel()])])
    check_growth(backend_with(normalizer=twice), PATH)
    pieces = pre_tokenizers.Sequence([pre_tokenizers.Sequence([pre_tokenizers.ByteLevel()])])
    with pytest.raises(CorruptFileError, match="normalizer and pre_tokenizer may make 6,480 characters of one"):
        check_growth(backend_with(normalizer=twice, pre_tokenizer=pieces), PATH)


def test_unknown_step_is_refused() -> None:
    """A later version of the library may have one."""
    unknown = SimpleNamespace(__getstate__=lambda: b'{"type": "Thrice"}')
    with pytest.raises(CorruptFileError, match="json: decoder has a step 'Thrice', whose growth of a text is unknown"):
        expansion._greatest_growth(PATH, "decoder", unknown)


def test_bound_of_the_steps_of_albert() -> None:
    """The longest in use: quotes, NFKD, accents, case, and a character map that contains Unicode forms too."""
    longest = normalizers.Precompiled(character_map("a" * 18))
    chain = [normalizers.Replace("``", '"'), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    chain += [longest, normalizers.Replace(Regex(" {2,}"), " ")]
    albert = backend_with(normalizer=normalizers.Sequence(chain), pre_tokenizer=pre_tokenizers.Metaspace())
    check_growth(albert, PATH)
    assert expansion._greatest_growth(PATH, "normalizer", albert.normalizer) * 2 == 3888 <= MAX_GROWTH

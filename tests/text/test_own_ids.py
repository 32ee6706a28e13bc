"""A model that is built has the special tokens of its words, and not those of its family's."""

from pathlib import Path
from typing import Any

import pytest

import pellucid
from pellucid.errors import InputError
from pellucid.text.learned import train_tokenizer
from pellucid.text.own_ids import ids_by
from tests.checkpoints.families import TINY

TEXTS = ["a line of text! and another, and so on."] * 5
MARKS = {"pad": "<pad>", "bos": "<s>", "eos": "</s>"}
IDS = ("pad_token_id", "bos_token_id", "eos_token_id")


def facts_of(family: str, words: Any) -> dict[str, Any]:
    """A few numbers, as many rows as the words have, and no word of special tokens."""
    sizes = {name: fact for name, fact in TINY[family].items() if not name.endswith("_token_id")}
    return sizes | {"vocab_size": len(words)}


def built(family: str, words: Any, **facts: Any) -> "pellucid.Config":
    """The config of a model that was built with these words."""
    return pellucid.build(pellucid.Config.of(family, **(facts_of(family, words) | facts)), tokenizer=words).config


CASES = [
    ("gpt2", "bpe", None),
    ("bert", "wordpiece", None),
    ("bert", "bpe", None),
    ("bert", "unigram", None),
    ("roberta", "bpe", None),
    ("llama", "characters", None),
    ("t5", "unigram", "pad"),
    ("bart", "unigram", "eos"),
    ("t5", "bpe", "bos"),
]
"""Family, words, and the role of the token that a decoder beside an encoder begins with."""


@pytest.mark.parametrize(("family", "kind", "start"), CASES)
def test_the_ids_are_those_of_the_tokenizer(family: str, kind: str, start: str | None, tmp_path: Path) -> None:
    """Else training teaches one token to end a text, and writing waits for another."""
    sizes = {"bpe": 270, "wordpiece": 40, "unigram": 20}
    words = train_tokenizer(texts=TEXTS, kind=kind, vocab_size=sizes.get(kind))
    config = built(family, words)
    named = [name for name in IDS if family != "bert" or name == "pad_token_id"]
    assert [getattr(config, name) for name in named] == [getattr(words, name) for name in named]
    assert start is None or config.decoder_start_token_id == getattr(words, f"{start}_token_id") is not None
    found = ids_by(words, pellucid.Config.of(family), {})
    assert {name: getattr(config, name) for name in found} == found, "those of a recipe"
    model = pellucid.build(pellucid.Config.of(family, **facts_of(family, words)), tokenizer=words)
    again = pellucid.load(model.save(tmp_path / "model")).config
    assert {name: getattr(again, name) for name in found} == found


def test_an_id_that_was_stated_stands_where_the_tokenizer_says_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    bare = train_tokenizer(texts=TEXTS, kind="characters")
    assert built("llama", bare, eos_token_id=5).eos_token_id == 5
    marked = train_tokenizer(texts=TEXTS, kind="characters", special_tokens=MARKS)
    assert built("llama", marked, eos_token_id=(2, 5)).end_tokens == (2, 5)
    assert built("t5", marked, decoder_start_token_id=5).decoder_start_token_id == 5
    assert not caplog.messages


def test_an_id_that_says_otherwise_gives_way_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    bare = train_tokenizer(texts=TEXTS, kind="characters")
    marked = train_tokenizer(texts=TEXTS, kind="characters", special_tokens=MARKS)
    assert built("llama", marked, eos_token_id=7).eos_token_id == marked.eos_token_id == 2
    assert built("llama", bare, eos_token_id=700).eos_token_id is None
    assert built("llama", marked, bos_token_id=None).bos_token_id == 1
    assert caplog.messages == [
        "eos_token_id is 7 in the config, and 2 by the tokenizer, which counts",
        "eos_token_id is 700 in the config, and none by the tokenizer, which counts",
        "bos_token_id is none in the config, and 1 by the tokenizer, which counts",
    ]
    config = pellucid.Config.of("llama", **facts_of("llama", marked), eos_token_id=7)
    kept = pellucid.build(config).reading(marked)
    assert kept.config.eos_token_id == 7 and kept.tokenizer is marked


def test_a_table_that_ends_before_the_words_is_refused() -> None:
    words = train_tokenizer(texts=TEXTS, kind="characters")
    least = f"expected at least {len(words)}, the tokens of the tokenizer"
    with pytest.raises(InputError, match=f"^vocab_size is 5, {least}"):
        built("llama", words, vocab_size=5)
    with pytest.raises(InputError, match=f"^source_vocab_size is 5, {least}"):
        built("transformer", words, source_vocab_size=5, share_embeddings=False)
    assert built("llama", words, vocab_size=60).vocab_size == 60


def test_what_was_learned_elsewhere_keeps_its_ids_from_scratch() -> None:
    """Its own config counts, as its own tokenizer is no other's."""
    words = train_tokenizer(texts=TEXTS, kind="characters", special_tokens=MARKS)
    held = pellucid.build(pellucid.Config.of("llama", **facts_of("llama", words), eos_token_id=7)).reading(words)
    rows = [{"text": text} for text in TEXTS]
    model = pellucid.train(held, rows, "text-generation", from_scratch=True, max_steps=1, validation=0)
    assert model.config.eos_token_id == 7 and model.tokenizer is words

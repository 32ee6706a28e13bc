"""A newly built model has the special tokens of its tokenizer, not those of its family."""

from pathlib import Path
from typing import Any

import pytest

import pellucid
from pellucid.errors import InputError
from pellucid.text.special_token_ids import special_token_ids
from pellucid.text.tokenizer_training import train_tokenizer
from tests.checkpoints.families import TINY

TEXTS = ["a line of text! and another, and so on."] * 5
SPECIAL_TOKENS = {"pad": "<pad>", "bos": "<s>", "eos": "</s>"}
IDS = ("pad_token_id", "bos_token_id", "eos_token_id")


def config_facts(family: str, tokenizer: Any) -> dict[str, Any]:
    """Small sizes and as many rows as the tokenizer has tokens, without any special token."""
    sizes = {name: fact for name, fact in TINY[family].items() if not name.endswith("_token_id")}
    return sizes | {"vocab_size": len(tokenizer)}


def built_config(family: str, tokenizer: Any, **facts: Any) -> "pellucid.Config":
    """The config of a model built with this tokenizer."""
    return pellucid.build(
        pellucid.Config.of(family, **(config_facts(family, tokenizer) | facts)), tokenizer=tokenizer
    ).config


CASES = [
    ("gpt2", "bpe", None),
    ("bert", "wordpiece", None),
    ("bert", "unigram", None),
    ("roberta", "unigram", None),
    ("t5", "unigram", "pad"),
    ("bart", "unigram", "eos"),
    ("t5", "bpe", "bos"),
]
"""Family, kind of tokenizer, and the role of the token with which the decoder of an encoder-decoder begins."""


@pytest.mark.parametrize(("family", "kind", "start"), CASES)
def test_special_token_ids_are_those_of_the_tokenizer(
    family: str, kind: str, start: str | None, tmp_path: Path
) -> None:
    """Otherwise training teaches one token to end a text, and generation waits for another."""
    sizes = {"bpe": 270, "wordpiece": 40, "unigram": 20}
    tokenizer = train_tokenizer(texts=TEXTS, kind=kind, vocab_size=sizes.get(kind))
    config = built_config(family, tokenizer)
    names = [name for name in IDS if family != "bert" or name == "pad_token_id"]
    assert [getattr(config, name) for name in names if getattr(tokenizer, name) is not None] == [
        getattr(tokenizer, name) for name in names if getattr(tokenizer, name) is not None
    ]
    assert start is None or config.decoder_start_token_id == getattr(tokenizer, f"{start}_token_id") is not None
    named_ids = special_token_ids(tokenizer, pellucid.Config.of(family), {})
    found = {name: getattr(config, name) for name in named_ids}
    assert {name: found[name] for name, one in named_ids.items() if one is not None} == {
        name: one for name, one in named_ids.items() if one is not None
    }, "those of a recipe"
    model = pellucid.build(pellucid.Config.of(family, **config_facts(family, tokenizer)), tokenizer=tokenizer)
    again = pellucid.load(model.save(tmp_path / "model")).config
    assert {name: getattr(again, name) for name in found} == found


def test_ids_that_the_tokenizer_does_not_contradict_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    """Even the family's default: a checkpoint may have stated it."""
    without_special_tokens = train_tokenizer(texts=TEXTS, kind="characters")
    for end in (5, pellucid.Config.of("llama").eos_token_id):
        assert built_config("llama", without_special_tokens, eos_token_id=end, bos_token_id=None).eos_token_id == end
    assert built_config("llama", without_special_tokens, eos_token_id=(), bos_token_id=None).end_tokens == ()
    with_special_tokens = train_tokenizer(texts=TEXTS, kind="characters", special_tokens=SPECIAL_TOKENS)
    assert built_config("llama", with_special_tokens, eos_token_id=(2, 5)).end_tokens == (2, 5)
    assert built_config("t5", with_special_tokens, decoder_start_token_id=5).decoder_start_token_id == 5
    assert not caplog.messages


def test_ids_that_contradict_the_tokenizer_are_replaced_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    without_special_tokens = train_tokenizer(texts=TEXTS, kind="characters")
    with_special_tokens = train_tokenizer(texts=TEXTS, kind="characters", special_tokens=SPECIAL_TOKENS)
    assert (
        built_config("llama", with_special_tokens, eos_token_id=7).eos_token_id == with_special_tokens.eos_token_id == 2
    )
    assert built_config("llama", without_special_tokens, eos_token_id=700, bos_token_id=None).eos_token_id is None
    assert built_config("llama", with_special_tokens, bos_token_id=None).bos_token_id == 1
    assert caplog.messages == [
        "eos_token_id is 7 in the config, and 2 by the tokenizer: that of the tokenizer is used",
        "eos_token_id is 700 in the config, which the tokenizer does not have: it is set to None",
        "bos_token_id is none in the config, and 1 by the tokenizer: that of the tokenizer is used",
    ]
    config = pellucid.Config.of("llama", **config_facts("llama", with_special_tokens), eos_token_id=7)
    prepared = pellucid.build(config).reading(with_special_tokens)
    assert prepared.config.eos_token_id == 7 and prepared.tokenizer is with_special_tokens


def test_vocab_size_below_the_tokenizer_is_refused() -> None:
    tokenizer = train_tokenizer(texts=TEXTS, kind="characters")
    message = f"expected at least {len(tokenizer)}, the tokens of the tokenizer"
    with pytest.raises(InputError, match=f"^vocab_size is 5, {message}"):
        built_config("llama", tokenizer, vocab_size=5)
    with pytest.raises(InputError, match=f"^source_vocab_size is 5, {message}"):
        built_config("transformer", tokenizer, source_vocab_size=5, share_embeddings=False)
    assert built_config("llama", tokenizer, vocab_size=60).vocab_size == 60


def test_training_from_scratch_keeps_the_ids_of_the_config() -> None:
    """The config has precedence, since its tokenizer belongs to no other model."""
    tokenizer = train_tokenizer(texts=TEXTS, kind="characters", special_tokens=SPECIAL_TOKENS)
    initial = pellucid.build(pellucid.Config.of("llama", **config_facts("llama", tokenizer), eos_token_id=7)).reading(
        tokenizer
    )
    rows = [{"text": text} for text in TEXTS]
    model = pellucid.train(initial, rows, "text-generation", from_scratch=True, max_steps=1, validation=0)
    assert model.config.eos_token_id == 7 and model.tokenizer is tokenizer


def test_fixed_padding_id_of_a_family_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = train_tokenizer(texts=TEXTS, kind="wordpiece", vocab_size=40)
    model = pellucid.build(pellucid.Config.of("mpnet", **config_facts("mpnet", tokenizer)), tokenizer=tokenizer)
    assert pellucid.load(model.save(tmp_path / "model")).config.pad_token_id == 1 != tokenizer.pad_token_id
    assert (
        f"pad_token_id is 1 in the config, and {tokenizer.pad_token_id} by the tokenizer: that of the config"
        in caplog.text
    )


def test_padding_equal_to_eos_is_no_padding() -> None:
    """Its embedding would start at zero and never train."""
    tokenizer = train_tokenizer(texts=TEXTS, kind="characters", special_tokens={"pad": "</s>", "eos": "</s>"})
    config = built_config("llama", tokenizer)
    assert (config.pad_token_id, config.eos_token_id) == (None, tokenizer.eos_token_id)


def test_ids_belong_to_the_target_vocabulary() -> None:
    tokenizer = train_tokenizer(texts=TEXTS, kind="characters", special_tokens=SPECIAL_TOKENS)
    facts = config_facts("transformer", tokenizer) | {"vocab_size": 20, "source_vocab_size": len(tokenizer)}
    config = pellucid.Config.of("transformer", **facts, share_embeddings=False)
    assert pellucid.build(config, tokenizer=tokenizer).config == config

"""Rows as a batch are padded with the model's own padding token, whatever builds the batch."""

import inspect

import pytest
import torch

import pellucid
from pellucid.checkpoints.batch import as_batch
from pellucid.config import SequenceClassification
from pellucid.models import Decoder, Encoder, EncoderDecoder
from pellucid.text import Tokenizer
from tests.checkpoints.families import TINY
from tests.generation.writers import byte_level

TEXTS = ["a", "a longer text than that", "two words"]


@pytest.fixture(scope="module")
def classifier() -> pellucid.Model:
    """A decoder whose padding token is its end token, as training leaves it; its tokenizer has no padding token."""
    tokenizer = byte_level()
    settings = {name: token for name, token in tokenizer.settings.items() if name != "pad_token"}
    tokenizer = Tokenizer(tokenizer._backend, settings=settings)
    facts = TINY["gpt2"] | {"vocab_size": len(tokenizer), "pad_token_id": 2, "eos_token_id": 2}
    head = SequenceClassification("last", classifier_bias=False)
    return pellucid.build(pellucid.Config.of("gpt2", **facts, head=head), seed=3, tokenizer=tokenizer, dtype="float64")


def test_padded_text_gives_the_same_logits_as_alone(classifier: pellucid.Model) -> None:
    alone = torch.cat([classifier(text)["logits"] for text in TEXTS])
    torch.testing.assert_close(classifier(TEXTS)["logits"], alone, rtol=0, atol=1e-12)
    torch.testing.assert_close(classifier.trace(TEXTS)["logits"], alone, rtol=0, atol=1e-12)
    torch.testing.assert_close(classifier.trace(TEXTS, padding="left")["logits"], alone, rtol=0, atol=1e-12)


def test_ids_at_masked_positions_do_not_matter(classifier: pellucid.Model) -> None:
    batch = as_batch(classifier.loaded, [[5, 6, 7, 8], [9, 10]])
    other = batch | {"input_ids": batch["input_ids"].where(batch["attention_mask"].bool(), 4)}
    found = [classifier.module(**one)["logits"] for one in (batch, other)]
    assert torch.equal(*found)


def test_padding_token_and_mask_of_a_batch(classifier: pellucid.Model) -> None:
    batch = as_batch(classifier.loaded, [[5, 6, 7], [9]], [[0, 0, 1], [0]])
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {
        "input_ids": [[5, 6, 7], [9, 2, 2]],
        "attention_mask": [[1, 1, 1], [1, 0, 0]],
    }
    assert as_batch(classifier.loaded, [[5, 6, 7], [9]], pad_left=True)["input_ids"].tolist() == [[5, 6, 7], [2, 2, 9]]
    assert set(as_batch(classifier.loaded, [[5, 6], [9, 8]])) == {"input_ids"}


def test_decoder_rows_are_batched() -> None:
    facts = TINY["bart"] | {"pad_token_id": 1}
    loaded = pellucid.build(pellucid.Config.of("bart", **facts), seed=1).loaded
    batch = as_batch(loaded, [[5, 6]], [[0, 0]], decoder_rows=[[7]])
    assert set(batch) == {"input_ids", "decoder_input_ids"}
    batch = as_batch(loaded, [[5, 6], [7, 8]], decoder_rows=[[7], [8, 9]])
    assert batch["decoder_input_ids"].tolist() == [[7, 1], [8, 9]]
    assert batch["decoder_attention_mask"].tolist() == [[1, 0], [1, 1]] and "attention_mask" not in batch


@pytest.mark.parametrize("kind", [Encoder, Decoder, EncoderDecoder])
def test_input_names_are_parameters_of_forward(kind: type[Encoder | Decoder | EncoderDecoder]) -> None:
    assert set(kind.input_names) <= set(inspect.signature(kind.forward).parameters)

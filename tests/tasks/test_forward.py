"""Calling a model: inputs that are missing beside the ids are reported or refused."""

import warnings

import pytest
import torch

import pellucid
from pellucid import InputError
from pellucid.config import CausalLM

SIZES = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
TEXT = [7, 8, 9]


def decoder(**tokens: int) -> pellucid.Model:
    return pellucid.build(pellucid.Config.of("llama", **SIZES, num_key_value_heads=2, head=CausalLM(), **tokens))


def told(model: pellucid.Model, ids: list[list[int]], mask: torch.Tensor | None = None) -> bool:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model(torch.tensor(ids), mask)
    return any("the id of padding, and no attention_mask was given" in str(one.message) for one in said)


@pytest.mark.parametrize("padded", [[0, 7, 8], [0, 0, 7], [7, 8, 0]], ids=["left", "all left", "right"])
def test_padding_without_a_mask_is_said_on_either_side(padded: list[int]) -> None:
    model = decoder(pad_token_id=0, bos_token_id=1)
    assert told(model, [TEXT, padded])
    assert not told(model, [TEXT, padded], (torch.tensor([TEXT, padded]) != 0).long())
    assert not told(model, [TEXT, [1, 7, 8]]) and not told(model, [[0, 7, 8]])


def test_a_token_that_begins_texts_is_taken_for_padding_only_where_it_stands_twice() -> None:
    model = decoder(pad_token_id=2, bos_token_id=2)
    assert not told(model, [TEXT, [2, 7, 8]])
    assert told(model, [TEXT, [2, 2, 7]])


def test_the_columns_of_a_tokenizer_go_by_name() -> None:
    model = decoder(pad_token_id=0)
    columns = {"input_ids": torch.tensor([TEXT]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
    with pytest.raises(InputError, match=r"give its columns by name, model\(\*\*columns\)"):
        model(columns)
    assert model(**columns).logits.shape == (1, 3, 30)


def test_a_trace_is_asked_by_name() -> None:
    model = decoder(pad_token_id=0)
    model = model.reading(pellucid.train_tokenizer(texts=["abc"], kind="characters"))
    with pytest.raises(InputError, match="a trace is indexed by name, not by 0"):
        model.trace("abc")[0]

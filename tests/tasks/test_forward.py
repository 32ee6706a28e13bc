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


def warns(model: pellucid.Model, ids: list[list[int]], mask: torch.Tensor | None = None) -> bool:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model(torch.tensor(ids), mask)
    return any("the id of padding, and no attention_mask was given" in str(warning.message) for warning in caught)


@pytest.mark.parametrize("padded", [[0, 7, 8], [0, 0, 7], [7, 8, 0]], ids=["left", "all left", "right"])
def test_padding_without_a_mask_warns_on_either_side(padded: list[int]) -> None:
    model = decoder(pad_token_id=0, bos_token_id=1)
    assert warns(model, [TEXT, padded])
    assert not warns(model, [TEXT, padded], (torch.tensor([TEXT, padded]) != 0).long())
    assert not warns(model, [TEXT, [1, 7, 8]]) and not warns(model, [[0, 7, 8]])


def test_start_token_equal_to_padding_warns_only_if_repeated() -> None:
    model = decoder(pad_token_id=2, bos_token_id=2)
    assert not warns(model, [TEXT, [2, 7, 8]])
    assert warns(model, [TEXT, [2, 2, 7]])


def test_dict_of_columns_as_the_first_argument_is_refused() -> None:
    model = decoder(pad_token_id=0)
    columns = {"input_ids": torch.tensor([TEXT]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
    with pytest.raises(InputError, match=r"give its columns by name, model\(\*\*columns\)"):
        model(columns)
    assert model(**columns).logits.shape == (1, 3, 30)


def test_trace_indexed_by_number_is_refused() -> None:
    model = decoder(pad_token_id=0)
    model = model.reading(pellucid.train_tokenizer(texts=["abc"], kind="characters"))
    with pytest.raises(InputError, match="a trace is indexed by name, not by 0"):
        model.trace("abc")[0]

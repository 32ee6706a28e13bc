"""Inputs of a model: ids, masks and types, as tensors or as lists, and inputs that it cannot read."""

from typing import Any

import pytest
import torch

import pellucid
from pellucid.config import CausalLM
from pellucid.errors import InputError
from tests.conftest import tiny_config

IDS = torch.tensor([[2, 7, 9, 3], [2, 8, 3, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
SIZES: dict[str, Any] = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def model() -> pellucid.Model:
    return pellucid.build(tiny_config(), seed=1)


@pytest.mark.parametrize("mask", [MASK.tolist(), MASK.bool(), MASK.float(), MASK.to(torch.int8)])
def test_mask_of_any_type_gives_the_same_output(model: pellucid.Model, mask: Any) -> None:
    expected = model(IDS, MASK, torch.zeros_like(IDS)).last_hidden_state
    found = model(IDS.tolist(), mask, torch.zeros_like(IDS).tolist()).last_hidden_state
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"attention_mask": (1 - MASK.float()) * -10_000}, "attention_mask holds -10000, expected 0 and 1 alone"),
        ({"attention_mask": MASK * 0.5}, "attention_mask holds 0.5, expected 0 and 1 alone"),
        ({"attention_mask": MASK * float("nan")}, "attention_mask holds nan, expected 0 and 1 alone"),
        ({"attention_mask": MASK * 2}, "attention_mask holds 2, expected 0 and 1 alone"),
        ({"attention_mask": [[1, 1], [1]]}, "attention_mask must be rows of whole numbers of one length"),
        ({"input_ids": IDS[:1].to(torch.uint8)}, r"input_ids are uint8\[1, 4\], expected int64 or int32 numbers"),
        ({"input_ids": IDS[:, :0]}, r"input_ids are int64\[2, 0\], expected one token at least in each text"),
        ({"input_ids": IDS + 51}, "input_ids hold 60, expected 0 to 59"),
        ({"input_ids": -1 - IDS}, "input_ids hold -10, expected 0 to 59"),
        ({"attention_mask": MASK, "token_type_ids": MASK * 2}, "token_type_ids hold 2, expected 0 to 1"),
        ({"input_ids": torch.full((1, 33), 5)}, "33 tokens are too many: this model has 32 positions"),
        ({"input_ids": None}, "input_ids must be rows of whole numbers of one length"),
        (
            {"input_ids": iter([[2], [7]])},
            "input_ids must be rows of whole numbers of one length: pad them, or give texts",
        ),
        ({"input_ids": "a", "attention_mask": MASK}, "attention_mask was given beside texts, .*: leave attention_mask"),
        ({"input_ids": ["a"], "token_type_ids": MASK}, "token_type_ids was given beside texts, which bring their own"),
        *(
            (
                {"attention_mask": MASK, "token_type_ids": torch.zeros(2, 4, dtype=kind)},
                r"token_type_ids are \w+\[2, 4\], expected int64 or",
            )
            for kind in (torch.bool, torch.uint8, torch.int16, torch.float32)
        ),
        (
            {"attention_mask": MASK, "token_type_ids": [[True] * 4] * 2},
            r"token_type_ids are bool\[2, 4\], expected int64 or int32",
        ),
        *(
            (
                {"attention_mask": MASK} | {name: MASK.to("meta")},
                f"{name} is a tensor on 'meta', which holds no numbers: give a dense one of",
            )
            for name in ("input_ids", "attention_mask", "token_type_ids")
        ),
        *(
            (
                {"attention_mask": MASK} | {name: form},
                f"{name} is a tensor, sparse or nested: give a dense one of shape",
            )
            for name in ("input_ids", "attention_mask", "token_type_ids")
            for form in (MASK.to_sparse(), torch.nested.nested_tensor([MASK[0], MASK[1]], layout=torch.jagged))
        ),
        ({"input_ids": IDS[:1].bool()}, r"input_ids are bool\[1, 4\], expected int64 or int32 numbers"),
    ],
)
def test_invalid_inputs_are_refused(model: pellucid.Model, inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        model(**({"input_ids": IDS} | inputs))


def test_first_rows_of_a_position_table_may_be_no_positions() -> None:
    facts = SIZES | {"intermediate_size": 24, "max_position_embeddings": 10, "pad_token_id": 1}
    model = pellucid.build(pellucid.Config.of("roberta", **facts))
    assert model(torch.full((1, 8), 5)).last_hidden_state.shape == (1, 8, 16)
    with pytest.raises(InputError, match="9 tokens are too many: this model has 8 positions"):
        model(torch.full((1, 9), 5))


@pytest.mark.parametrize("rows", [(2, 3), (1, 2), (2, 1)])
@pytest.mark.parametrize("family", ["bart", "t5", "transformer"])
def test_decoder_inputs_need_one_row_per_text(family: str, rows: tuple[int, int]) -> None:
    """A single row used to be silently broadcast to all texts; other numbers ended in an error of PyTorch's."""
    sizes: dict[str, Any] = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 16, "num_decoder_layers": 1, "decoder_attention_heads": 2}
    model = pellucid.build(pellucid.Config.of(family, **sizes, decoder_intermediate_size=16))
    ours, theirs = torch.full((rows[0], 3), 7), torch.full((rows[1], 4), 8)
    message = (
        rf"^decoder_input_ids are int64\[{rows[0]}, 3\] and %s\[{rows[1]}, 4%s\]: give one row of each for every text$"
    )
    with pytest.raises(InputError, match=message % ("input_ids int64", "")):
        model(theirs, decoder_input_ids=ours)
    with pytest.raises(InputError, match=message % ("input_ids int64", "")):
        model.module.before_head(theirs, decoder_input_ids=ours)
    memory = model(theirs).encoder_last_hidden_state
    with pytest.raises(InputError, match=message % ("memory float32", ", 8")):
        model.module(decoder_input_ids=ours, memory=memory)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "bart"])
def test_batch_without_a_text_gives_an_output_without_a_row(family: str) -> None:
    module: Any = pellucid.build(pellucid.Config.of(family, **SIZES)).module
    ids = torch.zeros(0, 4, dtype=torch.long)
    names = {"attention_mask", "decoder_attention_mask", "segments"}.intersection(module.input_names)
    for network in (module, module.packed_copy()):
        further = [{}, *({name: torch.ones_like(ids)} for name in names)]
        further += [{"cache": network.new_cache(4)}] if network.is_autoregressive else []
        for one in further:
            assert network(ids, **one).last_hidden_state.shape == (0, 4, 16)


def test_logits_to_keep_is_a_number_of_last_positions() -> None:
    """A negative one used to leave out as many first positions."""
    module: Any = pellucid.build(pellucid.Config.of("gpt2", **SIZES, head=CausalLM()), dtype="float64").module
    every = module(IDS).logits
    for number, first in ((0, 0), (1, 3), (3, 1), (9, 0)):
        kept = module(IDS, logits_to_keep=number).logits
        torch.testing.assert_close(kept, every[:, first:], rtol=0, atol=1e-12)
    for wrong in (-1, 1.5, None, True):
        with pytest.raises(InputError, match=r"^logits_to_keep is .*, expected a whole number from 0 on$"):
            module(IDS, logits_to_keep=wrong)

"""A cache changes nothing: a text read piece by piece gives the same values as in one pass."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pellucid
from pellucid import Config, edits
from pellucid.blocks import Cache
from pellucid.config import CausalLM, SequenceToSequenceLM
from pellucid.errors import InputError

SMALL = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}
DECODERS = {
    "gpt2": {"max_position_embeddings": 40},
    "llama": {"num_key_value_heads": 2},
    "mistral": {"num_key_value_heads": 2, "sliding_window": 4, "head_dim": 8},
    "qwen2": {"num_key_value_heads": 1},
}
ENCODER_DECODERS = {
    "bart": {"num_decoder_layers": 2, "decoder_attention_heads": 3, "decoder_intermediate_size": 20},
    "t5": {"num_decoder_layers": 2, "decoder_attention_heads": 4, "decoder_intermediate_size": 40},
    "transformer": {"num_decoder_layers": 2, "decoder_attention_heads": 2, "decoder_intermediate_size": 20},
}


def decoder(family: str, attention: str = "fused") -> pellucid.Model:
    config = Config.of(family, **SMALL, **DECODERS[family], head=CausalLM(), bos_token_id=1, eos_token_id=2)
    return pellucid.build(config, seed=1, dtype="float64", attention=attention)


def ids(rows: int = 2, length: int = 13) -> torch.Tensor:
    return torch.randint(3, 50, (rows, length), generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("attention", ["fused", "explicit"])
@pytest.mark.parametrize("pieces", [(13,), (5, 8), (1,) * 13, (7, 1, 1, 4)])
@pytest.mark.parametrize("family", DECODERS)
def test_decoder_read_in_pieces_equals_one_pass(family: str, pieces: tuple[int, ...], attention: str) -> None:
    module, text = decoder(family, attention).module, ids()
    cache = module.new_cache(13)
    logits = torch.cat([module(piece, cache=cache).logits for piece in text.split(pieces, dim=1)], dim=1)
    torch.testing.assert_close(logits, module(text).logits, rtol=0, atol=1e-12)
    assert cache.filled == 13


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", DECODERS)
def test_padding_on_either_side_changes_nothing(family: str, side: str) -> None:
    module, text = decoder(family).module, ids()
    short = text[1, :9]
    padded = text.clone()
    mask = torch.ones_like(text)
    padding = slice(0, 4) if side == "left" else slice(9, 13)
    padded[1, padding], mask[1, padding] = 7, 0
    padded[1, mask[1].bool()] = short
    alone, together = module(short[None]).logits, module(padded, mask).logits
    torch.testing.assert_close(together[1][mask[1].bool()][None], alone, rtol=0, atol=1e-12)
    torch.testing.assert_close(together[:1], module(text[:1]).logits, rtol=0, atol=1e-12)


def test_padding_before_a_text_may_exceed_the_positions_of_the_model() -> None:
    module, text = decoder("gpt2").module, ids(rows=1)
    padded, mask = (torch.nn.functional.pad(one, (50, 0)) for one in (text, torch.ones_like(text)))
    torch.testing.assert_close(module(padded, mask).logits[:, 50:], module(text).logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", DECODERS)
def test_padded_batch_continues_as_each_text_alone(family: str, side: str) -> None:
    module, text, more = decoder(family).module, ids(), ids(length=3)
    mask = torch.ones_like(text)
    mask[1, :4] = 0
    text = text if side == "left" else text.flip(1)
    mask = mask if side == "left" else mask.flip(1)
    cache = module.new_cache(16)
    module(text, mask, cache=cache)
    together = torch.cat([module(more[:, i : i + 1], cache=cache).logits for i in range(3)], dim=1)
    for row in range(2):
        alone = torch.cat((text[row][mask[row].bool()], more[row]))[None]
        torch.testing.assert_close(together[row], module(alone).logits[0, -3:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", DECODERS)
def test_padding_within_a_text_changes_nothing(family: str) -> None:
    """As in a conversation whose turns were padded separately."""
    module, text = decoder(family).module, ids()
    mask = torch.ones_like(text)
    mask[1, :2] = mask[1, 5:9] = mask[1, 12:] = 0
    alone = module(text[1:][:, mask[1].bool()]).logits[0]
    torch.testing.assert_close(module(text, mask).logits[1, mask[1].bool()], alone, rtol=0, atol=1e-12)
    cache = module.new_cache(13)
    pieces = zip(text.split((4, 6, 3), dim=1), mask.split((4, 6, 3), dim=1))
    logits = torch.cat([module(*piece, cache=cache).logits for piece in pieces], dim=1)
    torch.testing.assert_close(logits[1, mask[1].bool()], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("pieces", [(5, 8), (1,) * 13, (3, 1, 1, 8)])
@pytest.mark.parametrize("family", DECODERS)
def test_padded_batch_read_in_pieces_equals_one_pass(family: str, pieces: tuple[int, ...]) -> None:
    """A piece may consist of padding only in some row, or begin with it."""
    module, text = decoder(family).module, ids(rows=3)
    mask = torch.ones_like(text)
    mask[1, :4] = mask[2, :11] = 0
    cache = module.new_cache(13)
    parts = zip(text.split(pieces, dim=1), mask.split(pieces, dim=1))
    logits = torch.cat([module(*part, cache=cache).logits for part in parts], dim=1)
    torch.testing.assert_close(logits[mask.bool()], module(text, mask).logits[mask.bool()], rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", DECODERS)
def test_continuation_may_be_padded_on_either_side(family: str) -> None:
    module, text, more = decoder(family).module, ids(), ids(length=3)
    mask = torch.tensor([[1, 1, 1], [0, 0, 1]])
    alone = module(torch.cat((text[1:], more[1:, :1]), dim=1)).logits[:, -1]
    for tokens, padding_mask, position in ((more.roll(2, dims=1), mask, 2), (more, mask.flip(1), 0)):
        cache = module.new_cache(16)
        module(text, cache=cache)
        logits = module(tokens, padding_mask, cache=cache).logits[1:, position]
        torch.testing.assert_close(logits, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", DECODERS)
def test_rows_are_selected_and_duplicated(family: str) -> None:
    module, text = decoder(family).module, ids()
    cache = module.new_cache(14)
    module(text, cache=cache)
    cache.select_rows(torch.tensor([1, 1, 0]))
    more = torch.tensor([[5], [6], [7]])
    whole = torch.cat((text[[1, 1, 0]], more), dim=1)
    torch.testing.assert_close(module(more, cache=cache).logits, module(whole).logits[:, -1:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_encoder_decoder_read_in_pieces_equals_one_pass(family: str) -> None:
    config = Config.of(family, **SMALL, **ENCODER_DECODERS[family], head=SequenceToSequenceLM())
    module = pellucid.build(config, seed=2, dtype="float64").module
    source, text = ids(), ids(length=6)
    mask = torch.ones_like(source)
    mask[1, 8:] = 0
    whole = module(source, mask, text)
    cache = module.new_cache(6)
    memory = whole.encoder_last_hidden_state
    logits = [module(None, mask, text[:, i : i + 1], memory=memory, cache=cache).logits for i in range(6)]
    torch.testing.assert_close(torch.cat(logits, dim=1), whole.logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize("pieces", [(3, 1, 2), (1,) * 6])
@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_padded_encoder_decoder_read_in_pieces_equals_one_pass(family: str, pieces: tuple[int, ...]) -> None:
    config = Config.of(family, **SMALL, **ENCODER_DECODERS[family], head=SequenceToSequenceLM())
    module = pellucid.build(config, seed=2, dtype="float64").module
    source, text = ids(), ids(length=6)
    mask, target_mask = torch.ones_like(source), torch.ones_like(text)
    target_mask[0, 2] = target_mask[1, 0] = target_mask[1, 5] = 0
    whole = module(source, mask, text, target_mask)
    other = module(source, mask, text.where(target_mask.bool(), 9), target_mask)
    assert torch.equal(other.logits[target_mask.bool()], whole.logits[target_mask.bool()])
    cache, memory = module.new_cache(6), whole.encoder_last_hidden_state
    parts = zip(text.split(pieces, dim=1), target_mask.split(pieces, dim=1))
    logits = torch.cat([module(None, mask, *part, memory=memory, cache=cache).logits for part in parts], dim=1)
    torch.testing.assert_close(logits[target_mask.bool()], whole.logits[target_mask.bool()], rtol=0, atol=1e-12)


def test_caches_of_two_models_cannot_be_merged() -> None:
    module = decoder("llama").module
    caches = [one.new_cache(9) for one in (module, decoder("llama").module)]
    for one, cache in zip((module, decoder("llama").module), caches):
        one(ids(length=4), cache=cache)
    with pytest.raises(InputError, match="filled by several models"):
        Cache.merge(caches)


@pytest.mark.parametrize("capacity", [None, "3", 1.5, -1, True], ids=repr)
def test_capacity_is_a_whole_number(capacity: Any) -> None:
    with pytest.raises(InputError, match=rf"^capacity is {capacity!r}, expected a whole number from 0 on$"):
        decoder("llama").module.new_cache(capacity)


def test_full_cache_raises_an_error() -> None:
    module = decoder("llama").module
    cache = module.new_cache(13)
    module(ids(), cache=cache)
    with pytest.raises(InputError, match="14 positions do not fit into a cache of 13"):
        module(ids(length=1), cache=cache)
    with pytest.raises(InputError, match="a pass of 3 rows was given to a cache of 2"):
        cache = module.new_cache(20)
        module(ids(), cache=cache)
        module(ids(rows=3, length=1), cache=cache)


@pytest.mark.parametrize("operation", ["as it is", "together", "apart"])
@pytest.mark.parametrize("packed_first", [False, True], ids=["plain first", "packed first"])
def test_packed_copy_refuses_a_cache_of_the_plain_module(packed_first: bool, operation: str) -> None:
    """The columns of their keys are permuted differently: the scores would be wrong, without an error."""
    config = Config.of("llama", **SMALL, **DECODERS["llama"], head=CausalLM())
    module = pellucid.build(config, seed=1).module
    first, second = (module.packed_copy(), module) if packed_first else (module, module.packed_copy())
    with torch.inference_mode():
        cache = module.new_cache(20)
        first(ids(rows=1, length=4), cache=cache)
        cache = {
            "as it is": lambda: cache,
            "together": lambda: Cache.merge([cache, cache]),
            "apart": lambda: cache.split_texts([2, 2], 20),
        }[operation]()
        with pytest.raises(InputError, match="filled by another model, or by the packed copy of this one"):
            second(ids(rows=len(cache.positions), length=1), cache=cache)


MODES = {"gradients": torch.enable_grad, "no gradients": torch.no_grad, "inference": torch.inference_mode}


@pytest.mark.parametrize("then", MODES)
@pytest.mark.parametrize("chosen", MODES)
@pytest.mark.parametrize("first", MODES)
def test_rows_are_selected_and_continued_in_any_gradient_mode(first: str, chosen: str, then: str) -> None:
    module = decoder("llama").module
    for rows, since in (([1, 0], 0), ([1, 0], 3), ([1], 0), ([1, 0, 1], 0)):
        found = []
        for modes in ((first, chosen, then), ("no gradients",) * 3):
            cache = module.new_cache(20)
            with MODES[modes[0]]():
                module(ids(length=4)[:1].expand(2, -1), cache=cache)
                module(ids(length=2), cache=cache)
            with MODES[modes[1]]():
                cache.select_rows(torch.tensor(rows), since=since)
            with MODES[modes[2]]():
                found.append(module(ids(rows=len(rows), length=1), cache=cache).logits)
        torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize("then", MODES)
def test_concatenated_texts_are_split_in_any_gradient_mode(first: str, then: str) -> None:
    module, found = decoder("llama").module, []
    for modes in ((first, then), ("no gradients",) * 2):
        cache = module.new_cache(20)
        with MODES[modes[0]]():
            segments = torch.tensor([[1, 1, 1, 1, 2, 2, 2]])
            module(ids(rows=1, length=7), segments=segments, cache=cache)
        with MODES[modes[1]]():
            apart = cache.split_texts([4, 3], 20)
            found.append(module(ids(rows=2, length=1), cache=apart).logits)
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("family", [*DECODERS, *ENCODER_DECODERS])
@pytest.mark.parametrize("layers", [1, 5])
def test_cache_with_another_number_of_layers_is_refused_before_writing(family: str, layers: int) -> None:
    if family in DECODERS:
        model, arguments = decoder(family), {}
    else:
        config = Config.of(family, **SMALL, **ENCODER_DECODERS[family], head=SequenceToSequenceLM())
        model = pellucid.build(config, seed=1)
        arguments = {"decoder_input_ids": ids()}
    cache = Cache(layers, 20)
    with pytest.raises(InputError, match=rf"^[23] layers were given a cache of {layers}: model.module.new_cache\("):
        model.module(ids(), **arguments, cache=cache)
    assert not any(layer.self_attention.filled or layer.cross_attention.filled for layer in cache.layers)


def test_cache_and_its_copy_can_be_merged() -> None:
    module = decoder("llama").module
    cache = module.new_cache(20)
    with torch.no_grad():
        module(ids(rows=1, length=4), cache=cache)
        both = Cache.merge([copy.deepcopy(cache), cache])
        found = module(ids(rows=1, length=1).expand(2, -1), cache=both).logits
        assert torch.equal(found[0], found[1])
        with pytest.raises(InputError, match="filled by another model"):
            decoder("llama").module(ids(rows=2, length=1), cache=Cache.merge([copy.deepcopy(cache), cache]))


def test_merged_cache_has_the_largest_capacity() -> None:
    module, text = decoder("llama").module, ids(rows=1)
    caches = [module.new_cache(capacity) for capacity in (4, 8)]
    for length, cache in zip((3, 7), caches):
        module(text[:, :length], cache=cache)
    both = Cache.merge(caches)
    found = module(torch.cat((text[:, 3:4], text[:, 7:8])), cache=both).logits[:, 0]
    expected = module(text).logits[0, [3, 7]]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    again = Cache.merge([Cache.merge([caches[0], caches[1]]), caches[0]])  # whose first part is not the longest
    assert module(text[:, :1].expand(3, -1), cache=again).logits.shape[0] == 3
    with pytest.raises(InputError, match="9 positions do not fit into a cache of 8"):
        module(text[:, :1].expand(2, -1), cache=both)


@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))])
def test_copied_cache_with_gradients_can_be_continued(make_copy: Callable[[Cache], Cache]) -> None:
    module = decoder("llama").module
    cache = module.new_cache(20)
    module(ids(length=4), cache=cache)
    other = make_copy(cache)
    expected = module(ids(length=2), cache=cache).logits
    assert torch.equal(module(ids(length=2), cache=other).logits, expected)


@torch.no_grad()
def test_cache_of_another_model_is_refused() -> None:
    """Even of the same shapes: the result would be meaningless. A copy of a cache belongs to its first user."""
    config = Config.of("gpt2", **SMALL, **DECODERS["gpt2"], head=CausalLM())
    module, other = (pellucid.build(config, seed=seed, dtype="float64").module for seed in (1, 2))
    cache = module.new_cache(20)
    module(ids(length=4), cache=cache)
    with pytest.raises(InputError, match="filled by another model"):
        other(ids(length=1), cache=cache)
    again, stored = copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))
    logits = module(ids(length=1), cache=cache).logits
    for one in (again, stored):
        assert torch.equal(module(ids(length=1), cache=one).logits, logits)
        with pytest.raises(InputError, match="filled by another model"):
            other(ids(length=1), cache=one)


def test_edited_model_continues_a_cache_of_the_plain_one() -> None:
    """What was read before does not change; the same holds in reverse."""
    model, text = decoder("llama"), ids(rows=1)
    cache = model.module.new_cache(13)
    model.module(text[:, :8], cache=cache)
    with model.edit({"layers.2.residual.post": edits.add(1.0, position=[9])}):
        logits = model.module(text[:, 8:12], cache=cache).logits
        torch.testing.assert_close(logits, model.module(text).logits[:, 8:12], rtol=0, atol=1e-12)
    plain = model.module(text[:, 12:], cache=cache).logits  # an edit of the last layer does not reach the cache
    torch.testing.assert_close(plain, model.module(text).logits[:, 12:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("point", ["layers.1.attention", "layers.1.feed_forward", "head"])
@pytest.mark.parametrize("family", ["llama", "bart"])
def test_cache_of_an_interrupted_pass_is_refused(family: str, point: str) -> None:
    """After the last attention the cache is already complete: reading the token again would cache it twice."""
    if family == "bart":
        config = Config.of("bart", **SMALL, **ENCODER_DECODERS["bart"], head=SequenceToSequenceLM())
        module, arguments = pellucid.build(config, seed=2).module, {"memory": torch.randn(2, 3, 24)}
        point = point if point == "head" else f"decoder.{point}"
    else:
        module, arguments = decoder("llama").module, {}
    name = "decoder_input_ids" if arguments else "input_ids"
    cache = module.new_cache(20)
    module(**{name: ids(length=4)}, **arguments, cache=cache)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    hook = module.get_submodule(point).register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        module(**{name: ids(length=1)}, **arguments, cache=cache)
    hook.remove()
    with pytest.raises(InputError, match="a pass was interrupted at position 5 of this cache: make a new one"):
        module(**{name: ids(length=1)}, **arguments, cache=cache)

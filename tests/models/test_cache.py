"""A cache changes nothing: a text read piece by piece gives the same values as in one pass."""

import copy
import pickle
from collections.abc import Callable

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
PAIRS = {
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
def test_a_decoder_remembers(family: str, pieces: tuple[int, ...], attention: str) -> None:
    module, text = decoder(family, attention).module, ids()
    cache = module.new_cache(13)
    read = torch.cat([module(piece, cache=cache).logits for piece in text.split(pieces, dim=1)], dim=1)
    torch.testing.assert_close(read, module(text).logits, rtol=0, atol=1e-12)
    assert cache.filled == 13


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", DECODERS)
def test_padding_on_either_side_changes_nothing(family: str, side: str) -> None:
    module, text = decoder(family).module, ids()
    short = text[1, :9]
    padded = text.clone()
    mask = torch.ones_like(text)
    places = slice(0, 4) if side == "left" else slice(9, 13)
    padded[1, places], mask[1, places] = 7, 0
    padded[1, mask[1].bool()] = short
    alone, together = module(short[None]).logits, module(padded, mask).logits
    torch.testing.assert_close(together[1][mask[1].bool()][None], alone, rtol=0, atol=1e-12)
    torch.testing.assert_close(together[:1], module(text[:1]).logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", DECODERS)
def test_a_padded_batch_goes_on_as_each_text_alone(family: str, side: str) -> None:
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
    read = torch.cat([module(*piece, cache=cache).logits for piece in pieces], dim=1)
    torch.testing.assert_close(read[1, mask[1].bool()], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("pieces", [(5, 8), (1,) * 13, (3, 1, 1, 8)])
@pytest.mark.parametrize("family", DECODERS)
def test_a_padded_batch_read_in_pieces_is_the_batch(family: str, pieces: tuple[int, ...]) -> None:
    """A piece may consist of padding only in some row, or begin with it."""
    module, text = decoder(family).module, ids(rows=3)
    mask = torch.ones_like(text)
    mask[1, :4] = mask[2, :11] = 0
    cache = module.new_cache(13)
    parts = zip(text.split(pieces, dim=1), mask.split(pieces, dim=1))
    read = torch.cat([module(*part, cache=cache).logits for part in parts], dim=1)
    torch.testing.assert_close(read[mask.bool()], module(text, mask).logits[mask.bool()], rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", DECODERS)
def test_what_goes_on_with_texts_of_several_lengths_may_be_padded_on_either_side(family: str) -> None:
    module, text, more = decoder(family).module, ids(), ids(length=3)
    mask = torch.tensor([[1, 1, 1], [0, 0, 1]])
    alone = module(torch.cat((text[1:], more[1:, :1]), dim=1)).logits[:, -1]
    for given, real, place in ((more.roll(2, dims=1), mask, 2), (more, mask.flip(1), 0)):
        cache = module.new_cache(16)
        module(text, cache=cache)
        read = module(given, real, cache=cache).logits[1:, place]
        torch.testing.assert_close(read, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", DECODERS)
def test_rows_are_chosen_and_doubled(family: str) -> None:
    module, text = decoder(family).module, ids()
    cache = module.new_cache(14)
    module(text, cache=cache)
    cache.select_rows(torch.tensor([1, 1, 0]))
    more = torch.tensor([[5], [6], [7]])
    whole = torch.cat((text[[1, 1, 0]], more), dim=1)
    torch.testing.assert_close(module(more, cache=cache).logits, module(whole).logits[:, -1:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", PAIRS)
def test_a_pair_remembers_both_texts(family: str) -> None:
    config = Config.of(family, **SMALL, **PAIRS[family], head=SequenceToSequenceLM())
    module = pellucid.build(config, seed=2, dtype="float64").module
    source, text = ids(), ids(length=6)
    mask = torch.ones_like(source)
    mask[1, 8:] = 0
    whole = module(source, mask, text)
    cache = module.new_cache(6)
    memory = whole.encoder_last_hidden_state
    read = [module(None, mask, text[:, i : i + 1], memory=memory, cache=cache).logits for i in range(6)]
    torch.testing.assert_close(torch.cat(read, dim=1), whole.logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", PAIRS)
def test_a_pair_in_pieces_counts_padding_as_at_once(family: str) -> None:
    config = Config.of(family, **SMALL, **PAIRS[family], head=SequenceToSequenceLM())
    module = pellucid.build(config, seed=2, dtype="float64").module
    source, text = ids(), ids(length=6)
    mask, own = torch.ones_like(source), torch.ones_like(text)
    own[0, 2] = own[1, 0] = own[1, 5] = 0
    whole = module(source, mask, text, own)
    cache, memory = module.new_cache(6), whole.encoder_last_hidden_state
    pieces = zip(text.split((3, 1, 2), dim=1), own.split((3, 1, 2), dim=1))
    read = torch.cat([module(None, mask, *piece, memory=memory, cache=cache).logits for piece in pieces], dim=1)
    torch.testing.assert_close(read[own.bool()], whole.logits[own.bool()], rtol=0, atol=1e-12)


def test_caches_of_two_models_do_not_go_together() -> None:
    module = decoder("llama").module
    caches = [one.new_cache(9) for one in (module, decoder("llama").module)]
    for one, cache in zip((module, decoder("llama").module), caches):
        one(ids(length=4), cache=cache)
    with pytest.raises(InputError, match="filled by several models"):
        Cache.merge(caches)


def test_a_full_cache_says_so() -> None:
    module = decoder("llama").module
    cache = module.new_cache(13)
    module(ids(), cache=cache)
    with pytest.raises(InputError, match="14 positions do not fit into a cache of 13"):
        module(ids(length=1), cache=cache)
    with pytest.raises(InputError, match="3 rows were given to a cache of 2"):
        cache = module.new_cache(20)
        module(ids(), cache=cache)
        module(ids(rows=3, length=1), cache=cache)


@pytest.mark.parametrize("carried", ["as it is", "together", "apart"])
@pytest.mark.parametrize("backwards", [False, True], ids=["plain first", "packed first"])
def test_what_the_plain_module_has_read_its_packed_copy_does_not_read_on(backwards: bool, carried: str) -> None:
    """The columns of their keys are permuted differently: the scores would be wrong, without an error."""
    config = Config.of("llama", **SMALL, **DECODERS["llama"], head=CausalLM())
    module = pellucid.build(config, seed=1).module
    first, second = (module.packed_copy(), module) if backwards else (module, module.packed_copy())
    with torch.inference_mode():
        cache = module.new_cache(20)
        first(ids(rows=1, length=4), cache=cache)
        cache = {
            "as it is": lambda: cache,
            "together": lambda: Cache.merge([cache, cache]),
            "apart": lambda: cache.split_texts([2, 2], 20),
        }[carried]()
        with pytest.raises(InputError, match="filled by another model, or by the packed copy of this one"):
            second(ids(rows=len(cache.positions), length=1), cache=cache)


MODES = {"gradients": torch.enable_grad, "no gradients": torch.no_grad, "inference": torch.inference_mode}


@pytest.mark.parametrize("then", MODES)
@pytest.mark.parametrize("chosen", MODES)
@pytest.mark.parametrize("first", MODES)
def test_rows_are_read_chosen_and_read_on_in_any_mode(first: str, chosen: str, then: str) -> None:
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
def test_texts_are_read_end_to_end_and_parted_in_any_mode(first: str, then: str) -> None:
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


@pytest.mark.parametrize("family", [*DECODERS, *PAIRS])
@pytest.mark.parametrize("layers", [1, 5])
def test_a_cache_of_other_layers_is_refused_before_anything_is_written(family: str, layers: int) -> None:
    if family in DECODERS:
        model, given = decoder(family), {}
    else:
        config = Config.of(family, **SMALL, **PAIRS[family], head=SequenceToSequenceLM())
        model = pellucid.build(config, seed=1)
        given = {"decoder_input_ids": ids()}
    cache = Cache(layers, 20)
    with pytest.raises(InputError, match=rf"^[23] layers were given a cache of {layers}: model.module.new_cache\("):
        model.module(ids(), **given, cache=cache)
    assert not any(layer.self_attention.filled or layer.cross_attention.filled for layer in cache.layers)


def test_a_cache_and_its_copy_are_read_on_together() -> None:
    module = decoder("llama").module
    cache = module.new_cache(20)
    with torch.no_grad():
        module(ids(rows=1, length=4), cache=cache)
        both = Cache.merge([copy.deepcopy(cache), cache])
        found = module(ids(rows=1, length=1).expand(2, -1), cache=both).logits
        assert torch.equal(found[0], found[1])
        with pytest.raises(InputError, match="filled by another model"):
            decoder("llama").module(ids(rows=2, length=1), cache=Cache.merge([copy.deepcopy(cache), cache]))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))])
def test_a_copy_of_what_gradients_go_back_through_is_read_on(copied: Callable[[Cache], Cache]) -> None:
    module = decoder("llama").module
    cache = module.new_cache(20)
    module(ids(length=4), cache=cache)
    other = copied(cache)
    wanted = module(ids(length=2), cache=cache).logits
    assert torch.equal(module(ids(length=2), cache=other).logits, wanted)


@torch.no_grad()
def test_what_one_model_has_read_no_other_reads_on() -> None:
    """Even of the same shapes: the result would be meaningless. A copy of a cache belongs to its first user."""
    config = Config.of("gpt2", **SMALL, **DECODERS["gpt2"], head=CausalLM())
    module, other = (pellucid.build(config, seed=seed, dtype="float64").module for seed in (1, 2))
    cache = module.new_cache(20)
    module(ids(length=4), cache=cache)
    with pytest.raises(InputError, match="filled by another model"):
        other(ids(length=1), cache=cache)
    again, stored = copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))
    read = module(ids(length=1), cache=cache).logits
    for one in (again, stored):
        assert torch.equal(module(ids(length=1), cache=one).logits, read)
        with pytest.raises(InputError, match="filled by another model"):
            other(ids(length=1), cache=one)


def test_an_edited_model_reads_on_what_the_plain_one_has_read() -> None:
    """What was read before does not change; the same holds in reverse."""
    model, text = decoder("llama"), ids(rows=1)
    cache = model.module.new_cache(13)
    model.module(text[:, :8], cache=cache)
    with model.edit({"layers.2.residual.post": edits.add(1.0, position=[9])}):
        read = model.module(text[:, 8:12], cache=cache).logits
        torch.testing.assert_close(read, model.module(text).logits[:, 8:12], rtol=0, atol=1e-12)
    plain = model.module(text[:, 12:], cache=cache).logits  # an edit of the last layer does not reach the cache
    torch.testing.assert_close(plain, model.module(text).logits[:, 12:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("place", ["layers.1.attention", "layers.1.feed_forward", "head"])
@pytest.mark.parametrize("family", ["llama", "bart"])
def test_a_cache_of_a_pass_that_was_broken_off_is_refused(family: str, place: str) -> None:
    """After the last attention the cache is already complete: reading the token again would cache it twice."""
    if family == "bart":
        config = Config.of("bart", **SMALL, **PAIRS["bart"], head=SequenceToSequenceLM())
        module, given = pellucid.build(config, seed=2).module, {"memory": torch.randn(2, 3, 24)}
        place = place if place == "head" else f"decoder.{place}"
    else:
        module, given = decoder("llama").module, {}
    name = "decoder_input_ids" if given else "input_ids"
    cache = module.new_cache(20)
    module(**{name: ids(length=4)}, **given, cache=cache)

    def ends(*_: object) -> None:
        raise KeyboardInterrupt

    broken = module.get_submodule(place).register_forward_pre_hook(ends)
    with pytest.raises(KeyboardInterrupt):
        module(**{name: ids(length=1)}, **given, cache=cache)
    broken.remove()
    with pytest.raises(InputError, match="a pass was interrupted at position 5 of this cache: make a new one"):
        module(**{name: ids(length=1)}, **given, cache=cache)

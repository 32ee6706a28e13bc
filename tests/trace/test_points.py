"""The list of points matches what a pass reports: each name once, in order, with the listed axes."""

import re
from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

import pellucid
from pellucid.config import Config, Head
from pellucid.errors import InputError
from pellucid.models import EncoderDecoder
from pellucid.trace import Points, axes_of, points
from tests.trace.odd_sized_models import FAMILIES, FAMILIES_AND_HEADS, config_of

BATCH, SEQ, TARGET, BEFORE = 2, 7, 5, 4


class Counting:
    """An observer that counts the values that it receives, in order."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.shapes: dict[str, tuple[int, ...]] = {}

    def __call__(self, name: str, value: Tensor) -> Tensor:
        self.counts[name] += 1
        self.shapes[name] = tuple(value.shape)
        return value

    def wants(self, name: str) -> bool:
        return True


def random_ids(length: int, seed: int = 1) -> Tensor:
    return torch.randint(3, 90, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def inputs(model: pellucid.Model, length: int = SEQ, target: int = TARGET) -> dict[str, Tensor]:
    mask = torch.ones(BATCH, length, dtype=torch.long)
    mask[1, -2:] = 0
    read, written = random_ids(length), random_ids(target)
    if not isinstance(model.module, EncoderDecoder):
        return {"input_ids": read, "attention_mask": mask}
    (end,) = model.config.end_tokens
    read[:, -3] = written[:, -1] = end  # an end token, where some heads read a text
    return {"input_ids": read, "attention_mask": mask, "decoder_input_ids": written}


def expected_shape(
    known: Points, name: str, config: Config, source: int | None = None, target: int = TARGET
) -> list[int]:
    """The shape of a point according to the table."""
    pair = config.kind == "encoder-decoder"
    in_decoder = pair and (name.startswith("decoder") or name == "logits")
    seq = target if in_decoder else SEQ
    across = SEQ if ".cross_attention." in name else source or seq
    lengths = {"batch": BATCH, "seq": seq, "source": across} | known.sizes(name)
    return [lengths[axis] for axis in known[name]]


@pytest.mark.parametrize("attention", ["fused", "explicit"])
@pytest.mark.parametrize(
    ("family", "head"), FAMILIES_AND_HEADS, ids=[f"{f}-{h.name if h else 'body'}" for f, h in FAMILIES_AND_HEADS]
)
def test_every_point_is_reported_once_in_order_with_its_axes(family: str, head: Head | None, attention: str) -> None:
    config = config_of(family, head)
    model = pellucid.build(config, attention=attention)
    target = SEQ if head is not None and head.per == "text" else TARGET  # such heads read the text's own end
    counting, batch = Counting(), inputs(model, target=target)
    with torch.no_grad():
        plain, watched = model.module(**batch), model.module(**batch, observer=counting)
    assert list(counting.counts) == list(points(config))
    assert set(counting.counts.values()) == {1}
    for name, shape in counting.shapes.items():
        expected = expected_shape(model.points(), name, config, target=target)
        assert list(shape) == expected or list(shape) == [1, *expected[1:]], name
    for name in plain:
        assert torch.equal(plain[name], watched[name]), name


@pytest.mark.parametrize("family", [f for f in FAMILIES if config_of(f).kind != "encoder"])
def test_every_point_is_reported_once_in_each_pass_with_a_cache(family: str) -> None:
    config = config_of(family)
    model = pellucid.build(config)
    pair = isinstance(model.module, EncoderDecoder)
    cache = model.module.new_cache(BEFORE + 2)
    passes = [random_ids(BEFORE), random_ids(1, 2), random_ids(1, 3)]
    memory, filled = None, 0
    for number, read in enumerate(passes):
        counting = Counting()
        with torch.no_grad():
            if pair:
                first = {"memory": memory} if number else {"input_ids": random_ids(SEQ)}
                out = model.module(**first, decoder_input_ids=read, cache=cache, observer=counting)
                memory = out.encoder_last_hidden_state
            else:
                out = model.module(read, cache=cache, observer=counting)
        filled += read.shape[1]
        remembered = r"encoder\.|.*cross_attention\.(key|value)$" if number else "$"  # computed in the first pass only
        assert list(counting.counts) == [name for name in points(config) if not re.match(remembered, name)]
        assert set(counting.counts.values()) == {1}
        weights = "decoder.layers.1.attention.weights" if pair else "layers.1.attention.weights"
        assert counting.shapes[weights][-2:] == (read.shape[1], filled)


@pytest.mark.parametrize("family", FAMILIES)
def test_residual_points_are_related_by_norms_and_sums(family: str) -> None:
    """`mid` is the sum of the layer's input and attention; the position of the norm decides what `post` is."""
    config = config_of(family)
    model = pellucid.build(config, dtype="float64")
    values: dict[str, Tensor] = {}

    class Keep(Counting):
        def __call__(self, name: str, value: Tensor) -> Tensor:
            values[name] = value
            return value

    with torch.no_grad():
        model.module(**inputs(model), observer=Keep())
    for name in [name.removesuffix("residual.mid") for name in values if name.endswith("residual.mid")]:
        layer = model.module.get_submodule(_module_of(name, config))
        assert torch.equal(
            values[f"{name}residual.mid"], values[f"{name}residual.pre"] + values[f"{name}attention.output"]
        )
        stream = values[f"{name}residual.mid"]
        post_norm = config.residual == "post"
        if f"{name}residual.cross" in values:
            stream = layer.attention_norm(stream) if post_norm else stream
            stream = stream + values[f"{name}cross_attention.output"]
            assert torch.equal(stream, values[f"{name}residual.cross"])
        if post_norm:
            last = layer.cross_attention_norm if f"{name}residual.cross" in values else layer.attention_norm
            out = layer.feed_forward_norm(last(stream) + values[f"{name}feed_forward.output"])
        else:
            out = stream + values[f"{name}feed_forward.output"]
        assert torch.equal(out, values[f"{name}residual.post"])


def _module_of(name: str, config: Config) -> str:
    parts = name.rstrip(".").split(".")
    if config.num_hidden_groups == 1:
        parts[-1] = "0"
    return ".".join(parts)


def test_repr_of_points_shows_sizes(minilm: pellucid.Model) -> None:
    shown = repr(minilm.points())
    assert shown.startswith("89 points; * stands for layers.0 to layers.5\n")
    assert "layers.*.attention.weights       batch x heads 12 x seq x source\n" in shown
    assert shown.endswith("pooled                           batch x hidden 384")
    assert minilm.points().sizes("layers.3.feed_forward.hidden") == {"inner": 1536}


def test_unknown_names_are_one_clear_error(minilm: pellucid.Model) -> None:
    with pytest.raises(InputError, match=r"no point 'layers.0.attention.wieghts' \(did you mean layers.0.attention.w"):
        minilm.points()["layers.0.attention.wieghts"]
    with pytest.raises(InputError, match=r"no point is called 'layers.0.attention.pattern'"):
        axes_of("layers.0.attention.pattern", minilm.config)
    assert "layers.9.attention.weights" not in minilm.points() and "pooled" in minilm.points()


@pytest.mark.parametrize("name", [0, None, ["logits"], np.array(["logits"])])
def test_points_are_indexed_by_name(minilm: pellucid.Model, name: object) -> None:
    for call in (minilm.points().__getitem__, minilm.points().sizes):
        with pytest.raises(InputError, match="a point is indexed by name, not by"):
            call(name)

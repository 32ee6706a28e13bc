"""Editing in every family: each point can be edited, earlier ones stay the same, and an equal value changes no bit."""

import pytest
import torch

import pellucid
from pellucid.edits import patch, scale, zero
from pellucid.trace import Trace
from tests.trace.small_models import FAMILIES, small_model

TEXT, OTHER = "time flies like an arrow", "fruit eats like the banana"


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, minilm: pellucid.Model) -> pellucid.Model:
    return small_model(request.param, minilm)


@pytest.fixture(scope="module")
def plain(model: pellucid.Model) -> Trace:
    return model.trace(TEXT)


def sampled_points(model: pellucid.Model) -> list[str]:
    """Every point of one layer of each stack, and all points outside the layers."""
    return [name for name in model.points() if "layers." not in name or "layers.1." in name]


def same_values(one: Trace, other: Trace) -> bool:
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in other)


def test_equal_value_changes_no_bit(model: pellucid.Model, plain: Trace) -> None:
    with model.edit({"*": lambda value: value}):
        assert same_values(model.trace(TEXT), plain)
    with model.edit({"*": patch(plain)}):
        assert same_values(model.trace(TEXT), plain)


def test_edit_of_each_point_changes_only_later_points(model: pellucid.Model, plain: Trace) -> None:
    order = list(plain)
    for name in sampled_points(model):
        with model.edit({name: scale(3.0)}):
            edited = model.trace(TEXT)
        index = order.index(name)
        assert torch.equal(edited[name], plain[name] * 3.0), name
        assert all(torch.equal(edited[before], plain[before]) for before in order[:index]), name
        last = model.config.kind == "encoder" and name == "norm.output" and "logits" not in order
        if name != order[-1] and not last:
            assert not torch.equal(edited["logits"], plain["logits"]), name


def test_edited_weights_equal_the_explicit_path(model: pellucid.Model, minilm: pellucid.Model) -> None:
    family = model.config.family
    exact, stepwise = (small_model(family, minilm, attention=way, dtype="float64") for way in ("fused", "explicit"))
    for point in ("attention.weights", "attention.scores"):
        edits = {f"*layers.1.{point}": scale(0.5, head=2)}
        with exact.edit(edits), stepwise.edit(edits):
            one, other = exact.trace(TEXT), stepwise.trace(TEXT)
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=1e-9, atol=1e-9)
    first = next(name for name in model.points() if name.endswith("layers.0.attention.heads"))
    edits, explicit = {"*layers.0.attention.weights": zero(head=2)}, small_model(family, minilm, attention="explicit")
    with model.edit(edits), explicit.edit(edits):
        assert torch.equal(model.trace(TEXT)[first], explicit.trace(TEXT)[first])


def test_edit_of_one_head_leaves_the_others(model: pellucid.Model, plain: Trace) -> None:
    name = next(name for name in model.points() if name.endswith("layers.1.attention.head_outputs"))
    with model.edit({name.replace("head_outputs", "heads"): zero(head=2)}):
        edited = model.trace(TEXT)
    assert not edited[name][:, 2].any()
    rest = [0, 1, 3]
    torch.testing.assert_close(edited[name][:, rest], plain[name][:, rest])


def test_patched_residual_stream_gives_the_other_texts_output(model: pellucid.Model) -> None:
    """If the whole residual stream is another text's, the layers above compute the other text's values."""
    other = model.trace(OTHER)
    sides = ["encoder.", "decoder."] if model.config.kind == "encoder-decoder" else [""]
    with model.edit({f"{side}layers.1.residual.pre": patch(other) for side in sides}):
        edited = model.trace(TEXT)
    for name in ("logits", f"{sides[-1]}layers.2.residual.post"):
        assert name not in other or torch.equal(edited[name], other[name]), name
    assert not torch.equal(edited[f"{sides[-1]}layers.0.residual.post"], other[f"{sides[-1]}layers.0.residual.post"])


def test_calls_and_embeddings_are_edited(model: pellucid.Model) -> None:
    side = "encoder." if model.config.kind == "encoder-decoder" else ""
    name = f"{side}layers.2.residual.post"
    ids = torch.tensor([[101, 2051, 10029, 2066, 102]])
    before, vectors = model(ids)["logits"], model.embed([TEXT, OTHER])
    with model.edit({name: zero(position=2)}):
        assert not torch.equal(model(ids)["logits"], before)
        zeroed = model.embed([TEXT, OTHER], pooling="mean", normalize=False)
        last = model.trace(TEXT)
    assert not torch.allclose(zeroed, vectors)
    top = f"{side}norm.output" if f"{side}norm.output" in last else name
    torch.testing.assert_close(zeroed[0], last[top][0].mean(dim=0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model(ids)["logits"], before, rtol=0, atol=0)

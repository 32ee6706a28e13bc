"""Where only the first position is read, the last layer computes nothing else, with the same results."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pellucid
from pellucid import edits
from pellucid.blocks.training_copy import MAX_PLAIN_LENGTH, TrainingContext
from pellucid.config import Dropout, Head, Rotary, SequenceClassification
from pellucid.config.pooling import Pooling
from pellucid.errors import InputError
from pellucid.models import Encoder, Output
from pellucid.training.learner import Learner
from pellucid.training.pairs import SentenceSimilarity
from pellucid.training.settings import Settings
from tests.trace.odd_sized_models import FAMILIES_AND_HEADS, config_of
from tests.training.whole_run import objective_and_model

CLASSIFIERS = [
    (family, head)
    for family, head in FAMILIES_AND_HEADS
    if isinstance(head, SequenceClassification) and config_of(family, head).kind == "encoder"
]
TEXTS = ["time flies", "a good film and a long story", "sea"]


def padded_batch() -> dict[str, Tensor]:
    """A batch of texts of unequal length."""
    generator = torch.Generator().manual_seed(7)
    mask = (torch.arange(9) < 9 - 2 * torch.arange(3)[:, None]).long()
    return {"input_ids": torch.randint(5, 90, (3, 9), generator=generator) * mask, "attention_mask": mask}


def positions_per_call(module: nn.Module) -> list[int]:
    """The positions that each layer's feed-forward computes from now on, one number per call."""
    counts: list[int] = []
    for layer in module.layers:
        inner = layer.feed_forward.forward
        layer.feed_forward.forward = lambda x, *more, inner=inner: (counts.append(x.shape[1]), inner(x, *more))[1]
    return counts


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("family", "head"), CLASSIFIERS)
@torch.inference_mode()
def test_packed_logits_equal_those_of_the_plain_module(
    family: str, head: Head, dtype: torch.dtype, padded: bool
) -> None:
    module = pellucid.build(config_of(family, head), seed=3).to(dtype=dtype).module
    inputs = padded_batch() if padded else {"input_ids": padded_batch()["input_ids"][:1]}
    expected, tolerance = module(**inputs), 1e-12 if dtype == torch.float64 else 1e-5
    packed: Any = module.packed_copy()
    assert isinstance(packed, Encoder) and packed.is_fast and not module.is_fast
    torch.testing.assert_close(packed.logits(**inputs), expected["logits"], rtol=0, atol=tolerance)
    first = packed.states(*inputs.values(), first=True)
    torch.testing.assert_close(first, expected["last_hidden_state"][:, :1], rtol=0, atol=tolerance)
    assert torch.equal(module.logits(**inputs), expected["logits"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("name", ["bert-feelings", "bert-nli"])
@torch.inference_mode()
def test_the_last_layer_computes_one_position(checkpoint: Callable[[str], Path], name: str, dtype: str) -> None:
    model = pellucid.load(checkpoint(name), dtype=dtype)
    packed: Any = model.module.packed_copy()
    expected, counts = packed(**padded_batch())["logits"], positions_per_call(packed)
    found = packed.logits(**padded_batch())
    assert counts == [9] * (len(counts) - 1) + [1] and len(counts) > 1
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 if dtype == "float32" else 0.02)


def test_cls_vector_equals_the_first_state(checkpoint: Callable[[str], Path]) -> None:
    model = pellucid.load(checkpoint("bert-body"))
    found = model.embed(TEXTS, pooling="cls", normalize=False)
    expected = torch.stack([model.trace(text)["last_hidden_state"][0, 0] for text in TEXTS])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_comparison_tasks_compute_only_the_pooled_position(checkpoint: Callable[[str], Path]) -> None:
    plain = pellucid.load(checkpoint("bert-body"))
    model = pellucid.Model(replace(plain.loaded, pooling=Pooling(("cls",))))
    counts = positions_per_call(model.module.packed_copy())
    found = [pellucid.pipeline("text-ranking", model=model)({"query": TEXTS[0], "documents": TEXTS[1:]})]
    found.append(pellucid.pipeline("sentence-similarity", model=model)((TEXTS[0], TEXTS[1])))
    assert counts[1::2] == [1] * (len(counts) // 2) and min(counts[::2]) > 1 and len(model.module.layers) == 2
    one, *others = torch.stack([plain.trace(text)["last_hidden_state"][0, 0] for text in TEXTS])
    expected = [float(torch.cosine_similarity(one, other, dim=0)) for other in others]
    assert sorted(hit["score"] for hit in found[0]) == pytest.approx(sorted(expected), abs=1e-5)
    assert found[1]["score"] == pytest.approx(expected[0], abs=1e-5)


def test_foreign_pooler_reads_every_position(checkpoint: Callable[[str], Path]) -> None:
    model = pellucid.load(checkpoint("bert-feelings"))
    model.module.pooler = nn.Sequential(nn.AdaptiveAvgPool2d((1, None)), nn.Flatten(1))
    found = pellucid.pipeline("text-classification", model=model, function_to_apply="none")(TEXTS[1])
    expected = model(TEXTS[1])["logits"].detach().max()
    assert found["score"] == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_edit_receives_every_position(checkpoint: Callable[[str], Path], dtype: str) -> None:
    model = pellucid.load(checkpoint("bert-feelings"), dtype=dtype)
    shapes: list[tuple[int, ...]] = []

    def record(value: Tensor) -> Tensor:
        shapes.append(tuple(value.shape))
        return value

    last = f"layers.{model.config.num_hidden_layers - 1}.residual.post"
    with model.edit({last: edits.change(record)}) as edited:
        found = pellucid.pipeline("text-classification", model=edited)(TEXTS[1])
    assert shapes and shapes[0][1] > 1
    expected = pellucid.pipeline("text-classification", model=model)(TEXTS[1])
    assert found["label"] == expected["label"] and found["score"] == pytest.approx(expected["score"], abs=1e-5)


def test_hook_on_a_low_bit_model_runs(checkpoint: Callable[[str], Path]) -> None:
    module = pellucid.load(checkpoint("bert-feelings"), dtype="int8").module
    module.register_forward_hook(lambda _part, _inputs, found: Output({**found, "logits": -found.logits}))
    assert torch.equal(module.packed_copy().logits(**padded_batch()), module(**padded_batch()).logits)


def test_first_position_alone_is_refused_under_causal_attention() -> None:
    """Computed alone, it would silently attend to later positions."""
    module: Any = pellucid.build(config_of("gpt2"), seed=3).module
    with pytest.raises(InputError, match="under bidirectional attention"):
        module.states(padded_batch()["input_ids"], first=True)
    encoder: Any = pellucid.build(config_of("bert"), seed=3).module
    with pytest.raises(InputError, match="without segments or a cache"):
        encoder.states(padded_batch()["input_ids"], segments=padded_batch()["attention_mask"], first=True)


# -- training ----------------------------------------------------------------------------------------------------------

NO_DROPOUT = Dropout(0.0, 0.0)


def gradients_of(module: nn.Module, output: Tensor) -> dict[str, Tensor]:
    """The gradients of a weighted sum of all elements of `output`."""
    module.zero_grad()
    (output * torch.linspace(-1.0, 1.0, output.numel(), dtype=output.dtype).view(output.shape)).sum().backward()
    return {name: one.grad for name, one in module.named_parameters() if one.grad is not None}


def assert_same_gradients(module: Any, inputs: dict[str, Tensor], context: TrainingContext) -> None:
    """Asserts that logits and gradients equal the plain module's, to 1e-12 of the largest, with one position in the
    last layer."""
    training_copy = module.training_copy(context)
    expected, counts = module(**inputs)["logits"], positions_per_call(training_copy)
    found = training_copy.logits(**inputs)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert counts[-1] == 1 and set(counts[:-1]) == {inputs["input_ids"].shape[1]}
    theirs, ours = gradients_of(module, expected), gradients_of(module, found)
    assert ours.keys() == theirs.keys()
    largest = max(float(one.abs().max()) for one in theirs.values())
    for name, one in theirs.items():
        torch.testing.assert_close(
            ours[name], one, rtol=0, atol=1e-12 * largest, msg=lambda text, name=name: name + text
        )


def new_module(family: str, head: Head | None = None, **facts: Any) -> Any:
    return pellucid.build(config_of(family, head, dropout=NO_DROPOUT, **facts), seed=3).to(dtype=torch.float64).module


@pytest.mark.parametrize("checkpointing", [False, True], ids=["remembered", "again"])
@pytest.mark.parametrize(("family", "head"), CLASSIFIERS)
def test_training_gradients_equal_those_of_the_plain_module(family: str, head: Head, checkpointing: bool) -> None:
    assert_same_gradients(
        new_module(family, head), padded_batch(), TrainingContext(torch.float64, activation_checkpointing=checkpointing)
    )


def test_training_gradients_with_rotary_positions_and_long_texts() -> None:
    head = dict(CLASSIFIERS)["bert"]
    rotary = new_module("bert", head, attention_position=Rotary(), hidden_size=24, num_attention_heads=4)
    assert_same_gradients(rotary, padded_batch(), TrainingContext(torch.float64))
    long = new_module("bert", head, max_position_embeddings=MAX_PLAIN_LENGTH + 50)
    ids = torch.randint(5, 90, (2, MAX_PLAIN_LENGTH + 20), generator=torch.Generator().manual_seed(1))
    assert_same_gradients(
        long, {"input_ids": ids}, TrainingContext(torch.float64)
    )  # long enough for PyTorch's fused kernel


def test_dropout_is_the_same_with_activation_checkpointing() -> None:
    dropout = {"dropout": Dropout(0.3, 0.3)}
    module: Any = pellucid.build(config_of("bert", dict(CLASSIFIERS)["bert"], **dropout), seed=3).module
    found = []
    for checkpointing, step in ((False, 3), (True, 3), (False, 4)):
        context = TrainingContext(torch.float32, seed=5, activation_checkpointing=checkpointing)
        context.begin(step, 0)
        logits = module.training_copy(context).logits(**padded_batch())
        found.append((logits, gradients_of(module, logits)))
    (one, expected), (same, gradients), (other, _) = found
    torch.testing.assert_close(same, one, rtol=0, atol=1e-6)
    assert not torch.allclose(other, one, atol=1e-3) and not torch.allclose(
        module(**padded_batch())["logits"], one, atol=1e-3
    )
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=1e-5)


def test_pairs_train_on_the_pooled_position_only(checkpoint: Callable[[str], Path]) -> None:
    loaded = replace(pellucid.load(checkpoint("bert-body")).loaded, pooling=Pooling(("cls",)))
    rows = [{"sentence1": a, "sentence2": b, "score": 1.0} for a in TEXTS for b in TEXTS]
    settings = Settings(precision="float32", dropout=0.0, attention_dropout=0.0)
    objective, loaded = objective_and_model(loaded, SentenceSimilarity(criterion="cosine"), rows, settings)
    learner = Learner(loaded, settings)
    counts = positions_per_call(learner.training_copy)
    examples = list(objective.examples(loaded, rows))
    piece = objective.collate(loaded, examples, np.random.default_rng(0))
    found = gradients_of(learner.module, objective.loss(learner, piece)[None])
    assert counts[-1] == 1 and min(counts[:-1]) > 1
    vectors = [learner.module.states(torch.tensor([ids]))[0, 0] for one in examples for ids in one.ids]
    cosines = torch.cosine_similarity(*torch.stack(vectors).unflatten(0, (-1, 2)).unbind(1))
    expected = gradients_of(
        learner.module, ((cosines - torch.tensor([one.target.score for one in examples])) ** 2).sum()[None]
    )
    for name, one in expected.items():
        torch.testing.assert_close(found[name], one, rtol=0, atol=1e-5, msg=lambda text, name=name: name + text)

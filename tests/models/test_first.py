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
from tests.training.whole_run import objective_and_model as ready

READERS = [
    (family, head)
    for family, head in FAMILIES_AND_HEADS
    if isinstance(head, SequenceClassification) and config_of(family, head).kind == "encoder"
]
TEXTS = ["time flies", "a good film and a long story", "sea"]


def batch() -> dict[str, Tensor]:
    """A batch of texts of unequal length."""
    chance = torch.Generator().manual_seed(7)
    mask = (torch.arange(9) < 9 - 2 * torch.arange(3)[:, None]).long()
    return {"input_ids": torch.randint(5, 90, (3, 9), generator=chance) * mask, "attention_mask": mask}


def positions(module: nn.Module) -> list[int]:
    """The positions that each layer's feed-forward computes from now on, one number per call."""
    seen: list[int] = []
    for layer in module.layers:
        inner = layer.feed_forward.forward
        layer.feed_forward.forward = lambda x, *more, inner=inner: (seen.append(x.shape[1]), inner(x, *more))[1]
    return seen


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("family", "head"), READERS)
@torch.inference_mode()
def test_a_text_is_judged_as_by_the_plain_module(family: str, head: Head, dtype: torch.dtype, padded: bool) -> None:
    module = pellucid.build(config_of(family, head), seed=3).to(dtype=dtype).module
    given = batch() if padded else {"input_ids": batch()["input_ids"][:1]}
    wanted, within = module(**given), 1e-12 if dtype == torch.float64 else 1e-5
    quick: Any = module.packed_copy()
    assert isinstance(quick, Encoder) and quick.is_fast and not module.is_fast
    torch.testing.assert_close(quick.logits(**given), wanted["logits"], rtol=0, atol=within)
    first = quick.states(*given.values(), first=True)
    torch.testing.assert_close(first, wanted["last_hidden_state"][:, :1], rtol=0, atol=within)
    assert torch.equal(module.logits(**given), wanted["logits"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("name", ["bert-feelings", "bert-nli"])
@torch.inference_mode()
def test_the_last_layer_computes_one_position(checkpoint: Callable[[str], Path], name: str, dtype: str) -> None:
    model = pellucid.load(checkpoint(name), dtype=dtype)
    quick: Any = model.module.packed_copy()
    wanted, seen = quick(**batch())["logits"], positions(quick)
    found = quick.logits(**batch())
    assert seen == [9] * (len(seen) - 1) + [1] and len(seen) > 1
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6 if dtype == "float32" else 0.02)


def test_a_vector_of_the_first_token_is_that_of_all_states(checkpoint: Callable[[str], Path]) -> None:
    model = pellucid.load(checkpoint("bert-body"))
    found = model.embed(TEXTS, pooling="cls", normalize=False)
    wanted = torch.stack([model.trace(text)["last_hidden_state"][0, 0] for text in TEXTS])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_texts_are_compared_by_the_position_that_is_pooled(checkpoint: Callable[[str], Path]) -> None:
    plain = pellucid.load(checkpoint("bert-body"))
    model = pellucid.Model(replace(plain.loaded, pooling=Pooling(("cls",))))
    seen = positions(model.module.packed_copy())
    found = [pellucid.pipeline("text-ranking", model=model)({"query": TEXTS[0], "documents": TEXTS[1:]})]
    found.append(pellucid.pipeline("sentence-similarity", model=model)((TEXTS[0], TEXTS[1])))
    assert seen[1::2] == [1] * (len(seen) // 2) and min(seen[::2]) > 1 and len(model.module.layers) == 2
    one, *others = torch.stack([plain.trace(text)["last_hidden_state"][0, 0] for text in TEXTS])
    wanted = [float(torch.cosine_similarity(one, other, dim=0)) for other in others]
    assert sorted(hit["score"] for hit in found[0]) == pytest.approx(sorted(wanted), abs=1e-5)
    assert found[1]["score"] == pytest.approx(wanted[0], abs=1e-5)


def test_a_pooler_of_somebody_else_s_reads_every_position(checkpoint: Callable[[str], Path]) -> None:
    model = pellucid.load(checkpoint("bert-feelings"))
    model.module.pooler = nn.Sequential(nn.AdaptiveAvgPool2d((1, None)), nn.Flatten(1))
    found = pellucid.pipeline("text-classification", model=model, function_to_apply="none")(TEXTS[1])
    wanted = model(TEXTS[1])["logits"].detach().max()
    assert found["score"] == pytest.approx(float(wanted), abs=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_who_looks_on_is_told_of_every_position(checkpoint: Callable[[str], Path], dtype: str) -> None:
    model = pellucid.load(checkpoint("bert-feelings"), dtype=dtype)
    told: list[tuple[int, ...]] = []

    def noted(value: Tensor) -> Tensor:
        told.append(tuple(value.shape))
        return value

    last = f"layers.{model.config.num_hidden_layers - 1}.residual.post"
    with model.edit({last: edits.change(noted)}) as edited:
        found = pellucid.pipeline("text-classification", model=edited)(TEXTS[1])
    assert told and told[0][1] > 1
    wanted = pellucid.pipeline("text-classification", model=model)(TEXTS[1])
    assert found["label"] == wanted["label"] and found["score"] == pytest.approx(wanted["score"], abs=1e-5)


def test_a_hook_on_a_model_of_few_bits_is_heard(checkpoint: Callable[[str], Path]) -> None:
    module = pellucid.load(checkpoint("bert-feelings"), dtype="int8").module
    module.register_forward_hook(lambda _part, _given, found: Output({**found, "logits": -found.logits}))
    assert torch.equal(module.packed_copy().logits(**batch()), module(**batch()).logits)


def test_where_order_counts_the_first_position_is_not_computed_alone() -> None:
    """Computed alone, it would silently attend to later positions."""
    module: Any = pellucid.build(config_of("gpt2"), seed=3).module
    with pytest.raises(InputError, match="under bidirectional attention"):
        module.states(batch()["input_ids"], first=True)
    reader: Any = pellucid.build(config_of("bert"), seed=3).module
    with pytest.raises(InputError, match="without segments or a cache"):
        reader.states(batch()["input_ids"], segments=batch()["attention_mask"], first=True)


# -- while it learns --------------------------------------------------------------------------------------------------

STILL = Dropout(0.0, 0.0)


def slopes(module: nn.Module, said: Tensor) -> dict[str, Tensor]:
    """The gradients of a weighted sum of all elements of `said`."""
    module.zero_grad()
    (said * torch.linspace(-1.0, 1.0, said.numel(), dtype=said.dtype).view(said.shape)).sum().backward()
    return {name: one.grad for name, one in module.named_parameters() if one.grad is not None}


def learns_alike(module: Any, given: dict[str, Tensor], context: TrainingContext) -> None:
    """Asserts that logits and gradients equal the plain module's, to 1e-12 of the largest, with one position in the
    last layer."""
    twin = module.training_copy(context)
    wanted, seen = module(**given)["logits"], positions(twin)
    found = twin.logits(**given)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    assert seen[-1] == 1 and set(seen[:-1]) == {given["input_ids"].shape[1]}
    theirs, ours = slopes(module, wanted), slopes(module, found)
    assert ours.keys() == theirs.keys()
    most = max(float(one.abs().max()) for one in theirs.values())
    for name, one in theirs.items():
        torch.testing.assert_close(ours[name], one, rtol=0, atol=1e-12 * most, msg=lambda text, name=name: name + text)


def module_of(family: str, head: Head | None = None, **facts: Any) -> Any:
    return pellucid.build(config_of(family, head, dropout=STILL, **facts), seed=3).to(dtype=torch.float64).module


@pytest.mark.parametrize("again", [False, True], ids=["remembered", "again"])
@pytest.mark.parametrize(("family", "head"), READERS)
def test_a_text_is_learned_from_as_by_the_plain_module(family: str, head: Head, again: bool) -> None:
    learns_alike(module_of(family, head), batch(), TrainingContext(torch.float64, activation_checkpointing=again))


def test_whatever_scores_are_made_of() -> None:
    head = dict(READERS)["bert"]
    turned = module_of("bert", head, attention_position=Rotary(), hidden_size=24, num_attention_heads=4)
    learns_alike(turned, batch(), TrainingContext(torch.float64))
    long = module_of("bert", head, max_position_embeddings=MAX_PLAIN_LENGTH + 50)
    ids = torch.randint(5, 90, (2, MAX_PLAIN_LENGTH + 20), generator=torch.Generator().manual_seed(1))
    learns_alike(long, {"input_ids": ids}, TrainingContext(torch.float64))  # long enough for PyTorch's fused kernel


def test_one_position_drops_out_and_the_same_where_layers_are_computed_again() -> None:
    drops = {"dropout": Dropout(0.3, 0.3)}
    module: Any = pellucid.build(config_of("bert", dict(READERS)["bert"], **drops), seed=3).module
    found = []
    for again, step in ((False, 3), (True, 3), (False, 4)):
        context = TrainingContext(torch.float32, seed=5, activation_checkpointing=again)
        context.begin(step, 0)
        said = module.training_copy(context).logits(**batch())
        found.append((said, slopes(module, said)))
    (one, wanted), (same, gradients), (other, _) = found
    torch.testing.assert_close(same, one, rtol=0, atol=1e-6)
    assert not torch.allclose(other, one, atol=1e-3) and not torch.allclose(module(**batch())["logits"], one, atol=1e-3)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=0, atol=1e-5)


def test_only_the_pooled_position_of_pairs_is_learned_from(checkpoint: Callable[[str], Path]) -> None:
    loaded = replace(pellucid.load(checkpoint("bert-body")).loaded, pooling=Pooling(("cls",)))
    rows = [{"sentence1": a, "sentence2": b, "score": 1.0} for a in TEXTS for b in TEXTS]
    settings = Settings(precision="float32", dropout=0.0, attention_dropout=0.0)
    objective, loaded = ready(loaded, SentenceSimilarity(criterion="cosine"), rows, settings)
    learner = Learner(loaded, settings)
    seen = positions(learner.training_copy)
    examples = list(objective.examples(loaded, rows))
    piece = objective.collate(loaded, examples, np.random.default_rng(0))
    found = slopes(learner.module, objective.loss(learner, piece)[None])
    assert seen[-1] == 1 and min(seen[:-1]) > 1
    vectors = [learner.module.states(torch.tensor([ids]))[0, 0] for one in examples for ids in one.ids]
    cosines = torch.cosine_similarity(*torch.stack(vectors).unflatten(0, (-1, 2)).unbind(1))
    wanted = slopes(learner.module, ((cosines - torch.tensor([one.target.score for one in examples])) ** 2).sum()[None])
    for name, one in wanted.items():
        torch.testing.assert_close(found[name], one, rtol=0, atol=1e-5, msg=lambda text, name=name: name + text)

"""Known results: a model of two layers trained to continue repeated random sequences forms an induction head (Olsson et
al., 2022, arXiv:2209.11895), which attends to the token after the previous occurrence, fed by a head of the layer below
that attends to the previous token."""

import functools

import pytest
import torch
import torch.nn.functional as F

import pellucid
from pellucid import Config
from pellucid.config import CausalLM
from pellucid.edits import zero

WORDS = 24
SMALL = {"vocab_size": WORDS, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
PLAIN = {"intermediate_size": 64, "head": CausalLM(), "bos_token_id": None, "eos_token_id": None}


def fresh(seed: int) -> pellucid.Model:
    return pellucid.build(Config.of("llama", **SMALL, **PLAIN), seed=seed)


@functools.cache
def trained(seed: int, steps: int = 500) -> pellucid.Model:
    """A loop of AdamW on random sequences that occur twice. Their length varies from step to step, so that attending a
    fixed distance back does not suffice: the tokens themselves must be compared."""
    model, chance = fresh(seed), torch.Generator().manual_seed(1)
    learner = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    warm = torch.optim.lr_scheduler.LambdaLR(learner, lambda step: min(1.0, (step + 1) / 20))
    for _ in range(steps):
        length = int(torch.randint(5, 13, (1,), generator=chance))
        once = torch.randint(WORDS, (32, length), generator=chance)
        ids = torch.cat((once, once), dim=1)
        said = model(ids).logits[:, length:-1]
        loss = F.cross_entropy(said.flatten(0, 1), ids[:, length + 1 :].flatten())
        learner.zero_grad()
        loss.backward()
        learner.step()
        warm.step()
    return model


@pytest.mark.slow
def test_training_grows_an_induction_head() -> None:
    before, after = fresh(0).explain.head_scores(length=12), trained(0).explain.head_scores(length=12)
    assert float(before.induction.max()) < 0.2
    ((layer, _, score),) = after.strongest("induction", 1)
    assert score > 0.5 and layer == 1
    assert float(after.induction[0].max()) < 0.2  # one layer alone cannot do it
    assert after.strongest("previous", 1)[0][0] == 0  # the head below that feeds it
    assert float(after.previous[0].max()) > 2 * float(before.previous[0].max())


@pytest.mark.slow
def test_it_is_fed_by_the_layer_below() -> None:
    model = trained(0)
    with model.edit({"layers.0.attention.heads": zero()}):
        without = model.explain.head_scores(length=12)
    assert float(without.induction[1].max()) < 0.25


def test_what_comes_next_is_the_work_of_these_heads() -> None:
    model = trained(0)
    ids = torch.randperm(WORDS, generator=torch.Generator().manual_seed(2))[:10]
    again = torch.cat((ids, ids[:4]))[None]
    with torch.no_grad():
        said = model(again).logits[0, -1]
        with model.edit({"layers.1.attention.heads": zero()}):
            without = model(again).logits[0, -1]
    assert int(said.argmax()) == int(ids[4]) != int(without.argmax())
    assert float(said.softmax(-1)[ids[4]]) > 0.5 > 0.2 > float(without.softmax(-1)[ids[4]])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_other_beginnings_come_to_the_same(seed: int) -> None:
    assert float(fresh(seed).explain.head_scores(length=12).induction.max()) < 0.2
    assert float(trained(seed, steps=1200).explain.head_scores(length=12).induction.max()) > 0.5

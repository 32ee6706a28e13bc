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

VOCAB_SIZE = 24
SIZES = {"vocab_size": VOCAB_SIZE, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
SETTINGS = {"intermediate_size": 64, "head": CausalLM(), "bos_token_id": None, "eos_token_id": None}


def untrained_model(seed: int) -> pellucid.Model:
    return pellucid.build(Config.of("llama", **SIZES, **SETTINGS), seed=seed)


@functools.cache
def trained_model(seed: int, steps: int = 500) -> pellucid.Model:
    """A loop of AdamW on random sequences that occur twice. Their length varies from step to step, so that attending a
    fixed distance back does not suffice: the tokens themselves must be compared."""
    model, generator = untrained_model(seed), torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    for _ in range(steps):
        length = int(torch.randint(5, 13, (1,), generator=generator))
        once = torch.randint(VOCAB_SIZE, (32, length), generator=generator)
        ids = torch.cat((once, once), dim=1)
        logits = model(ids).logits[:, length:-1]
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, length + 1 :].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    return model


@pytest.mark.slow
def test_training_forms_an_induction_head() -> None:
    before, after = untrained_model(0).explain.head_scores(length=12), trained_model(0).explain.head_scores(length=12)
    assert float(before.induction.max()) < 0.2
    ((layer, _, score),) = after.strongest("induction", 1)
    assert score > 0.5 and layer == 1
    assert float(after.induction[0].max()) < 0.2  # one layer alone cannot do it
    assert after.strongest("previous", 1)[0][0] == 0  # the head below that feeds it
    assert float(after.previous[0].max()) > 2 * float(before.previous[0].max())


@pytest.mark.slow
def test_induction_head_depends_on_the_layer_below() -> None:
    model = trained_model(0)
    with model.edit({"layers.0.attention.heads": zero()}):
        without = model.explain.head_scores(length=12)
    assert float(without.induction[1].max()) < 0.25


def test_prediction_depends_on_the_induction_heads() -> None:
    model = trained_model(0)
    ids = torch.randperm(VOCAB_SIZE, generator=torch.Generator().manual_seed(2))[:10]
    again = torch.cat((ids, ids[:4]))[None]
    with torch.no_grad():
        logits = model(again).logits[0, -1]
        with model.edit({"layers.1.attention.heads": zero()}):
            without = model(again).logits[0, -1]
    assert int(logits.argmax()) == int(ids[4]) != int(without.argmax())
    assert float(logits.softmax(-1)[ids[4]]) > 0.5 > 0.2 > float(without.softmax(-1)[ids[4]])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_other_seeds_form_induction_heads_too(seed: int) -> None:
    assert float(untrained_model(seed).explain.head_scores(length=12).induction.max()) < 0.2
    assert float(trained_model(seed, steps=1200).explain.head_scores(length=12).induction.max()) > 0.5

"""For models of every kind of attention, the page's steps are those of PyTorch."""

from typing import Any

import pytest
import torch

import pellucid
from tests.quick import few
from tests.view.conftest import Show
from tests.view.neuron_steps import check_steps

SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {}, "llama": {"num_key_value_heads": 2}, "mistral": {"num_key_value_heads": 2, "sliding_window": 3},
    "t5": {"head_dim": 8, "num_decoder_layers": 2, "decoder_attention_heads": 4, "decoder_intermediate_size": 40},
    "bart": {"num_decoder_layers": 2, "decoder_attention_heads": 4, "decoder_intermediate_size": 40},
}  # fmt: skip
PATHS = {"": "layers.{}.attention", "encoder": "encoder.layers.{}.attention", "decoder": "decoder.layers.{}.attention",
         "cross": "decoder.layers.{}.cross_attention"}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "group", "layer"),
    few([("bert", "", 1), ("llama", "", 2), ("mistral", "", 2), ("t5", "encoder", 1), ("t5", "decoder", 0),
         ("t5", "cross", 1), ("bart", "cross", 1)], [("t5", "cross", 1)]),
)  # fmt: skip
def test_steps_of_every_kind_of_attention(
    show: Show, minilm: pellucid.Model, family: str, group: str, layer: int
) -> None:
    config = pellucid.Config.of(family, vocab_size=len(minilm.tokenizer), **SMALL, **FAMILIES[family])
    model = pellucid.build(config, seed=3, tokenizer=minilm.tokenizer)
    with torch.no_grad():  # untrained heads attend to all keys alike; these do not
        for name, parameter in model.module.named_parameters():
            if name.endswith(("attention.query.weight", "attention.key.weight")):
                parameter.mul_(25 if family != "t5" else 4)
    text = "time flies like an arrow"
    trace = model.trace(text, target="fruit flies") if group else model.trace(text)
    path = PATHS[group].format(layer)
    view = pellucid.view(trace)
    for head, query, key in [(1, 2, 1), (3, 3, 3)]:
        tab = show(
            view.html(), f"#view=neuron&of={group}&layer={layer}&head={head}&heads={head}&query={query}&key={key}"
        )
        row = trace[f"{path}.weights"][0, head, query]
        steps = check_steps(tab, row[key].item(), 8, tolerance=1e-5)
        assert ("bias" in steps) == (family == "t5" and group != "cross")
        assert steps["weight"] > 0 and row.max() > 1.5 * row[row > 0].min()
        scores = trace[f"{path}.scores"][0, head, query]
        assert steps.get("score", steps["scaled"]) == pytest.approx(scores[key].item(), abs=1e-4)
        assert steps["largest"] == pytest.approx(scores[row > 0].max().item(), abs=1e-4)


def test_steps_of_a_real_model(show: Show, minilm: pellucid.Model) -> None:
    trace = minilm.trace("time flies like an arrow", "fruit flies like a banana")
    tab = show(pellucid.view(trace).html(), "#view=neuron&layer=3&head=5&heads=5&query=2&key=9")
    check_steps(tab, trace["layers.3.attention.weights"][0, 5, 2, 9].item(), 32)

"""The reference's numbers, from tiny random models: float64 to 1e-9, float32 to the last bit, there and back."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import pellucid
from tests.parity.reference import batch, tiny

ARCHITECTURES = {
    "BertModel": {},
    "BertForMaskedLM": {"hidden_act": "gelu_new"},
    "BertForNextSentencePrediction": {},
    "BertForSequenceClassification": {"hidden_act": "relu"},
    "BertForTokenClassification": {},
    "BertForQuestionAnswering": {"num_labels": 2},
}
"""One row per family and head, each with facts that differ from the defaults."""

PATHS = {"fused": "sdpa", "explicit": "eager"}


@pytest.fixture(params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    return request.param


def theirs(model: object, inputs: dict[str, torch.Tensor], **settings: bool) -> dict[str, torch.Tensor]:
    """The reference's answer under our names."""
    with torch.no_grad():
        out = model(**inputs, output_hidden_states=True, **settings)
    answer = {"last_hidden_state": out.hidden_states[-1], "hidden_states": out.hidden_states}
    if "pooler_output" in out:
        answer["pooler_output"] = out.pooler_output
    if "start_logits" in out:
        answer["logits"] = torch.stack((out.start_logits, out.end_logits), dim=-1)
    if "logits" in out:
        answer["logits"] = out.logits
    if settings.get("output_attentions"):
        answer["attentions"] = out.attentions
    return answer


@pytest.mark.parametrize("attention", PATHS)
def test_float64_agrees_to_1e_9(architecture: str, attention: str, tmp_path: Path) -> None:
    reference = tiny(
        tmp_path, architecture, dtype=torch.float64, attention=PATHS[attention], **ARCHITECTURES[architecture]
    )
    model = pellucid.load(tmp_path, dtype="float64", attention=attention)
    wanted, found = theirs(reference, batch()), model(**batch())
    for name in wanted.keys() - {"hidden_states"}:
        assert wanted[name].dtype == torch.float64
        torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=1e-9)


@pytest.mark.parametrize("attention", PATHS)
@pytest.mark.parametrize("padded", [True, False])
def test_float32_is_equal_bit_for_bit(architecture: str, attention: str, padded: bool, tmp_path: Path) -> None:
    reference = tiny(
        tmp_path, architecture, dtype=torch.float32, attention=PATHS[attention], **ARCHITECTURES[architecture]
    )
    model = pellucid.load(tmp_path, attention=attention)
    with torch.no_grad():
        wanted, found = theirs(reference, batch(padded=padded)), model(**batch(padded=padded))
    for name in wanted.keys() - {"hidden_states"}:
        assert torch.equal(found[name], wanted[name]), name


def test_hidden_states_and_weights_at_every_point(tmp_path: Path) -> None:
    reference = tiny(tmp_path, "BertModel", dtype=torch.float64, attention="eager")
    model = pellucid.load(tmp_path, dtype="float64", attention="explicit")
    kept = Keep()
    model.module(**batch(), watch=kept)
    wanted = theirs(reference, batch(), output_attentions=True)
    torch.testing.assert_close(kept["embeddings.output"], wanted["hidden_states"][0], rtol=0, atol=1e-9)
    for i in range(3):
        torch.testing.assert_close(kept[f"layers.{i}.residual.post"], wanted["hidden_states"][i + 1], rtol=0, atol=1e-9)
        torch.testing.assert_close(kept[f"layers.{i}.attention.weights"], wanted["attentions"][i], rtol=0, atol=1e-9)


def test_there_and_back_bit_for_bit(architecture: str, tmp_path: Path) -> None:
    reference = tiny(tmp_path / "theirs", architecture, dtype=torch.float32, **ARCHITECTURES[architecture])
    pellucid.load(tmp_path / "theirs").save(tmp_path / "ours")
    before, after = (load_file(tmp_path / side / "model.safetensors") for side in ("theirs", "ours"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    again = type(reference).from_pretrained(tmp_path / "ours", attn_implementation="sdpa").eval()
    wanted, found = theirs(reference, batch()), theirs(again, batch())
    assert torch.equal(wanted["last_hidden_state"], found["last_hidden_state"])


def test_config_goes_there_and_back(architecture: str, tmp_path: Path) -> None:
    tiny(tmp_path / "a", architecture, dtype=torch.float32, **ARCHITECTURES[architecture])
    first = pellucid.load(tmp_path / "a")
    first.save(tmp_path / "b")
    assert pellucid.load(tmp_path / "b").config == first.config


def test_an_untrained_model_is_drawn_as_the_reference_draws_it(tmp_path: Path) -> None:
    """Same distribution, family by family of parameters: means and deviations agree, constants are equal."""
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    wide = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 4000}
    wanted = BertForMaskedLM(BertConfig(**wide)).bert.state_dict()
    from pellucid.config import MaskedLM

    model = pellucid.build(pellucid.Config.of("bert", **wide, head=MaskedLM()), seed=5)
    names = model.loaded.family.names
    for ours, found in model.module.state_dict().items():
        if ours.startswith("head."):
            continue
        reference = wanted[names.theirs(ours, (), prefixed=False)]
        chance = 6 * 0.02 / found.numel() ** 0.5  # six standard errors
        assert abs(found.mean() - reference.mean()) <= chance
        assert abs(found.std() - reference.std()) <= chance
    assert model.module.embeddings.token.weight[0].abs().sum() == 0
    assert torch.equal(model.module.embeddings.token.weight, model.module.head.decoder.weight)


class Keep(dict[str, torch.Tensor]):
    """An onlooker that keeps everything."""

    def __init__(self, path: str = "", into: "Keep | None" = None) -> None:
        super().__init__()
        self.path, self.into = path, self if into is None else into

    def __call__(self, name: str, value: torch.Tensor) -> torch.Tensor:
        dict.__setitem__(self.into, self.path + name, value)
        return value

    def wants(self, name: str) -> bool:
        return True

    def inside(self, name: str) -> "Keep":
        return Keep(f"{self.path}{name}.", self.into)

"""The greedy loop against the reference's own, token by token."""

from pathlib import Path

import pytest
import torch
import transformers

import pellucid
from pellucid.errors import InputError
from pellucid.generation import read_settings, write
from tests.parity.reference import batch, tiny


@pytest.mark.parametrize(
    "architecture",
    [
        "GPT2LMHeadModel",
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "BartForConditionalGeneration",
        "T5ForConditionalGeneration",
    ],
)
def test_the_reference_writes_the_same(architecture: str, tmp_path: Path) -> None:
    reference = tiny(tmp_path, architecture, dtype=torch.float64)
    model = pellucid.load(tmp_path, dtype="float64")
    ids = batch(rows=2, padded=False)["input_ids"]
    plain = transformers.GenerationConfig(
        max_new_tokens=10,
        do_sample=False,
        num_beams=1,
        pad_token_id=reference.config.pad_token_id,
        eos_token_id=reference.config.eos_token_id,
        bos_token_id=getattr(reference.config, "bos_token_id", None),
        decoder_start_token_id=getattr(reference.config, "decoder_start_token_id", None),
    )
    reference.generation_config = plain
    wanted = reference.generate(ids, attention_mask=torch.ones_like(ids))
    wanted = wanted[:, 1:] if model.config.kind == "encoder-decoder" else wanted[:, ids.shape[1] :]
    found: list[list[int]] = [[], []]
    for step in write(model.loaded, ids.tolist(), read_settings({"max_new_tokens": 10})):
        for row, token in zip(step.rows, step.tokens):
            found[row].append(token)
    for row in range(2):  # after its end a text is padded there
        ends = torch.isin(wanted[row], torch.tensor(model.config.end_tokens)).nonzero()
        length = int(ends[0]) + 1 if len(ends) else wanted.shape[1]
        assert found[row] == wanted[row, :length].tolist()


def test_an_encoder_does_not_write() -> None:
    model = pellucid.build(pellucid.Config.of("bert", num_hidden_layers=1, hidden_size=12, vocab_size=9))
    with pytest.raises(InputError, match="kind 'encoder'"):
        list(write(model.loaded, [[1, 1, 1]], read_settings({})))
    gpt = pellucid.build(pellucid.Config.of("gpt2", num_hidden_layers=1, hidden_size=12, vocab_size=9))
    with pytest.raises(InputError, match="head for the next token"):
        list(write(gpt.loaded, [[1, 1, 1]], read_settings({})))

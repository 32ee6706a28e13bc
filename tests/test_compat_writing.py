"""The reference's `generate`: the same ids, the prompt before them, padding behind."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import pellucid
from pellucid import compat
from tests.test_compat_auto import ours, reference

IDS = torch.tensor([[5, 9, 14, 33, 21], [0, 0, 7, 8, 40]])
MASK = (IDS != 0).long()
CALLS: list[dict[str, Any]] = [
    {},
    {"max_new_tokens": 7},
    {"max_length": 12},
    {"num_beams": 3, "max_new_tokens": 9},
    {"num_beams": 4, "num_return_sequences": 2, "max_new_tokens": 9, "early_stopping": True, "length_penalty": 0.5},
    {"max_new_tokens": 12, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    {"max_new_tokens": 8, "eos_token_id": [33, 40, 61], "pad_token_id": 3},
    {"max_new_tokens": 9, "min_new_tokens": 5, "bad_words_ids": [[12], [7, 8]]},
    {"max_new_tokens": 4, "do_sample": False, "use_cache": True, "temperature": 0.7, "length_penalty": 2.0},
]
SAMPLED = {"do_sample": True, "max_new_tokens": 6, "num_return_sequences": 3, "top_k": 20, "temperature": 1.5}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["gpt2", "llama", "bart", "t5"])
def test_the_same_ids_are_written(family: str, tmp_path: Path) -> None:
    pair = family in ("bart", "t5")
    task = "Seq2SeqLM" if pair else "CausalLM"
    theirs = reference(family, task, tmp_path, eos_token_id=2, bos_token_id=1)
    model = ours(task, tmp_path)
    ids = IDS.flip(1) if pair else IDS  # an encoder reads from the left, a decoder is padded there
    given = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    for options in CALLS:
        wanted, found = theirs.generate(**given, **options), model.generate(**given, **options)
        assert found.tolist() == wanted.tolist(), options
    one = ids[:1] if not pair else ids[:1, :5]
    assert torch.equal(model.generate(one, max_new_tokens=3), theirs.generate(one, max_new_tokens=3))
    torch.manual_seed(3)
    drawn = model.generate(given, **SAMPLED)
    torch.manual_seed(3)
    assert torch.equal(drawn, model.generate(given, **SAMPLED))
    assert len(drawn) == 6 and len({tuple(row) for row in drawn.tolist()}) > 2


def test_what_the_checkpoint_says_is_followed(tmp_path: Path) -> None:
    theirs = reference("gpt2", "CausalLM", tmp_path)
    said = transformers.GenerationConfig(max_new_tokens=5, repetition_penalty=1.5, eos_token_id=2, pad_token_id=4)
    said.save_pretrained(tmp_path)
    theirs.generation_config = said
    given = {"input_ids": IDS, "attention_mask": MASK}
    model = ours("CausalLM", tmp_path)
    found = model.generate(**given)
    assert torch.equal(found, theirs.generate(**given)) and found.shape[1] <= 10
    model.generation_config.max_new_tokens = theirs.generation_config.max_new_tokens = 2
    whole = model.generate(**given, return_dict_in_generate=True)
    assert torch.equal(whole.sequences, theirs.generate(**given)) and whole.sequences.shape[1] == 7
    other = [kind(max_new_tokens=6, num_beams=2) for kind in (compat.GenerationConfig, transformers.GenerationConfig)]
    found, wanted = (
        model.generate(**given, generation_config=other[0]),
        theirs.generate(**given, generation_config=other[1]),
    )
    assert torch.equal(found, wanted)


@pytest.mark.filterwarnings("ignore")
def test_without_an_end_in_the_settings_nothing_ends(tmp_path: Path) -> None:
    theirs = reference("llama", "CausalLM", tmp_path, eos_token_id=2)
    first = theirs.generate(IDS[:1], max_new_tokens=1)[0, -1].item()
    theirs = reference("llama", "CausalLM", tmp_path, eos_token_id=first)
    assert ours("CausalLM", tmp_path).generate(IDS[:1]).shape == theirs.generate(IDS[:1]).shape == (1, 6)
    theirs.generation_config = transformers.GenerationConfig(max_new_tokens=4)
    theirs.generation_config.save_pretrained(tmp_path)
    found = ours("CausalLM", tmp_path).generate(IDS[:1])
    assert torch.equal(found, theirs.generate(IDS[:1])) and found.shape == (1, 9)


def test_set_seed() -> None:
    compat.set_seed(42)
    first = torch.rand(2)
    transformers.set_seed(42)
    assert torch.equal(first, torch.rand(2))


@pytest.mark.parametrize(
    ("inputs", "options", "fragment"),
    [
        (IDS, {"max_length": 5}, "max_length is 5, and 5 tokens stand already: raise it, or pass max_new_tokens"),
        (IDS, {"num_beam": 3}, r"no option 'num_beam' of writing \(did you mean num_beams"),
        (IDS, {"output_scores": True}, "output_scores is True, which is not understood here: model.pellucid.trace"),
        (None, {}, "generate needs input_ids"),
        (IDS, {"max_new_tokens": 0}, "max_new_tokens is 0"),
    ],
)
def test_what_cannot_be_written_is_told(inputs: Any, options: dict[str, Any], fragment: str, tmp_path: Path) -> None:
    reference("gpt2", "CausalLM", tmp_path)
    with pytest.raises(pellucid.InputError, match=fragment):
        ours("CausalLM", tmp_path).generate(inputs, **options)


def test_a_model_that_learned_writes_what_it_learned(tmp_path: Path) -> None:
    reference("gpt2", "CausalLM", tmp_path)
    model = ours("CausalLM", tmp_path)
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12]])
    before = model.generate(ids[:, :3], max_new_tokens=5)
    steps = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(40):
        model(ids, labels=ids).loss.backward()
        steps.step()
        steps.zero_grad()
    assert model.generate(ids[:, :3], max_new_tokens=5).tolist() == ids.tolist() != before.tolist()
    model.save_pretrained(tmp_path / "learned")
    again = compat.AutoModelForCausalLM.from_pretrained(tmp_path / "learned")
    assert again.generate(ids[:, :3], max_new_tokens=5).tolist() == ids.tolist()

"""Which inputs a tokenizer's files list for the model, such as token types, which tell apart the texts of a pair."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import pellucid
from tests.checkpoints.builders import edit_json
from tests.checkpoints.families import TINY
from tests.parity.tiny import write

PAIR = ("Apple Inc.", "The city has a large river")


@pytest.mark.parametrize(
    ("settings", "has_types"),
    [
        ({"model_input_names": ["input_ids", "attention_mask"]}, False),
        ({"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}, True),
        ({"model_input_names": None, "tokenizer_class": "TokenizersBackend"}, False),
    ],
)
def test_listed_inputs_reach_the_model(settings: dict[str, Any], has_types: bool, tmp_path: Path) -> None:
    folder = write("bert-feelings", tmp_path / "model")
    edit_json(
        folder / "tokenizer_config.json",
        lambda found: [
            found.pop(name, None) if one is None else found.update({name: one}) for name, one in settings.items()
        ],
    )
    inputs: Any = AutoTokenizer.from_pretrained(folder)(*PAIR, return_tensors="pt")
    assert ("token_type_ids" in inputs) == has_types
    with torch.no_grad():
        expected = AutoModelForSequenceClassification.from_pretrained(folder).eval()(**inputs).logits.softmax(-1)
    model = pellucid.load(folder)
    for one in (model, pellucid.load(model.save(tmp_path / "again"))):
        answer = pellucid.pipeline("text-classification", one)({"text": PAIR[0], "text_pair": PAIR[1]})
        assert answer["score"] == pytest.approx(expected.max().item(), abs=1e-6)
        traced = one.trace(*PAIR)["logits"].softmax(-1)
        torch.testing.assert_close(traced.flatten(), expected.flatten(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "gpt2", "distilbert", "t5"])
@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "vocab.txt"])
def test_saved_tokenizer_lists_the_inputs_of_the_model(family: str, kind: str, tmp_path: Path) -> None:
    """The class that takes a file as it is would list no token types, or BERT's for a GPT-2."""
    facts = TINY[family] | {"vocab_size": 300}
    if kind == "vocab.txt":
        folder = pellucid.build(pellucid.Config.of(family, **facts)).save(tmp_path / "model")
        vocabulary = "[PAD] [UNK] [CLS] [SEP] [MASK] . the city has a large river apple in ##c".split()
        (folder / "vocab.txt").write_text("\n".join(vocabulary))
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
        model = pellucid.load(folder)
    else:
        tokenizer = pellucid.train_tokenizer(texts=[*PAIR, "a city"], kind=kind, vocab_size=300)
        model = pellucid.build(pellucid.Config.of(family, **facts), tokenizer=tokenizer)
    saved = model.save(tmp_path / "saved")
    again = pellucid.load(saved)
    assert dict(again.tokenizer(*PAIR)) == dict(AutoTokenizer.from_pretrained(saved)(*PAIR))
    assert ("token_type_ids" in again.tokenizer(*PAIR)) == (family == "bert" and kind != "bpe")

"""Tables that a file holds several times, or only says that it does: what the reference reads, it finds."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import pellucid
from tests.parity.reference import batch, in_full, tiny

HEADS = ["Model", "ForConditionalGeneration", "ForSequenceClassification", "ForQuestionAnswering"]


def untied(folder: Path, architecture: str) -> Any:
    """A model whose tables are not tied, and the same numbers in both tables of tokens."""
    model = tiny(folder, architecture, dtype=torch.float64, tie_word_embeddings=False, num_labels=2)
    body = getattr(model, model.base_model_prefix, model)
    for side in (body.encoder, body.decoder):
        side.embed_tokens.weight.data.copy_(body.shared.weight)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", ["Bart", "T5"])
def test_what_is_saved_of_an_untied_pair_is_whole(family: str, head: str, tmp_path: Path) -> None:
    kind = getattr(transformers, f"{family}{head}")
    theirs = untied(tmp_path / "theirs", kind.__name__)
    inputs = batch(padded=False, types=False)
    inputs["input_ids"][:, -1] = theirs.config.eos_token_id
    if head != "ForSequenceClassification":
        inputs["decoder_input_ids"] = inputs["input_ids"]
    model = pellucid.load(tmp_path / "theirs", dtype="float64")
    model.save(tmp_path / "ours")
    again, report = kind.from_pretrained(tmp_path / "ours", dtype=torch.float64, output_loading_info=True)
    assert not any(report.values())
    with torch.no_grad(), in_full():
        wanted, found = theirs(**inputs)[0], again.eval()(**inputs)[0]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
    opened = pellucid.load(tmp_path / "ours", dtype="float64")
    for one in (model, opened):
        answer = one(**inputs)
        numbers = answer["logits"] if "logits" in answer else answer["last_hidden_state"]
        numbers = numbers[..., 0] if head == "ForQuestionAnswering" else numbers  # where an answer starts
        torch.testing.assert_close(numbers, wanted, rtol=0, atol=1e-9)


def test_tables_that_differ_are_refused(tmp_path: Path) -> None:
    theirs = untied(tmp_path, "BartModel")
    theirs.decoder.embed_tokens.weight.data += 1
    theirs.save_pretrained(tmp_path)
    with pytest.raises(pellucid.CheckpointMismatchError, match="should be the same table and differ"):
        pellucid.load(tmp_path)

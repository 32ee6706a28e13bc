"""Weights that a file holds several times, or only claims to: what the reference reads is what pellucid reads."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import pellucid
from tests.checkpoints.builders import edit_json, with_tensors
from tests.parity.reference import batch, in_full, tiny

HEADS = ["Model", "ForConditionalGeneration", "ForSequenceClassification", "ForQuestionAnswering"]


def save_untied(folder: Path, architecture: str) -> Any:
    """A model with untied embeddings, whose encoder and decoder tables hold the same values."""
    model = tiny(folder, architecture, dtype=torch.float64, tie_word_embeddings=False, num_labels=2)
    body = getattr(model, model.base_model_prefix, model)
    for side in (body.encoder, body.decoder):
        side.embed_tokens.weight.data.copy_(body.shared.weight)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", ["Bart", "T5"])
def test_untied_encoder_decoder_is_saved_completely(family: str, head: str, tmp_path: Path) -> None:
    kind = getattr(transformers, f"{family}{head}")
    theirs = save_untied(tmp_path / "theirs", kind.__name__)
    inputs = batch(padded=False, types=False)
    inputs["input_ids"][:, -1] = theirs.config.eos_token_id
    if head != "ForSequenceClassification":
        inputs["decoder_input_ids"] = inputs["input_ids"]
    model = pellucid.load(tmp_path / "theirs", dtype="float64")
    model.save(tmp_path / "ours")
    again, report = kind.from_pretrained(tmp_path / "ours", dtype=torch.float64, output_loading_info=True)
    assert not any(report.values())
    with torch.no_grad(), in_full():
        expected, found = theirs(**inputs)[0], again.eval()(**inputs)[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    opened = pellucid.load(tmp_path / "ours", dtype="float64")
    for one in (model, opened):
        output = one(**inputs)
        values = output["logits"] if "logits" in output else output["last_hidden_state"]
        values = values[..., 0] if head == "ForQuestionAnswering" else values  # the start logits
        torch.testing.assert_close(values, expected, rtol=0, atol=1e-9)


def test_differing_copies_are_refused(tmp_path: Path) -> None:
    theirs = save_untied(tmp_path, "BartModel")
    theirs.decoder.embed_tokens.weight.data += 1
    theirs.save_pretrained(tmp_path)
    with pytest.raises(pellucid.CheckpointMismatchError, match="should be the same table and differ"):
        pellucid.load(tmp_path)


def logits_of_both(reference: Any, model: "pellucid.Model") -> tuple[torch.Tensor, torch.Tensor]:
    """Our logits and the reference's."""
    ids = batch(padded=False, types=False)["input_ids"]
    with torch.no_grad(), in_full():
        expected = reference(input_ids=ids, decoder_input_ids=ids).logits
    return model(ids, decoder_input_ids=ids).logits, expected


def test_missing_bart_bias_is_zero(tmp_path: Path) -> None:
    theirs = tiny(tmp_path / "whole", "BartForConditionalGeneration", dtype=torch.float64)
    theirs.save_pretrained(tmp_path / "bare")
    with_tensors(lambda tensors: tensors.pop("final_logits_bias"))(tmp_path / "bare")
    model = pellucid.load(tmp_path / "bare", dtype="float64")
    found, expected = logits_of_both(type(theirs).from_pretrained(tmp_path / "bare", dtype=torch.float64).eval(), model)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    assert "UNTRAINED" not in repr(model)
    packed = [logits_of_both(theirs, pellucid.load(tmp_path / name, dtype="int8"))[0] for name in ("whole", "bare")]
    assert torch.equal(*packed)
    again = pellucid.load(model.save(tmp_path / "again"), dtype="float64")
    assert torch.equal(logits_of_both(theirs, again)[0], found)


def test_t5_file_without_a_head_table_is_tied(tmp_path: Path) -> None:
    """Whatever `tie_word_embeddings` says: the reference reads it there only to decide whether to scale the logits."""
    theirs = tiny(tmp_path, "T5ForConditionalGeneration", dtype=torch.float64, tie_word_embeddings=False)
    edit_json(tmp_path / "config.json", lambda facts: facts.update(tie_word_embeddings=False))
    edit_json(tmp_path / "config.json", lambda facts: facts.pop("scale_decoder_outputs"))
    with_tensors(lambda tensors: tensors.pop("lm_head.weight", None))(tmp_path)
    theirs = type(theirs).from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert theirs.lm_head.weight is theirs.shared.weight
    model = pellucid.load(tmp_path, dtype="float64")
    found, expected = logits_of_both(theirs, model)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    found, _ = logits_of_both(theirs, pellucid.load(model.save(tmp_path / "again"), dtype="float64"))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)

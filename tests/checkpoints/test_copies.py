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


def untied(folder: Path, architecture: str) -> Any:
    """A model with untied embeddings, whose encoder and decoder tables hold the same values."""
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
        numbers = numbers[..., 0] if head == "ForQuestionAnswering" else numbers  # the start logits
        torch.testing.assert_close(numbers, wanted, rtol=0, atol=1e-9)


def test_tables_that_differ_are_refused(tmp_path: Path) -> None:
    theirs = untied(tmp_path, "BartModel")
    theirs.decoder.embed_tokens.weight.data += 1
    theirs.save_pretrained(tmp_path)
    with pytest.raises(pellucid.CheckpointMismatchError, match="should be the same table and differ"):
        pellucid.load(tmp_path)


def answers(reference: Any, model: "pellucid.Model") -> tuple[torch.Tensor, torch.Tensor]:
    """Our logits and the reference's."""
    ids = batch(padded=False, types=False)["input_ids"]
    with torch.no_grad(), in_full():
        wanted = reference(input_ids=ids, decoder_input_ids=ids).logits
    return model(ids, decoder_input_ids=ids).logits, wanted


def test_a_bias_that_a_file_of_bart_lacks_is_zero_and_its_head_stays(tmp_path: Path) -> None:
    theirs = tiny(tmp_path / "whole", "BartForConditionalGeneration", dtype=torch.float64)
    theirs.save_pretrained(tmp_path / "bare")
    with_tensors(lambda tensors: tensors.pop("final_logits_bias"))(tmp_path / "bare")
    model = pellucid.load(tmp_path / "bare", dtype="float64")
    found, wanted = answers(type(theirs).from_pretrained(tmp_path / "bare", dtype=torch.float64).eval(), model)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
    assert "UNTRAINED" not in repr(model)
    packed = [answers(theirs, pellucid.load(tmp_path / name, dtype="int8"))[0] for name in ("whole", "bare")]
    assert torch.equal(*packed)
    again = pellucid.load(model.save(tmp_path / "again"), dtype="float64")
    assert torch.equal(answers(theirs, again)[0], found)


def test_a_file_of_t5_without_a_table_of_its_head_has_one_table(tmp_path: Path) -> None:
    """Whatever `tie_word_embeddings` says: the reference reads it there only to decide whether to scale the logits."""
    theirs = tiny(tmp_path, "T5ForConditionalGeneration", dtype=torch.float64, tie_word_embeddings=False)
    edit_json(tmp_path / "config.json", lambda facts: facts.update(tie_word_embeddings=False))
    edit_json(tmp_path / "config.json", lambda facts: facts.pop("scale_decoder_outputs"))
    with_tensors(lambda tensors: tensors.pop("lm_head.weight", None))(tmp_path)
    theirs = type(theirs).from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert theirs.lm_head.weight is theirs.shared.weight
    model = pellucid.load(tmp_path, dtype="float64")
    found, wanted = answers(theirs, model)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
    found, _ = answers(theirs, pellucid.load(model.save(tmp_path / "again"), dtype="float64"))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
